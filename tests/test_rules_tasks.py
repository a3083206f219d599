"""The contract's sentences on tasks and the plan."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core_model import AGENT, OTHER_AGENT, USER, Story, ev, fact, task, transition

ENDED = ("completed", "failed", "cancelled", "invalidated")


def planned(id: str, **fields: Any) -> dict[str, Any]:
    """A task as a plan gives it."""
    return {"id": id, "title": id, **fields}


def plan(*tasks: dict[str, Any]) -> dict[str, Any]:
    """The event that adopts a plan."""
    return ev("PlanAdopted", tasks=list(tasks))


def start(id: str, **fields: Any) -> dict[str, Any]:
    """The event that starts a task."""
    return {"type": "TaskStarted", "task_id": id, **fields}


def story_with(status: str) -> Story:
    """A running run with the task `t` in this status."""
    story = Story("running")
    story.ok(task("t", scope=["docs"]))
    if status in ("running", "completed", "failed"):
        story.ok(start("t"))
    last = {
        "blocked": ev("TaskBlocked", task_id="t", reason="b"),
        "completed": ev("TaskCompleted", task_id="t", evidence="test:1"),
        "failed": ev("TaskFailed", task_id="t", reason="f"),
        "cancelled": ev("TaskCancelled", task_id="t", reason="c"),
        "invalidated": ev("GoalChanged", goal={"statement": "g", "scope": {"include": ["src"]}}),
    }
    if status in last:
        story.ok(last[status])
    assert story.task("t")["status"] == status
    return story


STATUSES = ("pending", "running", "blocked", *ENDED)


def test_a_task_is_added_pending_at_the_end_of_the_plan() -> None:
    """TaskAdded: `pending`, at the end of the plan; lists of ids are sorted, absent ones []."""
    story = Story()
    story.ok(task("z"), task("a"))
    story.ok(task("m", depends_on=["z", "a"], scope=["b", "a"]))
    assert story.doc["plan"] == ["z", "a", "m"]
    assert [t["id"] for t in story.doc["tasks"]] == ["a", "m", "z"]
    assert story.task("m") == {
        "id": "m",
        "title": "m",
        "status": "pending",
        "depends_on": ["a", "z"],
        "scope": ["b", "a"],
        "blocked_by": None,
        "evidence": None,
        "worker": None,
        "author": USER,
        "revision": story.revision,
    }


def test_a_tasks_dependencies_exist() -> None:
    """A dependency that does not exist is INVALID_TRANSITION, on itself too."""
    story = Story()
    decision = story.no("INVALID_TRANSITION", task("t", depends_on=["none"]))
    assert (decision.event_index, decision.field) == (0, "task.depends_on[0]")
    story.no("INVALID_TRANSITION", task("t", depends_on=["t"]))


@pytest.mark.parametrize("status", STATUSES)
def test_a_task_id_is_used_once(status: str) -> None:
    """An id once used is never used again, whatever became of the task."""
    story_with(status).no("INVALID_TRANSITION", task("t"))


def test_what_a_plan_removed_is_not_added_again() -> None:
    """The id of a task that went with a plan stays used."""
    story = Story("planning")
    story.ok(task("t"))
    story.ok(plan())
    assert story.doc["tasks"] == []
    story.no("INVALID_TRANSITION", task("t"))
    story.no("INVALID_TRANSITION", plan(planned("t")))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    ("event", "allowed", "becomes"),
    [
        (start("t"), ("pending",), "running"),
        (ev("TaskBlocked", task_id="t", reason="b"), ("pending", "running"), "blocked"),
        (ev("TaskCompleted", task_id="t", evidence="test:9"), ("running",), "completed"),
        (ev("TaskFailed", task_id="t", reason="r"), ("running", "blocked"), "failed"),
        (
            ev("TaskCancelled", task_id="t", reason="r"),
            ("pending", "running", "blocked"),
            "cancelled",
        ),
        (ev("TaskUnblocked", task_id="t"), ("blocked",), "pending"),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else None,
)
def test_a_task_moves_from_the_statuses_of_its_row(
    status: str, event: dict[str, Any], allowed: tuple[str, ...], becomes: str
) -> None:
    """Each task event is accepted from the statuses of its row and from no other."""
    story = story_with(status)
    if status in allowed:
        story.ok(event)
        assert story.task("t")["status"] == becomes
    else:
        story.no("INVALID_TRANSITION", event)


@pytest.mark.parametrize(
    "type", ["TaskStarted", "TaskBlocked", "TaskUnblocked", "TaskCompleted", "TaskFailed"]
)
def test_a_task_that_is_not_there_is_invalid(type: str) -> None:
    """Naming a task that does not exist is INVALID_TRANSITION."""
    Story("running").no("INVALID_TRANSITION", ev(type, task_id="none"))


def test_unblocked_goes_back_to_what_it_was_and_is_no_start() -> None:
    """TaskUnblocked: back to what it was, with its worker; the latest start stays the latest."""
    story = Story("running")
    story.ok(task("a"), task("b"))
    story.ok(start("a", worker="w1"))
    story.ok(start("b"))
    story.ok(ev("TaskBlocked", task_id="a", reason="why"))
    assert story.task("a")["blocked_by"] == "why"
    assert story.task("a")["worker"] == "w1"
    assert story.doc["active_task_id"] == "b"
    story.ok(ev("TaskUnblocked", task_id="a"))
    blocked = story.task("a")
    assert (blocked["status"], blocked["blocked_by"], blocked["worker"]) == ("running", None, "w1")
    assert story.doc["active_task_id"] == "b"
    story.ok(ev("TaskBlocked", task_id="b", reason="why"))
    assert story.doc["active_task_id"] == "a"


def test_completing_keeps_the_evidence() -> None:
    """TaskCompleted shows its evidence; the task's worker stays."""
    story = story_with("running")
    story.ok(ev("TaskCompleted", task_id="t", evidence="test:9"))
    assert (story.task("t")["evidence"], story.task("t")["worker"]) == ("test:9", "ada")
    assert story.doc["active_task_id"] is None


@pytest.mark.parametrize("status", ["start", "planning"])
def test_a_task_starts_in_status_running_only(status: str) -> None:
    """TaskStarted needs the run in status running."""
    story = Story(status)
    story.ok(task("t"))
    story.no("INVALID_TRANSITION", start("t"))


def test_the_worker_is_the_one_named_or_the_author() -> None:
    """`worker` absent = the author's id."""
    story = Story("running")
    story.ok(task("a"), task("b"))
    story.ok(start("a"), author=AGENT)
    story.ok(start("b", worker="w9"), author=AGENT)
    assert (story.task("a")["worker"], story.task("b")["worker"]) == ("worker-1", "w9")


@pytest.mark.parametrize("status", [s for s in STATUSES if s != "completed"])
def test_a_task_starts_after_its_dependencies(status: str) -> None:
    """A dependency that is not completed is DEPENDENCY_UNMET."""
    story = story_with(status)
    story.ok(task("after", depends_on=["t"]))
    assert story.doc["next_task_ids"] == (["t"] if status == "pending" else [])
    story.no("DEPENDENCY_UNMET", start("after"))


def test_a_dependency_that_went_with_a_plan_is_unmet() -> None:
    """A blocked task outlives a plan that takes its dependency away, and cannot start then."""
    story = Story("running")
    story.ok(task("a"))
    story.ok(task("b", depends_on=["a"]))
    story.ok(ev("TaskBlocked", task_id="b", reason="r"))
    story.ok(plan())
    story.ok(ev("TaskUnblocked", task_id="b"))
    assert (story.doc["plan"], story.doc["next_task_ids"]) == (["b"], [])
    story.no("DEPENDENCY_UNMET", start("b"))


def test_next_tasks_are_the_pending_ones_that_may_start_in_plan_order() -> None:
    """`next_task_ids`: pending tasks whose dependencies are completed, in plan order."""
    story = story_with("completed")
    story.ok(task("z", depends_on=["t"]), task("a"), task("m", depends_on=["a"]))
    assert story.doc["next_task_ids"] == ["z", "a"]
    story.ok(start("z"))
    assert story.doc["next_task_ids"] == ["a"]


# Another worker's task


def test_a_running_task_of_another_worker_is_a_conflict_whatever_was_expected() -> None:
    """A running task of another worker is a conflict of step 6 on `task/ID`."""
    story = Story("running")
    story.ok(task("t"))
    story.ok(start("t"), author=AGENT)
    decision = story.conflict("task/t", events=[start("t")], author=OTHER_AGENT)
    assert decision.conflicts[0]["changed_by"] == AGENT
    assert decision.conflicts[0]["expected_revision"] == story.revision
    story.no("INVALID_TRANSITION", start("t"), author=AGENT)
    story.conflict("task/t", events=[start("t", worker="w")], author=AGENT)
    assert story.arbitrated(start("t"), author=OTHER_AGENT)


def test_the_live_leases_epoch_takes_a_task_over() -> None:
    """With the live lease's epoch a start takes the task over, like any other start."""
    story = Story("running", budgets={"tokens_remaining": 9})
    story.ok(task("t"), task("u"))
    story.ok(start("t"), author=AGENT)
    story.ok(start("u"), author=AGENT)
    story.ok(ev("LeaseAcquired", worker="worker-2", ttl_seconds=60))
    mine = {"author": OTHER_AGENT, "lease_epoch": 1}
    assert story.doc["active_task_id"] == "u"
    story.ok(start("t"), **mine)
    assert (story.task("t")["worker"], story.task("t")["status"]) == ("worker-2", "running")
    assert story.doc["active_task_id"] == "t"
    story.no("INVALID_TRANSITION", start("t"), **mine)
    story.ok(ev("BudgetSpent", tokens=9))
    story.no("BUDGET_EXHAUSTED", start("u"), **mine)
    story.ok(transition("planning"))
    story.ok(ev("BudgetSet", tokens_remaining=9))
    story.no("INVALID_TRANSITION", start("u"), **mine)


def test_a_task_that_its_own_batch_started_is_not_taken_over() -> None:
    """Step 6 looks at the state before; what the batch itself started runs: INVALID_TRANSITION."""
    story = Story("running")
    decision = story.no(
        "INVALID_TRANSITION", task("t"), start("t", worker="a"), start("t", worker="b")
    )
    assert decision.event_index == 2


def test_an_expired_leases_epoch_takes_nothing_over() -> None:
    """Only the epoch of a live lease takes a task over."""
    story = Story("running")
    story.ok(task("t"))
    story.ok(start("t"), author=AGENT)
    story.ok(ev("LeaseAcquired", worker="worker-2", ttl_seconds=60))
    story.wait(60)
    story.conflict("task/t", events=[start("t")], author=OTHER_AGENT, lease_epoch=1)


def test_an_authority_without_the_epoch_takes_nothing_over() -> None:
    """A user needs no lease to write, but the epoch to take a task over."""
    story = Story("running")
    story.ok(task("t"))
    story.ok(start("t"), author=AGENT)
    story.ok(ev("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    story.conflict("task/t", events=[start("t")])


# Plans


@pytest.mark.parametrize("status", ["start", "planning", "running"])
def test_a_plan_is_adopted_in_planning_or_running(status: str) -> None:
    """PlanAdopted: in planning or running."""
    story = Story(status)
    if status == "start":
        story.no("INVALID_TRANSITION", plan(planned("a")))
    else:
        story.ok(plan(planned("a")))


def test_pending_tasks_go_unless_given_again_and_all_others_stay_first() -> None:
    """Pending ones go or are replaced; all others stay, first in the plan, in their order."""
    story = Story("running")
    story.ok(task("p1"), task("run"), task("p2"), task("block"), task("done"))
    story.ok(start("done"), start("run"))
    story.ok(ev("TaskCompleted", task_id="done"), ev("TaskBlocked", task_id="block", reason="b"))
    story.ok(plan(planned("new"), planned("p2", title="other", scope=["src"])))
    assert story.doc["plan"] == ["run", "block", "done", "new", "p2"]
    assert (story.task("p2")["title"], story.task("p2")["scope"]) == ("other", ["src"])
    assert [t["id"] for t in story.doc["tasks"]] == ["block", "done", "new", "p2", "run"]


@pytest.mark.parametrize("status", [s for s in STATUSES if s != "pending"])
def test_a_plan_names_no_task_that_stays(status: str) -> None:
    """Naming a task that is not pending is INVALID_TRANSITION."""
    decision = story_with(status).no("INVALID_TRANSITION", plan(planned("n"), planned("t")))
    assert decision.field == "tasks[1].id"


@pytest.mark.parametrize("status", STATUSES)
def test_a_plan_depends_on_what_is_given_or_stays(status: str) -> None:
    """A dependency on what is neither given nor staying is INVALID_TRANSITION."""
    story = story_with(status)
    event = plan(planned("n", depends_on=["t"]))
    if status == "pending":
        assert story.no("INVALID_TRANSITION", event).field == "tasks[0].depends_on[0]"
        story.ok(plan(planned("n", depends_on=["t"]), planned("t")))
    else:
        story.ok(event)
    story.no("INVALID_TRANSITION", plan(planned("x", depends_on=["none"])))


def test_a_plan_has_no_circle_and_no_id_twice() -> None:
    """A cycle, or an id given twice, is INVALID_TRANSITION."""
    story = Story("planning")
    story.no("INVALID_TRANSITION", plan(planned("a"), planned("a")))
    story.no("INVALID_TRANSITION", plan(planned("a", depends_on=["a"])))
    a, b, c = (planned(x, depends_on=[y]) for x, y in ("ab", "bc", "ca"))
    story.no("INVALID_TRANSITION", plan(a, b, c))
    story.ok(plan(a, b, planned("c")))


def test_ways_that_meet_again_are_no_circle() -> None:
    """Two tasks may depend on one, and one on both, given or staying."""
    story = Story("planning")
    d, c, b = planned("d"), planned("c", depends_on=["d"]), planned("b", depends_on=["d"])
    story.ok(plan(planned("a", depends_on=["b", "c"]), b, c, d))
    story.ok(ev("TaskBlocked", task_id="a", reason="r"))
    story.ok(plan(b, c, d, planned("e", depends_on=["a", "b", "c", "d"])))


def test_a_circle_through_a_task_that_stays_is_one() -> None:
    """A blocked task that stays may close a circle with a given one."""
    story = Story("planning")
    story.ok(plan(planned("a"), planned("b", depends_on=["a"])))
    story.ok(ev("TaskBlocked", task_id="b", reason="r"))
    story.no("INVALID_TRANSITION", plan(planned("a", depends_on=["b"])))
    story.ok(plan(planned("a")))


def test_adopting_a_plan_conflicts_with_a_task_added_since() -> None:
    """PlanAdopted reads and writes the plan: a task added since is a conflict on it."""
    story = Story("planning")
    before = story.revision
    story.ok(task("t"))
    decision = story.no("CONFLICT", plan(planned("n")), expected_revision=before)
    assert "plan" in [c["entity"] for c in decision.conflicts]


def test_adopting_the_same_plan_again_stamps_nothing() -> None:
    """Writing what is there stamps nothing, for a plan as for its tasks."""
    story = Story("planning")
    story.ok(plan(planned("a"), planned("b", depends_on=["a"])))
    before = story.revision
    story.ok(plan(planned("a"), planned("b", depends_on=["a"])))
    story.ok(fact("f"), expected_revision=before, reads=["plan", "task/a", "task/b"])


@pytest.mark.parametrize(
    ("first", "again", "changes"),
    [
        ("p", ("p",), False),
        ("pr", ("p",), True),
        ("rp", ("p",), False),
        ("pq", ("q",), True),
        ("pq", ("p", "q"), False),
        ("rpq", ("q", "p"), True),
        ("r", (), False),
        ("rp", (), True),
        ("", (), False),
        ("r", ("n",), True),
    ],
)
def test_the_plan_is_stamped_if_its_ids_change(
    first: str, again: tuple[str, ...], changes: bool
) -> None:
    """The plan's value is its ids: those that stay come first, then those that are given."""
    story = Story("running")
    story.ok(fact("f"), *[task(id) for id in first])
    if "r" in first:
        story.ok(start("r"))
    before, ids = story.revision, story.doc["plan"]
    story.ok(plan(*[planned(id) for id in again]))
    assert (story.doc["plan"] != ids) is changes
    late = {"reads": ["plan"], "expected_revision": before}
    if changes:
        story.conflict("plan", events=[fact("g")], **late)
    else:
        story.ok(fact("g"), **late)


def test_a_plan_in_another_order_stamps_the_plan_alone() -> None:
    """The same tasks in another order change the plan, not the tasks."""
    story = Story("planning")
    story.ok(plan(planned("a"), planned("b")))
    before = story.revision
    story.ok(plan(planned("b"), planned("a")))
    late = {"events": [fact("f")], "expected_revision": before}
    story.conflict("plan", reads=["plan", "task/a", "task/b"], **late)
    assert story.doc["plan"] == ["b", "a"]


def test_a_task_event_conflicts_with_a_change_of_its_task_only() -> None:
    """A task event compares its own task, not the others."""
    story = Story("running")
    story.ok(task("a"), task("b"))
    before = story.revision
    story.ok(ev("TaskBlocked", task_id="a", reason="r"))
    story.ok(ev("TaskBlocked", task_id="b", reason="r"), expected_revision=before)
    story.conflict("task/a", events=[ev("TaskCancelled", task_id="a")], expected_revision=before)


def test_starting_a_task_reads_its_dependencies() -> None:
    """TaskStarted reads dependencies: one that changed since is a conflict."""
    story = Story("running")
    story.ok(task("a"))
    story.ok(task("b", depends_on=["a"]))
    story.ok(start("a"))
    before = story.revision
    story.ok(ev("TaskCompleted", task_id="a"))
    story.conflict("task/a", events=[start("b")], expected_revision=before)
    story.ok(start("b"))


def test_adding_a_task_reads_its_dependencies() -> None:
    """TaskAdded with depends_on reads those tasks and needs an expectation; without, neither."""
    story = Story("running")
    story.ok(task("a"))
    before = story.revision
    story.ok(ev("TaskBlocked", task_id="a", reason="r"))
    story.conflict("task/a", events=[task("b", depends_on=["a"])], expected_revision=before)
    story.no("EXPECTATION_REQUIRED", task("b", depends_on=["a"]), expected_revision=None)
    story.ok(task("b", depends_on=[]), expected_revision=None)
    story.ok(task("c"), expected_revision=None)
