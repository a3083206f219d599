"""A snapshot made: flush, checkpoint, copies of what is new, a check of the whole, then its name.

Invariants:
- Every file was really copied once: a checkpoint's hard links to the live store never get into a
  snapshot, so no bad block is in both. Between snapshots a table is shared, not copied again.
- What gets a name was read back: the new files by hash, the whole by opening it and counting.
- Stopped, full or killed on the way, it leaves the snapshots as they were.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foldlog.disk import Disk
from foldlog.errors import SnapshotDamaged, Unavailable
from foldlog.log.base import Log
from foldlog.snapshots.checking import check_file, check_files, contents, verified
from foldlog.snapshots.copying import (
    Passed,
    Stop,
    Stopped,
    copied,
    hashed,
    is_same_table,
    never,
    nothing,
)
from foldlog.snapshots.manifest import (
    FILES_FOLDER,
    MANIFEST_FILE,
    Copied,
    Manifest,
    Versions,
    encode_manifest,
)
from foldlog.snapshots.shelf import Shelf, Snapshot
from foldlog.store.base import StoreError
from foldlog.turn import check_projection

Live = Callable[[Path], None]
"""Puts the files of a live store, as of one moment, into a new folder: links or copies."""


@dataclass(frozen=True, slots=True)
class About:
    """What a manifest says that is not in the files."""

    log: Log
    versions: Versions
    build: str
    taken_at: str
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot, and how many bytes it took to make; none where the newest one is as new."""

    snapshot: Snapshot
    bytes_copied: int
    is_new: bool = True


def take(
    shelf: Shelf, live: Live, about: About, *, stop: Stop = never, passed: Passed = nothing
) -> Taken:
    """Make a snapshot of what ``live`` gives, and publish it; the caller has the lock.

    Damaged if that is no fold of the log, StoreError if it cannot be read to its end, OSError if
    it cannot be written, Stopped if told so: then there is no new snapshot. An older one whose
    files turn out to be bad on the way is quarantined.
    """
    while True:
        before = _newest(shelf)
        try:
            return _made(shelf, live, about, before, stop, passed)
        except (StoreError, SnapshotDamaged):
            # Either the live store has a broken block, or a table shared with the one before.
            reason = None if before is None else _what_is_wrong(before, stop)
            if before is None or reason is None:
                raise
            shelf.quarantine(before.name, reason)


def _made(
    shelf: Shelf, live: Live, about: About, before: Snapshot | None, stop: Stop, passed: Passed
) -> Taken:
    with shelf.workshop() as folder:
        disk, links, files = shelf.disk, folder / "live", folder / FILES_FOLDER
        live(links)
        disk.make(files)
        listed, size = [], 0
        for name in sorted(disk.names(links)):
            entry, is_shared = _placed(disk, links / name, files / name, before, stop, passed)
            listed.append(entry)
            size += 0 if is_shared else entry.size
        disk.remove(links)
        if disk.exists(links):  # or they would be published with it
            raise OSError(errno.EIO, f"{links} cannot be removed")
        disk.sync(files)
        manifest = _described(disk, files, tuple(listed), shelf.partition, about, stop)
        if before is not None and _says_the_same(before.manifest, manifest):
            return Taken(verified(shelf, before.name, stop), 0, is_new=False)
        disk.create(folder / MANIFEST_FILE, [encode_manifest(manifest)])
        disk.sync(folder)
        if stop():
            raise Stopped
        return Taken(shelf.publish(folder, manifest), size)


def _what_is_wrong(snapshot: Snapshot, stop: Stop) -> str | None:
    try:
        check_files(snapshot, stop)
    except SnapshotDamaged as error:
        return error.message
    return None


def _newest(shelf: Shelf) -> Snapshot | None:
    """The newest snapshot whose manifest reads: its tables need not be copied again."""
    for name in shelf.names():
        try:
            return shelf.read(name)
        except SnapshotDamaged:
            continue
    return None


def _placed(
    disk: Disk, source: Path, target: Path, before: Snapshot | None, stop: Stop, passed: Passed
) -> tuple[Copied, bool]:
    """Put a file of the live store into a snapshot; whether it is shared with the one before."""
    if before is not None and source.suffix == ".sst":
        theirs = before.files / source.name
        said = next((each for each in before.manifest.files if each.name == source.name), None)
        if said is not None and is_same_table(disk, source, theirs):
            disk.link(theirs, target)
            return said, True
    entry = copied(disk, source, target, stop, passed)
    check_file(entry, hashed(disk, target, stop))
    return entry, False


def _described(
    disk: Disk,
    files: Path,
    listed: tuple[Copied, ...],
    partition: int,
    about: About,
    stop: Stop,
) -> Manifest:
    meta, counted = contents(disk, files, stop)
    if meta.partition != partition:
        raise SnapshotDamaged(f"it is of partition {meta.partition}, not of {partition}")
    if meta.format != about.versions.state_format:
        what = f"the store has state format {meta.format} and is about to be rebuilt"
        raise Unavailable(f"partition {partition}: {what}; take a snapshot after that")
    check_projection(about.log, partition, meta)
    return Manifest(
        meta=meta,
        versions=about.versions,
        build=about.build,
        taken_at=about.taken_at,
        origin=about.origin,
        keys=counted,
        files=listed,
    )


def _says_the_same(one: Manifest, other: Manifest) -> bool:
    same = (one.versions, one.keys) == (other.versions, other.keys)
    return same and one.meta.place == other.meta.place
