"""The snapshots that a partition may be recovered from: those of the shelf, and of the place.

Invariants:
- Of two of one name the one that is here is taken first, and the other where that one is bad.
- What is fetched becomes one of the shelf's, so the next snapshot costs what changed since.
- A place that does not answer is asked again for a while; after that it has none.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from foldlog.errors import PlaceUnavailable, SnapshotDamaged
from foldlog.snapshots.copying import Stop, Stopped
from foldlog.snapshots.manifest import Manifest
from foldlog.snapshots.remote import RemoteShelf
from foldlog.snapshots.shelf import Shelf, Snapshot

WAIT_SECONDS, PAUSE_SECONDS = 30.0, 1.0
"""How long a place that does not answer is asked again before it is done without."""

Tell = Callable[[str, int, int, int], None]

logger = logging.getLogger("foldlog")


class Sources:
    """Those of one partition; the caller has the shelf's lock while it reads or fetches one.

    ``outage``: why nothing more comes from the place, if that is so; ``waits``: whether it is asked
    again first.
    """

    def __init__(
        self, shelf: Shelf, remote: RemoteShelf | None, stop: Stop, tell: Tell, waits: bool
    ) -> None:
        self.partition = shelf.partition
        self.outage: PlaceUnavailable | None = None
        self._shelf, self._remote = shelf, remote
        self._stop, self._tell = stop, tell
        self._waits = waits
        self._here: set[str] = set()
        self._there: set[str] = set()

    def names(self) -> list[str]:
        """The names of all, newest first. May wait for the place."""
        self._here = set(self._shelf.names())
        self._there = set(self._asked())
        return sorted(self._here | self._there, reverse=True)

    def _asked(self) -> list[str]:
        if self._remote is None:
            return []
        end = time.monotonic() + (WAIT_SECONDS if self._waits else 0)
        while True:
            try:
                names, self.outage = self._remote.names(), None
                return names
            except SnapshotDamaged as error:
                facts = {"event": "snapshot_damaged", "partition": self.partition}
                logger.warning("no snapshot is taken from the place: %s", error, extra=facts)
                return []
            except PlaceUnavailable as error:
                if self.outage is None:
                    facts = {"event": "outage", "partition": self.partition}
                    logger.warning("waits for the place of snapshots: %s", error, extra=facts)
                self.outage = error
            if time.monotonic() >= end:
                return []
            if self._stop():
                raise Stopped
            time.sleep(PAUSE_SECONDS)

    def has(self, name: str) -> bool:
        """Whether there is one of this name still."""
        return name in self._here or name in self._there

    def where(self, name: str) -> str:
        """Where the one lies that would be read next."""
        if name in self._here or self._remote is None:
            return str(self._shelf.folder)
        return self._remote.where

    def manifest(self, name: str) -> Manifest:
        """Its manifest; SnapshotMissing, SnapshotDamaged, PlaceUnavailable."""
        if name in self._here or self._remote is None:
            return self._shelf.read(name).manifest
        return self._remote.read(name).manifest

    def snapshot(self, name: str) -> Snapshot:
        """The snapshot, fetched first where it is not here; errors as of ``RemoteShelf.fetch``."""
        if name in self._here or self._remote is None:
            return self._shelf.read(name)
        done, whole = 0, self._remote.read(name).manifest.size

        def passed(size: int) -> None:
            nonlocal done
            done += size
            self._tell("bytes fetched", self.partition, done, whole)

        return self._remote.fetch(name, self._shelf, self._stop, passed)

    def quarantine(self, name: str, reason: str) -> None:
        """Take one that is bad out, and have it used by nobody any more, if that can be said."""
        with contextlib.suppress(OSError, PlaceUnavailable, SnapshotDamaged):
            if name not in self._here and self._remote is not None:
                self._remote.quarantine(name, reason)
            if name in self._shelf.names():
                self._shelf.quarantine(name, reason)
        self.drop(name)

    def drop(self, name: str) -> None:
        """Take one out: the one that would be read next."""
        if name in self._here:
            self._here.discard(name)
        else:
            self._there.discard(name)

    def lose(self, error: PlaceUnavailable) -> None:
        """The place does not answer any more."""
        self.outage = error
        self._there.clear()
