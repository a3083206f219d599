"""The faults: which ones there are, and when the dice let one happen.

Invariants:
- Every fault has a number, so that a run can be repeated without some of them.
- A fault that is left out is drawn all the same: what the dice say afterwards stays.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.sim.scheduler import Process

HAPPENS = {
    "kill": 5,  # a process ends at this step
    "crash": 3,  # a machine ends at this step; what was not synced is lost or torn
    "leave": 1,  # a process closes its engine and comes again
    "stall": 3,  # a process stands still
    "clock": 3,  # a wall clock jumps, back too
    "cut": 1,  # log and stores cannot be reached for a while
}
"""What happens to a process, with weights."""

FAILS = {
    "refused": 3,  # a log call fails and wrote nothing
    "in_doubt": 4,  # a log call fails and may have written
    "fsync": 3,  # the disk fails to sync a transaction
    "late": 4,  # the broker takes it after the caller gave up
    "in_parts": 2,  # the broker takes some now and the rest later
    "twice": 3,  # the broker takes it twice
    "store": 3,  # a call of a store fails
    "full": 1,  # the disk of a store is full
}
"""What fails in the next call that can fail so."""

KEPT_HAPPENS, KEPT_FAILS = {"rot": 16}, {"disk": 5}
"""Where snapshots are simulated too: a file changes by itself, or a projection is gone; a call that
changes the disk fails, for it is full, read-only or broken."""

KINDS = (*HAPPENS, *FAILS, *KEPT_HAPPENS, *KEPT_FAILS)
WRITES = ("refused", "in_doubt", "fsync", "late", "in_parts", "twice")


@dataclass
class Faults:
    """The dice for faults. ``every``: steps between two of them, on average (0: none).

    ``most``: how many there are; whoever waits for long then waits in peace.
    """

    seed: int
    every: int
    most: int = 1_000
    allowed: frozenset[str] = frozenset(KINDS)
    keep: frozenset[int] | None = None
    kept: bool = False
    dice: random.Random = field(init=False)
    own: random.Random = field(init=False)
    happened: Callable[[str, Process], None] = lambda kind, process: None
    note: Callable[[str], None] = lambda line: None
    counts: Counter[str] = field(default_factory=Counter)
    used: list[int] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    drawn: int = 0
    _countdown: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed}/faults")
        self._draw_gap()

    def _draw_gap(self) -> None:
        self._countdown = self.dice.randint(1, 2 * self.every) if self.every else 0

    def step(self, process: Process, name: str) -> None:
        """One step of a process, at which a fault may happen."""
        if self.every == 0 or self.drawn >= self.most:
            return
        self._countdown -= 1
        if self._countdown > 0:
            return
        self._draw_gap()
        kinds = {**HAPPENS, **FAILS}
        if self.kept:
            kinds |= KEPT_HAPPENS | KEPT_FAILS
        kind = self.dice.choices(list(kinds), list(kinds.values()))[0]
        number, self.drawn = self.drawn, self.drawn + 1
        if kind not in self.allowed or (self.keep is not None and number not in self.keep):
            return
        # Dice of its own, so that leaving a fault out changes no later one.
        self.own = random.Random(f"{self.seed}/fault {number}")
        self.used.append(number)
        self.note(f"fault {number}: {kind} at {name} of {process.name}")
        if kind in FAILS or kind in KEPT_FAILS:
            self.pending.append(kind)
        else:
            self.counts[kind] += 1
            self.happened(kind, process)

    def failure(self, name: str, can: Iterable[str]) -> str | None:
        """The failure that waits for a call such as this one."""
        for kind in self.pending:
            if kind in can:
                self.pending.remove(kind)
                self.counts[kind] += 1
                self.note(f"  {name} fails: {kind}")
                return kind
        return None

    def stop(self) -> None:
        """No more faults from here on."""
        self.every = 0
        self.pending.clear()
