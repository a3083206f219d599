"""What an auditor asks of the snapshots of a home: their names, and each one opened as a store.

Invariants:
- What is opened is a copy in a folder of its own, gone with the block; a snapshot is only read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from foldlog.errors import SnapshotMissing, Usage
from foldlog.store.base import Store


class Kept(Protocol):
    """The snapshots of a home."""

    def names(self, number: int) -> list[str]:
        """Those of a partition that this build can go on from, newest first."""

    def opened(self, number: int, name: str) -> AbstractContextManager[Store]:
        """One of them restored and open, every hash and count checked.

        SnapshotMissing, SnapshotDamaged, OSError if there is no room for the copy.
        """

    def take(self, number: int, passed: Callable[[int], None]) -> dict[str, Any] | None:
        """Take one of a partition; see ``Engine.take_snapshots``. None if it has no store.

        ``passed`` is told of bytes that were copied.
        """


class NoSnapshots:
    """Those of a home in memory: none."""

    def names(self, number: int) -> list[str]:
        """None."""
        return []

    def opened(self, number: int, name: str) -> AbstractContextManager[Store]:
        """It is not there."""
        raise SnapshotMissing(f"there is no snapshot {name}")

    def take(self, number: int, passed: Callable[[int], None]) -> dict[str, Any] | None:
        """There is no place for one."""
        raise Usage("nothing here keeps snapshots: no home on disk holds this projection")
