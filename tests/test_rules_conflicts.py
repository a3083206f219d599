"""The contract's sentences on expectations, conflicts, arbitration and settling."""

from __future__ import annotations

from typing import Any

import pytest

from foldlog.core.decide import CONFLICTS_BYTES_MAX
from tests.core_model import (
    AGENT,
    OTHER_AGENT,
    USER,
    Story,
    effect,
    ev,
    fact,
    observed,
    task,
    transition,
)


def resolve(id: str, resolution: str = "take_proposed") -> dict[str, Any]:
    """The event that settles a conflict."""
    return ev("ConflictResolved", conflict_id=id, resolution=resolution, reason="looked")


def phase(name: str) -> dict[str, Any]:
    """The event that changes the phase."""
    return ev("PhaseChanged", phase=name)


def stale() -> tuple[Story, int]:
    """A running run whose phase changed after the revision given with it."""
    story = Story("running")
    before = story.revision
    story.ok(phase("a"), author=OTHER_AGENT)
    return story, before


# Step 6


def test_a_conflict_names_the_entity_when_and_by_whom_it_changed() -> None:
    """{entity, expected_revision, changed_at, changed_by}; entities in order."""
    story, before = stale()
    story.ok(ev("WorkspaceMoved", workspace={"workspace_id": "w"}))
    events = [ev("WorkspaceMoved", workspace={"workspace_id": "v"}), phase("b")]
    decision = story.conflict("phase", "workspace", events=events, expected_revision=before)
    assert decision.conflicts[0] == {
        "entity": "phase",
        "expected_revision": before,
        "changed_at": before + 1,
        "changed_by": OTHER_AGENT,
    }
    assert (decision.event_index, decision.field) == (None, None)


def test_without_a_conflict_an_old_expectation_is_rebased() -> None:
    """None changed: accepted, rebased true; equal: accepted, rebased false."""
    story, before = stale()
    assert story.ok(transition("planning"), expected_revision=before).rebased is True
    assert story.ok(transition("running")).rebased is False


def test_expectations_are_absent_only_for_plus_float_and_control() -> None:
    """Absent is allowed if all events are `+`, `~` or control, else EXPECTATION_REQUIRED."""
    story = Story("running")
    story.ok(fact("f"), ev("LeaseAcquired"), expected_revision=None)
    story.ok(ev("BudgetSet", tokens_remaining=9), expected_revision=None)
    decision = story.no("EXPECTATION_REQUIRED", fact("g"), phase("b"), expected_revision=None)
    assert decision.event_index == 1
    for event in (
        transition("planning"),
        ev("PlanAdopted", tasks=[]),
        ev("RunFinished"),
        ev("WaitStarted"),
        effect("e"),
        ev("WorkspaceMoved"),
        ev("TaskStarted"),
        ev("FactRetracted"),
        ev("QuestionAnswered"),
    ):
        story.no("EXPECTATION_REQUIRED", event, expected_revision=None)


def test_an_expectation_above_the_current_revision_is_in_the_future() -> None:
    """FUTURE_REVISION, also where nothing would need an expectation."""
    story = Story()
    story.no("FUTURE_REVISION", fact("f"), expected_revision=2)


def test_reads_need_an_expectation_and_are_compared() -> None:
    """`reads` without expectation is EXPECTATION_REQUIRED; each is compared with it."""
    story, before = stale()
    decision = story.no("EXPECTATION_REQUIRED", fact("f"), expected_revision=None, reads=["goal"])
    assert (decision.event_index, decision.field) == (None, "reads")
    story.conflict("phase", events=[fact("f")], expected_revision=before, reads=["phase", "goal"])
    story.ok(fact("f"), expected_revision=before, reads=["goal", "status", "task/none"])


def test_control_ignores_its_reads() -> None:
    """`reads` of control batches are checked for shape only."""
    story, before = stale()
    set_budget = ev("BudgetSet", tokens_remaining=5)
    story.ok(set_budget, expected_revision=None, reads=["phase"])
    story.ok(set_budget, expected_revision=before, reads=["phase"])


def test_an_entity_is_stamped_though_a_later_event_gives_the_old_value_back() -> None:
    """A batch stamps what one of its events changed, even if another changes it back."""
    story = Story("running")
    story.ok(phase("a"))
    before = story.revision
    story.ok(phase("b"), phase("a"))
    story.conflict("phase", events=[phase("c")], expected_revision=before)


def test_writing_what_is_there_stamps_nothing() -> None:
    """Writing the value that is there is no change to a later reader."""
    story = Story("running")
    story.ok(phase("a"))
    before = story.revision
    story.ok(phase("a"))
    story.ok(phase("c"), expected_revision=before)


def test_a_batch_is_compared_with_the_state_before_it() -> None:
    """What the batch itself changes is no conflict with it."""
    story = Story("running")
    story.ok(fact("other"))
    story.ok(phase("a"), phase("b"), expected_revision=story.revision - 1)


def test_an_entity_that_left_the_state_conflicts_with_a_late_writer() -> None:
    """A removal is a change as others are."""
    story = Story("running")
    story.ok(fact("f"))
    before = story.revision
    story.ok(ev("FactRetracted", fact_id="f"), author=AGENT)
    late = [ev("FactRetracted", fact_id="f")]
    decision = story.conflict("fact/f", events=late, expected_revision=before)
    assert decision.conflicts[0]["changed_by"] == AGENT


def test_a_call_conflicts_with_a_change_of_its_task_by_whatever_event() -> None:
    """A call reads its task, so that a task added since is a change of it, though both are `+`."""
    story = Story("running")
    before = story.revision
    story.ok(task("t"))
    call = ev("ToolStarted", step_id="s", task_id="t")
    story.conflict("task/t", events=[call], expected_revision=before)
    story.ok(ev("ToolStarted", step_id="s"), expected_revision=before)


def test_what_step_7_looks_at_does_not_count_as_read() -> None:
    """A budget, a status or an observation that changed since is no conflict of an intent."""
    story = Story("running", budgets={"tokens_remaining": 9})
    story.ok(observed("env:x", observed_version="v1"))
    before = story.revision
    story.ok(ev("BudgetSpent", tokens=1), transition("planning"), transition("running"))
    story.ok(observed("env:x", "2026-01-02T00:00:00Z", observed_version="v2"))
    requires = [{"subject": "env:x", "observed_version": "v2"}]
    story.ok(effect("e", requires=requires), expected_revision=before)


def test_the_conflicts_of_an_outcome_are_bounded() -> None:
    """Of very many long names the first are told, in order, as many as a record holds."""
    story = Story("running")
    names = [f"{number:03}{'x' * 2_000}" for number in range(100)]
    for first in range(0, 100, 20):
        story.ok(*[task(name) for name in names[first : first + 20]])
    decision = story.no("CONFLICT", ev("RunFinished"), expected_revision=1)
    told = [conflict["entity"] for conflict in decision.conflicts]
    assert told == ["status", *[f"task/{name}" for name in names]][: len(told)]
    size = sum(len(name.encode()) for name in told)
    assert CONFLICTS_BYTES_MAX - 3_000 - 128 * len(told) < size <= CONFLICTS_BYTES_MAX


# Arbitration


def test_arbitration_keeps_the_events_in_an_open_conflict() -> None:
    """The events are not applied, an open conflict is recorded, revision + 1; it blocks nothing."""
    story, before = stale()
    events = [phase("b"), ev("WorkspaceMoved", workspace={"workspace_id": "w"})]
    id = story.arbitrated(*events, expected_revision=before, author=AGENT)
    assert story.doc["phase"] == "a"
    assert story.doc["workspace"] is None
    assert story.doc["conflicts"] == [
        {
            "id": id,
            "entities": ["phase"],
            "events": events,
            "author": AGENT,
            "expected_revision": before,
            "revision": story.revision,
        }
    ]
    story.ok(phase("c"))


def test_a_conflict_keeps_events_as_proposed_less_what_is_null() -> None:
    """Shown events are as proposed, less null optional fields; entities are sorted names."""
    story = Story("running")
    before = story.revision
    story.ok(phase("a"), ev("WorkspaceMoved", workspace={"workspace_id": "v"}))
    moved = ev("WorkspaceMoved", workspace={"workspace_id": "w", "base_commit": None})
    id = story.arbitrated(moved, phase("b"), expected_revision=before, reads=["goal", "phase"])
    conflict = story.find("conflicts", id)
    assert conflict is not None
    assert conflict["entities"] == ["phase", "workspace"]
    assert conflict["events"][0]["workspace"] == {"workspace_id": "w"}


def test_arbitration_looks_at_step_6_only() -> None:
    """What step 7 would refuse goes to arbitration; what steps 3 to 5 refuse does not."""
    story, before = stale()
    arbitrate = {"expected_revision": before, "on_conflict": "arbitrate"}
    story.arbitrated(phase("b"), transition("finish"), expected_revision=before)
    story.no("NOT_AUTHORIZED", phase("b"), ev("WaitTimedOut"), **arbitrate)
    story.no("FENCED", phase("b"), lease_epoch=1, **arbitrate)
    story.no("FUTURE_REVISION", phase("b"), **{**arbitrate, "expected_revision": 99})
    story.no("EXPECTATION_REQUIRED", phase("b"), **{**arbitrate, "expected_revision": None})
    story.no("INVALID_TRANSITION", transition("start"), on_conflict="arbitrate")
    story.ok(fact("f"), **arbitrate)


def test_a_conflict_is_settled_by_keeping_the_current() -> None:
    """keep_current closes the conflict and applies nothing; it needs no expectation."""
    story, before = stale()
    id = story.arbitrated(phase("b"), expected_revision=before)
    story.ok(resolve(id, "keep_current"), expected_revision=None)
    assert (story.doc["conflicts"], story.doc["phase"]) == ([], "a")
    story.no("INVALID_TRANSITION", resolve(id, "keep_current"))
    story.no("INVALID_TRANSITION", resolve(id))


def test_taking_the_proposed_applies_it_stamped_with_the_resolver() -> None:
    """take_proposed applies the kept events to the state of that moment."""
    story, before = stale()
    id = story.arbitrated(phase("b"), fact("f"), expected_revision=before, author=AGENT)
    story.wait(7)
    story.ok(resolve(id))
    assert (story.doc["conflicts"], story.doc["phase"]) == ([], "b")
    found = story.find("confirmed_facts", "f")
    assert found is not None
    assert (found["author"], found["revision"]) == (USER, story.revision)
    assert found["observed_at"] == story.time


def test_taking_the_proposed_has_the_proposers_rights() -> None:
    """An agent's fact without evidence is refused, though a user settles; a user's is taken."""
    story, before = stale()
    bare = fact("f", evidence=None)
    agents = story.arbitrated(phase("b"), bare, expected_revision=before, author=AGENT)
    users = story.arbitrated(phase("b"), bare, expected_revision=before, author=USER)
    system = {"author": {"kind": "system", "id": "s"}}
    assert story.no("EVIDENCE_REQUIRED", resolve(agents)).event_index == 0
    story.ok(resolve(users), **system)


def test_a_refused_settlement_is_the_outcome_and_the_conflict_stays() -> None:
    """The first refusal of the kept events is the outcome, and the conflict stays open."""
    story, before = stale()
    id = story.arbitrated(phase("b"), transition("finish"), expected_revision=before)
    decision = story.no("INVALID_TRANSITION", fact("f"), resolve(id))
    assert (decision.event_index, decision.field) == (1, None)
    assert str(decision.message).startswith("the kept RunTransitioned: ")
    assert [c["id"] for c in story.doc["conflicts"]] == [id]
    story.ok(resolve(id, "keep_current"))


def test_taking_a_start_takes_over_a_running_task() -> None:
    """A running task of another worker is taken over, for the proposer."""
    story = Story("running")
    story.ok(task("t"))
    story.ok(ev("TaskStarted", task_id="t"), author=AGENT)
    id = story.arbitrated(ev("TaskStarted", task_id="t"), author=OTHER_AGENT)
    story.ok(resolve(id))
    assert story.task("t")["worker"] == "worker-2"
    assert story.task("t")["author"] == USER


def test_taking_a_start_of_the_same_worker_is_refused() -> None:
    """The task runs for that worker already: INVALID_TRANSITION, as anywhere."""
    story = Story("running")
    story.ok(task("t"))
    before = story.revision
    story.ok(ev("TaskStarted", task_id="t"), author=AGENT)
    id = story.arbitrated(ev("TaskStarted", task_id="t"), author=AGENT, expected_revision=before)
    story.no("INVALID_TRANSITION", resolve(id))


def test_a_settlement_obeys_the_order_of_its_batch() -> None:
    """Events beside a settlement see what it applied."""
    story, before = stale()
    id = story.arbitrated(phase("b"), task("t"), expected_revision=before)
    blocked = ev("TaskBlocked", task_id="t", reason="r")
    story.no("INVALID_TRANSITION", blocked, resolve(id))
    story.ok(resolve(id), blocked)
    assert story.task("t")["status"] == "blocked"


def test_nothing_but_reports_follows_an_end_that_was_taken() -> None:
    """A kept RunFinished ends the run within the batch that takes it."""
    story, before = stale()
    end = ev("RunFinished", result="failed")
    id = story.arbitrated(phase("b"), end, expected_revision=before)
    assert story.no("INVALID_TRANSITION", resolve(id), fact("f")).event_index == 1
    story.ok(resolve(id), ev("BudgetSpent", tokens=1))
    assert story.doc["status"] == "finish"


def test_a_settlement_within_a_settlement_is_applied_in_its_place() -> None:
    """A kept ConflictResolved settles its conflict when it is taken, once."""
    story, before = stale()
    inner = story.arbitrated(phase("inner"), expected_revision=before)
    outer = story.arbitrated(phase("outer"), resolve(inner), expected_revision=before)
    story.ok(resolve(outer))
    assert (story.doc["phase"], story.doc["conflicts"]) == ("inner", [])


def test_a_settlement_is_compared_where_an_expectation_is_given() -> None:
    """ConflictResolved writes its conflict: settled since is a conflict on it."""
    story, before = stale()
    id = story.arbitrated(phase("b"), expected_revision=before)
    seen = story.revision
    story.ok(resolve(id, "keep_current"))
    story.conflict(f"conflict/{id}", events=[resolve(id)], expected_revision=seen)


def test_a_settlement_takes_a_stamp_of_the_conflict() -> None:
    """A reader of `conflict/ID` sees that it was opened, and that it was settled."""
    story, before = stale()
    id = story.arbitrated(phase("b"), expected_revision=before, author=AGENT)
    reads = {"events": [fact("f")], "reads": [f"conflict/{id}"]}
    story.conflict(f"conflict/{id}", expected_revision=before + 1, **reads)
    opened = story.revision
    story.ok(resolve(id, "keep_current"))
    story.conflict(f"conflict/{id}", expected_revision=opened, **reads)


# Control and superseding


@pytest.mark.parametrize(
    ("event", "supersedes"),
    [
        (ev("GoalChanged", goal={"statement": "g"}), True),
        (ev("RunCancelled"), True),
        (ev("PermissionRevoked"), True),
        (ev("PermissionRestored"), False),
        (ev("BudgetSet", tokens_remaining=1), True),
        (ev("BudgetSet", tokens_remaining=None), False),
        (ev("AgentVersionChanged"), False),
        (ev("RulesActivated"), False),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("expected", [None, 0, 99])
def test_control_always_takes_effect_and_some_supersede(
    event: dict[str, Any], supersedes: bool, expected: int | None
) -> None:
    """Decided as if it had neither expectation nor epoch; superseding raises control_revision."""
    story = Story("running")
    story.ok(ev("LeaseAcquired", worker="worker-1"))
    decision = story.ok(event, expected_revision=expected, lease_epoch=99)
    assert decision.rebased is False
    assert story.doc["control_revision"] == (story.revision if supersedes else 0)


def test_what_was_decided_before_a_superseding_event_is_superseded() -> None:
    """Expected below control_revision: SUPERSEDED; at it: not; without an expectation: never."""
    story = Story("running")
    story.ok(ev("PermissionRevoked", permission="tool:x"))
    control = story.doc["control_revision"]
    story.no("SUPERSEDED", fact("f"), expected_revision=control - 1)
    story.no("SUPERSEDED", fact("f"), expected_revision=control - 1, on_conflict="arbitrate")
    story.ok(fact("f"), expected_revision=control)
    story.ok(fact("g"), expected_revision=None)
    story.ok(ev("AgentVersionChanged"), expected_revision=control - 1)


def test_a_goal_that_is_there_supersedes_but_stamps_nothing() -> None:
    """GoalChanged to the same goal raises control_revision and leaves the goal's stamp."""
    story = Story(goal={"statement": "g"})
    story.ok(ev("GoalChanged", goal={"statement": "g", "constraints": []}))
    assert story.doc["control_revision"] == 2
    assert story.doc["goal"]["revision"] == 1
