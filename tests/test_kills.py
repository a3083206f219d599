"""Real kills: SIGKILL of daemon and workers at random, and at the n-th write of each kind.

FOLDLOG_KILLS says how many (20; `make kills` makes it 200): half of them at random, beside a daemon
and workers that go on; half by strace, which kills a process as it enters its n-th fdatasync, write
or rename.

Invariants:
- After a kill nobody repairs anything: the next process starts, and what it did is in its log.
- A batch counts as acknowledged once its outcome was read from the process that proposed it.
- Where strace is missing the test is skipped aloud, and in CI (the variable CI is set) it fails.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from tests import needs
from tests.workers import (
    Worker,
    daemon,
    environment,
    log_lines,
    said,
    start_daemon,
    start_worker,
    until,
)

KILLS = int(os.environ.get("FOLDLOG_KILLS", "20"))
RUNS = 3
CHECK_EVERY = 25

# What a process is killed at, and the calls of that kind a short life has: some of the highest
# numbers are not reached, and that life ends by its limit instead.
POINTS = {
    "fdatasync": ("fdatasync,fsync", 40),
    "write": ("write,pwrite64,writev", 250),
    "rename": ("rename,renameat,renameat2", 8),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of two partitions with a few runs."""
    with Engine.open(tmp_path / "home", create=True, partitions=2, author="user:ada") as engine:
        for number in range(RUNS):
            engine.start(f"run_{number}", goal="count")
    return tmp_path / "home"


@pytest.fixture
def strace() -> str:
    """The program that kills at a given call."""
    return needs.program("strace")


def check(home: Path, told: Sequence[dict[str, Any]]) -> None:
    """What was acknowledged is there as it was told, every revision is, and state is the fold."""
    with Engine.open(home) as engine:
        rows = {}
        for number in range(RUNS):
            history = engine.run(f"run_{number}").history()
            assert [row.revision_after for row in history] == list(range(1, len(history) + 1))
            rows.update({row.batch_id: row for row in history})
        for line in told:
            row = rows[line["batch"]]
            assert (row.revision_after, row.chain) == (line["revision"], line["chain"])
        report = engine.verify(redecide=len(rows) < 500)
        assert report.ok, report.first_difference
        assert report.void == 0
        replay = engine.replay()
        assert replay is not None
        assert replay.digest == engine.digest()


# At random


class Crowd:
    """A daemon and three workers; whoever is killed is started again."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.log = folder / "log"
        self.daemon = start_daemon(home, self.log)
        self.workers = [self._worker(number) for number in range(3)]
        self.all = list(self.workers)

    def _worker(self, number: int) -> Worker:
        worker = start_worker(self.home, self.folder, number, runs=RUNS)
        worker.begin()
        return worker

    def kill(self, which: int) -> None:
        """Kill one of them and start another in its place; 0 is the daemon."""
        victim = self.daemon if which == 0 else self.workers[which - 1].process
        assert victim.poll() is None, f"{which} ended by itself"
        victim.kill()
        victim.communicate()
        if which == 0:
            self.daemon = start_daemon(self.home, self.log)
        else:
            self.workers[which - 1] = self._worker(which)
            self.all.append(self.workers[which - 1])

    def end(self) -> None:
        """Kill all of them."""
        for process in (self.daemon, *(worker.process for worker in self.workers)):
            process.kill()
            process.communicate()

    def told(self) -> list[dict[str, Any]]:
        """Every outcome that any of them was told."""
        return [line for worker in self.all for line in worker.outcomes()]


def test_fault_4_nothing_acknowledged_is_lost_by_random_kills(home: Path, tmp_path: Path) -> None:
    """Whoever is killed whenever, the others go on, and what any of them was told stands."""
    dice = random.Random(4)
    for first in range(0, KILLS // 2, CHECK_EVERY):
        folder = tmp_path / f"from-{first}"
        folder.mkdir()
        crowd = Crowd(home, folder)
        try:
            for _ in range(min(CHECK_EVERY, KILLS // 2 - first)):
                # Each kill comes after something was acknowledged since the last.
                seen = len(crowd.told())
                until(lambda seen=seen, crowd=crowd: len(crowd.told()) > seen, 30)
                until(lambda crowd=crowd: True, pause=dice.random() * 0.2)
                crowd.kill(dice.randrange(4))
            seen = len(crowd.told())
            until(lambda seen=seen, crowd=crowd: len(crowd.told()) > seen + 3, 30)
        finally:
            crowd.end()
        assert all(line["outcome"] == "accepted" for line in crowd.told())
        check(home, crowd.told())
        events = said(crowd.log)
        assert events.count("recovered") == events.count("took_over")
        assert not {"failed", "halted"} & set(events), log_lines(crowd.log)


# At a given call


def killed_at(strace: str, calls: str, number: int, home: Path, folder: Path) -> Worker:
    """A worker that is killed as it enters its n-th call of these."""
    inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=SIGKILL:when={number}"]
    wrapper = [strace, "-f", "-qq", "-o", os.devnull, *inject]
    worker = start_worker(home, folder, 0, runs=RUNS, limit=60, wrapper=wrapper)
    worker.begin()
    worker.process.communicate(timeout=120)
    return worker


def points(count: int) -> Iterator[tuple[str, int]]:
    """So many calls to be killed at: kind and number, the low numbers of each kind first."""
    dice = random.Random(6)
    kinds = [kind for kind in POINTS for _ in range(1 if kind == "rename" else 3)]
    for at in range(count):
        kind = kinds[at % len(kinds)]
        yield kind, dice.randint(1, POINTS[kind][1])


def test_fault_4_nothing_acknowledged_is_lost_by_a_kill_at_any_call(
    home: Path, tmp_path: Path, strace: str
) -> None:
    """Killed at its n-th fdatasync, write or rename, a process leaves what the next one starts
    from by itself, with everything that was acknowledged."""
    told: list[dict[str, Any]] = []
    killed = 0
    for at, (kind, number) in enumerate(points(KILLS * 2)):
        if kind == "rename":
            # Names change while stores are made, so they are to be made.
            shutil.rmtree(home / "projection", ignore_errors=True)
        worker = killed_at(strace, POINTS[kind][0], number, home, tmp_path)
        assert worker.process.returncode in (0, -signal.SIGKILL), (kind, number)
        killed += worker.process.returncode == -signal.SIGKILL
        told += worker.outcomes()
        if at % CHECK_EVERY == CHECK_EVERY - 1:
            check(home, told)
        if killed >= KILLS // 2:
            break
    check(home, told)
    assert killed >= KILLS // 2


CREATE = """
import sys
from foldlog import Engine
with Engine.open(sys.argv[1], create=True, partitions=2) as engine:
    engine.start("run_0", goal="count", author="user:ada")
"""


def test_a_kill_while_a_home_is_made(tmp_path: Path, strace: str) -> None:
    """Killed at each sync and rename of making a home, there is none or a whole one, and making it
    again succeeds."""
    for calls in ("fdatasync,fsync", "rename,renameat,renameat2"):
        number, step = 0, 1 if KILLS > 100 else 3
        returncode = -signal.SIGKILL
        while returncode == -signal.SIGKILL and number < 12:
            number += step
            home = tmp_path / f"{calls[:6]}-{number}"
            inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=SIGKILL:when={number}"]
            command = [strace, "-f", "-qq", "-o", os.devnull, *inject, sys.executable, "-c", CREATE]
            done = subprocess.run([*command, str(home)], env=environment(), check=False)
            returncode = done.returncode
            assert returncode in (0, -signal.SIGKILL)
            with Engine.open(home, create=True, author="user:ada") as engine:
                assert engine.start("run_0", goal="count").started is not None
                assert engine.verify().ok
        assert number > step


DIE_BEFORE_THE_STORE = """
import os, sys
from foldlog import Engine
from foldlog.store.rocks import RocksStore

real, left = RocksStore.write, [4]

def write(store, changes):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
    real(store, changes)

RocksStore.write = write
with Engine.open(sys.argv[1], author="user:ada") as engine:
    while True:
        engine.run("run_0").propose({"type": "BudgetSpent", "tokens": 1})
"""


def test_the_next_start_says_what_it_did(home: Path, tmp_path: Path) -> None:
    """Killed between the log and the projection, a process leaves records that its successor
    folds; its log says how many it recovered."""
    command = [sys.executable, "-c", DIE_BEFORE_THE_STORE, str(home)]
    done = subprocess.run(command, env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    log = tmp_path / "log"
    with daemon(home, log), Engine.open(home) as engine:
        assert [row.revision_after for row in engine.run("run_0").history()] == [1, 2, 3, 4, 5]
    [line] = [line for line in log_lines(log) if line["event"] == "recovered"]
    assert (line["message"], line["records"]) == ("recovered 1 records", 1)
    check(home, [])
