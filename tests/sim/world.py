"""One simulation: processes of the real engine, clients in them, faults around them, and the end.

Three shapes: ``home`` (one directory: a holder, guests, perhaps a daemon), ``twins`` (every process
holds stores of its own beside one conditional log) and ``broker`` (the same beside a log that
takes whatever it is given). In one seed of three snapshots are simulated too (``keeping``).

Invariants:
- ``World(config).run()`` depends on the config alone.
- Faults stop before the end is checked; whatever is then not decided never will be.
"""

from __future__ import annotations

import hashlib
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from foldlog.apart import Apart
from foldlog.client import Engine
from foldlog.core.catalogue import Catalogue
from foldlog.log.base import Proposed, Stored
from foldlog.place import Place
from foldlog.seat import Seat
from foldlog.wire.slots import STATE_FORMAT
from tests.sim import invariants
from tests.sim.builds import BUILDS
from tests.sim.clients import Clients
from tests.sim.faults import KINDS, Faults
from tests.sim.history import History
from tests.sim.invariants import Violated, demand
from tests.sim.jobs import Jobs
from tests.sim.keeping import Keeping, check_same_but_stuck
from tests.sim.logs import LogDisk
from tests.sim.older import stuck
from tests.sim.place import Home, Machine, SimPlace, SimProcess
from tests.sim.scheduler import Scheduler, SimRuntime, Stuck
from tests.sim.storage import StoreDisk, meta_of
from tests.sim.workload import START_US, Workload

SECOND = 1_000_000
KEPT_EVERY, KEPT_AT = 3, 1
"""Which seeds have snapshots."""

PROPOSALS_MAX = 26
"""Of the clients there."""

SHAPES = ("home", "home", "twins", "broker", "broker")
HOME_KINDS = frozenset({"fsync"})
BROKER_KINDS = frozenset({"late", "in_parts", "twice"})
TRACE_LINES_MAX = 20_000

T = TypeVar("T")


class OneThread(Apart):
    """No threads: what is simulated runs in one, where no signal comes between."""

    def call(self, work: Callable[[], T], undo: Callable[[T], object] = lambda value: None) -> T:
        """What ``work`` gives or raises."""
        return work()


@dataclass(frozen=True)
class Config:
    """What a run depends on. Everything but the seed can be narrowed to make a run smaller."""

    seed: int
    shape: str | None = None
    proposals: int = 36
    processes: int | None = None
    kinds: frozenset[str] = frozenset(KINDS)
    keep: frozenset[int] | None = None
    snapshots: bool | None = None
    """Whether snapshots are simulated too; None: in one seed of three."""
    traced: bool = False


class World:
    """Everything of one simulation."""

    def __init__(self, config: Config) -> None:
        self.config = config
        dice = random.Random(f"{config.seed}/world")
        self.shape = config.shape or dice.choice(SHAPES)
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        every = dice.choice((120, 250, 250, 600, 1500))
        number = dice.choice((1, 2, 2, 3)) if self.shape == "home" else dice.choice((2, 2, 3))
        full = dice.random() < 0.06
        if full:  # a thousand signals are slow to fold as often as several processes would
            self.shape, number, every = "home", 1, 2_000
            config = replace(config, proposals=min(config.proposals, 4))
        kept = config.seed % KEPT_EVERY == KEPT_AT if config.snapshots is None else config.snapshots
        kept = kept and not full
        if kept:  # as long as a seed without snapshots
            config = replace(config, proposals=min(config.proposals, PROPOSALS_MAX))
        kinds = config.kinds - (HOME_KINDS if self.shape == "broker" else BROKER_KINDS)
        most = dice.choice((3, 8, 20, 60))
        self.faults = Faults(config.seed, every, most, kinds, config.keep, kept)
        self.faults.happened, self.faults.note = self._happened, self.note
        self.scheduler = Scheduler(config.seed, self.faults)
        self.number = config.processes or number
        partitions = dice.choice((1, 1, 2))
        self.disk = LogDisk(
            partitions, self.shape != "broker", self.scheduler, self._appended, self.counts
        )
        self.histories = [
            History(self.disk, n, self._rules_of, self.counts) for n in range(partitions)
        ]
        self.workload = Workload(config.seed, config.proposals, dice.choice((2, 3)), full)
        self.workers = 1 if full else dice.choice((1, 2, 2))
        self.builds = dice.choice(((0, 1, 2), (0, 0, 1), (0, 0, 0), (1, 2, 0)))
        self.daemon = self.number - 1 if dice.random() < 0.4 and self.number > 1 else None
        self.home = Home()
        self.keeping = Keeping(self) if kept else None
        self.machines = self._machines()
        self.broker_clock_us = 0
        self.cut_until = 0
        self.calm = False
        self.lives: list[SimProcess] = []
        self.living: dict[int, SimProcess] = {}
        self.engines: dict[SimProcess, Engine] = {}
        self.clients = Clients(self, self.workload)
        self.jobs = Jobs(self)

    def _machines(self) -> list[Machine]:
        names = [f"machine {n}" for n in range(1 if self.shape == "home" else self.number)]
        if self.keeping is not None:
            return [self.keeping.machine(name) for name in names]
        return [Machine(name, self.store_disks()) for name in names]

    def store_disks(self) -> list[StoreDisk]:
        """The stores of a machine, of which nothing is there yet."""
        return [StoreDisk(number, self.written) for number in range(self.disk.partitions)]

    # What is told to whoever looks on

    def note(self, line: str) -> None:
        """A line of the trace."""
        if self.config.traced and len(self.lines) < TRACE_LINES_MAX:
            self.lines.append(f"{self.scheduler.steps:6} {self.scheduler.now / SECOND:9.4f} {line}")

    def _rules_of(self, decider: str) -> Mapping[int, Catalogue]:
        return BUILDS[self.builds[int(decider.split(":")[1])]]

    def _appended(self, partition: int, proposals: list[Proposed], rows: list[Stored]) -> None:
        for row in proposals:
            self.note(f"log {partition}: position {row.position} of {row.key!r}")
        history = self.histories[partition]
        before = len(history.counted)
        history.take(proposals, rows)
        for _, record in history.counted[before:]:
            what = record.code or record.error or ""
            self.note(
                f"log {partition}: record {record.sequence} by {record.decider} of position "
                f"{record.position}: {record.outcome} {what} "
                f"{record.run_id}@{record.revision_after}"
            )
        if len(rows) > len(history.counted) - before:
            self.note(f"log {partition}: {len(rows) - len(history.counted) + before} void")

    def written(self, disk: StoreDisk, name: str = "state_is_the_fold") -> None:
        """A store has changed: it is the fold of the log up to its offset, or ``name`` fails."""
        meta = meta_of(disk.rows)
        history, offset = self.histories[disk.partition], meta.offset
        self.note(f"store {disk.partition}: folded to offset {offset}")
        if history.sums.get(offset) == disk.rows.sum or meta.format < STATE_FORMAT:
            return  # of an older format: whoever holds it lifts it first
        expected = dict(history.store.scan(b"")) if history.meta.offset == offset else {}
        found = dict(disk.rows.scan(b""))
        what = f"partition {disk.partition} at offset {offset}"
        if expected:
            check_same_but_stuck(name, what, expected, found)
        if not stuck(found):
            raise Violated(name, f"{what} is no fold of the log as it was there")

    # Faults

    def _happened(self, kind: str, process: Any) -> None:
        assert isinstance(process, SimProcess)
        {
            "kill": self._kill,
            "crash": self._crash,
            "leave": self._leave,
            "stall": self._stall,
            "clock": self._clock,
            "cut": self._cut,
            "rot": self._rot,
        }[kind](process)

    def _kill(self, process: SimProcess) -> None:
        self.disk.process_ended(process, self.faults.own.random() < 0.5)
        self._ended(process)
        self.scheduler.kill(process)

    def _rot(self, process: SimProcess) -> None:
        assert self.keeping is not None
        self.keeping.rot(process, self.faults.own)

    def _ended(self, process: SimProcess) -> None:
        if self.keeping is not None and process in self.keeping.operators:
            self.keeping.operators.discard(process)
            return
        self.living.pop(process.number, None)
        self.engines.pop(process, None)
        pause = 1 if self.calm else self.faults.own.choice((1_000, 300_000, 4_000_000))
        self.scheduler.after(pause, lambda: self._begin(process.number))

    def _crash(self, process: SimProcess) -> None:
        machine, dice = process.machine, self.faults.own
        if self.shape == "home":
            lost = self.disk.machine_ended(dice.random() < 0.5)
            self.note(f"  {lost} rows of the log were never synced")
            self._check_grown()
        else:
            self.disk.process_ended(process, dice.random() < 0.5)
        if machine.files is not None:
            self.counts["batches lost"] += machine.files.root.lose(dice)
        else:
            for disk in machine.disks:
                self.counts["batches lost"] += disk.lose(dice.randrange(6))
        everyone = [*self.living.values(), *(self.keeping.there() if self.keeping else ())]
        victims = [one for one in everyone if one.machine is machine]
        for victim in victims:
            self._ended(victim)
        victims.sort(key=lambda one: one is process)  # this one last: it raises
        for victim in victims:
            self.scheduler.kill(victim)

    def _leave(self, process: SimProcess) -> None:
        engine = self.engines.pop(process, None)
        if engine is None:
            return

        def leave() -> None:
            self.clients.tolerant(process, engine.close)
            self._ended(process)
            self.scheduler.kill(process)

        self.scheduler.spawn(process, "leaving", leave)

    def _stall(self, process: SimProcess) -> None:
        pause = self.faults.own.choice((2_000, 50_000, 800_000, 13_000_000))
        process.stalled_until = self.scheduler.now + pause
        self.scheduler.give_way()

    def _clock(self, process: SimProcess) -> None:
        jump = self.faults.own.choice((-3_600, -30, -1, 1, 20, 400, 3_600)) * SECOND
        if self.shape == "broker" and self.faults.own.random() < 0.5:
            self.broker_clock_us += jump
        else:
            process.machine.clock_us += jump
        self.counts["clock back"] += jump < 0

    def _cut(self, process: SimProcess) -> None:
        self.cut_until = self.scheduler.now + self.faults.own.choice((20_000, 500_000, 4_000_000))

    def leap(self, seconds: int) -> None:
        """Time passes for everyone's wall clock."""
        self.broker_clock_us += seconds * SECOND
        for machine in self.machines:
            machine.clock_us += seconds * SECOND

    # Processes

    def _begin(self, number: int) -> None:
        machine = self.machines[0 if self.shape == "home" else number]
        build = BUILDS[self.builds[number]]
        process = SimProcess(
            f"p{number}",
            number,
            machine=machine,
            rules=build,
            daemon=number == self.daemon and self.shape == "home",
            life=len(self.lives),
        )
        self.lives.append(process)
        self.living[number] = process
        self.note(f"{process.decider} begins")
        self.scheduler.spawn(process, "main", lambda: self._main(process))

    def clocks_of(self, process: SimProcess) -> tuple[Callable[[], int], Callable[[], int]]:
        """A process's wall clock, and the one that stamps what its log takes."""
        scheduler = self.scheduler

        def clock() -> int:
            return START_US + scheduler.now + process.machine.clock_us

        def log_clock() -> int:
            return START_US + scheduler.now + self.broker_clock_us

        return clock, log_clock if self.shape == "broker" else clock

    def _place(self, process: SimProcess) -> Place:
        clock = self.clocks_of(process)[1]
        if self.keeping is not None:
            return self.keeping.home(process, clock)
        return SimPlace(
            self.disk,
            self.home,
            process,
            self.scheduler,
            apart=self.shape != "home",
            clock=clock,
            is_cut=self.is_cut,
        )

    def is_cut(self) -> bool:
        """Whether log and stores cannot be reached."""
        return self.scheduler.now < self.cut_until

    def _open(self, process: SimProcess) -> Engine:
        scheduler, (clock, _) = self.scheduler, self.clocks_of(process)
        place = self._place(process)
        seat = Seat(
            place,
            clock,
            daemon=process.daemon,
            rules=process.rules,
            runtime=SimRuntime(scheduler, process),
            decider=process.decider,
        )
        engine = Engine(seat, clock, author="user:sim")
        engine._apart = OneThread()
        engine._sit_down()
        return engine

    def _main(self, process: SimProcess) -> None:
        """What a process does: open the home, work, and look after the turn."""
        runtime = SimRuntime(self.scheduler, process)
        if self.keeping is not None:
            self.keeping.may_age(process.machine)
        opened: list[Engine] = []
        while not self.clients.call(process, lambda: opened.append(self._open(process))):
            runtime.sleep(200_000)
        engine = self.engines[process] = opened[0]
        for number in range(self.workers):
            name = f"worker {number}"
            self.scheduler.spawn(process, name, lambda: self.clients.work(process, engine))
        if self.jobs.ids:
            self.scheduler.spawn(process, "kit", lambda: self.jobs.work(process, engine))
        if self.keeping is not None:
            keeping = self.keeping
            self.scheduler.spawn(process, "snapshots", lambda: keeping.work(process, engine))
        while process in self.engines:
            self._tick(process, engine, runtime)

    def _tick(self, process: SimProcess, engine: Engine, runtime: SimRuntime) -> None:
        """One round of Engine._tick, on simulated time; whatever it raises would end the thread."""
        seat = engine._seat
        try:
            microseconds = seat.tick()
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-6:])
            name = f"the turn of {process.name} ends by {error!r}"
            raise Violated("errors_are_ours", f"{name}\n{text}") from error
        if seat.is_holder:
            seat.place.rest(microseconds)
        else:
            runtime.sleep(microseconds)

    # The run and its end

    def run(self) -> Counter[str]:
        """Everything, from the first process to the last check; the counts. Violated if not."""
        # Workers catch signals while they work, and here they do so in one thread and end anyhow.
        handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
        for number in range(self.number):
            self.scheduler.after(self.scheduler.dice.randrange(50_000), self._starter(number))
        if self.keeping is not None:
            self.keeping.begin()
        try:
            self.scheduler.run(lambda: self.workload.done, 400 * SECOND)
            self._check_grown()
            self._settle()
            self._check_end()
        except Stuck as stuck:
            raise Violated("all_decided", str(stuck)) from stuck
        finally:
            self.scheduler.end(self.lives)
            for each, handler in handlers.items():
                signal.signal(each, handler)
        self.counts.update({f"fault {kind}": n for kind, n in self.faults.counts.items()})
        self.counts[f"shape {self.shape}"] += 1
        return self.counts

    def _starter(self, number: int) -> Callable[[], None]:
        return lambda: self._begin(number)

    def _settle(self) -> None:
        """The faults stop; everything comes to rest, and then every deadline has passed."""
        self.note("the faults stop")
        self.calm = True
        self.faults.stop()
        self.cut_until = 0
        scheduler = self.scheduler
        scheduler.limit = scheduler.steps + 200_000
        for process in self.living.values():
            process.stalled_until = 0
        clocks = [self.broker_clock_us, *(machine.clock_us for machine in self.machines)]
        self.broker_clock_us = max(clocks)
        for machine in self.machines:
            machine.clock_us = max(clocks)
        self._mend()
        for _ in range(3):
            scheduler.run(self._is_settled, scheduler.now + 60 * SECOND)
            scheduler.run(lambda: False, scheduler.now + 3 * SECOND)
            self.leap(4_000)
        self._mend()
        self._probe()
        scheduler.run(self._is_settled, scheduler.now + 60 * SECOND)
        demand(self._is_settled(), "all_decided", self._what_waits)
        self._check_deadlines()
        self.jobs.check()

    def _mend(self) -> None:
        """What could not be lifted is folded anew, also where a snapshot brought it back."""
        if self.keeping is not None:
            self.keeping.mend()
            self.scheduler.run(self.keeping.is_mended, self.scheduler.now + 120 * SECOND)
            self.scheduler.run(lambda: False, self.scheduler.now + 3 * SECOND)

    def _probe(self) -> None:
        """Every process gets an answer, now that nothing is wrong any more."""
        answers: list[bool] = []
        for process, engine in list(self.engines.items()):
            probe = partial(self.clients.probe, process, engine)
            work = partial(lambda probe: answers.append(probe()), probe)
            self.scheduler.spawn(process, "probe", work)
        number = len(self.engines)
        self.scheduler.run(lambda: len(answers) == number, self.scheduler.now + 60 * SECOND)
        text = f"{sum(answers)} of {number} processes get an answer"
        demand(sum(answers) == number, "all_decided", text)

    def _is_settled(self) -> bool:
        ended = self.workload.done and self.jobs.all_ended
        opened = len(self.engines) == self.number and ended
        return opened and all(
            len(h.counted) == len(h.inbox) and min(self._folded(h)) == len(h.counted)
            for h in self.histories
        )

    def _folded(self, history: History) -> list[int]:
        """How far each store of a partition is folded (the sequence)."""
        disks = [machine.disks[history.partition] for machine in self.machines]
        return [meta_of(disk.rows).sequence for disk in disks]

    def _what_waits(self) -> str:
        waits = [
            f"{len(h.counted)} of {len(h.inbox)} decided, stores at {self._folded(h)}"
            for h in self.histories
        ]
        opened = f"{len(self.engines)} of {self.number} processes open"
        ended = f"{sorted(self.jobs.ended)} of {self.jobs.ids} ended"
        return f"{'; '.join(waits)}; {opened}; {len(self.workload.retries)} unknown; {ended}"

    def _check_deadlines(self) -> None:
        for history in self.histories:
            for run_id in history.revisions:
                state = history.state(run_id)
                wait = state.value("wait") if state.exists else None
                overdue = wait is not None and wait["deadline"] is not None
                demand(
                    not overdue or state.quarantine is not None,
                    "all_decided",
                    f"{run_id} still waits, its deadline {wait and wait['deadline']} is long past",
                )

    def _check_grown(self) -> None:
        """What could be read once can be read still."""
        for history in self.histories:
            number = history.partition
            invariants.check_grown("position", history.inbox, self.disk.proposals[number])
            invariants.check_grown("record", history.rows, self.disk.events[number])

    def _check_end(self) -> None:
        from tests.sim.ending import check_stores  # it needs a process to look from

        self._check_grown()
        for run_id, value, outcome in self.clients.told:
            self.clients.check_told(run_id, value, outcome)
        for history in self.histories:
            history.check_again()
        check_stores(self)
        if self.keeping is not None:
            self.keeping.check()

    def digest(self) -> str:
        """A digest of everything the log holds: the same for the same config."""
        whole = hashlib.blake2b(digest_size=16)
        for history in self.histories:
            for row in history.rows:
                whole.update(row.value)
            whole.update(str(history.store.sum).encode())
        whole.update(str((self.scheduler.steps, self.scheduler.now)).encode())
        return whole.hexdigest()
