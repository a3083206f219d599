"""SIGKILL while snapshots are taken, pruned or restored, and while a home recovers.

strace kills the process as it enters its n-th fsync or rename. `make kills-every` tries every n;
otherwise it is the first two and some more, by the seed FOLDLOG_SEED (with `make kills` more).

Invariants:
- After a kill nobody repairs anything: the next process opens the home.
- Where strace is missing the test is skipped aloud, and in CI (the variable CI is set) it fails.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.seats import seat_of
from tests.snapshot_homes import beside, grow, keeper_of, opened, small_home
from tests.workers import environment

EVERY = bool(os.environ.get("FOLDLOG_EVERY_CALL"))
STEP = 3 if int(os.environ.get("FOLDLOG_KILLS", "20")) > 100 else 6
SEED = os.environ.get("FOLDLOG_SEED", "1")

CALLS = {"sync": "fdatasync,fsync", "rename": "rename,renameat,renameat2"}

BEGIN = """
import sys
sys.path.insert(0, ".")
from pathlib import Path
from tests.snapshot_homes import beside, opened
home = Path(sys.argv[1])
"""

WORKS = {
    "create": """
with opened(home) as engine:
    engine.take_snapshots()
""",
    "prune": """
with beside(home) as found:
    found.snapshots.prune(0)
""",
    "restore": """
with beside(home) as found:
    found.restore([0], None)
""",
    "recover": """
with opened(home) as engine:
    pass
""",
}


def numbers(what: str) -> Iterator[int]:
    """At which calls to kill, until one is never reached."""
    dice, number = random.Random(f"{SEED}/{what}"), 1
    while True:
        yield number
        number += 1 if EVERY or number == 1 else dice.randint(1, 2 * STEP - 1)


@pytest.fixture(scope="module")
def strace() -> str:
    """The program that kills at a given call."""
    return needs.program("strace")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home with four snapshots and a tail, and its digest."""
    path = tmp_path_factory.mktemp("prepared") / "home"
    return path, small_home(path, snapshots=4)


def killed(strace: str, work: str, calls: str, number: int, home: Path) -> bool:
    """Do some work in a process that is killed at its n-th call; whether it came so far."""
    inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=SIGKILL:when={number}"]
    command = [strace, "-f", "-qq", "-o", os.devnull, *inject, sys.executable, "-c", BEGIN + work]
    done = subprocess.run(
        [*command, str(home)], env=environment(), check=False, timeout=120, capture_output=True
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("work", WORKS)
def test_fault_2_a_kill_at_any_call_leaves_what_the_next_start_goes_on_from(
    strace: str, prepared: tuple[Path, str], tmp_path: Path, work: str, kind: str
) -> None:
    """Killed at its n-th sync or rename, whatever it was doing with snapshots, a process leaves a
    home that opens with the same digest, whose snapshots all verify, two of them at least."""
    count = 0
    for number in numbers(f"{work}/{kind}"):
        home = tmp_path / str(number)
        subprocess.run(["cp", "-a", prepared[0], home], check=True)
        if work == "recover":
            shutil.rmtree(home / "projection")
        if not killed(strace, WORKS[work], CALLS[kind], number, home):
            break
        count += 1
        check(home, prepared[1])
        shutil.rmtree(home)
    assert count >= 2


def check(home: Path, digest: str) -> None:
    """The home opens, is what it was, and can take a snapshot and prune."""
    with opened(home) as engine:
        assert engine.digest() == digest
        report = engine.verify()
        assert report.ok, report.first_difference
        keeper = keeper_of(engine)
        assert report.snapshots == len(keeper.names(0)) >= 2
        assert keeper.shelves[0].quarantined() == {}
        grow(engine, range(1))
        engine.take_snapshots()
        assert len(keeper.prune(0).kept) == 2
        left = {path.name for path in (home / "snapshots" / "0").iterdir()}
        assert left == set(keeper.names(0))
        left = {path.name for path in (home / "projection").iterdir()}
        assert left == {"0"}


def test_fault_28_what_a_kill_left_of_a_restore_is_cleared(tmp_path: Path) -> None:
    """A store that was moved aside for one that never came is found missing and recovered."""
    digest = small_home(tmp_path)
    os.rename(tmp_path / "projection" / "0", tmp_path / "projection" / "0.damaged")
    with beside(tmp_path) as found:
        newest = found.snapshots.names(0)[0]
    with opened(tmp_path) as engine:
        assert engine.digest() == digest
        assert seat_of(engine)._folded == 18 - int(newest[:16])
