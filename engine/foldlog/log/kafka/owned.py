"""The log as a projector uses it: some partitions are its own, and are read ahead of its turns.

Invariants:
- Whether a partition is this process's own decides nothing: who only believes so is harmless.
- What comes is waited for, not asked for: a turn costs no question to the brokers.
- What was written is read back out of memory as far as the brokers confirmed it right behind what
  was read before: then nobody wrote in between. At any gap the topic is read.
- What is read ahead is bounded; a partition that has too much waiting is paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

from foldlog.log.base import Entry, Proposed, Stored, bounded
from foldlog.log.kafka.address import Address, Known
from foldlog.log.kafka.log import KafkaLog
from foldlog.log.kafka.rows import proposed

AHEAD_ROWS_MAX, AHEAD_BYTES_MAX = 4_000, 32 * 1024 * 1024
"""What waits in memory of one partition before it is paused; it goes on at half of that."""


@dataclass(slots=True)
class _Ahead:
    """What was read ahead of one partition."""

    proposals_from: int
    proposals: deque[Proposed] = field(default_factory=deque)
    proposals_bytes: int = 0
    written: list[Stored] = field(default_factory=list)
    """What the last append wrote, each row where the brokers said that it is."""
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

    def own(self, partition: int, position: int) -> None:
        """Read a partition ahead, from where its next turn begins."""
        self.disown(partition)
        self._inbox.follow(partition, position)
        self._ahead[partition] = _Ahead(position)

    def disown(self, partition: int) -> None:
        """Read it ahead no more, and forget what was."""
        if self._ahead.pop(partition, None) is not None:
            self._inbox.drop(partition)

    def wait(self, seconds: float) -> None:
        """Wait until proposals come, or that long. LogTrimmed says of which partition."""
        for partition, row in self._inbox.poll(seconds):
            ahead = self._ahead.get(partition)
            if ahead is not None:
                ahead.put(row)
                if ahead.fills(1.0) and not ahead.paused:
                    ahead.paused = True
                    self._inbox.pause(partition)

    def waits(self, partition: int, position: int) -> bool:
        """Whether a proposal of an own partition at this position or behind it has come by now."""
        ahead = self._ahead.get(partition)
        if ahead is None or not ahead.proposals:
            return False
        return ahead.proposals[-1].position >= position

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

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """See KafkaLog.append."""
        own = self._ahead.get(partition)
        if own is not None:
            own.written = []
        positions = self._written(partition, entries)
        if own is not None:
            own.written = [
                Stored(position, each.key, each.value, each.sequence, each.log_time, each.head)
                for position, each in zip(positions, entries, strict=True)
            ]

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """See Log.events; what follows ``start`` without a gap in the last append is not asked
        for."""
        own = self._ahead.get(partition)
        rows = [] if own is None else [row for row in own.written if row.offset >= start]
        places = count(start)
        ours = takewhile(lambda row: row.offset == next(places), rows)
        return list(bounded(ours, limit, max_bytes)) or super().events(
            partition, start, limit, max_bytes
        )

    def close(self) -> None:
        """See Log.close."""
        if not self._closed:
            self._inbox.close()
        super().close()
