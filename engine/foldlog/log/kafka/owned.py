"""The log as a projector uses it: some partitions are its own, and are read ahead of its turns.

Invariants:
- Whether a partition is this process's own decides nothing: who only believes so is harmless.
- What comes is waited for, not asked for: a turn costs no question to the brokers.
- What is read ahead is bounded; a partition that has too much waiting is paused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foldlog.log.base import (
    LogError,
    LogForbidden,
    LogTrimmed,
    LogUnreachable,
    Proposed,
    Stored,
    bounded,
)
from foldlog.log.kafka.address import Address, Known
from foldlog.log.kafka.log import KafkaLog
from foldlog.log.kafka.reading import SILENCE_SECONDS
from foldlog.log.kafka.rows import proposed

AHEAD_ROWS_MAX, AHEAD_BYTES_MAX = 4_000, 32 * 1024 * 1024
"""What waits in memory of one partition before it is paused; it goes on at half of that."""

LISTEN_SECONDS = 0.02
"""How long an append listens for its own records before it waits for the brokers' word alone."""


@dataclass(slots=True)
class _Ahead:
    """What was read ahead of one partition."""

    proposals_from: int
    proposals: deque[Proposed] = field(default_factory=deque)
    proposals_bytes: int = 0
    events: deque[Stored] = field(default_factory=deque)
    untold: LogError | None = None
    """What kept it from being read, met while something else was waited for."""
    paused: bool = False

    def put(self, row: Proposed) -> None:
        self.proposals.append(row)
        self.proposals_bytes += len(row.key) + len(row.value)

    def drop_before(self, position: int) -> None:
        while self.proposals and self.proposals[0].position < position:
            row = self.proposals.popleft()
            self.proposals_bytes -= len(row.key) + len(row.value)

    def fills(self, share: float) -> bool:
        """Whether what waits is more than a share of what may wait."""
        rows, size = len(self.proposals), self.proposals_bytes
        return rows > AHEAD_ROWS_MAX * share or size > AHEAD_BYTES_MAX * share


class OwnedLog(KafkaLog):
    """A KafkaLog some of whose partitions are ``own``; of one thread."""

    needs = ("Read", "Write")

    def __init__(
        self, address: Address, settings: Mapping[str, Any], *, known: Known | None = None
    ) -> None:
        super().__init__(address, settings, known=known)
        self._ahead: dict[int, _Ahead] = {}
        self._inbox = self._tail(self.address.proposals, proposed)
        self._truth = self.tail()

    def own(self, partition: int, position: int, offset: int) -> None:
        """Read a partition ahead, from where its next turn begins."""
        self.disown(partition)
        self._inbox.follow(partition, position)
        self._truth.follow(partition, offset)
        self._ahead[partition] = _Ahead(position)

    def disown(self, partition: int) -> None:
        """Read it ahead no more, and forget what was."""
        if self._ahead.pop(partition, None) is not None:
            self._inbox.drop(partition)
            self._truth.drop(partition)

    def wait(self, seconds: float) -> None:
        """Wait until proposals come, or that long. LogTrimmed says of which partition."""
        for partition, row in self._inbox.poll(seconds):
            ahead = self._ahead.get(partition)
            if ahead is not None:
                ahead.put(row)
                if ahead.fills(1.0) and not ahead.paused:
                    ahead.paused = True
                    self._inbox.pause(partition)

    def proposals(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Proposed]:
        """See Log.proposals; of an own partition what has come by now."""
        ahead = self._ahead.get(partition)
        if ahead is None or start < ahead.proposals_from:
            return super().proposals(partition, start, limit, max_bytes)
        ahead.drop_before(start)
        if ahead.paused and not ahead.fills(0.5):
            ahead.paused = False
            self._inbox.resume(partition)
        return list(bounded(ahead.proposals, limit, max_bytes))

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """See Log.events; of an own partition at least one row, if there is one."""
        ahead = self._ahead.get(partition)
        if ahead is None or limit == 1:
            return super().events(partition, start, limit, max_bytes)
        while ahead.events and ahead.events[0].offset < start:
            ahead.events.popleft()
        if not ahead.events and not self._await_events(partition, start):
            return []
        return list(bounded(ahead.events, limit, max_bytes))

    def _listen(self, partition: int) -> None:
        """What was appended comes back together with the brokers' word on it: to wait for both at
        once is one sleep less. What keeps it from reading is told by the read that follows."""
        if (own := self._ahead.get(partition)) is not None and own.untold is None:
            try:
                self._hear(own, LISTEN_SECONDS)
            except LogError as error:
                own.untold = error

    def _hear(self, own: _Ahead, seconds: float) -> None:
        """Take the records that have come, waiting for them at most so long.

        One tail reads all partitions: what it says of another one is told to that one.
        """
        untold, own.untold = own.untold, None
        if untold is not None:
            raise untold
        try:
            rows = self._truth.poll(seconds)
        except (LogTrimmed, LogForbidden) as error:
            other = own if error.partition is None else self._ahead.get(error.partition)
            if other is own:
                raise
            if other is not None:
                other.untold = error
            return
        for partition, row in rows:
            ahead = self._ahead.get(partition)
            if ahead is not None:
                ahead.events.append(row)

    def _await_events(self, partition: int, start: int) -> bool:
        """Wait for the rows that are there; False if there are none."""
        end = self._ends.get(("events", partition), 1)
        if start >= end and start >= (end := self.end(partition)):
            return False
        ahead = self._ahead[partition]
        until = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < until:
            self._hear(ahead, 0.1)
            while ahead.events and ahead.events[0].offset < start:
                ahead.events.popleft()
            if ahead.events:
                return True
            if self._truth.reached.get(partition, 0) >= end:
                return False
        where = f"{self.address.events}/{partition}"
        what = f"nothing came for {SILENCE_SECONDS:g} s of what is there"
        raise LogUnreachable(where, what, "it goes on by itself once the brokers answer")

    def close(self) -> None:
        """See Log.close."""
        if not self._closed:
            for tail in (self._inbox, self._truth):
                tail.close()
        super().close()
