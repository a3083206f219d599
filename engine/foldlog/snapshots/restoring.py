"""A snapshot restored: copied into a fresh folder, every file checked as it passes, then opened.

Invariants:
- A snapshot is only read. What is restored shares nothing with it.
- A folder that ``restored`` made is the store that the snapshot's manifest describes, lifted to
  this build's state format; its caller gives it its place. On any error the folder is gone.
- A bad snapshot is SnapshotDamaged; a disk that takes no more is an OSError, and says nothing
  about the snapshot.
"""

from __future__ import annotations

from pathlib import Path

from foldlog.errors import SnapshotDamaged
from foldlog.migrating import migrate
from foldlog.snapshots.checking import (
    check_contents,
    check_file,
    check_names,
    key_counts,
    read_meta,
    stopping,
)
from foldlog.snapshots.copying import (
    Passed,
    Stop,
    Unreadable,
    copied,
    never,
    nothing,
)
from foldlog.snapshots.shelf import Snapshot
from foldlog.store.base import StoreDamaged
from foldlog.wire import keys
from foldlog.wire.slots import STATE_FORMAT
from foldlog.working import ProjectionDamaged


def restored(
    snapshot: Snapshot,
    target: Path,
    *,
    stop: Stop = never,
    passed: Passed = nothing,
) -> None:
    """Make ``target``, a new folder, the store that a snapshot holds; durable on return."""
    disk = snapshot.disk
    disk.make(target)
    try:
        check_names(snapshot)
        for said in snapshot.manifest.files:
            try:
                found = copied(disk, snapshot.files / said.name, target / said.name, stop, passed)
            except Unreadable as error:
                raise SnapshotDamaged(str(error)) from error
            check_file(said, found)
        _open_once(snapshot, target, stop)
        disk.sync(target)
        disk.sync(target.parent)
    except BaseException:
        disk.remove(target)
        raise


def _open_once(snapshot: Snapshot, target: Path, stop: Stop) -> None:
    """Open what was copied as a store, compare it with the manifest, lift it, and close it."""
    try:
        store = snapshot.disk.store(target)
        try:
            meta = read_meta(store.get(keys.META))
            check_contents(snapshot, meta, key_counts(store.tally(stopping(stop))))
            if meta.format < STATE_FORMAT:
                migrate(store, lambda run_id, head: snapshot.manifest.build)
        finally:
            store.close()
    except StoreDamaged as error:
        raise SnapshotDamaged(f"it does not open whole: {error.what}") from error
    except ProjectionDamaged as error:
        raise SnapshotDamaged(f"a value in it does not read: {error.message}") from error
