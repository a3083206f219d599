"""Section 3's order: where two codes apply, the first of the order is the outcome.

Each test makes a proposal to which both of two neighbouring codes apply (and shows the second by
taking the first one's cause away). Pairs that no proposal can have both of stand in `NEVER_BOTH`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foldlog.core.proposals import Malformed
from foldlog.core.state import Quarantine, RunState
from tests.core_model import AGENT, OTHER_AGENT, Story, effect, ev, fact, observed, task, transition

ORDER = (
    "BATCH_ID_REUSED RUN_NOT_FOUND RUN_EXISTS RUN_FINISHED RUN_QUARANTINED MIGRATION_REQUIRED "
    "UNSUPPORTED_RULES NOT_AUTHORIZED FENCED LEASE_HELD SUPERSEDED EXPECTATION_REQUIRED "
    "FUTURE_REVISION CONFLICT PERMISSION_REVOKED BUDGET_EXHAUSTED DEPENDENCY_UNMET "
    "EVIDENCE_REQUIRED STALE_OBSERVATION LIMIT_EXCEEDED INVALID_TRANSITION"
).split()

NEVER_BOTH = {
    ("RUN_NOT_FOUND", "RUN_EXISTS"): "a run exists or it does not",
    ("FENCED", "LEASE_HELD"): "an epoch is given or it is not",
    ("SUPERSEDED", "EXPECTATION_REQUIRED"): "an expectation is given or it is not",
    ("EXPECTATION_REQUIRED", "FUTURE_REVISION"): "an expectation is given or it is not",
    ("DEPENDENCY_UNMET", "EVIDENCE_REQUIRED"): "a task is started or a fact is confirmed",
    ("EVIDENCE_REQUIRED", "STALE_OBSERVATION"): "a fact is confirmed or an effect intended",
    ("STALE_OBSERVATION", "LIMIT_EXCEEDED"): "an effect is intended or a signal received",
}

Both = Callable[[], tuple[Story, list[dict[str, Any]], dict[str, Any]]]
BOTH: dict[tuple[str, str], list[Both]] = {}


def both(first: str, second: str) -> Callable[[Both], Both]:
    """Note a function that makes a proposal to which both codes apply."""

    def note(make: Both) -> Both:
        BOTH.setdefault((first, second), []).append(make)
        return make

    return note


def held() -> Story:
    """A running run whose lease worker-1 holds."""
    story = Story("running")
    story.ok(ev("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    return story


def set_state(story: Story, state: RunState) -> Story:
    """The story with its run in another state, as only a build or a fault makes it."""
    story.world.states[story.run_id] = state
    return story


def quarantined(story: Story) -> Story:
    """The story's run in quarantine."""
    return set_state(story, replace(story.state, quarantine=Quarantine(0, 1, "E", "0")))


def old_schema(story: Story) -> Story:
    """The story's run as an older build left it."""
    header = replace(story.state.header, schema_version=0)
    return set_state(story, replace(story.state, header=header))


FINISH = ev("RunFinished", result="failed")
TAKEN = {"batch_id": "00000000-0000-0000-0000-000000000001"}  # RunStarted's own.


@both("BATCH_ID_REUSED", "RUN_NOT_FOUND")
def _() -> Any:
    story = Story()
    story.run_id = "run_2"
    story.no("RUN_NOT_FOUND", fact("f"), **TAKEN)
    return story, [fact("g")], TAKEN


@both("BATCH_ID_REUSED", "RUN_FINISHED")
def _() -> Any:
    story = Story()
    story.ok(FINISH)
    return story, [fact("f")], TAKEN


@both("BATCH_ID_REUSED", "RUN_QUARANTINED")
def _() -> Any:
    return quarantined(Story()), [fact("f")], TAKEN


@both("BATCH_ID_REUSED", "CONFLICT")
def _() -> Any:
    story = Story()
    story.ok(ev("PhaseChanged", phase="a"))
    return story, [ev("PhaseChanged", phase="b")], {**TAKEN, "expected_revision": 1}


@both("RUN_NOT_FOUND", "NOT_AUTHORIZED")
def _() -> Any:
    story = Story()
    story.run_id = "run_2"
    return story, [ev("RunCancelled")], {"author": AGENT}


@both("RUN_NOT_FOUND", "UNSUPPORTED_RULES")
def _() -> Any:
    story = Story()
    story.run_id = "run_2"
    return story, [ev("RulesActivated", rules_version=9)], {}


@both("RUN_EXISTS", "RUN_FINISHED")
def _() -> Any:
    story = Story()
    story.ok(FINISH)
    return story, [ev("RunStarted")], {"expected_revision": None}


@both("RUN_EXISTS", "UNSUPPORTED_RULES")
def _() -> Any:
    return Story(), [ev("RunStarted", rules_version=9)], {"expected_revision": None}


@both("RUN_EXISTS", "RUN_QUARANTINED")
def _() -> Any:
    return quarantined(Story()), [ev("RunStarted")], {"expected_revision": None}


@both("RUN_FINISHED", "RUN_QUARANTINED")
def _() -> Any:
    story = Story()
    story.ok(FINISH)
    return quarantined(story), [fact("f")], {}


@both("RUN_FINISHED", "NOT_AUTHORIZED")
def _() -> Any:
    story = Story()
    story.ok(FINISH)
    return story, [ev("RunCancelled")], {"author": AGENT}


@both("RUN_QUARANTINED", "MIGRATION_REQUIRED")
def _() -> Any:
    return old_schema(quarantined(Story())), [fact("f")], {}


@both("RUN_QUARANTINED", "NOT_AUTHORIZED")
def _() -> Any:
    return quarantined(Story()), [ev("RunCancelled")], {"author": AGENT}


@both("MIGRATION_REQUIRED", "UNSUPPORTED_RULES")
def _() -> Any:
    return old_schema(Story()), [ev("RulesActivated", rules_version=9)], {}


@both("MIGRATION_REQUIRED", "NOT_AUTHORIZED")
def _() -> Any:
    return old_schema(quarantined(Story())), [ev("RunReleased")], {"author": AGENT}


@both("UNSUPPORTED_RULES", "NOT_AUTHORIZED")
def _() -> Any:
    return Story(), [ev("RulesActivated", rules_version=9)], {"author": AGENT}


@both("NOT_AUTHORIZED", "FENCED")
def _() -> Any:
    return held(), [fact("f"), ev("WaitTimedOut")], {"author": AGENT, "lease_epoch": 9}


@both("NOT_AUTHORIZED", "LEASE_HELD")
def _() -> Any:
    return held(), [fact("f"), ev("WaitTimedOut")], {"author": OTHER_AGENT}


@both("FENCED", "SUPERSEDED")
def _() -> Any:
    story = held()
    story.ok(ev("PermissionRevoked"))
    return story, [fact("f")], {"expected_revision": 1, "lease_epoch": 9}


@both("LEASE_HELD", "SUPERSEDED")
def _() -> Any:
    story = held()
    story.ok(ev("PermissionRevoked"))
    return story, [fact("f")], {"expected_revision": 1, "author": OTHER_AGENT}


@both("LEASE_HELD", "EXPECTATION_REQUIRED")
def _() -> Any:
    story = held()
    return story, [transition("planning")], {"expected_revision": None, "author": OTHER_AGENT}


@both("FENCED", "FUTURE_REVISION")
def _() -> Any:
    return held(), [fact("f")], {"expected_revision": 99, "lease_epoch": 9}


@both("SUPERSEDED", "CONFLICT")
def _() -> Any:
    story = Story()
    story.ok(ev("PhaseChanged", phase="a"), expected_revision=1)
    story.ok(ev("PermissionRevoked"))
    return story, [ev("PhaseChanged", phase="b")], {"expected_revision": 1}


@both("EXPECTATION_REQUIRED", "INVALID_TRANSITION")
def _() -> Any:
    return Story(), [transition("finish")], {"expected_revision": None}


@both("FUTURE_REVISION", "CONFLICT")
def _() -> Any:
    story = Story("running")
    story.ok(task("t"))
    story.ok(ev("TaskStarted", task_id="t"), author=AGENT)
    return story, [ev("TaskStarted", task_id="t")], {"expected_revision": 99}


@both("CONFLICT", "PERMISSION_REVOKED")
def _() -> Any:
    story = Story("running")
    story.ok(ev("PermissionRevoked", permission="tool:*"))
    before = story.revision
    story.ok(task("t"))
    call = ev("ToolStarted", step_id="s", tool="x", task_id="t")
    return story, [call], {"expected_revision": before}


@both("CONFLICT", "INVALID_TRANSITION")
def _() -> Any:
    return Story("planning"), [transition("finish")], {"expected_revision": 1}


@both("PERMISSION_REVOKED", "BUDGET_EXHAUSTED")
def _() -> Any:
    story = Story("running")
    story.ok(ev("PermissionRevoked", permission="tool:*"), ev("BudgetSet", tokens_remaining=0))
    return story, [ev("ToolStarted")], {}


@both("PERMISSION_REVOKED", "BUDGET_EXHAUSTED")
def _() -> Any:
    story = Story("planning")
    story.ok(ev("PermissionRevoked", permission="effect:*"), ev("BudgetSet", tokens_remaining=0))
    return story, [effect("e", requires=[{"subject": "x", "observed_version": "v"}])], {}


@both("PERMISSION_REVOKED", "INVALID_TRANSITION")
def _() -> Any:
    story = Story("start")
    story.ok(ev("PermissionRevoked", permission="tool:*"))
    return story, [ev("ToolStarted")], {}


@both("BUDGET_EXHAUSTED", "DEPENDENCY_UNMET")
def _() -> Any:
    story = Story("running")
    story.ok(task("a"))
    story.ok(task("b", depends_on=["a"]))
    story.ok(ev("BudgetSet", tokens_remaining=0))
    return story, [ev("TaskStarted", task_id="b")], {}


@both("BUDGET_EXHAUSTED", "STALE_OBSERVATION")
def _() -> Any:
    story = Story("running")
    story.ok(ev("BudgetSet", tokens_remaining=0))
    return story, [effect("e", requires=[{"subject": "x", "observed_version": "v"}])], {}


@both("BUDGET_EXHAUSTED", "INVALID_TRANSITION")
def _() -> Any:
    story = Story("start")
    story.ok(ev("BudgetSet", tokens_remaining=0))
    return story, [transition("running")], {}


@both("BUDGET_EXHAUSTED", "INVALID_TRANSITION")
def _() -> Any:
    story = Story("running")
    story.ok(ev("BudgetSet", tokens_remaining=0))
    return story, [ev("TaskStarted", task_id="none")], {}


@both("DEPENDENCY_UNMET", "INVALID_TRANSITION")
def _() -> Any:
    story = Story("planning")
    story.ok(task("a"))
    story.ok(task("b", depends_on=["a"]))
    return story, [ev("TaskStarted", task_id="b")], {}


@both("EVIDENCE_REQUIRED", "INVALID_TRANSITION")
def _() -> Any:
    story = Story()
    story.ok(fact("f"))
    bare = fact("f", evidence=None, supersedes_fact_id="none")
    return story, [bare], {"author": AGENT}


@both("STALE_OBSERVATION", "INVALID_TRANSITION")
def _() -> Any:
    story = Story("planning")
    story.ok(observed("x", observed_version="v1"))
    return story, [effect("e", requires=[{"subject": "x", "observed_version": "v2"}])], {}


@both("LIMIT_EXCEEDED", "INVALID_TRANSITION")
def _() -> Any:
    story = Story("running")
    for hundred in range(10):
        story.ok(*[ev("SignalReceived", signal_id=f"s{hundred}_{n}") for n in range(100)])
    return story, [FINISH, ev("SignalReceived", signal_id="more")], {}


CASES = [(pair, make) for pair, makes in BOTH.items() for make in makes]


@pytest.mark.parametrize(("pair", "make"), CASES, ids=[f"{a}-{b}" for (a, b), _ in CASES])
def test_the_first_code_of_the_order_is_the_outcome(pair: tuple[str, str], make: Both) -> None:
    """Of two codes that both apply, the one that stands first in section 3 is told."""
    story, events, fields = make()
    story.no(pair[0], *events, **fields)
    assert ORDER.index(pair[0]) < ORDER.index(pair[1])


def test_every_neighbouring_pair_is_tried() -> None:
    """Each two codes that follow each other stand in the cases or in NEVER_BOTH with a reason."""
    pairs = list(itertools.pairwise(ORDER))
    assert [p for p in pairs if p not in BOTH and p not in NEVER_BOTH] == []


# Before the order: shape


@pytest.mark.parametrize("known", [False, True])
def test_what_is_malformed_is_so_under_a_known_id_and_without_a_run(known: bool) -> None:
    """MALFORMED comes before the run and before a known id."""
    story = Story()
    if not known:
        story.run_id = "run_2"
    with pytest.raises(Malformed):
        story.propose({"type": "NoSuchType"}, **TAKEN)


# Within step 7


def test_step_7_goes_event_by_event() -> None:
    """An earlier event's last code comes before a later event's first one."""
    story = Story("running")
    story.ok(ev("PermissionRevoked", permission="tool:*"))
    decision = story.no("INVALID_TRANSITION", ev("FactRetracted"), ev("ToolStarted"))
    assert decision.event_index == 0
    decision = story.no("PERMISSION_REVOKED", fact("f"), ev("ToolStarted"), ev("FactRetracted"))
    assert decision.event_index == 1


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("PERMISSION_REVOKED", ev("ToolStarted", tool="x")),
        ("BUDGET_EXHAUSTED", transition("running")),
        ("EVIDENCE_REQUIRED", fact("f", evidence=None)),
        ("STALE_OBSERVATION", effect("e", requires=[{"subject": "x", "observed_version": "v"}])),
        ("INVALID_TRANSITION", ev("PhaseChanged")),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_after_the_end_of_the_run_in_its_batch_the_order_still_holds(
    code: str, event: dict[str, Any]
) -> None:
    """What may not follow the end is INVALID_TRANSITION, the last code of step 7."""
    story = Story("running")
    if code == "PERMISSION_REVOKED":
        story.ok(ev("PermissionRevoked", permission="tool:*"))
    if code == "BUDGET_EXHAUSTED":
        story.ok(ev("BudgetSet", tokens_remaining=0))
    assert story.no(code, FINISH, event, author=AGENT).event_index == 1


def test_a_refusal_says_where() -> None:
    """A refusal of step 7 names its event; one of the run as a whole names none."""
    story = Story()
    decision = story.no("INVALID_TRANSITION", fact("f"), task("t"), task("t"))
    assert (decision.event_index, decision.field) == (2, "task.id")
    story.run_id = "run_2"
    decision = story.no("RUN_NOT_FOUND", fact("f"))
    assert (decision.event_index, decision.field) == (None, None)
    assert decision.revision_after == 0
