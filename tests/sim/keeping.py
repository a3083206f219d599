"""Snapshots, rebuilds and migration in a simulation: who asks for them, what rots, what must hold.

In these seeds each machine has a disk, and the real home, keeper, recovery and rebuild work on it.
Holders take and prune snapshots beside their turns, as their thread does; operators are processes
of one command each: they take, prune, verify, restore, replay and rebuild beside whoever is there.

Invariants:
- What a disk should hold is judged by looking at it, never by the engine's own word; of a snapshot
  nothing is expected any more once one of its files rotted.
- A machine on which nobody has a store open may find that an older build folded it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foldlog.errors import Damaged, LogTrimmed, SnapshotDamaged, SnapshotMissing
from foldlog.log.base import Stored
from foldlog.recovery import Recovery
from foldlog.snapshots.checking import key_counts, verified
from foldlog.snapshots.manifest import (
    FILES_FOLDER,
    MANIFEST_FILE,
    Copied,
    decode_manifest,
    encode_manifest,
)
from foldlog.snapshots.shelf import BAD, NAME, OLD, Shelf
from foldlog.store.memory import MemoryStore
from foldlog.turn import Partition
from foldlog.wire import keys
from tests.sim import invariants
from tests.sim.builds import BUILDS
from tests.sim.disks import (
    File,
    Folder,
    MachineDisk,
    SimDisk,
    begun,
    rot,
    rows_of,
    table_file,
)
from tests.sim.history import History
from tests.sim.homes import PATH, SimHome, versions_of
from tests.sim.invariants import Violated, demand
from tests.sim.logs import LogDisk, Reader
from tests.sim.older import as_schema_1, is_of, stuck, without_origin
from tests.sim.place import Machine, SimProcess
from tests.sim.scheduler import SimRuntime

if TYPE_CHECKING:
    from foldlog.client import Engine
    from tests.sim.world import World

SNAPSHOTS = PATH / "snapshots"
PROJECTION = PATH / "projection"
OPERATORS_FROM = 100
"""The numbers of operators; those of engines are below."""

Rows = dict[bytes, bytes]
Place = tuple[str, int, str]
"""A snapshot: of which machine, of which partition, and its name."""


class Keeping:
    """Everything of one simulation that has to do with snapshots."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.config.seed}/snapshots")
        self.left = self.rng.choice((3, 5, 8))
        self.ages = self.rng.choice((0, 1, 2, 3, 3))
        self.operators: set[SimProcess] = set()
        self.promised: set[Place] = set()
        self.rotted_at: dict[Place, int] = {}
        self.pruning: dict[object, int] = {}
        self._number = OPERATORS_FROM

    def machine(self, name: str) -> Machine:
        """A machine with a disk."""
        files = MachineDisk(name, self.world.written)
        machine = Machine(name, [], files=files)
        files.renamed = lambda process, old, new: self._renamed(machine, process, old, new)
        files.served = lambda folder: self._served(machine, folder)
        machine.disks.extend(self.world.store_disks())
        return machine

    def _served(self, machine: Machine, folder: Folder) -> None:
        """A store is opened in a projection's place: whatever is there is shown from now on."""
        assert folder.database is not None
        machine.disks[folder.database.partition] = folder.database
        self.world.written(folder.database, "bad_is_not_served")

    # What a disk should hold

    def _shelf(self, machine: Machine, number: int) -> dict[str, Folder]:
        """The snapshots of a partition that stand on a machine's disk, as they are."""
        assert machine.files is not None
        folder = machine.files.find(SNAPSHOTS / str(number))
        found = folder.entries if isinstance(folder, Folder) else {}
        return {name: node for name, node in found.items()
                if NAME.fullmatch(name) and isinstance(node, Folder)}  # fmt: skip

    def _renamed(self, machine: Machine, process: object, old: Path, new: Path) -> None:
        if old.parent.parent != SNAPSHOTS:
            return
        number = int(old.parent.name)
        place = (machine.name, number, old.name)
        assert machine.files is not None
        if NAME.fullmatch(new.name) and not is_whole(machine.files.folder(new)):
            # A table that it shares with an older one rotted while it was made.
            rotted = self.world.counts["snapshot rotted"] > 0
            demand(rotted, "snapshots_stay", f"snapshot {new.name} is published and not whole")
            self.rotted_at[(machine.name, number, new.name)] = self.world.scheduler.steps
        if NAME.fullmatch(old.name) and new.name.startswith(OLD):
            self._check_removed(machine, process, place)
            self.promised.discard(place)
        elif NAME.fullmatch(old.name) and new.name.startswith(BAD):
            bad = not is_whole(machine.files.folder(new))
            demand(bad, "snapshots_stay", f"snapshot {old.name}, which is whole, is put aside")
            self.world.counts["snapshot quarantined"] += 1

    def _check_removed(self, machine: Machine, process: object, place: Place) -> None:
        """Two newer ones that verify are there, or were when the pruning began."""
        since = self.pruning.get(process, self.world.scheduler.steps)
        good = [
            name
            for name, folder in self._shelf(machine, place[1]).items()
            if name > place[2]
            and (is_whole(folder) or self.rotted_at.get((*place[:2], name), -1) >= since)
        ]
        text = f"snapshot {place[2]} is pruned, newer ones that are whole: {good}"
        demand(len(good) >= 2, "two_are_kept", text)
        self.world.counts["snapshot pruned"] += 1

    # Holders and operators

    def home(self, process: SimProcess, clock: Callable[[], int]) -> SimHome:
        """A process's place at the home of its machine."""
        world = self.world
        assert process.machine.files is not None
        return SimHome(
            world.disk,
            process.machine.files,
            process,
            world.scheduler,
            apart=world.shape != "home",
            clock=clock,
            is_cut=world.is_cut,
        )

    def work(self, process: SimProcess, engine: Engine) -> None:
        """What the thread of a holder does: a snapshot now and then, and pruning after it."""
        runtime = SimRuntime(self.world.scheduler, process)
        while process in self.world.engines and not self.world.calm:
            runtime.sleep(self.rng.choice((2_000, 8_000, 30_000)))
            if engine._seat.is_holder:
                self._tolerant(process, partial(self._take, process, engine._seat.place))

    def _take(self, process: SimProcess, home: Any) -> None:
        number = self.rng.randrange(self.world.disk.partitions)
        if process.machine.disks[number].rows.get(keys.META) is None:
            return  # nothing is folded yet
        self.pruning[process] = self.world.scheduler.steps  # the new one is verified from here on
        name = self._create(process, home, number, 0)
        self._prune(process, home, number, name, 0)

    def _create(self, process: SimProcess, home: SimHome, number: int, patience: float) -> str:
        taken = home.keeper.create(number, patience=patience)
        name = taken.snapshot.name
        self.world.note(f"{process.name} took snapshot {name} of partition {number}")
        place = (process.machine.name, number, name)
        if place not in self.rotted_at:  # it may have rotted since it was verified
            self.promised.add(place)
        self.world.counts["snapshot taken"] += taken.is_new
        return name

    def _prune(
        self, process: SimProcess, home: SimHome, number: int, fresh: str | None, patience: float
    ) -> None:
        home.keeper.prune(number, fresh=fresh, patience=patience)

    def begin(self) -> None:
        """The first operator comes after a while."""
        self.world.scheduler.after(self.rng.randrange(60_000), self._operate)

    def _operate(self) -> None:
        if self.left <= 0 or self.world.calm:
            return
        self.left -= 1
        self.spawn(self.rng.choice(self.world.machines), self.rng.choice(COMMANDS))
        self.world.scheduler.after(self.rng.choice((3_000, 20_000, 60_000)), self._operate)

    def spawn(self, machine: Machine, command: str) -> None:
        """A process that does one thing and ends."""
        self._number += 1
        process = SimProcess(f"op{self._number}", self._number, machine=machine, rules=BUILDS[0])
        self.world.lives.append(process)
        self.operators.add(process)
        self.world.note(f"{process.name} begins: {command} on {machine.name}")
        self.world.scheduler.spawn(process, command, lambda: self._main(process, command))

    def _main(self, process: SimProcess, command: str) -> None:
        home = self.home(process, self.world.clocks_of(process)[1])
        number = self.rng.randrange(self.world.disk.partitions)
        work = getattr(self, f"_{command}")
        if self._tolerant(process, lambda: work(process, home, number)):
            self.world.counts[f"operator {command}"] += 1
        self.operators.discard(process)
        self.world.scheduler.kill(process)

    def _tolerant(self, process: SimProcess, work: Callable[[], object]) -> bool:
        """Do something with snapshots, at which a disk may fail too; whether it came to its end."""
        failed = list[OSError]()

        def try_it() -> None:
            try:
                work()
            except OSError as error:
                failed.append(error)
                self.world.note(f"{process.name} meets {error}")

        return self.world.clients.tolerant(process, try_it) and not failed

    def _takes(self, process: SimProcess, home: SimHome, number: int) -> None:
        self._create(process, home, number, 60.0)

    def _prunes(self, process: SimProcess, home: SimHome, number: int) -> None:
        self.pruning[process] = self.world.scheduler.steps
        self._prune(process, home, number, None, 60.0)

    def _verifies(self, process: SimProcess, home: SimHome, number: int) -> None:
        for name in home.keeper.names(number):
            try:
                home.keeper.verify(number, name)
            except SnapshotMissing:
                continue
            except SnapshotDamaged as error:
                place = (process.machine.name, number, name)
                text = f"snapshot {name} does not verify: {error.message}"
                demand(place not in self.promised, "snapshots_stay", text)

    def _replays(self, process: SimProcess, home: SimHome, number: int) -> None:
        for name in home.keeper.names(number)[:1]:
            try:
                with home.keeper.opened(number, name) as store:
                    self._check_folds(number, name, dict(store.scan(b"")))
            except SnapshotDamaged:
                continue

    def _restores(self, process: SimProcess, home: SimHome, number: int) -> None:
        home.restore([number], None)

    def _rebuilds(self, process: SimProcess, home: SimHome, number: int) -> None:
        home.rebuild(number, self.rng.choice(("snapshot", "start")))

    def _anew(self, process: SimProcess, home: SimHome, number: int) -> None:
        for each in range(self.world.disk.partitions):
            home.rebuild(each, "start")

    # What happens to disks

    def rot(self, process: SimProcess, dice: random.Random) -> None:
        """A file of a machine's disk changes by itself, or a projection is gone."""
        machine, number = process.machine, dice.randrange(self.world.disk.partitions)
        assert machine.files is not None
        if dice.random() < 0.6:
            self._rot_snapshot(machine, number, dice)
            return
        folder = machine.files.find(PROJECTION / str(number))
        if not isinstance(folder, Folder) or folder.database is None or not folder.files():
            return
        if dice.random() < 0.3:
            if self._is_idle(machine):
                self.world.note(f"  the projection of {machine.name} is gone")
                machine.files.folder(PATH).change({"projection": None})
                self.world.counts["projection gone"] += 1
            return
        name = dice.choice(sorted(folder.files()))
        kind = rot(folder, name, dice, kinds=("flipped", "cut", "deleted"))
        if name.endswith(".sst"):
            folder.broken = f"a block of {name}"
        self.world.note(f"  {name} of store {number} of {machine.name} is {kind}")
        self.world.counts["store rotted"] += 1

    def _rot_snapshot(self, machine: Machine, number: int, dice: random.Random) -> None:
        shelf = self._shelf(machine, number)
        if not shelf:
            return
        name = dice.choice(sorted(shelf))
        files = shelf[name].entries.get(FILES_FOLDER)
        folder = files if isinstance(files, Folder) and dice.random() < 0.8 else shelf[name]
        if not folder.files():
            return
        victim = dice.choice(sorted(folder.files()))
        kind = rot(folder, victim, dice)
        self.world.note(f"  {victim} of snapshot {name} of {machine.name} is {kind}")
        self.world.counts["snapshot rotted"] += 1
        for each, found in self._shelf(machine, number).items():
            place = (machine.name, number, each)
            if not is_whole(found):
                self.promised.discard(place)
                self.rotted_at.setdefault(place, self.world.scheduler.steps)

    def _is_idle(self, machine: Machine) -> bool:
        """Whether nobody has a store of a machine open, nor works on its disk."""
        owners = [disk.owner for disk in machine.disks]
        busy = any(process.machine is machine for process in self.operators)
        return not busy and all(owner is None or owner.dead for owner in owners)

    def may_age(self, machine: Machine) -> None:
        """A few times in a simulation what stands on a machine turns out to be an older build's."""
        enough = all(len(history.counted) > 3 for history in self.world.histories)
        if not (self.ages > 0 and enough and not self.world.calm and self._is_idle(machine)):
            return
        self.ages -= 1
        victims = self.rng.sample(self.world.workload.active, self.rng.choice((0, 1, 2, 2)))
        self.world.note(f"  {machine.name} was an older build's, {victims} cannot be lifted")
        assert machine.files is not None
        for number in range(self.world.disk.partitions):
            folder = machine.files.find(PROJECTION / str(number))
            if isinstance(folder, Folder) and folder.database is not None and not folder.broken:
                self._age_store(folder, victims)
                self.world.counts["store of schema 1"] += 1
            for name in sorted(self._shelf(machine, number)):
                self._age_snapshot(machine, number, name, victims)

    def _age_store(self, folder: Folder, victims: list[str]) -> None:
        database = folder.database
        assert database is not None
        before = dict(database.rows.scan(b""))
        if keys.META not in before:
            return
        older = as_schema_1(before, victims)
        database.rows.write({key: older.get(key) for key in before})
        database.flushed()

    def _age_snapshot(self, machine: Machine, number: int, name: str, victims: list[str]) -> None:
        assert machine.files is not None
        shelf = machine.files.folder(SNAPSHOTS / str(number))
        folder = self._shelf(machine, number)[name]
        if not is_whole(folder):
            return
        manifest = decode_manifest(_file(folder, MANIFEST_FILE).data)
        files = folder.entries[FILES_FOLDER]
        assert isinstance(files, Folder)
        older, rows = Folder(), as_schema_1(rows_of(files), victims)
        begun(older)
        table_file(older, rows, machine.files.token())
        listed = tuple(
            Copied(each, len(file.data), hashlib.sha256(file.data).hexdigest())
            for each, file in sorted(older.files().items())
        )
        counted: dict[bytes, int] = {}
        for key in rows:
            counted[key[:1]] = counted.get(key[:1], 0) + 1
        manifest = replace(
            manifest,
            versions=replace(manifest.versions, state_format=1, schema_version=1),
            keys=key_counts(counted),
            files=listed,
        )
        made = Folder({FILES_FOLDER: older})
        made.entries[MANIFEST_FILE] = File(encode_manifest(manifest), synced=True)
        del shelf.entries[name]
        shelf.entries[manifest.name] = made
        if (place := (machine.name, number, name)) in self.promised:
            self.promised.discard(place)
            self.promised.add((machine.name, number, manifest.name))

    # The end

    def stuck_machines(self) -> list[Machine]:
        """Those with a run that stands in schema 1."""
        return [
            machine
            for machine in self.world.machines
            if any(stuck(dict(disk.rows.scan(b""))) for disk in machine.disks)
        ]

    def is_mended(self) -> bool:
        """Whether nobody works on a disk, and every run is in this build's schema."""
        return not self.operators and not self.stuck_machines()

    def there(self) -> list[SimProcess]:
        """The operators that are at work."""
        return sorted(self.operators, key=lambda process: process.number)

    def mend(self) -> None:
        """What a person does about runs that cannot be lifted: folds them from the start."""
        for machine in self.stuck_machines():
            if not any(process.machine is machine for process in self.operators):
                self.spawn(machine, "anew")
        if self.stuck_machines():
            self.world.scheduler.after(2_000_000, self.mend)

    def check(self) -> None:
        """Every snapshot is what was promised, and with its tail the fold of the log."""
        for machine in self.world.machines:
            for history in self.world.histories:
                self._check_shelf(machine, history)
                self._check_trimmed(machine, history)
        for name, number, snapshot in sorted(self.promised):
            machine = next(each for each in self.world.machines if each.name == name)
            folder = self._shelf(machine, number).get(snapshot)
            text = f"snapshot {snapshot} of {name} is gone or another one"
            demand(folder is not None and is_whole(folder), "snapshots_stay", text)

    def _judge(self, machine: Machine) -> SimDisk:
        """A machine's disk for whoever judges: no call is a step."""
        judge = SimProcess("judge", 0, machine=machine, rules=BUILDS[0])
        assert machine.files is not None
        return SimDisk(machine.files, judge, WITHOUT_STEPS)

    def _check_shelf(self, machine: Machine, history: History) -> None:
        number = history.partition
        disk = self._judge(machine)
        shelf = Shelf(SNAPSHOTS, number, disk)
        for name, folder in self._shelf(machine, number).items():
            try:
                snapshot = verified(shelf, name)
            except SnapshotDamaged as error:
                text = f"snapshot {name}, which is whole, does not verify: {error.message}"
                demand(not is_whole(folder), "snapshots_stay", text)
                continue
            demand(
                is_whole(folder), "bad_is_not_served", f"snapshot {name} verifies and is not whole"
            )
            recovery = self._recovery(disk, history.log)
            with disk.temporary() as place:
                recovery.restore(snapshot, place / str(number), number)
                found = disk.disk.folder(place / str(number))
                assert found.database is not None
                self._check_folds(number, name, dict(found.database.rows.scan(b"")))
            self.world.counts["snapshot proved"] += 1

    def _check_folds(self, number: int, name: str, rows: Rows) -> None:
        """A snapshot's rows and the log's tail on them are what the whole log gives."""
        history, store = self.world.histories[number], MemoryStore()
        store.write(rows)
        try:
            Partition(history.log, store, number, rules=BUILDS[0]).recover()
        except Damaged as error:
            raise Violated("snapshots_fold", f"snapshot {name}: {error}") from error
        check_same_but_stuck("snapshots_fold", f"snapshot {name} and its tail",
                             dict(history.store.scan(b"")), dict(store.scan(b"")))  # fmt: skip

    def _recovery(self, disk: SimDisk, log: Any) -> Recovery:
        versions = versions_of(BUILDS[0])
        return Recovery(PROJECTION, log, disk, versions, BUILDS[0], lambda *told: None)

    def _check_trimmed(self, machine: Machine, history: History) -> None:
        """Where the log begins behind what a snapshot holds, recovery stops and changes nothing."""
        disk, number = self._judge(machine), history.partition
        shelf = Shelf(SNAPSHOTS, number, disk)
        for name in shelf.names()[:1]:
            folder = self._shelf(machine, number)[name]
            meta = (
                decode_manifest(_file(folder, MANIFEST_FILE).data).meta
                if is_whole(folder)
                else None
            )
            if meta is None or meta.sequence + 2 > len(history.counted):
                return
            whole = {name for name, each in self._shelf(machine, number).items() if is_whole(each)}
            disk.disk.folder(PATH).change({"projection": Folder()})
            kept = [
                stored for stored, record in history.counted if record.sequence > meta.sequence + 1
            ]
            trimmed = Trimmed(self.world.disk, kept[0].offset)
            recovery = self._recovery(disk, trimmed)
            try:
                store = recovery.open(shelf)  # a fresh one, where no snapshot is of use
                Partition(trimmed, store, number, rules=BUILDS[0]).recover()
            except LogTrimmed as error:
                found = set(self._shelf(machine, number))
                demand(whole <= found, "snapshots_stay", "a trimmed log costs a snapshot")
                demand(error.sequence <= meta.sequence + 1, "bad_is_not_served", str(error))
                self.world.counts["log trimmed"] += 1
            else:
                raise Violated("bad_is_not_served", f"a hole behind snapshot {name} is passed over")


COMMANDS = ("takes", "takes", "prunes", "verifies", "replays", "restores", "rebuilds", "rebuilds")


class _WithoutSteps:
    """A scheduler for whoever only looks: nothing happens at its steps."""

    dice, now = random.Random(0), 0

    def step(self, process: object, name: str, can: tuple[str, ...] = ()) -> None:
        """See Scheduler.step."""


WITHOUT_STEPS: Any = _WithoutSteps()


class Trimmed(Reader):
    """A log of which all before an offset is gone."""

    def __init__(self, disk: LogDisk, first: int) -> None:
        super().__init__(disk)
        self._first = first

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """See Log.events."""
        return super().events(partition, max(start, self._first), limit, max_bytes)


def check_same_but_stuck(name: str, what: str, expected: Rows, found: Rows) -> None:
    """Two stores hold the same rows, but for where runs came from, and for those in schema 1."""
    left = stuck(found)

    def shown(rows: Rows) -> Rows:
        return {
            key: without_origin(key, value) for key, value in rows.items() if not is_of(key, left)
        }

    invariants.check_same(name, what, shown(expected), shown(found))


def _file(folder: Folder, name: str) -> File:
    file = folder.entries[name]
    assert isinstance(file, File)
    return file


def is_whole(folder: Folder) -> bool:
    """Whether a snapshot's folder holds what its manifest says, byte for byte."""
    manifest, files = folder.entries.get(MANIFEST_FILE), folder.entries.get(FILES_FOLDER)
    if not isinstance(manifest, File) or not isinstance(files, Folder) or len(folder.entries) != 2:
        return False
    try:
        said = decode_manifest(manifest.data).files
    except SnapshotDamaged:
        return False
    found = {
        (name, len(file.data), hashlib.sha256(file.data).hexdigest())
        for name, file in files.files().items()
    }
    return found == {(each.name, each.size, each.sha256) for each in said}
