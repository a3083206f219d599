"""The contract's sentences on known batch ids, the run's existence, quarantine, rules, log time."""

from __future__ import annotations

from typing import Any

import pytest

from foldlog.core.catalogue import RULES
from foldlog.core.decide import decide
from foldlog.core.document import document
from foldlog.core.proposals import Malformed, parse_proposal
from foldlog.core.state import RunState, Slot, StateUnreadable
from tests.core_model import AGENT, USER, Slots, Story, effect, ev, fact, transition
from tests.core_walk import POISON, RULES_OF_WALKS

ID = "0a0b0c0d-0000-4000-8000-00000000000f"
POISONED = ev("Recorded", name=POISON)
POISONED_REPORT = ev("BudgetSpent", tokens=1, reason=POISON)


def poisoned(status: str = "running") -> Story:
    """A run under rules that raise on a certain name."""
    story = Story(status)
    story.world.rules = RULES_OF_WALKS
    return story


# Known batch ids


@pytest.mark.parametrize("accepted", [True, False])
def test_a_known_batch_gives_the_first_outcome_again(accepted: bool) -> None:
    """The first outcome again, whatever became of the run meanwhile; rejections are sticky."""
    story = Story("planning")
    event = transition("running") if accepted else transition("retry")
    proposal = {"batch_id": ID, "expected_revision": story.revision}
    first = story.propose(event, **proposal)
    sequence = story.world.records[-1].sequence
    story.ok(ev("RunCancelled"))
    again = story.propose(event, **proposal)
    assert (again.outcome, again.code) == ("duplicate", first.code)
    assert again.duplicate_of == sequence
    assert again.revision_before == again.revision_after == story.revision


@pytest.mark.parametrize(
    "change",
    [
        {"author": AGENT},
        {"expected_revision": 2},
        {"expected_revision": None},
        {"lease_epoch": 0},
        {"on_conflict": "arbitrate"},
        {"reads": ["goal"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_content_under_a_known_id_is_reused(change: dict[str, Any]) -> None:
    """Author, expectation, epoch, on_conflict, reads and events make the content."""
    story = Story()
    base: dict[str, Any] = {"batch_id": ID, "expected_revision": 1}
    story.ok(fact("f"), **base)
    assert story.no("BATCH_ID_REUSED", fact("f"), **{**base, **change}).field == "batch_id"
    story.no("BATCH_ID_REUSED", fact("g"), **base)
    story.no("BATCH_ID_REUSED", fact("f"), fact("g"), **base)
    assert story.propose(fact("f"), **base).outcome == "duplicate"


def test_content_is_compared_as_stored() -> None:
    """Defaults filled in, absent fields dropped; key order and trace fields do not matter."""
    story = Story()
    hypothesis = {"id": "h", "statement": "s", "confidence": 1.0, "falsifier": "f"}
    event = ev("HypothesisProposed", hypothesis=hypothesis)
    story.ok(event, batch_id=ID, expected_revision=1)
    written = dict(reversed(list({**hypothesis, "confidence": "1"}.items())))
    again = story.propose(
        {"hypothesis": written, "type": "HypothesisProposed"},
        batch_id=ID.upper(),
        expected_revision=1,
        on_conflict="reject",
        reads=[],
        lease_epoch=None,
        occurred_at="2026-01-01T00:00:00Z",
        correlation_id="c",
    )
    assert again.outcome == "duplicate"


def test_a_batch_id_is_known_per_run() -> None:
    """Another run may use the same batch id."""
    story = Story()
    story.ok(fact("f"), batch_id=ID)
    story.run_id = "run_2"
    story.ok(ev("RunStarted"), batch_id=ID, expected_revision=None)


def test_an_id_that_was_refused_stays_used() -> None:
    """A rejection uses its id up, also one that found no run."""
    story = Story()
    story.run_id = "run_2"
    start = {"batch_id": ID, "expected_revision": None}
    story.no("RUN_NOT_FOUND", fact("f"), **start)
    story.no("BATCH_ID_REUSED", ev("RunStarted"), **start)
    assert story.propose(fact("f"), **start).outcome == "duplicate"


# Existence


def test_a_run_begins_once() -> None:
    """RUN_NOT_FOUND before, RUN_EXISTS after; a start with expectation 0 or none."""
    story = Story()
    story.no("RUN_EXISTS", ev("RunStarted"), expected_revision=None)
    story.no("RUN_EXISTS", ev("RunStarted"), expected_revision=0)
    story.run_id = "run_2"
    story.no("RUN_NOT_FOUND", fact("f"))
    story.no("RUN_NOT_FOUND", ev("SignalReceived"), expected_revision=None)
    decision = story.ok(ev("RunStarted"), transition("planning"), expected_revision=0)
    assert (decision.revision_after, decision.rebased) == (1, False)
    assert story.doc["status"] == "planning"


@pytest.mark.parametrize(
    ("events", "fields"),
    [
        ([fact("f"), ev("RunStarted")], {}),
        ([ev("RunStarted"), ev("RunStarted")], {}),
        ([ev("RunStarted")], {"expected_revision": 1}),
        ([ev("RunReleased"), ev("RunReleased")], {}),
        ([ev("RunReleased"), ev("BudgetSet")], {}),
        ([ev("BudgetSet"), fact("f")], {}),
        ([ev("RunCancelled"), ev("BudgetSpent")], {}),
        ([ev("WaitStarted", kind="timer")], {}),
        ([fact("f")], {"reads": ["nothing"]}),
    ],
)
def test_batches_that_are_malformed(events: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    """Control and others, a misplaced RunStarted, RunReleased in company, a timer for ever."""
    story = Story()
    with pytest.raises(Malformed):
        story.propose(*events, **{"expected_revision": None, **fields})


def test_a_batch_is_all_or_nothing() -> None:
    """Events apply in order, each on the state that the one before left; all or none."""
    story = Story("running")
    before = story.doc
    story.no("INVALID_TRANSITION", fact("f"), ev("FactRetracted", fact_id="f"), fact("f"))
    assert story.doc == before
    story.ok(fact("f"), ev("FactRetracted", fact_id="f"), fact("g"))
    assert [f["id"] for f in story.doc["confirmed_facts"]] == ["g"]
    assert story.revision == before["revision"] + 1


def test_a_finished_run_takes_reports_only() -> None:
    """RUN_FINISHED for all else, control and signals too."""
    story = Story("running")
    story.ok(effect("e"))
    story.ok(ev("RunFinished", result="failed"))
    for event in (
        fact("f"),
        ev("RunCancelled"),
        ev("BudgetSet"),
        ev("PermissionRevoked"),
        ev("SignalReceived"),
        ev("LeaseAcquired"),
        ev("Recorded"),
        ev("RunFinished"),
    ):
        story.no("RUN_FINISHED", event)
    story.no("RUN_FINISHED", fact("f"), ev("EffectSucceeded", effect_id="e"))
    story.ok(ev("EffectSucceeded", effect_id="e"))


# Quarantine


def test_a_rule_that_raises_quarantines_the_run() -> None:
    """Quarantined, nothing applied; then RUN_QUARANTINED until RunReleased, reports too."""
    story = poisoned()
    before = story.doc
    decision = story.propose(fact("f"), POISONED)
    assert decision.outcome == "quarantined"
    assert decision.error == "ZeroDivisionError: poisoned"
    assert decision.revision_after == before["revision"]
    assert story.doc == {**before, "condition": "quarantined"}
    for event in (fact("g"), ev("BudgetSpent", tokens=1), ev("RunCancelled"), ev("SignalReceived")):
        story.no("RUN_QUARANTINED", event)
    story.ok(ev("RunReleased"), expected_revision=None)
    assert story.doc["condition"] == "ok"
    story.ok(fact("g"))


def test_a_quarantined_proposal_is_known() -> None:
    """The proposal that was quarantined has used its batch id up."""
    story = poisoned()
    fields = {"batch_id": ID, "expected_revision": story.revision}
    story.propose(POISONED, **fields)
    assert story.propose(POISONED, **fields).outcome == "duplicate"
    story.no("BATCH_ID_REUSED", fact("f"), **fields)


def test_a_finished_run_is_released_too() -> None:
    """RunReleased ends a quarantine of a finished run too (no RUN_FINISHED)."""
    story = poisoned()
    story.ok(ev("RunFinished", result="failed"))
    story.no("INVALID_TRANSITION", ev("RunReleased"))
    assert story.propose(POISONED_REPORT).outcome == "quarantined"
    story.no("RUN_QUARANTINED", ev("BudgetSpent", tokens=1))
    story.no("RUN_FINISHED", fact("f"))
    story.ok(ev("RunReleased"))
    story.ok(ev("BudgetSpent", tokens=1))
    assert (story.doc["condition"], story.doc["status"]) == ("ok", "finish")


def test_releasing_what_is_not_quarantined_is_invalid() -> None:
    """Without a quarantine RunReleased is INVALID_TRANSITION."""
    decision = Story("running").no("INVALID_TRANSITION", ev("RunReleased"))
    assert "quarantine" in str(decision.message)


def test_a_start_that_raises_quarantines_nothing() -> None:
    """The run has not begun; a new RunStarted may follow."""
    story = poisoned()
    story.run_id = "run_2"
    assert story.propose(ev("RunStarted"), POISONED, expected_revision=None).outcome == (
        "quarantined"
    )
    assert (story.state.exists, story.state.quarantine) == (False, None)
    story.no("RUN_NOT_FOUND", fact("f"), expected_revision=None)
    story.ok(ev("RunStarted"), expected_revision=None)


@pytest.mark.parametrize("error", [StateUnreadable, MemoryError])
def test_an_outage_is_no_fault_of_the_proposal(error: type[BaseException]) -> None:
    """Storage that fails, or memory that ends, is raised: it quarantines nothing."""

    class Broken(Slots):
        def get(self, kind: str, id: str) -> Slot | None:
            raise error

    story = Story("running")
    state = RunState(story.state.header, Broken())
    value = {"batch_id": ID, "author": USER, "events": [fact("f")]}
    with pytest.raises(error):
        decide(state, parse_proposal(story.run_id, value), story.world.now)


# Rules


def test_rules_are_pinned_and_named_ones_must_be_there() -> None:
    """UNSUPPORTED_RULES: the run's, or the one named."""
    story = Story(rules_version=1)
    story.no("UNSUPPORTED_RULES", ev("RulesActivated", rules_version=9))
    story.world.rules = RULES_OF_WALKS
    story.ok(ev("RulesActivated", rules_version=2))
    assert story.doc["rules_version"] == 2
    story.world.rules = {1: RULES_OF_WALKS[1]}
    story.no("UNSUPPORTED_RULES", fact("f"))
    story.no("UNSUPPORTED_RULES", ev("BudgetSpent", tokens=1))
    story.no("UNSUPPORTED_RULES", ev("RulesActivated", rules_version=1))
    story.run_id = "run_2"
    start = ev("RunStarted", rules_version=2)
    decision = story.no("UNSUPPORTED_RULES", start, expected_revision=None)
    assert (decision.event_index, decision.field) == (0, "rules_version")


def test_a_run_without_a_rules_version_gets_the_newest_and_keeps_it() -> None:
    """Rules are pinned when the run starts."""
    story = Story()
    assert story.doc["rules_version"] == 1
    story.world.rules = RULES_OF_WALKS
    assert story.ok(fact("f")).rules_version == 1
    for named, pinned in ((1, 1), (2, 2), (None, max(RULES))):
        story.run_id = f"run_of_{named}"
        start = ev("RunStarted", rules_version=named)
        assert story.ok(start, expected_revision=None).rules_version == pinned
        assert story.doc["rules_version"] == pinned


# Log time and occurred_at


def test_occurred_at_is_never_decided_on() -> None:
    """A deadline or a lease looks at log time, whatever the producer claims."""
    story = Story("running")
    story.ok(ev("BudgetSet", deadline=story.later(10)))
    story.ok(ev("ToolStarted", step_id="s"), occurred_at="2030-01-01T00:00:00Z")
    story.wait(10)
    story.no("BUDGET_EXHAUSTED", ev("ToolStarted"), occurred_at="2020-01-01T00:00:00Z")


def test_times_that_foldlog_computes_have_six_digits_and_z() -> None:
    """`since`, `expires_at`, `at` are UTC with Z and six digits; callers' times are kept."""
    story = Story("running").wait(0.25)
    story.ok(ev("LeaseAcquired", ttl_seconds=1))
    story.ok(ev("WaitStarted", kind="user", key="k", reason="r", deadline="2026-01-01T09:00:00Z"))
    doc = story.doc
    assert doc["lease"]["expires_at"] == "2026-01-01T00:00:01.250000Z"
    assert doc["waiting"]["since"] == "2026-01-01T00:00:00.250000Z"
    assert doc["last_transition"]["at"] == "2026-01-01T00:00:00.250000Z"
    assert doc["waiting"]["deadline"] == "2026-01-01T09:00:00Z"


def test_a_decision_depends_on_its_arguments_alone() -> None:
    """The same state, proposal and log time decide alike in another run's place."""
    story = Story("running")
    value = {"batch_id": ID, "author": USER, "events": [fact("f")]}
    proposal = parse_proposal(story.run_id, value)
    one, two = (decide(story.state, proposal, story.world.now) for _ in range(2))
    assert one == two
    assert document(story.state) == story.doc
