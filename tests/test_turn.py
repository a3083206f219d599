"""The turn: every proposal gets one record, whatever fails on the way, none is decided twice.

Invariants:
- What must hold is compared with an independent decider (the walk's world), or byte for byte with
  a run in which nothing failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog.core.proposals import parse_proposal
from foldlog.errors import Damaged
from foldlog.fold import TURN_RECORDS_MAX
from foldlog.holder import OUTAGES, Holder
from foldlog.log.base import LogError
from foldlog.log.memory import MemoryLog
from foldlog.runtime import SECOND, RealRuntime
from foldlog.store.base import StoreError
from foldlog.store.memory import MemoryStore
from foldlog.turn import Partition
from foldlog.wire import envelope
from foldlog.wire.chain import partition_hash
from foldlog.wire.envelope import PROPOSAL_BYTES_MAX, encode_proposal
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import decode_record, encode_record
from tests.core_walk import walk
from tests.turn_world import (
    BACKENDS,
    START_US,
    Faults,
    Place,
    batch_id,
    dump,
    encoded,
    fact,
    play,
    records,
    start,
    stored,
    value,
)


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Makes places on one backend, in folders of their own."""
    places: list[Place] = []

    def new(**options: Any) -> Place:
        places.append(Place(request.param, tmp_path / str(len(places)), **options))
        return places[-1]

    yield new
    for place in places:
        place.close()


@pytest.fixture
def place(make: Callable[..., Place]) -> Place:
    """An empty partition."""
    return make()


def same(a: Place, b: Place) -> bool:
    """Whether two places hold the same records and the same projection, byte for byte."""
    return stored(a.log) == stored(b.log) and dump(a.store) == dump(b.store)


# One proposal, one record


@pytest.mark.parametrize("seed", range(3))
def test_every_proposal_has_one_record_as_an_independent_decider_says(
    place: Place, seed: int
) -> None:
    """Records are dense, in the order of the proposals, and say what the core alone decides."""
    play(place, seed)
    world, rows = walk(seed, 120), records(place.log)
    assert [row.sequence for row in rows] == list(range(1, len(world.records) + 1))
    assert [row.position for row in rows] == sorted({row.position for row in rows})
    for row, expected in zip(rows, world.records, strict=True):
        decision = expected.decision
        for name in ("outcome", "code", "revision_before", "revision_after", "duplicate_of"):
            assert getattr(row, name) == getattr(decision, name), (row.sequence, name)
        assert (row.run_id, row.log_time) == (expected.run_id, expected.log_time)
        assert row.proposal == encode_proposal(expected.proposal)


@pytest.mark.parametrize("group", [2, 7, 120])
def test_a_batch_of_proposals_decides_as_one_by_one(make: Callable[..., Place], group: int) -> None:
    """How many proposals a turn takes at once changes no byte of log or projection."""
    alone, together = make(), make()
    play(alone, 4)
    play(together, 4, group)
    assert same(alone, together)


def test_more_proposals_than_a_turn_takes(place: Place) -> None:
    """1,200 proposals that wait are decided in turns of at most 500, in order, each once."""
    place.propose("run_1", start(), *(fact(number) for number in range(2, 1201)))
    assert [place.partition.turn() for _ in range(4)] == [500, 500, 200, 0]
    assert TURN_RECORDS_MAX == 500
    rows = records(place.log)
    assert [row.batch_id for row in rows] == [batch_id(number) for number in range(1, 1201)]
    assert {row.outcome for row in rows} == {"accepted"}
    assert place.partition.meta.sequence == 1200


def test_a_reader_that_was_away_folds_more_than_a_turn(place: Place) -> None:
    """A new projection folds 1,200 records and equals the one that decided them."""
    place.propose("run_1", start(), *(fact(number) for number in range(2, 1201)))
    place.turn_to_end()
    store = MemoryStore()
    assert Partition(place.log, store, 0).recover() == 1200
    assert dump(store) == dump(place.store)


def test_runs_share_a_partition_and_do_not_mix(place: Place) -> None:
    """Two runs side by side keep their own revisions, chains and batch ids."""
    place.decide("run_1", start(1), fact(2))
    rows = place.decide("run_2", start(1), fact(2))
    assert [(row.run_id, row.revision_after) for row in rows] == [("run_2", 1), ("run_2", 2)]
    assert {row.outcome for row in rows} == {"accepted"}


# Crashes and outages


OPENING_CALLS = 4
"""Calls that opening an empty partition makes; what fails there is told to who opens."""


def all_faults(seed: int, steps: int, stride: int) -> Iterator[int]:
    """Numbers of storage calls at which to fail, as many as a walk makes."""
    faults = Faults()
    play(Place("memory", Path(), wrap=faults.wrap), seed, 3, steps)
    yield from range(OPENING_CALLS, faults.calls, stride)


def play_through(place: Place, faults: Faults, again: Callable[[], object], steps: int) -> None:
    """A walk in groups of three; ``again`` is what is done after every failure."""
    for number, record in enumerate(walk(5, steps).records):
        place.clock.now = record.log_time
        place.propose(record.run_id, record.value)
        if number % 3 == 2:
            turn_through(place, again)
    turn_through(place, again)


def turn_through(place: Place, again: Callable[[], object]) -> None:
    """Turn to the end, however often it fails."""
    while True:
        try:
            place.turn_to_end()
            return
        except OUTAGES:
            again()


@pytest.mark.parametrize("how", ["goes on", "starts again"])
def test_a_failure_of_any_storage_call_changes_nothing(
    make: Callable[..., Place], how: str
) -> None:
    """Whichever call to log or store fails, the same process or the next one comes to the same
    bytes as a run without failures: nothing is lost, skipped or decided twice."""
    steps = 15
    whole = make()
    play(whole, 5, 3, steps)
    met = set()
    for at in all_faults(5, steps, 1 if whole.kind == "memory" else 41):
        faults = Faults(at)
        place = make(wrap=faults.wrap)

        def restart(place: Place = place) -> None:
            place.restart()

        play_through(place, faults, restart if how == "starts again" else int, steps)
        assert same(whole, place), (at, faults.failed)
        met.update(faults.failed)
        place.close()
    if whole.kind == "memory":
        assert met == {
            "proposals", "before append", "after append", "events",
            "get", "scan", "before write", "after write",
        }  # fmt: skip


def test_a_long_outage_is_waited_out(make: Callable[..., Place]) -> None:
    """A log or store that fails for a hundred calls is asked again, and no proposal is skipped."""
    whole = make()
    play(whole, 5, 3, 24)
    for at in (OPENING_CALLS, 40, 100, 150):
        faults = Faults(at, lasting=100)
        place = make(wrap=faults.wrap)
        play_through(place, faults, int, 24)
        assert len(faults.failed) == 100
        assert same(whole, place), at


def test_fault_17_a_crash_between_append_and_store_folds_the_tail(
    make: Callable[..., Place],
) -> None:
    """Records that are durable before the crash are folded after it, and never decided again."""
    whole = make()
    whole.decide("run_1", start(), fact(2), fact(3))
    faults = Faults()
    place = make(wrap=faults.wrap)
    place.propose("run_1", start(), fact(2), fact(3))
    faults.only = "before write"
    with pytest.raises(StoreError):
        place.partition.turn()
    assert len(records(place.log)) == 3
    assert dump(place.store) == {}
    faults.only = None
    assert place.restart() == 3
    assert place.turn_to_end() == 0
    assert same(whole, place)


def test_a_crash_before_the_append_leaves_nothing(make: Callable[..., Place]) -> None:
    """What was decided and not appended is gone, and is decided by whoever comes next."""
    whole = make()
    whole.decide("run_1", start(), fact(2))
    faults = Faults()
    place = make(wrap=faults.wrap)
    place.propose("run_1", start(), fact(2))
    faults.only = "before append"
    with pytest.raises(LogError):
        place.partition.turn()
    assert records(place.log) == []
    assert dump(place.store) == {}
    faults.only = None
    assert place.restart() == 0
    assert place.turn_to_end() == 2
    assert same(whole, place)


def test_an_append_in_doubt_decides_nothing_twice(make: Callable[..., Place]) -> None:
    """An append that fails after it has written is read back before anything is decided."""
    faults = Faults()
    place = make(wrap=faults.wrap)
    place.propose("run_1", start(), fact(2))
    faults.only = "after append"
    with pytest.raises(LogError):
        place.partition.turn()
    faults.only = None
    place.propose("run_1", fact(3))
    place.turn_to_end()
    assert [row.batch_id for row in records(place.log)] == [batch_id(n) for n in (1, 2, 3)]
    assert {row.outcome for row in records(place.log)} == {"accepted"}


# Bytes that come back other than they went


class LyingLog(MemoryLog):
    """A log that stores a record with one thing changed."""

    def __init__(self, lie: Callable[[Any], list[Any]]) -> None:
        super().__init__(1, lambda: START_US)
        self.lie = lie

    def append(self, partition: int, head: bytes, entries: Any) -> None:
        super().append(partition, head, [entry for e in entries for entry in self.lie(e)])

    def exchange(
        self, partition: int, position: int, head: bytes, proposals: Any, decide: Any
    ) -> Any:
        def lied(rows: Any) -> list[Any]:
            return [entry for e in decide(rows) for entry in self.lie(e)]

        return super().exchange(partition, position, head, proposals, lied)


def flipped(entry: Any) -> list[Any]:
    """The record with the last bit of its last byte flipped."""
    return [changed(entry, value=entry.value[:-1] + bytes([entry.value[-1] ^ 1]))]


def changed(entry: Any, **fields: Any) -> Any:
    """An entry with other fields."""
    names = ("key", "value", "sequence", "log_time", "head")
    return type(entry)(**{name: fields.get(name, getattr(entry, name)) for name in names})


def rewritten(entry: Any) -> list[Any]:
    """Another record that is whole in itself: right hashes, another decider."""
    record = decode_record(entry.value)
    other = encode_record(type(record)(**{**record._asdict(), "decider": "liar"}))
    head = partition_hash(record.previous, record.chain, other)
    return [changed(entry, value=other, head=head)]


LIES = {
    "a flipped bit": flipped,
    "a record rewritten with right hashes": rewritten,
    "nothing": lambda entry: [],
    "another key": lambda entry: [changed(entry, key=b"run_9")],
    "another sequence": lambda entry: [changed(entry, sequence=entry.sequence + 1)],
    "another time": lambda entry: [changed(entry, log_time=entry.log_time + 1)],
    "another head": lambda entry: [changed(entry, head=bytes(32))],
    "twice": lambda entry: [entry, entry],
}


@pytest.mark.parametrize("lie", LIES, ids=lambda name: name.replace(" ", "-"))
def test_a_log_that_stores_other_bytes_is_noticed_in_that_turn(lie: str) -> None:
    """What is read back is not what was appended: Damaged, in the very turn, and ever after."""
    log = LyingLog(LIES[lie])
    partition = Partition(log, MemoryStore(), 0)
    log.propose(0, [encoded("run_1", start())])
    with pytest.raises(Damaged) as caught:
        partition.turn()
    assert caught.value.partition == 0
    assert caught.value.sequence in (1, 2)


def test_a_halted_partition_says_so_to_everyone() -> None:
    """After damage a holder neither turns nor takes proposals; each of them gets the error."""
    log = LyingLog(flipped)
    holder = Holder(log, [MemoryStore()], lambda: START_US)
    proposal = parse_proposal("run_1", start())
    for _ in range(3):
        with pytest.raises(Damaged):
            holder.propose(proposal, RealRuntime().monotonic() + SECOND)
    with pytest.raises(Damaged):
        holder.turn_all()
    assert len(log.proposals(0, 0, 10, 1 << 20)) == 1


def test_a_byte_of_the_projection_never_becomes_a_quarantine(place: Place) -> None:
    """A slot that does not read is damage of the projection, not a rule that raised: the log
    gets no record of it."""
    place.decide("run_1", start(), fact(2))
    before = len(stored(place.log))
    for key in [key for key in dump(place.store) if key.startswith((b"e\0run_1\0status", b"h"))]:
        whole = place.store.get(key)
        place.store.write({key: b"{not json"})
        place.propose("run_1", fact(10 + len(key)))
        with pytest.raises(Damaged) as caught:
            place.partition.turn()
        assert caught.value.run_id == "run_1"
        assert len(stored(place.log)) == before
        place.store.write({key: whole})
    place.turn_to_end()
    assert {row.outcome for row in records(place.log)} == {"accepted"}


# Foreign producers


def foreign(place: Place, key: bytes, data: bytes) -> Any:
    """The record of bytes that somebody put into the inbox by themselves."""
    before = len(records(place.log))
    [position] = place.log.propose(0, [(key, data)])
    place.turn_to_end()
    [row] = records(place.log)[before:]
    assert row.position == position
    assert (row.outcome, row.code) == ("rejected", "MALFORMED")
    assert row.message
    assert row.proposal is None
    assert row.unreadable == {"sha256": hashlib.sha256(data).digest(), "size": len(data)}
    assert row.revision_before == row.revision_after
    return row


GOOD = encoded("run_1", fact(50))[1]


def bad_event(id: int = 60) -> bytes:
    """A proposal whose envelope reads and whose event does not."""
    whole = encoded("run_1", fact(id))[1]
    event = envelope.read_envelope(whole).events[0]
    assert whole.count(event) == 1
    return whole.replace(event, event[:-1] + b"\xff")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"{}", bytes(300), GOOD[:-1], GOOD + b"\0", b"\xc3\x01" + bytes(8) + GOOD[10:]],
    ids=["empty", "zero", "json", "zeros", "cut", "too-long", "unknown-schema"],
)
def test_unreadable_bytes_are_recorded_and_stepped_over(place: Place, data: bytes) -> None:
    """What does not read is rejected at its position, uses no batch id, and stops nobody."""
    place.decide("run_1", start())
    row = foreign(place, b"run_1", data)
    assert (row.run_id, row.batch_id, row.revision_after) == ("run_1", None, 1)
    [after] = place.decide("run_1", fact(2))
    assert (after.outcome, after.revision_after) == ("accepted", 2)


def test_fault_12_oversize_bytes_are_recorded_by_hash(place: Place) -> None:
    """A proposal of more than 256 KiB is refused by its size and stops nobody."""
    place.decide("run_1", start())
    row = foreign(place, b"run_1", GOOD + bytes(PROPOSAL_BYTES_MAX))
    assert row.batch_id is None
    assert place.decide("run_1", fact(2))[0].outcome == "accepted"


def test_a_key_that_is_not_the_run_id(place: Place) -> None:
    """A proposal under another run's key is no proposal of either, and uses no batch id up."""
    place.decide("run_1", start(1))
    place.decide("run_2", start(2))
    row = foreign(place, b"run_2", encoded("run_1", fact(3))[1])
    assert (row.run_id, row.batch_id) == ("run_2", None)
    assert place.decide("run_1", fact(3))[0].outcome == "accepted"
    assert place.decide("run_2", fact(3))[0].outcome == "accepted"


@pytest.mark.parametrize("key", [b"", b"../etc", b"\xff\xfe", b"run 1", b"r" * 200])
def test_a_key_that_is_no_run_id(place: Place, key: bytes) -> None:
    """A key that cannot be a run's belongs to no run, and no run is made of it."""
    row = foreign(place, key, encoded("run_1", start())[1])
    assert row.run_id == ""
    assert [k for k in dump(place.store) if k != b"m"] == []
    assert place.decide("run_1", start())[0].outcome == "accepted"


def test_a_proposal_in_the_wrong_partition() -> None:
    """A run's proposal in a partition that is not its own is refused there."""
    log = MemoryLog(4, lambda: START_US)
    home = partition_of("run_1", 4)
    other = (home + 1) % 4
    for number in (other, home):
        log.propose(number, [encoded("run_1", start())])
        Partition(log, MemoryStore(), number).turn()
    [wrong], [right] = records(log, other), records(log, home)
    assert (wrong.outcome, wrong.code, wrong.run_id) == ("rejected", "MALFORMED", "")
    assert (right.outcome, right.run_id) == ("accepted", "run_1")


@pytest.mark.parametrize("named", ["abc", {"a": 1}, [1], 1.5, 5, True, "1"])
@pytest.mark.parametrize("there", [False, True])
def test_what_an_event_of_a_plug_in_calls_rules_version_stops_nobody(
    place: Place, named: Any, there: bool
) -> None:
    """Its fields are its own: to a build without the plug-in it is malformed, run or no run."""
    if there:
        place.decide("run_1", start())
    [row] = place.decide("run_1", value({"type": "votes:Cast", "rules_version": named}, id=61))
    assert (row.outcome, row.code, row.event_index) == ("rejected", "MALFORMED", 0)
    [after] = place.decide("run_1", fact(2) if there else start())
    assert after.outcome == "accepted"


def test_an_event_that_does_not_read_uses_the_batch_id_up(place: Place) -> None:
    """A readable envelope has an identity: its batch id cannot be used for other content."""
    place.decide("run_1", start())
    row = foreign(place, b"run_1", bad_event())
    assert row.batch_id == batch_id(60)
    assert row.event_index == 0
    [reused] = place.decide("run_1", fact(60))
    assert (reused.outcome, reused.code) == ("rejected", "BATCH_ID_REUSED")
    again = foreign(place, b"run_1", bad_event())
    assert again.batch_id == batch_id(60)


def test_a_foreign_mix_with_reports_says_that_they_can_go_alone(place: Place) -> None:
    """What the client would have said of a malformed batch, its record says too."""
    place.decide("run_1", start())
    spent = {"type": "BudgetSpent", "tokens": 1}
    good = encoded("run_1", value(spent, {"type": "PhaseChanged", "phase": "a"}, id=62))[1]
    other = encoded("run_1", value({"type": "PhaseChanged", "phase": "a"}, id=62))[1]
    event = envelope.read_envelope(other).events[0]
    assert good.count(event) == 1
    row = foreign(place, b"run_1", good.replace(event, event[:-1] + b"\xff"))
    assert str(row.message).endswith("the reports in this batch can be proposed alone")
    assert "proposed alone" not in str(foreign(place, b"run_1", bad_event(63)).message)


def test_a_malformed_batch_under_a_known_id_is_malformed(place: Place) -> None:
    """What is malformed is so under a known id too, and the first outcome stays what it was."""
    place.decide("run_1", start())
    [first] = place.decide("run_1", fact(60))
    row = foreign(place, b"run_1", bad_event(60))
    assert row.batch_id == batch_id(60)
    [again] = place.decide("run_1", fact(60))
    assert (again.outcome, again.duplicate_of) == ("duplicate", first.sequence)


def test_fault_19_nothing_else_is_affected_by_poison(make: Callable[..., Place]) -> None:
    """Runs beside poisoned proposals have the documents they have without them."""
    clean, poisoned = make(), make()
    play(clean, 6)
    world = walk(6, 120)
    for record in world.records:
        poisoned.clock.now = record.log_time
        run_id = record.run_id.encode()
        poison = [(run_id, b"\xc3\x01poison"), (b"nobody", GOOD), (run_id, bytes(9))]
        poisoned.log.propose(0, poison)
        poisoned.propose(record.run_id, record.value)
        poisoned.turn_to_end()
    rows = records(poisoned.log)
    assert [row.code for row in rows if row.unreadable] == ["MALFORMED"] * 3 * len(world.records)
    mine = [(row.outcome, row.code, row.revision_after) for row in rows if not row.unreadable]
    theirs = [(row.outcome, row.code, row.revision_after) for row in records(clean.log)]
    assert mine == theirs


# Time and identity


def test_log_time_never_steps_back(place: Place) -> None:
    """A clock that steps back is kept as it was, and the log's own time stands still."""
    place.decide("run_1", start())
    place.clock.now -= 3_600_000_000
    [row] = place.decide("run_1", fact(2))
    assert (row.appended_at, row.log_time) == (START_US - 3_600_000_000, START_US)
    place.restart()
    [row] = place.decide("run_1", fact(3))
    assert (row.appended_at, row.log_time) == (START_US - 3_600_000_000, START_US)
    place.clock.now = START_US + 1
    [row] = place.decide("run_1", fact(4))
    assert (row.appended_at, row.log_time) == (START_US + 1, START_US + 1)


def test_log_time_is_of_the_inbox_not_of_the_decision(place: Place) -> None:
    """What waits for an hour before it is decided has the time at which the log took it."""
    place.propose("run_1", start())
    place.clock.now += 3_600_000_000
    place.turn_to_end()
    [row] = records(place.log)
    assert (row.appended_at, row.log_time) == (START_US, START_US)


def test_fault_16_a_retry_after_a_restart_is_a_duplicate(place: Place) -> None:
    """The same batch gets its first outcome for ever: a stale revision, a restart, an end of the
    run and a rejection change nothing about that."""
    late = value(
        {"type": "PhaseChanged", "phase": "fix"}, id=3, expected_revision=1, on_conflict="reject"
    )
    place.decide("run_1", start(), fact(2), late)
    refused = {**late, "batch_id": batch_id(4), "expected_revision": 99}
    place.decide("run_1", refused)
    place.decide("run_1", value({"type": "RunCancelled", "reason": "enough"}, id=5))
    place.restart()
    rows = place.decide("run_1", late, refused, fact(2))
    assert [row.outcome for row in rows] == ["duplicate"] * 3
    assert [row.duplicate_of for row in rows] == [3, 4, 2]
    assert [row.code for row in rows] == [None, "FUTURE_REVISION", None]
    assert {row.revision_after for row in rows} == {4}


def test_a_duplicate_within_one_turn(place: Place) -> None:
    """Two copies that wait together are one batch and one duplicate; the second of other content
    under the id is refused."""
    other = fact(2, "fact_other")
    rows = place.decide("run_1", start(), fact(2), fact(2), other)
    assert [row.outcome for row in rows] == ["accepted", "accepted", "duplicate", "rejected"]
    assert rows[3].code == "BATCH_ID_REUSED"
