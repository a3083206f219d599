"""The snapshots of one partition at a place elsewhere, for whoever may have the partition next.

    FOLDER/blobs/EPOCH/SHA256           a file
    FOLDER/manifests/EPOCH/NAME.json    a snapshot's manifest, and where its files lie
    FOLDER/pointer.json                 the snapshots that there are

Invariants:
- The pointer is written last, and only if it is still the one that was read: what it names is
  whole, and of two writers none undoes what the other did.
- A blob is read back and hashed before it is named, and never written again while it is named.
- Pruning names less first and takes away then, and only what no pointer can name again (``pointer``
  says why): a file that an upload under way counts on is found gone before it is named.
- What is fetched is checked by every hash, and becomes a snapshot of the shelf by a rename.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from foldlog.disk import Disk
from foldlog.errors import SnapshotDamaged, SnapshotMissing
from foldlog.snapshots.checking import check_file
from foldlog.snapshots.copying import Passed, Stop, Stopped, never, nothing
from foldlog.snapshots.manifest import FILES_FOLDER, MANIFEST_FILE, Copied, encode_manifest
from foldlog.snapshots.place import Found, Place
from foldlog.snapshots.pointer import (
    POINTER,
    Listed,
    Placed,
    Pointer,
    blob_key,
    decode_placed,
    decode_pointer,
    encode_placed,
    encode_pointer,
    epoch_of,
    folder_of,
    manifest_key,
    sha256_of,
)
from foldlog.snapshots.pruning import KEEP_MIN, Pruned
from foldlog.snapshots.shelf import Shelf, Snapshot


class _Passing:
    """Pieces of a file, hashed as they pass."""

    def __init__(self, pieces: Iterator[bytes], stop: Stop, passed: Passed) -> None:
        self._pieces, self._stop, self._passed = pieces, stop, passed
        self._digest, self._size = hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for data in self._pieces:
            if self._stop():
                raise Stopped
            self._digest.update(data)
            self._size += len(data)
            yield data
            self._passed(len(data))

    def copied(self, name: str) -> Copied:
        """What it was, once all has passed."""
        return Copied(name, self._size, self._digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Uploaded:
    """How many bytes of how many files were uploaded; none where the snapshot was there."""

    bytes: int
    files: int


class RemoteShelf:
    """The snapshots of a partition of a log (by its identity) at a place."""

    def __init__(self, place: Place, log: str, partition: int) -> None:
        self.place = place
        self.partition = partition
        self._log = log
        self._folder = folder_of(log, partition)

    @property
    def where(self) -> str:
        """Where they lie, for people."""
        return f"{self.place.url.rstrip('/')}/{self._folder}"

    # Looking

    def names(self) -> list[str]:
        """The names of those that nothing bad is known of, newest first."""
        return [each.name for each in self._pointer()[0].good]

    def quarantined(self) -> dict[str, str]:
        """The names of those that were found bad, and the reasons."""
        listed = self._pointer()[0].snapshots
        return {each.name: each.reason for each in listed if each.reason is not None}

    def read(self, name: str) -> Placed:
        """What is placed under a name; SnapshotMissing, SnapshotDamaged."""
        for listed in self._pointer()[0].snapshots:
            if listed.name == name:
                return self._placed(listed)
        raise SnapshotMissing(f"no snapshot {name} in {self.where}: foldlog snapshot list")

    def verify(self, name: str, stop: Stop = never, passed: Passed = nothing) -> None:
        """Read every file of a snapshot and compare its hash; SnapshotMissing, SnapshotDamaged."""
        self._check_files(self.read(name), stop, passed)

    def fetch(
        self, name: str, shelf: Shelf, stop: Stop = never, passed: Passed = nothing
    ) -> Snapshot:
        """Make a snapshot one of a shelf, whose lock the caller has; OSError of its disk.

        SnapshotMissing if it was pruned by now, SnapshotDamaged.
        """
        placed = self.read(name)
        try:
            with shelf.workshop() as folder:
                disk, files = shelf.disk, folder / FILES_FOLDER
                disk.make(files)
                for copied, key in self._files(placed):
                    check_file(copied, self._download(disk, key, files / copied.name, stop, passed))
                disk.sync(files)
                disk.create(folder / MANIFEST_FILE, [encode_manifest(placed.manifest)])
                disk.sync(folder)
                return shelf.publish(folder, placed.manifest)
        except SnapshotDamaged:
            self.read(name)  # SnapshotMissing: somebody pruned it meanwhile
            raise

    def _files(self, placed: Placed) -> Iterator[tuple[Copied, str]]:
        keys = placed.keys()
        for copied in placed.manifest.files:
            yield copied, keys[copied.name]

    def _download(self, disk: Disk, key: str, target: Path, stop: Stop, passed: Passed) -> Copied:
        found = _Passing(self._pieces(key, target.name), stop, passed)
        disk.create(target, found)
        return found.copied(target.name)

    def _check_files(self, placed: Placed, stop: Stop, passed: Passed) -> None:
        for copied, key in self._files(placed):
            check_file(copied, self._hashed(key, copied.name, stop, passed))

    def _hashed(self, key: str, name: str, stop: Stop, passed: Passed) -> Copied:
        """What a blob is."""
        found = _Passing(self._pieces(key, name), stop, passed)
        for _ in found:
            pass
        return found.copied(name)

    def _pieces(self, key: str, name: str) -> Iterator[bytes]:
        pieces = self.place.chunks(self._folder + key)
        if pieces is None:
            raise SnapshotDamaged(f"{name} is not there ({self.where}{key})")
        return pieces

    # The pointer and what it names

    def _pointer(self) -> tuple[Pointer, str | None]:
        """The pointer, and its tag; an empty one of a new epoch if there is none."""
        found = self.place.read(self._folder + POINTER)
        if found is None:
            return Pointer(self._log, self.partition, self._next_epoch()), None
        try:
            pointer = decode_pointer(found.data)
        except SnapshotDamaged as error:
            remedy = "remove it; then the next snapshot is uploaded whole"
            raise SnapshotDamaged(f"{error.message} ({self.where}{POINTER}); {remedy}") from None
        if (pointer.log, pointer.partition) != (self._log, self.partition):
            raise SnapshotDamaged(f"the pointer in {self.where} is of another log or partition")
        return pointer, found.tag

    def _next_epoch(self) -> int:
        """One that nothing that lies there is of."""
        return 1 + max((epoch for _, epoch, _ in self._objects()), default=0)

    def _objects(self) -> Iterator[tuple[str, int, int]]:
        """The key, the epoch and the size of each blob and manifest there."""
        for key, size in self.place.sizes(self._folder):
            name = key.removeprefix(self._folder)
            if (epoch := epoch_of(name)) is not None:
                yield name, epoch, size

    def _placed(self, listed: Listed) -> Placed:
        key = manifest_key(listed.epoch, listed.name)
        found: Found | None = self.place.read(self._folder + key)
        if found is None:
            raise SnapshotDamaged(f"its manifest is not there ({self.where}{key})")
        if sha256_of(found.data) != listed.sha256:
            raise SnapshotDamaged(f"its manifest is not the one that was placed ({key})")
        return decode_placed(found.data)

    def _named(self, listed: tuple[Listed, ...]) -> tuple[set[str], dict[str, int]]:
        """The keys that these name, and the epoch of each file's blob by its SHA-256."""
        keys: set[str] = set()
        epochs: dict[str, int] = {}
        for each in listed:
            keys.add(manifest_key(each.epoch, each.name))
            try:
                placed = self._placed(each)
            except SnapshotDamaged:
                continue
            keys.update(placed.keys().values())
            epochs.update(placed.epochs)
        return keys, epochs

    def _write_pointer(self, pointer: Pointer, tag: str | None) -> bool:
        return self.place.replace(self._folder + POINTER, encode_pointer(pointer), tag)

    # Changing

    def upload(self, snapshot: Snapshot, stop: Stop = never, passed: Passed = nothing) -> Uploaded:
        """Place a snapshot; files that others there share with it are not uploaded again.

        Stopped, killed or cut off on the way, it leaves what there is as it was. OSError if the
        snapshot is pruned here meanwhile.
        """
        mine: dict[str, int] = {}
        size = 0

        def placed_under(epoch: int, copied: Copied) -> int:
            nonlocal size
            if mine.get(copied.sha256) != epoch:
                self._put(snapshot, copied, epoch, stop)
                mine[copied.sha256] = epoch
                size += copied.size
                passed(copied.size)
            return epoch

        while True:
            pointer, tag = self._pointer()
            if any(each.name == snapshot.name for each in pointer.good):
                return Uploaded(size, len(mine))
            _, there = self._named(pointer.good)
            epochs: dict[str, int] = {}
            try:
                for copied in snapshot.manifest.files:
                    found = there.get(copied.sha256)
                    epochs[copied.sha256] = found or placed_under(pointer.epoch, copied)
            except SnapshotDamaged:
                if self._pointer()[0].epoch == pointer.epoch:
                    raise
                continue  # pruned away before it was read back: it is written anew
            data = encode_placed(Placed(snapshot.manifest, epochs))
            self.place.write(self._folder + manifest_key(pointer.epoch, snapshot.name), data)
            listed = Listed(snapshot.name, pointer.epoch, sha256_of(data))
            if stop():
                raise Stopped
            if self._write_pointer(pointer.with_listed(listed), tag):
                return Uploaded(size, len(mine))

    def _put(self, snapshot: Snapshot, copied: Copied, epoch: int, stop: Stop) -> None:
        if stop():
            raise Stopped
        key = blob_key(epoch, copied.sha256)
        self.place.write(self._folder + key, snapshot.files / copied.name)
        check_file(copied, self._hashed(key, copied.name, stop, nothing))

    def quarantine(self, name: str, reason: str) -> None:
        """Say that a snapshot is bad: it is used no more, nor are its files by new ones."""
        while True:
            pointer, tag = self._pointer()
            listed = [each for each in pointer.good if each.name == name]
            if not listed or self._write_pointer(_marked(pointer, {name: reason}), tag):
                return

    def prune(self, keep: int = KEEP_MIN, *, whole: bool = False, stop: Stop = never) -> Pruned:
        """Keep the newest snapshots that verify, take older ones away, and what nothing names.

        Removes nothing while fewer than ``keep`` verify. A file was read back and hashed when it
        was uploaded; here it has to be there with its size, with ``whole`` with its hash.
        """
        assert keep >= KEEP_MIN, keep
        while True:
            pointer, tag = self._pointer()
            sizes = {key: size for key, _, size in self._objects()}
            kept, bad = self._verified(pointer, keep, sizes, whole, stop)
            left = _marked(pointer, bad)
            if len(kept) == keep:
                stays = tuple(each for each in left.snapshots if each.name >= kept[-1])
                left = replace(left, snapshots=stays)
                if not sizes.keys() <= self._named(stays)[0]:
                    left = replace(left, epoch=pointer.epoch + 1)
            if left == pointer or self._write_pointer(left, tag):
                break
        if left.epoch > pointer.epoch:
            self._collect(left)
        there = {each.name for each in left.snapshots}
        removed = (each.name for each in pointer.snapshots if each.name not in there)
        return Pruned(tuple(kept), tuple(removed), tuple(bad))

    def _verified(
        self, pointer: Pointer, keep: int, sizes: dict[str, int], whole: bool, stop: Stop
    ) -> tuple[list[str], dict[str, str]]:
        """The names of the newest that verify, and the bad ones on the way with the reasons."""
        kept: list[str] = []
        bad: dict[str, str] = {}
        for listed in pointer.good:
            if len(kept) == keep:
                break
            try:
                placed = self._placed(listed)
                _check_sizes(placed, sizes)
                if whole:
                    self._check_files(placed, stop, nothing)
            except SnapshotDamaged as error:
                bad[listed.name] = error.message
            else:
                kept.append(listed.name)
        return kept, bad

    def _collect(self, pointer: Pointer) -> None:
        """Take away what no pointer can name again; the manifests first."""
        named, _ = self._named(pointer.snapshots)
        gone = [
            name
            for name, epoch, _ in self._objects()
            if epoch < pointer.epoch and name not in named
        ]
        gone.sort(reverse=True)
        self.place.remove(self._folder + name for name in gone)


def _marked(pointer: Pointer, bad: dict[str, str]) -> Pointer:
    marks = [replace(each, reason=bad[each.name]) for each in pointer.good if each.name in bad]
    return pointer.with_listed(*marks)


def _check_sizes(placed: Placed, sizes: dict[str, int]) -> None:
    keys = placed.keys()
    for copied in placed.manifest.files:
        found = sizes.get(keys[copied.name])
        if found is None:
            raise SnapshotDamaged(f"{copied.name} is not there")
        if found != copied.size:
            raise SnapshotDamaged(f"{copied.name} has {found} bytes, not {copied.size}")
