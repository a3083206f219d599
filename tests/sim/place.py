"""Where simulated processes meet: a home's locks, note and doorbell, and each one's seat there.

Invariants:
- A lock ends with the process that holds it; nothing else frees it.
- ``apart``: every process holds stores of its own, as projectors of one broker do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from foldlog.core.catalogue import Catalogue
from foldlog.errors import Damaged, Unavailable
from foldlog.snapshots.kept import NoSnapshots
from foldlog.store.base import Store, StoreError
from tests.sim.disks import MachineDisk
from tests.sim.logs import BrokerLog, HomeLog, LogDisk
from tests.sim.scheduler import Process, Scheduler, SimRuntime, Task
from tests.sim.storage import SimFollower, SimStore, StoreDisk


@dataclass(eq=False)
class Machine:
    """What ends together with its unsynced writes, and has one wall clock."""

    name: str
    disks: list[StoreDisk]
    clock_us: int = 0
    """How far the wall clock is from simulated time."""
    files: MachineDisk | None = None
    """What else it keeps, where snapshots are simulated too."""


@dataclass(frozen=True)
class Note:
    """What a holder says of itself (``place.Note``)."""

    pid: int
    role: str
    phase: str
    turned_at: int


@dataclass(eq=False)
class Home:
    """What the processes of one home share beside log and stores."""

    holder: Process | None = None
    daemon: Process | None = None
    note: Note | None = None
    rung: bool = False
    listeners: list[Task] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class SimProcess(Process):
    """A process of the engine: its machine, its build's rules, and the name it decides under."""

    machine: Machine
    rules: Mapping[int, Catalogue]
    daemon: bool = False
    life: int = 0

    @property
    def decider(self) -> str:
        """Who decides, for the record."""
        return f"{self.name}:{self.number}:{self.life}"


class SimPlace:
    """One process's place at a simulated home (``place.Place``)."""

    def __init__(
        self,
        log_disk: LogDisk,
        home: Home,
        process: SimProcess,
        scheduler: Scheduler,
        *,
        apart: bool,
        clock: Callable[[], int],
        is_cut: Callable[[], bool],
    ) -> None:
        kind = HomeLog if log_disk.conditional else BrokerLog
        self.log = kind(log_disk, process, clock, is_cut)
        self.snapshots = NoSnapshots()
        self.home, self.process, self.scheduler, self.apart = home, process, scheduler, apart
        self.runtime = SimRuntime(scheduler, process)
        if process.daemon:
            home.daemon = process

    def _step(self, name: str) -> None:
        self.scheduler.step(self.process, name)

    def stores(self) -> list[Store | Damaged]:
        """See place.Place."""
        stores: list[SimStore] = []
        try:
            for disk in self.process.machine.disks:
                stores.append(SimStore(disk, self.process, self.scheduler))
        except StoreError as error:
            for store in stores:
                store.close()
            raise Unavailable(str(error)) from error
        return list(stores)

    def follower(self, partition: int) -> SimFollower:
        """See place.Place."""
        if self.apart:
            raise StoreError("disk", "is another machine's", "hold one")
        return SimFollower(self.process.machine.disks[partition], self.process, self.scheduler)

    def try_hold(self) -> bool:
        """See place.Place."""
        self._step("try hold")
        holder = self.home.holder
        if self.apart or holder is None or holder.dead:
            self.home.holder = self.process
            if not self.apart:
                self.log.disk.counts["took the seat"] += 1
            return True
        return False

    def let_go(self) -> None:
        """See place.Place."""
        if self.home.holder is self.process:
            self.home.holder = None
            self.log.disk.counts["gave the seat up"] += 1

    def note(self, role: str, phase: str, turned_at: int) -> None:
        """See place.Place."""
        self._step("note")
        self.home.note = Note(self.process.number, role, phase, turned_at)

    def holder(self) -> Note | None:
        """See place.Place."""
        self._step("read note")
        return None if self.apart else self.home.note

    def daemon_waits(self) -> bool:
        """See place.Place."""
        daemon = self.home.daemon
        return daemon is not None and not daemon.dead and daemon is not self.process

    def recovering(self, partition: int, records: int) -> None:
        """See place.Place."""

    def turned(self) -> bool:
        """See place.Place."""
        return False

    def listen(self) -> None:
        """See place.Place."""

    def rest(self, microseconds: int) -> None:
        """See place.Place."""
        self._step("rest")
        if not self.home.rung:
            self.scheduler.wait(self.home.listeners, microseconds)
        self.home.rung = False

    def ring(self) -> None:
        """See place.Place."""
        self._step("ring")
        self.home.rung = True
        self.scheduler.wake(self.home.listeners)

    def close(self) -> None:
        """See place.Place."""
        self.let_go()
        if self.home.daemon is self.process:
            self.home.daemon = None
        self.log.close()
