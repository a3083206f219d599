"""The log in memory: for tests, for simulation, and for users' own tests.

It keeps the semantics of the durable backends, their errors included, and can imitate the two
habits of a broker that matter: an append that does not look at the head, and offsets with gaps.

Invariants:
- Rows handed out are immutable, so a reader never sees a row change.
- Nothing outlives the object: durability is the one promise it does not keep.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

from foldlog.log.base import (
    MAX_PARTITIONS,
    ZERO_HEAD,
    Clock,
    Entry,
    HeadMoved,
    LogClosed,
    PositionMoved,
    Proposed,
    Stored,
    bounded,
    check_partition,
    check_read,
)


class MemoryLog:
    """A Log that lives as long as the object.

    `conditional=False`: append takes records whatever the head is, as a broker does, so void
    records are possible. `gaps=True`: positions and offsets skip numbers, as a broker's control
    records make them do; without it both start at 1 and are dense, as in the embedded log.
    """

    def __init__(
        self, partitions: int, clock: Clock, *, conditional: bool = True, gaps: bool = False
    ) -> None:
        assert 1 <= partitions <= MAX_PARTITIONS, f"{partitions} partitions"
        self.identity = os.urandom(16).hex()
        self.partitions = partitions
        self._clock = clock
        self.conditional = conditional
        self._gaps = gaps
        # Re-entrant, so that `decide` may read.
        self._lock = threading.RLock()
        self._deciding = False
        self._closed = False
        self._proposals: list[list[Proposed]] = [[] for _ in range(partitions)]
        self._events: list[list[Stored]] = [[] for _ in range(partitions)]

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See Log.propose; all of one call get the same `appended_at`."""
        check_partition(partition, self.partitions)
        with self._lock:
            self._check_open()
            taken = self._taken(partition, entries)
            self._put(partition, taken, [])
            return [row.position for row in taken]

    def proposals(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Proposed]:
        """See Log.proposals."""
        check_read(partition, self.partitions, limit)
        with self._lock:
            self._check_open()
            rows = self._proposals[partition]
            at = bisect_left(rows, start, key=lambda row: row.position)
            return list(bounded(rows[at : at + limit], limit, max_bytes))

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """See Log.append; with `conditional=False` the head is not looked at."""
        check_partition(partition, self.partitions)
        with self._lock:
            self._check_open()
            if self.conditional:
                self._check_head(partition, head)
            self._put(partition, [], self._stored(partition, entries))

    def exchange(
        self,
        partition: int,
        position: int,
        head: bytes,
        proposals: Sequence[tuple[bytes, bytes]],
        decide: Callable[[list[Proposed]], list[Entry]],
    ) -> list[Proposed]:
        """See ExchangeLog.exchange; a log with `conditional=False` cannot do it and asserts."""
        assert self.conditional, "an unconditional log cannot compare before it writes"
        check_partition(partition, self.partitions)
        with self._lock:
            self._check_open()
            found = self.proposals_end(partition)
            if found != position:
                raise PositionMoved("memory", partition, position, found)
            self._check_head(partition, head)
            taken = self._taken(partition, proposals)
            self._deciding = True
            try:
                entries = decide(list(taken))
            finally:
                self._deciding = False
            self._put(partition, taken, self._stored(partition, entries))
            return taken

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """See Log.events."""
        check_read(partition, self.partitions, limit)
        with self._lock:
            self._check_open()
            rows = self._events[partition]
            at = bisect_left(rows, start, key=lambda row: row.offset)
            return list(bounded(rows[at : at + limit], limit, max_bytes))

    def end(self, partition: int) -> int:
        """See Log.end; with `gaps` the next record may get a larger offset than this."""
        check_partition(partition, self.partitions)
        with self._lock:
            self._check_open()
            rows = self._events[partition]
            return rows[-1].offset + 1 if rows else 1

    def proposals_end(self, partition: int) -> int:
        """See Log.proposals_end."""
        check_partition(partition, self.partitions)
        with self._lock:
            self._check_open()
            rows = self._proposals[partition]
            return rows[-1].position + 1 if rows else 1

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._closed = True
            self._proposals = []
            self._events = []

    def _check_head(self, partition: int, head: bytes) -> None:
        rows = self._events[partition]
        found = rows[-1].head if rows else ZERO_HEAD
        if found != head:
            raise HeadMoved("memory", partition, head, found)

    def _taken(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[Proposed]:
        rows = self._proposals[partition]
        first = self._next(rows[-1].position if rows else 0)
        now = self._clock()
        return [Proposed(first + i, *pair, now) for i, pair in enumerate(entries)]

    def _stored(self, partition: int, entries: Sequence[Entry]) -> list[Stored]:
        rows = self._events[partition]
        first = self._next(rows[-1].offset if rows else 0)
        return [
            Stored(first + i, e.key, e.value, e.sequence, e.log_time, e.head)
            for i, e in enumerate(entries)
        ]

    def _put(self, partition: int, taken: list[Proposed], stored: list[Stored]) -> None:
        assert not self._deciding, "`decide` may read the log, not write to it"
        self._proposals[partition].extend(taken)
        self._events[partition].extend(stored)

    def _next(self, last: int) -> int:
        # Each call is one transaction, and a broker's commit marker takes one number of its own.
        return last + (2 if self._gaps else 1)

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed("memory", "the log is closed", "open a new one")
