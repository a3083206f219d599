"""Where snapshots lie: a folder of a home or elsewhere, and in it one for each partition.

    SHELF/0.lock                     locked by who makes, checks or removes those of partition 0
    SHELF/0/0000000000001042-ab.../  one snapshot: manifest.json, and files/ of a RocksDB database
    SHELF/0/bad-0000000000001042-.../ one that is not what it said, with the reason in reason.txt
    SHELF/0/.new-* .old-*            being made, being removed; worthless after a crash

Invariants:
- A folder with a snapshot's name is whole: it got that name when everything in it was synced, and
  loses it before the first of its files goes.
- A snapshot is never changed. Snapshots share files as hard links, with each other only.
- Who changes anything here holds the lock; looking needs none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foldlog.disk import REAL_DISK, Disk, make_whole
from foldlog.errors import HomeBusy, SnapshotDamaged, SnapshotMissing
from foldlog.snapshots.manifest import FILES_FOLDER, MANIFEST_FILE, Manifest, decode_manifest

NAME = re.compile("[0-9]{16}-[0-9a-f]{12}")
BAD = "bad-"
NEW, OLD = ".new-", ".old-"
REASON_FILE = "reason.txt"

LOCK_SECONDS = 60.0
"""How long somebody waits for another one's work on the snapshots."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot: the disk it is on, its folder, and its manifest, which is whole."""

    disk: Disk
    folder: Path
    manifest: Manifest

    @property
    def files(self) -> Path:
        """The folder of the database's files."""
        return self.folder / FILES_FOLDER

    @property
    def name(self) -> str:
        """The name by which commands know it."""
        return self.folder.name


class Shelf:
    """The snapshots of one partition. Makes its folders when something is put there."""

    def __init__(self, root: Path, partition: int, disk: Disk = REAL_DISK) -> None:
        self.disk = disk
        self.root = root
        self.partition = partition
        self.folder = root / str(partition)
        self._lock = root / f"{partition}.lock"

    # Looking

    def names(self) -> list[str]:
        """The names of the snapshots, newest first; what is in them is not looked at."""
        return sorted((name for name in self._entries() if NAME.fullmatch(name)), reverse=True)

    def quarantined(self) -> dict[str, str]:
        """The names of the snapshots that were found bad, and the reasons."""
        bad = sorted(name for name in self._entries() if name.startswith(BAD))
        return {name.removeprefix(BAD): self._reason(name) for name in bad}

    def read(self, name: str) -> Snapshot:
        """A snapshot by its name. SnapshotMissing, SnapshotDamaged if its manifest is not whole."""
        folder = self.folder / name
        if not NAME.fullmatch(name) or not self.disk.exists(folder):
            raise SnapshotMissing(f"no snapshot {name} of partition {self.partition} in "
                                  f"{self.root}: foldlog snapshot list")  # fmt: skip
        try:
            manifest = decode_manifest(self._bytes(folder / MANIFEST_FILE))
        except OSError as error:
            why = error.strerror or str(error)
            raise SnapshotDamaged(f"{MANIFEST_FILE} cannot be read ({why})") from error
        if manifest.name != name:
            raise SnapshotDamaged(f"the manifest is that of {manifest.name}")
        return Snapshot(self.disk, folder, manifest)

    def _bytes(self, path: Path) -> bytes:
        with self.disk.open(path) as stream:
            return stream.read()

    def _entries(self) -> list[str]:
        try:
            return self.disk.names(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _reason(self, name: str) -> str:
        try:
            reason = self._bytes(self.folder / name / REASON_FILE)
            return reason.decode("utf-8", "replace").strip()
        except OSError:
            return "unknown"

    # Changing, with the lock

    @contextlib.contextmanager
    def locked(self, patience: float = LOCK_SECONDS) -> Iterator[None]:
        """Alone with the snapshots; HomeBusy if somebody else works on them for so long."""
        make_whole(self.disk, self.root)
        lock = self.disk.lock(self._lock, patience)
        if lock is None:
            raise HomeBusy(f"somebody else works on the snapshots in {self.folder}: wait")
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def workshop(self) -> Iterator[Path]:
        """A new folder that goes with the block, unless ``publish`` gave it a name."""
        make_whole(self.disk, self.folder)
        self.clear()
        folder = self.folder / f"{NEW}{self.disk.token()}"
        self.disk.make(folder)
        try:
            yield folder
        finally:
            self.disk.remove(folder)

    def publish(self, folder: Path, manifest: Manifest) -> Snapshot:
        """Give a whole, synced folder its name: from here on it is a snapshot."""
        target = self.folder / manifest.name
        self.disk.rename(folder, target)
        # The folders above too: who made them may have died before they were durable.
        for above in (self.folder, self.root, self.root.parent):
            self.disk.sync(above)
        return Snapshot(self.disk, target, manifest)

    def quarantine(self, name: str, reason: str) -> None:
        """Take a snapshot's name away and say why; its files are kept."""
        target = self.folder / f"{BAD}{name}"
        self.disk.remove(target)
        self.disk.rename(self.folder / name, target)
        with contextlib.suppress(OSError):  # a full disk must not keep the name there
            self.disk.create(target / REASON_FILE, [(reason + "\n").encode()])
        self.disk.sync(self.folder)

    def remove(self, name: str) -> None:
        """Remove a snapshot, or a quarantined one (``bad-NAME``)."""
        going = self.folder / f"{OLD}{name}"
        self.disk.rename(self.folder / name, going)
        self.disk.sync(self.folder)
        self.disk.remove(going)

    def remove_quarantined(self, name: str) -> None:
        """Remove a snapshot that was found bad."""
        self.remove(BAD + name)

    def clear(self) -> None:
        """Remove what a crash left."""
        for name in self._entries():
            if name.startswith((NEW, OLD)):
                self.disk.remove(self.folder / name)
