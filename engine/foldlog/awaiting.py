"""Waiting for the outcome of a proposal in a log whose records may be void.

Invariants:
- A record is taken for an outcome only if it counts: it extends the head that was found as
  ``joining`` says, or was followed from there.
- Any thread may wait. One of them reads for all, so that no thread runs while nobody waits.
- A head is only good for rows without a gap: a partition of which rows may be lost is left, and
  what is wrong with one costs the others nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Protocol

from foldlog.errors import Damaged
from foldlog.fold import READ_BYTES_MAX, TURN_RECORDS_MAX
from foldlog.joining import WINDOW_RECORDS, Link, counted_in_view
from foldlog.log.base import Log, LogError, LogForbidden, LogTrimmed, Stored
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
"""A partition that nobody asked about for so long is left, and joined anew when somebody does:
what comes there need not be read, and what is read ahead is bounded."""


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
    recent: OrderedDict[int, tuple[Record, int]] = field(default_factory=OrderedDict)
    recent_bytes: int = 0

    def take(self, record: Record, head: bytes, size: int) -> None:
        """Take the next counted record."""
        self.head = head
        if not record.ends_proposal:
            return
        self.recent[record.position] = record, size
        self.recent_bytes += size
        while len(self.recent) > RECENT_MAX or self.recent_bytes > RECENT_BYTES_MAX:
            _, (_, freed) = self.recent.popitem(last=False)
            self.recent_bytes -= freed

    def at(self, position: int) -> Record | None:
        """The record of the proposal at a position, if it is kept."""
        record, _ = self.recent.get(position, (None, 0))
        return record


class Awaiting:
    """The counted records of the partitions in which somebody waits."""

    def __init__(self, log: Log, tail: Tail, runtime: Runtime) -> None:
        self._log, self._tail, self._runtime = log, tail, runtime
        self._joined: dict[int, _Joined] = {}
        self._failed: dict[int, Damaged | LogError] = {}  # why some were left, until it is told
        self._free = Condition()
        self._reading = False

    def join(self, partition: int, end: int) -> None:
        """Follow a partition from now on, and what is decided there already; LogError.

        Where others read until the runtime's clock reaches ``end``, nothing is done.
        """
        if not self._become_reader(end):
            return
        try:
            self._leave_idle()
            if partition not in self._joined:
                self._failed.pop(partition, None)
                self._joined[partition] = self._join(partition)
        finally:
            self._let_others_read()

    def find(
        self, partition: int, positions: Callable[[], list[int] | None], end: int
    ) -> Record | None:
        """The counted record of a proposal; None when the runtime's clock reaches ``end``, or once
        the partition is not followed: it has to be joined anew.

        ``positions`` tells where it stands in the log, once that is known: its record comes later,
        so there is no need to wait for that first. What ends the following of the partition is
        raised once: Damaged, LogError.
        """
        while True:
            with self._free:
                while True:
                    left, known = end - self._runtime.monotonic(), positions()
                    joined = self._joined.get(partition)
                    if joined is None:
                        if (failed := self._failed.pop(partition, None)) is not None:
                            raise failed
                        return None
                    joined.used_at = self._runtime.monotonic()
                    record = None if known is None else joined.at(known[-1])
                    if record is not None or left <= 0:
                        return record
                    if not self._reading:
                        break
                    self._free.wait(left / SECOND)
                self._reading = True
            try:
                self._read(min(left, UNTOLD_US if known is None else POLL_US))
            finally:
                self._let_others_read()

    def _become_reader(self, end: int | None = None) -> bool:
        """Wait until nobody else reads, at most until ``end``; whether that came."""
        with self._free:
            left = None if end is None else max(0, end - self._runtime.monotonic()) / SECOND
            if not self._free.wait_for(lambda: not self._reading, left):
                return False
            self._reading = True
            return True

    def _let_others_read(self) -> None:
        with self._free:
            self._reading = False
            self._free.notify_all()

    def _read(self, microseconds: int) -> None:
        self._leave_idle()
        try:
            for partition, stored in self._tail.poll(microseconds / SECOND):
                self._take(partition, stored)
        except (LogTrimmed, LogForbidden) as error:
            if error.partition is None:
                self._leave_all()
                raise
            self._fail(error.partition, error)
        except BaseException:
            self._leave_all()
            raise

    def _take(self, partition: int, stored: Stored) -> None:
        joined = self._joined.get(partition)
        if joined is None:
            return
        try:
            record, link = self._linked(partition, stored)
        except Damaged as error:
            self._fail(partition, error)
            return
        if link.previous == joined.head:
            joined.take(record, link.head, len(stored.value))

    def _join(self, partition: int) -> _Joined:
        end = self._log.end(partition)
        joined = _Joined(ZERO, 0)
        for record, head, size in self._counted(partition, end):
            joined.take(record, head, size)
        self._tail.follow(partition, end)
        joined.used_at = self._runtime.monotonic()  # asking may have taken long
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

    def _fail(self, partition: int, error: Damaged | LogError) -> None:
        """Leave a partition; whoever waits there is told why."""
        if partition in self._joined:
            self._failed[partition] = error
            self._leave(partition)

    def _leave_all(self) -> None:
        """Rows may be lost, and it is not known whose."""
        for partition in list(self._joined):
            self._leave(partition)

    def _leave_idle(self) -> None:
        now = self._runtime.monotonic()
        for partition, joined in list(self._joined.items()):
            if now - joined.used_at >= IDLE_US:
                self._leave(partition)

    def _leave(self, partition: int) -> None:
        del self._joined[partition]
        self._tail.drop(partition)

    def close(self) -> None:
        """Let go of the tail."""
        self._become_reader()
        try:
            self._joined.clear()
            self._tail.close()
        finally:
            self._let_others_read()
