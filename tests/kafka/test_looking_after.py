"""A run's keepers on Kafka: fork, archive, reconcile, context, resume-check, workers, plug-ins.

Invariants:
- Commands and workers are processes beside a real projector; a kill is a real SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, errors
from foldlog.reaching import create_log
from foldlog.worker import Agent, Claim, Succeeded, Worker
from tests.client_runs import act, running
from tests.kafka.broker import free_ports
from tests.kafka.projectors import Projector, health, projecting
from tests.test_plugins import RULES, VOTES, ballot, begun
from tests.workers import FOLDLOG, environment, log_lines, until

PARTITIONS = 2
REVISION = 151
"""Of the run that is forked: its copies fill two parts of an import."""


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projector]:
    """A log of two partitions and its projector; tests have runs of their own."""
    url = f"kafka://{bootstrap}/t{uuid.uuid4().hex[:12]}"
    create_log(url, PARTITIONS)
    [port] = free_ports(1)
    options = ("--workers", "1", "--metrics", f"127.0.0.1:{port}")
    with projecting(url, tmp_path_factory.mktemp("projector"), *options) as projector:
        projector.await_turning(*range(PARTITIONS))
        yield projector
        projector.send(signal.SIGTERM)  # or its worker would be left
        assert projector.process.wait(60) == 0


@pytest.fixture
def names() -> Callable[[str], str]:
    """Run ids that no other test knows."""
    mark = uuid.uuid4().hex[:8]
    return lambda name: f"{name}_{mark}"


@pytest.fixture
def command(url: str, tmp_path: Path) -> Callable[..., Any]:
    """Runs `foldlog` on the log as from a shell: its exit code, and what it prints as JSON."""

    def run(*args: str) -> tuple[int, Any]:
        done = subprocess.run(
            [*FOLDLOG, *args, "--json", "--log", url, "--home", str(tmp_path / "shell")],
            capture_output=True, text=True, env=environment(), timeout=60,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    return run


def test_a_run_is_looked_after(
    engine: Engine, command: Callable[..., Any], names: Callable[[str], str]
) -> None:
    """resume-check, reconcile, context, fork and archive do on Kafka what they do in a home."""
    run = running(engine, names("run"))
    effect = {"id": "e1", "kind": "order", "target": "shop://1", "idempotency_key": "k1"}
    act(run, {"type": "EffectIntended", "effect": effect})
    code, check = command("resume-check", run.run_id)
    assert (code, [reason["code"] for reason in check["reasons"]]) == (10, ["EFFECT_IN_DOUBT"])
    code, context = command("context", run.run_id)
    assert (code, "shop://1" in context["text"]) == (0, True)
    code, outcome = command("reconcile", run.run_id, "e1", "succeeded", "--evidence", "test://1")
    assert (code, outcome["outcome"]) == (0, "accepted")
    assert command("resume-check", run.run_id)[0] == 0
    act(run, {"type": "RunFinished", "result": "completed"})
    revision = outcome["revision"]
    code, forked = command("fork", run.run_id, "--at", str(revision), "--as", names("fork"))
    assert (code, forked["revision"]) == (0, revision + 1)
    code, archived = command("archive", run.run_id)
    assert (code, archived["outcome"]) == (0, "accepted")
    assert run.run_id in {row.run_id for row in engine.runs(archived=True)}
    assert {row.run_id for row in engine.runs()} & {run.run_id, names("fork")} == {names("fork")}
    late = run.propose({"type": "PhaseChanged", "phase": "p"}, expected_revision=revision)
    assert late.code == "RUN_FINISHED"
    assert run.propose({"type": "BudgetSpent", "tokens": 1}).accepted
    assert run.run_id in {row.run_id for row in engine.runs(archived=True)}
    assert engine.verify(run.run_id).ok
    assert engine.verify(names("fork")).ok


# Ends the program, without a word, once the brokers have the Nth part that it hands in.
KILLER = """
import os, signal, sys
from foldlog.log.kafka.log import KafkaLog
number, look, parts = int(sys.argv.pop(1)), KafkaLog.delivered, []
def delivered(self, delivery):
    positions = look(self, delivery)
    if positions is not None and not any(part is delivery for part in parts):
        parts.append(delivery)
        if len(parts) == number:
            os.kill(os.getpid(), signal.SIGKILL)
    return positions
KafkaLog.delivered = delivered
from foldlog.cli.main import main
main()
"""


@pytest.mark.parametrize(("part", "whole"), [(1, False), (2, True)])
def test_fault_2_a_fork_killed_half_way(
    engine: Engine, url: str, tmp_path: Path, names: Callable[[str], str], part: int, whole: bool
) -> None:
    """Killed after a part of a fork but the last, nothing of it can be seen; after the last all
    can. Typed again it is there, once."""
    run, new = engine.start(names("run"), goal="fork me"), engine.run(names("fork"))
    spent = [{"type": "BudgetSpent", "tokens": 1}]
    for _ in range(REVISION - 1):
        run.propose(spent)
    typed = ["fork", run.run_id, "--at", str(REVISION), "--as", new.run_id]
    typed += ["--log", url, "--home", str(tmp_path / "shell")]
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, str(part), *typed],
        env=environment(), timeout=120, capture_output=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    engine.project()
    assert (new.state() is not None) == whole
    assert len(new.history()) == (REVISION + 1 if whole else 0)
    again = subprocess.run(
        [*FOLDLOG, *typed, "--json"], env=environment(), timeout=120, capture_output=True
    )
    assert again.returncode == 0, again.stderr
    state = new.state()
    assert state is not None
    assert (state.revision, len(new.history())) == (REVISION + 1, REVISION + 1)
    assert engine.verify(new.run_id).ok


def test_workers_share_runs(url: str, tmp_path: Path, names: Callable[[str], str]) -> None:
    """Two workers with homes of their own bring runs to their end, each run once, an effect of a
    dead one reconciled first."""
    label = {"test": names("kit")}
    agent, done = Agent(), list[str]()

    @agent.effect("order")
    def order(effect: Any) -> str:
        done.append(effect.idempotency_key)
        return "shop:1"

    @order.reconciler
    def ask(effect: Any) -> Succeeded:
        return Succeeded("shop:found")

    @agent.step
    def act_on_it(run: Claim) -> str | None:
        if run.run_id != names("run_0"):
            run.wait_for_approval("go", "may I?")
        reference: str | None = run.perform("order-1", order, "shop:orders")
        return reference

    with (
        Engine.connect(url, home=tmp_path / "a", author="user:ada") as one,
        Engine.connect(url, home=tmp_path / "b", author="user:ada") as other,
    ):
        runs = [one.start(names(f"run_{number}"), goal="so", labels=label) for number in range(4)]
        for run in runs[1:]:
            assert run.signal("go", {"granted": True}).accepted
        dead = runs[3]
        assert dead.propose(
            [{"type": "RunTransitioned", "to": "planning"},
             {"type": "PlanAdopted", "tasks": [{"id": "act_on_it", "title": "act"}]},
             {"type": "RunTransitioned", "to": "running"}],
            expected_revision=2,
        ).accepted  # fmt: skip
        effect = {"id": "order-1", "kind": "order", "target": "shop:orders",
                  "idempotency_key": f"{dead.run_id}/order-1"}  # fmt: skip
        intent = {"type": "EffectIntended", "effect": effect}
        assert dead.propose([intent], expected_revision=3).accepted
        workers = [
            Worker(engine, f"w{number}", agent, labels=label, lease_seconds=30)
            for number, engine in enumerate((one, other))
        ]

        def left() -> list[str]:
            return [each.run_id for each in runs if (s := each.state()) and s.status != "finish"]

        while left():
            for worker in workers:
                worker.work(until_idle=True)
        assert sorted(done) == sorted(f"{run.run_id}/order-1" for run in runs[:3])
        state = dead.state()
        assert state is not None
        assert [(each.status, each.outcome) for each in state.effects] == [
            ("reconciled", "succeeded")
        ]


def test_alarms_reach_the_monitor(
    engine: Engine, url: str, world: Projector, names: Callable[[str], str]
) -> None:
    """What a run needs somebody for is counted where the monitor and health look."""
    effect = {"id": "e1", "kind": "order", "target": "shop://1", "idempotency_key": "k1"}
    act(running(engine, names("run")), {"type": "EffectIntended", "effect": effect})
    page = f"http://{world.command[-1]}/metrics"

    def scraped() -> list[str]:
        with urllib.request.urlopen(page, timeout=30) as answer:
            lines: list[str] = answer.read().decode().splitlines()
            return lines

    until(lambda: 'foldlog_alarms{code="EFFECT_IN_DOUBT"} 1' in scraped(), 60, 0.5)
    assert 'foldlog_alarms{code="QUARANTINED"} 0' in scraped()
    assert health(url, world.home)[1]["alarms"] == {"EFFECT_IN_DOUBT": 1}


def test_a_projector_without_a_plugin_refuses_that_partition(
    new_url: Callable[[], str], tmp_path: Path
) -> None:
    """It says so as soon as it has caught up, in its log and its health; a reader without the
    plug-in is told, and nothing is decided around it."""
    url = new_url()
    create_log(url, 1)
    with_it = tmp_path / "with"
    with_it.mkdir()
    installs = (
        "from foldlog import plugins; import tests.test_plugins as t; "
        "import foldlog_projector.member as m; "
        "m.installed = lambda: plugins.rules_of({t.RULES: [t.VOTES]})"
    )
    with (
        projecting(
            url, with_it, before=f"import sys; sys.path.insert(0, {os.getcwd()!r}); {installs}"
        ) as projector,
        Engine.connect(
            url, home=tmp_path / "engine", author="user:ada", plugins={RULES: [VOTES]}
        ) as engine,
    ):
        projector.await_turning(0)
        assert begun(engine).propose(ballot("ada")).accepted
        projector.kill()
        with projecting(url, tmp_path / "without") as other:
            until(lambda: other.lines("halted"), 60)
            [said] = other.lines("halted")
            assert "rules 1000001" in said["message"]
            until(lambda: health(url, other.home)[0] == 6, 60)
            with pytest.raises(errors.OutcomeUnknown):
                engine.run("run_1").propose(ballot("bob"), timeout=1)
        with (
            Engine.connect(url, home=tmp_path / "reader", plugins={}) as reader,
            pytest.raises(errors.PluginMissing, match="partition 0 is refused"),
        ):
            reader.run("run_1").state()
        assert not [line for line in log_lines(other.log) if line.get("event") == "failed"]
