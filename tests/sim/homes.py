"""A home on a simulated disk: the engine's own ``Home``, with locks and a bell of the simulation.

Invariants:
- What a home does with stores and snapshots is the engine's own code; here is only what it meets.
- A lock ends with the process that has it; a note stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foldlog.core.catalogue import Catalogue
from foldlog.home import Home
from foldlog.locks import Note
from foldlog.snapshots.keeper import Keeper, versions_here
from foldlog.snapshots.manifest import Versions
from foldlog.snapshots.settings import SnapshotSettings
from foldlog.store.base import StoreError
from tests.sim.disks import MachineDisk, SimDisk, SimLock
from tests.sim.logs import BrokerLog, HomeLog, LogDisk
from tests.sim.place import SimProcess
from tests.sim.scheduler import Scheduler, SimRuntime

PATH = Path("/home")
ASKED = SnapshotSettings(records=0, bytes=0, seconds=0)

_versions: list[tuple[Mapping[int, Catalogue], Versions]] = []


def versions_of(rules: Mapping[int, Catalogue]) -> Versions:
    """What a build's snapshots say of it; the same for the same table, which costs to look at."""
    for known, versions in _versions:
        if known is rules:
            return versions
    _versions.append((rules, versions_here(rules)))
    return _versions[-1][1]


class NotedLock(SimLock):
    """A lock that says who has it."""

    def __init__(self, disk: MachineDisk, path: Path, process: SimProcess) -> None:
        super().__init__(disk, path, process)
        self._notes: dict[str, Note] = disk.notes

    def write(self, note: Note) -> None:
        """See FileLock.write."""
        self._notes[self._path] = note

    def read(self) -> Note | None:
        """See FileLock.read."""
        return self._notes.get(self._path)


class Bell:
    """A home's doorbell, for the processes of one machine."""

    def __init__(self, disk: MachineDisk, process: SimProcess, scheduler: Scheduler) -> None:
        self._disk, self._process, self._scheduler = disk, process, scheduler

    def listen(self) -> None:
        """See Doorbell.listen."""

    def wait(self, microseconds: int) -> None:
        """See Doorbell.wait."""
        self._scheduler.step(self._process, "rest")
        if not self._disk.rung:
            self._scheduler.wait(self._disk.listeners, microseconds)
        self._disk.rung = False

    def ring(self) -> None:
        """See Doorbell.ring."""
        self._scheduler.step(self._process, "ring")
        self._disk.rung = True
        self._scheduler.wake(self._disk.listeners)

    def close(self) -> None:
        """See Doorbell.close."""


class SimHome(Home):
    """One process's place at the home of its machine. ``apart``: no other process is there."""

    def __init__(
        self,
        log_disk: LogDisk,
        files: MachineDisk,
        process: SimProcess,
        scheduler: Scheduler,
        *,
        apart: bool,
        clock: Callable[[], int],
        is_cut: Callable[[], bool],
    ) -> None:
        kind = HomeLog if log_disk.conditional else BrokerLog
        log: Any = kind(log_disk, process, clock, is_cut)
        disk, rules = SimDisk(files, process, scheduler), process.rules
        keeper = Keeper(PATH, log, clock, ASKED, versions_of(rules), disk)
        super().__init__(PATH, log, keeper, rules, disk, SimRuntime(scheduler, process))
        self.keeper, self._counts, self._apart = keeper, log_disk.counts, apart
        lock: Any = NotedLock(files, PATH / "holder.lock", process)
        daemon: Any = NotedLock(files, PATH / "daemon.lock", process)
        bell: Any = Bell(files, process, scheduler)
        self.holder_lock, self.daemon_lock, self.doorbell = lock, daemon, bell
        self._tell = lambda what, partition, done, whole: None  # type: ignore[assignment]
        if process.daemon:
            daemon.try_acquire()

    def try_hold(self) -> bool:
        """See Home.try_hold."""
        held = super().try_hold()
        self._counts["took the seat"] += held
        return held

    def follower(self, partition: int) -> Any:
        """See Home.follower."""
        if self._apart:
            raise StoreError("disk", "is another machine's", "hold one")
        return super().follower(partition)
