"""The order of CONTRACT section 3: where two refusals apply, the first one is the outcome.

Each pair sets both causes up and proposes; then the first cause is taken away, and the second one
must show, which proves that it was there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from foldlog import client, testing
from tests.client_runs import (
    AGENT,
    BATCH,
    NOW,
    OPERATOR,
    OTHER,
    Json,
    accepted,
    act,
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

OTHER_BATCH = "6bfc1d98-7697-48d2-b42d-cddfd75d6180"
PHASE = event("PhaseChanged", phase="p")
START = event("RunStarted", goal={"statement": "g"})
RULES_99 = event("RulesActivated", rules_version=99)
SPENT = event("BudgetSpent", tokens=1)
TOOL = event("ToolStarted", step_id="s", tool="run_test")
RAISES = event("Recorded", name="n", payload=1)
EXHAUST = event("BudgetSet", tokens_remaining=0)
REVOKE = event("PermissionRevoked", permission="tool:*", reason="r")
SEEN = event(
    "EnvironmentObserved",
    subject="file://a",
    observed_state="x",
    observed_at=NOW,
    observed_version="v2",
)
STALE = effect("e", requires=[{"subject": "file://a", "observed_version": "v1"}])


@dataclass(frozen=True)
class Pair:
    """Two codes in order: ``change`` of the proposal, or ``heal``, takes the first cause away."""

    first: str
    second: str
    setup: Callable[[testing.Engine], client.Run]
    proposal: Json
    change: Json = field(default_factory=dict)
    heal: Callable[[client.Run], Any] | None = None


def steps(*batches: list[Json], **fields: Any) -> Callable[[testing.Engine], client.Run]:
    """A running run (revision 3) to which these batches were done, control by an operator."""

    def setup(engine: testing.Engine) -> client.Run:
        run = running(engine, **fields)
        for batch in batches:
            act(run, *batch)
        return run

    return setup


def known(engine: testing.Engine) -> client.Run:
    """A run that has used BATCH up."""
    run = running(engine)
    accepted(run.propose([fact("known")], batch_id=BATCH))
    return run


def known_nobody(engine: testing.Engine) -> client.Run:
    """A run that does not exist and has used BATCH up."""
    run = engine.run("run_1")
    refused(run.propose([fact("known")], batch_id=BATCH), "RUN_NOT_FOUND")
    return run


def quarantined(*batches: list[Json]) -> Callable[[testing.Engine], client.Run]:
    """A run to which these batches were done before one raised."""

    def setup(engine: testing.Engine) -> client.Run:
        run = steps(*batches)(engine)
        assert run.propose([RAISES]).outcome == "quarantined"
        return run

    return setup


def finished_quarantined(engine: testing.Engine) -> client.Run:
    """A finished run on whose report a rule raised."""
    run = steps([event("RunCancelled", reason="r")])(engine)
    assert run.propose([SPENT]).outcome == "quarantined"
    return run


def in_other_schema(engine: testing.Engine, *, raised: bool = False) -> client.Run:
    """A run stored in another schema."""
    run = quarantined()(engine) if raised else running(engine)
    rewrite_header(store_of(engine), "run_1", schema_version=3)
    return run


def home_schema(run: client.Run) -> None:
    """The schema of this build again."""
    rewrite_header(store_of(run.engine), "run_1", schema_version=2)


def full(engine: testing.Engine) -> client.Run:
    """A run that keeps 1,000 signals."""
    run = running(engine)
    for batch in range(10):
        ids = [f"s{batch * 100 + place}" for place in range(100)]
        act(run, *(event("SignalReceived", key="k", signal_id=id) for id in ids))
    return run


GOAL = event("GoalChanged", goal={"statement": "other"}, reason="r")
LEASE = event("LeaseAcquired", worker="worker-2", ttl_seconds=60)
TASK_OF_ANOTHER = [task("t"), event("TaskStarted", task_id="t", worker="worker-2")]
TAKE = event("TaskStarted", task_id="t", worker="worker-1")

PAIRS = [
    Pair(
        "MALFORMED",
        "BATCH_ID_REUSED",
        known,
        {"events": [fact(""), PHASE], "batch_id": BATCH},
        {"events": [fact("f")]},
    ),
    Pair(
        "BATCH_ID_REUSED",
        "RUN_NOT_FOUND",
        known_nobody,
        {"events": [PHASE], "batch_id": BATCH},
        {"batch_id": None},
    ),
    Pair(
        "MALFORMED",
        "RUN_NOT_FOUND",
        lambda engine: engine.run("run_1"),
        {"events": [fact("")]},
        {"events": [fact("f")]},
    ),
    Pair(
        "RUN_NOT_FOUND",
        "UNSUPPORTED_RULES",
        lambda engine: engine.run("run_1"),
        {"events": [RULES_99]},
        heal=lambda run: run.engine.start("run_1", goal="g"),
    ),
    Pair(
        "RUN_EXISTS",
        "RUN_FINISHED",
        steps([event("RunCancelled", reason="r")]),
        {"events": [START]},
        {"events": [fact("f")]},
    ),
    Pair(
        "RUN_EXISTS", "RUN_QUARANTINED", quarantined(), {"events": [START]}, {"events": [fact("f")]}
    ),
    Pair(
        "RUN_EXISTS",
        "UNSUPPORTED_RULES",
        running,
        {"events": [{**START, "rules_version": 99}]},
        {"events": [RULES_99]},
    ),
    Pair(
        "RUN_FINISHED",
        "RUN_QUARANTINED",
        finished_quarantined,
        {"events": [fact("f")]},
        {"events": [event("EffectSucceeded", effect_id="e")]},
    ),
    Pair(
        "RUN_QUARANTINED",
        "MIGRATION_REQUIRED",
        lambda engine: in_other_schema(engine, raised=True),
        {"events": [fact("f")]},
        {"events": [event("RunReleased", reason="r")]},
    ),
    Pair(
        "MIGRATION_REQUIRED",
        "UNSUPPORTED_RULES",
        in_other_schema,
        {"events": [RULES_99]},
        heal=home_schema,
    ),
    Pair(
        "UNSUPPORTED_RULES",
        "NOT_AUTHORIZED",
        running,
        {"events": [RULES_99], "author": AGENT},
        {"events": [event("RulesActivated", rules_version=1)]},
    ),
    Pair(
        "RUN_QUARANTINED",
        "NOT_AUTHORIZED",
        quarantined(),
        {"events": [GOAL], "author": AGENT},
        {"events": [event("RunReleased", reason="r")]},
    ),
    Pair(
        "RUN_FINISHED",
        "NOT_AUTHORIZED",
        steps([event("RunCancelled", reason="r")]),
        {"events": [GOAL], "author": AGENT},
        {"events": [event("RunReleased", reason="r")]},
    ),
    Pair(
        "NOT_AUTHORIZED",
        "FENCED",
        running,
        {"events": [event("WaitTimedOut", key="k")], "author": AGENT, "lease_epoch": 9},
        {"author": "system:cron"},
    ),
    Pair(
        "FENCED",
        "SUPERSEDED",
        steps([GOAL]),
        {"events": [PHASE], "expected_revision": 3, "lease_epoch": 9},
        {"lease_epoch": None},
    ),
    Pair(
        "LEASE_HELD",
        "SUPERSEDED",
        steps([LEASE], [GOAL]),
        {"events": [PHASE], "expected_revision": 4, "author": AGENT},
        {"author": OTHER, "lease_epoch": 1},
    ),
    Pair(
        "LEASE_HELD",
        "EXPECTATION_REQUIRED",
        steps([LEASE]),
        {"events": [PHASE], "author": AGENT},
        {"author": "user:ada"},
    ),
    Pair(
        "LEASE_HELD",
        "FUTURE_REVISION",
        steps([LEASE]),
        {"events": [PHASE], "author": AGENT, "expected_revision": 99},
        {"author": "user:ada"},
    ),
    Pair(
        "SUPERSEDED",
        "CONFLICT",
        steps([GOAL], [PHASE]),
        {"events": [event("PhaseChanged", phase="q")], "expected_revision": 3},
        {"expected_revision": 4},
    ),
    Pair(
        "EXPECTATION_REQUIRED",
        "CONFLICT",
        steps(TASK_OF_ANOTHER),
        {"events": [TAKE]},
        {"expected_revision": 4},
    ),
    Pair(
        "FUTURE_REVISION",
        "CONFLICT",
        steps(TASK_OF_ANOTHER),
        {"events": [TAKE], "expected_revision": 99},
        {"expected_revision": 4},
    ),
    Pair(
        "EXPECTATION_REQUIRED",
        "INVALID_TRANSITION",
        running,
        {"events": [event("RunTransitioned", to="running")]},
        {"expected_revision": 3},
    ),
    Pair(
        "FUTURE_REVISION",
        "INVALID_TRANSITION",
        running,
        {"events": [event("RunTransitioned", to="running")], "expected_revision": 4},
        {"expected_revision": 3},
    ),
    Pair(
        "CONFLICT",
        "PERMISSION_REVOKED",
        steps([task("t")], [REVOKE], [event("TaskBlocked", task_id="t", reason="r")]),
        {"events": [{**TOOL, "task_id": "t"}], "expected_revision": 5},
        {"expected_revision": 6},
    ),
    Pair(
        "PERMISSION_REVOKED",
        "BUDGET_EXHAUSTED",
        steps([REVOKE], [EXHAUST]),
        {"events": [TOOL]},
        heal=lambda run: act(run, event("PermissionRestored", permission="tool:*", reason="r")),
    ),
    Pair(
        "BUDGET_EXHAUSTED",
        "DEPENDENCY_UNMET",
        steps([task("t1"), task("t2", depends_on=["t1"])], [EXHAUST]),
        {"events": [event("TaskStarted", task_id="t2")], "expected_revision": 5},
        heal=lambda run: act(run, event("BudgetSet", tokens_remaining=1)),
    ),
    Pair(
        "BUDGET_EXHAUSTED",
        "STALE_OBSERVATION",
        steps([SEEN], [EXHAUST]),
        {"events": [STALE], "expected_revision": 5},
        heal=lambda run: act(run, event("BudgetSet", tokens_remaining=1)),
    ),
    Pair(
        "BUDGET_EXHAUSTED",
        "INVALID_TRANSITION",
        steps([EXHAUST]),
        {"events": [event("RunTransitioned", to="running")], "expected_revision": 4},
        heal=lambda run: act(run, event("BudgetSet", tokens_remaining=1)),
    ),
    Pair(
        "DEPENDENCY_UNMET",
        "INVALID_TRANSITION",
        steps(
            [task("t1"), task("t2", depends_on=["t1"])], [event("RunTransitioned", to="planning")]
        ),
        {"events": [event("TaskStarted", task_id="t2")], "expected_revision": 5},
        {"events": [event("TaskStarted", task_id="t1")]},
    ),
    Pair(
        "EVIDENCE_REQUIRED",
        "INVALID_TRANSITION",
        steps([fact("f")]),
        {"events": [fact("f", evidence=None)], "author": AGENT},
        {"author": "user:ada"},
    ),
    Pair(
        "STALE_OBSERVATION",
        "INVALID_TRANSITION",
        steps([SEEN], [event("RunTransitioned", to="planning")]),
        {"events": [STALE], "expected_revision": 5},
        {"events": [effect("e")]},
    ),
    Pair(
        "LIMIT_EXCEEDED",
        "INVALID_TRANSITION",
        full,
        {
            "events": [
                event("RunFinished", result="failed"),
                event("SignalReceived", key="k", signal_id="more"),
            ],
            "expected_revision": 13,
        },
        {"events": [event("RunFinished", result="failed"), fact("f")]},
    ),
]


def named(pair: Pair) -> str:
    """The two codes of a pair."""
    return f"{pair.first}-{pair.second}"


@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_the_first_that_applies_is_the_outcome(pair: Pair) -> None:
    """With both causes there the first code is the outcome; without the first, the second is."""
    raises = "BudgetSpent" if pair.setup is finished_quarantined else "Recorded"
    with testing.Engine(now=NOW, raise_in=raises) as engine:
        run = pair.setup(engine)
        before = run.state()
        given: Json = {"author": OPERATOR, "batch_id": OTHER_BATCH, **pair.proposal}
        refused(run.propose(**given), pair.first)
        assert run.state() == before
        if pair.heal is not None:
            pair.heal(run)
        batch_id = BATCH if pair.second == "BATCH_ID_REUSED" else None
        refused(run.propose(**given | {"batch_id": batch_id} | pair.change), pair.second)


def test_events_are_judged_one_after_the_other() -> None:
    """A later event's earlier code does not overtake: the first event that fails decides."""
    with testing.Engine(now=NOW) as engine:
        run = steps([REVOKE])(engine)
        bad = event("TaskBlocked", task_id="none", reason="r")
        for events, code, index in (
            ([PHASE, bad, TOOL], "INVALID_TRANSITION", 1),
            ([PHASE, TOOL, bad], "PERMISSION_REVOKED", 1),
            ([fact("f", evidence=None), bad], "EVIDENCE_REQUIRED", 0),
        ):
            outcome = run.propose(events, expected_revision=4, author=AGENT)
            assert refused(outcome, code).event_index == index


def test_control_is_refused_by_no_lease_and_no_revision() -> None:
    """A control batch takes effect whatever epoch, expectation or reads it carries."""
    with testing.Engine(now=NOW) as engine:
        run = steps([PHASE], [GOAL], [LEASE])(engine)
        for fields in ({"expected_revision": 1}, {"expected_revision": 99}, {"lease_epoch": 7}):
            options: Json = {"reads": ["phase"], **fields}
            outcome = run.propose([{**GOAL, "reason": str(fields)}], author=OPERATOR, **options)
            assert accepted(outcome).rebased is False
        assert document(run)["control_revision"] == revision(run) == 9


def test_reports_are_refused_for_no_lateness() -> None:
    """After finish, fenced, while another holds the lease, superseded, spent: reports count."""
    report = [
        SPENT,
        event("ToolSucceeded", step_id="s"),
        event("EffectUnknown", effect_id="e", reason="r"),
    ]
    setups: list[tuple[list[Json], Json]] = [
        ([event("RunCancelled", reason="r")], {}),
        ([LEASE], {"lease_epoch": 7}),
        ([LEASE], {"author": AGENT}),
        ([GOAL], {"expected_revision": 1}),
        ([EXHAUST], {}),
    ]
    for batch, options in setups:
        with testing.Engine(now=NOW) as engine:
            run = steps([TOOL, effect("e")], batch)(engine)
            status = document(run)["status"]
            outcome = accepted(run.propose(report, **options))
            shown = document(run)
            assert (shown["status"], shown["pending_tool_calls"]) == (status, [])
            assert (shown["effects"][0]["status"], outcome.rebased) == ("unknown", False)


def test_a_mixed_batch_that_is_refused_says_what_can_go_alone() -> None:
    """Reports among other events share their fate, and the message says that they need not."""
    with testing.Engine(now=NOW) as engine:
        run = steps([TOOL])(engine)
        mixed = [event("ToolSucceeded", step_id="s"), event("TaskBlocked", task_id="x", reason="r")]
        message = refused(run.propose(mixed, expected_revision=4), "INVALID_TRANSITION").message
        assert "reports in this batch can be proposed alone" in (message or "")
        message = refused(run.propose(mixed[1:], expected_revision=4), "INVALID_TRANSITION").message
        assert "report" not in (message or "")
        accepted(run.propose(mixed[:1]))


def test_a_batch_of_signals_passes_the_lease() -> None:
    """Signals alone are exempt from step 4, with an epoch and without."""
    with testing.Engine(now=NOW) as engine:
        run = steps([wait()], [LEASE])(engine)
        accepted(run.signal("other", author=AGENT))
        accepted(run.signal("approval", author=AGENT, lease_epoch=9))
        assert document(run)["status"] == "running"
        mixed = [event("SignalReceived", key="k", signal_id="s"), fact("f")]
        refused(run.propose(mixed, author=AGENT), "LEASE_HELD")


def test_a_repeated_signal_is_accepted_whatever_it_says() -> None:
    """Repeated ids only: an empty change, whatever key, payload or expectation, until the end."""
    with testing.Engine(now=NOW) as engine:
        run = started(engine)
        accepted(run.signal("k", {"n": 1}, signal_id="s"))
        act(run, GOAL)
        before = document(run)
        for options in ({"expected_revision": 1}, {"expected_revision": 99}, {"lease_epoch": 4}):
            accepted(run.signal("other", {"n": 2}, signal_id="s", author=AGENT, **options))
        after = document(run)
        assert after["revision"] == before["revision"] + 3
        changing = {"revision", "chain"}
        assert {k: v for k, v in after.items() if k not in changing} == {
            k: v for k, v in before.items() if k not in changing
        }
        accepted(run.cancel("enough"))
        refused(run.signal("k", signal_id="s"), "RUN_FINISHED")
