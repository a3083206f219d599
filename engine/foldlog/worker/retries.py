"""How often and how soon what failed is tried again.

Invariants:
- A run that fails again and again ends: after its retries a limited number of fresh starts, then it
  is finished as failed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retries:
    """``first_seconds`` before the first retry, then twice as long, at most ``max_seconds``.

    When the run's ``retry_limit`` is spent it goes back to start, ``restarts`` times at most.
    """

    first_seconds: float = 1.0
    max_seconds: float = 300.0
    restarts: int = 1

    def pause(self, count: int) -> float:
        """Seconds before retry number ``count`` (from 1)."""
        doublings = min(max(count - 1, 0), 60)
        return float(min(self.first_seconds * 2**doublings, self.max_seconds))
