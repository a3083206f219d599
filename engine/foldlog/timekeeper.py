"""The timekeeper: proposes ``WaitTimedOut`` for waits whose deadline its clock says has passed.

It is a proposer like any other ({system, timekeeper}): the decider asks log time, not this clock.

Invariants:
- A batch id is made of run, revision of the wait and attempt alone, so restarts and two
  timekeepers propose the same batch, which counts once.
- A run that would only refuse it (quarantined, to be migrated) is left alone; a not-yet is tried
  again, later and later.
- This clock may be wrong for a while. What was tried too early is not forgotten when it is right
  again, or the same batches would come once more; and it keeps nobody waiting then.
"""

from dataclasses import dataclass, field
from uuid import UUID, uuid5

from foldlog.core.proposals import Proposal
from foldlog.core.state import SCHEMA_VERSION
from foldlog.core.values import Author
from foldlog.store.base import Reader
from foldlog.wire import keys
from foldlog.working import Run, open_run

AUTHOR = Author("system", "timekeeper")
NAMESPACE = UUID("6f2a5c0e-2f0b-5a53-9a61-7d0a5b1c9e44")

RETRY_US_MIN = 1_000_000
RETRY_US_MAX = 300_000_000

Wait = tuple[str, int]
"""A run, and the revision at which it began to wait."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often was proposed for a wait, and when last; microseconds, the deadline nanoseconds."""

    deadline: int
    count: int = 0
    last: int = 0

    def may_again(self, now: int) -> bool:
        """Whether it is time for another; also where the clock was ahead at the last one."""
        pause = min(RETRY_US_MIN << min(self.count - 1, 20), RETRY_US_MAX) if self.count else 0
        return not self.last <= now < self.last + pause


@dataclass(slots=True)
class Timekeeper:
    """Remembers its attempts, so that one wait is not proposed for at every turn.

    Those for a wait that has ended are forgotten once its deadline has passed.
    """

    attempts: dict[Wait, Attempts] = field(default_factory=dict)

    def due(self, reader: Reader, now: int) -> list[Proposal]:
        """A proposal for each wait of a partition that is due at ``now`` (microseconds)."""
        kept = {wait: each for wait, each in self.attempts.items() if each.deadline > now * 1000}
        due: list[Proposal] = []
        for key, _ in reader.scan(keys.TIMER_PREFIX):
            deadline, run_id = keys.timer_of(key)
            if deadline > now * 1000:
                break
            run = open_run(reader, run_id)
            slot = run.slots.get("wait", "")
            if slot is None or slot.value is None:
                continue
            wait = run_id, slot.revision
            made = self.attempts.get(wait, Attempts(deadline))
            if may_be_ended(run) and made.may_again(now):
                due.append(time_out(wait, slot.value["key"], made.count))
                made = Attempts(deadline, made.count + 1, now)
            kept[wait] = made
        self.attempts = kept
        return due


def may_be_ended(run: Run) -> bool:
    """Whether a run would not refuse to have its wait ended, whatever the time."""
    return (
        run.head.quarantine is None
        and run.head.importing is None
        and run.header.schema_version == SCHEMA_VERSION
    )


def time_out(wait: Wait, key: str, attempt: int) -> Proposal:
    """The proposal that ends a wait."""
    run_id, revision = wait
    return Proposal(
        run_id=run_id,
        batch_id=str(uuid5(NAMESPACE, f"{run_id}/{revision}/{attempt}")),
        author=AUTHOR,
        events=({"type": "WaitTimedOut", "key": key},),
    )
