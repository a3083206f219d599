"""One partition of a log on Kafka in a projector's hands: opened, caught up, then turned.

Invariants:
- Every step is bounded: a member that works for long would be put out of its group. A store is
  opened in a thread of its own, since it may first have to be restored or rebuilt.
- Nothing is decided before the store is open and the log folded to its end, at first and after
  every failure.
- An outage is waited out, longer each time up to a limit, and told once; damage halts this
  partition and no other.
"""

import logging
from collections.abc import Callable

from foldlog.errors import Damaged, Unavailable
from foldlog.holder import OUTAGES, UNUSABLE
from foldlog.log.base import Clock, LogError, LogForbidden, LogMissing, LogRefused, LogTrimmed
from foldlog.log.kafka.owned import OwnedLog
from foldlog.projector_home import ProjectorHome
from foldlog.runtime import SECOND
from foldlog.store.base import StoreBusy, StoreError
from foldlog.timekeeper import Timekeeper
from foldlog.turn import Partition
from foldlog.views import View
from foldlog.wire.envelope import encode_proposal
from foldlog_projector.opening import Opening

OUTAGE_US_MIN, OUTAGE_US_MAX = SECOND // 20, 2 * SECOND
"""How long to wait after a failure; twice as long after each further one."""

WELL_US = SECOND
"""An outage is over too where nothing came for so long: what waits is there sooner, and fails."""

DUE_US = SECOND // 10
"""How often deadlines are looked at where nothing is proposed."""

logger = logging.getLogger("foldlog")


class Deciding:
    """A partition that this process decides while it is its own."""

    def __init__(
        self,
        log: OwnedLog,
        home: ProjectorHome,
        number: int,
        clock: Clock,
        monotonic: Callable[[], int],
        decider: str,
    ) -> None:
        self.number = number
        self.halted: Damaged | None = None
        self.outage: str | None = None
        self.reached: int | None = None  # the last position known, in an outage too
        self.more = False  # whether there is more to do at once
        self._log, self._home, self._clock = log, home, clock
        self._monotonic, self._decider = monotonic, decider
        self._opening: Opening | None = None
        self._partition: Partition | None = None
        self._timekeeper = Timekeeper()
        self._turning = False
        self._folded = 0
        self._rests_until = self._well_at = 0
        self._pause = OUTAGE_US_MIN
        self._due_at = 0

    @property
    def position(self) -> int | None:
        """The next proposal to decide; None before the log is folded to its end."""
        return self._partition.meta.position if self._turning and self._partition else None

    @property
    def view(self) -> View | None:
        """What is folded; None before the log is folded to its end."""
        if not self._turning or self._partition is None:
            return None
        return View(self._log, self._partition.store, self.number, self._home.rules)

    @property
    def phase(self) -> str:
        """What it does: opening, recovering, turning, waiting (an outage) or halted."""
        if self.halted is not None:
            return "halted"
        if self.outage is not None:
            return "waiting"
        if self._partition is None:
            goes_on = self._opening is not None and self._opening.goes_on
            return "recovering" if goes_on else "opening"
        return "turning" if self._turning else "recovering"

    @property
    def why(self) -> str:
        """What keeps it from going on; nothing where nothing does."""
        return str(self.halted) if self.halted is not None else self.outage or ""

    def step(self) -> int | None:
        """A bounded piece of work: how many records were decided; None if there was nothing to do.

        Never raises what the world does; ``halted`` and ``outage`` say it.
        """
        self.more = False
        if self.halted is not None or self._monotonic() < self._rests_until:
            return None
        try:
            done = self._step()
        except Damaged as error:
            self._halt(error)
        except StoreBusy as error:
            self._failed(error, "another process has the store of")
        except Unavailable as error:
            self._failed(error, "waits for the store of")
        except OUTAGES as error:
            if isinstance(error, LogRefused):
                self._halt(
                    Damaged(self.number, None, 0, error.what, "the log as it was", "another")
                )
                return None
            if isinstance(error, UNUSABLE):
                self._close()  # it takes no more until it is opened anew
            if isinstance(error, LogMissing):
                self._turning = False
            self._failed(error, "waits for storage of")
        else:
            if done is not None:
                # After a turn the log knows; after any other step there is a next one.
                at = self.position if done else None
                self.more = at is None or self._log.waits(self.number, at)
            return done
        return None

    def _step(self) -> int | None:
        if self._partition is None:
            return self._open()
        if not self._turning or self._partition.in_doubt:
            return self._recover(self._partition)
        if self._monotonic() >= self._due_at:
            self._due_at = self._monotonic() + DUE_US
            if self._home.must_reopen(self.number):
                self._close()
                return 0
            self._propose_due(self._partition)
        done = self._partition.turn()
        self.reached = self._partition.meta.position
        if done or self._monotonic() >= self._well_at:
            self._went_well()
        return done or None

    def _open(self) -> int | None:
        """Open the store, or see how far that is; None while it goes on."""
        if self._opening is None:
            self._log.check()
            self._opening = Opening(self._home, self.number)
        if not self._opening.is_over():
            return None
        opening, self._opening = self._opening, None
        store = opening.store()
        self._home.hold(self.number, store)
        try:
            partition = Partition(self._log, store, self.number, self._decider, self._home.rules)
            partition.check()
        except BaseException:
            self._let_go()
            raise
        self._partition, self._folded = partition, 0
        return 0

    def _recover(self, partition: Partition) -> int:
        folded = partition.fold_more()
        self._folded += folded
        if folded:
            self._went_well()
        else:
            partition.check_plugins()
            meta = partition.meta
            self._log.own(self.number, meta.position)
            if not self._turning:
                facts = {"event": "folded", "partition": self.number, "records": self._folded}
                text = "folded %d records of partition %d"
                logger.info(text, self._folded, self.number, extra=facts)
            self._turning = True
            self.reached = meta.position
        return 0

    def _propose_due(self, partition: Partition) -> None:
        due = self._timekeeper.due(partition.store, self._clock())
        entries = [(proposal.run_id.encode(), encode_proposal(proposal)) for proposal in due]
        if entries:
            self._log.propose(self.number, entries)

    def _halt(self, error: Damaged) -> None:
        self.halted = error
        facts = {"event": "halted", "partition": self.number}
        logger.error("partition %d is halted: %s", self.number, error, extra=facts)
        self._close()

    def _failed(self, error: Exception, what: str) -> None:
        self._rests_until = self._monotonic() + self._pause
        self._well_at = self._rests_until + WELL_US
        self._pause = min(self._pause * 2, OUTAGE_US_MAX)
        if self.outage is None:
            facts = {"event": "outage", "partition": self.number}
            logger.warning("%s partition %d: %s", what, self.number, error, extra=facts)
        self.outage = str(error)

    def _went_well(self) -> None:
        if self.outage is not None:
            facts = {"event": "went_on", "partition": self.number}
            logger.info("goes on with partition %d", self.number, extra=facts)
        self.outage, self._pause = None, OUTAGE_US_MIN

    def forbidden(self, error: LogForbidden) -> None:
        """The log is not to be read any more, until it is: it is opened anew then."""
        self._close()
        self._failed(error, "waits for a right to")

    def unreadable(self, error: LogError) -> None:
        """What comes next does not read, until it does. The store stays open: a broker that has
        just begun may know of no topic, and to look at the topics then would halt for good."""
        self._log.disown(self.number)
        self._turning = False
        self._failed(error, "cannot read the log of")

    def trimmed(self, error: LogTrimmed) -> None:
        """What is to be decided next is not in the log any more."""
        partition = self._partition
        sequence = 0 if partition is None else partition.meta.sequence
        what = f"the log does not reach back to what comes next ({error.where})"
        expected = f"the proposal at {self.position}"
        self._halt(Damaged(self.number, None, sequence + 1, what, expected, error.what))

    def close(self) -> None:
        """Let the partition go; between two steps no turn is under way."""
        self._close()

    def _close(self) -> None:
        self._log.disown(self.number)
        self._turning = False
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.abandon()
        partition, self._partition = self._partition, None
        if partition is not None:
            self._let_go()

    def _let_go(self) -> None:
        """Close the store. One that does not close well is no reason to end the others': it is
        let go of, and read back from the log when it is opened again."""
        try:
            self._home.let_go(self.number)
        except StoreError as error:
            facts = {"event": "not_closed", "partition": self.number}
            text = "the store of partition %d does not close well: %s"
            logger.warning(text, self.number, error, extra=facts)
