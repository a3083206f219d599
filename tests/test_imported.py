"""Parts of an import in a partition's hands: broken ones, cut ones, restarts, several processes.

Invariants:
- A foreign producer's parts go straight into the log, past every check of the client.
- After whatever came, the store is byte for byte what its log folds to from the start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foldlog import testing
from foldlog.core.values import Author
from foldlog.log.memory import MemoryLog
from foldlog.store.memory import MemoryStore
from foldlog.turn import Partition
from foldlog.wire import imports
from foldlog.wire.imports import ImportPart, encode_part, parts_of
from foldlog.wire.records import decode_record, encode_record
from tests.client_runs import NOW, at_home, document, event
from tests.export_runs import (
    FORGERIES,
    RUN,
    USER,
    assert_proven,
    export,
    file_of,
    forged,
    make_run,
    read,
)
from tests.turn_world import Clock, Place, dump, records, start, value
from tests.turn_world import fact as fact_proposal


def broken_parts(data: list[bytes]) -> list[tuple[bytes, str]]:
    """Parts that no client hands in, with what becomes of each."""
    [good] = parts_of(RUN, data, USER)
    other = replace(good, run_id="run_9")
    parts: list[tuple[ImportPart, str]] = [
        (replace(good, records=(data[0], forged(data[1], **fields), *data[2:])), "MALFORMED")
        for fields, _ in FORGERIES
    ]
    parts += [
        (replace(good, records=(*data[:2], data[3])), "MALFORMED"),
        (replace(good, records=(data[0], data[0])), "MALFORMED"),
        (replace(good, records=(data[0], b"\xc3\x01")), "MALFORMED"),
        (replace(good, records=(data[0], forged(data[1], run_id="run_8"))), "MALFORMED"),
        (replace(good, records=(forged(data[0], log_time=1 << 60),)), "MALFORMED"),
        (replace(good, records=()), "MALFORMED"),
        (replace(good, parts=0), "MALFORMED"),
        (replace(good, part=1, parts=2), "INVALID_TRANSITION"),
        (replace(good, author=Author("agent", "w")), "NOT_AUTHORIZED"),
        (other, "MALFORMED"),
    ]
    return [(encode_part(part), code) for part, code in parts] + [
        (encode_part(good)[:-7], "MALFORMED"),
        (encode_part(good) + b"\0", "MALFORMED"),
    ]


def exports_of_a_run(place: Place, count: int = 5) -> list[bytes]:
    """A run made on a log of its own, as the bytes of its records."""
    place.decide(RUN, start(), *(fact_proposal(number) for number in range(2, count + 1)))
    return [encode_record(record) for record in records(place.log)]


@pytest.mark.parametrize("kind", ["memory", "durable"])
def test_broken_parts_are_recorded_and_stepped_over(kind: str, tmp_path: Path) -> None:
    """All at once in the log between good proposals: nothing of them is half applied."""
    data = exports_of_a_run(Place("memory", tmp_path / "a"))
    place = Place(kind, tmp_path / "b")
    broken = broken_parts(data)
    place.propose("run_2", start(id=100))
    for number, (part, _) in enumerate(broken):
        place.log.propose(0, [(RUN.encode(), part)])
        place.propose("run_2", fact_proposal(101 + number))
    assert place.turn_to_end() == 2 * len(broken) + 1
    found = records(place.log)
    assert [record.code for record in found if not record.run_id] == [code for _, code in broken]
    assert {record.outcome for record in found if record.run_id} == {"accepted"}
    assert all(record.unreadable for record in found if not record.run_id)
    assert not any(RUN.encode() in key for key in dump(place.store))
    assert_fresh_fold(place)
    place.log.propose(0, [(RUN.encode(), encode_part(parts_of(RUN, data, USER)[0]))])
    assert place.turn_to_end() == 5
    assert_fresh_fold(place)
    place.close()


def assert_fresh_fold(place: Place) -> None:
    """The store is byte for byte what the log folds to from its start."""
    store = MemoryStore()
    fresh = Partition(place.log, store, 0, rules=place.rules)
    fresh.recover()
    assert dump(store) == dump(place.store)
    assert fresh.meta == place.partition.meta


def test_hundreds_of_broken_parts_are_decided_in_a_moment() -> None:
    """A flood of them costs a turn each, not a turn more with each."""
    place = Place("memory", Path())
    data = exports_of_a_run(Place("memory", Path()))
    part = encode_part(replace(parts_of(RUN, data, USER)[0], records=(data[0], data[0])))
    place.log.propose(0, [(RUN.encode(), part)] * 300)
    turns = 0
    while place.partition.turn():
        turns += 1
    assert turns == 300
    assert {record.code for record in records(place.log)} == {"MALFORMED"}


def test_a_run_that_never_began_is_no_import() -> None:
    """Records that were all refused make no run: neither a file nor a part of them is taken."""
    home, place = Place("memory", Path()), Place("memory", Path())
    home.decide(RUN, fact_proposal(2), fact_proposal(3))
    data = [encode_record(record) for record in records(home.log)]
    with testing.Engine(now=NOW) as engine:
        [result] = read(engine, file_of(data))
        assert (result.outcome, result.line) == ("broken", 2)
    place.log.propose(0, [(RUN.encode(), encode_part(parts_of(RUN, data, USER)[0]))])
    place.turn_to_end()
    assert [(record.run_id, record.code) for record in records(place.log)] == [("", "MALFORMED")]
    assert_fresh_fold(place)


@pytest.mark.parametrize("kind", ["memory", "durable"])
def test_a_restart_between_two_parts(kind: str, tmp_path: Path) -> None:
    """A partition made anew, of its store or of the log alone, goes on with the next part."""
    data = exports_of_a_run(Place("memory", tmp_path / "a"), 350)
    place = Place(kind, tmp_path / "b")
    for part in parts_of(RUN, data, USER):
        place.propose(RUN, value(event("PhaseChanged", phase="x"), id=9_000 + part.part))
        place.log.propose(0, [(RUN.encode(), encode_part(part))] * 2)
        place.turn_to_end()
        assert_fresh_fold(place)
        place.restart()
    found = records(place.log)
    outcomes = [record.outcome for record in found if not record.run_id]
    assert outcomes == ["duplicate"] * 3 + ["rejected"]  # the last one again: the run exists
    assert sum(record.imported is not None for record in found) == 350
    meta = place.partition.meta
    assert (meta.sequence, meta.position) == (len(found), place.log.proposals_end(0))
    place.close()


def test_an_append_that_was_cut_off_inside_a_part_goes_on() -> None:
    """On a log that cannot append all or none, the rest of the part follows, and is not broken."""
    data = exports_of_a_run(Place("memory", Path()), 20)
    clock = Clock()
    for kept in (1, 7, 19):
        log = MemoryLog(1, clock, conditional=False)
        [part] = parts_of(RUN, data, USER)
        log.propose(0, [(RUN.encode(), encode_part(part))])
        whole = Partition(log, MemoryStore(), 0)
        entries = whole._decide_some(log.proposals(0, 0, 10, 1 << 30), whole.store)
        log.append(0, bytes(32), entries[:kept])
        partition = Partition(log, MemoryStore(), 0)
        partition.recover()
        while partition.turn():
            pass
        found = [decode_record(row.value) for row in log.events(0, 0, 100, 1 << 30)]
        assert [record.chain for record in found] == [decode_record(each).chain for each in data]
        assert [record.ends_proposal for record in found] == [False] * 19 + [True]


def test_a_crowded_turn_stays_within_its_bounds() -> None:
    """Many full parts at once: no turn makes more than 500 records."""
    data = exports_of_a_run(Place("memory", Path()), 100)
    place = Place("memory", Path())
    for number in range(12):
        run_id = f"run_{number + 2}"
        home = Place("memory", Path())
        home.decide(run_id, start(), *(fact_proposal(n) for n in range(2, 101)))
        [part] = parts_of(run_id, [encode_record(each) for each in records(home.log)], USER)
        place.log.propose(0, [(run_id.encode(), encode_part(part))])
    assert len(data) == imports.PART_RECORDS_MAX
    counts = []
    while count := place.partition.turn():
        counts.append(count)
    assert counts == [500, 500, 200]
    assert_fresh_fold(place)


# Several processes


def test_a_guest_imports_beside_a_holder(tmp_path: Path) -> None:
    """Who does not hold the projection hands the parts in, and the holder takes them over."""
    with testing.Engine(now=NOW) as a:
        data, home = make_run(a, RUN, 120), tmp_path / "home"
        with at_home(home, partitions=3) as holder, at_home(home, partitions=3) as guest:
            assert holder._seat.is_holder
            assert not guest._seat.is_holder
            [result] = read(guest, file_of(data))
            assert (result.outcome, result.proposals) == ("imported", 2)
            assert document(guest.run(RUN)) == document(a.run(RUN))
            assert export(guest) == export(holder)
            assert document(holder.run(RUN)) == document(a.run(RUN))
            [result] = read(guest, file_of(data))
            assert (result.outcome, result.code) == ("differs", "RUN_EXISTS")
            assert_proven(holder)
