"""A chain of pure steps from each version of something to the next: state documents, events.

Invariants:
- A step leads from version n to n + 1; the chain has one for every version before the newest.
- A version that is newer than the chain's, or that it has no step from, is refused.
- What a step refuses stays what it was.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Unsafe:
    """Why something cannot be lifted without guessing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Chain(Generic[Thing]):
    """Steps by the version they lead from. ``newest`` is what they end at."""

    what: str
    newest: int
    steps: Mapping[int, Callable[[Thing], Thing | Unsafe]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert sorted(self.steps) == list(range(min(self.steps, default=self.newest), self.newest))

    def lifted(self, thing: Thing, version: int) -> Thing | Unsafe:
        """Something of a version as the newest one has it; Unsafe if it cannot be had."""
        if version > self.newest:
            have = f"this build reads {self.what} up to version {self.newest}"
            return Unsafe(f"{self.what} version {version} is newer: {have}")
        for step in range(version, self.newest):
            if step not in self.steps:
                return Unsafe(f"{self.what} version {version} is unknown to this build")
            after = self.steps[step](thing)
            if isinstance(after, Unsafe):
                return after
            thing = after
        return thing
