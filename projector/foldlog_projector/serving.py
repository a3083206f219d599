"""How a member of the group is run: until a signal, or until it is caught up.

Invariants:
- SIGTERM and SIGINT end it between two steps: nothing is half done.
- Whoever runs it until it is caught up is told when nothing moves any more, and why.
"""

import contextlib
from typing import Any

from foldlog.errors import ProjectorStalled
from foldlog.log.base import LogError, LogForbidden
from foldlog.log.kafka.groups import owners
from foldlog.runtime import SECOND, RealRuntime
from foldlog_projector.member import Member, Plan
from foldlog_projector.signals import stopping_on_signals

STUCK_US = 60 * SECOND
"""After so long in which nothing of what waits was decided `--once` ends. A member that ended
without a word keeps its partitions for its session, 10 s unless the operator has it otherwise."""


def run_member(plan: dict[str, Any]) -> None:
    """Run a member in this process until SIGTERM or SIGINT."""
    member = Member(Plan(**plan))
    with stopping_on_signals(member.stop):
        member.run()


def run_once(plan: dict[str, Any], stuck_us: int = STUCK_US) -> int:
    """Run a member until everything that waits now is decided; how many records it decided.

    ProjectorStalled if nothing of it is decided for ``stuck_us``; Unavailable without a right.
    """
    member = Member(Plan(**plan))
    member.run(until=_CaughtUp(member, stuck_us), patient=False)
    return member.decided


class _CaughtUp:
    """Whether what waited at first is decided by now, by this member or another."""

    def __init__(self, member: Member, stuck_us: int) -> None:
        self._member, self._stuck_us = member, stuck_us
        log = member.log
        self._ends = {number: log.proposals_end(number) for number in range(log.partitions)}
        self._monotonic = RealRuntime().monotonic
        self._positions: dict[int, int] = {}
        self._moved_at = self._monotonic()

    def __call__(self) -> bool:
        positions = self._asked()
        if positions != self._positions:
            self._positions, self._moved_at = positions, self._monotonic()
        self._ends = {n: end for n, end in self._ends.items() if positions.get(n, 1) < end}
        if not self._ends:
            return True
        moved_at = max(self._moved_at, self._member.worked_at)
        if self._monotonic() - moved_at >= self._stuck_us:
            self._give_up()
        return False

    def _asked(self) -> dict[int, int]:
        try:
            return self._member.positions(list(self._ends))
        except LogForbidden:
            raise
        except LogError:
            return self._positions  # an outage: it is as it was

    def _give_up(self) -> None:
        number = min(self._ends)
        why = self._member.why(number)
        if why is None:
            owner = None
            with contextlib.suppress(LogError):
                owner = owners(self._member.log.handles).get(number)
            why = f"{owner} has it" if owner else "the group gave it to nobody"
        raise ProjectorStalled(
            f"nothing of what waits in {len(self._ends)} partitions was decided for "
            f"{self._stuck_us // SECOND} s; partition {number}: {why}; see: foldlog status"
        )
