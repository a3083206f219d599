"""Why a run does not go on, and who moves it: core/why.py through the client.

Invariants:
- What is typed is tried on a real shell, where there is one.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from foldlog.core.why import command, quoted, why
from foldlog.testing import Engine
from tests import needs
from tests.cli_runs import AGENT, accept

GOAL = {"type": "RunStarted", "goal": {"statement": "x"}}
PLANNING = {"type": "RunTransitioned", "to": "planning"}
RUNNING = {"type": "RunTransitioned", "to": "running"}
FAILED = {"type": "ToolFailed", "step_id": "s", "error": "no", "recoverable": True}


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine in memory."""
    with Engine() as engine:
        yield engine


def task(id: str, **more: Any) -> dict[str, Any]:
    """The event that adds a task."""
    return {"type": "TaskAdded", "task": {"id": id, "title": f"do {id}", **more}}


def running(engine: Engine, *events: dict[str, Any], **fields: Any) -> int:
    """A run in status running with these events applied; its revision."""
    at = accept(engine, "r", {**GOAL, **fields}, PLANNING, RUNNING)
    return accept(engine, "r", *events, expected_revision=at) if events else at


def reasons(engine: Engine) -> dict[str, Any]:
    """What `why` says of the run."""
    found = engine.run("r").why()
    assert found is not None
    return found.to_dict()


def hows(engine: Engine) -> list[str]:
    """The commands that `why` names."""
    return [mover["how"] for mover in reasons(engine)["movers"]]


def test_no_such_run(engine: Engine) -> None:
    """What is not there has no reasons."""
    assert engine.run("r").why() is None
    assert engine.run("no run").why() is None


@pytest.mark.parametrize(
    ("kind", "words", "first"),
    [
        ("user", "an answer of the user (k): because", "foldlog signal r k"),
        ("approval", "an approval (k): because", "foldlog signal r k"),
        ("external", "an event from outside (k): because", "foldlog signal r k"),
        ("timer", "a timer (k): because", "foldlog project"),
    ],
)
def test_a_wait(engine: Engine, kind: str, words: str, first: str) -> None:
    """A wait names kind, key and reason, since when and until when, and who signals it."""
    wait = {"type": "WaitStarted", "kind": kind, "key": "k", "reason": "because"}
    running(engine, {**wait, "deadline": "2026-01-01T02:00:00Z"})
    engine.clock.advance(60)
    found = reasons(engine)
    assert found["waiting_for"] == words
    assert found["since"] == "2026-01-01T00:00:00.000000Z"
    assert found["at"] == "2026-01-01T00:01:00.000000Z"
    assert found["deadline"] == "2026-01-01T02:00:00Z"
    assert found["movers"][0]["how"] == first
    assert sorted(hows(engine)) == ["foldlog project", "foldlog signal r k"]


def test_a_wait_without_deadline(engine: Engine) -> None:
    """Only a signal ends it, and after a day there is an alarm."""
    running(engine, {"type": "WaitStarted", "kind": "user", "key": "k", "reason": ""})
    engine.clock.advance(86_400)
    found = reasons(engine)
    assert found["waiting_for"] == "an answer of the user (k)"
    assert [mover["how"] for mover in found["movers"]] == ["foldlog signal r k"]
    assert [alarm["code"] for alarm in found["alarms"]] == ["NO_DEADLINE"]


def test_a_deadline_that_nobody_kept() -> None:
    """Where no timekeeper runs, the way out is to let one run."""
    with Engine(timekeeper=False) as engine:
        deadline = "2026-01-01T00:00:10Z"
        wait = {"type": "WaitStarted", "kind": "timer", "key": "k", "reason": "x"}
        running(engine, {**wait, "deadline": deadline})
        engine.clock.advance(11)
        found = reasons(engine)
        assert found["movers"][0]["how"] == "foldlog project --once"
        assert found["alarms"][0]["code"] == "DEADLINE_PASSED"


def test_quarantine() -> None:
    """A quarantined run waits for its release and for nothing else."""
    with Engine(raise_in="PhaseChanged") as engine:
        at = running(engine)
        engine.run("r").propose({"type": "PhaseChanged", "phase": "x"}, expected_revision=at)
        found = reasons(engine)
        assert found["waiting_for"] == "a release from quarantine"
        assert [mover["how"] for mover in found["movers"]] == ["foldlog release r --reason TEXT"]
        assert found["alarms"][0]["message"].startswith("record 2: RuleRaised")


@pytest.mark.parametrize(
    ("budget", "event"),
    [
        ({"tokens_remaining": 0}, '"tokens_remaining": TOKENS'),
        ({"deadline": "2025-12-31T00:00:00Z"}, '"deadline": "TIME"'),
    ],
)
def test_a_spent_budget(engine: Engine, budget: dict[str, Any], event: str) -> None:
    """A spent budget waits for another one, of the kind that is spent."""
    accept(engine, "r", {**GOAL, "budgets": budget}, PLANNING)
    found = reasons(engine)
    assert found["waiting_for"].startswith("a budget (")
    assert event in found["movers"][0]["how"]
    assert found["movers"][0]["who"] == "a user or operator"


def test_spent_retries(engine: Engine) -> None:
    """A run whose retries are spent waits for a fresh start, or its end."""
    started = {"type": "ToolStarted", "step_id": "s", "tool": "t"}
    running(engine, started, FAILED, retry_limit=1)
    found = reasons(engine)
    assert found["waiting_for"] == "a fresh start (its retries are spent: 1 of 1)"
    assert '"to": "start"' in found["movers"][0]["how"]
    assert found["movers"][1]["how"] == "foldlog cancel r --reason TEXT"


def test_a_retry_that_is_left(engine: Engine) -> None:
    """A run in retry is moved by a worker."""
    running(engine, {"type": "ToolStarted", "step_id": "s", "tool": "t"}, FAILED)
    found = reasons(engine)
    assert found["waiting_for"] is None
    assert '"to": "running"' in found["movers"][-1]["how"]


def test_only_blocked_tasks(engine: Engine) -> None:
    """A run with nothing but blocked tasks waits for them; one that can do another does not."""
    at = running(
        engine,
        task("a"),
        task("b", depends_on=["a"]),
        {"type": "TaskCancelled", "task_id": "a", "reason": "no"},
        task("c"),
        {"type": "TaskBlocked", "task_id": "c", "reason": "no access"},
    )
    found = reasons(engine)
    assert found["waiting_for"] == "its blocked tasks (b, c)"
    assert found["blocked_tasks"] == [
        {"id": "b", "title": "do b", "status": "pending", "blocked_by": "a is cancelled"},
        {"id": "c", "title": "do c", "status": "blocked", "blocked_by": "no access"},
    ]
    assert '"TaskCancelled", "task_id": "b"' in found["movers"][0]["how"]
    assert '"TaskUnblocked", "task_id": "c"' in found["movers"][1]["how"]
    accept(engine, "r", task("d"), expected_revision=at)
    found = reasons(engine)
    assert found["waiting_for"] is None
    assert len(found["blocked_tasks"]) == 2
    assert '"TaskStarted", "task_id": "d"' in found["movers"][-1]["how"]


def test_a_dependency_that_a_plan_dropped(engine: Engine) -> None:
    """A task whose dependency a new plan dropped while it was blocked can never be started."""
    at = running(engine, task("a"), task("b", depends_on=["a"]))
    for event in (
        {"type": "TaskBlocked", "task_id": "b", "reason": "no access"},
        {"type": "PlanAdopted", "tasks": []},
        {"type": "TaskUnblocked", "task_id": "b"},
    ):
        accept(engine, "r", event, expected_revision=at)
        at += 1
    found = reasons(engine)
    assert found["waiting_for"] == "its blocked tasks (b)"
    [row] = found["blocked_tasks"]
    assert (row["id"], row["blocked_by"]) == ("b", "a is no longer in the plan")
    assert engine.run("r").resume_check() is not None
    assert engine.run("r").context() is not None


def test_effects_in_doubt(engine: Engine) -> None:
    """Effects in doubt are for whoever can ask; those under a live lease are not in doubt."""

    def effect(id: str) -> dict[str, Any]:
        fields = {"id": id, "kind": "k", "target": f"order://{id}", "idempotency_key": id}
        return {"type": "EffectIntended", "effect": fields}

    running(
        engine,
        {"type": "LeaseAcquired", "worker": "worker-1", "ttl_seconds": 60},
        effect("e1"),
        effect("e2"),
        {"type": "EffectUnknown", "effect_id": "e2", "reason": "no answer"},
    )
    ask = "foldlog reconcile r {} OUTCOME --evidence URI"
    assert hows(engine)[0] == ask.format("e2")
    assert ask.format("e1") not in hows(engine)
    engine.clock.advance(61)
    assert hows(engine)[:2] == [ask.format("e1"), ask.format("e2")]
    assert "LeaseAcquired" in hows(engine)[2]
    engine.run("r").cancel("x")
    assert reasons(engine)["waiting_for"] is None
    assert hows(engine) == [ask.format("e1"), ask.format("e2")]


def test_conflicts(engine: Engine) -> None:
    """An open conflict is for a person, and blocks nothing."""
    at = running(engine, {"type": "PhaseChanged", "phase": "a"})
    outcome = engine.run("r").propose(
        {"type": "PhaseChanged", "phase": "b"},
        expected_revision=at - 1,
        on_conflict="arbitrate",
    )
    found = reasons(engine)
    assert found["waiting_for"] is None
    how = f"foldlog resolve r {outcome.conflict_id} RESOLUTION --reason TEXT"
    assert found["movers"][0]["how"] == how


def test_what_work_comes_next(engine: Engine) -> None:
    """Where nothing keeps a run, the worker's next proposal is named, at the right revision."""
    accept(engine, "r", GOAL)
    seen = []
    for events in ([PLANNING], [RUNNING], [task("a")], [{"type": "TaskStarted", "task_id": "a"}]):
        seen.append(hows(engine)[-1])
        state = engine.run("r").state()
        assert state is not None
        accept(engine, "r", *events, expected_revision=state.revision, author=AGENT)
    seen.append(hows(engine)[-1])
    assert [how.partition('"type": ')[2].partition("}")[0] for how in seen] == [
        '"RunTransitioned", "to": "planning"',
        '"RunTransitioned", "to": "running"',
        '"RunFinished", "result": "RESULT"',
        '"TaskStarted", "task_id": "a"',
        '"TaskCompleted", "task_id": "a", "evidence": "URI"',
    ]
    assert [how[-1] for how in seen] == ["1", "2", "3", "4", "5"]
    assert reasons(engine)["movers"][-1]["who"] == "the worker worker-1"


def test_an_effect_that_a_worker_is_at_is_nobody_elses(engine: Engine) -> None:
    """While a lease is live only effects that are unknown are to be reconciled, waiting or not."""
    accept(engine, "r", GOAL)
    lease = {"type": "LeaseAcquired", "worker": AGENT["id"], "ttl_seconds": 60}
    accept(engine, "r", PLANNING, RUNNING, lease, expected_revision=1, author=AGENT)
    intents = [
        {"type": "EffectIntended",
         "effect": {"id": id, "kind": "mail", "target": "mail://ada", "idempotency_key": id}}
        for id in ("e1", "e2")
    ]  # fmt: skip
    wait = {"type": "WaitStarted", "kind": "user", "key": "k", "reason": "may I?"}
    unknown = {"type": "EffectUnknown", "effect_id": "e2", "reason": "no answer"}
    accept(engine, "r", *intents, wait, expected_revision=2, lease_epoch=1, author=AGENT)
    accept(engine, "r", unknown, lease_epoch=1, author=AGENT)

    def reconciled() -> list[str]:
        return [how.split()[3] for how in hows(engine) if how.startswith("foldlog reconcile")]

    assert reconciled() == ["e2"]
    engine.clock.advance(61)
    assert reconciled() == ["e1", "e2"]


def test_a_migration() -> None:
    """A run that this build cannot take further waits for its migration."""
    with Engine() as engine:
        accept(engine, "r", GOAL)
        state = engine.run("r").state()
        assert state is not None
        alarm = {"code": "MIGRATION_REQUIRED", "since": None, "message": "stored in version 2"}
        found = why(state.to_dict(), [alarm])
        assert found["waiting_for"] == "a migration"
        assert found["since"] == "2026-01-01T00:00:00.000000Z"
        assert [mover["how"] for mover in found["movers"]] == ["foldlog explain MIGRATION_REQUIRED"]


TEXTS = [
    "plain", "two words", "it's", '"', "$HOME `id` \\ !", "-x", "--reason", "a\nb\tc", "\x1b[31m",
    "\u202eevil", "漢字 é", "👩‍💻", "~", "=x", "#", "a'b\x07'", "\\n", "*", "{a,b}", "\U000e0001",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_any_text_reaches_the_command_through_a_shell(text: str) -> None:
    """A text of a run comes out of bash as it was, whatever it holds, and harms no terminal."""
    bash = needs.program("bash")
    line = f"printf %s {quoted(text)}"
    assert line.isprintable()
    environment = {"LC_ALL": "C.UTF-8"}
    done = subprocess.run([bash, "-c", line], capture_output=True, check=True, env=environment)
    assert done.stdout.decode() == text


def test_an_argument_that_looks_like_an_option() -> None:
    """Options stand before what could be taken for one."""
    assert command("signal", "r", "-x") == "foldlog signal -- r '-x'"
    typed = command("resolve", "r", "-x", "RESOLUTION", options=" --reason TEXT")
    assert shlex.split(typed)[2:5] == ["--reason", "TEXT", "--"]
