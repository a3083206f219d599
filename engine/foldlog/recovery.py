"""A partition's store for who begins to hold it: the warm one, else a snapshot's, else a new one.

    projection/0               the store
    projection/0.restoring     a snapshot on its way; worthless after a crash
    projection/0.links         links to a store's files while it is copied; worthless after a crash
    projection/0.damaged       a store that was found broken, with the reason in reason.txt

Invariants:
- A warm store is opened as it is: nothing is read of it but how far it is folded, and by what. One
  of an older state format or of other rules is rebuilt first (``rebuilding``).
- A snapshot is used only if every file has its hash, it is of this log and within it, this build
  can go on from it, and it opens with the keys it had. It comes to its place by a rename.
- A bad snapshot is quarantined, and the next older one tried; then the fold begins at the start.
- A full or failing disk says nothing about a snapshot: nothing is quarantined for it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from foldlog.core.catalogue import Catalogue
from foldlog.core.state import StateUnreadable
from foldlog.disk import Database, Disk
from foldlog.errors import (
    Damaged,
    HomeBusy,
    LogTrimmed,
    PlaceUnavailable,
    SnapshotDamaged,
    SnapshotMissing,
    Unavailable,
    Usage,
)
from foldlog.log.base import Log
from foldlog.migrating import migrate
from foldlog.rebuilding import Rebuilt, beside, build, swap
from foldlog.snapshots.copying import Stop, Stopped, copied, never
from foldlog.snapshots.manifest import Manifest, Versions, unusable
from foldlog.snapshots.remote import RemoteShelf
from foldlog.snapshots.restoring import restored
from foldlog.snapshots.shelf import Shelf, Snapshot
from foldlog.snapshots.sources import Sources
from foldlog.store.base import StoreDamaged
from foldlog.turn import check_projection
from foldlog.views import View
from foldlog.wire import keys, slots
from foldlog.wire.slots import STATE_FORMAT, Meta, RunHead
from foldlog.working import UNKNOWN_BUILD

RESTORING, DAMAGED, LINKS = ".restoring", ".damaged", ".links"
TELL_SECONDS = 1.0

logger = logging.getLogger("foldlog")

Tell = Callable[[str, int, int, int], None]
"""Told of progress: what is done, to which partition, how much of it, of how much."""


class Teller:
    """Logs how far a long recovery is, at most once a second, with an estimate of what is left.

    ``alive`` is called as often.
    """

    def __init__(self, alive: Callable[[], None] = lambda: None) -> None:
        self._alive = alive
        self._what = ("", -1)
        self._began = self._told = 0.0

    def __call__(self, what: str, partition: int, done: int, whole: int) -> None:
        """So much of the whole is done."""
        now = time.monotonic()
        if (what, partition) != self._what:
            self._what, self._began, self._told = (what, partition), now, now
        if now - self._told < TELL_SECONDS or not done:
            return
        self._told = now
        self._alive()
        left = (now - self._began) * max(0, whole - done) / done
        facts = {"event": "recovering", "what": what, "partition": partition, "done": done,
                 "whole": whole, "seconds_left": round(left, 1)}  # fmt: skip
        words = "partition %d: %s, %d of %d, about %d s left"
        logger.info(words, partition, what, done, whole, left, extra=facts)


class Recovery:
    """Opens the stores in a folder for who may hold them; ``log`` is the log they are a fold of."""

    def __init__(
        self,
        folder: Path,
        log: Log,
        disk: Disk,
        versions: Versions,
        rules: Mapping[int, Catalogue],
        tell: Tell,
        stop: Stop = never,
        remotes: Sequence[RemoteShelf] = (),
    ) -> None:
        self._folder = folder
        self._log = log
        self._disk = disk
        self._versions = versions
        self._rules = rules
        self._tell = tell
        self._stop = stop
        self._remotes = remotes
        self._is_place_away = False

    def open(self, shelf: Shelf) -> Database:
        """A partition's store.

        Damaged if a snapshot shows that the log was cut, Unavailable if the disk does not let it
        be restored, StoreError as of opening, Stopped if told so.
        """
        path = self._folder / str(shelf.partition)
        with disk_told(path):
            swap(self._disk, path)
            self._disk.remove(beside(path, RESTORING))
            reason = self._disk.damage(path)
        if reason is None and self._disk.exists(path):
            try:
                store = self._warm(path, shelf)
            except StoreDamaged as error:
                reason = error.what
            else:
                if store is not None:
                    return self._as_this_build_has_it(path, shelf, store)
        with disk_told(path):
            self._replace(path, shelf, reason)
        return self._disk.store(path)

    def _as_this_build_has_it(self, path: Path, shelf: Shelf, store: Database) -> Database:
        """The store, or one built in its place where it was folded by other rules or formats."""
        try:
            source = _outdated(store)
        except BaseException:
            store.close()
            raise
        if source is None:
            return store
        store.close()
        facts = {"event": "rebuilding", "partition": shelf.partition, "source": source}
        logger.info("rebuilds partition %d: it is of another build", shelf.partition, extra=facts)
        try:
            self.rebuild(shelf, source)
        except HomeBusy as error:
            raise Unavailable(error.message) from error
        with disk_told(path):
            swap(self._disk, path)
        return self._disk.store(path)

    def rebuild(self, shelf: Shelf, source: str) -> Rebuilt:
        """Build a partition's store beside the one that is there, until it waits to be swapped in.
        HomeBusy while another process does.

        ``source`` is where to begin: a copy of the ``store``, the newest good ``snapshot`` (else
        the start), the ``start`` of the log. If runs then differ from the old store, the start of
        the log decides: it is built once more from there.
        """
        path, number = self._folder / str(shelf.partition), shelf.partition

        def tell(records: int) -> None:
            if self._stop():
                raise Stopped
            self._tell("records folded", number, records, records)

        def build_from(source: str) -> Rebuilt:
            begin = partial(self._begin, path, shelf, source)
            return build(self._disk, path, self._log, number, begin, rules=self._rules, tell=tell)

        lock = self._disk.lock(self._folder / "rebuild.lock")
        if lock is None:
            raise HomeBusy("another process rebuilds this home: wait for it")
        try:
            with disk_told(path):
                rebuilt = build_from(source)
                if rebuilt.differing and rebuilt.begun_with != "start":
                    rebuilt = build_from("start")
        finally:
            lock.release()
        for run_id in rebuilt.differing:
            facts = {"event": "run_differs", "partition": number, "run_id": run_id}
            logger.warning("run %s was not the fold of the log", run_id, extra=facts)
        return rebuilt

    def _begin(self, path: Path, shelf: Shelf, source: str, fresh: Path) -> str | None:
        if source == "store":
            self._copy(path, shelf.partition, fresh)
            return "store"
        if source == "snapshot":
            snapshot = self.restore_newest(shelf, fresh)
            return None if snapshot is None else f"snapshot {snapshot.name}"
        return None

    def _copy(self, path: Path, number: int, fresh: Path) -> None:
        """Copy a store really, and lift it to this build's state format."""
        disk, links = self._disk, beside(path, LINKS)
        disk.remove(links)
        disk.copy_live(path, links)
        disk.make(fresh)
        for name in sorted(disk.names(links)):
            copied(disk, links / name, fresh / name)
        disk.remove(links)
        store = disk.store(fresh)
        try:
            view = View(self._log, store, number, self._rules)

            def build_of(run_id: str, head: RunHead) -> str:
                record = view.record(run_id, head.sequence)
                return UNKNOWN_BUILD if record is None else record.build

            migrate(store, build_of)
        finally:
            store.close()

    def _warm(self, path: Path, shelf: Shelf) -> Database | None:
        """The store that is there; None if nothing is folded, and the place may have more."""
        store = self._disk.store(path)
        try:
            if store.get(keys.META) is not None:
                return store
            if shelf.names():
                raise StoreDamaged(str(path), "it opens empty, and there are snapshots of it", "")
            if not self._remotes:
                return store
        except BaseException:
            store.close()
            raise
        store.close()
        return None

    def _replace(self, path: Path, shelf: Shelf, reason: str | None) -> None:
        """Put the newest good snapshot at a store's place, or nothing."""
        number = shelf.partition
        if reason is not None:
            facts = {"event": "store_damaged", "partition": number, "reason": reason}
            logger.warning("the store of partition %d is damaged: %s", number, reason, extra=facts)
        fresh = beside(path, RESTORING)
        found = self.restore_newest(shelf, fresh) is not None
        put_aside(self._disk, path, reason)
        if found:
            self._disk.rename(fresh, path)
            self._disk.sync(self._folder)

    def replace(self, shelf: Shelf, name: str | None) -> Snapshot | None:
        """Put a snapshot (the newest good one) at the place of a store that nobody has open.

        None if there is none, and then nothing is changed. Otherwise errors as of ``open``, and
        SnapshotMissing, SnapshotDamaged or Usage for a named one that is not there or of no use.
        """
        path = self._folder / str(shelf.partition)
        fresh = beside(path, RESTORING)
        self._disk.remove(fresh)
        with disk_told(path):
            if name is None:
                snapshot = self.restore_newest(shelf, fresh)
            else:
                snapshot = self._restore_named(shelf, name, fresh)
            if snapshot is not None:
                put_aside(self._disk, path, None)
                self._disk.rename(fresh, path)
                self._disk.sync(self._folder)
        return snapshot

    def _restore_named(self, shelf: Shelf, name: str, fresh: Path) -> Snapshot:
        with shelf.locked():
            sources = self._sources(shelf)
            sources.names()
            manifest = sources.manifest(name)
            if not self.is_usable(manifest, shelf.partition, sources.where(name)):
                raise Usage(f"snapshot {name} is of no use: {unusable(manifest, self._versions)}")
            snapshot = sources.snapshot(name)
            self.restore(snapshot, fresh, shelf.partition)
            return snapshot

    def restore_newest(self, shelf: Shelf, fresh: Path) -> Snapshot | None:
        """Restore the newest good snapshot into a fresh folder, one of the place elsewhere too.

        None if there is none. A place that does not answer is waited for, and then done without
        where the log reaches back to its start; else PlaceUnavailable.
        """
        sources = self._sources(shelf)
        if not (names := sources.names()):
            return self._done_without(sources, None)
        with shelf.locked():
            for name in names:
                while sources.has(name):
                    if (snapshot := self._restored(sources, name, fresh)) is not None:
                        return self._done_without(sources, snapshot)
        return self._done_without(sources, None)

    def _sources(self, shelf: Shelf) -> Sources:
        remote = self._remotes[shelf.partition] if self._remotes else None
        # Who has waited for the place for one partition need not for the next.
        return Sources(shelf, remote, self._stop, self._tell, not self._is_place_away)

    def _done_without(self, sources: Sources, found: Snapshot | None) -> Snapshot | None:
        """Say what a place that does not answer was done without."""
        number, outage = sources.partition, sources.outage
        self._is_place_away = outage is not None
        if outage is None:
            return found
        if found is None:
            try:
                check_projection(self._log, number, Meta(self._log.identity, number))
            except Damaged as error:
                raise PlaceUnavailable(f"{outage.message}; without it, {error.what}") from error
        instead = "the start of the log" if found is None else f"snapshot {found.name}"
        facts = {"event": "place_unreachable", "partition": number, "instead": instead}
        words = "partition %d goes on from %s, for the place of snapshots is out of reach: %s"
        logger.warning(words, number, instead, outage, extra=facts)
        return found

    def _restored(self, sources: Sources, name: str, fresh: Path) -> Snapshot | None:
        """One snapshot restored; if it is not, it is not in the sources any more."""
        number = sources.partition
        try:
            if not self.is_usable(sources.manifest(name), number, sources.where(name)):
                sources.drop(name)
                return None
            snapshot = sources.snapshot(name)
            self.restore(snapshot, fresh, number)
        except SnapshotDamaged as error:
            facts = {"event": "snapshot_damaged", "partition": number, "snapshot": name}
            words = "snapshot %s in %s is damaged: %s"
            logger.warning(words, name, sources.where(name), error, extra=facts)
            sources.quarantine(name, error.message)
            return None
        except SnapshotMissing:
            sources.drop(name)  # pruned meanwhile
            return None
        except PlaceUnavailable as error:
            sources.lose(error)
            return None
        facts = {"event": "restored", "partition": number, "snapshot": name}
        logger.info("restored partition %d from snapshot %s", number, name, extra=facts)
        return snapshot

    def restore(self, snapshot: Snapshot, fresh: Path, number: int) -> None:
        """Restore one snapshot into a fresh folder, telling how far it is."""
        done, whole = 0, snapshot.manifest.size

        def passed(size: int) -> None:
            nonlocal done
            done += size
            self._tell("bytes restored", number, done, whole)

        restored(snapshot, fresh, stop=self._stop, passed=passed)

    def is_usable(self, manifest: Manifest, number: int, lies: str) -> bool:
        """Whether this build can go on from a snapshot here; the log is asked.

        SnapshotDamaged if it is of another partition or log. Damaged if this very log once held
        what the snapshot holds and holds it no more, LogTrimmed if the log lacks what comes next
        (older snapshots would need more of it).
        """
        here = (self._log.identity, number)
        if (there := (manifest.meta.identity, manifest.meta.partition)) != here:
            raise SnapshotDamaged(f"it is of partition {there[1]} of log {there[0]}")
        why = unusable(manifest, self._versions)
        if why is not None:
            facts = {"event": "snapshot_unusable", "partition": number, "snapshot": manifest.name}
            logger.info("snapshot %s is of no use: %s", manifest.name, why, extra=facts)
            return False
        try:
            check_projection(self._log, number, manifest.meta)
        except Damaged as error:
            if isinstance(error, LogTrimmed | StateUnreadable):
                raise
            what = (
                f"snapshot {manifest.name}: {error.what}; if the log was put back to an older copy "
                f"on purpose, take it away from {lies}"
            )
            where = (error.partition, error.run_id, error.sequence)
            raise Damaged(*where, what, error.expected, error.found) from None
        return True


def replaced(recovery: Recovery, shelf: Shelf, name: str | None) -> dict[str, Any]:
    """``Recovery.replace``, and what came of it as ``snapshot restore`` shows it."""
    found = recovery.replace(shelf, name)
    said = (found.name, found.manifest.meta.sequence) if found else (None, None)
    return {"partition": shelf.partition, "name": said[0], "sequence": said[1]}


def put_aside(disk: Disk, path: Path, reason: str | None) -> None:
    """Move a store that is not to be used out of its place: kept if it was found broken."""
    if not disk.exists(path):
        return
    target = beside(path, DAMAGED)
    disk.remove(target)
    disk.rename(path, target)
    if reason is None:
        disk.remove(target)
        return
    with contextlib.suppress(OSError):
        disk.create(target / "reason.txt", [(reason + "\n").encode()])


def _outdated(store: Database) -> str | None:
    """What a store that another build folded is to be rebuilt from; None if it need not be."""
    data = store.get(keys.META)
    if data is None or slots.is_of_this_build(data):
        return None
    return "store" if slots.decode_meta(data).format < STATE_FORMAT else "start"


@contextlib.contextmanager
def disk_told(path: Path) -> Iterator[None]:
    """A disk that fails under a recovery, as users meet it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise Unavailable(
            f"{path} cannot be restored: {why}; see to the disk, then open the home again"
        ) from error
