"""Agent workers as processes of their own: each proposes for a while and says what it was told.

Invariants:
- All begin at once, after every one of them has its engine open.
- What a worker prints it was told by an outcome; of a killed one the last line may be cut.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli_shell import has_commands

WORKER = """
import json, random, signal, sys, time, uuid
from foldlog import Engine, errors

home, number, runs, limit, conflict_every = sys.argv[1], *map(int, sys.argv[2:6])
dice = random.Random(number)
stopped = False

def stop(*_):
    global stopped
    stopped = True

def tell(**facts):
    # One write for one line: of a killed process the last line may be cut, no other.
    sys.stdout.write(json.dumps(facts) + "\\n")
    sys.stdout.flush()

def fact():
    return {"type": "FactConfirmed", "fact": {"id": str(uuid.uuid4()), "statement": "so",
            "evidence": "test://1"}}

def until_known(run, events, options):
    batch_id = str(uuid.uuid4())
    while True:
        try:
            return run.propose(events, batch_id=batch_id, timeout=20, **options)
        except (errors.HomeBusy, errors.OutcomeUnknown, errors.Unavailable) as error:
            tell(retried=batch_id, error=error.code)

def propose(engine, count):
    run = engine.run(f"run_{dice.randrange(runs)}")
    events, options = [fact()], {}
    if conflict_every and count % conflict_every == 0:
        events, options = [{"type": "PhaseChanged", "phase": str(number)}], {"expected_revision": 1}
    outcome = until_known(run, events, options)
    tell(run=run.run_id, batch=outcome.batch_id, outcome=outcome.outcome, code=outcome.code,
         revision=outcome.revision, chain=outcome.chain, duplicate=outcome.duplicate)

signal.signal(signal.SIGTERM, stop)
with Engine.open(home, author=f"agent:w{number}") as engine:
    tell(ready=number)
    sys.stdin.readline()
    count = 0
    while not stopped and count != limit:
        count += 1
        propose(engine, count)
tell(done=count)
"""


FOLDLOG = [sys.executable, "-c", "from foldlog.cli.main import main; main()"]


@functools.cache
def _search_path() -> str:
    """Where a child finds the foldlog that is tested, its entry points included."""
    folder = tempfile.mkdtemp(prefix="foldlog-metadata-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths = [os.path.abspath(path) for path in sys.path if path]
    return os.pathsep.join([*paths, *has_commands(Path(folder))])


def environment() -> dict[str, str]:
    """What a child needs to find the foldlog that is tested."""
    kept = {name: value for name, value in os.environ.items() if name != "FOLDLOG_HOME"}
    return {**kept, "USER": "anna", "PYTHONPATH": _search_path()}


def foldlog(home: Path, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command of the shell, run to its end."""
    command = [*FOLDLOG, *args, "--home", str(home)]
    return subprocess.run(
        command, input=stdin, capture_output=True, env=environment(), check=False, timeout=120
    )


def pid_of_holder(home: Path) -> int:
    """The process that holds the projection, or was the last to, as the home says."""
    return int(json.loads((home / "holder.lock").read_bytes())[0])


@contextmanager
def stopped(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A process that is stopped meanwhile."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@dataclass(slots=True)
class Worker:
    """A worker, its number, and the file that it prints to."""

    number: int
    process: subprocess.Popen[bytes]
    told: Path

    def lines(self) -> list[dict[str, Any]]:
        """What it has said so far, whole lines only."""
        text = self.told.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def outcomes(self) -> list[dict[str, Any]]:
        """The outcomes it was told."""
        return [line for line in self.lines() if "outcome" in line]

    def begin(self) -> None:
        """Let it propose."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


def start_worker(
    home: Path,
    folder: Path,
    number: int,
    *,
    runs: int = 1,
    limit: int = -1,
    conflict_every: int = 0,
    wrapper: Sequence[str] = (),
) -> Worker:
    """Start a worker; it waits for ``begin`` once it is ready."""
    told = folder / f"told-{number}-{time.monotonic_ns()}"
    options = map(str, (home, number, runs, limit, conflict_every))
    with told.open("wb") as out:
        process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", WORKER, *options],
            stdin=subprocess.PIPE,
            stdout=out,
            env=environment(),
        )
    return Worker(number, process, told)


def until(what: Any, seconds: float = 60.0, pause: float = 0.01) -> None:
    """Wait until something holds; fails when it does not within the time."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to hold in time"
        time.sleep(pause)


@contextmanager
def workers(home: Path, folder: Path, count: int, **options: Any) -> Iterator[list[Worker]]:
    """So many workers that begin at once; killed at the end if they are still there."""
    made = [start_worker(home, folder, number, **options) for number in range(count)]
    try:
        for worker in made:
            until(lambda worker=worker: worker.lines() or worker.process.poll() is not None)
        for worker in made:
            worker.begin()
        yield made
    finally:
        for worker in made:
            worker.process.kill()
            worker.process.communicate()


def stop(made: Sequence[Worker]) -> None:
    """Have workers end after the proposal that is under way."""
    for worker in made:
        worker.process.send_signal(signal.SIGTERM)
    for worker in made:
        assert worker.process.wait(60) == 0, worker.number


@contextmanager
def daemon(
    home: Path, log: Path, *, wrapper: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """`foldlog project` beside them, holding the projection when this returns; killed at last."""
    process = start_daemon(home, log, wrapper=wrapper)
    try:
        until(lambda: "took_over" in said(log) or process.poll() is not None)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def start_daemon(home: Path, log: Path, *, wrapper: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start `foldlog project` with its log lines appended to a file."""
    command = [*wrapper, *FOLDLOG, "project", "--home", str(home)]
    with log.open("ab") as out:
        return subprocess.Popen(command, stderr=out, env=environment())


def log_lines(log: Path) -> list[dict[str, Any]]:
    """A daemon's log lines so far."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").split("\n")[:-1]]


def said(log: Path) -> list[str]:
    """The events in a daemon's log so far."""
    return [line.get("event", "") for line in log_lines(log)]
