"""Several deciders on one log that appends whatever it is given: one history, seen alike by all.

The log is in memory and behaves as a broker does: no look at the head, offsets with gaps, appends
that fail after they have written, arrive in parts or long after they were given up.

Invariants:
- What counts is compared with a model of four lines: the first record that extends the head.
- Deciders differ in their rules, so that no two of them would write the same record.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from foldlog.audit import Proof, verify_partition
from foldlog.core.catalogue import RULES
from foldlog.errors import Damaged
from foldlog.fold import SEEN_MAX, TURN_RECORDS_MAX
from foldlog.holder import OUTAGES
from foldlog.log.base import Entry, LogError, Stored
from foldlog.log.memory import MemoryLog
from foldlog.store.memory import MemoryStore
from foldlog.testing import raising_rules
from foldlog.turn import Partition
from foldlog.views import View
from foldlog.wire.chain import ZERO, partition_hash
from foldlog.wire.records import decode_record, encode_record
from tests.turn_world import Clock, Faults, FaultyLog, dump, encoded, fact, start, stored, value

RULES_OF_DECIDERS = (RULES, raising_rules("TaskAdded"), raising_rules("FactConfirmed"))
PROPOSALS = 16


def broker(clock: Callable[[], int] | None = None) -> MemoryLog:
    """A log that behaves as a broker's partition does."""
    return MemoryLog(1, clock or Clock(), conditional=False, gaps=True)


def counted(rows: Sequence[Stored]) -> list[Stored]:
    """The model: the first record that extends the head is the next one."""
    head, found = ZERO, []
    for row in rows:
        if decode_record(row.value).previous == head:
            found.append(row)
            head = row.head
    return found


def copy_of(store: MemoryStore) -> MemoryStore:
    """A store with the same keys."""
    copy = MemoryStore()
    copy.write(dict(store.scan(b"")))
    return copy


def proof_of(log: MemoryLog, store: MemoryStore) -> Proof:
    """The log folded from its start and compared with a store."""
    return verify_partition(View(log, store, 0), redecide=False, progress=lambda records: None)


class Network(FaultyLog):
    """One decider's way to the log: slow, lossy, and while it waits the others go on."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world.log, Faults())
        self.world, self.number = world, number

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        world, dice = self.world, self.world.dice
        world.others_go_on(self.number)
        what = dice.choice(("fine", "fine", "fine", "in doubt", "lost", "late", "in parts"))
        at = {"lost": 0, "late": 0, "in parts": dice.randrange(len(entries) + 1)}.get(what)
        world.log.append(partition, head, entries[:at])
        if what in ("late", "in parts"):
            world.late.append(entries[at:])
        world.others_go_on(self.number)
        if what != "fine":
            raise LogError("network", what, "read back")


class World:
    """Deciders, what is still on its way, and dice."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = Clock()
        self.log = broker(self.clock)
        self.late: list[Sequence[Entry]] = []
        self.busy: set[int] = set()
        self.snapshots: list[MemoryStore] = []
        self.stores = [MemoryStore() for _ in range(self.dice.choice((2, 2, 3)))]
        self.deciders = [self.open(number) for number in range(len(self.stores))]

    def open(self, number: int) -> Partition:
        """A decider with what its store knows."""
        network, rules = Network(self, number), RULES_OF_DECIDERS[number]
        partition = Partition(network, self.stores[number], 0, f"decider-{number}", rules)
        partition.recover()
        return partition

    def others_go_on(self, number: int) -> None:
        """While one decider waits, others may turn, and what is late may arrive."""
        self.busy.add(number)
        while self.dice.random() < 0.4:
            self.step()
        self.busy.discard(number)

    def step(self) -> None:
        """One thing happens."""
        dice = self.dice
        if self.late and dice.random() < 0.3:
            self.arrive(self.late.pop(dice.randrange(len(self.late))))
        free = [number for number in range(len(self.deciders)) if number not in self.busy]
        if not free:
            return
        number = dice.choice(free)
        if dice.random() < 0.1:
            self.deciders[number] = self.open(number)
        if dice.random() < 0.1:
            self.snapshots.append(copy_of(self.stores[number]))
        self.turn(number)

    def arrive(self, entries: Sequence[Entry]) -> None:
        """What was given up arrives after all."""
        self.log.append(0, ZERO, entries)

    def turn(self, number: int) -> None:
        """One decider makes a turn, or fails to."""
        self.busy.add(number)
        try:
            self.deciders[number].turn()
        except OUTAGES:
            pass
        finally:
            self.busy.discard(number)

    def propose(self, id: int) -> None:
        """Somebody proposes something; the clock may step back."""
        dice = self.dice
        self.clock.now += dice.choice((-5_000_000, 0, 1, 1_000_000))
        task = {"type": "TaskAdded", "task": {"id": f"task_{id}", "title": "do it"}}
        release = {"type": "RunReleased", "reason": "looked at"}
        made = dice.choice((fact(id), value(task, id=id), value(release, id=id), fact(id - 1)))
        self.log.propose(0, [encoded(dice.choice(("run_1", "run_2")), made)])

    def play(self) -> None:
        """Proposals come, deciders turn, until all is decided and everything has arrived."""
        for run_id, id in (("run_1", 1), ("run_2", 2)):
            self.log.propose(0, [encoded(run_id, start(id))])
        for id in range(3, 3 + PROPOSALS):
            self.propose(id)
            while self.dice.random() < 0.6:
                self.step()
        for entries in self.late:
            self.arrive(entries)
            self.step()
        self.late = []
        while any(self.deciders[0].meta.position <= row.position for row in self.proposals()):
            self.step()

    def proposals(self) -> list[Any]:
        """Everything that was proposed."""
        return self.log.proposals(0, 0, 1_000, 1 << 30)


def check_one_history(world: World) -> int:
    """Everyone folds the same history of every proposal; returns the number of void records."""
    rows = stored(world.log)
    expected = counted(rows)
    records = [decode_record(row.value) for row in expected]
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    assert [record.position for record in records] == [row.position for row in world.proposals()]
    reference = MemoryStore()
    Partition(world.log, reference, 0).recover()
    state = dump(reference)
    meta = Partition(world.log, reference, 0).meta
    assert (meta.sequence, meta.void) == (len(expected), len(rows) - len(expected))
    for number in range(len(world.deciders)):
        world.deciders[number].catch_up()
        assert dump(world.stores[number]) == state
    for store in world.snapshots:
        Partition(world.log, store, 0).recover()
        assert dump(store) == state
    proof = proof_of(world.log, reference)
    assert (proof.records, proof.meta.void) == (meta.sequence, meta.void)
    return meta.void


@pytest.mark.parametrize("block", range(6))
def test_fault_33_deciders_of_different_rules_write_one_history(block: int) -> None:
    """However deciders stall, fail and return, every reader, wherever it begins, counts the same
    records, steps over the same void ones, and no proposal is lost or decided twice."""
    voids = 0
    for seed in range(block * 50, block * 50 + 50):
        world = World(seed)
        world.play()
        voids += check_one_history(world)
    assert voids > 50


# A zombie, by hand


def decided_turn(log: MemoryLog, store: MemoryStore, decider: str) -> Sequence[Entry]:
    """What a decider would append now: decided, and on its way."""
    caught: list[Sequence[Entry]] = []

    class Catching(FaultyLog):
        def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
            caught.append(entries)
            raise LogError("network", "stopped before it wrote", "wait")

    partition = Partition(Catching(log, Faults()), store, 0, decider)
    partition.recover()
    with pytest.raises(LogError):
        partition.turn()
    return caught[0]


def everyone_agrees(log: MemoryLog, stores: Sequence[MemoryStore]) -> int:
    """Readers from these stores and from nothing fold alike; returns the void records."""
    dumps = []
    for store in (*stores, MemoryStore()):
        partition = Partition(log, store, 0)
        partition.recover()
        proof_of(log, store)
        dumps.append(dump(store))
        assert partition.meta.void == len(stored(log)) - len(counted(stored(log)))
    assert all(one == dumps[0] for one in dumps)
    return partition.meta.void


def test_two_deciders_of_an_empty_log() -> None:
    """Both extend the beginning; the first to arrive counts, and the other is void, not a hole."""
    log = broker()
    log.propose(0, [encoded("run_1", start()), encoded("run_1", fact(2))])
    zombie = decided_turn(log, MemoryStore(), "zombie")
    store = MemoryStore()
    Partition(log, store, 0).turn()
    before = copy_of(store)
    log.append(0, ZERO, zombie)
    assert everyone_agrees(log, [store, before]) == 2


@pytest.mark.parametrize("records", [600, SEEN_MAX + 700])
def test_fault_33_a_zombie_may_sleep_for_as_long_as_it_likes(records: int) -> None:
    """A turn that arrives thousands of records late is void, and halts nobody."""
    log = broker()
    store = MemoryStore()
    partition = Partition(log, store, 0)
    log.propose(0, [encoded("run_1", start())])
    partition.turn()
    log.propose(0, [encoded("run_1", fact(2)), encoded("run_1", fact(3))])
    zombie = decided_turn(log, copy_of(store), "zombie")
    log.propose(0, [encoded("run_1", fact(id)) for id in range(4, records)])
    while partition.turn():
        pass
    before = copy_of(store)
    log.append(0, ZERO, zombie)
    log.propose(0, [encoded("run_1", fact(records))])
    while partition.turn():
        pass
    assert partition.meta.sequence == records
    assert everyone_agrees(log, [store, before]) == 2


def test_a_window_that_begins_in_the_middle_of_a_void_chain() -> None:
    """A reader whose place is inside a void turn of 500 records steps over the rest of it."""
    log = broker()
    store = MemoryStore()
    log.propose(0, [encoded("run_1", start())])
    log.propose(0, [encoded("run_1", fact(id)) for id in range(2, TURN_RECORDS_MAX + 2)])
    zombie = decided_turn(log, MemoryStore(), "zombie")
    assert len(zombie) == TURN_RECORDS_MAX
    partition = Partition(log, store, 0)
    while partition.turn():
        pass
    log.append(0, ZERO, zombie[:200])
    partition.catch_up()
    middle = copy_of(store)
    log.append(0, ZERO, zombie[200:])
    log.propose(0, [encoded("run_1", fact(TURN_RECORDS_MAX + 2))])
    while partition.turn():
        pass
    assert everyone_agrees(log, [middle, store]) == TURN_RECORDS_MAX


# What halts


@pytest.fixture(params=["as on a broker", "as embedded"])
def log(request: pytest.FixtureRequest) -> MemoryLog:
    """A log with a run of ten records, decided in turns of two."""
    clock = Clock()
    log = broker(clock) if request.param == "as on a broker" else MemoryLog(1, clock)
    log.propose(0, [encoded("run_1", start()), encoded("run_1", fact(2))])
    partition = Partition(log, MemoryStore(), 0)
    partition.turn()
    for id in range(3, 11, 2):
        log.propose(0, [encoded("run_1", fact(id)), encoded("run_1", fact(id + 1))])
        partition.turn()
    return log


def projected(log: MemoryLog) -> MemoryStore:
    """A projection of the whole log."""
    store = MemoryStore()
    Partition(log, store, 0).recover()
    return store


def halts(log: MemoryLog, store: MemoryStore | None = None) -> Damaged:
    """The damage at which a reader halts."""
    with pytest.raises(Damaged) as caught:
        Partition(log, store or MemoryStore(), 0).recover()
    return caught.value


def test_a_hole_halts(log: MemoryLog) -> None:
    """A record that is missing is noticed at the one after it, by projector and proof."""
    store = projected(log)
    del log._events[0][4]
    damaged = halts(log)
    assert (damaged.run_id, damaged.sequence) == ("run_1", 6)
    assert "hole: record 5" in damaged.what
    with pytest.raises(Damaged, match="hole: record 5"):
        proof_of(log, store)


def test_a_swapped_pair_halts(log: MemoryLog) -> None:
    """Records in the wrong order are a hole, even though what they extend comes later: a reader
    that called them void would lose the history behind them without a word."""
    rows = log._events[0]
    rows[4], rows[5] = (
        replace(rows[5], offset=rows[4].offset),
        replace(rows[4], offset=rows[5].offset),
    )
    assert halts(log).sequence == 6


def test_a_record_of_another_history_halts(log: MemoryLog) -> None:
    """A whole record that extends nothing seen is a hole, not a void record."""
    row = log._events[0][-1]
    record = decode_record(row.value)._replace(previous=bytes([7]) * 32)
    made = encode_record(record)
    head = partition_hash(record.previous, record.chain, made)
    log._events[0].append(replace(row, offset=row.offset + 1, value=made, head=head))
    assert halts(log).sequence == 10
    store = projected_before(log, 10)
    assert halts(log, store).sequence == 10


def projected_before(log: MemoryLog, records: int) -> MemoryStore:
    """A projection of the first records only."""
    rows = log._events[0]
    log._events[0] = rows[:records]
    store = projected(log)
    log._events[0] = rows
    return store


def test_a_hash_that_does_not_fit_halts(log: MemoryLog) -> None:
    """A record whose bytes are not those its head was made of is named."""
    row = log._events[0][6]
    record = decode_record(row.value)._replace(decider="another")
    log._events[0][6] = replace(row, value=encode_record(record))
    damaged = halts(log)
    assert (damaged.run_id, damaged.sequence, damaged.what) == ("run_1", 7, "partition hash")


def test_a_repeated_record(log: MemoryLog) -> None:
    """A record that comes twice: void on a broker, damage where append looks at the head."""
    row = log._events[0][-1]
    log._events[0].append(replace(row, offset=row.offset + 1))
    if log.conditional:
        assert halts(log).sequence == 10
    else:
        assert everyone_agrees(log, []) == 1


def test_a_store_ahead_of_its_log_halts(log: MemoryLog) -> None:
    """A projection that knows a record its log has lost serves nothing."""
    store = projected(log)
    del log._events[0][-1]
    damaged = halts(log, store)
    assert "not in the log" in damaged.what
    assert damaged.sequence == 10


def test_a_store_of_another_log_halts(log: MemoryLog) -> None:
    """A projection is opened beside its own log only, and its own partition."""
    other = broker()
    assert halts(other, projected(log)).what == "projection of another log"
    with pytest.raises(Damaged, match="another log"):
        Partition(MemoryLog(2, Clock()), projected(log), 1).recover()


@pytest.mark.parametrize("field", ["position", "log_time", "sequence"])
def test_fault_24_a_store_whose_position_is_not_its_heads_halts(log: MemoryLog, field: str) -> None:
    """Position, sequence and log time stand beside the head; one that has parted from it would
    skip proposals or decide them twice."""
    store = projected(log)
    meta = json.loads(store.get(b"m") or b"")
    store.write({b"m": json.dumps({**meta, field: meta[field] + 1}).encode()})
    damaged = halts(log, store)
    assert damaged.run_id == "run_1"
    assert "position" in damaged.what
