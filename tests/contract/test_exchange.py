"""What every log does that can take proposals and their records in one step."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from foldlog.log.base import (
    ZERO_HEAD,
    Entry,
    ExchangeLog,
    HeadMoved,
    LogClosed,
    PositionMoved,
    Proposed,
)
from foldlog.log.memory import MemoryLog
from tests.contract.conftest import PARTITIONS, Clock

ALL = 1 << 30


def entry(number: int) -> Entry:
    """A record whose columns are made from `number`."""
    return Entry(b"run", b"record", number, number, bytes([number]) * 32)


def written(log: ExchangeLog) -> tuple[list[bytes], list[int]]:
    """The proposals' values and the records' sequences of partition 0."""
    proposals = [row.value for row in log.proposals(0, 0, 1_000, ALL)]
    return proposals, [row.sequence for row in log.events(0, 0, 1_000, ALL)]


def never(rows: object) -> list[Entry]:
    """A decide that must not be called."""
    raise AssertionError("decided")


def test_an_exchange_writes_both_halves(exchange_log: ExchangeLog, clock: Clock) -> None:
    """Decide is given the rows as the log took them, and what it returns stands in the truth."""
    log = exchange_log
    log.propose(0, [(b"a", b"1")])
    log.append(0, ZERO_HEAD, [entry(1)])
    clock.now += 5
    given: list[Any] = []
    position = log.proposals_end(0)

    def decide(rows: list[Proposed]) -> list[Entry]:
        given.extend(rows)
        return [entry(2), entry(3)]

    taken = log.exchange(0, position, entry(1).head, [(b"b", b"2"), (b"c", b"3")], decide)
    assert taken == given == log.proposals(0, position, 9, ALL)
    assert [(row.key, row.value) for row in taken] == [(b"b", b"2"), (b"c", b"3")]
    assert {row.appended_at for row in taken} == {clock.now}
    assert taken[0].position >= position
    rows = log.events(0, 0, 9, ALL)
    read = [Entry(r.key, r.value, r.sequence, r.log_time, r.head) for r in rows]
    assert read == [entry(1), entry(2), entry(3)]
    assert log.exchange(0, log.proposals_end(0), entry(3).head, [(b"d", b"4")], lambda _: [])
    assert written(log) == ([b"1", b"2", b"3", b"4"], [1, 2, 3])


def test_an_exchange_of_nothing_is_a_conditional_append(exchange_log: ExchangeLog) -> None:
    """Without proposals decide gets no rows, and its records are written on both conditions."""
    assert exchange_log.exchange(0, 1, ZERO_HEAD, [], lambda rows: [entry(1)]) == []
    assert written(exchange_log) == ([], [1])


def test_an_exchange_refuses_what_stands_before_it(exchange_log: ExchangeLog) -> None:
    """If another proposal has come meanwhile, PositionMoved is raised before anything is done."""
    log = exchange_log
    log.propose(0, [(b"a", b"1")])
    end = log.proposals_end(0)
    for wrong in (end - 1, end + 1, 0):
        with pytest.raises(PositionMoved) as refusal:
            log.exchange(0, wrong, ZERO_HEAD, [(b"b", b"2")], never)
        error = refusal.value
        assert (error.partition, error.expected, error.found) == (0, wrong, end)
    assert written(log) == ([b"1"], [])


def test_an_exchange_refuses_another_head(exchange_log: ExchangeLog) -> None:
    """On a head that is not the last record's, HeadMoved is raised before anything is done."""
    log = exchange_log
    log.append(0, ZERO_HEAD, [entry(1)])
    for wrong in (ZERO_HEAD, entry(2).head):
        with pytest.raises(HeadMoved) as refusal:
            log.exchange(0, 1, wrong, [(b"b", b"2")], never)
        assert (refusal.value.expected, refusal.value.found) == (wrong, entry(1).head)
    assert written(log) == ([], [1])


class Odd(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize(
    "error", [ValueError("a"), OSError(28, "disk full"), Odd(), HeadMoved("x", 0, b"", b"")]
)
def test_what_decide_raises_passes_through(exchange_log: ExchangeLog, error: BaseException) -> None:
    """Whatever decide raises comes out as it is, nothing is written, and the next one works."""

    def decide(rows: object) -> list[Entry]:
        raise error

    with pytest.raises(type(error)) as raised:
        exchange_log.exchange(0, 1, ZERO_HEAD, [(b"a", b"1")], decide)
    assert raised.value is error
    assert written(exchange_log) == ([], [])
    exchange_log.exchange(0, 1, ZERO_HEAD, [(b"a", b"2")], lambda rows: [entry(1)])
    assert written(exchange_log) == ([b"2"], [1])


def test_decide_reads_the_log_as_it_was(exchange_log: ExchangeLog) -> None:
    """Reading inside decide works, and shows neither the proposals nor the records."""
    log = exchange_log
    seen: list[Any] = []

    def decide(rows: object) -> list[Entry]:
        seen.append((written(log), log.proposals_end(0), log.end(0)))
        return [entry(1)]

    log.exchange(0, 1, ZERO_HEAD, [(b"a", b"1")], decide)
    assert seen == [(([], []), 1, 1)]


def test_writing_inside_decide_is_the_callers_mistake(exchange_log: ExchangeLog) -> None:
    """A decide that writes to the log asserts, and nothing is written."""
    log = exchange_log
    with pytest.raises(AssertionError, match="decide"):
        log.exchange(
            0, 1, ZERO_HEAD, [(b"a", b"1")],
            lambda rows: [entry(n) for n in log.propose(1, [(b"b", b"2")])],
        )  # fmt: skip
    assert written(log) == ([], [])
    assert log.proposals_end(1) == 1


def test_exchanges_and_proposals_of_threads_interleave(exchange_log: ExchangeLog) -> None:
    """Beside threads that propose, an exchange is either next to the last proposal it knew of or
    refused, so every record is of the proposals that stand right before it."""
    log = exchange_log
    ended = threading.Event()

    def worker() -> None:
        for turn in range(40):
            log.propose(0, [(b"k", b"foreign %d" % turn)])
        ended.set()

    thread = threading.Thread(target=worker)
    thread.start()
    head, number, refused = ZERO_HEAD, 0, 0
    while not ended.is_set() or number < 20:
        position = log.proposals_end(0)
        record = Entry(b"k", b"%d" % position, number + 1, 0, (number + 1).to_bytes(32, "big"))
        try:
            rows = log.exchange(0, position, head, [(b"k", b"own")], lambda _, r=record: [r])  # type: ignore[misc]
        except PositionMoved:
            refused += 1
            continue
        assert rows[0].position >= position
        head, number = record.head, number + 1
    thread.join()
    positions = [row.position for row in log.proposals(0, 0, 10_000, ALL) if row.value == b"own"]
    decided = [int(row.value) for row in log.events(0, 0, 10_000, ALL)]
    assert len(positions) == len(decided) == number
    assert all(0 <= at - known <= 1 for at, known in zip(positions, decided, strict=True))


def test_a_closed_log_exchanges_nothing(exchange_log: ExchangeLog) -> None:
    """After close an exchange raises LogClosed, and a wrong partition asserts before that."""
    with pytest.raises(AssertionError):
        exchange_log.exchange(PARTITIONS, 1, ZERO_HEAD, [], never)
    exchange_log.close()
    with pytest.raises(LogClosed):
        exchange_log.exchange(0, 1, ZERO_HEAD, [], never)


def test_an_unconditional_log_cannot_exchange() -> None:
    """A log whose append does not look at the head asserts."""
    with pytest.raises(AssertionError):
        MemoryLog(1, Clock(), conditional=False).exchange(0, 1, ZERO_HEAD, [], never)
