"""A home: one directory that holds an embedded log, its projection, its artifacts and its locks.

    HOME/log.sqlite          the two logs
    HOME/projection/0/ ...   one RocksDB store per partition, derived, rebuilt when it is missing
    HOME/snapshots/0/ ...    verified copies of it, unless they lie elsewhere
    HOME/artifacts/          what importers keep outside the log
    HOME/holder.lock         locked by the process that holds the projection; says who and how far
    HOME/daemon.lock         locked by a daemon, from before it holds the projection until it ends

Invariants:
- Only ``create_home`` makes a home, and a home exists once its log does.
- One process at a time holds the projection; its lock ends with it, however it ends.
- Safety rests on none of this: the log's append is conditional on the head.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foldlog.core.catalogue import RULES, Catalogue
from foldlog.disk import Database, Disk, Following, RealDisk, make_whole
from foldlog.doorbell import Doorbell
from foldlog.errors import Damaged, HomeBusy, HomeExists, HomeMissing, Unavailable, Usage
from foldlog.locks import FileLock, Note
from foldlog.log.base import MAX_PARTITIONS, Clock, Log, LogError, LogExists
from foldlog.log.sqlite import SqliteLog, create
from foldlog.rebuilding import Rebuilt, swap, waits
from foldlog.recovery import Recovery, Teller, disk_told, put_aside, replaced
from foldlog.runtime import SECOND, RealRuntime, Runtime
from foldlog.snapshots.keeper import Keeper, versions_here
from foldlog.snapshots.settings import SnapshotSettings, from_environment
from foldlog.store.base import Store, StoreError
from foldlog.store.rocks import SharedCache
from foldlog.working import folded_to

PARTITIONS_DEFAULT = 4
LOG_FILE = "log.sqlite"

SWAP_US = 15 * SECOND
"""How long a rebuild waits for the holder to take what was built."""

SWAP_PAUSE_US = SECOND // 20


def create_home(path: Path, partitions: int | None = None) -> int:
    """Make a home at ``path`` and return its number of partitions (4 unless told otherwise).

    An existing home is left as it is; HomeExists if it has another number than the one asked for.
    Usage if there can be no home of that number.
    """
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise Usage(f"a home has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    path.mkdir(parents=True, exist_ok=True)
    try:
        create(path / LOG_FILE, partitions or PARTITIONS_DEFAULT)
    except LogExists:
        found = _partitions(path)
        if partitions is not None and partitions != found:
            raise other_partitions(path, found) from None
        return found
    except LogError as error:
        raise Unavailable(str(error)) from error
    return partitions or PARTITIONS_DEFAULT


def other_partitions(path: Path, found: int) -> HomeExists:
    """The error of who asks for another number of partitions than a home has."""
    return HomeExists(f"{path} is a home of {found} partitions, which cannot be changed")


def _partitions(path: Path) -> int:
    log = open_log(path, lambda: 0)
    try:
        return log.partitions
    finally:
        log.close()


def open_log(path: Path, clock: Clock) -> SqliteLog:
    """The log of a home; HomeMissing if there is no home."""
    if not (path / LOG_FILE).exists():
        raise HomeMissing(f"no foldlog home at {path}: foldlog --home {path} init")
    try:
        return SqliteLog(path / LOG_FILE, clock)
    except LogError as error:
        raise Unavailable(str(error)) from error


def open_home(
    path: Path,
    clock: Clock,
    snapshots: SnapshotSettings | None = None,
    rules: Mapping[int, Catalogue] = RULES,
) -> "Home":
    """The pieces of a home; HomeMissing if there is none, Unavailable if it cannot be opened.

    ``snapshots`` says when they are taken; otherwise the environment does. ``rules`` are those of
    this build, plug-ins included, which a snapshot has to fit.
    """
    settings = snapshots or from_environment()
    log = open_log(path, clock)
    keeper = Keeper(path, log, clock, settings, versions_here(rules))
    return Home(path, log, keeper, rules, RealDisk(SharedCache()))


class Home:
    """A home as a seat needs it (``place.Place``)."""

    def __init__(
        self,
        path: Path,
        log: Log,
        snapshots: Keeper,
        rules: Mapping[int, Catalogue],
        disk: Disk,
        runtime: Runtime | None = None,
    ) -> None:
        self.path = path
        self.rules = rules
        self.log = log
        self.snapshots = snapshots
        self.holder_lock = FileLock(path / "holder.lock")
        self.daemon_lock = FileLock(path / "daemon.lock")
        self.doorbell = Doorbell(path)
        self._disk = disk
        self._runtime = runtime or RealRuntime()
        self._stores: list[Database | None] = []
        self._tell = Teller(self._still_recovering)
        self._role = "worker"

    def stores(self) -> list[Store | Damaged]:
        """The projection's stores, recovered where they are missing or broken; for who holds the
        lock. Of a partition that cannot be recovered: why."""
        found: list[Database | Damaged] = []
        with _closing_on_error(found):
            recovery = self._recovery()
            for shelf in self.snapshots.shelves:
                try:
                    found.append(recovery.open(shelf))
                except Damaged as error:
                    found.append(error)
        self._stores = [None if isinstance(each, Damaged) else each for each in found]
        for number, store in enumerate(self._stores):
            if store is not None:
                self.snapshots.hold(number, store)
        return list(found)

    def recovering(self, partition: int, records: int) -> None:
        """Say how far the fold of a partition's tail is."""
        store = self._stores[partition]
        assert store is not None, "who has none folds nothing"
        meta = folded_to(store, self.log.identity, partition)
        left = self.log.end(partition) - meta.offset
        self._tell("records folded", partition, records, records + left)

    def _still_recovering(self) -> None:
        # A long copy of a snapshot is no stall: who waits looks at when the holder last said so.
        self.note(self._role, "recovering", self._runtime.monotonic())

    def _recovery(self) -> Recovery:
        projection = self.path / "projection"
        with disk_told(projection):
            make_whole(self._disk, projection)
        kept, rules, tell = self.snapshots, self.rules, self._tell
        disk, versions, remotes = self._disk, kept.versions, kept.remotes
        return Recovery(projection, self.log, disk, versions, rules, tell, remotes=remotes)

    def turned(self) -> bool:
        """Take a snapshot if one is due; whether the stores have to be opened anew: one is broken,
        or one was rebuilt."""
        if self._broken() or any(self._waits(n) for n in range(len(self._stores))):
            return True
        self.snapshots.look()
        return False

    def _broken(self) -> dict[int, str]:
        """The partitions whose store was found broken, and how."""
        found = {n: each.damaged for n, each in enumerate(self._stores) if each and each.damaged}
        return {**self.snapshots.broken, **found}

    def restore(self, numbers: list[int], name: str | None) -> list[dict[str, Any]]:
        """Put snapshots (the newest good ones, or one by its name) in the place of these
        partitions' stores; a row for each. HomeBusy if anybody holds the projection."""
        if not self.try_hold():
            note = self.holder()
            pid = None if note is None else note.pid
            raise HomeBusy(f"process {pid} holds the projection: end it first", pid)
        try:
            recovery, shelves = self._recovery(), self.snapshots.shelves
            return [replaced(recovery, shelves[number], name) for number in numbers]
        finally:
            self.let_go()

    def rebuild(self, number: int, source: str) -> tuple[Rebuilt, bool]:
        """Build a partition's projection anew and have it take the place of the old one; whether
        it has by now. HomeBusy while another process rebuilds.

        Whoever holds the projection goes on meanwhile, and swaps it in; without a holder this
        process does.
        """
        recovery = self._recovery()
        try:
            rebuilt = recovery.rebuild(self.snapshots.shelves[number], source)
        except StoreError as error:
            raise Unavailable(str(error)) from error
        end = self._runtime.monotonic() + SWAP_US
        while self._waits(number) and self._runtime.monotonic() < end:
            self._swap(self._store_path(number))
        return rebuilt, not self._waits(number)

    def _waits(self, number: int) -> bool:
        return waits(self._disk, self._store_path(number))

    def _swap(self, path: Path) -> None:
        """Swap a built store in, or wait a moment for the holder to do it."""
        if self.holder_lock.held or not self.try_hold():
            self.ring()
            self._runtime.sleep(SWAP_PAUSE_US)
            return
        try:
            swap(self._disk, path)
        finally:
            self.let_go()

    def follower(self, partition: int) -> Following:
        """A reader of one store beside whoever holds it; StoreError if there is none yet."""
        return self._disk.follow(self._store_path(partition))

    def _store_path(self, partition: int) -> Path:
        return self.path / "projection" / str(partition)

    def try_hold(self) -> bool:
        """Take the holder's lock, if it is free."""
        return self.holder_lock.try_acquire()

    def let_go(self) -> None:
        """Give the holder's lock back, and the bell to whoever comes next.

        A store that was found broken is put aside first: the next holder recovers it.
        """
        for number in range(self.log.partitions):
            self.snapshots.let_go(number)
        for number, why in self._broken().items():
            with contextlib.suppress(OSError):  # met again by the next one
                put_aside(self._disk, self._store_path(number), why)
        self._stores, self.snapshots.broken = [], {}
        self.doorbell.close()
        self.holder_lock.release()

    def note(self, role: str, phase: str, turned_at: int) -> None:
        """Say who holds the projection and when it last turned."""
        self._role = role
        self.holder_lock.write(Note(os.getpid(), role, phase, turned_at))

    def holder(self) -> Note | None:
        """What the holder says of itself, or the last one said."""
        return self.holder_lock.read()

    def daemon_waits(self) -> bool:
        """Whether a daemon of another process is there."""
        return not self.daemon_lock.held and self.daemon_lock.is_taken()

    def listen(self) -> None:
        """Begin to hear rings."""
        self.doorbell.listen()

    def rest(self, microseconds: int) -> None:
        """Wait for a ring, or that long."""
        self.doorbell.wait(microseconds)

    def ring(self) -> None:
        """Wake the holder."""
        self.doorbell.ring()

    def close(self) -> None:
        """Let everything go."""
        self.snapshots.close()
        self.doorbell.close()
        self.holder_lock.release()
        self.daemon_lock.release()
        self.log.close()


@contextlib.contextmanager
def _closing_on_error(stores: list[Database | Damaged]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        for store in stores:
            if not isinstance(store, Damaged):
                store.close()
        if isinstance(error, StoreError):
            raise Unavailable(str(error)) from error
        raise
