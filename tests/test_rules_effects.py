"""The contract's sentences on tool calls, effects, permissions and checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from foldlog.core.state import SCHEMA_VERSION
from tests.core_model import AGENT, USER, Story, effect, ev, fact, task, transition


def tool(step: str, name: str = "run", **fields: Any) -> dict[str, Any]:
    """The event that starts a tool call."""
    return ev("ToolStarted", step_id=step, tool=name, **fields)


# Tools


@pytest.mark.parametrize("status", ["start", "planning", "running"])
def test_a_tool_starts_in_planning_or_running(status: str) -> None:
    """ToolStarted: in planning or running; absent arguments show as {}, an absent task as null."""
    story = Story(status)
    if status == "start":
        story.no("INVALID_TRANSITION", tool("s"))
        return
    story.ok(tool("s"), author=AGENT)
    assert story.doc["pending_tool_calls"] == [
        {
            "step_id": "s",
            "tool": "run",
            "task_id": None,
            "arguments": {},
            "author": AGENT,
            "revision": story.revision,
        }
    ]


def test_a_tool_call_names_a_task_that_exists() -> None:
    """A task that does not exist is INVALID_TRANSITION; one that changed since is a conflict."""
    story = Story("running")
    assert story.no("INVALID_TRANSITION", tool("s", task_id="t")).field == "task_id"
    story.ok(task("t"))
    before = story.revision
    story.ok(tool("s", task_id="t"), expected_revision=None)
    story.ok(ev("TaskBlocked", task_id="t", reason="r"))
    story.conflict("task/t", events=[tool("s2", task_id="t")], expected_revision=before)


@pytest.mark.parametrize(
    "end",
    [
        ev("ToolSucceeded", step_id="s", result_ref="artifact:1"),
        ev("ToolFailed", step_id="s", error="e", recoverable=False),
        ev("ToolFailed", step_id="s", error="e", recoverable=True),
    ],
    ids=["succeeded", "failed", "recoverable"],
)
def test_a_tool_call_ends_once(end: dict[str, Any]) -> None:
    """The call must be pending; its end is the last action; the step id stays used."""
    story = Story("planning")
    story.no("INVALID_TRANSITION", end)
    story.ok(tool("s", "grep"))
    story.ok(end, expected_revision=None)
    assert story.doc["pending_tool_calls"] == []
    assert story.doc["last_action"] == {
        "type": end["type"],
        "action": "grep",
        "result_ref": end.get("result_ref"),
        "revision": story.revision,
    }
    story.no("INVALID_TRANSITION", end)
    story.no("INVALID_TRANSITION", tool("s"))


def test_only_a_recoverable_failure_changes_the_status() -> None:
    """A recoverable failure moves running->retry and counts; the other changes no status."""
    story = Story("running")
    story.ok(tool("a"), tool("b"))
    story.ok(ev("ToolFailed", step_id="a", error="e", recoverable=False))
    assert story.doc["status"] == "running"
    story.ok(ev("ToolFailed", step_id="b", error="e", recoverable=True))
    assert (story.doc["status"], story.doc["retry_count"]) == ("retry", 1)


def test_a_recoverable_failure_writes_the_status() -> None:
    """Beside other events a recoverable failure is compared on `status`, the other is not."""
    story = Story("planning")
    story.ok(tool("a"), tool("b"))
    before = story.revision
    story.ok(transition("running"))
    hard = ev("ToolFailed", step_id="a", error="e", recoverable=False)
    story.ok(hard, fact("f"), expected_revision=before)
    soft = ev("ToolFailed", step_id="b", error="e", recoverable=True)
    story.conflict("status", events=[soft, fact("g")], expected_revision=before)
    story.ok(soft, fact("g"), expected_revision=None)


# Effects


def test_an_effect_is_intended_in_running() -> None:
    """EffectIntended: in running; the ledger shows it, and its own revision."""
    Story("planning").no("INVALID_TRANSITION", effect("e"))
    story = Story("running")
    assert story.doc.get("effect_ledger_ref") is None
    story.ok(effect("e"), author=AGENT)
    assert story.doc["effects"] == [
        {
            "id": "e",
            "kind": "mail",
            "target": "mail:ada",
            "idempotency_key": "key of e",
            "status": "intended",
            "outcome": None,
            "result_ref": None,
            "author": AGENT,
            "revision": story.revision,
        }
    ]
    ref = f"effects://run_1@rev{story.revision}"
    story.ok(fact("f"))
    assert story.doc["effect_ledger_ref"] == ref
    story.no("INVALID_TRANSITION", effect("e", idempotency_key="other"))


OUTCOMES = [
    (ev("EffectSucceeded", effect_id="e", result_ref="artifact:1"), "succeeded", "succeeded"),
    (ev("EffectFailed", effect_id="e", error="x"), "failed", "failed"),
    (ev("EffectUnknown", effect_id="e", reason="x"), "unknown", None),
    (ev("EffectReconciled", effect_id="e", outcome="succeeded"), "reconciled", "succeeded"),
    (ev("EffectReconciled", effect_id="e", outcome="failed"), "reconciled", "failed"),
]


@pytest.mark.parametrize("before", ["intended", "unknown", "succeeded", "failed", "reconciled"])
@pytest.mark.parametrize(("event", "status", "outcome"), OUTCOMES)
def test_an_effect_is_settled_from_intended_or_unknown(
    before: str, event: dict[str, Any], status: str, outcome: str | None
) -> None:
    """From intended or unknown (EffectUnknown: from intended); the last action is the outcome."""
    story = Story("running")
    story.ok(effect("e"))
    first = next((e for e, s, _ in OUTCOMES if s == before), None)
    if first is not None:
        story.ok(first)
    if before == "intended" or (before == "unknown" and status != "unknown"):
        story.ok(event, expected_revision=None)
        shown = story.find("effects", "e")
        assert shown is not None
        assert (shown["status"], shown["outcome"]) == (status, outcome)
        assert shown["result_ref"] == event.get("result_ref")
        assert story.doc["last_action"] == {
            "type": event["type"],
            "action": "mail",
            "result_ref": event.get("result_ref"),
            "revision": story.revision,
        }
    else:
        story.no("INVALID_TRANSITION", event)
    story.no("INVALID_TRANSITION", {**event, "effect_id": "none"})


@pytest.mark.parametrize(
    ("events", "free"),
    [
        ([], False),
        ([OUTCOMES[0][0]], False),
        ([OUTCOMES[1][0]], True),
        ([OUTCOMES[2][0]], False),
        ([OUTCOMES[2][0], OUTCOMES[1][0]], True),
        ([OUTCOMES[2][0], OUTCOMES[3][0]], False),
        ([OUTCOMES[2][0], OUTCOMES[4][0]], True),
    ],
)
def test_an_idempotency_key_is_free_after_a_failure_only(
    events: list[dict[str, Any]], free: bool
) -> None:
    """Unique in its run unless the earlier effect failed or was reconciled as failed."""
    story = Story("running")
    story.ok(effect("e", idempotency_key="k"))
    for event in events:
        story.ok(event)
    again = effect("e2", idempotency_key="k")
    if free:
        story.ok(again)
        story.no("INVALID_TRANSITION", effect("e3", idempotency_key="k"))
    else:
        story.no("INVALID_TRANSITION", again)


def test_an_intent_reads_the_goal() -> None:
    """EffectIntended reads the goal: one that only knows revision 0 has not read it."""
    story = Story("running")
    story.conflict("goal", events=[effect("e")], expected_revision=0)
    story.ok(effect("e"), expected_revision=1)


def test_a_new_goal_supersedes_intents() -> None:
    """What was decided before a new goal is SUPERSEDED."""
    story = Story("running")
    before = story.revision
    story.ok(ev("GoalChanged", goal={"statement": "g"}))
    story.no("SUPERSEDED", effect("e"), expected_revision=before)


# Permissions


@pytest.mark.parametrize(
    ("revoked", "event", "allowed"),
    [
        ("tool:run", tool("s", "run"), False),
        ("tool:run", tool("s", "runs"), True),
        ("tool:run*", tool("s", "runs"), False),
        ("tool:run*", tool("s", "run"), False),
        ("tool:run*", tool("s", "rux"), True),
        ("tool:run*", tool("s", "ru"), True),
        ("tool:*", tool("s", "x"), False),
        ("tool:*", effect("e"), True),
        ("effect:o*", effect("e"), True),
        ("tool:*run", tool("s", "run"), True),
        ("tool:a*b", tool("s", "axb"), True),
        ("tool:a*b", tool("s", "a*b"), False),
        ("effect:run", tool("s", "run"), True),
        ("effect:mail", effect("e"), False),
        ("effect:m*", effect("e"), False),
        ("effect:*", effect("e"), False),
        ("tool:mail", effect("e"), True),
        ("effect:order", effect("e"), True),
    ],
)
def test_a_revoked_permission_covers_its_name_or_prefix(
    revoked: str, event: dict[str, Any], allowed: bool
) -> None:
    """`tool:NAME` is for ToolStarted, `effect:KIND` for EffectIntended; a last * is a prefix."""
    story = Story("running")
    story.ok(ev("PermissionRevoked", permission=revoked))
    assert story.doc["permissions_revoked"] == [revoked]
    if allowed:
        story.ok(event)
    else:
        story.no("PERMISSION_REVOKED", event)


def test_restoring_removes_exactly_that_string() -> None:
    """Restoring does nothing if the string is not there, however much it covers."""
    story = Story("running")
    story.ok(ev("PermissionRevoked", permission="tool:b*"))
    story.ok(ev("PermissionRevoked", permission="tool:a"))
    assert story.doc["permissions_revoked"] == ["tool:a", "tool:b*"]
    control = story.doc["control_revision"]
    story.ok(ev("PermissionRestored", permission="tool:bc"))
    story.ok(ev("PermissionRestored", permission="tool:*"))
    assert story.doc["permissions_revoked"] == ["tool:a", "tool:b*"]
    story.ok(ev("PermissionRestored", permission="tool:b*"))
    assert story.doc["permissions_revoked"] == ["tool:a"]
    assert story.doc["control_revision"] == control
    story.ok(ev("PermissionRevoked", permission="tool:b*"))
    assert story.doc["permissions_revoked"] == ["tool:a", "tool:b*"]
    story.no("PERMISSION_REVOKED", tool("s", "bc"))


def test_a_revocation_stamps_its_permission() -> None:
    """`reads` of `permission/P` sees that it was revoked and that it was restored."""
    story = Story("running")
    first = story.revision
    story.ok(ev("PermissionRevoked", permission="tool:a"))
    second = story.revision
    story.no("SUPERSEDED", fact("f"), expected_revision=first)
    story.ok(ev("PermissionRestored", permission="tool:a"))
    names = {"reads": ["permission/tool:a"], "events": [fact("f")]}
    story.conflict("permission/tool:a", expected_revision=second, **names)


def test_a_revocation_that_is_there_supersedes_all_the_same() -> None:
    """A superseding event raises control_revision though it writes the value that is there."""
    story = Story("running")
    story.ok(ev("PermissionRevoked", permission="tool:a"))
    story.ok(ev("PermissionRevoked", permission="tool:a"))
    assert story.doc["control_revision"] == story.revision


# Checkpoints


def test_a_checkpoint_holds_what_was_open() -> None:
    """The document adds revision, at, workspace, versions, effects in doubt and pending calls."""
    story = Story("running", agent_version={"model": "m"}, workspace={"workspace_id": "w"})
    story.ok(effect("e2"), effect("e1"), effect("e3"), tool("s2"), tool("s1"), task("t"))
    story.ok(ev("EffectUnknown", effect_id="e1"), ev("EffectSucceeded", effect_id="e3"))
    story.wait(2)
    taken = {"id": "c", "boundary": "before_wait", "task_id": "t", "data": {"n": 1}}
    story.ok(ev("CheckpointTaken", checkpoint=taken), author=AGENT, expected_revision=None)
    assert story.doc["checkpoint"] == {
        "id": "c",
        "boundary": "before_wait",
        "task_id": "t",
        "note": None,
        "data": {"n": 1},
        "revision": story.revision,
        "at": story.time,
        "workspace": story.doc["workspace"],
        "agent_version": {"model": "m"},
        "schema_version": SCHEMA_VERSION,
        "rules_version": 1,
        "effects_in_doubt": ["e1", "e2"],
        "pending_tool_calls": ["s1", "s2"],
    }


def test_the_latest_checkpoint_is_shown_and_ids_are_used_once() -> None:
    """A later checkpoint takes the place of an earlier one; its task must exist."""
    story = Story()
    story.ok(ev("CheckpointTaken", checkpoint={"id": "a", "boundary": "tasks_done"}))
    story.ok(ev("CheckpointTaken", checkpoint={"id": "b", "boundary": "tasks_done"}))
    assert story.doc["checkpoint"]["id"] == "b"
    story.no(
        "INVALID_TRANSITION",
        ev("CheckpointTaken", checkpoint={"id": "a", "boundary": "tasks_done"}),
    )
    lost = {"id": "c", "boundary": "tasks_done", "task_id": "none"}
    story.no("INVALID_TRANSITION", ev("CheckpointTaken", checkpoint=lost))


def test_a_checkpoint_is_compared_where_an_expectation_is_given() -> None:
    """CheckpointTaken is `~`: with an old expectation it conflicts with a checkpoint since."""
    story = Story()
    before = story.revision
    story.ok(ev("CheckpointTaken", checkpoint={"id": "a", "boundary": "tasks_done"}))
    late = ev("CheckpointTaken", checkpoint={"id": "b", "boundary": "tasks_done"})
    story.conflict("checkpoint", events=[late], expected_revision=before)


# Finishing reads the whole


@pytest.mark.parametrize(
    ("since", "entity"),
    [
        (task("t9"), "task/t9"),
        (ev("TaskBlocked", task_id="t", reason="r"), "task/t"),
        (effect("e9"), "effect/e9"),
        (ev("EffectSucceeded", effect_id="e"), "effect/e"),
        (transition("planning"), "status"),
    ],
    ids=["task added", "task changed", "effect", "effect settled", "status"],
)
def test_finishing_reads_all_tasks_and_effects(since: dict[str, Any], entity: str) -> None:
    """RunFinished compares goal, all tasks, all effects and the status."""
    story = Story("running")
    story.ok(task("t"), effect("e"), fact("f"))
    before = story.revision
    end = ev("RunFinished", result="failed")
    story.ok(fact("g"))
    story.ok(since)
    story.conflict(entity, events=[end], expected_revision=before)


def test_finishing_with_nothing_read_names_all_it_reads() -> None:
    """A finish that expects revision 0 conflicts with all there is."""
    story = Story("running")
    story.ok(task("t"), effect("e"), fact("f"))
    end = ev("RunFinished", result="failed")
    story.conflict("effect/e", "goal", "status", "task/t", events=[end], expected_revision=0)


def test_finishing_sees_a_task_that_a_plan_removed() -> None:
    """A task that left with a plan since is a change of all tasks."""
    story = Story("running")
    story.ok(task("t"))
    before = story.revision
    story.ok(ev("PlanAdopted", tasks=[]))
    end = ev("RunFinished", result="failed")
    decision = story.conflict("task/t", events=[end], expected_revision=before)
    assert decision.conflicts[0]["changed_by"] == USER
