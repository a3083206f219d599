"""The contract's sentences on a run's statuses, its end, its head and its budget."""

from __future__ import annotations

import pytest

from tests.core_model import AGENT, SYSTEM, USER, Story, effect, ev, fact, task, transition

STATUSES = ("start", "planning", "running", "waiting", "retry", "finish")
ALLOWED = {
    ("start", "planning"),
    ("planning", "running"),
    ("running", "planning"),
    ("waiting", "planning"),
    ("retry", "running"),
    ("retry", "start"),
}


def run_in(status: str, **start: object) -> Story:
    """A run that came to this status in the shortest way."""
    if status in ("start", "planning", "running"):
        return Story(status, **start)
    story = Story("running", **start)
    if status == "waiting":
        story.ok(ev("WaitStarted", kind="user", key="k", reason="why"))
    elif status == "retry":
        story.ok(ev("ToolStarted", step_id="s0"))
        story.ok(ev("ToolFailed", step_id="s0", error="exit 1", recoverable=True))
    else:
        story.ok(ev("RunFinished", result="completed"))
    assert story.doc["status"] == status
    return story


def test_a_start_is_revision_one_in_status_start_with_three_retries() -> None:
    """RunStarted makes revision 1, status start, retry_limit 3, and a transition from null."""
    story = Story()
    doc = story.doc
    assert (doc["revision"], doc["status"], doc["retry_limit"]) == (1, "start", 3)
    assert doc["last_transition"] == {
        "from": None,
        "to": "start",
        "reason": "RunStarted",
        "at": story.time,
        "revision": 1,
    }
    assert doc["budgets"] == {"tokens_remaining": None, "deadline": None}
    assert (doc["control_revision"], doc["condition"], doc["workspace"]) == (0, "ok", None)


def test_a_start_takes_all_that_is_given() -> None:
    """What RunStarted gives is shown; absent lists are empty ones."""
    fork = {"run_id": "run_0", "revision": 3, "chain": "9a" * 32}
    story = Story(
        goal={"statement": "do", "scope": {"include": ["src"]}},
        budgets={"tokens_remaining": 5},
        agent_version={"model": "m"},
        workspace={"workspace_id": "w", "current_commit": "c"},
        retry_limit=0,
        labels={"team": "a"},
        rules_version=1,
        forked_from=fork,
    )
    doc = story.doc
    assert doc["goal"] == {
        "statement": "do",
        "scope": {"include": ["src"], "exclude": []},
        "acceptance": [],
        "constraints": [],
        "author": USER,
        "revision": 1,
    }
    assert doc["workspace"] == {
        "workspace_id": "w",
        "base_commit": None,
        "current_commit": "c",
        "uncommitted_changes": None,
    }
    assert (doc["retry_limit"], doc["labels"], doc["rules_version"]) == (0, {"team": "a"}, 1)
    assert (doc["agent_version"], doc["forked_from"]) == ({"model": "m"}, fork)
    assert doc["budgets"] == {"tokens_remaining": 5, "deadline": None}


@pytest.mark.parametrize("before", [s for s in STATUSES if s != "finish"])
@pytest.mark.parametrize("to", STATUSES)
def test_only_six_transitions_are_free(before: str, to: str) -> None:
    """RunTransitioned makes the six transitions of its row, and no others."""
    story = run_in(before)
    if (before, to) in ALLOWED:
        story.ok(transition(to))
        assert story.doc["status"] == to
    else:
        story.no("INVALID_TRANSITION", transition(to))


def test_a_transitions_reason_is_the_events_reason_or_its_type() -> None:
    """`last_transition.reason` is the event's reason or error, else its type."""
    story = Story()
    story.ok(transition("planning"))
    assert story.doc["last_transition"]["reason"] == "RunTransitioned"
    story.ok(transition("running", reason="go"))
    assert story.doc["last_transition"]["reason"] == "go"
    story.ok(ev("ToolStarted", step_id="s"))
    story.ok(ev("ToolFailed", step_id="s", error="exit 7", recoverable=True))
    assert story.doc["last_transition"]["reason"] == "exit 7"
    assert story.doc["last_transition"]["revision"] == story.revision


def test_a_retry_needs_one_left_and_start_gives_them_back() -> None:
    """retry->running needs retry_count < retry_limit; retry->start sets retry_count to 0."""
    story = run_in("retry", retry_limit=1)
    assert story.doc["retry_count"] == 1
    story.no("INVALID_TRANSITION", transition("running"))
    story.ok(transition("start"))
    assert story.doc["retry_count"] == 0


def test_a_retry_that_is_left_is_taken() -> None:
    """With retries left a run goes from retry to running, and the count stays."""
    story = run_in("retry", retry_limit=2)
    story.ok(transition("running"))
    assert (story.doc["status"], story.doc["retry_count"]) == ("running", 1)


def test_a_recoverable_failure_outside_running_is_only_recorded() -> None:
    """A recoverable failure moves running->retry; in planning the status stays."""
    story = Story("planning")
    story.ok(ev("ToolStarted", step_id="s"))
    story.ok(ev("ToolFailed", step_id="s", error="e", recoverable=True))
    assert (story.doc["status"], story.doc["retry_count"]) == ("planning", 0)
    assert story.doc["last_action"]["type"] == "ToolFailed"


def test_leaving_a_wait_for_planning_ends_it() -> None:
    """waiting->planning leaves no open wait behind."""
    story = run_in("waiting")
    story.ok(transition("planning"))
    assert story.doc["waiting"] is None


# The end


@pytest.mark.parametrize("status", [s for s in STATUSES if s != "finish"])
def test_a_run_fails_from_any_status_and_completes_from_running(status: str) -> None:
    """failed: from any status; completed: from running."""
    run_in(status).ok(ev("RunFinished", result="failed"))
    story = run_in(status)
    if status == "running":
        story.ok(ev("RunFinished", result="completed", reason="done"))
        assert story.doc["result"] == "completed"
        assert story.doc["last_transition"]["reason"] == "done"
    else:
        story.no("INVALID_TRANSITION", ev("RunFinished", result="completed"))


def test_completing_needs_no_running_task() -> None:
    """A running task keeps a run from completing, a pending one does not."""
    story = Story("running")
    story.ok(task("t1"), task("t2"))
    story.ok(ev("TaskStarted", task_id="t1"))
    story.no("INVALID_TRANSITION", ev("RunFinished", result="completed"))
    story.ok(ev("TaskBlocked", task_id="t1", reason="b"))
    story.ok(ev("RunFinished", result="completed"))


@pytest.mark.parametrize("unknown", [False, True])
def test_completing_needs_no_open_effect(unknown: bool) -> None:
    """An effect that is intended or unknown keeps a run from completing."""
    story = Story("running")
    story.ok(effect("e"))
    if unknown:
        story.ok(ev("EffectUnknown", effect_id="e"))
    story.no("INVALID_TRANSITION", ev("RunFinished", result="completed"))
    story.ok(ev("EffectReconciled", effect_id="e", outcome="failed"))
    story.ok(ev("RunFinished", result="completed"))


def test_completing_needs_no_pending_call() -> None:
    """A pending tool call keeps a run from completing."""
    story = Story("running")
    story.ok(ev("ToolStarted", step_id="s"))
    story.no("INVALID_TRANSITION", ev("RunFinished", result="completed"))
    story.ok(ev("ToolSucceeded", step_id="s"))
    story.ok(ev("RunFinished", result="completed"))


@pytest.mark.parametrize("cancel", [False, True])
def test_the_end_ends_the_wait_and_the_lease_and_nothing_else(cancel: bool) -> None:
    """Finishing, also by cancel, ends an open wait, releases the lease, leaves all else."""
    story = Story("running")
    story.ok(task("t"), effect("e"), ev("ToolStarted", step_id="s"))
    story.ok(ev("TaskStarted", task_id="t"))
    story.ok(ev("LeaseAcquired", worker="w", ttl_seconds=60))
    story.ok(ev("SignalReceived", key="other", signal_id="x"))
    story.ok(ev("WaitStarted", kind="user", key="k", reason="r"))
    before = story.doc
    end = ev("RunCancelled", reason="stop") if cancel else ev("RunFinished", result="failed")
    story.ok(end)
    doc = story.doc
    assert (doc["status"], doc["waiting"], doc["lease"]) == ("finish", None, None)
    assert doc["result"] == ("cancelled" if cancel else "failed")
    for name in ("tasks", "effects", "pending_tool_calls", "signals", "retry_count", "plan"):
        assert doc[name] == before[name]
    story.ok(ev("BudgetSpent", tokens=1), lease_epoch=1)


def test_only_reports_follow_the_end_in_its_batch() -> None:
    """Only reports may follow RunFinished in its batch."""
    story = Story("running")
    story.ok(effect("e"))
    end = ev("RunFinished", result="failed")
    story.no("INVALID_TRANSITION", end, fact("f"))
    story.no("INVALID_TRANSITION", end, end)
    assert story.no("INVALID_TRANSITION", end, ev("Recorded", name="n")).event_index == 1
    story.ok(end, ev("EffectSucceeded", effect_id="e"), ev("BudgetSpent", tokens=3))


def test_nothing_follows_a_cancel() -> None:
    """Nothing may follow RunCancelled, control events neither; they may precede it."""
    story = Story("running")
    cancel = ev("RunCancelled", reason="stop")
    story.no("INVALID_TRANSITION", cancel, cancel)
    story.no("INVALID_TRANSITION", cancel, ev("AgentVersionChanged", agent_version={}))
    story.ok(ev("AgentVersionChanged", agent_version={"m": "2"}), cancel)


def test_a_recoverable_failure_after_the_end_of_its_batch_moves_nothing() -> None:
    """After finish a report changes ledger, calls and budget, never the status."""
    story = Story("running")
    story.ok(ev("ToolStarted", step_id="s"))
    failure = ev("ToolFailed", step_id="s", error="e", recoverable=True)
    story.ok(ev("RunFinished", result="failed"), failure)
    assert (story.doc["status"], story.doc["retry_count"]) == ("finish", 0)
    assert story.doc["pending_tool_calls"] == []


# The head: phase, goal, versions, workspace, labels


def test_a_phase_is_what_was_last_said() -> None:
    """PhaseChanged sets the phase; saying it again stamps nothing."""
    story = Story()
    assert story.doc.get("phase") is None
    story.ok(ev("PhaseChanged", phase="fix"))
    revision = story.revision
    story.ok(ev("PhaseChanged", phase="fix"))
    assert story.doc["phase"] == "fix"
    story.ok(ev("PhaseChanged", phase="verify"), expected_revision=revision)


def statuses(story: Story) -> dict[str, str]:
    """Each task's status."""
    return {each["id"]: each["status"] for each in story.doc["tasks"]}


def test_scopes_of_any_length_are_compared_in_a_moment() -> None:
    """A goal's and a task's scope have no limit but a proposal's size: a task costs its length."""
    many = [f"{number:x}" for number in range(40_000)]
    story = Story("running")
    story.ok(task("in", scope=many), task("out", scope=[*many, "z"]))
    story.ok(ev("GoalChanged", goal={"statement": "g", "scope": {"include": many}}))
    assert statuses(story) == {"in": "pending", "out": "invalidated"}
    deep = "./" * 2_000 + "a/" * 2_000
    story.ok(task("deep", scope=[deep]))
    story.ok(ev("GoalChanged", goal={"statement": "g", "scope": {"exclude": ["a/" * 1_999]}}))
    assert statuses(story)["deep"] == "invalidated"


def test_a_new_goal_invalidates_open_tasks_out_of_its_scope() -> None:
    """GoalChanged: pending, running and blocked tasks out of scope become invalidated."""
    story = Story("running")
    story.ok(task("pend", scope=["docs"]), task("run", scope=["docs"]))
    story.ok(task("block", scope=["docs"]), task("done", scope=["docs"]))
    story.ok(task("in", scope=["src/auth"]), task("free"))
    for id in ("run", "done"):
        story.ok(ev("TaskStarted", task_id=id))
    story.ok(ev("TaskCompleted", task_id="done"), ev("TaskBlocked", task_id="block", reason="b"))
    goal = {"statement": "g", "scope": {"include": ["src"]}}
    story.ok(ev("GoalChanged", goal=goal, reason="r"))
    assert story.doc["goal"]["statement"] == "g"
    assert story.doc["goal"]["scope"] == {"include": ["src"], "exclude": []}
    statuses = {task["id"]: task["status"] for task in story.doc["tasks"]}
    assert statuses == {
        "pend": "invalidated",
        "run": "invalidated",
        "block": "invalidated",
        "done": "completed",
        "in": "pending",
        "free": "pending",
    }
    assert story.task("block")["blocked_by"] is None
    assert story.doc["active_task_id"] is None


@pytest.mark.parametrize(
    ("scope", "goal", "inside"),
    [
        (["src"], {"include": ["src"]}, True),
        (["src/auth"], {"include": ["src"]}, True),
        (["src2"], {"include": ["src"]}, False),
        (["src"], {"include": ["src/auth"]}, False),
        (["./src/auth/"], {"include": ["/src"]}, True),
        (["/src"], {"include": ["./src/"]}, True),
        (["src", "docs"], {"include": ["src"]}, False),
        (["src", "docs"], {"include": ["src", "docs"]}, True),
        (["src/a"], {"exclude": ["src/a"]}, False),
        (["src/a/b"], {"include": ["src"], "exclude": ["src/a"]}, False),
        (["src"], {"include": ["src"], "exclude": ["src/a"]}, True),
        (["docs"], {"exclude": ["src"]}, True),
        ([], {"include": ["src"]}, True),
        (["docs"], {}, True),
    ],
)
def test_scope_goes_by_path_parts(
    scope: list[str], goal: dict[str, list[str]], inside: bool
) -> None:
    """In scope: each item covered by an include (none: all) and by no exclude; no items: in."""
    story = Story()
    story.ok(task("t", scope=scope))
    story.ok(ev("GoalChanged", goal={"statement": "g", "scope": goal}, reason="r"))
    assert story.task("t")["status"] == ("pending" if inside else "invalidated")


def test_versions_and_workspace_are_replaced() -> None:
    """AgentVersionChanged, RulesActivated and WorkspaceMoved replace what was there."""
    story = Story(agent_version={"model": "m1", "prompt": "p"})
    story.ok(ev("AgentVersionChanged", agent_version={"model": "m2"}))
    story.ok(ev("WorkspaceMoved", workspace={"workspace_id": "w", "base_commit": "b"}))
    story.ok(ev("WorkspaceMoved", workspace={"workspace_id": "w2"}))
    story.ok(ev("RulesActivated", rules_version=1))
    assert story.doc["agent_version"] == {"model": "m2"}
    assert story.doc["workspace"]["workspace_id"] == "w2"
    assert story.doc["workspace"]["base_commit"] is None
    assert story.doc["rules_version"] == 1


# Budgets


def test_spending_always_counts() -> None:
    """BudgetSpent counts, may go below 0, and changes nothing that is unlimited."""
    story = Story("running", budgets={"tokens_remaining": 5})
    story.ok(ev("BudgetSpent", tokens=9), expected_revision=None)
    assert story.doc["budgets"]["tokens_remaining"] == -4
    free = Story("running")
    free.ok(ev("BudgetSpent", tokens=9))
    assert free.doc["budgets"]["tokens_remaining"] is None


def test_tokens_never_fall_below_the_least_integer() -> None:
    """tokens_remaining never falls below -(2^53-1)."""
    story = Story(budgets={"tokens_remaining": 0})
    for _ in range(82):
        story.ok(*[ev("BudgetSpent", tokens=2**40)] * 100)
    assert story.doc["budgets"]["tokens_remaining"] == -(2**53 - 1)


@pytest.mark.parametrize("how", ["none left", "below", "deadline"])
def test_a_spent_budget_refuses_the_intents(how: str) -> None:
    """Tokens <= 0 or log time >= deadline refuse the three intents and the way to running."""
    story = Story("running")
    story.ok(task("t"), effect("e0"), ev("ToolStarted", step_id="s0"))
    budget = {"none left": {"tokens_remaining": 0}, "below": {"tokens_remaining": 1}}
    story.ok(ev("BudgetSet", **budget.get(how, {"deadline": story.later(5)})))
    if how == "below":
        story.ok(ev("ToolStarted", step_id="s1"))
        story.ok(ev("BudgetSpent", tokens=2))
    story.wait(4.999999)
    if how == "deadline":
        story.ok(ev("ToolStarted", step_id="s1"))
    story.wait(0.000001)
    for event in (
        ev("ToolStarted", step_id="s2"),
        effect("e2"),
        ev("TaskStarted", task_id="t"),
        transition("running"),
    ):
        story.no("BUDGET_EXHAUSTED", event)
    story.ok(fact("f"), task("t2"), ev("ToolSucceeded", step_id="s0"), transition("planning"))
    story.ok(ev("EffectSucceeded", effect_id="e0"), ev("PhaseChanged", phase="p"))


def test_a_budget_is_set_left_or_made_unlimited() -> None:
    """BudgetSet: absent = unchanged, null = unlimited."""
    story = Story(budgets={"tokens_remaining": 5, "deadline": "2026-02-01T00:00:00+01:00"})
    story.ok(ev("BudgetSet", tokens_remaining=7))
    assert story.doc["budgets"]["deadline"] == "2026-02-01T00:00:00+01:00"
    story.ok(ev("BudgetSet", deadline=None))
    assert story.doc["budgets"] == {"tokens_remaining": 7, "deadline": None}
    story.ok(ev("BudgetSet"))
    assert story.doc["budgets"] == {"tokens_remaining": 7, "deadline": None}


@pytest.mark.parametrize(
    ("before", "fields", "lowers"),
    [
        ({"tokens_remaining": 5}, {"tokens_remaining": 4}, True),
        ({"tokens_remaining": 5}, {"tokens_remaining": 5}, False),
        ({"tokens_remaining": 5}, {"tokens_remaining": 6}, False),
        ({"tokens_remaining": 5}, {"tokens_remaining": None}, False),
        ({}, {"tokens_remaining": 2**53 - 1}, True),
        ({}, {"tokens_remaining": None}, False),
        ({}, {"deadline": "9999-12-31T23:59:59Z"}, True),
        ({"deadline": "2026-01-02T00:00:00Z"}, {"deadline": "2026-01-02T00:59:59+01:00"}, True),
        ({"deadline": "2026-01-02T00:00:00Z"}, {"deadline": "2026-01-02T01:00:00+01:00"}, False),
        ({"deadline": "2026-01-02T00:00:00Z"}, {"deadline": None}, False),
        (
            {"tokens_remaining": 5, "deadline": "2026-01-02T00:00:00Z"},
            {"tokens_remaining": 9, "deadline": "2026-01-01T00:00:00Z"},
            True,
        ),
    ],
)
def test_a_budget_supersedes_when_it_lowers_either(
    before: dict[str, object], fields: dict[str, object], lowers: bool
) -> None:
    """BudgetSet raises control_revision when it lowers tokens or deadline; null is highest."""
    story = Story(budgets=before)
    story.ok(ev("BudgetSet", **fields))
    assert story.doc["control_revision"] == (story.revision if lowers else 0)


# Who may


@pytest.mark.parametrize(
    "event",
    [
        ev("GoalChanged"),
        ev("RunCancelled"),
        ev("PermissionRevoked"),
        ev("PermissionRestored"),
        ev("BudgetSet"),
        ev("AgentVersionChanged"),
        ev("RulesActivated"),
        ev("RunReleased"),
        ev("ConflictResolved"),
        ev("WaitTimedOut"),
    ],
    ids=lambda event: event["type"],
)
@pytest.mark.parametrize("kind", ["agent", "user", "tool", "operator", "system"])
def test_control_is_for_authorities(event: dict[str, object], kind: str) -> None:
    """Control is for user, operator and system; WaitTimedOut for system; others may not."""
    story = Story("running")
    decision = story.propose(event, author={"kind": kind, "id": "x"})
    allowed = {"system"} if event["type"] == "WaitTimedOut" else {"user", "operator", "system"}
    assert (decision.code == "NOT_AUTHORIZED") == (kind not in allowed)
    if kind not in allowed:
        assert decision.event_index == 0


def test_time_outs_of_an_agent_are_not_authorized_although_not_due() -> None:
    """NOT_AUTHORIZED comes before what step 7 would say, and names the event."""
    story = Story("running")
    decision = story.no("NOT_AUTHORIZED", fact("f"), ev("WaitTimedOut"), author=AGENT)
    assert decision.event_index == 1
    story.no("INVALID_TRANSITION", ev("WaitTimedOut"), author=SYSTEM)
