"""SIGKILL while a run is forked, archived or reconciled: half of it is never seen.

strace kills the command as it enters its n-th sync or write; `make fork-kills` tries every n,
otherwise a few of them.

Invariants:
- After a kill nobody repairs anything: the same command is typed again.
- Where strace is missing the test is skipped aloud, and in CI (the variable CI is set) it fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from foldlog.client import Run
from tests import needs
from tests.workers import FOLDLOG, environment

EVERY = "FOLDLOG_EVERY_KILL" in os.environ

# Calls are counted by kind in each thread of a process: of more kinds fewer would be reached.
CALLS = {"sync": "fdatasync", "write": "pwrite64"}
SAMPLES = {
    ("fork", "sync"): (6,),
    ("fork", "write"): (53,),
    ("archive", "sync"): (3,),
    ("reconcile", "sync"): (3,),
}

REVISION = 251
"""Of the run that is forked: its copies fill three parts of an import."""

COMMANDS = {
    "fork": ("fork", "run_1", "--at", str(REVISION), "--as", "run_2"),
    "archive": ("archive", "run_9"),
    "reconcile": ("reconcile", "run_8", "e1", "succeeded", "--evidence", "test://1"),
}


@pytest.fixture(scope="module")
def strace() -> str:
    """The program that kills at a given call."""
    return needs.program("strace")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a long run, one that is finished, and one with an effect in doubt."""
    path = tmp_path_factory.mktemp("prepared") / "home"
    with Engine.open(path, create=True, partitions=2, author="user:ada") as engine:
        run = engine.start("run_1", goal="fork me")
        for number in range(REVISION - 1):
            run.propose({"type": "BudgetSpent", "tokens": number})
        engine.start("run_9", goal="archive me").cancel("done")
        doubtful = engine.start("run_8", goal="reconcile me")
        effect = {"id": "e1", "kind": "order", "target": "shop://1", "idempotency_key": "k1"}
        events: list[dict[str, Any]] = [
            {"type": "RunTransitioned", "to": "planning"},
            {"type": "RunTransitioned", "to": "running"},
            {"type": "EffectIntended", "effect": effect},
            {"type": "EffectUnknown", "effect_id": "e1", "reason": "a crash"},
        ]
        assert doubtful.propose(events, expected_revision=1).accepted
    return path


def command(
    home: Path, *args: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """A command of the shell, run to its end."""
    return subprocess.run(
        [*before, *FOLDLOG, *args, "--home", str(home), "--json"],
        capture_output=True, text=True, env=environment(), timeout=120, check=False,
    )  # fmt: skip


def killed(strace: str, home: Path, name: str, kind: str, number: int) -> bool:
    """Type a command that is killed at its n-th call; whether it came so far."""
    inject = [
        "-e",
        f"trace={CALLS[kind]}",
        "-e",
        f"inject={CALLS[kind]}:signal=SIGKILL:when={number}",
    ]
    before = (strace, "-f", "-qq", "-o", os.devnull, *inject)
    done = command(home, *COMMANDS[name], before=before)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("name", "kind"), list(product(COMMANDS, CALLS) if EVERY else SAMPLES))
def test_fault_2_a_kill_leaves_all_of_it_or_nothing(
    strace: str, prepared: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """Killed at its n-th sync or write, a command has done nothing that can be seen, or all; typed
    again it is done, once."""
    kills = 0
    for number in count(1) if EVERY else SAMPLES[name, kind]:
        home = tmp_path / str(number)
        shutil.copytree(prepared, home)
        if not killed(strace, home, name, kind, number):
            break
        kills += 1
        with Engine.open(home) as engine:
            CHECKS[name](engine, whole=None)
            assert engine.verify().ok
        again = command(home, *COMMANDS[name])
        # An archive that was done is refused, a reconciled effect reported again: nothing changes.
        assert again.returncode in ((0,) if name == "fork" else (0, 3)), again.stderr
        with Engine.open(home) as engine:
            CHECKS[name](engine, whole=True)
            report = engine.verify(redecide=True)
            assert report.ok, report.first_difference
        shutil.rmtree(home)
    assert kills >= 1


def times(run: Run, event_type: str) -> int:
    """How often an event of this type was accepted."""
    rows = [row.to_dict() for row in run.history()]
    return sum(event["type"] == event_type for row in rows for event in row["events"])


def check_fork(engine: Engine, whole: bool | None) -> None:
    """The fork is there with all of its history, or nothing of it is."""
    listed = {row.run_id for row in engine.runs()}
    run = engine.run("run_2")
    state = run.state()
    rows = run.history() or []
    assert (state is not None) == ("run_2" in listed) == bool(rows)
    if state is None:
        assert not whole
        return
    assert (state.revision, len(rows)) == (REVISION + 1, REVISION + 1)
    parent = engine.run("run_1").at(REVISION)
    assert parent is not None
    said = {"run_id": "run_1", "revision": REVISION, "chain": parent.chain}
    assert state.to_dict()["forked_from"] == said
    assert state.budgets == parent.budgets


def check_archive(engine: Engine, whole: bool | None) -> None:
    """The run is in one of the two lists, and archived once."""
    hot = "run_9" in {row.run_id for row in engine.runs()}
    cold = "run_9" in {row.run_id for row in engine.runs(archived=True)}
    assert hot != cold
    assert cold or not whole
    assert times(engine.run("run_9"), "RunArchived") == int(cold)


def check_reconcile(engine: Engine, whole: bool | None) -> None:
    """The effect is in doubt or reconciled, and that once."""
    run = engine.run("run_8")
    state = run.state()
    assert state is not None
    [effect] = state.effects
    assert effect.status in (("reconciled",) if whole else ("unknown", "reconciled"))
    assert times(run, "EffectReconciled") == int(effect.status == "reconciled")


CHECKS = {"fork": check_fork, "archive": check_archive, "reconcile": check_reconcile}
