"""Folding a log that is elsewhere into a folder of this machine: what every follower has.

    HOME/log.json            which log this is a fold of
    HOME/followed/0/ ...     one RocksDB store per partition that was asked about
    HOME/followed/0.lock     held by the process that has it open
    HOME/projection/0/ ...   those of a projector, where one works in this folder

Invariants:
- Following decides nothing and writes nothing to the log; the folder can be deleted at any time.
- A folder is of one log, for good. Followers never open a projector's stores, nor keep it waiting.
- Any number of processes may use one folder: one of them has a partition's store open, the others
  fold what that one lacks in memory, on top of it.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from foldlog.core.catalogue import RULES, Catalogue
from foldlog.disk import RealDisk
from foldlog.errors import Unavailable
from foldlog.locks import FileLock
from foldlog.log.base import Log
from foldlog.rebuilding import swap, waits
from foldlog.runtime import SECOND, Lock, Runtime, let_go
from foldlog.store.base import Store, StoreBusy, StoreError, StoreMissing
from foldlog.store.follower import RocksFollower
from foldlog.store.layered import LayeredStore
from foldlog.store.memory import MemoryStore
from foldlog.store.rocks import RocksStore, SharedCache
from foldlog.turn import Partition
from foldlog.views import View
from foldlog.wire import keys
from foldlog.wire.slots import is_of_this_build
from foldlog.working import open_run

NOTE_FILE = "log.json"
FOLLOWED, PROJECTION = "followed", "projection"

IDLE_US = 30 * SECOND
"""A store that was not asked for so long is closed, so that another process may have it."""


class Folder:
    """Where the stores of a log that is elsewhere are kept; made where it is missing."""

    def __init__(self, path: Path, stores: str = FOLLOWED) -> None:
        self.path = path
        self.cache = SharedCache()
        self.disk = RealDisk(self.cache)
        self.stores = path / stores
        try:
            self.stores.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{path} cannot be made: {error.strerror}") from error

    def known(self) -> dict[str, Any] | None:
        """What is kept of the log, as ``remember`` was given it; None if nothing is."""
        try:
            found: dict[str, Any] = json.loads((self.path / NOTE_FILE).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"{self.path / NOTE_FILE} does not read ({error}): delete {self.path}, it is "
                "folded again from the log"
            ) from error
        return found

    def remember(self, known: Mapping[str, Any]) -> None:
        """Keep what the log is recognised by."""
        file = self.path / NOTE_FILE
        if not file.exists():
            # Of this process only: others may be at the same place for the first time too.
            new = file.with_suffix(f".{os.getpid()}.new")
            new.write_text(json.dumps(dict(known)) + "\n")
            new.replace(file)

    def place(self, number: int) -> Path:
        """The folder of a partition's store."""
        return self.stores / str(number)

    def lock(self, number: int) -> FileLock:
        """What whoever has a partition's store open holds, and whoever puts another in its place.

        Held already: StoreBusy, if anybody has it.
        """
        lock = FileLock(self.stores / f"{number}.lock")
        if not lock.try_acquire():
            what = "another process, or another object in this one, has it open"
            raise StoreBusy(str(self.place(number)), what, "wait until it lets go of it")
        return lock

    def store(self, number: int) -> RocksStore:
        """A partition's store, open for writing; StoreBusy if anybody has it.

        One that was rebuilt takes its place; one that another build folded, under an older format
        or other rules, is folded anew.
        """
        lock = self.lock(number)
        try:
            swap(self.disk, self.place(number))
            store = self._store(number)
        except BaseException:
            lock.release()
            raise
        store.on_closed = lock.release
        return store

    def _store(self, number: int) -> RocksStore:
        store = RocksStore(self.place(number), self.cache)
        data = store.get(keys.META)
        if data is None or is_of_this_build(data):
            return store
        store.close()
        shutil.rmtree(self.place(number))
        return RocksStore(self.place(number), self.cache)

    def follower(self, number: int) -> RocksFollower | MemoryStore:
        """What the process that has the store open has written; nothing yet, maybe."""
        try:
            return RocksFollower(self.place(number), self.cache)
        except StoreMissing:
            return MemoryStore()


def run_ids(path: Path, prefix: str, limit: int) -> list[str]:
    """The first ids of runs that begin like this, of what is folded at a folder; asks no log."""
    found: set[str] = set()
    for stores in (FOLLOWED, PROJECTION):
        for place in filter(_is_store, (path / stores).glob("*")):
            with contextlib.suppress(StoreError):
                found.update(islice(_run_ids(Folder(path, stores), int(place.name), prefix), limit))
    return sorted(found)[:limit]


def _is_store(place: Path) -> bool:
    return place.name.isdecimal()


def _run_ids(folder: Folder, number: int, prefix: str) -> Iterator[str]:
    start = len(keys.head_key(""))
    with contextlib.closing(folder.follower(number)) as store:
        for key, _ in store.scan(keys.head_key(prefix)):
            run_id = key[start:].decode()
            if open_run(store, run_id).header.revision > 0:
                yield run_id


class Followed:
    """One partition, folded as far as somebody asks. Any thread may read."""

    def __init__(
        self,
        log: Log,
        folder: Folder,
        number: int,
        runtime: Runtime,
        rules: Mapping[int, Catalogue] = RULES,
    ) -> None:
        self._log, self._folder, self._number = log, folder, number
        self._runtime, self._rules = runtime, rules
        self._lock: Lock = runtime.lock()
        self._below: RocksFollower | MemoryStore | None = None
        self._partition: Partition | None = None
        self._used_at = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[View]:
        """A view folded to the end of the log as it is when this is called."""
        try:
            self._lock.acquire()
            partition = self._opened()
            partition.catch_up(self._log.end(self._number))
            self._used_at = self._runtime.monotonic()
            yield View(self._log, partition.store, self._number, self._rules)
        except BaseException:
            self._close()
            raise
        finally:
            let_go(self._lock)

    def _opened(self) -> Partition:
        """The partition, on its own store if that is free, else beside who has it."""
        if self._partition is not None and self._below is None:
            if not waits(self._folder.disk, self._folder.place(self._number)):
                return self._partition
            self._close()
        try:
            store: Store = self._folder.store(self._number)
        except StoreBusy:
            return self._beside()
        self._close()
        return self._checked(store)

    def _beside(self) -> Partition:
        if isinstance(self._below, RocksFollower) and self._partition is not None:
            self._below.refresh()
            if self._below_meta_offset() <= self._partition.meta.offset:
                return self._partition
        self._close()
        self._below = self._folder.follower(self._number)
        return self._checked(LayeredStore(self._below))

    def _below_meta_offset(self) -> int:
        assert self._below is not None
        return View(self._log, self._below, self._number).meta().offset

    def _checked(self, store: Store) -> Partition:
        try:
            partition = Partition(self._log, store, self._number, rules=self._rules)
            partition.check()
        except BaseException:
            store.close()
            raise
        self._partition = partition
        return partition

    def rest(self) -> None:
        """Let the store go if nobody asked for a while."""
        if self._lock.acquire(blocking=False):
            try:
                if self._runtime.monotonic() - self._used_at >= IDLE_US:
                    self._close()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Let the store go."""
        self._lock.acquire()
        try:
            self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        partition, self._partition = self._partition, None
        below, self._below = self._below, None
        if partition is not None:
            partition.store.close()
        if below is not None:
            below.close()
