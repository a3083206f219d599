"""The newest snapshots of a home on their way to its place elsewhere, in a thread of their own.

Invariants:
- An upload reads snapshots and never a live store, so nobody waits for it: it may outlast the
  right to hold a partition, and does no harm then.
- A place that does not answer stops nobody: that is logged, and tried again later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from foldlog.errors import FoldlogError, SnapshotMissing
from foldlog.snapshots.copying import Passed, Stopped, nothing
from foldlog.snapshots.pruning import Pruned
from foldlog.snapshots.remote import RemoteShelf, Uploaded
from foldlog.snapshots.shelf import Shelf

RETRY_SECONDS = 60.0
"""After one that failed."""

SETTLE_SECONDS = 1.0
"""A process that is here for a moment only begins none."""

CLOSE_SECONDS = 5.0
"""How long somebody who ends waits for an upload that he has told to end."""

logger = logging.getLogger("foldlog")


class Uploads:
    """Uploads of a home's snapshots; ``remotes`` is empty where it has no place elsewhere."""

    def __init__(self, shelves: Sequence[Shelf], remotes: Sequence[RemoteShelf], keep: int) -> None:
        self._shelves, self._remotes, self._keep = shelves, remotes, keep
        self._done: dict[int, str] = {}
        self._rests_until = time.monotonic() + SETTLE_SECONDS
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def look(self, numbers: Iterable[int]) -> None:
        """Begin to upload the newest snapshot of one of these partitions that is not there yet."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if not self._remotes or is_busy or time.monotonic() < self._rests_until:
            return
        for number in numbers:
            newest = self._shelves[number].names()[:1]
            if newest and newest[0] != self._done.get(number):
                self._thread = threading.Thread(
                    target=self._upload_one,
                    args=(number, newest[0]),
                    name="foldlog-upload",
                    daemon=True,
                )
                self._thread.start()
                return

    def _upload_one(self, number: int, name: str) -> None:
        facts: dict[str, Any] = {"partition": number, "snapshot": name}
        try:
            uploaded, pruned = self.upload(number, name)
        except (Stopped, SnapshotMissing, FileNotFoundError):
            return  # ended, or pruned here meanwhile: there is a newer one
        except (FoldlogError, OSError) as error:
            self._rests_until = time.monotonic() + RETRY_SECONDS
            facts |= {"event": "not_uploaded", "retry_seconds": RETRY_SECONDS}
            logger.warning("snapshot %s is not uploaded yet: %s", name, error, extra=facts)
            return
        self._done[number] = name
        facts |= {"event": "uploaded", "bytes": uploaded.bytes, "files": uploaded.files}
        facts["removed"] = len(pruned.removed)
        where = self._remotes[number].where
        logger.info("uploaded snapshot %s to %s", name, where, extra=facts)

    def upload(self, number: int, name: str, passed: Passed = nothing) -> tuple[Uploaded, Pruned]:
        """Upload a snapshot now, and prune there; errors as of ``RemoteShelf.upload``.

        Nothing is done where so many newer ones are there that it would be pruned at once.
        """
        remote, stop = self._remotes[number], self._stopping.is_set
        newer = tuple(each for each in remote.names() if each > name)
        if len(newer) >= self._keep:
            return Uploaded(0, 0), Pruned(newer, (), ())
        uploaded = remote.upload(self._shelves[number].read(name), stop, passed)
        return uploaded, remote.prune(self._keep, stop=stop)

    def close(self) -> None:
        """End, soon: what is half uploaded there is named by nothing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
