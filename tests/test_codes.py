"""Every code of CONTRACT section 3, provoked through the client.

Invariants:
- A refusal changes neither state nor revision, has a message that helps, and is sticky.
- Which of two codes wins is in test_codes_order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from foldlog import client, errors, testing
from foldlog.core.catalogue import CATALOGUE
from foldlog.home import open_home
from foldlog.seat import Seat
from foldlog.store.rocks import RocksStore
from tests.client_runs import (
    AGENT,
    BATCH,
    NOW,
    OPERATOR,
    OTHER,
    Json,
    accepted,
    act,
    at_home,
    document,
    effect,
    event,
    fact,
    refused,
    revision,
    rewrite_header,
    running,
    started,
    store_of,
    task,
    wait,
)

Setup = Callable[[testing.Engine], client.Run]
PHASE = event("PhaseChanged", phase="p")
TO_RUNNING = event("RunTransitioned", to="running")


@dataclass(frozen=True)
class Case:
    """One way to be refused: what to set up, what to propose, and what would have healed it."""

    code: str
    setup: Setup
    events: list[Json]
    options: Json = field(default_factory=dict)
    heal: Callable[[client.Run], Any] | None = None
    says: str = ""
    index: int | None = 0
    field: str | None = None


def nobody(engine: testing.Engine) -> client.Run:
    """A run that does not exist."""
    return engine.run("run_1")


def finished(engine: testing.Engine) -> client.Run:
    """A run that was cancelled, at revision 2."""
    run = started(engine)
    accepted(run.cancel("enough"))
    return run


def quarantined(engine: testing.Engine) -> client.Run:
    """A run whose last batch raised, at revision 3."""
    run = running(engine)
    assert run.propose([event("Recorded", name="n", payload=1)]).outcome == "quarantined"
    return run


def migrated(engine: testing.Engine) -> client.Run:
    """A run that a later build has stored in another schema, at revision 3."""
    run = running(engine)
    rewrite_header(store_of(engine), "run_1", schema_version=3)
    return run


def leased(engine: testing.Engine) -> client.Run:
    """A run whose lease worker-2 holds for a minute, at revision 4."""
    run = running(engine)
    act(run, event("LeaseAcquired", worker="worker-2", ttl_seconds=60), author=OTHER)
    return run


def controlled(engine: testing.Engine) -> client.Run:
    """A run whose goal was changed at revision 4."""
    run = running(engine)
    act(run, event("GoalChanged", goal={"statement": "other"}, reason="r"))
    return run


def revoked(engine: testing.Engine) -> client.Run:
    """A run without the right to run any tool or to send mail, at revision 4."""
    run = running(engine)
    for permission in ("tool:run_*", "effect:mail"):
        act(run, event("PermissionRevoked", permission=permission, reason="costly"))
    return run


def spent(engine: testing.Engine) -> client.Run:
    """A run in planning that has spent all its tokens, with one task, at revision 4."""
    run = started(engine, budgets={"tokens_remaining": 5})
    act(run, event("RunTransitioned", to="planning"), task("t"))
    act(run, TO_RUNNING)
    act(run, event("BudgetSpent", tokens=5))
    return run


def late(engine: testing.Engine) -> client.Run:
    """A run whose budget's deadline has just come, at revision 3."""
    run = running(engine, budgets={"deadline": "2026-01-01T00:01:00Z"})
    engine.clock.advance(60)
    return run


def depending(engine: testing.Engine) -> client.Run:
    """A run with a task that depends on a pending one, at revision 4."""
    run = running(engine)
    act(run, task("t1"), task("t2", depends_on=["t1"]))
    return run


def observed(engine: testing.Engine) -> client.Run:
    """A run that has seen its subject at v2, at revision 4."""
    run = running(engine)
    seen = event("EnvironmentObserved", subject="file://a", observed_state="x", observed_at=NOW)
    act(run, {**seen, "observed_version": "v2"})
    return run


def full(engine: testing.Engine) -> client.Run:
    """A run that keeps 1,000 signals, at revision 13."""
    run = running(engine)
    for batch in range(10):
        signals = [
            event("SignalReceived", key="k", signal_id=f"s{batch * 100 + place}")
            for place in range(100)
        ]
        act(run, *signals)
    return run


def set_budget(run: client.Run) -> None:
    """Unlimited tokens and time."""
    act(run, event("BudgetSet", tokens_remaining=None, deadline=None))


def restore(run: client.Run) -> None:
    """Give the rights back."""
    for permission in ("tool:run_*", "effect:mail"):
        act(run, event("PermissionRestored", permission=permission, reason="r"))


def complete(run: client.Run) -> None:
    """Complete the first task."""
    act(run, event("TaskStarted", task_id="t1"))
    act(run, event("TaskCompleted", task_id="t1", evidence="test:1"))


def stale(subject: str = "file://a", version: str = "v1") -> Json:
    """An effect that requires a version that is not the latest."""
    return effect("e", requires=[{"subject": subject, "observed_version": version}])


TOOL = event("ToolStarted", step_id="s", tool="run_test")
CASES = [
    Case(
        "RUN_NOT_FOUND",
        nobody,
        [fact("f")],
        heal=lambda run: run.engine.start("run_1", goal="g"),
        says="run_1",
        index=None,
    ),
    Case(
        "RUN_EXISTS",
        running,
        [event("RunStarted", goal={"statement": "g"})],
        says="run_1",
        index=None,
    ),
    Case("RUN_FINISHED", finished, [fact("f")], says="cancelled", index=None),
    Case("RUN_FINISHED", finished, [event("BudgetSet", tokens_remaining=1)], index=None),
    Case(
        "RUN_QUARANTINED",
        quarantined,
        [fact("f")],
        heal=lambda run: act(run, event("RunReleased", reason="r")),
        says="foldlog release run_1",
        index=None,
    ),
    Case(
        "MIGRATION_REQUIRED",
        migrated,
        [fact("f")],
        heal=lambda run: rewrite_header(store_of(run.engine), "run_1", schema_version=2),
        says="schema 3",
        index=None,
    ),
    Case(
        "UNSUPPORTED_RULES",
        running,
        [event("RulesActivated", rules_version=99)],
        says="99",
        field="rules_version",
    ),
    Case(
        "UNSUPPORTED_RULES",
        nobody,
        [event("RunStarted", goal={"statement": "g"}, rules_version=99)],
        says="99",
        field="rules_version",
    ),
    Case(
        "NOT_AUTHORIZED",
        running,
        [event("RunCancelled", reason="r")],
        {"author": AGENT},
        says="operator",
    ),
    Case(
        "NOT_AUTHORIZED",
        running,
        [PHASE, event("WaitTimedOut", key="k")],
        {"author": OPERATOR},
        says="system",
        index=1,
    ),
    Case(
        "FENCED",
        leased,
        [fact("f")],
        {"lease_epoch": 2},
        heal=lambda run: act(
            run, event("LeaseAcquired", worker="worker-2", ttl_seconds=9), author=OTHER
        ),
        says="epoch 2",
        index=None,
        field="lease_epoch",
    ),
    Case("FENCED", running, [fact("f")], {"lease_epoch": 0}, index=None, field="lease_epoch"),
    Case(
        "LEASE_HELD",
        leased,
        [fact("f")],
        {"author": AGENT},
        heal=lambda run: act(run, event("LeaseReleased"), author=OPERATOR),
        says="worker-2",
        index=None,
    ),
    Case(
        "LEASE_HELD",
        leased,
        [event("LeaseAcquired", worker="worker-1", ttl_seconds=9)],
        {"author": "user:ada"},
        heal=lambda run: act(run, event("LeaseReleased"), author=OPERATOR),
        says="worker-2",
        field="worker",
    ),
    Case(
        "SUPERSEDED",
        controlled,
        [fact("f")],
        {"expected_revision": 3},
        says="revision 4",
        index=None,
        field="expected_revision",
    ),
    Case(
        "EXPECTATION_REQUIRED",
        running,
        [fact("f"), PHASE],
        {"expected_revision": None},
        says="PhaseChanged",
        index=1,
    ),
    Case(
        "EXPECTATION_REQUIRED",
        running,
        [fact("f")],
        {"expected_revision": None, "reads": ["goal"]},
        index=None,
        field="reads",
    ),
    Case(
        "FUTURE_REVISION",
        running,
        [PHASE],
        {"expected_revision": 4},
        heal=lambda run: act(run, fact("f")),
        says="revision 3",
        index=None,
        field="expected_revision",
    ),
    Case(
        "CONFLICT",
        depending,
        [event("TaskCancelled", task_id="t1", reason="r"), PHASE],
        {"expected_revision": 3},
        says="task/t1",
        index=None,
    ),
    Case(
        "PERMISSION_REVOKED",
        revoked,
        [fact("f"), TOOL],
        heal=restore,
        says="tool:run_*",
        index=1,
        field="tool",
    ),
    Case("PERMISSION_REVOKED", revoked, [effect("e")], heal=restore, field="effect.kind"),
    Case("BUDGET_EXHAUSTED", spent, [TOOL], heal=set_budget, says="tokens_remaining is 0"),
    Case("BUDGET_EXHAUSTED", spent, [event("TaskStarted", task_id="t")], heal=set_budget),
    Case("BUDGET_EXHAUSTED", late, [effect("e")], heal=set_budget, says="2026-01-01T00:01:00Z"),
    Case(
        "BUDGET_EXHAUSTED",
        late,
        [event("RunTransitioned", to="planning"), TO_RUNNING],
        heal=set_budget,
        index=1,
    ),
    Case(
        "DEPENDENCY_UNMET",
        depending,
        [event("TaskStarted", task_id="t2")],
        heal=complete,
        says="t1",
        field="task_id",
    ),
    Case(
        "EVIDENCE_REQUIRED",
        running,
        [fact("f", evidence=None)],
        {"author": AGENT},
        says="agent",
        field="fact.evidence",
    ),
    Case("STALE_OBSERVATION", observed, [stale()], says="v2", field="requires[0]"),
    Case("STALE_OBSERVATION", observed, [stale("file://b")], field="requires[0]"),
    Case(
        "LIMIT_EXCEEDED",
        full,
        [event("SignalReceived", key="k", signal_id="more")],
        heal=lambda run: act(run, wait("k")),
        says="1000",
    ),
    Case("INVALID_TRANSITION", running, [TO_RUNNING], says="from running to running", field="to"),
    Case("INVALID_TRANSITION", running, [fact("f"), fact("f")], index=1, field="fact.id"),
]


def identified(case: Case) -> str:
    """A short name of a case."""
    return f"{case.code}-{case.events[-1]['type']}"


@pytest.mark.parametrize("case", CASES, ids=identified)
def test_a_refusal_says_why_changes_nothing_and_is_sticky(case: Case) -> None:
    """Code, place and message are told; state and revision stay; the batch id keeps the answer."""
    with testing.Engine(now=NOW, raise_in="Recorded") as engine:
        run = case.setup(engine)
        before, records = run.state(), run.history(rejected=True)
        options: Json = {"batch_id": BATCH, "author": "user:ada"}
        if "RunStarted" not in {each["type"] for each in case.events}:
            options["expected_revision"] = revision(run)
        options |= case.options
        outcome = refused(run.propose(case.events, **options), case.code)
        assert case.says in (outcome.message or "")
        assert (outcome.event_index, outcome.field) == (case.index, case.field)
        assert (outcome.recorded, outcome.state_hash) == (True, None)
        assert outcome.revision == (0 if before is None else before.revision)
        assert run.state() == before
        assert run.outcome(BATCH) == outcome
        if before is not None:
            rows = run.history(rejected=True)
            assert rows[:-1] == records
            assert (rows[-1].outcome, rows[-1].code) == ("rejected", case.code)
        if case.heal is not None:
            case.heal(run)
        again = run.propose(case.events, **options)
        assert again == {**outcome.to_dict(), "duplicate": True}
        if case.heal is not None and case.options.get("expected_revision", 0) is not None:
            new = {**options, "batch_id": None}
            if "expected_revision" in options:
                new["expected_revision"] = revision(run)
            accepted(run.propose(case.events, **new))


def test_a_batch_id_of_other_content_is_reused() -> None:
    """BATCH_ID_REUSED names the first record, every time, and the id keeps its first outcome."""
    with testing.Engine() as engine:
        run = running(engine)
        first = run.propose([fact("f")], batch_id=BATCH, author=AGENT, expected_revision=3)
        variants: list[Json] = [
            {"events": [fact("g")]},
            {"events": [fact("f"), PHASE]},
            {"author": OTHER},
            {"expected_revision": None},
            {"expected_revision": 4},
            {"lease_epoch": 1},
            {"on_conflict": "arbitrate"},
            {"reads": ["goal"]},
        ]
        same: Json = {"events": [fact("f")], "author": AGENT, "expected_revision": 3}
        for variant in variants:
            outcome = refused(run.propose(batch_id=BATCH, **same | variant), "BATCH_ID_REUSED")
            assert (outcome.event_index, outcome.field) == (None, "batch_id")
            assert "record 4" in (outcome.message or "")
            assert (outcome.recorded, outcome.duplicate, outcome.revision) == (True, False, 4)
        beside: Json = {"occurred_at": NOW, "correlation_id": "c", "causation_id": "d"}
        defaults: Json = {"on_conflict": "reject", "reads": []}
        again = run.propose(batch_id=BATCH.upper(), **same, **beside, **defaults)
        assert again == {**first.to_dict(), "duplicate": True}
        assert run.outcome(BATCH) == first
        assert revision(run) == 4


def test_batch_ids_are_known_per_run() -> None:
    """The same batch id in another run is another batch."""
    with testing.Engine() as engine:
        for name in ("run_1", "run_2"):
            run = started(engine, name)
            assert not accepted(run.propose([fact(name)], batch_id=BATCH)).duplicate


def test_every_code_of_the_contract_is_provoked() -> None:
    """The cases of this file leave no code of section 3 out."""
    named = """
        RUN_NOT_FOUND RUN_EXISTS RUN_FINISHED RUN_QUARANTINED MIGRATION_REQUIRED UNSUPPORTED_RULES
        NOT_AUTHORIZED FENCED LEASE_HELD SUPERSEDED EXPECTATION_REQUIRED FUTURE_REVISION CONFLICT
        PERMISSION_REVOKED BUDGET_EXHAUSTED DEPENDENCY_UNMET EVIDENCE_REQUIRED STALE_OBSERVATION
        LIMIT_EXCEEDED INVALID_TRANSITION
    """
    assert {case.code for case in CASES} == set(named.split())


def test_a_home_in_another_schema_needs_a_migration(tmp_path: Path) -> None:
    """A stored schema this build has not is seen in document and list, and nothing is accepted."""
    with at_home(tmp_path) as engine:
        running(engine)
    store = RocksStore(tmp_path / "projection" / "0")
    rewrite_header(store, "run_1", schema_version=7)
    store.close()
    with at_home(tmp_path) as engine:
        run = engine.run("run_1")
        shown = document(run)
        assert (shown["schema_version"], shown["condition"]) == (7, "migration_required")
        [row] = engine.runs()
        assert row.condition == "migration_required"
        assert [alarm.code for alarm in row.alarms] == ["MIGRATION_REQUIRED"]
        outcome = run.propose([fact("f")], author=AGENT)
        assert "7" in (refused(outcome, "MIGRATION_REQUIRED").message or "")
        assert revision(run) == 3
        accepted(engine.start("run_2", goal="g").started)


def test_a_run_under_rules_that_this_build_lacks_is_refused(tmp_path: Path) -> None:
    """UNSUPPORTED_RULES of the run itself: nothing is decided around the rules it is pinned to."""
    clock = testing.Clock(NOW)
    at_home(tmp_path, clock).close()
    seat = Seat(open_home(tmp_path, clock), clock, rules={1: CATALOGUE, 2: CATALOGUE})
    assert seat.take()
    with client.Engine(seat, clock) as engine:
        started(engine, rules_version=2)
        run = started(engine, "run_2")
        act(run, event("RulesActivated", rules_version=2))
    with at_home(tmp_path, clock) as engine:
        for name in ("run_1", "run_2"):
            run = engine.run(name)
            before = document(run)
            assert before["rules_version"] == 2
            outcome = refused(run.propose([fact("f")], author=AGENT), "UNSUPPORTED_RULES")
            assert "2" in (outcome.message or "")
            assert document(run) == before
        accepted(engine.start("run_3", goal="g").started)
        with pytest.raises(errors.Damaged, match="rules version: expected one that this build has"):
            engine.run("run_1").at(1)
