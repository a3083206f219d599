"""Whatever is changed in a log or its projection afterwards is found, and found where it is.

Invariants:
- Changes are made as an intruder would: through SQL in the log's file, through the store's own
  writes in the projection; never through anything that keeps hashes up to date.
- What must be named (run and sequence) is known from the records before the change.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from foldlog import Engine
from foldlog.artifacts import ArtifactFolder
from foldlog.core.catalogue import CATALOGUE
from foldlog.core.state import Draft
from foldlog.errors import Damaged
from foldlog.importers.chat import import_chat
from foldlog.log.base import Stored
from foldlog.results import Value, VerifyReport
from foldlog.store.rocks import RocksStore
from foldlog.wire import keys
from foldlog.wire.records import decode_record
from tests import samples
from tests.core_walk import walk
from tests.seats import holder_of
from tests.turn_world import fact, start, stored, value

Place = tuple[int, int]
"""Partition and offset of a record."""

WAIT = {"kind": "timer", "key": "t", "reason": "later", "deadline": "2999-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of one partition and nine records: every outcome that a client can cause."""
    path = tmp_path_factory.mktemp("small") / "home"
    with Engine.open(path, create=True, partitions=1, author="user:ada") as engine:
        late = {"type": "PhaseChanged", "phase": "fix"}
        for made in (
            start(1),
            value({"type": "RunTransitioned", "to": "planning"}, id=2, expected_revision=1),
            fact(3),
            fact(3),
            value(late, id=4, expected_revision=9),
            value({"type": "WaitStarted", **WAIT}, id=5, expected_revision=3),
            value(late, id=6, expected_revision=4),
            value(late | {"phase": "x"}, id=7, expected_revision=4, on_conflict="arbitrate"),
        ):
            engine.run("run_1").propose_json(made)
        engine.run("run_2").propose_json(start(1))
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A home of two partitions with runs as agents make them, and every event type there is."""
    path = tmp_path_factory.mktemp("large") / "home"
    with Engine.open(path, create=True, partitions=2, author="user:ada") as engine:
        results = import_chat(
            engine,
            repository / "examples" / "transcripts.jsonl",
            ArtifactFolder(path / "artifacts"),
        )
        assert all(result.ok for result in results)
        for record in walk(11, 60).records:
            engine.run(record.run_id).propose_json(record.value)
        for type in samples.EVENT_TYPES:
            engine.run(f"run_{type}").propose([samples.maximal("RunStarted")])
            engine.run(f"run_{type}").propose([samples.minimal(type)], expected_revision=1)
    return path


@pytest.fixture(scope="module")
def small_engine(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A copy of the small home, open; a test that changes it changes it back."""
    with Engine.open(copied(small, tmp_path_factory.mktemp("open"))) as engine:
        yield engine


@pytest.fixture(scope="module")
def large_engine(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A copy of the large home, open; a test that changes it changes it back."""
    with Engine.open(copied(large, tmp_path_factory.mktemp("open"))) as engine:
        yield engine


def copied(home: Path, folder: Path) -> Path:
    """A copy of a home."""
    return Path(shutil.copytree(home, folder / "home"))


def file_of(engine: Engine) -> str:
    """The log's file of an open home."""
    path: str = engine._seat.place.log._path  # type: ignore[attr-defined]
    return path


def execute(path: Path | str, *statements: tuple[Any, ...]) -> None:
    """Change a log by SQL, in one transaction."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement, *values in statements:
            connection.execute(statement, values)


def rows_of(engine: Engine) -> list[tuple[int, Stored]]:
    """Every record with its partition."""
    log = engine._seat.place.log
    return [(number, row) for number in range(log.partitions) for row in stored(log, number)]


def opened_and_verified(home: Path) -> tuple[str | None, int]:
    """Run and sequence that opening or verifying a changed home names."""
    try:
        with Engine.open(home) as engine:
            return difference(engine)
    except Damaged as error:
        return error.run_id, error.sequence


def difference(engine: Engine) -> tuple[str | None, int]:
    """Run and sequence of the first difference; AssertionError if none is found."""
    first = found_by(engine.verify())
    assert first["what"]
    assert first["expected"] != first["found"]
    return first["run_id"], first["sequence"]


def found_by(report: VerifyReport) -> Value:
    """The first difference of a proof that failed."""
    assert not report.ok, "not found"
    assert report.first_difference is not None
    return report.first_difference


def test_homes_that_nobody_changed_verify(small_engine: Engine, large_engine: Engine) -> None:
    """What no one touched is found whole, whichever way it is asked."""
    for engine in (small_engine, large_engine):
        report = engine.verify(redecide=True)
        assert report.ok, report.first_difference
        assert report.records == len(rows_of(engine))
        for row in engine.runs():
            assert engine.verify(row.run_id).ok


# The log, byte by byte


def changes(engine: Engine, number: int, row: Stored, at: int, mask: int) -> Callable[[], None]:
    """Flip bits of one byte of a record's value; the answer undoes it."""
    changed = bytearray(row.value)
    changed[at] ^= mask
    statement = f'UPDATE events_{number} SET value = ? WHERE "offset" = ?'
    execute(file_of(engine), (statement, bytes(changed), row.offset))
    return lambda: execute(file_of(engine), (statement, row.value, row.offset))


@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_every_byte_of_a_small_record(small_engine: Engine, mask: int) -> None:
    """Each byte of the two shortest records, and some of every other, is guarded."""
    rows = rows_of(small_engine)
    shortest = sorted(rows, key=lambda item: len(item[1].value))[:2]
    for number, row in rows:
        stride = 1 if (number, row) in shortest else 61
        for at in range(row.sequence % stride, len(row.value), stride):
            undo = changes(small_engine, number, row, at, mask)
            found = difference(small_engine)
            assert found == (row.key.decode(), row.sequence), (row.sequence, at)
            undo()
    assert small_engine.verify().ok


def test_some_byte_of_every_record(large_engine: Engine) -> None:
    """A changed byte in any record of a real history is found at that record."""
    for number, row in rows_of(large_engine)[::3]:
        at = row.sequence * 7919 % len(row.value)
        undo = changes(large_engine, number, row, at, (0x01, 0xFF)[row.sequence // 2 % 2])
        found = difference(large_engine)
        assert found == (row.key.decode(), row.sequence), (row.sequence, at)
        undo()
    assert large_engine.verify().ok


COLUMNS: dict[str, Callable[[Any], Any]] = {
    "key": lambda key: bytes([key[0] ^ 1]) + key[1:],
    "sequence": lambda sequence: sequence + 1,
    "log_time": lambda time: time ^ 1,
    "head": lambda head: head[:-1] + bytes([head[-1] ^ 1]),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_of_every_record(small_engine: Engine, column: str) -> None:
    """Columns that repeat what a record says are compared with it; the record is named."""
    for number, row in rows_of(small_engine):
        kept = getattr(row, column)
        statement = f'UPDATE events_{number} SET {column} = ? WHERE "offset" = ?'
        execute(file_of(small_engine), (statement, COLUMNS[column](kept), row.offset))
        assert difference(small_engine) == (row.key.decode(), row.sequence)
        execute(file_of(small_engine), (statement, kept, row.offset))
    assert small_engine.verify().ok


@pytest.mark.parametrize("column", ["value", *COLUMNS])
def test_a_changed_home_is_found_when_it_is_opened_again(
    small: Path, tmp_path: Path, column: str
) -> None:
    """Opened afresh, with its projection and without it, the changed record is named."""
    with Engine.open(copied(small, tmp_path / "whole")) as engine:
        rows = rows_of(engine)
    for number, row in rows:
        change = COLUMNS.get(column, lambda value: value[:40] + b"~" + value[41:])
        statement = f'UPDATE events_{number} SET {column} = ? WHERE "offset" = ?'
        home = copied(small, tmp_path / f"{row.sequence}")
        execute(home / "log.sqlite", (statement, change(getattr(row, column)), row.offset))
        run_id, sequence = opened_and_verified(home)
        assert sequence == row.sequence
        # The projection's own head is compared before its record is read.
        assert run_id == row.key.decode() or row is rows[-1][1]
        shutil.rmtree(home / "projection")
        assert opened_and_verified(home) == (row.key.decode(), row.sequence)


def test_a_changed_byte_is_found_by_readers_of_that_run(small_engine: Engine) -> None:
    """History, a past state and the proof of one run do not show a record that was changed."""
    number, row = rows_of(small_engine)[4]
    assert decode_record(row.value).outcome == "rejected"
    message = (decode_record(row.value).message or "").encode()
    undo = changes(small_engine, number, row, row.value.index(message), 0x01)
    run = small_engine.run("run_1")
    with pytest.raises(Damaged, match="sequence 5"):
        run.history(rejected=True)
    with pytest.raises(Damaged, match="sequence 5"):
        run.at(5)
    assert found_by(small_engine.verify("run_1"))["sequence"] == 5
    undo()
    assert small_engine.verify("run_1").ok


# The log, record by record


def move(number: int, row: Stored, to: int) -> tuple[Any, ...]:
    """The statement that gives a record another offset."""
    return (f'UPDATE events_{number} SET "offset" = ? WHERE "offset" = ?', to, row.offset)


@pytest.fixture
def victim(large: Path, tmp_path: Path) -> tuple[Path, list[tuple[int, Stored]]]:
    """A home to be changed, and the records of its second partition."""
    home = copied(large, tmp_path)
    with Engine.open(home) as engine:
        rows = rows_of(engine)
    return home, [item for item in rows if item[0] == 1]


def check(home: Path, *expected: tuple[str | None, int]) -> None:
    """The change is named, with the projection and without it."""
    assert opened_and_verified(home) in expected
    shutil.rmtree(home / "projection")
    assert opened_and_verified(home) in expected


Victim = tuple[Path, list[tuple[int, Stored]]]


def test_a_removed_record(victim: Victim) -> None:
    """A record that is gone is noticed at the one that came after it."""
    home, rows = victim
    number, row = rows[7]
    execute(home / "log.sqlite", (f'DELETE FROM events_{number} WHERE "offset" = ?', row.offset))
    check(home, (rows[8][1].key.decode(), row.sequence + 1))


def test_a_removed_record_with_the_gap_closed(victim: Victim) -> None:
    """The same where all later records were moved down by one."""
    home, rows = victim
    number, row = rows[7]
    later = [move(number, other, other.offset - 1) for _, other in rows[8:]]
    execute(
        home / "log.sqlite",
        (f'DELETE FROM events_{number} WHERE "offset" = ?', row.offset),
        *later,
    )
    check(home, (None, rows[-1][1].sequence), (rows[8][1].key.decode(), row.sequence + 1))


def test_a_swapped_pair(victim: Victim) -> None:
    """Two records in the wrong order are named at the first place that is wrong."""
    home, rows = victim
    (number, a), (_, b) = rows[7:9]
    swap = move(number, a, 10**6), move(number, b, a.offset)
    back = (f'UPDATE events_{number} SET "offset" = ? WHERE "offset" = ?', b.offset, 10**6)
    execute(home / "log.sqlite", *swap, back)
    check(home, (b.key.decode(), b.sequence))


@pytest.mark.parametrize("place", [3, -1])
def test_a_repeated_record(victim: Victim, place: int) -> None:
    """A record that stands a second time at the end of the log is no record of it."""
    home, rows = victim
    number, row = rows[place]
    execute(home / "log.sqlite", inserted(number, row, rows[-1][1].offset + 1))
    check(home, (row.key.decode(), row.sequence))


def inserted(number: int, row: Stored, offset: int) -> tuple[Any, ...]:
    """The statement that adds a record at an offset."""
    values = (offset, row.key, row.value, row.sequence, row.log_time, row.head)
    return (f"INSERT INTO events_{number} VALUES (?, ?, ?, ?, ?, ?)", *values)


def test_a_cut_tail(victim: Victim) -> None:
    """A projection ahead of its log is a difference: the last records were taken away."""
    home, rows = victim
    number, row = rows[-3]
    execute(home / "log.sqlite", (f'DELETE FROM events_{number} WHERE "offset" > ?', row.offset))
    assert opened_and_verified(home) == (None, rows[-1][1].sequence)


def test_a_tail_cut_under_an_open_home(small_engine: Engine) -> None:
    """The same while the home is open, found by verify."""
    (number, row) = rows_of(small_engine)[-1]
    execute(file_of(small_engine), (f'DELETE FROM events_{number} WHERE "offset" = ?', row.offset))
    assert difference(small_engine) == (None, row.sequence)
    execute(file_of(small_engine), inserted(number, row, row.offset))
    assert small_engine.verify().ok


def test_a_record_moved_to_another_partition(victim: Victim) -> None:
    """A record of one partition is a hole in another."""
    home, rows = victim
    number, row = rows[-1]
    end = len(sequences(home, 0)) + 1
    execute(
        home / "log.sqlite",
        (f'DELETE FROM events_{number} WHERE "offset" = ?', row.offset),
        inserted(0, row, end),
    )
    check(home, (row.key.decode(), row.sequence))


def sequences(home: Path, number: int) -> list[int]:
    """The sequences of one partition's records."""
    with closing(sqlite3.connect(home / "log.sqlite")) as connection:
        query = f'SELECT sequence FROM events_{number} ORDER BY "offset"'
        return [row[0] for row in connection.execute(query)]


# A reducer that has drifted


def _header(draft: Draft) -> None:
    draft.count(next_signal=1)


def _text(draft: Draft) -> None:
    """The last changed entity with one more space in one of its texts."""
    for address, slot in reversed(draft.changes.items()):
        texts = [k for k, v in (_object(slot)).items() if isinstance(v, str)]
        if slot is not None and texts:
            value = {**slot.value, texts[-1]: slot.value[texts[-1]] + " "}
            draft.changes[address] = replace(slot, value=value)
            return
    raise AssertionError(draft.changes)


def _object(slot: Any) -> dict[str, Any]:
    return slot.value if slot is not None and isinstance(slot.value, dict) else {}


DRIFTS = {
    "RunStarted": _text,
    "RunTransitioned": _header,
    "PhaseChanged": _header,
    "EnvironmentObserved": _text,
    "ToolStarted": _text,
    "ToolSucceeded": _header,
    "SignalReceived": _header,
    "WaitStarted": _text,
    "BudgetSpent": _header,
    "FactConfirmed": _text,
    "TaskAdded": _text,
    "HypothesisProposed": _text,
    "ArtifactAdded": _text,
    "QuestionOpened": _text,
    "Recorded": _header,
    "RunFinished": _header,
}


@pytest.mark.parametrize("type", DRIFTS)
def test_a_reducer_that_drifts_is_found_at_the_first_revision(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    """One line changed in one reducer: the first record that it folds otherwise is named, by
    verify beside the old projection and by opening without it."""
    home = copied(large, tmp_path)
    with Engine.open(home) as engine:
        expected = first_accepted(engine, type)
        old = CATALOGUE[type]

        def apply(draft: Draft, event: Any, ctx: Any) -> None:
            old.apply(draft, event, ctx)
            DRIFTS[type](draft)

        monkeypatch.setitem(CATALOGUE, type, replace(old, apply=apply))
        first = found_by(engine.verify())
    assert first["what"] == "state hash"
    assert (first["run_id"], first["sequence"]) == expected
    shutil.rmtree(home / "projection")
    errors = halted_by_opening(home)
    assert expected in [(error.run_id, error.sequence) for error in errors]
    assert all("state hash" in str(error) for error in errors)


def halted_by_opening(home: Path) -> list[Damaged]:
    """Why partitions are halted when a home is opened."""
    try:
        with Engine.open(home) as engine:
            return holder_of(engine).halted
    except Damaged as error:  # all of them are
        return [error]


def first_accepted(engine: Engine, type: str) -> tuple[str, int]:
    """Run and sequence of the first accepted record with an event of this type."""
    for _, row in rows_of(engine):
        record = decode_record(row.value)
        if record.outcome == "accepted":
            [history] = [
                shown
                for shown in engine.run(record.run_id).history()
                if shown.sequence == record.sequence
            ]
            if any(event["type"] == type for event in history.events or []):
                return record.run_id, record.sequence
    raise AssertionError(f"no accepted {type}")


# The projection


def test_every_key_of_the_projection(small_engine: Engine) -> None:
    """A changed byte of any value is found by verify, and what it belongs to is named."""
    store = holder_of(small_engine).held[0].partition.store
    whole = dict(store.scan(b""))
    assert {key[:1] for key in whole} == {b"m", b"h", b"e", b"b", b"r", b"t"}
    for key, kept in whole.items():
        for at in {0, len(kept) // 2, len(kept) - 1} if kept else {-1}:
            changed = bytearray(kept or b"\0")
            changed[at] ^= 1
            store.write({key: bytes(changed)})
            check_named(key, at, found_by(small_engine.verify()))
            store.write({key: kept})
    assert small_engine.verify().ok


def check_named(key: bytes, at: int, first: Any) -> None:
    """What was found names the entity whose key was changed."""
    family, _, rest = key.partition(b"\0")
    if family == b"m":
        assert first["what"].startswith(("projection", "the projection"))
        return
    run_id = (rest[keys.DEADLINE_BYTES :] if family == b"t" else rest.split(b"\0")[0]).decode()
    assert first["run_id"] == run_id, (key, at, first)
    what = {b"h": "head of the run", b"b": "batch id", b"r": "place of record", b"t": "timer"}
    kind = rest.split(b"\0")[1].decode() if family == b"e" else what[family]
    assert first["what"].startswith(f"projection: {kind}"), (key, at, first)


def test_missing_and_additional_keys(small_engine: Engine) -> None:
    """A key too few and a key too many are differences as well."""
    store = holder_of(small_engine).held[0].partition.store
    for key, kept in dict(store.scan(b"")).items():
        if key == keys.META:
            continue
        store.write({key: None})
        check_named(key, -1, found_by(small_engine.verify()))
        store.write({key: kept})
        more = key + b"~" if not key.startswith((b"b", b"r")) else key[:-1] + b"~"
        store.write({more: kept})
        assert not small_engine.verify().ok
        store.write({more: None})
    assert small_engine.verify().ok


def test_one_run_is_proved_alone(small_engine: Engine) -> None:
    """Verifying one run finds what was changed in it, and not what was changed in another."""
    store = holder_of(small_engine).held[0].partition.store
    for key, kept in dict(store.scan(b"")).items():
        if not key.startswith((b"e\0run_1\0", b"h\0run_1", b"r\0run_1\0")):
            continue
        changed = bytearray(kept)
        changed[-1] ^= 1
        store.write({key: bytes(changed)})
        first = found_by(small_engine.verify("run_1"))
        assert first["run_id"] == "run_1"
        assert small_engine.verify("run_2").ok
        store.write({key: kept})
    assert small_engine.verify("run_1").ok


@pytest.mark.parametrize("family", ["m", "h", "e", "b", "r", "t"])
def test_a_changed_projection_is_found_when_it_is_opened_again(
    small: Path, tmp_path: Path, family: str
) -> None:
    """Opened afresh, a projection with one changed byte is named by opening or by verify."""
    home = copied(small, tmp_path)
    with closing(RocksStore(home / "projection" / "0")) as store:
        key, kept = next(store.scan(family.encode()))
        at = len(kept) // 2
        changed = kept[:at] + bytes([(kept or b"\0")[at] ^ 1]) + kept[at + 1 :]
        store.write({key: changed})
    run_id, _ = opened_and_verified(home)
    assert run_id in (None, "run_1") if family == "m" else run_id == "run_1"


# Digests


CONTRACT_KEYS = """
run_id revision control_revision goal phase status result plan active_task_id next_task_ids
confirmed_facts hypotheses ruled_out open_questions tasks environment_observations effects
effect_ledger_ref artifacts pending_tool_calls waiting signals last_signal retry_count retry_limit
lease conflicts budgets permissions_revoked last_transition last_action workspace agent_version
labels checkpoint forked_from rules_version chain
""".split()


def own_digest(document: dict[str, Any]) -> bytes:
    """A run's digest as the contract words it."""
    form = {key: document[key] for key in CONTRACT_KEYS}
    if form["checkpoint"] is not None:
        form["checkpoint"] = dict(form["checkpoint"])
        del form["checkpoint"]["schema_version"]
    return hashlib.blake2b(rfc8785.dumps(form), digest_size=32).digest()


def test_digests_of_projection_replay_and_contract_agree(large_engine: Engine) -> None:
    """The digest of the state as served, as folded again, and as computed from the documents."""
    digests = {}
    for row in large_engine.runs():
        state = large_engine.run(row.run_id).state()
        assert state is not None
        digests[row.run_id] = own_digest(state.to_dict())
        replayed = large_engine.replay(row.run_id)
        assert replayed is not None
        assert replayed.digest == digests[row.run_id].hex()
    whole = hashlib.blake2b(digest_size=32)
    for run_id in sorted(digests):
        whole.update(digests[run_id])
    replayed = large_engine.replay()
    assert replayed is not None
    assert replayed.digest == large_engine.digest() == whole.hexdigest()
    assert (replayed.runs, len(digests)) == (len(digests), len(large_engine.runs()))


def test_replay_to_each_revision_is_the_state_at_it(large_engine: Engine) -> None:
    """Replaying a run to a revision gives the digest of the state shown at it."""
    run_id = max(large_engine.runs(), key=lambda row: row.revision).run_id
    run = large_engine.run(run_id)
    for row in run.history():
        then = run.at(row.revision_after)
        replayed = large_engine.replay(run_id, to=row.revision_after)
        assert then is not None
        assert replayed is not None
        assert replayed.digest == own_digest(then.to_dict()).hex()
        assert then.chain == row.chain
