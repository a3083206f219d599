"""The stores of a home whose log is elsewhere: recovered, given out, rebuilt; their snapshots.

    HOME/projection/0/ ...   one RocksDB store per partition that a projector here has, or had
    HOME/projection/0.lock   held by the process that has it open, or puts another in its place
    HOME/snapshots/0/ ...    verified copies, unless they lie elsewhere

In a home where no projector ever worked the stores are those of its followers (``following``).

Invariants:
- Each partition is everything to itself: its store is opened, recovered, swapped and let go of
  under its own lock, whatever happens to the others.
- A store that was found broken is put aside when it is let go of; the next opening recovers it.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from foldlog.core.catalogue import RULES, Catalogue
from foldlog.following import Folder
from foldlog.log.base import Clock, Log
from foldlog.rebuilding import Rebuilt, swap, waits
from foldlog.recovery import Recovery, Teller, put_aside, replaced
from foldlog.snapshots.copying import Stop, never
from foldlog.snapshots.keeper import Keeper, versions_here
from foldlog.snapshots.settings import SnapshotSettings
from foldlog.store.base import StoreBusy
from foldlog.store.rocks import RocksStore

SWAP_SECONDS = 15.0
"""How long a rebuild waits for whoever has the store to take what was built."""

SWAP_PAUSE_SECONDS = 0.05


class ProjectorHome:
    """The stores in one folder, and their snapshots. Any thread may open one."""

    def __init__(
        self,
        folder: Folder,
        log: Log,
        clock: Clock,
        settings: SnapshotSettings,
        rules: Mapping[int, Catalogue] = RULES,
    ) -> None:
        self.folder = folder
        self.log = log
        self.rules = rules
        versions = versions_here(rules)
        kind = folder.stores.name
        self.snapshots = Keeper(folder.path, log, clock, settings, versions, folder.disk, kind)
        self._stores: dict[int, RocksStore] = {}

    def open(self, number: int, *, stop: Stop = never) -> RocksStore:
        """A partition's store: the warm one, else a snapshot's, else a new one.

        StoreBusy if anybody has it; else errors as of ``Recovery.open``. May take long: ``stop``
        is asked meanwhile, and ends it with Stopped.
        """
        lock = self.folder.lock(number)
        try:
            store = self._recovery(stop).open(self.snapshots.shelves[number])
        except BaseException:
            lock.release()
            raise
        assert isinstance(store, RocksStore)
        store.on_closed = lock.release
        return store

    def hold(self, number: int, store: RocksStore) -> None:
        """Begin to take snapshots of a store, and to look whether it has to be opened anew."""
        self._stores[number] = store
        self.snapshots.hold(number, store)

    def must_reopen(self, number: int) -> bool:
        """Whether a store was found broken, or another one waits to take its place."""
        return self._broken(number) is not None or self._waits(number)

    def _waits(self, number: int) -> bool:
        return waits(self.folder.disk, self.folder.place(number))

    def _broken(self, number: int) -> str | None:
        store = self._stores.get(number)
        return self.snapshots.broken.get(number) or (store.damaged if store else None)

    def let_go(self, number: int) -> None:
        """Close a store that is held; one that was found broken is put aside."""
        self.snapshots.let_go(number)
        why = self._broken(number)
        self.snapshots.broken.pop(number, None)
        store = self._stores.pop(number)
        if why is None:
            store.close()
            return
        unlock, store.on_closed = store.on_closed, lambda: None
        try:
            with contextlib.suppress(Exception):  # a broken one may not close well
                store.close()
            with contextlib.suppress(OSError):  # met again by the next one
                put_aside(self.folder.disk, self.folder.place(number), why)
        finally:
            unlock()

    def _recovery(self, stop: Stop = never) -> Recovery:
        folder, kept = self.folder, self.snapshots
        known = (self.log, folder.disk, kept.versions, self.rules)
        return Recovery(folder.stores, *known, Teller(), stop, kept.remotes)

    # For who looks after it

    def restore(self, numbers: list[int], name: str | None) -> list[dict[str, Any]]:
        """Put snapshots (the newest good ones, or one by its name) in the place of these
        partitions' stores; a row for each. StoreBusy if anybody has one of them open."""
        with contextlib.ExitStack() as stack:
            for number in numbers:
                stack.callback(self.folder.lock(number).release)
            recovery, shelves = self._recovery(), self.snapshots.shelves
            return [replaced(recovery, shelves[number], name) for number in numbers]

    def rebuild(self, number: int, source: str) -> tuple[Rebuilt, bool]:
        """Build a partition's store anew and have it take the place of the old one; whether it has
        by now. HomeBusy while another process rebuilds.

        Whoever has the store open goes on meanwhile, and swaps it in; else this process does.
        """
        path = self.folder.place(number)
        rebuilt = self._recovery().rebuild(self.snapshots.shelves[number], source)
        end = time.monotonic() + SWAP_SECONDS
        while self._waits(number) and time.monotonic() < end:
            try:
                lock = self.folder.lock(number)
            except StoreBusy:
                time.sleep(SWAP_PAUSE_SECONDS)
                continue
            try:
                swap(self.folder.disk, path)
            finally:
                lock.release()
        return rebuilt, not self._waits(number)

    def close(self) -> None:
        """Let the log go; stores that are held are let go of by who holds them."""
        self.snapshots.close()
        self.log.close()
