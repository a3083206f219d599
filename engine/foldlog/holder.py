"""Who holds the projection: all partitions of a log, turned by whoever has a proposal waiting.

Proposals of this process that wait together are taken and decided in one transaction of the log,
one fsync for all of them; those of other processes are found in the log and decided by a turn.

Invariants:
- One thread at a time turns a partition; proposals handed in meanwhile go with the next turn.
- A partition that found damage stays halted, and says so to everyone who asks.
- An outage (log or store) is waited out and retried; nothing is skipped because of it.
- A proposal is handed in again only under its own batch id, and only after the log was read back.
"""

import contextlib
import os
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from foldlog.core.catalogue import RULES, Catalogue
from foldlog.core.proposals import Proposal
from foldlog.core.state import StateUnreadable
from foldlog.errors import Damaged, PluginMissing
from foldlog.fold import TURN_RECORDS_MAX
from foldlog.log.base import Clock, ExchangeLog, Log, LogError, LogUnreachable
from foldlog.runtime import Lock, RealRuntime, Runtime
from foldlog.store.base import Store, StoreDamaged, StoreError, StoreFailed, StoreFull
from foldlog.store.memory import MemoryStore
from foldlog.timekeeper import Timekeeper
from foldlog.turn import TURN_BYTES_MAX, Partition
from foldlog.views import View, record_of_proposal
from foldlog.wire.envelope import encode_proposal
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import Record

RECENT_MAX = 4 * TURN_RECORDS_MAX
"""Records remembered by their proposal's position, for those who wait for them."""

COMPANY_US = 200_000
"""How long others who handed in are taken to be there still."""

OUTAGE_PAUSE_US = 50_000

Answer = TypeVar("Answer")

OUTAGES = (LogError, StoreError, StateUnreadable)
"""Storage that fails: nothing was lost, the next turn reads back what is there."""

UNUSABLE = (StoreFailed, StoreFull, StoreDamaged)
"""A store that is of no use until it is opened anew."""


def decider_name() -> str:
    """Who decides, for the record: host, process and when it began (seconds since 1970)."""
    return f"{socket.gethostname()}:{os.getpid()}:{int(time.time())}"


@dataclass(slots=True, eq=False)
class Ticket:
    """A proposal of this process on its way: its bytes, and its record once it is decided."""

    proposal: Proposal
    value: bytes
    record: Record | None = None
    tried: bool = False
    left: bool = False

    @property
    def entry(self) -> tuple[bytes, bytes]:
        """The proposal as a log takes it."""
        return self.proposal.run_id.encode(), self.value


@dataclass(slots=True)
class Held:
    """One partition, its lock, its timekeeper, who waits, and the records of its last turns."""

    partition: Partition
    lock: Lock
    timekeeper: Timekeeper = field(default_factory=Timekeeper)
    waiting: deque[Ticket] = field(default_factory=deque)
    recent: OrderedDict[int, Record] = field(default_factory=OrderedDict)
    halted: Damaged | None = None
    is_empty: bool = False
    """Whether it is halted without its store, so that nothing of it can be read."""

    def remember(self, record: Record) -> None:
        """Keep a counted record for whoever waits for it."""
        if not record.ends_proposal:
            return
        self.recent[record.position] = record
        while len(self.recent) > RECENT_MAX:
            self.recent.popitem(last=False)

    def withdraw(self, ticket: Ticket) -> bool:
        """Its owner waits no more; False if another thread has it in hand and may decide it yet."""
        ticket.left = True
        try:
            self.waiting.remove(ticket)
        except ValueError:
            return False
        return True

    def take(self) -> list[Ticket]:
        """The tickets of one turn, taken off the waiting ones."""
        tickets: list[Ticket] = []
        size = 0
        while self.waiting and len(tickets) < TURN_RECORDS_MAX and size < TURN_BYTES_MAX:
            tickets.append(self.waiting.popleft())
            size += len(tickets[-1].value)
        return tickets


class Holder:
    """Turns every partition of a log on stores that it owns and closes.

    ``clock`` gives microseconds since the Unix epoch. Opening folds each partition's tail. A store
    that is no fold of this log, or what is wrong with it in its place, halts its partition; Damaged
    if no other one is there.
    """

    def __init__(
        self,
        log: Log,
        stores: Sequence[Store | Damaged],
        clock: Clock,
        *,
        timekeeper: bool = True,
        rules: Mapping[int, Catalogue] = RULES,
        runtime: Runtime | None = None,
        decider: str | None = None,
        on_recovering: Callable[[int, int], None] = lambda partition, records: None,
        on_recovered: Callable[[int, int], None] = lambda partition, records: None,
        on_turned: Callable[[], None] = lambda: None,
    ) -> None:
        self.log = log
        self.clock = clock
        self.timekeeper = timekeeper
        self.runtime = runtime or RealRuntime()
        self.on_turned = on_turned
        # Asked once: to compare an object with a protocol takes longer than to decide a proposal.
        self._exchanges = log.conditional and isinstance(log, ExchangeLog)
        self.rules = rules
        self._company_until = 0
        name = decider_name() if decider is None else decider
        self.held = [self._hold(store, number, name) for number, store in enumerate(stores)]
        for held in self.held:
            held.partition.folded = held.remember
            number = held.partition.number
            on_recovered(number, self._recovered(held, partial(on_recovering, number)))
        if all(held.halted and not isinstance(held.halted, PluginMissing) for held in self.held):
            raise self.halted[0]

    def _hold(self, store: Store | Damaged, number: int, name: str) -> Held:
        """A partition on its store; halted, on nothing, where that cannot be gone on from."""
        try:
            if isinstance(store, Damaged):
                raise store
            partition = Partition(self.log, store, number, name, self.rules)
            partition.check()
        except Damaged as error:
            if not isinstance(store, Damaged):
                store.close()
            nothing = Partition(self.log, MemoryStore(), number, name, self.rules)
            return Held(nothing, self.runtime.lock(), halted=error, is_empty=True)
        return Held(partition, self.runtime.lock())

    def _recovered(self, held: Held, tell: Callable[[int], None]) -> int:
        """Fold a partition's tail. What is wrong with it, or a plug-in that is not here, halts it
        and no other."""
        count = 0
        try:
            if held.halted is None:
                count = held.partition.catch_up(tell=tell)
                held.partition.check_plugins()
        except Damaged as error:
            held.halted = error
        return count

    # Proposing

    def propose(self, proposal: Proposal, end: int) -> Record | None:
        """Hand a proposal in and return its record, durable and folded.

        None when the runtime's clock reaches ``end``: it may still be decided. Malformed if it
        is too large, Damaged if the partition is halted, LogError if the log did not take it
        until then: nothing was handed in. UNUSABLE if a store takes no more: open it anew.
        """
        ticket = Ticket(proposal, encode_proposal(proposal))
        held = self.held[partition_of(proposal.run_id, self.log.partitions)]
        held.waiting.append(ticket)
        try:
            self._work(held, lambda: self._serve(held), lambda: ticket.record is not None, end)
        finally:
            mine = held.withdraw(ticket)
        if ticket.record is None and mine and not ticket.tried:
            # Nobody took it in time: put it into the log, for a later turn to decide.
            self.log.propose(held.partition.number, [ticket.entry])
        return ticket.record

    def await_position(self, number: int, position: int, end: int) -> Record | None:
        """The record of a proposal that is in the log already.

        None when ``end`` comes first, or if it was decided too long ago to be remembered.
        """
        held = self.held[number]

        def done() -> bool:
            # Decided before this holder began, it is never seen here: the log has it.
            return position in held.recent or self.has_folded(number, position)

        self._work(held, lambda: self._turn(held), done, end)
        return held.recent.get(position)

    def has_folded(self, number: int, position: int) -> bool:
        """Whether the record of this proposal is in the store."""
        return position < self.held[number].partition.meta.position

    def _work(
        self, held: Held, work: Callable[[], object], done: Callable[[], bool], end: int
    ) -> None:
        """Work under the partition's lock until done or the time is up; wait out outages."""
        while not done():
            left = end - self.runtime.monotonic()
            if left <= 0 or not held.lock.acquire(timeout=left / 1_000_000):
                return
            try:
                if not done():
                    work()
            except (Damaged, *UNUSABLE):
                raise
            except OUTAGES:
                self.runtime.sleep(min(OUTAGE_PAUSE_US, left))
            finally:
                held.lock.release()

    def _serve(self, held: Held) -> None:
        """Take the tickets that wait and decide them; if that fails they wait again."""
        tickets = held.take()
        tried = False
        try:
            self._settle_tried(held, tickets)
            tried = True
            fresh = [ticket for ticket in tickets if ticket.record is None]
            positions = self._submit(held, fresh) if fresh else []
            for ticket, position in zip(fresh, positions, strict=True):
                ticket.record = held.recent[position]
        except LogUnreachable:
            tried = False  # nothing was written
            raise
        finally:
            undecided = [ticket for ticket in tickets if ticket.record is None]
            for ticket in undecided:
                ticket.tried = ticket.tried or tried
            held.waiting.extendleft(t for t in reversed(undecided) if not t.left)

    def _settle_tried(self, held: Held, tickets: list[Ticket]) -> None:
        """After a failure it is unknown what the log took: look before handing in again."""
        if not any(ticket.tried for ticket in tickets):
            return
        held.partition.catch_up()
        end = self.log.proposals_end(held.partition.number)
        while held.partition.meta.position < end and self._turn(held) > 0:
            continue
        view = View(self.log, held.partition.store, held.partition.number)
        for ticket in tickets:
            if ticket.tried:
                ticket.record = record_of_proposal(view, ticket.proposal)

    def _submit(self, held: Held, tickets: Sequence[Ticket]) -> list[int]:
        """Put proposals into the log and have them decided; returns their positions.

        LogUnreachable means that they are not in the log, unless a ticket says it was tried.
        """
        partition, entries = held.partition, [ticket.entry for ticket in tickets]
        if held.halted is not None:
            raise held.halted  # before anything is handed in
        if self._is_alone(held):
            self._propose_due(held)
            positions = self._guard(held, lambda: partition.exchange(entries))
            if positions is not None:
                self.on_turned()
                return positions
        # Others hand in too: in one row with theirs, nobody is served much sooner or later.
        positions = self.log.propose(partition.number, entries)
        for ticket in tickets:
            ticket.tried = True
        self._turn_others(held)
        while positions[-1] not in held.recent:
            if self._turn(held) > len(entries):
                self._has_company()
        return positions

    def _is_alone(self, held: Held) -> bool:
        """Whether the log can decide within a proposal's own transaction, and nobody minds."""
        if not self._exchanges:
            return False
        if self.runtime.monotonic() < self._company_until:
            return False
        return self.log.proposals_end(held.partition.number) <= held.partition.meta.position

    def _turn_others(self, held: Held) -> None:
        """Turn the partitions at which nobody is working; what is wrong with one is its own."""
        for other in self.held:
            if other is not held and other.lock.acquire(blocking=False):
                try:
                    with contextlib.suppress(Damaged, *OUTAGES):
                        self._turn(other)
                finally:
                    other.lock.release()

    def _has_company(self) -> None:
        self._company_until = self.runtime.monotonic() + COMPANY_US

    # Reading

    @property
    def halted(self) -> list[Damaged]:
        """Why partitions are halted, as far as any is."""
        return [held.halted for held in self.held if held.halted is not None]

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[View]:
        """A view of one partition as of one moment.

        PluginMissing where that moment is long past, since what came then cannot be folded here;
        Damaged where the partition is halted and has no store that could be shown.
        """
        partition, halted = self.held[number].partition, self.held[number].halted
        if halted is not None and self.held[number].is_empty:
            raise halted
        if isinstance(halted, PluginMissing) and self.log.end(number) > partition.meta.offset:
            raise halted
        snapshot = partition.store.snapshot()
        try:
            yield View(self.log, snapshot, number, self.rules)
        finally:
            snapshot.close()

    # Turning

    def turn_all(self) -> int:
        """Turn every partition until what waits now is decided; returns how many records.

        What others hand in meanwhile is for the next call, or this one might never return.
        Damaged once all partitions had their turn, if one of them is halted.
        """
        count, halted = 0, None
        for held in self.held:
            try:
                count += self._turn_some(held)
            except Damaged as error:
                halted = halted or error
        if halted is not None:
            raise halted
        return count

    def _turn_some(self, held: Held) -> int:
        count, beyond, end = 0, 0, self.log.proposals_end(held.partition.number)
        while True:
            held.lock.acquire()
            try:
                more = self._turn(held)
                beyond += held.partition.meta.position >= end
            finally:
                held.lock.release()
            if more:
                self._has_company()
            count += more
            # One turn beyond, for what the timekeeper proposed in the last. And who waits here with
            # a proposal of his own turns too, if he only gets the lock.
            if more == 0 or beyond > 1 or held.waiting:
                return count

    def _turn(self, held: Held) -> int:
        self._propose_due(held)
        count = self._guard(held, held.partition.turn)
        if count:
            self.on_turned()
        return count

    def _guard(self, held: Held, work: Callable[[], Answer]) -> Answer:
        """Do something with a partition that is not halted; damage halts it."""
        if held.halted is not None:
            raise held.halted
        try:
            return work()
        except Damaged as error:
            held.halted = error
            raise

    def _propose_due(self, held: Held) -> None:
        if not self.timekeeper or held.halted is not None:
            return
        partition = held.partition
        due = held.timekeeper.due(partition.store, self.clock())
        entries = [(proposal.run_id.encode(), encode_proposal(proposal)) for proposal in due]
        if entries:
            self.log.propose(partition.number, entries)

    def close(self) -> None:
        """Close the stores; what was handed in and not decided waits for the next holder."""
        with contextlib.ExitStack() as stack:  # each is closed, whatever another one says
            for held in self.held:
                stack.callback(held.partition.store.close)
