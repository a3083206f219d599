"""A simulated disk: folders and files that lose what was not synced, and databases in folders.

Invariants:
- The end of a process loses nothing. The end of a machine takes back the newest names of each
  folder that were not synced, newest first, and the ends of files that were not.
- A database's files are what RocksDB's are to the engine: a CURRENT that names a MANIFEST, which
  names tables that never change, and a log of what is in no table yet. A MANIFEST cut between
  two of its records opens as a shorter one, without a word; a table's checksum says nothing of
  one that is whole and another's.
- The engine's own code does all the rest: what is copied, hashed, named, chosen and put aside.
"""

from __future__ import annotations

import errno
import io
import os
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from foldlog.store.base import StoreDamaged, StoreError, StoreMissing
from foldlog.store.memory import MemoryStore
from tests.sim.scheduler import Process, Scheduler, Task
from tests.sim.storage import SimFollower, SimStore, StoreDisk

Rows = dict[bytes, bytes]
ERRNOS = (errno.ENOSPC, errno.EROFS, errno.EIO)
ROTS = ("flipped", "cut", "deleted", "another")
TABLES_MAX = 4
"""After so many tables a database writes them anew as one."""


@dataclass(eq=False)
class File:
    """A file, under one name or several."""

    data: bytes = b""
    synced: bool = False


@dataclass(eq=False)
class Folder:
    """Names, what was changed of them since they were synced, and a database once it was opened."""

    entries: dict[str, File | Folder] = field(default_factory=dict)
    unsynced: list[dict[str, File | Folder | None]] = field(default_factory=list)
    database: StoreDisk | None = None
    broken: str | None = None
    """What of the open database's files has rotted."""

    def change(self, names: Mapping[str, File | Folder | None]) -> None:
        """Some names come, change or go, at once."""
        self.unsynced.append({name: self.entries.get(name) for name in names})
        self._set(names)

    def _set(self, names: Mapping[str, File | Folder | None]) -> None:
        for name, node in names.items():
            if node is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = node

    def lose(self, dice: random.Random) -> int:
        """The machine ended; returns how many batches of databases were lost."""
        for _ in range(dice.randint(0, len(self.unsynced))):
            self._set(self.unsynced.pop())
        self.unsynced.clear()
        lost = 0 if self.database is None else self.database.lose(dice.randrange(6))
        for name in sorted(self.entries):
            node = self.entries[name]
            if isinstance(node, Folder):
                lost += node.lose(dice)
            elif not node.synced:
                node.data, node.synced = node.data[: dice.randint(0, len(node.data))], True
        return lost

    def files(self) -> dict[str, File]:
        """The files that stand here."""
        return {name: node for name, node in self.entries.items() if isinstance(node, File)}


class MachineDisk:
    """What a machine keeps. ``written`` is told of each change of a database, ``renamed`` of each
    new name, ``served`` of each database that is opened in a projection's place."""

    def __init__(self, name: str, written: Callable[[StoreDisk], None]) -> None:
        self.name, self.written = name, written
        self.root = Folder({"home": Folder(), "tmp": Folder()})
        self.renamed: Callable[[Process, Path, Path], None] = lambda process, old, new: None
        self.served: Callable[[Folder], None] = lambda folder: None
        self.locks: dict[str, tuple[Process, object]] = {}
        self.notes: dict[str, Any] = {}
        self.listeners: list[Task] = []
        self.rung = False
        self.tokens = 0

    def find(self, path: Path) -> File | Folder | None:
        """What stands there, if anything does."""
        node: File | Folder | None = self.root
        for name in path.parts[1:]:
            node = node.entries.get(name) if isinstance(node, Folder) else None
        return node

    def folder(self, path: Path) -> Folder:
        """The folder that stands there."""
        node = self.find(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def token(self) -> str:
        """A name that nothing else has."""
        self.tokens += 1
        return f"{self.tokens:06d}"


class SimLock:
    """A lock on a file (``locks.FileLock``): it ends with its process."""

    def __init__(self, disk: MachineDisk, path: Path, process: Process) -> None:
        self._disk, self._path, self._process = disk, str(path), process
        self._token: object = None

    @property
    def held(self) -> bool:
        """Whether this one has it."""
        return self._token is not None

    def try_acquire(self) -> bool:
        """Take it if it is free."""
        if self.is_taken():
            return False
        self._token = object()
        self._disk.locks[self._path] = (self._process, self._token)
        return True

    def is_taken(self) -> bool:
        """Whether anybody has it."""
        found = self._disk.locks.get(self._path)
        return found is not None and not found[0].dead

    def release(self) -> None:
        """Let it go."""
        token, self._token = self._token, None
        if token is not None and self._disk.locks.get(self._path) == (self._process, token):
            del self._disk.locks[self._path]


class SimDisk:
    """A process's way to its machine's disk (``disk.Disk``): every call is a step, and may fail."""

    def __init__(self, disk: MachineDisk, process: Process, scheduler: Scheduler) -> None:
        self.disk, self._process, self._scheduler = disk, process, scheduler

    def _step(self, name: str) -> None:
        self._scheduler.step(self._process, name)

    def _writes(self, name: str) -> None:
        """A step that a full, read-only or failing disk fails."""
        if self._scheduler.step(self._process, name, ("disk",)):
            number = self._scheduler.dice.choice(ERRNOS)
            raise OSError(number, os.strerror(number))

    # Looking

    def names(self, folder: Path) -> list[str]:
        """See Disk.names."""
        self._step("list")
        return sorted(self.disk.folder(folder).entries)

    def exists(self, path: Path) -> bool:
        """See Disk.exists."""
        return self.disk.find(path) is not None

    def open(self, path: Path) -> BinaryIO:
        """See Disk.open."""
        self._step("read")
        node = self.disk.find(path)
        if not isinstance(node, File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return io.BytesIO(node.data)

    # Changing

    def create(self, path: Path, pieces: Iterable[bytes]) -> None:
        """See Disk.create."""
        self._writes("create")
        file = File()
        self._name_new(path, file)
        for piece in pieces:
            self._writes("write")
            file.data += piece
        self._writes("fsync")
        file.synced = True

    def make(self, folder: Path) -> None:
        """See Disk.make."""
        self._writes("mkdir")
        self._name_new(folder, Folder())

    def _name_new(self, path: Path, node: File | Folder) -> None:
        parent = self.disk.folder(path.parent)
        if path.name in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        parent.change({path.name: node})

    def link(self, source: Path, target: Path) -> None:
        """See Disk.link."""
        self._writes("link")
        node = self.disk.find(source)
        assert isinstance(node, File), source
        self._name_new(target, node)

    def rename(self, source: Path, target: Path) -> None:
        """See Disk.rename; within one folder."""
        self._writes("rename")
        assert source.parent == target.parent, (source, target)
        folder = self.disk.folder(source.parent)
        if source.name not in folder.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        if target.name in folder.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(target))
        folder.change({source.name: None, target.name: folder.entries[source.name]})
        self.disk.renamed(self._process, source, target)

    def remove(self, folder: Path) -> None:
        """See Disk.remove."""
        if (found := self.disk.find(folder)) is None:
            return
        if isinstance(found, Folder):
            for name in sorted(found.entries):
                self.remove(folder / name)
        try:
            self._writes("remove")
        except OSError:
            return
        if not isinstance(found, Folder) or not found.entries:
            parent = self.disk.folder(folder.parent)
            if parent.entries.get(folder.name) is found:
                parent.change({folder.name: None})

    def sync(self, folder: Path) -> None:
        """See Disk.sync."""
        self._writes("fsync")
        self.disk.folder(folder).unsynced.clear()

    # Alone, and apart

    def lock(self, path: Path, seconds: float = 0.0) -> SimLock | None:
        """See Disk.lock."""
        self._step("lock file")
        end, lock = (
            self._scheduler.now + seconds * 1_000_000,
            SimLock(self.disk, path, self._process),
        )
        while not lock.try_acquire():
            if self._scheduler.now >= end:
                return None
            self._scheduler.sleep(20_000)
        return lock

    def token(self) -> str:
        """See Disk.token."""
        return self.disk.token()

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """See Disk.temporary."""
        path = Path("/tmp") / self.token()
        self.make(path)
        try:
            yield path
        finally:
            if not self._process.dead:
                self.remove(path)

    # Databases

    def store(self, folder: Path) -> SimDatabase:
        """See Disk.store."""
        self._step("database open")
        found = self.disk.find(folder)
        if found is None:
            found = Folder()
            self.disk.folder(folder.parent).change({folder.name: found})
        assert isinstance(found, Folder), folder
        if "CURRENT" not in found.entries:
            begun(found)
        if found.database is None:
            rows = rows_of(found)
            number = int(folder.name.partition(".")[0])
            found.database = StoreDisk(number, self.disk.written)
            found.database.rows.write(rows)
        tables_of(found)
        if folder.parent.name == "projection" and folder.name.isdigit():
            self.disk.served(found)
        return SimDatabase(self, found, self._process, self._scheduler)

    def follow(self, folder: Path) -> SimFollowed:
        """See Disk.follow."""
        self._step("follow")
        return SimFollowed(self.disk, folder, self._process, self._scheduler)

    def copy_live(self, folder: Path, target: Path) -> None:
        """See Disk.copy_live: tables as links, of the rest copies, a log of what is in no table."""
        self._writes("copy database")
        found = self.disk.find(folder)
        if not isinstance(found, Folder) or "CURRENT" not in found.entries:
            raise StoreMissing(str(folder), "there is no store here yet", "open the home once")
        self._put(found, target, logged=True)

    def put(self, found: Folder, target: Path) -> None:
        """A checkpoint: its files with everything in tables."""
        self._writes("checkpoint")
        flush(found, self.token())
        self._put(found, target, logged=False)

    def _put(self, found: Folder, target: Path, logged: bool) -> None:
        made = Folder()
        for name, file in found.files().items():
            made.entries[name] = file if name.endswith(".sst") else File(file.data)
        if logged and found.database is not None:
            made.entries["000000.log"] = File(lines(changed(found)))
        self._name_new(target, made)

    def damage(self, folder: Path) -> str | None:
        """See Disk.damage, and store/framing.py."""
        found = self.disk.find(folder)
        if not isinstance(found, Folder) or not found.entries:
            return None
        if "CURRENT" not in found.entries:
            left = [name for name in found.entries if name.startswith(("MANIFEST", "0"))]
            return f"CURRENT is gone, {len(left)} files are there without it" if left else None
        manifest = _manifest(found)
        if manifest is None:
            return "CURRENT names what is not there"
        return None if manifest.data.endswith(b"\n") else "the MANIFEST is cut short"


# A database's files


def lines(rows: Mapping[bytes, bytes | None]) -> bytes:
    """Rows as a file has them."""
    return b"".join(
        b"%s:%s\n" % (key.hex().encode(), b"-" if value is None else value.hex().encode())
        for key, value in rows.items()
    )


def table(rows: Mapping[bytes, bytes | None], id: str) -> bytes:
    """A table: rows, then a checksum and what tells it from others of its name."""
    body = lines(rows)
    return body + b"#%08x %s\n" % (zlib.crc32(body), id.encode())


def parsed(data: bytes) -> dict[bytes, bytes | None]:
    """The rows in a file; StoreDamaged if they do not read."""
    rows: dict[bytes, bytes | None] = {}
    try:
        for line in data.decode().split("\n")[:-1]:
            key, _, value = line.partition(":")
            rows[bytes.fromhex(key)] = None if value == "-" else bytes.fromhex(value)
    except ValueError:
        raise _damaged("a row") from None
    return rows


def begun(folder: Folder) -> None:
    """A new database of nothing, as durable as its folder's name is."""
    folder.entries["CURRENT"] = File(b"MANIFEST-1", synced=True)
    folder.entries["MANIFEST-1"] = File(_record("a database"), synced=True)


def _record(text: str) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(text.encode()), text.encode())


def _manifest(folder: Folder) -> File | None:
    current = folder.entries.get("CURRENT")
    if not isinstance(current, File):
        raise _damaged("CURRENT is gone")
    node = folder.entries.get(current.data.decode("latin-1"))
    return node if isinstance(node, File) else None


def tables_of(folder: Folder) -> list[File]:
    """The tables that the MANIFEST names; StoreDamaged if they, or it, are not there."""
    manifest = _manifest(folder)
    if manifest is None:
        raise _damaged("no MANIFEST")
    found = []
    for line in manifest.data.split(b"\n")[:-1]:
        sum, _, text = line.partition(b" ")
        if sum != b"%08x" % zlib.crc32(text):
            raise _damaged("a record of the MANIFEST")
        if text.endswith(b".sst"):
            node = folder.entries.get(text.decode())
            if not isinstance(node, File):
                raise _damaged(f"table {text.decode()} is gone")
            found.append(node)
    return found


def rows_of(folder: Folder) -> Rows:
    """What a database's files hold; StoreDamaged where a checksum does not fit."""
    rows: dict[bytes, bytes | None] = {}
    for file in tables_of(folder):
        body, mark, foot = file.data.rpartition(b"#")
        if not mark or foot[:8] != b"%08x" % zlib.crc32(body) or not foot.endswith(b"\n"):
            raise _damaged("a block of a table")
        rows.update(parsed(body))
    for name, file in folder.files().items():
        if name.endswith(".log"):
            rows.update(parsed(file.data))
    return {key: value for key, value in rows.items() if value is not None}


def changed(folder: Folder) -> dict[bytes, bytes | None]:
    """What an open database has that is in none of its tables."""
    assert folder.database is not None
    now, base = dict(folder.database.rows.scan(b"")), _base(folder)
    return {key: now.get(key) for key in sorted({*now, *base}) if now.get(key) != base.get(key)}


def _base(folder: Folder) -> Rows:
    rows: dict[bytes, bytes | None] = {}
    for file in tables_of(folder):
        rows.update(parsed(file.data.rpartition(b"#")[0]))
    return {key: value for key, value in rows.items() if value is not None}


def flush(folder: Folder, token: str) -> None:
    """Everything of an open database into tables, durable."""
    assert folder.database is not None
    rows = changed(folder)
    folder.database.flushed()
    if not rows:
        return
    if sum(name.endswith(".sst") for name in folder.entries) >= TABLES_MAX:
        rows = dict(folder.database.rows.scan(b""))
        _forget(folder, ".sst")
        begun(folder)
    table_file(folder, rows, token)
    _forget(folder, ".log")


def _forget(folder: Folder, suffix: str) -> None:
    for name in [name for name in folder.entries if name.endswith(suffix)]:
        del folder.entries[name]


def table_file(folder: Folder, rows: Mapping[bytes, bytes | None], token: str) -> None:
    """One more table of a database, named in its MANIFEST."""
    if (manifest := _manifest(folder)) is None:
        raise _damaged("no MANIFEST")
    name = f"{token}.sst"
    folder.entries[name] = File(table(rows, token), synced=True)
    manifest.data += _record(name)


def rot(folder: Folder, name: str, dice: random.Random, kinds: tuple[str, ...] = ROTS) -> str:
    """A file's bytes change by themselves, whatever folders it stands in; returns how."""
    file = folder.entries[name]
    assert isinstance(file, File)
    kind = dice.choice(kinds)
    if kind == "deleted":
        del folder.entries[name]
    elif kind == "cut":
        file.data = file.data[: dice.randrange(max(1, len(file.data)))]
    elif kind == "another" and name.endswith(".sst"):
        rows = parsed(file.data.rpartition(b"#")[0])
        key = dice.choice(sorted(rows)) if rows else b"x"
        file.data = table({**rows, key: b"another"}, "another")
    elif file.data:
        kind, place = "flipped", dice.randrange(len(file.data))
        changed = bytes([file.data[place] ^ 1])
        file.data = file.data[:place] + changed + file.data[place + 1 :]
    return kind


def _damaged(what: str) -> StoreDamaged:
    return StoreDamaged("disk", f"its bytes are broken ({what})", "recover it")


class SimDatabase(SimStore):
    """An open database with its files (``disk.Database``)."""

    def __init__(
        self, way: SimDisk, folder: Folder, process: Process, scheduler: Scheduler
    ) -> None:
        assert folder.database is not None
        self._way, self._folder = way, folder
        self.damaged: str | None = None
        self.bytes_written = 0
        super().__init__(folder.database, process, scheduler)

    def _fails(self, name: str, *can: str) -> bool:
        failed = super()._fails(name, *can)
        if self._folder.broken is not None:
            self.damaged = self._folder.broken
            raise _damaged(self._folder.broken)
        return failed

    def tally(self, each: Callable[[int], None]) -> dict[bytes, int]:
        """See Counting.tally."""
        return _tally(self.scan(b""))

    def checkpoint(self, path: Path) -> None:
        """See Database.checkpoint."""
        self._fails("store checkpoint")
        self._way.put(self._folder, path)


class SimFollowed:
    """A reader of the database in a folder, by its name at each refresh (``disk.Following``)."""

    def __init__(
        self, disk: MachineDisk, path: Path, process: Process, scheduler: Scheduler
    ) -> None:
        self._disk, self._path = disk, path
        self._process, self._scheduler = process, scheduler
        self._reader: Any = None
        self.refresh()

    def refresh(self) -> None:
        """See Following.refresh."""
        folder = self._disk.find(self._path)
        if not isinstance(folder, Folder) or "CURRENT" not in folder.entries:
            raise StoreMissing(str(self._path), "there is no store here yet", "open the home once")
        self.close()
        if folder.broken is not None:
            raise _damaged(folder.broken)
        if folder.database is not None:
            self._reader = SimFollower(folder.database, self._process, self._scheduler)
            self._reader.refresh()
            return
        self._scheduler.step(self._process, "follower open")
        self._reader = MemoryStore()
        self._reader.write(rows_of(folder))

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        found: bytes | None = self._open().get(key)
        return found

    def scan(self, prefix: bytes, reverse: bool = False) -> Any:
        """See Reader.scan."""
        return self._open().scan(prefix, reverse)

    def tally(self, each: Callable[[int], None]) -> dict[bytes, int]:
        """See Counting.tally."""
        return _tally(self._open().scan(b""))

    def _open(self) -> Any:
        if self._reader is None:
            raise StoreError(str(self._path), "the last refresh failed", "refresh again")
        return self._reader

    def close(self) -> None:
        """See Following.close."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _tally(rows: Iterator[tuple[bytes, bytes]]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for key, _ in rows:
        found[key[:1]] = found.get(key[:1], 0) + 1
    return found
