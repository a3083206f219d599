"""The small agents in `examples/agents` do what they say, killed or not."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import Engine
from tests.kit import state_of
from tests.processes import line
from tests.workers import environment

AGENTS = Path(__file__).resolve().parent.parent / "examples" / "agents"

# Ends the program, without a word, at the Nth of its proposals: before it is handed in or after.
# Renewals do not count: they come by the clock.
KILLER = """
import os, runpy, signal, sys
from foldlog.client import Run
agent, number, *sys.argv = sys.argv[1:]
real, calls = Run.propose, []
def propose(self, events, **options):
    if events[0]["type"] == "LeaseRenewed":
        return real(self, events, **options)
    calls.append(1)
    if 2 * len(calls) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = real(self, events, **options)
    if 2 * len(calls) + 1 == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome
Run.propose = propose
sys.argv = [agent, *sys.argv]
runpy.run_path(agent, run_name="__main__")
"""


def run(name: str, *options: object, code: int = 0, killed_at: int | None = None) -> list[str]:
    """Run an example to its end; the lines it prints."""
    agent = [str(AGENTS / name)]
    if killed_at is not None:
        agent = ["-c", KILLER, *agent, str(killed_at)]
    done = subprocess.run(
        [sys.executable, *agent, *map(str, options)],
        capture_output=True, text=True, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A workspace with a fault in it."""
    return Path(shutil.copytree(AGENTS.parent / "story" / "shop", tmp_path / "shop"))


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Path]:
    """An open warehouse: its folder."""
    command = [sys.executable, str(AGENTS / "warehouse.py"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert line(process) == "open"
            yield tmp_path
        finally:
            process.kill()


def test_the_coding_agent(shop: Path) -> None:
    """It mends the fault, and its run knows by which test and at which version."""
    said = run("coding_agent.py", shop)
    assert said[:2] == ["mend-1: finish completed", "mended: the tests say: OK"]
    assert run("coding_agent.py", shop) == said


@pytest.mark.parametrize("seed", range(2))
def test_the_coding_agent_killed(shop: Path, seed: int) -> None:
    """Killed again and again around its proposals, it ends as it does undisturbed."""
    dice = random.Random(seed)
    for _ in range(3):
        run("coding_agent.py", shop, code=-signal.SIGKILL, killed_at=dice.randrange(4, 10))
    assert run("coding_agent.py", shop)[:2] == [
        "mend-1: finish completed",
        "mended: the tests say: OK",
    ]
    with Engine.open(shop.parent / ".foldlog") as engine:
        found = state_of(engine.run("mend-1"))
        assert [fact.id for fact in found.confirmed_facts] == ["mended"]
        assert found.workspace.workspace_id == "shop"
        assert engine.verify(redecide=True).ok


def test_the_order_agent(warehouse: Path) -> None:
    """FAULTS 11: it dies with the answer under way; the next one asks, and there is one order."""
    run("order_agent.py", warehouse, "--die", code=-signal.SIGKILL)
    said = run("order_agent.py", warehouse)
    assert said == [
        "asked about order-1: the warehouse has 1",
        "order-1: finish completed; order-1 reconciled succeeded",
    ]
    ledger = (warehouse / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(order)["key"] for order in ledger] == ["order-1/order-1"]


def test_an_order_that_was_never_sent(warehouse: Path) -> None:
    """Killed between intent and order it gives the first key up, and orders under another."""
    run("order_agent.py", warehouse, code=-signal.SIGKILL, killed_at=13)
    said = run("order_agent.py", warehouse)
    assert said[0] == "asked about order-1: the warehouse has 0"
    ledger = (warehouse / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(order)["key"] for order in ledger] == ["order-1/order-1#2"]


def test_the_early_approval(tmp_path: Path) -> None:
    """The run that was approved before it asked does not wait; the other one does."""
    said = run("early_approval.py", tmp_path)
    assert said == [
        "early: is in finish, waits for nothing",
        "late: is in waiting, waits for publish",
        "early: went through start, planning, running, waiting, running, finish",
        "late: went through start, planning, running, waiting, running, finish",
    ]


def test_two_agents_that_want_one_task(tmp_path: Path) -> None:
    """One is heard first, the other is kept; the person's decision gives the second the task."""
    said = run("competing.py", tmp_path)
    assert said[:3] == [
        "two asked for the parser, and were told: accepted, arbitration",
        "a person has to settle: task/parser",
        "the person gave it to the second: True",
    ]
    assert said[-1] == "done: docs parser"
