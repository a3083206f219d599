"""Waiting for the outcome of a proposal in a log whose records may be void.

Invariants:
- A record is taken for an outcome only if it counts: it extends the head that was found as
  ``joining`` says, or was followed from there.
- Any thread may wait. One of them reads for all, so that no thread runs while nobody waits.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Protocol

from foldlog.errors import Damaged
from foldlog.fold import READ_BYTES_MAX, TURN_RECORDS_MAX
from foldlog.joining import WINDOW_RECORDS, Link, counted_in_view
from foldlog.log.base import Log, LogTrimmed, Stored
from foldlog.runtime import SECOND, Runtime
from foldlog.wire.avro import WireError
from foldlog.wire.chain import ZERO, partition_hash
from foldlog.wire.records import Record, decode_record

RECENT_MAX = 4 * TURN_RECORDS_MAX
RECENT_BYTES_MAX = 64 * 1024 * 1024
"""Counted records kept for those whose proposal's position is not known yet."""

POLL_US = SECOND // 20
"""How long one thread reads for all before another may."""

UNTOLD_US = SECOND // 200
"""The same while the reader does not know yet where its own proposal stands."""

IDLE_US = 10 * SECOND
"""A partition that nobody asked about for so long is joined anew: there may be much to pass over,
and what is read ahead is bounded."""


class Tail(Protocol):
    """Waits for what comes in some partitions."""

    def follow(self, partition: int, start: int) -> None:
        """Give the rows of a partition from a position on."""

    def drop(self, partition: int) -> None:
        """Give no more of a partition."""

    def poll(self, seconds: float) -> list[tuple[int, Stored]]:
        """What has come, waiting at most so long."""

    def close(self) -> None:
        """Let go."""


@dataclass(slots=True)
class _Joined:
    """A partition that is followed: its head, its last counted records by proposal's position."""

    head: bytes
    used_at: int
    recent: OrderedDict[int, Record] = field(default_factory=OrderedDict)
    recent_bytes: int = 0

    def take(self, record: Record, head: bytes, size: int) -> None:
        """Take the next counted record."""
        self.head = head
        if not record.ends_proposal:
            return
        self.recent[record.position] = record
        self.recent_bytes += size
        while len(self.recent) > RECENT_MAX or self.recent_bytes > RECENT_BYTES_MAX:
            _, dropped = self.recent.popitem(last=False)
            self.recent_bytes -= len(dropped.proposal or b"")


class Awaiting:
    """The counted records of the partitions in which somebody waits."""

    def __init__(self, log: Log, tail: Tail, runtime: Runtime) -> None:
        self._log, self._tail, self._runtime = log, tail, runtime
        self._joined: dict[int, _Joined] = {}
        self._free = Condition()
        self._reading = False

    def join(self, partition: int) -> None:
        """Follow a partition from now on, and what is decided there already; LogError."""
        self._become_reader()
        try:
            joined = self._joined.get(partition)
            now = self._runtime.monotonic()
            if joined is None or now - joined.used_at >= IDLE_US:
                self._leave(partition)
                self._joined[partition] = self._join(partition, now)
            else:
                joined.used_at = now
        finally:
            self._let_others_read()

    def find(
        self, partition: int, positions: Callable[[], list[int] | None], end: int
    ) -> Record | None:
        """The counted record of a proposal; None when the runtime's clock reaches ``end``.

        ``positions`` tells where it stands in the log, once that is known: its record comes later,
        so there is no need to wait for that first.
        """
        while True:
            with self._free:
                while True:
                    left, known = end - self._runtime.monotonic(), positions()
                    if (record := self._recent(partition, known)) is not None or left <= 0:
                        return record
                    if not self._reading:
                        break
                    self._free.wait(left / SECOND)
                self._reading = True
            try:
                self._read(min(left, UNTOLD_US if known is None else POLL_US))
            finally:
                self._let_others_read()

    def _recent(self, partition: int, positions: list[int] | None) -> Record | None:
        joined = self._joined.get(partition)
        if joined is None:
            return None
        joined.used_at = self._runtime.monotonic()
        return None if positions is None else joined.recent.get(positions[-1])

    def _become_reader(self) -> None:
        with self._free:
            self._free.wait_for(lambda: not self._reading)
            self._reading = True

    def _let_others_read(self) -> None:
        with self._free:
            self._reading = False
            self._free.notify_all()

    def _read(self, microseconds: int) -> None:
        try:
            rows = self._tail.poll(microseconds / SECOND)
        except LogTrimmed:
            # What was to be read next is gone: begin anew with what is there.
            for partition in list(self._joined):
                self._leave(partition)
            raise
        for partition, stored in rows:
            joined = self._joined.get(partition)
            if joined is not None:
                record, link = self._linked(partition, stored)
                if link.previous == joined.head:
                    joined.take(record, link.head, len(stored.value))

    def _join(self, partition: int, now: int) -> _Joined:
        end = self._log.end(partition)
        joined = _Joined(ZERO, now)
        for record, head, size in self._counted(partition, end):
            joined.take(record, head, size)
        self._tail.follow(partition, end)
        return joined

    def _counted(self, partition: int, end: int) -> Iterator[tuple[Record, bytes, int]]:
        """The counted records before ``end`` that are in view, from the first certain one."""
        window = WINDOW_RECORDS
        while True:
            start = max(1, end - window)
            rows = self._rows(partition, start, end)
            linked = [self._linked(partition, stored) for stored in rows]
            places = counted_in_view([link for _, link in linked], from_the_start=start == 1)
            if places is not None:
                for place in places:
                    record, link = linked[place]
                    yield record, link.head, len(rows[place].value)
                return
            window *= 2

    def _rows(self, partition: int, start: int, end: int) -> Sequence[Stored]:
        rows: list[Stored] = []
        while more := self._log.events(partition, start, TURN_RECORDS_MAX, READ_BYTES_MAX):
            rows += [stored for stored in more if stored.offset < end]
            start = more[-1].offset + 1
            if start >= end:
                break
        return rows

    def _linked(self, partition: int, stored: Stored) -> tuple[Record, Link]:
        try:
            record = decode_record(stored.value)
        except WireError as error:
            where = (partition, None, stored.sequence)
            raise Damaged(*where, "record", "a decided record", str(error)) from None
        head = partition_hash(record.previous, record.chain, stored.value)
        return record, Link(record.previous, head)

    def _leave(self, partition: int) -> None:
        if self._joined.pop(partition, None) is not None:
            self._tail.drop(partition)

    def close(self) -> None:
        """Let go of the tail."""
        self._become_reader()
        try:
            self._joined.clear()
            self._tail.close()
        finally:
            self._let_others_read()
