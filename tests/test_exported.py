"""Runs taken from one log into another: the same in both, and nothing of it before it is whole.

Invariants:
- What another home is compared with is the home that decided; nothing here decides anything.
- A foreign producer's parts go straight into the log, past every check of the client.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foldlog import client, testing
from foldlog.core.values import format_instant
from foldlog.log.memory import MemoryLog
from foldlog.store.memory import MemoryStore
from foldlog.views import proven
from foldlog.wire.imports import encode_part, parts_of
from foldlog.wire.records import decode_record
from tests.client_runs import (
    NOW,
    accepted,
    act,
    document,
    event,
    fact,
    hand_in,
    refused,
    running,
    started,
    wait,
)
from tests.core_walk import RULES_OF_WALKS, walk
from tests.export_runs import (
    FORGERIES,
    RUN,
    USER,
    assert_proven,
    batch,
    export,
    file_of,
    forged,
    make_run,
    read,
    take,
)
from tests.seats import seat_on

Json = dict[str, Any]
HERE = ("sequence", "duplicate_of")
"""What a row of the history has of the home it is in."""


class WalkEngine(client.Engine):
    """An engine in memory of so many partitions, under the rules of the walks."""

    def __init__(self, partitions: int, now: str = "2026-01-01T00:00:00Z") -> None:
        self.clock = testing.Clock(now)
        log = MemoryLog(partitions, self.clock)
        stores = [MemoryStore() for _ in range(partitions)]
        seat = seat_on(log, stores, self.clock, RULES_OF_WALKS, timekeeper=False)
        super().__init__(seat, self.clock, author="user:x")


def told(run: client.Run) -> list[Json]:
    """A run's history without what belongs to the home."""
    rows = [row.to_dict() for row in run.history(rejected=True)]
    return [{name: row[name] for name in row if name not in HERE} for row in rows]


def assert_same(one: client.Engine, other: client.Engine, run_id: str = RUN) -> None:
    """A run is the same in both homes: now, then (of a long one now and then), row by row."""
    here, there = one.run(run_id), other.run(run_id)
    assert document(there) == document(here)
    assert told(there) == told(here)
    assert there.transitions() == here.transitions()
    last = document(here)["revision"]
    for revision in {*range(1, last, 1 + last // 30), last}:
        assert there.at(revision) == here.at(revision)
    for row in here.history()[:: 1 + last // 30]:
        assert there.at(row.log_time) == here.at(row.log_time)
    a, b = one.replay(run_id), other.replay(run_id)
    assert a is not None
    assert b is not None
    assert (a.digest, a.records) == (b.digest, b.records)


@pytest.mark.parametrize("seed", [*range(4), *range(1_000, 1_003)])
def test_a_run_of_any_kind_is_the_same_elsewhere(seed: int) -> None:
    """Walks with refusals, duplicates, arbitration and quarantine, carried over two homes."""
    world = walk(seed, ids=6 if seed >= 1_000 else 10**9)
    with WalkEngine(2) as a, WalkEngine(5) as b, WalkEngine(1) as c:
        for record in world.records:
            a.clock.set(format_instant(record.log_time))
            a.run(record.run_id).propose_json(record.value)
        run_ids = sorted(row.run_id for row in a.runs())
        for run_id in run_ids:
            proven(map(decode_record, export(a, run_id)), RULES_OF_WALKS)
            take(b, run_id, export(a, run_id))
            assert_same(a, b, run_id)
            take(c, run_id, export(b, run_id))
            assert_same(a, c, run_id)
        assert sorted(row.run_id for row in b.runs()) == run_ids
        assert a.digest() == b.digest() == c.digest()
        for engine in (a, b, c):
            assert_proven(engine)
        for record in world.records:  # every batch id is known there, and says what it said here
            batch_id = record.value["batch_id"]
            if record.run_id in run_ids:
                _says_the_same(a.run(record.run_id), b.run(record.run_id), batch_id)


def _says_the_same(here: client.Run, there: client.Run, batch_id: str) -> None:
    first, second = here.outcome(batch_id), there.outcome(batch_id)
    assert first is not None
    assert second is not None
    skip = ("sequence", "partition")
    assert [second[name] for name in first.to_dict() if name not in skip] == [
        first[name] for name in first.to_dict() if name not in skip
    ]


def moved(a: client.Engine, b: client.Engine) -> client.Run:
    """Run 1 of a, imported into b."""
    take(b, RUN, export(a))
    return b.run(RUN)


def test_it_goes_on_where_it_came_to() -> None:
    """New proposals are decided on the imported state; a known batch id has its first outcome."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW, partitions=3) as b:
        started(b, "other")
        run = running(a)
        batch_id = accepted(run.propose(fact("f1"))).batch_id
        run.propose(fact("f1"), batch_id=batch_id)
        here = moved(a, b)
        again = here.propose(fact("f1"), batch_id=batch_id)
        assert (again.outcome, again.duplicate, again.revision) == ("accepted", True, 4)
        first, *_, last = here.history(rejected=True)
        row = next(row for row in here.history(rejected=True) if row.batch_id == batch_id)
        assert (last.outcome, last.duplicate_of) == ("duplicate", row.sequence)
        assert first.revision_after == 1
        assert act(here, fact("f2")).revision == 5
        refused(here.propose(fact("f3"), batch_id=batch_id), "BATCH_ID_REUSED")
        assert_proven(b)
        with testing.Engine(now=NOW) as c:
            moved(b, c)
            assert_same(b, c)
            assert_proven(c)


def test_finished_stays_finished() -> None:
    """A finished run takes reports only, as it did at home."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        act(running(a), event("RunFinished", result="completed"))
        here = moved(a, b)
        refused(here.propose(fact("late")), "RUN_FINISHED")
        assert document(here)["result"] == "completed"
        assert_proven(b)


def test_a_timer_fires_after_the_import_only() -> None:
    """A deadline that passed while half a run was there ends the wait once the run is whole."""
    with testing.Engine(now=NOW) as a, testing.Engine(now="2026-03-01T00:00:00Z") as b:
        run = running(a)
        for number in range(120):
            accepted(run.propose(fact(f"f{number}")))
        act(run, wait(deadline="2026-02-01T00:00:00Z"))
        for number in range(100):
            accepted(run.propose(fact(f"g{number}")))
        data = export(a)
        first, second, third = parts_of(RUN, data, USER)
        for part in (first, second):
            hand_in(b, RUN, encode_part(part))
        b.clock.advance(1_000)
        b.project()
        assert_hidden(b)
        hand_in(b, RUN, encode_part(third))
        b.clock.advance(1_000)
        b.project()
        assert document(b.run(RUN))["last_transition"]["reason"] == "WaitTimedOut"
        assert_proven(b)


def test_the_partitions_clock_is_its_own() -> None:
    """A run from a log whose clock was ahead takes no other run of its partition along, and its
    own time does not go back: its past is found by time, and its leases end in order."""
    ahead = "2030-01-01T00:00:00.000000Z"
    with testing.Engine(now=ahead) as a, testing.Engine(now=NOW) as b:
        running(a)
        here = moved(a, b)
        outcome = accepted(here.propose(fact("f")))
        assert outcome.log_time == ahead
        assert accepted(started(b, "other").started).log_time == NOW
        assert_proven(b)
        b.clock.advance(60)
        assert accepted(here.propose(fact("g"))).log_time == ahead
        assert b.run("other").signal("k").log_time == "2026-01-01T00:01:00.000000Z"
        assert here.at("2029-12-31T23:59:59Z") is None
        assert here.at(ahead) == here.state()
        b.clock.set("2031-01-01T00:00:00Z")
        assert accepted(here.propose(fact("h"))).log_time == "2031-01-01T00:00:00.000000Z"
        assert_proven(b)


def test_a_home_opens_behind_a_run_that_is_ahead(tmp_path: Path) -> None:
    """The last record's time may be ahead of the partition's; the projection is still its fold."""
    with testing.Engine(now="2030-01-01T00:00:00Z") as a:
        running(a)
        data = export(a)
    for _ in range(2):
        with client.Engine.open(tmp_path, create=True, partitions=1) as b:
            if b.run(RUN).state() is None:
                take(b, RUN, data)
            accepted(b.run(RUN).signal("k"))
            assert_proven(b)


def test_moments_of_the_imported_past() -> None:
    """`at` a time finds the imported revisions, though the id was refused here later than that."""
    with testing.Engine(now=NOW) as a, testing.Engine(now="2026-06-01T00:00:00Z") as b:
        running(a)
        refused(b.run(RUN).propose(fact("f")), "RUN_NOT_FOUND")
        here = moved(a, b)
        assert here.at(NOW) == a.run(RUN).at(NOW)
        assert here.at(2) == a.run(RUN).at(2)
        assert here.at("2025-01-01T00:00:00Z") is None
        assert export(b) != []
        assert_proven(b)


# Long runs


LONG: list[bytes] = []
"""The records of a long run, made once."""


def long_run(engine: client.Engine, run_id: str = RUN, count: int = 347) -> list[bytes]:
    """A run of three records more than this, and the bytes of its records."""
    if (run_id, count) == (RUN, 347) and LONG:
        take(engine, run_id, LONG)
        return LONG
    data = make_run(engine, run_id, count)
    if count == 347:
        LONG[:] = data
    return data


def assert_hidden(engine: client.Engine, run_id: str = RUN) -> None:
    """For readers there is no such run."""
    run = engine.run(run_id)
    assert run_id not in {row.run_id for row in engine.runs()}
    assert run.state() is None
    assert run.at(1) is None
    assert run.at("2029-01-01T00:00:00Z") is None
    assert run.history(rejected=True) == []
    assert run.transitions() == []
    assert run.diff(1, 2) is None
    assert run.export() is None
    assert run.outcome(batch(0)) is None
    assert engine.replay(run_id) is None
    assert list(run.watch(after=0, timeout=0.02)) == []


def test_nothing_is_visible_between_two_parts() -> None:
    """After each part but the last the run does not exist; importing again then goes on."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        data = long_run(a)
        parts = parts_of(RUN, data, USER)
        assert (len(data), len(parts)) == (350, 4)
        empty = b.digest()
        for part in parts[:-1]:
            hand_in(b, RUN, encode_part(part))
            assert_hidden(b)
            assert b.digest() == empty
            assert_proven(b)
        [result] = read(b, file_of(data))
        assert (result.outcome, result.proposals, result.accepted) == ("imported", 4, 350)
        assert_same(a, b)
        assert_proven(b)


def test_what_is_proposed_meanwhile_does_not_break_the_chain() -> None:
    """It is refused as of a run that is not there, also under a batch id that is on its way."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        parts = parts_of(RUN, long_run(a), USER)
        here = b.run(RUN)
        before = refused(here.propose(fact("f0"), batch_id=batch(900)), "RUN_NOT_FOUND")
        for number, part in enumerate(parts):
            hand_in(b, RUN, encode_part(part))
            if part is parts[-1]:
                break
            refused(here.propose(fact("f0"), batch_id=batch(0)), "RUN_NOT_FOUND")
            refused(here.propose(fact("f0"), batch_id=batch(340)), "RUN_NOT_FOUND")
            refused(here.propose(event("PhaseChanged", phase="x")), "RUN_NOT_FOUND")
            started = b.start(RUN, "mine", batch_id=batch(950 + number))
            assert refused(started.started, "RUN_EXISTS").revision == 0
            assert_proven(b)
        assert document(here) == document(a.run(RUN))
        chains = [row.chain for row in a.run(RUN).history(rejected=True)]
        assert [decode_record(data).chain.hex() for data in export(b)] == chains
        for number in (0, 340):  # what the run says of them counts
            again = here.propose(fact(f"f{number}"), batch_id=batch(number))
            assert (again.outcome, again.duplicate) == ("accepted", True)
        known = here.propose(fact("f0"), batch_id=batch(900))
        assert (known.code, known.sequence) == ("RUN_NOT_FOUND", before.sequence)
        assert refused(here.outcome(batch(950)), "RUN_EXISTS").sequence
        assert_proven(b)
        with testing.Engine(now=NOW) as c:  # the duplicate of what stands outside goes along
            moved(b, c)
            chains = [row["chain"] for row in told(c.run(RUN))]
            assert [row for row in told(here) if row["chain"] in chains] == told(c.run(RUN))
            there = c.run(RUN).propose(fact("f0"), batch_id=batch(900))
            assert (there.outcome, there.code) == ("rejected", "RUN_NOT_FOUND")
            assert refused(c.run(RUN).outcome(batch(900)), "RUN_NOT_FOUND")
            assert_proven(c)


def test_a_watcher_sees_all_of_it_at_once() -> None:
    """Who watches a run that is being imported sees every revision once it is whole."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        first, *rest = parts_of(RUN, long_run(a), USER)
        hand_in(b, RUN, encode_part(first))

        def later() -> None:
            for part in rest:
                hand_in(b, RUN, encode_part(part))

        timer = threading.Timer(0.05, later)
        timer.start()
        rows = list(b.run(RUN).watch(timeout=1.0))
        timer.join()
        assert [row.revision_after for row in rows] == list(range(1, 351))


def test_another_import_meanwhile_is_refused() -> None:
    """One that carries anything else, be it a record more, waits until the first is done."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        data = long_run(a)
        hand_in(b, RUN, encode_part(parts_of(RUN, data, USER)[0]))
        accepted(a.run(RUN).propose(fact("more")))
        outcome, _ = b.import_records(RUN, export(a))
        assert "another import" in (refused(outcome, "RUN_EXISTS").message or "")
        assert_hidden(b)
        take(b, RUN, data)
        assert b.run(RUN).state() is not None
        outcome, _ = b.import_records(RUN, data)
        refused(outcome, "RUN_EXISTS")
        assert_proven(b)


def test_who_may_import() -> None:
    """Users, operators and systems do; an agent, a tool or who is none of these do not."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        running(a)
        for author in ("agent:worker-1", "tool:t", "robot:r2"):
            outcome, _ = b.import_records(RUN, export(a), author=author)
            refused(outcome, "NOT_AUTHORIZED")
        assert_hidden(b)
        outcome, _ = b.import_records(RUN, export(a), author="operator:ops")
        accepted(outcome)


# Broken files


def lines_of(engine: client.Engine) -> list[bytes]:
    """A file of three runs of four records each."""
    data = []
    for run_id in ("run_a", "run_b", "run_c"):
        accepted(running(engine, run_id).propose(fact("f")))
        data.append(export(engine, run_id))
    return file_of(*data)


def missing(lines: list[bytes]) -> None:
    """Without a line in the middle."""
    del lines[5]


def cut(lines: list[bytes]) -> None:
    """Without the run's last line."""
    del lines[7]


def swapped(lines: list[bytes]) -> None:
    """Two lines in the other order."""
    lines[5:7] = lines[6], lines[5]


def repeated(lines: list[bytes]) -> None:
    """A line twice."""
    lines.insert(5, lines[5])


def beginning(lines: list[bytes]) -> None:
    """Without the first line."""
    del lines[4]


def no_json(lines: list[bytes]) -> None:
    """A line cut in its middle."""
    lines[5] = lines[5][:200] + b"\n"


def changed(name: str, new: Any) -> Callable[[list[bytes]], None]:
    """A field of the second line with another value."""

    def change(lines: list[bytes]) -> None:
        lines[5] = json.dumps(json.loads(lines[5]) | {name: new}).encode() + b"\n"

    return change


def test_a_run_twice_in_a_file() -> None:
    """The first copy is taken over; the second one is a run that exists."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        running(a)
        results = read(b, file_of(export(a), export(a)))
        assert [result.outcome for result in results] == ["imported", "differs"]
        assert_proven(b)


@pytest.mark.parametrize("lines", [[], [b"\n", b"  \r\n"]])
def test_a_file_without_a_line_is_no_export(lines: list[bytes]) -> None:
    """An export of a run that was not there leaves an empty file: that is told, not passed over."""
    with testing.Engine(now=NOW) as engine:
        [result] = read(engine, lines)
        assert (result.outcome, result.line, result.field) == ("broken", 1, "format")
        assert result.message


@pytest.mark.parametrize(
    ("harm", "line", "field"),
    [
        (missing, 6, "number"),
        (beginning, 5, "number"),
        (cut, 7, "of"),
        (swapped, 6, "number"),
        (repeated, 7, "number"),
        (no_json, 6, None),
        (changed("format", "chat"), 6, "format"),
        (changed("version", 2), 6, "version"),
        (changed("version", True), 6, "version"),
        (changed("record", "xx!"), 6, "record"),
        (changed("record", 7), 6, "record"),
        (changed("record", ""), 6, "record"),
        (changed("outcome", "rejected"), 6, "outcome"),
        (changed("code", "CONFLICT"), 6, "code"),
        (changed("revision", 3), 6, "revision"),
        (changed("sha256", "0" * 64), 6, "sha256"),
        (changed("number", "2"), 6, "number"),
        (changed("of", 5), 6, "number"),
    ],
)
def test_a_broken_run_is_told_and_the_others_go_on(
    harm: Callable[[list[bytes]], None], line: int, field: str | None
) -> None:
    """By line and field, once; nothing of it is imported, and all of the others are."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW, partitions=2) as b:
        lines = lines_of(a)
        harm(lines)
        results = read(b, lines)
        assert [result.outcome for result in results] == ["imported", "broken", "imported"]
        found = results[1]
        assert (found.run_id, found.line, found.field) == ("run_b", line, field)
        assert found.message
        assert sorted(row.run_id for row in b.runs()) == ["run_a", "run_c"]
        assert b.verify().records == 8


def test_every_flipped_byte_is_found() -> None:
    """Whichever byte of a line is another one: no run is imported, or the same one."""
    with testing.Engine(now=NOW) as a:
        started(a)
        data = export(a)
        [line] = file_of(data)
        for place in range(0, len(line) - 1, 13):
            harmed = line[:place] + bytes([line[place] ^ 0x05]) + line[place + 1 :]
            with testing.Engine(now=NOW) as b:
                results = read(b, [harmed])
                if any(result.ok for result in results):
                    assert document(b.run(RUN)) == document(a.run(RUN)), harmed
                    assert export(b)
                else:
                    assert b.verify().records == 0, harmed


@pytest.mark.parametrize(("fields", "what"), FORGERIES)
def test_a_forged_record_is_found_before_anything_is_handed_in(fields: Json, what: str) -> None:
    """A line that agrees with itself and not with its run names what does not fit."""
    with testing.Engine(now=NOW) as a, testing.Engine(now=NOW) as b:
        data = long_run(a, count=2)
        data[1] = forged(data[1], **fields)
        [result] = read(b, file_of(data))
        assert (result.outcome, result.line, result.field) == ("broken", 2, "record")
        assert what in (result.message or "")
        assert b.verify().records == 0
