"""Files copied for good: really copied, hashed while they pass, synced; and folders synced.

Invariants:
- A file that could not be read and one that could not be written are told apart: the first is the
  snapshot's fault, the second the disk's that it goes to.
- Nothing is left open or half reported: an error leaves a file that its caller removes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from foldlog.disk import Disk
from foldlog.snapshots.manifest import Copied

CHUNK_BYTES = 1 << 20

TAIL_BYTES = 4096
"""RocksDB ends each table with its properties, among them the random id of the opening that wrote
it and its number in that opening; they, and the blocks after them, take less than 1 KiB."""

Stop = Callable[[], bool]
"""Whether to leave off; asked between two chunks."""

Passed = Callable[[int], None]
"""Told of bytes that were read or copied."""


class Unreadable(OSError):
    """A file that is to be copied or hashed cannot be read."""


class Stopped(Exception):
    """The work was told to stop; nothing of it is visible."""


def never() -> bool:
    """For who is not stopped."""
    return False


def nothing(size: int) -> None:
    """For who does not watch."""


def chunks(disk: Disk, path: Path, stop: Stop = never) -> Iterator[bytes]:
    """A file's bytes in pieces; Unreadable if they cannot be had, Stopped if told so."""
    try:
        with disk.open(path) as stream:
            while data := stream.read(CHUNK_BYTES):
                if stop():
                    raise Stopped
                yield data
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read ({error.strerror or error})") from error


def hashed(disk: Disk, path: Path, stop: Stop = never, passed: Passed = nothing) -> Copied:
    """What a file is: its name, size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    for data in chunks(disk, path, stop):
        digest.update(data)
        size += len(data)
        passed(len(data))
    return Copied(path.name, size, digest.hexdigest())


def copied(
    disk: Disk, source: Path, target: Path, stop: Stop = never, passed: Passed = nothing
) -> Copied:
    """Copy a file into a new one and sync it; OSError if it cannot be written."""
    digest, size = hashlib.sha256(), 0
    pieces = chunks(disk, source, stop)
    first = next(pieces, b"")  # a source that cannot be opened makes no target

    def passing() -> Iterator[bytes]:
        nonlocal size
        data = first
        while data:
            digest.update(data)
            size += len(data)
            yield data
            passed(len(data))
            data = next(pieces, b"")

    disk.create(target, passing())
    return Copied(target.name, size, digest.hexdigest())


def is_same_table(disk: Disk, ours: Path, theirs: Path) -> bool:
    """Whether two files of one name are the same table of RocksDB, by size and end."""
    try:
        return _tail(disk, ours) == _tail(disk, theirs)
    except OSError:
        return False


def _tail(disk: Disk, path: Path) -> tuple[int, bytes]:
    with disk.open(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        return size, stream.read(TAIL_BYTES)
