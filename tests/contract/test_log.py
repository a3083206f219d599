"""What every log does, whatever it is made of."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldlog.log.base import ZERO_HEAD, Entry, HeadMoved, Log, LogClosed
from foldlog.log.memory import MemoryLog
from tests.contract.conftest import PARTITIONS, Clock, OpenLog

MANY = 1_000
ALL_BYTES = 1 << 30

# The log under test is shared by Hypothesis' examples: each looks only at what it added itself.
shared_log = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
pairs = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=3_000)), max_size=5)


class Interrupted(Exception):
    """Raised by a list of rows half-way through."""


class Interrupting(Sequence[Any]):
    """Rows that raise after the first two, as an interrupt in the middle of a write would."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        return self.rows[at]

    def __iter__(self) -> Iterator[Any]:
        yield from self.rows[:2]
        raise Interrupted


def entry(number: int, value: bytes = b"record") -> Entry:
    """A record whose sequence, time and head are made from `number`."""
    return Entry(b"run", value, number, 1_000 + number, bytes([number]) * 32)


def head_of(log: Log, partition: int) -> bytes:
    """The head of a partition's last record."""
    rows = log.events(partition, 0, MANY * MANY, ALL_BYTES)
    return rows[-1].head if rows else ZERO_HEAD


def test_a_new_log_is_empty(log: Log) -> None:
    """A new log has its partitions, an identity, and nothing in it."""
    assert log.partitions == PARTITIONS
    assert log.identity
    for partition in range(PARTITIONS):
        assert log.proposals(partition, 0, MANY, ALL_BYTES) == []
        assert log.events(partition, 0, MANY, ALL_BYTES) == []
        assert log.end(partition) == 1
        assert log.proposals_end(partition) == 1


def test_proposals_keep_their_order_and_positions(log: Log) -> None:
    """Proposals are read in the order of their growing positions, which propose returned."""
    first = log.propose(1, [(b"a", b"1"), (b"b", b"2")])
    second = log.propose(1, [(b"a", b"3")])
    rows = log.proposals(1, 0, MANY, ALL_BYTES)
    assert [row.position for row in rows] == first + second == sorted({*first, *second})
    assert [(row.key, row.value) for row in rows] == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert log.proposals_end(1) == second[-1] + 1


def test_records_keep_their_order_and_columns(log: Log) -> None:
    """Records are read in the order of their growing offsets with every column as it was given."""
    entries = [entry(n) for n in range(1, 6)]
    log.append(2, ZERO_HEAD, entries[:2])
    log.append(2, entries[1].head, entries[2:])
    rows = log.events(2, 0, MANY, ALL_BYTES)
    read = [Entry(r.key, r.value, r.sequence, r.log_time, r.head) for r in rows]
    assert read == entries
    offsets = [row.offset for row in rows]
    assert offsets == sorted(set(offsets))
    assert log.end(2) == offsets[-1] + 1


def test_reading_starts_where_it_is_told(log: Log) -> None:
    """Reading from one after a row gives the rows behind it, and from the end gives none."""
    positions = log.propose(0, [(b"k", bytes([n])) for n in range(5)])
    log.append(0, ZERO_HEAD, [entry(n) for n in range(1, 6)])
    offsets = [row.offset for row in log.events(0, 0, MANY, ALL_BYTES)]
    for at in range(5):
        rest = log.proposals(0, positions[at] + 1, MANY, ALL_BYTES)
        assert [row.position for row in rest] == positions[at + 1 :]
        records = log.events(0, offsets[at] + 1, MANY, ALL_BYTES)
        assert [row.offset for row in records] == offsets[at + 1 :]
    assert log.proposals(0, log.proposals_end(0), MANY, ALL_BYTES) == []
    assert log.events(0, log.end(0), MANY, ALL_BYTES) == []


def test_partitions_are_independent(log: Log) -> None:
    """What is written to one partition moves neither rows, ends nor heads of another."""
    log.propose(0, [(b"k", b"zero")])
    log.append(0, ZERO_HEAD, [entry(1)])
    log.append(2, ZERO_HEAD, [entry(2)])
    assert log.proposals(1, 0, MANY, ALL_BYTES) == []
    assert (log.end(1), log.proposals_end(2)) == (1, 1)
    assert [r.sequence for r in log.events(0, 0, MANY, ALL_BYTES)] == [1]
    assert [r.sequence for r in log.events(2, 0, MANY, ALL_BYTES)] == [2]


def test_limit_bounds_the_number_of_rows(log: Log) -> None:
    """No more rows than the limit are returned, and the first ones."""
    log.propose(0, [(b"k", bytes([n])) for n in range(10)])
    log.append(0, ZERO_HEAD, [entry(n) for n in range(1, 11)])
    for limit in (1, 9, 10, 11):
        expected = min(limit, 10)
        assert [r.value[0] for r in log.proposals(0, 0, limit, ALL_BYTES)] == list(range(expected))
        assert [r.sequence for r in log.events(0, 0, limit, ALL_BYTES)][-1] == expected


def test_max_bytes_bounds_what_is_read_but_never_to_nothing(log: Log) -> None:
    """Keys and values stay within max_bytes, except that one row is returned if there is one."""
    log.propose(0, [(b"kk", b"x" * 8)] * 4)
    log.append(0, ZERO_HEAD, [entry(n, b"x" * 7) for n in range(1, 5)])
    for max_bytes, expected in [(0, 1), (1, 1), (10, 1), (19, 1), (20, 2), (39, 3), (40, 4)]:
        assert len(log.proposals(0, 0, MANY, max_bytes)) == expected, max_bytes
        assert len(log.events(0, 0, MANY, max_bytes)) == expected, max_bytes


def test_a_row_larger_than_max_bytes_is_reached_by_reading_on(log: Log) -> None:
    """A reader that goes on behind each row gets past a row larger than max_bytes."""
    log.propose(0, [(b"k", b"s"), (b"k", b"x" * 5_000), (b"k", b"s")])
    start, sizes = 0, []
    while rows := log.proposals(0, start, MANY, 100):
        sizes += [len(row.value) for row in rows]
        start = rows[-1].position + 1
    assert sizes == [1, 5_000, 1]


@shared_log
@given(rows=pairs)
def test_proposals_come_back_byte_for_byte(log: Log, rows: list[tuple[bytes, bytes]]) -> None:
    """Any key and value, empty ones too, are read as they were proposed."""
    start = log.proposals_end(0)
    positions = log.propose(0, rows)
    read = log.proposals(0, start, MANY, ALL_BYTES)
    assert [(row.key, row.value) for row in read] == rows
    assert [row.position for row in read] == positions


@shared_log
@given(
    rows=pairs, numbers=st.integers(-(2**63), 2**63 - 1), head=st.binary(min_size=32, max_size=32)
)
def test_records_come_back_byte_for_byte(
    log: Log, rows: list[tuple[bytes, bytes]], numbers: int, head: bytes
) -> None:
    """Any key, value, head and 64-bit number are read as they were appended."""
    start = log.end(0)
    entries = [Entry(key, value, numbers, numbers, head) for key, value in rows]
    log.append(0, head_of(log, 0), entries)
    read = log.events(0, start, MANY, ALL_BYTES)
    assert [Entry(r.key, r.value, r.sequence, r.log_time, r.head) for r in read] == entries


def test_the_log_stamps_proposals_with_its_clock(log: Log, clock: Clock) -> None:
    """A proposal carries the time at which the log took it, also after the clock stepped back."""
    log.propose(0, [(b"k", b"1"), (b"k", b"2")])
    first = clock.now
    clock.now -= 5_000_000
    log.propose(0, [(b"k", b"3")])
    stamps = [row.appended_at for row in log.proposals(0, 0, MANY, ALL_BYTES)]
    assert stamps == [first, first, first - 5_000_000]


def test_append_refuses_another_head(conditional_log: Log) -> None:
    """An append on a head that is not the last record's raises HeadMoved and writes nothing."""
    log = conditional_log
    log.append(0, ZERO_HEAD, [entry(1), entry(2)])
    for wrong in (ZERO_HEAD, entry(1).head, b"\xff" * 32, b""):
        with pytest.raises(HeadMoved) as refusal:
            log.append(0, wrong, [entry(3)])
        assert refusal.value.partition == 0
        assert (refusal.value.expected, refusal.value.found) == (wrong, entry(2).head)
    assert [row.sequence for row in log.events(0, 0, MANY, ALL_BYTES)] == [1, 2]
    log.append(0, entry(2).head, [entry(3)])
    assert head_of(log, 0) == entry(3).head


def test_an_empty_partition_has_the_zero_head(conditional_log: Log) -> None:
    """The first append must be on the zero head."""
    log = conditional_log
    with pytest.raises(HeadMoved) as refusal:
        log.append(1, entry(1).head, [entry(2)])
    assert refusal.value.found == ZERO_HEAD
    assert log.end(1) == 1


def test_writing_nothing_writes_nothing(log: Log) -> None:
    """Empty lists leave the log as it is."""
    assert log.propose(0, []) == []
    log.append(0, ZERO_HEAD, [])
    assert (log.end(0), log.proposals_end(0)) == (1, 1)


def test_appending_nothing_compares_the_head(conditional_log: Log) -> None:
    """An empty append on another head is refused as any other is."""
    with pytest.raises(HeadMoved):
        conditional_log.append(0, b"\x01" * 32, [])


def test_a_write_that_fails_half_way_leaves_nothing(log: Log) -> None:
    """A propose or append interrupted in the middle writes no row, and the next one works."""
    with pytest.raises(Interrupted):
        log.propose(0, Interrupting([(b"k", bytes([n])) for n in range(4)]))
    with pytest.raises(Interrupted):
        log.append(0, ZERO_HEAD, Interrupting([entry(n) for n in range(1, 5)]))
    assert (log.end(0), log.proposals_end(0)) == (1, 1)
    assert log.propose(0, [(b"k", b"v")]) == [row.position for row in log.proposals(0, 0, 9, 99)]
    log.append(0, ZERO_HEAD, [entry(1)])
    assert len(log.events(0, 0, 9, ALL_BYTES)) == 1


def test_of_two_appends_on_one_head_one_wins(conditional_log: Log) -> None:
    """Threads that append on the same head never both succeed: one history comes out."""
    log = conditional_log
    wins = [0] * 4

    def decider(number: int) -> None:
        for turn in range(25):
            head = head_of(log, 0)
            record = Entry(b"run", b"%d" % number, turn, 0, bytes([number + 1, turn]) * 16)
            try:
                log.append(0, head, [record])
                wins[number] += 1
            except HeadMoved:
                continue

    run_threads([threading.Thread(target=decider, args=(n,)) for n in range(4)])
    assert len(log.events(0, 0, MANY, ALL_BYTES)) == sum(wins) >= 25


def test_threads_propose_at_once_and_lose_nothing(log: Log) -> None:
    """Proposals of several threads all arrive, each once, at the position that was returned."""
    taken: dict[int, bytes] = {}

    def worker(number: int) -> None:
        for turn in range(25):
            value = b"%d-%d" % (number, turn)
            (position,) = log.propose(0, [(b"k", value)])
            taken[position] = value

    run_threads([threading.Thread(target=worker, args=(n,)) for n in range(4)])
    rows = log.proposals(0, 0, MANY, ALL_BYTES)
    assert {row.position: row.value for row in rows} == taken
    assert len(taken) == 100


def run_threads(threads: list[threading.Thread]) -> None:
    """Start all and wait for all."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_closed_log_refuses_every_call(log: Log) -> None:
    """After close every call raises LogClosed, except close itself."""
    log.close()
    log.close()
    calls: list[Any] = [
        lambda: log.propose(0, [(b"k", b"v")]),
        lambda: log.append(0, ZERO_HEAD, [entry(1)]),
        lambda: log.proposals(0, 0, 1, 1),
        lambda: log.events(0, 0, 1, 1),
        lambda: log.end(0),
        lambda: log.proposals_end(0),
    ]
    for call in calls:
        with pytest.raises(LogClosed):
            call()


def test_a_partition_that_is_not_there_is_the_callers_mistake(log: Log) -> None:
    """A partition out of range or a limit below one asserts, before anything is touched."""
    for partition in (-1, PARTITIONS):
        with pytest.raises(AssertionError):
            log.propose(partition, [(b"k", b"v")])
        with pytest.raises(AssertionError):
            log.events(partition, 0, 1, 1)
    with pytest.raises(AssertionError):
        log.proposals(0, 0, 0, 1)


def test_what_was_written_is_there_after_reopening(open_log: OpenLog, clock: Clock) -> None:
    """Rows, stamps, columns, identity and partitions survive the object that wrote them."""
    log = open_log()
    log.propose(1, [(b"k", b"v"), (b"", b"")])
    log.append(1, ZERO_HEAD, [entry(1), entry(2)])
    before = (log.identity, log.partitions, log.proposals(1, 0, 9, 99), log.events(1, 0, 9, 99))
    log.close()
    clock.now += 1
    again = open_log()
    after = (
        again.identity, again.partitions, again.proposals(1, 0, 9, 99), again.events(1, 0, 9, 99),
    )  # fmt: skip
    assert after == before
    again.append(1, entry(2).head, [entry(3)])


def test_two_objects_on_one_log_see_each_other(open_log: OpenLog) -> None:
    """What one object wrote the other reads at once, and a head that is compared is so across
    both."""
    one, other = open_log(), open_log()
    positions = one.propose(0, [(b"k", b"v")]) + other.propose(0, [(b"k", b"w")])
    assert [row.position for row in one.proposals(0, 0, 9, 99)] == positions
    one.append(0, ZERO_HEAD, [entry(1)])
    assert [row.sequence for row in other.events(0, 0, 9, 999)] == [1]
    if one.conditional:
        with pytest.raises(HeadMoved):
            other.append(0, ZERO_HEAD, [entry(2)])
    assert other.identity == one.identity


def test_identities_differ() -> None:
    """Two logs never share an identity."""
    logs = [MemoryLog(1, Clock()) for _ in range(2)]
    assert cast(Any, logs[0]).identity != logs[1].identity


def test_an_unconditional_log_takes_void_records() -> None:
    """With conditional=False two records may extend the same head, as on a broker."""
    log = MemoryLog(1, Clock(), conditional=False)
    log.append(0, ZERO_HEAD, [entry(1)])
    log.append(0, ZERO_HEAD, [entry(2)])
    assert [row.sequence for row in log.events(0, 0, 9, 999)] == [1, 2]


def test_gaps_leave_holes_between_calls() -> None:
    """With gaps=True numbers are skipped between calls, and the end is still above every row."""
    log = MemoryLog(1, Clock(), gaps=True)
    positions = log.propose(0, [(b"k", b"1"), (b"k", b"2")]) + log.propose(0, [(b"k", b"3")])
    assert positions[1] == positions[0] + 1
    assert positions[2] > positions[1] + 1
    assert log.proposals_end(0) > positions[2]
