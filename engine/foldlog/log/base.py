"""What a log is: the protocol every backend keeps, the rows it moves, and the errors it raises.

A log has two halves per partition: `proposals`, the inbox, and `events`, the truth. Both are
append-only and ordered; bytes go in and come out unchanged and are never interpreted here.

Invariants:
- Nothing in this ring decodes a value, compares a key, or knows what a run is.
- Positions and offsets grow; they may have gaps, so nobody computes with them.
- What `propose` and `append` return from is durable as far as the backend promises at all.
- Every failure of the world is a LogError that says where, what, and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

ZERO_HEAD = bytes(32)
"""The head of a partition that has no record yet."""

MAX_PARTITIONS = 1024
"""Most partitions a log may have: each costs two tables, and a reader's turn over all of them."""

Clock = Callable[[], int]
"""Microseconds since the Unix epoch. May step back; whoever needs order makes it monotonic."""


class LogError(Exception):
    """Something about the log went wrong; `where`, `what` and `remedy` say it in parts.

    LogError
     +-- LogUnreachable      cannot be used now, may be later; nothing was written
     |    +-- LogBusy        another process holds it; nothing was written
     |    +-- LogFull        no room left; nothing was written
     |    +-- LogReadOnly    may be read, not written; nothing was written
     |    +-- LogForbidden   this process lacks a right, or was not let in; nothing was written
     +-- LogMissing          there is no log here
     +-- LogExists           there is one already
     +-- LogDamaged          what is there is no log, or its bytes are broken
     |    +-- LogTrimmed     rows that were asked for are not there any more
     +-- LogRefused          what is there is not set up as a log of record must be
     +-- LogTooNew           written in a format this build does not know
     +-- LogClosed           used after close, or in a process forked after it was opened
     +-- HeadMoved           append or exchange found another head; nothing was written
     +-- PositionMoved       exchange found more or fewer proposals; nothing was written

    After any other LogError out of `propose`, `append` or `exchange` it is unknown whether the
    rows were written: read back before writing again.
    """

    partition: int | None = None
    """Which one the error is about, where it is known to be about one only."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(f"{where}: {what}; {remedy}")
        self.where = where
        self.what = what
        self.remedy = remedy


class LogUnreachable(LogError):
    """The log cannot be used at the moment; nothing was written."""


class LogBusy(LogUnreachable):
    """Another process kept the log to itself for too long; nothing was written."""


class LogFull(LogUnreachable):
    """There is no room left; nothing was written, and writing works again once there is room."""


class LogReadOnly(LogUnreachable):
    """The log may be read but not written; nothing was written."""


class LogForbidden(LogUnreachable):
    """Who asks lacks a right, which is named; it works once he has it. Nothing was written."""


class LogMissing(LogError):
    """There is no log at this place."""


class LogExists(LogError):
    """There is a log at this place already, and it was left as it is."""


class LogDamaged(LogError):
    """What is there is not a log of ours, or some of its bytes are broken."""


class LogTrimmed(LogDamaged):
    """Rows that were asked for are not there any more; ``first``, where what is there begins, where
    it is known."""

    first: int | None = None


class LogRefused(LogError):
    """What is there must not be used: it is set up wrongly, or it is not the log it was."""


class LogTooNew(LogError):
    """The log was written in a format that this build does not know."""


class LogClosed(LogError):
    """The log was used after close, or in a child process forked after it was opened."""


class HeadMoved(LogError):
    """The partition's last record has another head than the caller's; nothing was written."""

    def __init__(self, where: str, partition: int, expected: bytes, found: bytes) -> None:
        super().__init__(
            where,
            f"the head of partition {partition} is {found.hex()}, not {expected.hex()}",
            "fold what was appended meanwhile and decide again",
        )
        self.partition = partition
        self.expected = expected
        self.found = found


class PositionMoved(LogError):
    """The next proposal would stand at another position than the caller's; nothing was written."""

    def __init__(self, where: str, partition: int, expected: int, found: int) -> None:
        super().__init__(
            where,
            f"the next proposal of partition {partition} stands at {found}, not {expected}",
            "decide what was proposed meanwhile first",
        )
        self.partition = partition
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class Proposed:
    """One row of `proposals` as read. `appended_at`: when the log took it, microseconds."""

    position: int
    key: bytes
    value: bytes
    appended_at: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as `append` takes it. `head`: the partition's chain after this record."""

    key: bytes
    value: bytes
    sequence: int
    log_time: int
    head: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of `events` as read; all but `offset` is what `append` was given."""

    offset: int
    key: bytes
    value: bytes
    sequence: int
    log_time: int
    head: bytes


class Log(Protocol):
    """A partitioned log. Any thread may call any method; processes that fork open their own.

    A partition outside 0..partitions-1 or a `limit` below 1 is the caller's mistake and asserts.
    """

    @property
    def identity(self) -> str:
        """A random name given at creation, so that a store knows which log it is a fold of."""

    @property
    def partitions(self) -> int:
        """The number of partitions, fixed at creation."""

    @property
    def conditional(self) -> bool:
        """Whether `append` looks at the head. Where it does not, records may be void."""

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """Add (key, value) pairs to the inbox, all or none, and return their positions.

        Durable on return. Not deduplicated: proposing the same bytes twice makes two rows.
        Blocks while another process writes; LogBusy if that takes too long.
        """

    def proposals(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Proposed]:
        """The proposals at positions >= `start`, in order: at most `limit` of them.

        Stops before keys and values add up to more than `max_bytes`, but returns at least one
        row if there is one. Never blocks for a row to come.
        """

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """Add records to the truth, all or none and durable, if the last record's head is `head`.

        `head` is ZERO_HEAD for an empty partition. HeadMoved (nothing written) otherwise, also
        when `entries` is empty.
        """

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """The records at offsets >= `start`, in order, bounded as `proposals` is."""

    def end(self, partition: int) -> int:
        """The first offset of `events` that is not taken yet: every record is below it."""

    def proposals_end(self, partition: int) -> int:
        """The first position of `proposals` that is not taken yet."""

    def close(self) -> None:
        """Let go of everything held. May be called twice; any other call then is LogClosed."""


@runtime_checkable
class ExchangeLog(Log, Protocol):
    """A log that can take proposals and the records that decide them in one step."""

    def exchange(
        self,
        partition: int,
        position: int,
        head: bytes,
        proposals: Sequence[tuple[bytes, bytes]],
        decide: Callable[[list[Proposed]], list[Entry]],
    ) -> list[Proposed]:
        """Add proposals, and the records that `decide` makes of them as they were taken.

        All or none, durable on return, with one fsync where propose and append need two. Returns
        the rows that `decide` was given, positions and times included.

        PositionMoved unless `position` is `proposals_end`: whoever has decided everything below it
        knows that nothing undecided stands before these. HeadMoved as in `append`. Nothing is
        written then, nor when `decide` raises, and what it raises passes through unchanged. It
        may read the log, and sees it as it was before; it must not write to it.
        """


def check_read(partition: int, partitions: int, limit: int) -> None:
    """Assert that a caller's partition and limit make sense."""
    check_partition(partition, partitions)
    assert limit >= 1, f"a limit of {limit} would read nothing"


def check_partition(partition: int, partitions: int) -> None:
    """Assert that a caller's partition exists."""
    assert 0 <= partition < partitions, f"partition {partition} is not in 0..{partitions - 1}"


Row = TypeVar("Row", Proposed, Stored)


def bounded(rows: Iterable[Row], limit: int, max_bytes: int) -> Iterator[Row]:
    """The first rows within `limit` and `max_bytes` (keys and values), the first one always."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row.key) + len(row.value)
        if number == limit or (number > 0 and size > max_bytes):
            return
        yield row
