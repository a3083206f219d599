"""A process's seat at a home: holder or guest, changing over whenever it must.

The holder turns the log, in its callers' threads and at each ``tick``. Guests append proposals,
read the outcome out of the log, and read the projection beside the holder. A guest takes the seat
of a holder that ended; a worker that holds it gives it up to a daemon that starts.

Invariants:
- Who sits where is convenience: two holders would be harmless, since append is conditional.
- No wait is silent: a holder that makes no turn for 10 s is named with its pid.
- The role changes only while no thread is inside it.
"""

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from foldlog.core.catalogue import RULES, Catalogue
from foldlog.core.proposals import Proposal
from foldlog.errors import Damaged, EngineForked, OutcomeUnknown, ProjectorStalled, Unavailable
from foldlog.guest import Guest, HandedIn
from foldlog.holder import OUTAGE_PAUSE_US, OUTAGES, UNUSABLE, Holder
from foldlog.inside import Inside
from foldlog.log.base import Clock, LogError, LogUnreachable
from foldlog.place import Place, halted_phase, is_halted
from foldlog.runtime import SECOND, RealRuntime, Runtime
from foldlog.store.base import StoreDamaged, StoreError
from foldlog.views import View
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import Record

STALLED_US = 10 * SECOND
"""A holder that makes no turn for so long while somebody waits is stalled."""

NOTE_EVERY_US = SECOND // 2
"""How often a busy holder writes down that it turned."""

PAUSE_US_MIN, PAUSE_US_MAX = 500, 10_000
"""Between two looks for an outcome; the first ones are short."""

CHANGE_US = 200_000
"""How long a change of roles waits, with new calls behind it, for those that are inside."""

CLOSE_US = 5 * SECOND
"""How long leaving waits for other threads' calls to end."""

LISTEN_US = 100_000
"""How long a holder rests at most: deadlines pass without a ring."""

GUEST_REST_US = 500_000
"""How often an idle guest looks whether the holder is still there."""

logger = logging.getLogger("foldlog")


class Seat:
    """This process's place at a home. Any thread may use it; a fork may not.

    ``daemon``: never gives the projection up while it runs.
    """

    def __init__(
        self,
        place: Place,
        clock: Clock,
        *,
        daemon: bool = False,
        timekeeper: bool = True,
        rules: Mapping[int, Catalogue] = RULES,
        runtime: Runtime | None = None,
        decider: str | None = None,
    ) -> None:
        self.place = place
        self.clock = clock
        self.daemon = daemon
        self.runtime = runtime or RealRuntime()
        self._timekeeper = timekeeper
        self.rules = rules
        self._decider = decider
        self._holder: Holder | None = None
        self._guest = Guest(place.log, place.follower, self.runtime, rules)
        self._seen: dict[int, int] = {}
        self._changing = self.runtime.lock()
        self._deciding = self.runtime.lock()
        self._inside: set[weakref.ref[Inside]] = set()
        self._noted_at = -NOTE_EVERY_US
        self._yields_at = 0
        self._folded = 0
        self._told = ""
        self._halted: list[Damaged] = []
        self._pid = os.getpid()
        self._closed = False

    @property
    def is_holder(self) -> bool:
        """Whether this process holds the projection."""
        return self._holder is not None

    @property
    def is_here(self) -> bool:
        """Whether this is the process that took the seat, not a fork of it."""
        return os.getpid() == self._pid

    def owner_of(self, partition: int) -> str | None:
        """Who turns a partition (here one process turns all), as ``ROLE:PID``."""
        if self._holder is not None:
            return f"{'daemon' if self.daemon else 'worker'}:{self._pid}"
        note = self.place.holder()
        return None if note is None else f"{note.role}:{note.pid}"

    def outage_of(self, partition: int) -> str | None:
        """What keeps a partition from going on: here whoever asks for an outcome is told."""
        return None

    # Roles

    def take(self) -> bool:
        """Become the holder if nobody is; whether this process holds the projection now.

        Folds the tail of the log first. Damaged or Unavailable if that cannot be; then the seat
        is free again. False too while another thread of this process is about to change roles,
        or reads for long.
        """
        if self._holder is not None:
            return True
        if not self._deciding.acquire(blocking=False):
            return False
        try:
            return self.is_holder or self._take()
        finally:
            self._deciding.release()

    def _take(self) -> bool:
        try:
            return self._take_once()
        except StoreDamaged:
            return self._take_once()  # letting go put the broken store aside: it is recovered

    def _take_once(self) -> bool:
        # The right to it comes first: who cannot have it disturbs no other thread by asking.
        if self._closed or (not self.daemon and self.place.daemon_waits()):
            return False
        if not self.place.try_hold():
            return False
        try:
            with self._change(CHANGE_US) as alone:
                if alone:
                    self._become_holder()
        finally:
            if self._holder is None:
                self.place.let_go()
        return self._holder is not None

    def _become_holder(self) -> None:
        self._folded, self._halted = 0, []
        self._write_note("recovering")
        self._guest.close()
        stores = self.place.stores()
        try:
            self._holder = Holder(
                self.place.log,
                stores,
                self.clock,
                timekeeper=self._timekeeper,
                rules=self.rules,
                runtime=self.runtime,
                decider=self._decider,
                on_recovering=self._recovering,
                on_recovered=self._recovered,
                on_turned=self._turned,
            )
            self.place.listen()
        except BaseException:
            self._holder = None
            with contextlib.ExitStack() as stack:
                for store in stores:
                    if not isinstance(store, Damaged):
                        stack.callback(store.close)
            raise
        self._write_note("turning")
        self._tell_halted()
        facts = {"event": "recovered", "records": self._folded}
        logger.info("recovered %d records", self._folded, extra=facts)
        logger.info("holds the projection", extra={"event": "took_over"})

    def _recovering(self, partition: int, records: int) -> None:
        if self.runtime.monotonic() - self._noted_at >= NOTE_EVERY_US:
            self._write_note("recovering")
            self.place.recovering(partition, records)

    def _recovered(self, partition: int, records: int) -> None:
        self._write_note("recovering")
        self._folded += records
        facts = {"event": "folded", "partition": partition, "records": records}
        level = logging.INFO if records else logging.DEBUG
        logger.log(level, "folded %d records of partition %d", records, partition, extra=facts)

    def _turned(self) -> None:
        now = self.runtime.monotonic()
        if now - self._noted_at >= NOTE_EVERY_US:
            self._write_note("turning")

    def _tell_halted(self) -> None:
        """Say of each partition that is halted why, once."""
        holder = self._holder
        for error in [] if holder is None else holder.halted:
            if error not in self._halted:
                self._halted.append(error)
                facts = {"event": "halted", "partition": error.partition}
                logger.error("a partition is halted: %s", error, extra=facts)
                self._write_note("turning")

    def _write_note(self, phase: str) -> None:
        self._noted_at = self.runtime.monotonic()
        if phase == "turning" and self._holder is not None and (halted := self._holder.halted):
            phase = halted_phase([error.partition for error in halted])
        self.place.note("daemon" if self.daemon else "worker", phase, self._noted_at)

    def step_down(self, patience: int = CHANGE_US, only: Holder | None = None) -> bool:
        """Become a guest: closes the stores and frees the seat; whether this is one now.

        Waits so many microseconds for threads that are inside; a long read may need more.
        With ``only`` nothing happens if another holder has taken the place of that one.
        """
        self._deciding.acquire()
        try:
            with self._change(patience) as alone:
                if only is not None and only is not self._holder:
                    return False
                return alone and self._leave()
        finally:
            self._deciding.release()

    def _leave(self) -> bool:
        holder, self._holder = self._holder, None
        if holder is not None:
            try:
                holder.close()
            finally:
                self.place.let_go()
            logger.info("gave the projection up", extra={"event": "stepped_down"})
        return True

    @contextlib.contextmanager
    def _change(self, patience: int) -> Iterator[bool]:
        """Alone in here: whether no thread is inside a role; then none gets in.

        False after ``patience`` microseconds, or one long read would hold up all the others.
        """
        end = self.runtime.monotonic() + patience
        self._changing.acquire()
        try:
            while self._is_occupied() and self.runtime.monotonic() < end:
                self.runtime.sleep(PAUSE_US_MIN)
            yield not self._is_occupied()
        finally:
            self._changing.release()

    def _is_occupied(self) -> bool:
        # A copy: others leave meanwhile, and they need no lock for it.
        self._inside.difference_update([ref for ref in self._inside.copy() if ref() is None])
        return bool(self._inside)

    def _role(self) -> Inside:
        """The holder, if this process is it, for as long as the caller is inside."""
        self._check_usable()
        return Inside(self._changing, self._inside, lambda: self._holder)

    def _check_usable(self) -> None:
        if not self.is_here:
            raise EngineForked(
                f"this engine was opened by process {self._pid}, before the fork of {os.getpid()}; "
                "open one in the process that uses it"
            )
        if self._closed:
            raise Unavailable("this engine is closed: open it again")

    # Proposing

    def begin(self, proposal: Proposal, timeout: int) -> Callable[[], Record]:
        """``propose``, to be called: here nothing of it can be done before."""
        return partial(self.propose, proposal, timeout)

    def propose(self, proposal: Proposal, timeout: int) -> Record:
        """Hand a proposal in and return its record, durable in the log.

        ``timeout`` in microseconds. OutcomeUnknown when it is over, ProjectorStalled when the
        holder makes no turn for 10 s: it may still be decided. Damaged if the partition is
        halted, Unavailable if the log did not take it in that time.
        """
        began = self.runtime.monotonic()
        try:
            record = self._decided(proposal, began, began + timeout)
        except (LogError, StoreError) as error:
            raise Unavailable(str(error)) from error
        if record is None:
            seconds = f"{timeout / SECOND:g}"
            raise OutcomeUnknown(proposal.run_id, proposal.batch_id, seconds)
        number = partition_of(proposal.run_id, self.place.log.partitions)
        self._saw(number, record.sequence)
        return record

    def _saw(self, number: int, sequence: int) -> None:
        """What was told is read from here on, by every thread."""
        self._changing.acquire()
        try:
            self._seen[number] = max(self._seen.get(number, 0), sequence)
        finally:
            self._changing.release()

    def hand_in(self, run_id: str, value: bytes, timeout: int) -> Record:
        """Put bytes that are no plain proposal into the log: a part of an import.

        Returns the last record they led to; errors as of ``propose``.
        """
        began = self.runtime.monotonic()
        number = partition_of(run_id, self.place.log.partitions)
        try:
            handed = self._guest.put(number, run_id, value)
            self.place.ring()
            record = self._awaited(handed, began, began + timeout)
        except (LogError, StoreError) as error:
            raise Unavailable(str(error)) from error
        if record is None:
            raise OutcomeUnknown(run_id, "of an import", f"{timeout / SECOND:g}")
        self._saw(number, record.sequence)
        return record

    def _awaited(self, handed: HandedIn, began: int, end: int) -> Record | None:
        """The record of what is in the log already; None when the time is up."""
        pause = PAUSE_US_MIN
        while True:
            with self._role() as holder:
                if (record := self._found(holder, handed, end)) is not None:
                    return record
            self._check_holder(began, None, handed.partition)
            left = end - self.runtime.monotonic()
            if left <= 0:
                return None
            if not self.take_if_it_can():
                self.runtime.sleep(min(pause, left))
                pause = min(pause * 3 // 2, PAUSE_US_MAX)

    def _decided(self, proposal: Proposal, began: int, end: int) -> Record | None:
        """The record, whoever turns; None when the time is up and it was handed in."""
        handed: HandedIn | None = None
        holder: Holder | None = None
        outage: Exception | None = None
        unsure = False
        pause = PAUSE_US_MIN
        while True:
            try:
                with self._role() as holder:
                    if holder is not None and handed is None:
                        return holder.propose(proposal, end)
                    handed = handed or self._hand_in(proposal)
                    if (record := self._found(holder, handed, end)) is not None:
                        return record
            except LogUnreachable as error:
                outage = error
            except LogError as error:
                if type(error) is not LogError and handed is None and not unsure:
                    raise  # nothing was handed in, and waiting does not help
                # It may be there. Handed in again under its batch id, it counts once.
                outage, unsure = error, True
            except UNUSABLE as error:
                outage, unsure = error, True
                self.step_down(only=holder)  # the next round opens the stores anew
            number = partition_of(proposal.run_id, self.place.log.partitions)
            self._check_holder(began, proposal.batch_id, number)
            left = end - self.runtime.monotonic()
            if left <= 0:
                break
            if not self.take_if_it_can():
                self.runtime.sleep(min(pause, left))
                pause = min(pause * 3 // 2, PAUSE_US_MAX)
        if handed is None and outage is not None and not unsure:
            raise outage
        return None

    def _found(self, holder: Holder | None, handed: HandedIn, end: int) -> Record | None:
        """The record of what was handed in; a holder's is folded, as its next read must show it."""
        if holder is None:
            return self._guest.look(handed)
        number, position = handed.partition, handed.position
        record = holder.await_position(number, position, end)
        if record is None and holder.has_folded(number, position):
            return self._guest.look(handed)
        return record

    def take_if_it_can(self) -> bool:
        """``take``, for who can wait until storage works again."""
        try:
            return self.take()
        except Damaged:
            raise
        except (Unavailable, *OUTAGES) as error:
            if str(error) != self._told:  # once for each outage, not at every try
                self._told = str(error)
                logger.warning("cannot take over: %s", error, extra={"event": "outage"})
            self.runtime.sleep(OUTAGE_PAUSE_US)
            return False

    def _hand_in(self, proposal: Proposal) -> HandedIn:
        handed = self._guest.hand_in(proposal)
        self.place.ring()
        return handed

    def check_holder(self, since: int) -> None:
        """ProjectorStalled if the holder made no turn in the 10 s since (runtime's clock) or more.

        For whoever sees that something waits.
        """
        self._check_holder(since, None)

    def _check_holder(self, began: int, batch_id: str | None, number: int | None = None) -> None:
        note = self.place.holder()
        now = self.runtime.monotonic()
        if note is None or now - began < STALLED_US:
            return
        if number is not None and is_halted(note.phase, number) and self._holder is None:
            what, remedy = f"has halted partition {number}", "foldlog doctor says why"
        elif now - note.turned_at >= STALLED_US:
            what = f"has made no turn for {STALLED_US // SECOND} s"
            remedy = "see what it does, or end it, and another takes over"
        else:
            return
        message = f"process {note.pid} holds the projection and {what}: {remedy}"
        raise ProjectorStalled(message, note.pid, batch_id)

    # Reading

    @contextlib.contextmanager
    def reading(self, run_id: str) -> Iterator[View]:
        """A view of a run's partition as of one moment, at least as new as our last outcome."""
        with self.reading_partition(partition_of(run_id, self.place.log.partitions)) as view:
            yield view

    @contextlib.contextmanager
    def reading_partition(self, number: int) -> Iterator[View]:
        """A view of one partition as of one moment."""
        began = self.runtime.monotonic()
        pause = PAUSE_US_MIN
        while True:
            with self._role() as holder:
                if holder is not None:
                    with holder.reading(number) as view:
                        yield view
                    return
                with self._guest.reading(number, self._seen.get(number, 0)) as found:
                    if found is not None:
                        yield found
                        return
            self._check_holder(began, None)
            if self.runtime.monotonic() - began >= STALLED_US:
                raise Unavailable(self._guest.trouble(number))
            if not self.take():
                self.runtime.sleep(pause)
                pause = min(pause * 3 // 2, PAUSE_US_MAX)

    # Turning

    def turn_all(self) -> int:
        """As the holder, turn until nothing waits; the number of records. Nothing as a guest."""
        with self._role() as holder:
            return 0 if holder is None else holder.turn_all()

    def settle(self, run_id: str | None = None) -> int:
        """Have everything decided that waits now; how many records this process decided.

        Where another process holds the projection, waits until it has come so far:
        ProjectorStalled when it makes no turn for 10 s.
        """
        self._check_usable()
        log = self.place.log
        ends = [log.proposals_end(number) for number in range(log.partitions)]
        count = self.turn_all()
        for number, end in enumerate(ends):
            self._await_folded(number, end)
        return count

    def _await_folded(self, number: int, position: int) -> None:
        moved, reached = self.runtime.monotonic(), 0
        while True:
            with self.reading_partition(number) as view:
                here = view.meta().position
            if here >= position:
                return
            if here > reached:
                moved, reached = self.runtime.monotonic(), here
            if self.turn_all() == 0:
                self._check_holder(moved, None, number)
                if self.runtime.monotonic() - moved >= STALLED_US:
                    raise Unavailable(self._guest.trouble(number))
                self.runtime.sleep(PAUSE_US_MAX)

    def tick(self) -> int:
        """One round of this process's own thread; returns how long it may rest, in microseconds.

        A holder turns, or gives way to a daemon; a guest takes the seat if it is free.
        """
        try:
            return self._tick()
        except Damaged as error:
            if self._holder is None:  # not one of its partitions: it cannot begin to hold them
                logger.error("a partition is halted: %s", error, extra={"event": "halted"})
            self._tell_halted()
        except UNUSABLE as error:
            # A store that failed once takes no more: the next round opens it anew.
            logger.warning("opens the stores again: %s", error, extra={"event": "outage"})
            self.step_down()
        except (Unavailable, *OUTAGES) as error:
            logger.warning("waits for storage: %s", error, extra={"event": "outage"})
        except Exception:
            logger.exception("a turn failed", extra={"event": "failed"})
        return SECOND

    def _tick(self) -> int:
        if self._holder is not None and not self.daemon and self._daemon_waits():
            self.step_down()
        if self._holder is None and not self.take():
            return GUEST_REST_US
        halted = None
        try:
            self.turn_all()
        except Damaged as error:
            halted = error
        # Also then: what was rebuilt is what takes the place of a projection that is no fold.
        if self._holder is not None and self.place.turned():
            self.step_down()
            return 0
        if halted is not None:
            raise halted
        return LISTEN_US

    def _daemon_waits(self) -> bool:
        """Whether to give way now; seldom asked, for a long read may have to end first."""
        now = self.runtime.monotonic()
        if now < self._yields_at or not self.place.daemon_waits():
            return False
        self._yields_at = now + SECOND
        return True

    def close(self) -> None:
        """Leave: nothing acknowledged is lost, and the next in line takes over."""
        if self._closed or not self.is_here:
            return
        self._closed = True  # from here on nobody gets in, and nobody takes the seat again
        if not self.step_down(CLOSE_US):
            self._leave()  # who still reads gets an error, but the home must be free
        self._guest.close()
        self.place.close()
