"""Whether a snapshot is what its manifest says: each file by its hash, then what it opens as.

Invariants:
- Checking changes no file of a snapshot: it is opened through a folder of links.
- What does not fit is SnapshotDamaged; a disk that fails elsewhere is an OSError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from foldlog.disk import Disk
from foldlog.errors import SnapshotDamaged
from foldlog.snapshots.copying import (
    Passed,
    Stop,
    Stopped,
    Unreadable,
    hashed,
    never,
    nothing,
)
from foldlog.snapshots.manifest import FILES_FOLDER, MANIFEST_FILE, Copied
from foldlog.snapshots.shelf import Shelf, Snapshot
from foldlog.store.base import StoreDamaged
from foldlog.wire import keys, slots
from foldlog.wire.slots import Meta


def verified(shelf: Shelf, name: str, stop: Stop = never, passed: Passed = nothing) -> Snapshot:
    """A snapshot, checked whole; SnapshotMissing or SnapshotDamaged."""
    snapshot = shelf.read(name)
    check_files(snapshot, stop, passed)
    try:
        meta, counted = contents(shelf.disk, snapshot.files, stop)
    except StoreDamaged as error:
        raise SnapshotDamaged(f"it does not open whole: {error.what}") from error
    check_contents(snapshot, meta, counted)
    return snapshot


def check_files(snapshot: Snapshot, stop: Stop = never, passed: Passed = nothing) -> None:
    """Every file is there with its size and hash, and no other is."""
    check_names(snapshot)
    for copied in snapshot.manifest.files:
        try:
            found = hashed(snapshot.disk, snapshot.files / copied.name, stop, passed)
        except Unreadable as error:
            raise SnapshotDamaged(str(error)) from error
        check_file(copied, found)


def check_names(snapshot: Snapshot) -> None:
    """The folders hold what the manifest lists and nothing else."""
    wanted = {copied.name for copied in snapshot.manifest.files}
    for folder, names in (
        (snapshot.folder, {MANIFEST_FILE, FILES_FOLDER}),
        (snapshot.files, wanted),
    ):
        try:
            found = set(snapshot.disk.names(folder))
        except OSError as error:
            raise SnapshotDamaged(f"{folder.name} cannot be listed ({error.strerror})") from error
        for name in sorted(names - found):
            raise SnapshotDamaged(f"{name} is not there")
        for name in sorted(found - names):
            raise SnapshotDamaged(f"{name} is no part of it")


def check_file(said: Copied, found: Copied) -> None:
    """A file is the one that the manifest names."""
    if found.size != said.size:
        raise SnapshotDamaged(f"{said.name} has {found.size} bytes, not {said.size}")
    if found.sha256 != said.sha256:
        raise SnapshotDamaged(f"{said.name} has SHA-256 {found.sha256}, not {said.sha256}")


def contents(disk: Disk, files: Path, stop: Stop = never) -> tuple[Meta, dict[str, int]]:
    """How far the database in a folder is folded, and how many keys of each kind it has.

    StoreError if it does not open or cannot be read to its end, SnapshotDamaged if it is empty.
    """
    follower = disk.follow(files)
    try:
        data = follower.get(keys.META)
        counted = key_counts(follower.tally(stopping(stop)))
    finally:
        follower.close()
    return read_meta(data), counted


def stopping(stop: Stop) -> Callable[[int], None]:
    """Ends a reading of keys when it is told to stop."""

    def each(keys: int) -> None:
        if stop():
            raise Stopped

    return each


def read_meta(data: bytes | None) -> Meta:
    """The position of the fold that a snapshot holds."""
    if data is None:
        raise SnapshotDamaged("it opens empty")
    try:
        return slots.decode_meta(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SnapshotDamaged(f"its position of the fold does not read: {error}") from None


def key_counts(tally: Mapping[bytes, int]) -> dict[str, int]:
    """The counts of a store's keys by their kind, as a manifest has them."""
    return {first.decode("latin-1"): count for first, count in sorted(tally.items())}


def check_contents(snapshot: Snapshot, meta: Meta, counted: Mapping[str, int]) -> None:
    """What a snapshot opened as is what its manifest says."""
    if meta.place != snapshot.manifest.meta.place:
        raise SnapshotDamaged(f"it opens at sequence {meta.sequence}, head {meta.head.hex()}, not "
                              f"at sequence {snapshot.manifest.meta.sequence}")  # fmt: skip
    if dict(counted) != dict(snapshot.manifest.keys):
        said = dict(snapshot.manifest.keys)
        raise SnapshotDamaged(f"it opens with keys {dict(counted)}, not {said}")
