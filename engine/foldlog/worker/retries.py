"""How often and how soon what failed is tried again.

Invariants:
- A run that fails again and again ends: after its retries a limited number of fresh starts, then it
  is finished as failed. So does one whose plan fails again and again.
- A deadline that passed is no failure, although it brings a run to retry and uses a retry up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from foldlog.results import Value


@dataclass(frozen=True, slots=True)
class Retries:
    """``first_seconds`` before the first retry, then twice as long, at most ``max_seconds``.

    When the run's ``retry_limit`` is spent it goes back to start, after failures ``restarts`` times
    at most.
    """

    first_seconds: float = 1.0
    max_seconds: float = 300.0
    restarts: int = 1

    def pause(self, count: int) -> float:
        """Seconds before retry number ``count`` (from 1)."""
        doublings = min(max(count - 1, 0), 60)
        return float(min(self.first_seconds * 2**doublings, self.max_seconds))

    def failures_max(self, retry_limit: int) -> int:
        """How many failures end a run that has this limit."""
        return max(retry_limit, 1) * (1 + self.restarts)


def failures(moves: Sequence[Value]) -> int:
    """How often a run has failed, by its transitions."""
    return sum(move.to == "retry" and move["from"] != "waiting" for move in moves)


def came_from(moves: Sequence[Value]) -> str | None:
    """The status from which a run came to retry, by its transitions; the pauses there aside."""
    for before, move in reversed(list(pairwise(moves))):
        if move.to == "retry":
            status: str = (before if move["from"] == "waiting" else move)["from"]
            if status != "retry":
                return status
    return None
