"""The disk as snapshots, recovery and rebuild use it: files, folders, locks, databases in folders.

A path is a name and nothing more; whatever is done to what stands there goes through a ``Disk``.
Real here; a simulator puts its own in its place.

Invariants:
- What ``create`` and ``sync`` returned from is durable; nothing else is.
- What fails is an OSError of the operation, or a StoreError of the database, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from foldlog.locks import FileLock
from foldlog.store.base import Reader, Store
from foldlog.store.beside import link_live
from foldlog.store.follower import RocksFollower
from foldlog.store.framing import damage
from foldlog.store.rocks import RocksStore, SharedCache

LOCK_PAUSE_SECONDS = 0.02


class Counting(Reader, Protocol):
    """A database that is read and counted."""

    def tally(self, each: Callable[[int], None]) -> Mapping[bytes, int]:
        """How many keys begin with each byte, all of them read; ``each`` is told of some thousands
        at a time."""

    def close(self) -> None:
        """Let go of it."""


class Following(Counting, Protocol):
    """A database of another one, read beside him as of one moment."""

    def refresh(self) -> None:
        """Move on to what he has written since."""


class Database(Store, Counting, Protocol):
    """A store whose files can be copied while it is open."""

    @property
    def damaged(self) -> str | None:
        """What was found broken since it was opened."""

    @property
    def bytes_written(self) -> int:
        """Keys and values given to ``write`` since it was opened."""

    def checkpoint(self, path: Path) -> None:
        """Its files as of this moment, flushed, in a new folder; links where they can be."""


class Held(Protocol):
    """A lock that somebody has."""

    def release(self) -> None:
        """Let it go."""


class Disk(Protocol):
    """What is done to files and folders. OSError where it cannot be."""

    # Looking

    def names(self, folder: Path) -> list[str]:
        """What stands in a folder, in no order."""

    def exists(self, path: Path) -> bool:
        """Whether there is anything."""

    def open(self, path: Path) -> BinaryIO:
        """A file, to be read."""

    # Changing

    def create(self, path: Path, pieces: Iterable[bytes]) -> None:
        """A new file, synced. Half of it may be there where that failed."""

    def make(self, folder: Path) -> None:
        """A new folder."""

    def link(self, source: Path, target: Path) -> None:
        """A second name of a file."""

    def rename(self, source: Path, target: Path) -> None:
        """Another name for a file or folder."""

    def remove(self, folder: Path) -> None:
        """Remove a folder and all in it, as far as it can be."""

    def sync(self, folder: Path) -> None:
        """Make the names in a folder durable."""

    # Alone, and apart

    def lock(self, path: Path, seconds: float = 0.0) -> Held | None:
        """A lock on a file, tried for so long; None if another one has it."""

    def token(self) -> str:
        """A name that nothing else has."""

    def temporary(self) -> AbstractContextManager[Path]:
        """A folder for a while, where the machine keeps such."""

    # Databases

    def store(self, folder: Path) -> Database:
        """The database in a folder, or a new one; StoreError as of opening."""

    def follow(self, folder: Path) -> Following:
        """A reader of a database beside whoever has it open."""

    def copy_live(self, folder: Path, target: Path) -> None:
        """The files of a database that another one may have open, as of one moment."""

    def damage(self, folder: Path) -> str | None:
        """What is wrong with a database's folder, as far as that is seen without opening it."""


class RealDisk:
    """The machine's own. Databases share one cache."""

    def __init__(self, cache: SharedCache | None = None) -> None:
        self._cache = cache

    def names(self, folder: Path) -> list[str]:
        """See Disk.names."""
        return os.listdir(folder)

    def exists(self, path: Path) -> bool:
        """See Disk.exists."""
        return path.exists()

    def open(self, path: Path) -> BinaryIO:
        """See Disk.open."""
        return open(path, "rb")

    def create(self, path: Path, pieces: Iterable[bytes]) -> None:
        """See Disk.create."""
        with open(path, "xb") as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())

    def make(self, folder: Path) -> None:
        """See Disk.make."""
        folder.mkdir()

    def link(self, source: Path, target: Path) -> None:
        """See Disk.link."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """See Disk.rename."""
        os.rename(source, target)

    def remove(self, folder: Path) -> None:
        """See Disk.remove."""
        shutil.rmtree(folder, ignore_errors=True)

    def sync(self, folder: Path) -> None:
        """See Disk.sync."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path, seconds: float = 0.0) -> FileLock | None:
        """See Disk.lock."""
        end, lock = time.monotonic() + seconds, FileLock(path)
        while not lock.try_acquire():
            if time.monotonic() >= end:
                return None
            time.sleep(LOCK_PAUSE_SECONDS)
        return lock

    def token(self) -> str:
        """See Disk.token."""
        return secrets.token_hex(6)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """See Disk.temporary."""
        with tempfile.TemporaryDirectory(prefix="foldlog-snapshot-") as made:
            yield Path(made)

    def store(self, folder: Path) -> RocksStore:
        """See Disk.store."""
        return RocksStore(folder, self._cache)

    def follow(self, folder: Path) -> RocksFollower:
        """See Disk.follow."""
        return RocksFollower(folder, self._cache)

    def copy_live(self, folder: Path, target: Path) -> None:
        """See Disk.copy_live."""
        link_live(folder, target)

    def damage(self, folder: Path) -> str | None:
        """See Disk.damage."""
        return damage(folder)


def make_whole(disk: Disk, folder: Path) -> None:
    """A folder with all that it stands in, durable, unless it is there."""
    if disk.exists(folder):
        return
    make_whole(disk, folder.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        disk.make(folder)
    disk.sync(folder.parent)


REAL_DISK = RealDisk()
"""For whoever opens no two databases at once."""
