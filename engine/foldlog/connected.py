"""A process's seat at a log that is elsewhere: it proposes and reads; projectors decide.

Invariants:
- Nothing is decided here, and nothing but proposals is written to the log.
- An outcome is a record that counts. Time-outs are the caller's; an outage is waited out.
- A read is folded to the end of the log as it was when it began.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from foldlog.awaiting import Awaiting, Tail
from foldlog.core.catalogue import RULES, Catalogue
from foldlog.core.proposals import Proposal
from foldlog.errors import (
    EngineForked,
    LogRefused,
    OutcomeUnknown,
    ProjectorStalled,
    Unavailable,
)
from foldlog.following import Folder, Followed
from foldlog.log import base
from foldlog.log.base import Log, LogError, LogForbidden, LogReadOnly
from foldlog.runtime import SECOND, RealRuntime, Runtime
from foldlog.snapshots.kept import Kept, NoSnapshots
from foldlog.store.base import StoreError
from foldlog.views import View
from foldlog.wire.envelope import encode_proposal
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import Record

REST_US = SECOND
"""Between two looks for stores that nobody asked for lately."""

SETTLED_US = 10 * SECOND
"""How long proposals may wait without one of them being decided before that is told."""

PAUSE_US_MIN, PAUSE_US_MAX = 5_000, 100_000
"""Between two looks whether what waits is decided, and two tries in an outage."""


class LogElsewhere(Log, Protocol):
    """A log to which proposals can be sent without waiting for its word."""

    def send(
        self, partition: int, entries: list[tuple[bytes, bytes]], seconds: float
    ) -> Any:  # pragma: no cover
        """Hand proposals over; what is returned has an ``error`` once they failed."""
        ...

    def delivered(self, delivery: Any) -> list[int] | None:  # pragma: no cover
        """Their positions, if they are known by now."""
        ...

    def tail(self) -> Tail:  # pragma: no cover
        """A tail of ``events``."""
        ...

    def owner(self, partition: int) -> str | None:  # pragma: no cover
        """Who decides a partition's proposals, if anybody does."""
        ...

    def outage(self, partition: int) -> str | None:  # pragma: no cover
        """What keeps him from going on, if anything does."""
        ...


@dataclass(slots=True)
class _HandedIn:
    """What somebody waits for: a proposal, and the log's word on it once it is sent."""

    run_id: str
    batch_id: str
    partition: int
    entry: tuple[bytes, bytes]
    timeout: int
    end: int
    sent: Any = None


class Connection:
    """What a connected engine has of its log; the part of a home that it needs (`place.Place`)."""

    def __init__(self, log: LogElsewhere, snapshots: Kept) -> None:
        self.log = log
        self.snapshots = snapshots

    def ring(self) -> None:
        """Nobody of this machine waits for it."""

    def rest(self, microseconds: int) -> None:
        """Only a holder rests, and here nobody is one."""
        raise AssertionError("no holder")


class ConnectedSeat:
    """A seat of who never holds the projection. Any thread may use it; a fork may not."""

    def __init__(
        self,
        log: LogElsewhere,
        folder: Folder,
        rules: Mapping[int, Catalogue] = RULES,
        runtime: Runtime | None = None,
        snapshots: Kept | None = None,
    ) -> None:
        self.place = Connection(log, snapshots or NoSnapshots())
        self.rules = rules
        self.runtime = runtime or RealRuntime()
        self._log = log
        self._awaiting: Awaiting | None = None
        self._followed = [
            Followed(log, folder, number, self.runtime, rules) for number in range(log.partitions)
        ]
        self._making = self.runtime.lock()
        self._pid = os.getpid()
        self._closed = False

    is_holder = False

    @property
    def is_here(self) -> bool:
        """Whether this is the process that took the seat, not a fork of it."""
        return os.getpid() == self._pid

    def take(self) -> bool:
        """Never: projectors hold the projection."""
        return False

    def turn_all(self) -> int:
        """Nothing: projectors decide."""
        return 0

    def owner_of(self, partition: int) -> str | None:
        """Who decides a partition's proposals."""
        with contextlib.suppress(LogError):  # an auditor need not be allowed to ask
            return self._log.owner(partition)
        return None

    def outage_of(self, partition: int) -> str | None:
        """What keeps a partition from going on, as who decides it says."""
        with contextlib.suppress(LogError):
            return self._log.outage(partition)
        return None

    def _check_usable(self) -> None:
        if not self.is_here:
            raise EngineForked(
                f"this engine was opened by process {self._pid}, before the fork of {os.getpid()}; "
                "open one in the process that uses it"
            )
        if self._closed:
            raise Unavailable("this engine is closed: connect again")

    # Proposing

    def begin(self, proposal: Proposal, timeout: int) -> Callable[[], Record]:
        """Hand a proposal over; what is returned waits for its record, durable in the log.

        ``timeout`` in microseconds. OutcomeUnknown when it is over, Unavailable if this process
        may not write to the log. A thread that a signal may interrupt may begin, and no more.
        """
        value = encode_proposal(proposal)
        return self._begun(proposal.run_id, proposal.batch_id, value, timeout)

    def hand_in(self, run_id: str, value: bytes, timeout: int) -> Record:
        """Put bytes that are no plain proposal into the log: a part of an import.

        Returns the last record they led to; errors as of ``begin``.
        """
        return self._begun(run_id, "of an import", value, timeout)()

    def _begun(
        self, run_id: str, batch_id: str, value: bytes, timeout: int
    ) -> Callable[[], Record]:
        self._check_usable()
        partition = partition_of(run_id, self._log.partitions)
        end = self.runtime.monotonic() + timeout
        handed = _HandedIn(run_id, batch_id, partition, (run_id.encode(), value), timeout, end)
        with contextlib.suppress(LogError):  # what it is will be met again, and told
            handed.sent = self._log.send(partition, [handed.entry], 0)
        return partial(self._decided, handed)

    def _decided(self, handed: _HandedIn) -> Record:
        while True:
            why = None
            try:
                if handed.sent is None:
                    seconds = self._left(handed) / SECOND
                    handed.sent = self._log.send(handed.partition, [handed.entry], seconds)
                if (record := self._found(handed)) is not None:
                    return record
            except LogReadOnly as error:
                raise Unavailable(str(error)) from error
            except LogForbidden as error:
                # It is there, or may be; waiting for a right is of no use.
                raise self._unknown(handed, str(error)) from error
            except base.LogRefused as error:
                raise LogRefused(str(error)) from error
            except LogError as error:
                why = str(error)
                if handed.sent is not None and handed.sent.error is not None:
                    # It may be there all the same. Sent again it counts once, under its batch id.
                    handed.sent = None
                self.runtime.sleep(max(0, min(PAUSE_US_MAX, self._left(handed))))
            if self._left(handed) <= 0:
                raise self._unknown(handed, why)

    def _unknown(self, handed: _HandedIn, why: str | None = None) -> OutcomeUnknown:
        waited = f"{handed.timeout / SECOND:g}"
        return OutcomeUnknown(handed.run_id, handed.batch_id, waited, why)

    def _left(self, handed: _HandedIn) -> int:
        return handed.end - self.runtime.monotonic()

    def _found(self, handed: _HandedIn) -> Record | None:
        # Joining takes a while, and so does sending: both at once.
        awaiting = self._waiting()
        awaiting.join(handed.partition, handed.end)
        told = partial(self._log.delivered, handed.sent)
        return awaiting.find(handed.partition, told, handed.end)

    def _waiting(self) -> Awaiting:
        self._making.acquire()
        try:
            if self._awaiting is None:
                self._awaiting = Awaiting(self._log, self._log.tail(), self.runtime)
            return self._awaiting
        finally:
            self._making.release()

    # Reading

    @contextlib.contextmanager
    def reading(self, run_id: str) -> Iterator[View]:
        """A view of a run's partition, folded to the end of the log."""
        with self.reading_partition(partition_of(run_id, self._log.partitions)) as view:
            yield view

    @contextlib.contextmanager
    def reading_partition(self, number: int) -> Iterator[View]:
        """A view of one partition, folded to the end of the log."""
        self._check_usable()
        with self._followed[number].reading() as view:
            yield view

    def check_holder(self, since: int) -> None:
        """Nothing is known of those who decide but what they decide."""

    def settle(self, run_id: str | None = None) -> int:
        """Wait until everything that waits now is decided, at a run's partition or at all.

        ProjectorStalled if nothing moves for 10 s.
        """
        self._check_usable()
        log = self._log
        every = range(log.partitions)
        for number in every if run_id is None else [partition_of(run_id, log.partitions)]:
            self._await_decided(number, log.proposals_end(number))
        return 0

    def _await_decided(self, number: int, end: int) -> None:
        moved, reached, pause = self.runtime.monotonic(), 0, PAUSE_US_MIN
        while True:
            with self.reading_partition(number) as view:
                here = view.meta().position
            if here >= end or self._log.proposals(number, here, 1, 1) == []:
                return
            now = self.runtime.monotonic()
            if here > reached:
                moved, reached = now, here
            if now - moved >= SETTLED_US:
                raise ProjectorStalled(
                    f"nothing of what waits in partition {number} was decided for "
                    f"{SETTLED_US // SECOND} s: is a projector running? foldlog project"
                )
            self.runtime.sleep(pause)
            pause = min(pause * 2, PAUSE_US_MAX)

    def tick(self) -> int:
        """Let go of stores that nobody asked for; returns how long to rest, in microseconds."""
        for followed in self._followed:
            followed.rest()
        return REST_US

    def close(self) -> None:
        """Leave; what was proposed and not decided will be."""
        if self._closed or not self.is_here:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._log.close)
            for followed in self._followed:
                stack.callback(followed.close)
            if self._awaiting is not None:
                with contextlib.suppress(LogError, StoreError):
                    self._awaiting.close()
