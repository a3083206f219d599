"""The contract's sentences on reports: what has already happened is never refused for lateness."""

from __future__ import annotations

from typing import Any

import pytest

from foldlog import testing
from foldlog.core.catalogue import RULES, RULES_DEFAULT
from foldlog.core.shapes import REPORT_TYPES
from tests.core_model import AGENT, OTHER_AGENT, Story, effect, ev, fact, transition

FAILURE = ev("ToolFailed", step_id="s", error="e", recoverable=True)
REPORTS = [
    ev("ToolSucceeded", step_id="s"),
    ev("ToolFailed", step_id="s", error="e", recoverable=False),
    FAILURE,
    ev("BudgetSpent", tokens=3),
    ev("EffectSucceeded", effect_id="e"),
    ev("EffectFailed", effect_id="e"),
    ev("EffectUnknown", effect_id="e"),
    ev("EffectReconciled", effect_id="e", outcome="failed"),
]
NAMES = [f"{report['type']}-{report.get('recoverable')}" for report in REPORTS]


def story_with_work() -> Story:
    """A running run with a pending call, an open effect and a budget."""
    story = Story("running", budgets={"tokens_remaining": 10})
    story.ok(ev("ToolStarted", step_id="s"), effect("e"))
    return story


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
@pytest.mark.parametrize("expected", [None, 0, 99])
def test_a_report_is_decided_as_if_it_had_no_expectation(
    report: dict[str, Any], expected: int | None
) -> None:
    """No expectation, an old one or a future one: all the same, and never rebased."""
    story = story_with_work()
    assert story.ok(report, expected_revision=expected).rebased is False


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
@pytest.mark.parametrize("cancel", [False, True])
def test_a_report_comes_after_the_end(report: dict[str, Any], cancel: bool) -> None:
    """Exempt from RUN_FINISHED; it changes ledger, calls and budget, never the status."""
    story = story_with_work()
    end = ev("RunCancelled") if cancel else ev("RunFinished", result="failed")
    story.ok(end)
    before = story.doc
    story.ok(report, author=AGENT, lease_epoch=7)
    after = story.doc
    for name in ("status", "result", "last_transition", "retry_count", "waiting"):
        assert after[name] == before[name]
    assert after != before
    if report["type"] != "BudgetSpent":
        assert after["last_action"]["type"] == report["type"]


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_a_report_is_neither_fenced_nor_held_off(report: dict[str, Any]) -> None:
    """Exempt from FENCED and LEASE_HELD."""
    for fields in ({"lease_epoch": 9}, {}):
        story = story_with_work()
        story.ok(ev("LeaseAcquired", worker="worker-1", ttl_seconds=60))
        story.ok(report, author=OTHER_AGENT, **fields)
        assert story.doc["status"] == "running"


def test_a_waived_report_never_changes_the_status() -> None:
    """Where FENCED or LEASE_HELD was waived a recoverable failure makes no retry."""
    for fields in ({"lease_epoch": 9}, {}):
        story = story_with_work()
        story.ok(ev("LeaseAcquired", worker="worker-1", ttl_seconds=60))
        story.ok(FAILURE, author=OTHER_AGENT, **fields)
        assert (story.doc["status"], story.doc["retry_count"]) == ("running", 0)
        assert story.doc["pending_tool_calls"] == []


def test_a_report_with_the_epoch_changes_the_status() -> None:
    """The holder's own recoverable failure moves running->retry."""
    story = story_with_work()
    story.ok(ev("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    story.ok(FAILURE, author=AGENT, lease_epoch=1)
    assert story.doc["status"] == "retry"


def test_a_report_is_not_superseded_and_has_no_budget() -> None:
    """Exempt from SUPERSEDED and BUDGET_EXHAUSTED."""
    story = story_with_work()
    story.ok(ev("BudgetSet", tokens_remaining=0))
    story.ok(ev("EffectSucceeded", effect_id="e"), expected_revision=1)
    story.ok(ev("BudgetSpent", tokens=5), ev("ToolSucceeded", step_id="s"), expected_revision=1)
    assert story.doc["budgets"]["tokens_remaining"] == -5


def test_a_reports_reads_are_checked_for_shape_only() -> None:
    """`reads` of batches of reports neither need an expectation nor conflict."""
    story = story_with_work()
    story.ok(ev("BudgetSpent", tokens=1), expected_revision=None, reads=["status"])
    story.ok(ev("BudgetSpent", tokens=1), expected_revision=0, reads=["status", "goal"])


def test_a_report_does_not_go_to_arbitration() -> None:
    """A batch of reports has no conflict to be settled."""
    story = story_with_work()
    story.ok(FAILURE, expected_revision=0, on_conflict="arbitrate")


def test_a_report_still_obeys_the_domain() -> None:
    """Step 7 holds for reports: an effect is settled once, also late."""
    story = story_with_work()
    story.ok(ev("EffectSucceeded", effect_id="e"))
    story.ok(ev("RunFinished", result="failed"))
    alone = story.no("INVALID_TRANSITION", ev("EffectFailed", effect_id="e"))
    assert "alone" not in str(alone.message)
    story.no("INVALID_TRANSITION", ev("ToolSucceeded", step_id="none"))


def test_a_report_is_held_off_by_quarantine_only() -> None:
    """RUN_QUARANTINED and RUN_NOT_FOUND are for reports too."""
    story = story_with_work()
    story.run_id = "run_2"
    story.no("RUN_NOT_FOUND", ev("BudgetSpent", tokens=1), expected_revision=None)


MIXED = [
    ("CONFLICT", {"expected_revision": 1}, transition("planning")),
    ("EXPECTATION_REQUIRED", {"expected_revision": None}, transition("planning")),
    ("INVALID_TRANSITION", {}, transition("start")),
    ("FENCED", {"lease_epoch": 3}, fact("f")),
    ("LEASE_HELD", {"author": OTHER_AGENT}, fact("f")),
    ("FUTURE_REVISION", {"expected_revision": 99}, fact("f")),
    ("NOT_AUTHORIZED", {}, ev("WaitTimedOut")),
]


@pytest.mark.parametrize(("code", "fields", "other"), MIXED, ids=[m[0] for m in MIXED])
@pytest.mark.parametrize("first", [False, True])
def test_a_refused_mix_says_that_its_reports_can_go_alone(
    code: str, fields: dict[str, Any], other: dict[str, Any], first: bool
) -> None:
    """A refused batch that mixes reports with other events says so in its message."""
    story = story_with_work()
    story.ok(ev("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    report = ev("ToolSucceeded", step_id="s")
    events = [report, other] if first else [other, report]
    hint = "reports in this batch can be proposed alone"
    assert hint in str(story.no(code, *events, **fields).message)
    assert hint not in str(story.no(code, other, **fields).message)


def test_long_names_do_not_push_the_hint_out() -> None:
    """What is kept of a message ends with the hint, however long the names before it are."""
    story = story_with_work()
    events = (
        ev("TaskCancelled", task_id="\U0001f600" * 2048, reason=""),
        ev("BudgetSpent", tokens=1),
    )
    message = str(story.no("INVALID_TRANSITION", *events).message)
    assert message.endswith("reports in this batch can be proposed alone")
    assert len(message.encode()) <= 8 * 1024


@pytest.mark.parametrize(
    "other",
    [ev("RunCancelled", reason="x"), {"type": "PhaseChanged"}, {"type": 5}, {"type": "No"}, 5],
    ids=["control", "a field", "no type", "an unknown type", "no object"],
)
def test_a_malformed_mix_says_it_too(other: Any) -> None:
    """What is wrong with the shape of another event does not touch the reports beside it."""
    spent = ev("BudgetSpent", tokens=1)
    with testing.Engine() as engine:
        run = engine.start("run_1", goal="x")
        assert run.propose_json({"events": [spent]}).accepted
        mixed = run.propose_json({"events": [spent, other]})
        alone = run.propose_json({"events": [other]})
    assert mixed.code == "MALFORMED"
    assert str(mixed.message).endswith("reports in this batch can be proposed alone")
    assert "proposed alone" not in str(alone.message)


def test_every_report_is_known_as_one() -> None:
    """The table of the rules and the list by which a hint is given name the same types."""
    rows = RULES[RULES_DEFAULT].values()
    assert {row.name for row in rows if row.report} == REPORT_TYPES


def test_a_reused_batch_id_says_it_too() -> None:
    """Reports that come under a batch id of other content can be proposed under a new one."""
    story = story_with_work()
    given: dict[str, Any] = {"batch_id": "7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11"}
    story.ok(fact("f"), **given)
    report = ev("ToolSucceeded", step_id="s")
    decision = story.no("BATCH_ID_REUSED", report, fact("g"), **given)
    assert "proposed alone" in str(decision.message)
    assert "proposed alone" not in str(story.no("BATCH_ID_REUSED", fact("g"), **given).message)


def test_a_refused_mix_after_the_end_says_it_too() -> None:
    """RUN_FINISHED and SUPERSEDED of a mixed batch carry the hint as well."""
    story = story_with_work()
    story.ok(ev("GoalChanged", goal={"statement": "g"}))
    report = ev("ToolSucceeded", step_id="s")
    decision = story.no("SUPERSEDED", report, fact("f"), expected_revision=1)
    assert "proposed alone" in str(decision.message)
    story.ok(ev("RunCancelled"))
    assert "proposed alone" in str(story.no("RUN_FINISHED", report, fact("f")).message)
    story.ok(report)
