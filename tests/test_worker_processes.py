"""Workers as processes of their own: killed, stopped and continued, told to end.

Invariants:
- A daemon holds the projection, so that a worker that stands still holds up nobody.
- The outside world is a file that takes every line it is given: that no line is there twice is the
  kit's doing.
"""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from foldlog.home import LOG_FILE
from tests.kit import state_of
from tests.processes import line, tell
from tests.workers import daemon, environment, stopped

LEASE_SECONDS = 1

# Works on what there is. At each point that is named as its third argument it says so and waits for
# a line; "act" is between an accepted intent and the effect.
SCRIPT = """
import sys
from pathlib import Path
from foldlog import Engine
from foldlog.client import Run
from foldlog.worker import Agent, Failed, Succeeded, Worker

home, name, point, world = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
agent, real = Agent(), Run.propose

def at(here):
    if here == point:
        print(here, flush=True)
        sys.stdin.readline()

def propose(self, events, **options):
    outcome = real(self, events, **options)
    if events[-1]["type"] == "EffectIntended":
        at("act")
    return outcome

Run.propose = propose

def lines():
    return world.read_text().split("\\n") if world.exists() else []

@agent.effect("write")
def write(effect):
    with world.open("a") as file:
        file.write(effect.idempotency_key + "\\n")
    at("done")
    return f"file:{world}"

@write.reconciler
def ask(effect):
    found = effect.idempotency_key in lines()
    return Succeeded(f"file:{world}") if found else Failed(f"file:{world}")

@agent.step
def work(run):
    at("step")
    run.tool("look", len, "x")
    run.perform("line", write, f"file:{world}")

with Engine.open(home) as engine:
    print("claims", Worker(engine, name, agent, lease_seconds=int(sys.argv[5])).work())
"""


class Place:
    """A home with one run, a daemon that holds it, and an outside world."""

    def __init__(self, folder: Path) -> None:
        self.home, self.world = folder / "home", folder / "world"
        with Engine.open(self.home, create=True, partitions=1, author="user:ada") as engine:
            engine.start("run_1", goal="write one line")

    @contextmanager
    def worker(
        self, name: str, point: str = "", ttl: int = LEASE_SECONDS
    ) -> Iterator[subprocess.Popen[str]]:
        """A worker that stands still at a point; killed at the end."""
        options = map(str, (self.home, name, point, self.world, ttl))
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def finish(self, name: str = "other") -> None:
        """Have another worker do what is left, and see it end."""
        with self.worker(name) as process, Engine.open(self.home) as engine:
            waited = engine.run("run_1").wait("finish", timeout=60)
            assert waited is not None
            assert waited.result == "completed", waited
            end(process)

    def state(self) -> Any:
        """The run's state."""
        with Engine.open(self.home) as engine:
            return state_of(engine.run("run_1"))

    def codes(self) -> list[str]:
        """What was refused."""
        with Engine.open(self.home) as engine:
            assert engine.verify(redecide=True).ok
            return [r.code for r in engine.run("run_1").history(rejected=True) if r.code]

    def lines(self) -> list[str]:
        """What was done."""
        return self.world.read_text().splitlines()


@contextmanager
def stopped_outside_a_write(process: subprocess.Popen[str], home: Path) -> Iterator[None]:
    """A worker that is stopped meanwhile, and not while it has the log's lock to renew its lease:
    everybody would have to wait for it."""
    while True:
        with stopped(process):
            if is_free_at_times(home / f"{LOG_FILE}.lock"):
                yield
                return
        time.sleep(0.01)


def is_free_at_times(lock: Path, seconds: float = 2.0) -> bool:
    """Whether nobody keeps an flock for all of that time."""
    give_up = time.monotonic() + seconds
    with lock.open("ab") as file:
        while time.monotonic() < give_up:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.01)
    return False


def end(process: subprocess.Popen[str]) -> None:
    """Tell a worker to end, and see that it does."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A home, and a daemon beside it."""
    made = Place(tmp_path)
    with daemon(made.home, tmp_path / "daemon.log"):
        yield made


@pytest.mark.parametrize(
    ("point", "outcomes"), [("step", ["succeeded"]), ("act", ["failed", "succeeded"]),
                            ("done", ["succeeded"])]
)  # fmt: skip
def test_a_killed_workers_run_is_finished_by_another(
    place: Place, point: str, outcomes: list[str]
) -> None:
    """FAULTS 11: killed anywhere, the run is picked up once the lease is over, and its effect
    happens once."""
    with place.worker("first", point) as process:
        assert line(process) == point
    place.finish()
    assert place.lines() == ["run_1/line"]
    state = place.state()
    assert [effect.outcome for effect in state.effects] == outcomes
    assert state.tasks[0].worker == "other"


def test_a_stopped_worker_is_fenced_before_it_touches_anything(place: Place) -> None:
    """FAULTS 3: stopped between intent and effect, it wakes up after another has finished the run,
    and does nothing; nor does it end in an error, but goes on with what there is."""
    with place.worker("first", "act") as process:
        assert line(process) == "act"
        with stopped_outside_a_write(process, place.home):
            place.finish()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        end(process)
        assert line(process) == "claims 1"
    assert place.lines() == ["run_1/line"]
    assert [effect.outcome for effect in place.state().effects] == ["failed", "succeeded"]
    assert set(place.codes()) <= {"FENCED", "RUN_FINISHED"}


def test_a_worker_told_to_end_hands_over(place: Place) -> None:
    """On SIGTERM it lets its run go at the next safe point, with a checkpoint, and ends; another
    need not wait for a lease to end."""
    with place.worker("first", "step", ttl=3600) as process:
        assert line(process) == "step"
        process.send_signal(signal.SIGTERM)
        assert tell(process, "") == "claims 1"
        assert process.wait(30) == 0
    state = place.state()
    assert (state.lease, state.checkpoint.boundary) == (None, "lease_release")
    place.finish()
    assert place.lines() == ["run_1/line"]


def test_a_step_longer_than_its_lease(place: Place) -> None:
    """While a step works its lease is renewed: no other worker takes the run."""
    with place.worker("first", "step") as process:
        assert line(process) == "step"
        with Engine.open(place.home) as engine:
            run, seen = engine.run("run_1"), 0
            for row in run.watch(after=0, timeout=30):
                seen += [event.type for event in row.events or []] == ["LeaseRenewed"]
                if seen == 4:  # each at a third of it or later
                    break
            assert (seen, state_of(run).lease.worker) == (4, "first")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        with Engine.open(place.home) as engine:
            waited = engine.run("run_1").wait("finish", timeout=30)
            assert waited is not None
            assert waited.result == "completed"
    assert place.state().tasks[0].worker == "first"
