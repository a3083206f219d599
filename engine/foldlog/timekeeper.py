"""The timekeeper: proposes ``WaitTimedOut`` for waits whose deadline its clock says has passed.

It is a proposer like any other ({system, timekeeper}): the decider asks log time, not this clock.

Invariants:
- A batch id is made of run, revision of the wait and attempt alone, so restarts and two
  timekeepers propose the same batch, which counts once.
- A run that would only refuse it (quarantined, to be migrated) is left alone; a not-yet is tried
  again, later and later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from foldlog.core.proposals import Proposal
from foldlog.core.state import SCHEMA_VERSION
from foldlog.core.values import Author
from foldlog.store.base import Reader
from foldlog.wire import keys
from foldlog.working import open_run

AUTHOR = Author("system", "timekeeper")
NAMESPACE = UUID("6f2a5c0e-2f0b-5a53-9a61-7d0a5b1c9e44")

RETRY_US_MIN = 1_000_000
RETRY_US_MAX = 300_000_000

Wait = tuple[str, int]
"""A run, and the revision at which it began to wait."""

Attempt = tuple[int, int]
"""How often a wait was proposed for, and when it may be again (microseconds)."""


@dataclass(slots=True)
class Timekeeper:
    """Remembers its attempts, so that one wait is not proposed for at every turn.

    Only those for waits that are due: what has been ended is forgotten.
    """

    attempts: dict[Wait, Attempt] = field(default_factory=dict)

    def due(self, reader: Reader, now: int) -> Iterator[Proposal]:
        """A proposal for each wait of a partition that is due at ``now`` (microseconds)."""
        before, self.attempts = self.attempts, {}
        for key, _ in reader.scan(keys.TIMER_PREFIX):
            deadline, run_id = keys.timer_of(key)
            if deadline > now * 1000:
                return
            if (proposal := self._propose(reader, run_id, now, before)) is not None:
                yield proposal

    def _propose(
        self, reader: Reader, run_id: str, now: int, before: Mapping[Wait, Attempt]
    ) -> Proposal | None:
        run = open_run(reader, run_id)
        wait = run.slots.get("wait", "")
        if wait is None or wait.value is None:
            return None
        attempt, not_before = before.get((run_id, wait.revision), (0, now))
        self.attempts[(run_id, wait.revision)] = (attempt, not_before)
        refuses = (
            run.head.quarantine is not None
            or run.head.importing is not None
            or run.header.schema_version != SCHEMA_VERSION
        )
        if refuses or now < not_before:
            return None
        pause = min(RETRY_US_MIN << min(attempt, 20), RETRY_US_MAX)
        self.attempts[(run_id, wait.revision)] = (attempt + 1, now + pause)
        return Proposal(
            run_id=run_id,
            batch_id=str(uuid5(NAMESPACE, f"{run_id}/{wait.revision}/{attempt}")),
            author=AUTHOR,
            events=({"type": "WaitTimedOut", "key": wait.value["key"]},),
        )
