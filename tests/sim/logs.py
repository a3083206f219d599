"""Simulated logs: an embedded one that is conditional and transactional, and a broker's.

Invariants:
- What a call returned from is durable; only what was written and not synced can be lost or torn.
- After an error that is no ``LogUnreachable`` it is unknown whether the rows are there.
- The broker never looks at the head: it takes what comes, when it comes, also twice.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from foldlog.log.base import (
    ZERO_HEAD,
    Entry,
    HeadMoved,
    LogBusy,
    LogClosed,
    LogError,
    LogUnreachable,
    PositionMoved,
    Proposed,
    Stored,
    bounded,
)
from tests.sim.scheduler import Process, Scheduler

BUSY_US = 5_000_000
LATE_US_MAX = 3_000_000


@dataclass(eq=False)
class Transaction:
    """What one call writes, on its way to the disk."""

    partition: int
    process: Process
    proposals: list[Proposed]
    events: list[Stored]


@dataclass(eq=False)
class LogDisk:
    """What is in a log, for whoever asks. ``appended`` is told of rows as they become visible."""

    partitions: int
    conditional: bool
    scheduler: Scheduler
    appended: Callable[[int, list[Proposed], list[Stored]], None]
    counts: Counter[str] = field(default_factory=Counter)
    identity: str = "simulated"
    proposals: list[list[Proposed]] = field(default_factory=list)
    events: list[list[Stored]] = field(default_factory=list)
    pending: Transaction | None = None
    writer: object | None = None
    changes: int = 0
    _synced: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.proposals = [[] for _ in range(self.partitions)]
        self.events = [[] for _ in range(self.partitions)]
        self._synced = [(0, 0)] * self.partitions

    # Numbers: an embedded log is dense, a broker leaves gaps

    def next_position(self, partition: int) -> int:
        """Where the next proposal stands."""
        return self._next([row.position for row in self.proposals[partition][-1:]])

    def next_offset(self, partition: int) -> int:
        """Where the next record stands."""
        return self._next([row.offset for row in self.events[partition][-1:]])

    def _next(self, last: list[int]) -> int:
        gap = 1 if self.conditional else self.scheduler.dice.randint(1, 3)
        return (last[0] if last else 0) + gap

    def taken(self, partition: int, entries: Sequence[tuple[bytes, bytes]], now: int) -> list[Any]:
        """Proposals as they would be taken now."""
        first = self.next_position(partition)
        return [Proposed(first + i, *pair, now) for i, pair in enumerate(entries)]

    def stored(self, partition: int, entries: Sequence[Entry]) -> list[Stored]:
        """Records as they would be stored now."""
        first = self.next_offset(partition)
        return [
            Stored(first + i, e.key, e.value, e.sequence, e.log_time, e.head)
            for i, e in enumerate(entries)
        ]

    # Writing

    def write(self, transaction: Transaction) -> None:
        """Into the file, not synced and not visible."""
        self.pending = transaction

    def sync(self) -> None:
        """Everything visible and what is pending becomes durable."""
        for number in range(self.partitions):
            self._synced[number] = (len(self.proposals[number]), len(self.events[number]))
        if self.pending is not None:
            number = self.pending.partition
            proposals, events = self._synced[number]
            more = len(self.pending.proposals), len(self.pending.events)
            self._synced[number] = (proposals + more[0], events + more[1])

    def commit(self) -> None:
        """What is pending becomes visible."""
        transaction, self.pending = self.pending, None
        assert transaction is not None
        self.put(transaction.partition, transaction.proposals, transaction.events)

    def put(self, partition: int, proposals: list[Proposed], events: list[Stored]) -> None:
        """Rows become visible."""
        self.proposals[partition].extend(proposals)
        self.events[partition].extend(events)
        self.appended(partition, proposals, events)

    # Ends

    def process_ended(self, process: Process, kept: bool) -> None:
        """A writer ended in the middle: its transaction is there after all, or is not."""
        if self.pending is not None and self.pending.process is process:
            self.settle(kept)

    def settle(self, kept: bool) -> None:
        """What is pending turns out to be there, or to be torn and gone."""
        self.counts["kept" if kept else "torn"] += 1
        if kept:
            self.sync()
            self.commit()
        else:
            self.pending = None

    def machine_ended(self, kept: bool) -> int:
        """Whatever was not synced is lost; returns how many rows that everyone had seen."""
        lost = 0
        for number, (proposals, events) in enumerate(self._synced):
            lost += len(self.proposals[number][proposals:]) + len(self.events[number][events:])
            del self.proposals[number][proposals:]
            del self.events[number][events:]
        if self.pending is not None:
            self.settle(kept)
        self.sync()
        self.writer = None
        return lost


class Reader:
    """Reads a log; ``step`` may raise."""

    def __init__(self, disk: LogDisk) -> None:
        self.disk = disk
        self.identity, self.partitions = disk.identity, disk.partitions
        self.conditional = disk.conditional

    def step(self, name: str, *can: str) -> str | None:
        """Nothing happens to whoever only looks."""
        return None

    def proposals(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Proposed]:
        """See Log.proposals."""
        self._reads()
        rows = self.disk.proposals[partition]
        at = bisect_left(rows, start, key=lambda row: row.position)
        return list(bounded(rows[at : at + limit], limit, max_bytes))

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """See Log.events."""
        self._reads()
        rows = self.disk.events[partition]
        at = bisect_left(rows, start, key=lambda row: row.offset)
        return list(bounded(rows[at : at + limit], limit, max_bytes))

    def end(self, partition: int) -> int:
        """See Log.end."""
        self._reads()
        rows = self.disk.events[partition]
        return rows[-1].offset + 1 if rows else 1

    def proposals_end(self, partition: int) -> int:
        """See Log.proposals_end."""
        self._reads()
        rows = self.disk.proposals[partition]
        return rows[-1].position + 1 if rows else 1

    def _reads(self) -> None:
        if self.step("log read", "refused"):
            raise LogUnreachable("log", "cannot be read", "wait")

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """Nobody who only looks proposes."""
        raise AssertionError(partition)

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """Nobody who only looks appends."""
        raise AssertionError(partition)

    def close(self) -> None:
        """Nothing to let go of."""


class SimLog(Reader):
    """A process's way to a log; ``clock`` stamps what the log takes."""

    def __init__(
        self, disk: LogDisk, process: Process, clock: Callable[[], int], is_cut: Callable[[], bool]
    ) -> None:
        super().__init__(disk)
        self.process, self.clock, self.is_cut = process, clock, is_cut
        self._closed = False

    def step(self, name: str, *can: str) -> str | None:
        """Every call is a step, and may fail."""
        if self._closed and not self.process.dead:
            raise LogClosed("log", "the log is closed", "open it again")
        failure = self.disk.scheduler.step(self.process, name, can)
        return "refused" if "refused" in can and self.is_cut() else failure

    def close(self) -> None:
        """See Log.close."""
        self._closed = True


class HomeLog(SimLog):
    """The embedded log: one writer at a time, one fsync per transaction, conditional."""

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See Log.propose."""
        with self._writing():
            rows = self.disk.taken(partition, entries, self.clock())
            self._commit(Transaction(partition, self.process, rows, []))
            return [row.position for row in rows]

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """See Log.append."""
        with self._writing():
            self.check_head(partition, head)
            rows = self.disk.stored(partition, entries)
            self._commit(Transaction(partition, self.process, [], rows))

    def exchange(
        self,
        partition: int,
        position: int,
        head: bytes,
        proposals: Sequence[tuple[bytes, bytes]],
        decide: Callable[[list[Proposed]], list[Entry]],
    ) -> list[Proposed]:
        """See ExchangeLog.exchange."""
        with self._writing():
            found = self.disk.next_position(partition)
            if found != position:
                self.disk.counts["position moved"] += 1
                raise PositionMoved("log", partition, position, found)
            self.check_head(partition, head)
            rows = self.disk.taken(partition, proposals, self.clock())
            stored = self.disk.stored(partition, decide(list(rows)))
            self._commit(Transaction(partition, self.process, rows, stored))
            return rows

    def check_head(self, partition: int, head: bytes) -> None:
        """HeadMoved unless the last record's head is this one."""
        rows = self.disk.events[partition]
        found = rows[-1].head if rows else ZERO_HEAD
        if found != head:
            self.disk.counts["head moved"] += 1
            raise HeadMoved("log", partition, head, found)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Alone with the file; LogBusy if another writer keeps it for too long."""
        scheduler, disk, mine = self.disk.scheduler, self.disk, object()
        end = scheduler.now + BUSY_US
        if self.step("log lock", "refused"):
            raise LogUnreachable("log", "cannot be written", "wait")
        while disk.writer is not None:
            if scheduler.now >= end:
                disk.counts["log busy"] += 1
                raise LogBusy("log", "another process keeps it", "wait")
            scheduler.sleep(1_000)
        disk.writer = (self.process, mine)
        try:
            yield
        finally:
            if disk.writer == (self.process, mine):
                disk.writer = None

    def _commit(self, transaction: Transaction) -> None:
        """Write, sync, show: a failure before the sync leaves the transaction in doubt."""
        disk = self.disk
        disk.write(transaction)
        if self.step("log sync", "fsync"):
            disk.settle(disk.scheduler.dice.random() < 0.5)
            raise LogError("log", "the disk failed to sync", "read it back")
        disk.sync()
        disk.commit()
        if self.step("log reply", "in_doubt"):
            raise LogError("log", "no answer", "read it back")


class BrokerLog(SimLog):
    """A broker's log: an append looks at nothing, and what was given up may still arrive."""

    BROKEN = ("refused", "in_doubt", "late", "in_parts", "twice")

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See Log.propose."""
        positions: list[int] = []

        def deliver(some: Sequence[tuple[bytes, bytes]]) -> None:
            if some:
                rows = self.disk.taken(partition, some, self.clock())
                positions.extend(row.position for row in rows)
                self.disk.put(partition, rows, [])

        self._send(deliver, entries)
        return positions[: len(entries)]

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """See Log.append; the head is not looked at."""

        def deliver(some: Sequence[Entry]) -> None:
            if some:
                self.disk.put(partition, [], self.disk.stored(partition, some))

        self._send(deliver, entries)

    def _send(self, deliver: Callable[[Any], None], entries: Sequence[Any]) -> None:
        scheduler = self.disk.scheduler
        failure = self.step("broker send", *self.BROKEN)
        if failure == "refused":
            raise LogUnreachable("broker", "cannot be reached", "wait")
        now = {"late": 0, "in_parts": scheduler.dice.randrange(len(entries) + 1)}
        at = now.get(failure or "", len(entries))
        deliver(entries[:at])
        if failure == "twice":
            deliver(entries)
        rest = entries[at:]
        if rest:
            delay = scheduler.dice.randrange(LATE_US_MAX)
            scheduler.after(delay, lambda: deliver(rest))
        self.step("broker reply")
        if failure in ("in_doubt", "late", "in_parts"):
            raise LogError("broker", "no answer in time", "read it back")
