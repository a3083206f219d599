"""Simulated stores: what a process has of one, and what the disk keeps when processes end.

Invariants:
- A batch is on the disk whole or not at all, in the order of the writes.
- The end of a process loses nothing; the end of a machine loses the last batches, newest first.
- After a failed write a store takes no more until it is opened again, as RocksDB does; the batch
  that failed may be there then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from foldlog.store.base import StoreBusy, StoreClosed, StoreError, StoreFailed, StoreFull
from foldlog.store.memory import MemoryStore
from foldlog.wire import keys, slots
from foldlog.wire.slots import Meta
from tests.sim.older import without_origin
from tests.sim.scheduler import Process, Scheduler

Changes = Mapping[bytes, bytes | None]
MODULUS = 1 << 128
UNSYNCED_MAX = 12
"""Batches that a machine's end may lose."""


def summed(key: bytes, value: bytes | None) -> int:
    """What one row adds to the sum of a store; where a lifted run came from is no part of it."""
    if value is None:
        return 0
    value = without_origin(key, value)
    digest = blake2b(key, digest_size=16)
    digest.update(b"\0")
    digest.update(value)
    return int.from_bytes(digest.digest(), "big")


class SummedStore(MemoryStore):
    """A store in memory that keeps the sum of its rows, to compare two stores in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = 0

    def write(self, changes: Changes) -> None:
        """See Store.write."""
        for key, value in changes.items():
            self.sum += summed(key, value) - summed(key, self.get(key))
        self.sum %= MODULUS
        super().write(changes)


def meta_of(store: MemoryStore) -> Meta:
    """How far a store is folded."""
    data = store.get(keys.META)
    return Meta("", 0) if data is None else slots.decode_meta(data)


class StoreDisk:
    """A store's folder. ``written`` is told of every change of what is there."""

    def __init__(self, partition: int, written: Callable[[StoreDisk], None]) -> None:
        self.partition = partition
        self.rows = SummedStore()
        self.owner: Process | None = None
        self.exists = False
        self._written = written
        self._undo: list[Changes] = []
        self._limbo: Changes | None = None

    def open(self, owner: Process, kept: bool) -> None:
        """Take the folder; ``kept``: whether a batch whose write failed is there after all."""
        if self.owner is not None and not self.owner.dead:
            raise StoreBusy("disk", f"{self.owner.name} has it open", "wait")
        self.owner, self.exists = owner, True
        limbo, self._limbo = self._limbo, None
        if limbo is not None and kept:
            self.write(limbo)

    def write(self, changes: Changes) -> None:
        """One batch, visible at once, not yet synced."""
        self._undo.append({key: self.rows.get(key) for key in changes})
        del self._undo[:-UNSYNCED_MAX]
        self.rows.write(changes)
        self._written(self)

    def flushed(self) -> None:
        """Everything here is synced by now."""
        self._undo.clear()

    def keep_in_doubt(self, changes: Changes) -> None:
        """A batch whose write failed; it may be there when the store is opened again."""
        self._limbo = changes

    def lose(self, batches: int) -> int:
        """The machine ended: the last batches were never synced; returns how many were lost."""
        lost = 0
        while self._undo and lost < batches:
            self.rows.write(self._undo.pop())
            lost += 1
        self._undo.clear()
        self._limbo = None  # it came after everything that was lost
        return lost


class SimStore:
    """A process's open store (``store.Store``): every call is a step, and may fail."""

    def __init__(self, disk: StoreDisk, process: Process, scheduler: Scheduler) -> None:
        self._disk, self._process, self._scheduler = disk, process, scheduler
        self._failed = False
        self._closed = False
        if self._fails("store open", "store"):
            raise StoreError("disk", "cannot be opened", "wait")
        disk.open(process, scheduler.dice.random() < 0.5)

    def _fails(self, name: str, *can: str) -> bool:
        if self._closed and not self._process.dead:
            raise StoreClosed("disk", "the store is closed", "open it again")
        return self._scheduler.step(self._process, name, can) is not None

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        if self._fails("store get", "store"):
            raise StoreError("disk", "cannot be read", "wait")
        return self._disk.rows.get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan."""
        if self._fails("store scan", "store"):
            raise StoreError("disk", "cannot be read", "wait")
        return self._disk.rows.scan(prefix, reverse)

    def write(self, changes: Changes) -> None:
        """See Store.write."""
        if self._failed:
            raise StoreFailed("disk", "takes no writes since one failed", "open it again")
        if self._fails("store write", "store", "full"):
            self._failed = True
            self._disk.keep_in_doubt(dict(changes))
            raise StoreFull("disk", "the disk is full", "make room, open it again")
        self._disk.write(changes)
        self._fails("store written")

    def snapshot(self) -> Any:
        """See Store.snapshot."""
        if self._fails("store snapshot", "store"):
            raise StoreError("disk", "cannot be read", "wait")
        return SimSnapshot(self, self._disk.rows.snapshot())

    def close(self) -> None:
        """See Store.close."""
        if not self._process.dead and not self._closed:
            self._scheduler.step(self._process, "store close")
            self._closed = True
            self._disk.owner = None


class SimSnapshot:
    """A view of one moment; reading it is a step too."""

    def __init__(self, store: SimStore, rows: Any) -> None:
        self._store, self._rows = store, rows

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        self._check("snapshot get")
        return self._rows.get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Any:
        """See Reader.scan."""
        self._check("snapshot scan")
        return self._rows.scan(prefix, reverse)

    def _check(self, name: str) -> None:
        if self._store._fails(name, "store"):
            raise StoreError("disk", "cannot be read", "wait")

    def close(self) -> None:
        """See Snapshot.close."""
        self._rows.close()


class SimFollower:
    """A reader beside the holder (``guest.Follower``): as of the last refresh."""

    def __init__(self, disk: StoreDisk, process: Process, scheduler: Scheduler) -> None:
        self._disk, self._process, self._scheduler = disk, process, scheduler
        self._rows: Any = None
        if not disk.exists:
            raise StoreError("disk", "there is no store yet", "wait for a holder")

    def refresh(self) -> None:
        """See Follower.refresh."""
        if self._scheduler.step(self._process, "follower refresh", ("store",)):
            raise StoreError("disk", "a file has vanished", "open it again")
        self.close()
        self._rows = self._disk.rows.snapshot()

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        self._scheduler.step(self._process, "follower get")
        return self._rows.get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Any:
        """See Reader.scan."""
        self._scheduler.step(self._process, "follower scan")
        return self._rows.scan(prefix, reverse)

    def close(self) -> None:
        """See Follower.close."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None
