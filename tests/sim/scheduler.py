"""One thread for everything: tasks as greenlets, simulated time, and a dice throw at every step.

Invariants:
- The seed alone decides which task goes on, when a fault comes and which one it is.
- A task gives way only at a step, a sleep or a lock; between two of them nothing else happens.
- Nothing of a dead process has an effect: its next step raises ``Killed``, whoever catches it.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import greenlet

if TYPE_CHECKING:
    from tests.sim.faults import Faults

STEP_US = 5
"""What a step costs in simulated time, so that no wait without a sleep is endless."""

SWITCH_EVERY = 5
"""Steps between two looks at whether another task goes on, on average."""


class Killed(BaseException):
    """This process was killed here: its memory is gone."""


class Stuck(BaseException):
    """Nothing came to an end within the steps allowed."""


@dataclass(eq=False)
class Process:
    """A simulated process: what dies together."""

    name: str
    number: int
    dead: bool = False
    stalled_until: int = 0
    tasks: list[Task] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    """One thread of a process."""

    process: Process
    name: str
    work: Any
    wakes: int = 0
    due: int | None = None


class Scheduler:
    """Runs the tasks one at a time; ``limit`` is the number of steps allowed."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.dice = random.Random(f"{seed}/schedule")
        self.faults = faults
        self.now = 0
        self.steps = 0
        self.limit = 200_000
        self.current: Task | None = None
        self._hub = greenlet.getcurrent()
        self._ready: list[Task] = []
        self._sleeping: list[tuple[int, int, int, Task]] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._dying: list[Task] = []
        self._count = 0
        self._countdown = 1

    # Tasks

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Task:
        """A new task of a process; it begins when the dice let it."""

        def body() -> None:
            with contextlib.suppress(Killed):
                work()

        task = Task(process, name, greenlet.greenlet(body, self._hub))
        process.tasks.append(task)
        self._ready.append(task)
        return task

    def after(self, microseconds: int, work: Callable[[], None]) -> None:
        """Do something later, in no process."""
        self._count += 1
        heapq.heappush(self._timers, (self.now + microseconds, self._count, work))

    def kill(self, process: Process) -> None:
        """End a process here and now. Raises ``Killed`` in the caller if it is one of its tasks."""
        process.dead = True
        self._dying.extend(task for task in process.tasks if task is not self.current)
        if self.current is not None and self.current.process is process:
            raise Killed

    def step(self, process: Process, name: str, can: tuple[str, ...] = ()) -> str | None:
        """A place where anything may happen; returns the failure that the caller must act out."""
        if process.dead:
            raise Killed
        self.now += STEP_US
        self.steps += 1
        if self.steps > self.limit:
            raise Stuck(f"no end after {self.limit} steps")
        self.faults.step(process, name)
        if process.dead:
            raise Killed
        self._countdown -= 1
        if self._countdown <= 0:
            self._countdown = self.dice.randint(1, 2 * SWITCH_EVERY)
            self.give_way()
        return self.faults.failure(name, can) if can and self.faults.pending else None

    def give_way(self) -> None:
        """Let any other task go on."""
        task = self._mine()
        self._ready.append(task)
        self._switch(task)

    def sleep(self, microseconds: int) -> None:
        """Go on when so much time has passed."""
        self._sleep_until(self._mine(), self.now + max(microseconds, 1))

    def _sleep_until(self, task: Task, due: int) -> None:
        self._put_to_sleep(task, due)
        self._switch(task)

    def _put_to_sleep(self, task: Task, due: int) -> None:
        self._count += 1
        task.wakes += 1
        heapq.heappush(self._sleeping, (due, self._count, task.wakes, task))

    def wait(self, waiters: list[Task], microseconds: int | None) -> bool:
        """Wait to be woken out of ``waiters``; False if the time is up."""
        task = self._mine()
        waiters.append(task)
        if microseconds is None:
            self._switch(task)
        else:
            self._sleep_until(task, self.now + max(microseconds, 1))
        if task in waiters:
            waiters.remove(task)
            return False
        return True

    def wake(self, waiters: list[Task]) -> None:
        """Wake one task that waits, if there is one."""
        alive = [task for task in waiters if not task.process.dead]
        if alive:
            task = self.dice.choice(alive)
            waiters.remove(task)
            task.wakes += 1
            self._ready.append(task)

    def _mine(self) -> Task:
        assert self.current is not None
        if self.current.process.dead:
            raise Killed
        return self.current

    def _switch(self, task: Task) -> None:
        self._hub.switch()
        if task.process.dead:
            raise Killed

    # The hub

    def run(self, done: Callable[[], bool], until: int) -> bool:
        """Let everything go on until ``done``, or until so much time has passed; whether done."""
        while not done():
            self._bury()
            self._wake_due()
            if self._ready:
                self._go_on(self._ready.pop(self.dice.randrange(len(self._ready))))
                continue
            dues = [heap[0][0] for heap in (self._sleeping, self._timers) if heap]
            if not dues or min(dues) > until:
                return done()
            self.now = max(self.now, min(dues))
        self._bury()
        return True

    def _go_on(self, task: Task) -> None:
        process = task.process
        if process.dead:
            return
        if process.stalled_until > self.now:
            self._put_to_sleep(task, process.stalled_until)
            return
        self.current = task
        task.work.switch()
        self.current = None

    def _bury(self) -> None:
        while self._dying:
            task = self._dying.pop(0)
            self.current = task
            if task.work:
                task.work.throw(Killed)
            task.work = None
            self.current = None

    def _wake_due(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
        while self._sleeping and self._sleeping[0][0] <= self.now:
            _, _, wakes, task = heapq.heappop(self._sleeping)
            if wakes == task.wakes and not task.process.dead:
                self._ready.append(task)

    def end(self, processes: Sequence[Process]) -> None:
        """Kill everything, so that no greenlet outlives the run."""
        self.current = None
        for process in processes:
            if not process.dead:
                self.kill(process)
        self._bury()


class SimLock:
    """A lock between the tasks of one process (``runtime.Lock``), as often as one task likes."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process
        self._owner: Task | None = None
        self._depth = 0
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See runtime.Lock."""
        scheduler = self._scheduler
        scheduler.step(self._process, "lock")
        end = None if timeout < 0 else scheduler.now + round(timeout * 1_000_000)
        while self._owner is not None and self._owner is not scheduler.current:
            left = None if end is None else end - scheduler.now
            if not blocking or (left is not None and left <= 0):
                return False
            scheduler.wait(self._waiters, left)
        self._owner = scheduler.current
        self._depth += 1
        return True

    def release(self) -> None:
        """See runtime.Lock; RuntimeError for who does not have it."""
        if self._owner is not self._scheduler.current and not self._process.dead:
            raise RuntimeError("not its lock")
        self._depth -= 1
        if self._depth <= 0:
            self._owner, self._depth = None, 0
            self._scheduler.wake(self._waiters)


class SimRuntime:
    """Time and locks of one process (``runtime.Runtime``)."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process

    def monotonic(self) -> int:
        """Microseconds since the simulation began."""
        return self._scheduler.now

    def sleep(self, microseconds: int) -> None:
        """Let the others go on for so long."""
        self._scheduler.step(self._process, "sleep")
        self._scheduler.sleep(microseconds)

    def lock(self) -> SimLock:
        """A new lock."""
        return SimLock(self._scheduler, self._process)
