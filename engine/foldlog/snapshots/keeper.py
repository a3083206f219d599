"""A home's snapshots: taken when they are due or asked for, listed, verified, pruned.

Invariants:
- A snapshot that fails stops nobody: it is logged, and tried again later.
- The thread that takes one never outlives the right to hold the projection.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foldlog.core.catalogue import RULES, Catalogue, fingerprints
from foldlog.core.state import SCHEMA_VERSION
from foldlog.core.values import format_instant
from foldlog.disk import REAL_DISK, Database, Disk
from foldlog.errors import (
    FoldlogError,
    HomeBusy,
    PlaceUnavailable,
    SnapshotDamaged,
    SnapshotMissing,
)
from foldlog.log.base import Clock, Log, LogError
from foldlog.snapshots.checking import verified
from foldlog.snapshots.copying import Passed, Stop, Stopped, never, nothing
from foldlog.snapshots.manifest import Manifest, Versions, unusable
from foldlog.snapshots.place import open_place
from foldlog.snapshots.pointer import name_of
from foldlog.snapshots.pruning import Pruned, prune
from foldlog.snapshots.remote import RemoteShelf, Uploaded
from foldlog.snapshots.restoring import restored
from foldlog.snapshots.settings import SnapshotSettings
from foldlog.snapshots.shelf import NAME, Shelf, Snapshot
from foldlog.snapshots.taking import About, Taken, take
from foldlog.snapshots.uploading import Uploads
from foldlog.store.base import Store, StoreDamaged, StoreError
from foldlog.version import __version__
from foldlog.wire import keys, slots
from foldlog.wire.slots import STATE_FORMAT

LOOK_SECONDS = 1.0
"""How often a holder asks whether a snapshot is due."""

RETRY_SECONDS = 60.0
"""After one that failed."""

FOLDER = "snapshots"
"""Where they lie in a home, unless told otherwise."""

HERE, THERE = "here", "place"
"""On this machine's disk, and at the place elsewhere."""

logger = logging.getLogger("foldlog")


def versions_here(rules: Mapping[int, Catalogue] = RULES) -> Versions:
    """What this build is, as manifests compare it."""
    tables = {str(version): fingerprints(table) for version, table in rules.items()}
    return Versions(STATE_FORMAT, SCHEMA_VERSION, tables)


@dataclass(slots=True)
class _Since:
    """Where a partition stood at its last snapshot: sequence, bytes written, and when."""

    sequence: int
    written: int
    at: float


class Keeper:
    """The snapshots of a home; also takes them for who holds its projection."""

    def __init__(
        self,
        home: Path,
        log: Log,
        clock: Clock,
        settings: SnapshotSettings,
        versions: Versions,
        disk: Disk = REAL_DISK,
        stores: str = "projection",
    ) -> None:
        self.settings = settings
        self.versions = versions
        self._folder = home / stores
        self._disk = disk
        self._log = log
        self._clock = clock
        # A folder that is named may be named for several homes: each log has one of its own in it.
        root = home / FOLDER
        if settings.folder is not None:
            root = settings.folder / name_of(log.identity)
        self.shelves = [Shelf(root, number, disk) for number in range(log.partitions)]
        self.remotes = _remotes(settings.url, log)
        """The same partitions at the place elsewhere; none without one."""
        self.uploads = Uploads(self.shelves, self.remotes, settings.keep)
        self.broken: dict[int, str] = {}
        """Partitions whose live store turned out to be damaged, and how."""
        self._stores: dict[int, Database] = {}
        self._since: dict[int, _Since] = {}
        self._looked_at = 0.0
        self._thread: threading.Thread | None = None
        self._works_on = -1
        self._stopping = threading.Event()

    # For who holds the projection

    def hold(self, number: int, store: Database) -> None:
        """Begin to look at what changes in a partition's store."""
        try:
            newest = _newest(self.shelves[number])
        except OSError as error:  # a partition can be turned without its snapshots
            facts = {"event": "snapshot_failed", "partition": number}
            words = "the snapshots of partition %d cannot be listed: %s"
            logger.warning(words, number, error, extra=facts)
            newest = 0
        self._since[number] = _Since(newest, 0, time.monotonic())
        self._stores[number] = store

    def look(self) -> None:
        """Take a snapshot in a thread of its own if one is due, and upload what is not at its place
        yet. Cheap; to be called often."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        self.uploads.look(self._stores)
        if not self.settings.is_automatic or (self._thread and self._thread.is_alive()):
            return
        for number, store in self._stores.items():
            if self._is_due(number, store, now):
                self._works_on = number
                self._stopping.clear()
                self._thread = threading.Thread(
                    target=self._take_one, args=(number,), name="foldlog-snapshot", daemon=True
                )
                self._thread.start()
                return

    def _is_due(self, number: int, store: Database, now: float) -> bool:
        since = self._since[number]
        data = store.get(keys.META)
        if data is None:
            return False
        records = slots.decode_meta(data).sequence - since.sequence
        return self.settings.is_due(records, store.bytes_written - since.written, now - since.at)

    def _take_one(self, number: int) -> None:
        store, since = self._stores[number], self._since[number]
        written = store.bytes_written
        facts: dict[str, Any] = {"partition": number}
        try:
            stop = self._stopping.is_set
            taken = self.create(number, stop=stop, patience=0)
            fresh = taken.snapshot.name
            pruned = self.prune(number, fresh=fresh, stop=stop, patience=0)
        except (Stopped, HomeBusy):
            since.at = time.monotonic()
            return
        except (FoldlogError, StoreError, LogError, OSError) as error:
            facts["event"] = "snapshot_failed"
            logger.warning("no snapshot of partition %d: %s", number, error, extra=facts)
            self._looked_at = time.monotonic() + RETRY_SECONDS
            return
        self._since[number] = _Since(
            taken.snapshot.manifest.meta.sequence, written, time.monotonic()
        )
        facts |= {"event": "took_snapshot", "snapshot": fresh, "bytes": taken.bytes_copied}
        facts["removed"] = len(pruned.removed)
        logger.info("took snapshot %s of partition %d", fresh, number, extra=facts)

    def let_go(self, number: int) -> None:
        """End the thread that works on a partition, before its store is another one's."""
        if self._thread is not None and self._works_on == number:
            self._stopping.set()
            self._thread.join()
            self._thread = None
        self._stores.pop(number, None)

    # For who asks

    def create(
        self, number: int, *, stop: Stop = never, passed: Passed = nothing, patience: float = 60.0
    ) -> Taken:
        """Take a snapshot of a partition now, without stopping whoever turns it."""
        shelf = self.shelves[number]
        about = About(
            self._log,
            self.versions,
            __version__,
            format_instant(self._clock()),
            getattr(self._log, "origin", {}),
        )

        def live(target: Path) -> None:
            self._copy_live(number, target)

        with shelf.locked(patience):
            try:
                return take(shelf, live, about, stop=stop, passed=passed)
            except StoreDamaged as error:
                self.broken[number] = error.what
                raise

    def take(self, number: int, passed: Passed) -> dict[str, Any] | None:
        """See Kept.take."""
        if number not in self._stores and not self._disk.exists(self._folder / str(number)):
            return None
        taken = self.create(number, passed=passed)
        name = taken.snapshot.name
        row = self._described(number, name)
        row |= {"is_new": taken.is_new, "bytes_copied": taken.bytes_copied, "bytes_uploaded": None}
        if self.remotes:
            row["bytes_uploaded"] = self._upload(number, name).bytes
        return row

    def _upload(self, number: int, name: str) -> Uploaded:
        try:
            return self.uploads.upload(number, name)[0]
        except PlaceUnavailable as error:
            what = f"snapshot {name} of partition {number} is taken and is not uploaded yet"
            raise PlaceUnavailable(f"{what}: {error.message}; foldlog snapshot create") from error

    def _copy_live(self, number: int, target: Path) -> None:
        store = self._stores.get(number)
        if store is not None:
            store.checkpoint(target)
        else:
            self._disk.copy_live(self._folder / str(number), target)

    def prune(
        self,
        number: int,
        keep: int | None = None,
        *,
        fresh: str | None = None,
        stop: Stop = never,
        patience: float = 60.0,
    ) -> Pruned:
        """Keep the newest snapshots that verify (``fresh`` was, just now), remove older ones."""
        shelf = self.shelves[number]
        with shelf.locked(patience):
            return prune(shelf, keep or self.settings.keep, fresh=fresh, stop=stop)

    def verify(self, number: int, name: str, passed: Passed = nothing) -> Snapshot:
        """Check one snapshot that is here whole; SnapshotDamaged, SnapshotMissing."""
        shelf = self.shelves[number]
        with shelf.locked():  # or what is pruned meanwhile would look broken
            return verified(shelf, name, passed=passed)

    def lie(self, number: int) -> dict[str, list[str]]:
        """Where each snapshot of a partition lies (here, at the place), newest first."""
        here, there = self.shelves[number].names(), self._names_there(number)
        return {
            name: [where for where, names in ((HERE, here), (THERE, there)) if name in names]
            for name in sorted({*here, *there}, reverse=True)
        }

    def _names_there(self, number: int) -> list[str]:
        return self.remotes[number].names() if self.remotes else []

    def manifest(self, number: int, name: str) -> Manifest:
        """A snapshot's manifest, wherever it lies; SnapshotDamaged, SnapshotMissing."""
        if name in self.shelves[number].names() or not self.remotes:
            return self.shelves[number].read(name).manifest
        return self.remotes[number].read(name).manifest

    def names(self, number: int) -> list[str]:
        """See Kept.names; one whose manifest does not read is among them, to be met as damaged."""
        found = list[str]()
        for name in self.lie(number):
            with contextlib.suppress(SnapshotDamaged):
                if unusable(self.manifest(number, name), self.versions) is not None:
                    continue
            found.append(name)
        return found

    @contextlib.contextmanager
    def opened(self, number: int, name: str) -> Iterator[Store]:
        """See Kept.opened; the copy lies where the machine keeps temporary files."""
        with self._disk.temporary() as folder:
            target = folder / str(number)
            shelf = self.shelves[number]
            try:
                if name in shelf.names() or not self.remotes:
                    with shelf.locked():
                        restored(shelf.read(name), target)
                else:
                    apart = Shelf(folder / "fetched", number, self._disk)
                    restored(self.remotes[number].fetch(name, apart), target)
            except SnapshotDamaged as error:
                raise SnapshotDamaged(f"snapshot {name}: {error.message}") from error
            store = self._disk.store(target)
            try:
                yield store
            finally:
                store.close()

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        """Every snapshot of a partition as ``snapshot list`` shows it, newest first; their files
        are not looked at."""
        for name, places in self.lie(number).items():
            yield {**self._described(number, name), "where": places}
        remote = self.remotes[number].quarantined() if self.remotes else {}
        for where, bad in ((HERE, self.shelves[number].quarantined()), (THERE, remote)):
            for name, reason in sorted(bad.items(), reverse=True):
                yield {"partition": number, "name": name, "state": "quarantined",
                       "reason": reason, **_NOTHING, "where": [where]}  # fmt: skip

    def _described(self, number: int, name: str) -> dict[str, Any]:
        head = {"partition": number, "name": name}
        try:
            manifest = self.manifest(number, name)
        except SnapshotDamaged as error:
            return {**head, "state": "damaged", "reason": error.message, **_NOTHING}
        return {**head, "state": "published", "reason": None, **_said(manifest)}

    def find(self, name: str) -> int:
        """The partition that has a snapshot of this name."""
        for number in range(len(self.shelves)):
            if NAME.fullmatch(name) and name in self.lie(number):
                return number
        raise SnapshotMissing(f"no snapshot {name}: foldlog snapshot list")

    def close(self) -> None:
        """End what is under way."""
        self.uploads.close()


def _remotes(url: str | None, log: Log) -> list[RemoteShelf]:
    if url is None:
        return []
    place = open_place(url)
    return [RemoteShelf(place, log.identity, number) for number in range(log.partitions)]


def _said(manifest: Manifest) -> dict[str, Any]:
    meta = manifest.meta
    return {
        "sequence": meta.sequence,
        "position": meta.position,
        "offset": meta.offset,
        "head": meta.head.hex(),
        "log": meta.identity,
        "origin": dict(manifest.origin),
        "taken_at": manifest.taken_at,
        "build": manifest.build,
        "state_format": manifest.versions.state_format,
        "schema_version": manifest.versions.schema_version,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "keys": sum(manifest.keys.values()),
    }


_NOTHING: dict[str, Any] = dict.fromkeys(
    "sequence position offset head log origin taken_at build state_format schema_version files "
    "bytes keys".split()
)


def _newest(shelf: Shelf) -> int:
    """The sequence of the newest snapshot; 0 without one."""
    with contextlib.suppress(IndexError):
        return int(shelf.names()[0][:16])
    return 0
