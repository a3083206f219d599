"""A home as a seat needs it: its log, its stores, who else is there.

Invariants:
- Protocols only: a home on disk, one in memory and a simulated one are all that a seat sees.
"""

from collections.abc import Sequence
from typing import Protocol

from foldlog.errors import Damaged
from foldlog.guest import Follower
from foldlog.log.base import Log
from foldlog.snapshots.kept import Kept
from foldlog.store.base import Store


class Note(Protocol):
    """What a holder says of itself."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def role(self) -> str:
        """worker or daemon."""

    @property
    def phase(self) -> str:
        """recovering, turning, or "halted 0 3": these partitions are."""

    @property
    def turned_at(self) -> int:
        """When it last turned, by the runtime's clock."""


HALTED = "halted"
NUMBERS_MAX = 32
"""So many halted partitions are named; a note is short."""


def halted_phase(numbers: Sequence[int]) -> str:
    """The phase of a holder of whose partitions these are halted."""
    return " ".join([HALTED, *map(str, numbers[:NUMBERS_MAX])])


def is_halted(phase: str, number: int | None = None) -> bool:
    """Whether a holder in this phase has halted a partition: this one, or any."""
    halted, *numbers = phase.split() or [""]
    return halted == HALTED and (number is None or str(number) in numbers)


class Place(Protocol):
    """A home as a seat needs it: its log, its stores, and who else is there."""

    @property
    def log(self) -> Log:
        """The home's log."""

    @property
    def snapshots(self) -> Kept:
        """The snapshots of its projection."""

    def stores(self) -> list[Store | Damaged]:
        """The projection's stores, for who holds it; Unavailable if they cannot be opened.

        In the place of one that cannot be gone on from stands what is wrong with its partition.
        """

    def follower(self, partition: int) -> Follower:
        """A reader beside the holder; StoreError if there is nothing to read yet."""

    def try_hold(self) -> bool:
        """Take the right to hold the projection, if it is free."""

    def let_go(self) -> None:
        """Give that right back."""

    def note(self, role: str, phase: str, turned_at: int) -> None:
        """Say for others who holds the projection and when it last turned."""

    def holder(self) -> Note | None:
        """What the holder says, or the last one said."""

    def recovering(self, partition: int, records: int) -> None:
        """The holder has folded so many records of a partition and goes on."""

    def turned(self) -> bool:
        """The holder had its turn; whether it has to open its stores anew."""

    def daemon_waits(self) -> bool:
        """Whether a daemon is there (another process than this one)."""

    def listen(self) -> None:
        """Begin to hear rings."""

    def rest(self, microseconds: int) -> None:
        """Wait for a ring, or that long."""

    def ring(self) -> None:
        """Wake the holder."""

    def close(self) -> None:
        """Let everything go."""
