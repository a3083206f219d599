"""Tasks and the plan: what a run intends to do, in which order, and how far it is.

A task's hidden part is ``{place, start?, was?}``: its number in plan order, the number of its
latest start, and what it was before it was blocked. The set ``open`` (each pending, running or
blocked task) and the index ``running`` (starts, latest first -> id) make questions cheap.

Invariants:
- The plan is the tasks in the order of their places; a place is never given twice.
- The indexes and ``running_count`` hold exactly what the tasks' statuses say.
- Dependencies form no cycle.
"""

from typing import Any

from foldlog.core.budgets import exhausted
from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.scopes import GoalScope
from foldlog.core.state import (
    Draft,
    Slot,
    delist,
    enlist,
    enlisted,
    ordinal_latest_first,
)

OPEN = ("pending", "running", "blocked")


def _write(draft: Draft, value: dict[str, Any], hidden: dict[str, Any]) -> None:
    """Store a task and bring the indexes in line with its new status and hidden part."""
    id, status = value["id"], value["status"]
    old = draft.get("task", id)
    was_open = old is not None and old.value["status"] in OPEN
    if old is not None:
        _stop(draft, old)
    draft.put("task", id, value, hidden)
    if status in OPEN and not was_open:
        enlist(draft, "open", id)
    if was_open and status not in OPEN:
        delist(draft, "open", id)
    if status == "running":
        draft.index("running", ordinal_latest_first(hidden["start"]), id)
        draft.count(running_count=1)


def _stop(draft: Draft, slot: Slot) -> None:
    if slot.value["status"] == "running":
        draft.unindex("running", ordinal_latest_first(slot.hidden["start"]))
        draft.count(running_count=-1)


def _change(draft: Draft, id: str, *, hidden: dict[str, Any] | None = None, **values: Any) -> None:
    """Change some fields of a task that exists; whatever else it becomes, it is not blocked."""
    slot = draft.get("task", id)
    assert slot is not None, id
    value = {**slot.value, "blocked_by": None, **values}
    _write(draft, value, slot.hidden if hidden is None else hidden)


def _add(draft: Draft, task: dict[str, Any]) -> None:
    value = {
        "id": task["id"],
        "title": task["title"],
        "status": "pending",
        "depends_on": sorted(task.get("depends_on", [])),
        "scope": task.get("scope", []),
        "blocked_by": None,
        "evidence": None,
        "worker": None,
    }
    _write(draft, value, {"place": draft.header.next_place})
    draft.count(next_place=1)


def _missing(draft: Draft, id: str) -> Refusal | None:
    return None if draft.get("task", id) is not None else invalid(f"no task {id!r}", "task_id")


# Adding and planning


def check_add(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``TaskAdded``: the id is new, what it depends on is there."""
    task = event["task"]
    if draft.used("task", task["id"]):
        return invalid(f"task id {task['id']!r} was used before", "task.id")
    for place, dependency in enumerate(task.get("depends_on", [])):
        if draft.get("task", dependency) is None:
            return invalid(f"no task {dependency!r} to depend on", f"task.depends_on[{place}]")
    return None


def add(draft: Draft, event: Event, ctx: Context) -> None:
    """``TaskAdded``: pending, at the end of the plan."""
    _add(draft, event["task"])
    draft.mark("plan")


def pending_tasks(draft: Draft) -> list[str]:
    """Ids of the pending tasks in plan order; as dear as there are open tasks."""
    tasks = [(id, slot) for id in enlisted(draft, "open") if (slot := draft.get("task", id))]
    pending = [item for item in tasks if item[1].value["status"] == "pending"]
    return [id for id, _ in sorted(pending, key=lambda item: item[1].hidden["place"])]


def check_plan(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``PlanAdopted``: status, ids, dependencies within the new plan, no circle."""
    status = draft.value("status")
    if status not in ("planning", "running"):
        return invalid(f"a plan is adopted in planning or running, not in {status}")
    given = {task["id"]: task for task in event["tasks"]}
    seen: set[str] = set()
    for place, task in enumerate(event["tasks"]):
        path = f"tasks[{place}]"
        if (refusal := _check_planned(draft, task, given, seen, path)) is not None:
            return refusal
        seen.add(task["id"])
    if cycle := _cycle(draft, given):
        return invalid(f"the tasks depend on each other in a circle: {' -> '.join(cycle)}", "tasks")
    return None


def _check_planned(
    draft: Draft, task: dict[str, Any], given: dict[str, Any], seen: set[str], path: str
) -> Refusal | None:
    id = task["id"]
    if id in seen:
        return invalid(f"task {id!r} is given twice", f"{path}.id")
    slot = draft.get("task", id)
    if slot is not None and slot.value["status"] != "pending":
        return invalid(f"task {id!r} is {slot.value['status']} and stays as it is", f"{path}.id")
    if slot is None and draft.used("task", id):
        return invalid(f"task id {id!r} was used before", f"{path}.id")
    for place, dependency in enumerate(task.get("depends_on", [])):
        other = draft.get("task", dependency)
        stays = other is not None and other.value["status"] != "pending"
        if dependency not in given and not stays:
            message = f"{id!r} depends on {dependency!r}, which is neither given nor stays"
            return invalid(message, f"{path}.depends_on[{place}]")
    return None


def _cycle(draft: Draft, given: dict[str, Any]) -> list[str]:
    """A circle of dependencies through the given tasks and those that stay; [] if there is none."""
    done: set[str] = set()
    for start in given:
        trail: list[str] = []
        on_trail: set[str] = set()
        todo: list[tuple[str, bool]] = [(start, False)]
        while todo:
            id, leaving = todo.pop()
            if leaving:
                on_trail.discard(trail.pop())
                done.add(id)
            elif id in on_trail:
                return [*trail[trail.index(id) :], id]
            elif id not in done:
                trail.append(id)
                on_trail.add(id)
                todo.append((id, True))
                todo.extend((other, False) for other in _dependencies(draft, given, id))
    return []


def _dependencies(draft: Draft, given: dict[str, Any], id: str) -> list[str]:
    if id in given:
        return list(given[id].get("depends_on", []))
    value = draft.value("task", id)
    return [] if value is None else value["depends_on"]


def adopt_plan(draft: Draft, event: Event, ctx: Context) -> None:
    """Pending tasks go unless given again; the others stay first; the given ones follow."""
    given = [task["id"] for task in event["tasks"]]
    pending = pending_tasks(draft)
    same = pending == given and (not given or _plan_order(draft)[-len(given) :] == given)
    again = set(given)
    # In plan order: who leaves first decides what stands where in the set of open tasks.
    for id in [id for id in pending if id not in again]:
        delist(draft, "open", id)
        draft.remove("task", id)
    for task in event["tasks"]:
        _add(draft, task)
    if not same:
        draft.mark("plan")


def _plan_order(draft: Draft) -> list[str]:
    """Ids of all tasks in plan order; a walk over the tasks, for the rare plan adopted again."""
    tasks = sorted(draft.scan("task"), key=lambda item: item[1].hidden["place"])
    return [id for id, _ in tasks]


# One task


def check_start(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``TaskStarted``: budget, dependencies, then the run's status and the task's."""
    id = event["task_id"]
    task = draft.value("task", id)
    if (refusal := exhausted(draft, ctx)) is not None:
        return refusal
    for dependency in task["depends_on"] if task else ():
        other = draft.value("task", dependency)
        if other is None or other["status"] != "completed":
            status = "gone" if other is None else other["status"]
            message = f"{id!r} depends on {dependency!r}, which is {status}"
            return Refusal("DEPENDENCY_UNMET", message, field="task_id")
    if task is None:
        return _missing(draft, id)
    if draft.value("status") != "running":
        return invalid(f"a task starts in status running, not in {draft.value('status')}")
    if task["status"] == "pending" or (ctx.takes_over and of_another(task, event, ctx.author.id)):
        return None
    return invalid(f"task {id!r} is {task['status']}", "task_id")


def of_another(task: dict[str, Any], event: Event, author_id: str) -> bool:
    """Whether the task runs for another worker than the one this TaskStarted names."""
    running: bool = task["status"] == "running"
    return running and task["worker"] != event.get("worker", author_id)


def start(draft: Draft, event: Event, ctx: Context) -> None:
    """``TaskStarted``: running, the latest start, for the worker named or the author."""
    slot = draft.get("task", event["task_id"])
    assert slot is not None
    hidden = {"place": slot.hidden["place"], "start": draft.header.next_start}
    draft.count(next_start=1)
    worker = event.get("worker", ctx.author.id)
    _change(draft, event["task_id"], hidden=hidden, status="running", worker=worker)


def leave_to_others(draft: Draft) -> None:
    """Nobody is at work any more: running tasks are pending, as are blocked ones once unblocked."""
    for id in sorted(enlisted(draft, "open")):
        slot = draft.get("task", id)
        assert slot is not None, id
        hidden = {"place": slot.hidden["place"]}
        if slot.value["status"] == "running":
            _change(draft, id, hidden=hidden, status="pending", worker=None)
        elif slot.hidden.get("was") == "running":
            reason, hidden["was"] = slot.value["blocked_by"], "pending"
            _change(draft, id, hidden=hidden, blocked_by=reason, worker=None)


def check_from(*allowed: str) -> Any:
    """A check that the named task exists and has one of these statuses."""

    def check(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
        task = draft.value("task", event["task_id"])
        if task is None:
            return _missing(draft, event["task_id"])
        if task["status"] not in allowed:
            want = " or ".join(allowed)
            message = f"task {event['task_id']!r} is {task['status']}, not {want}"
            return invalid(message, "task_id")
        return None

    return check


def block(draft: Draft, event: Event, ctx: Context) -> None:
    """``TaskBlocked``: blocked by a reason, and what it was is kept."""
    slot = draft.get("task", event["task_id"])
    assert slot is not None
    hidden = {**slot.hidden, "was": slot.value["status"]}
    _change(draft, event["task_id"], hidden=hidden, status="blocked", blocked_by=event["reason"])


def unblock(draft: Draft, event: Event, ctx: Context) -> None:
    """``TaskUnblocked``: back to what it was; no start, so its place among starts stays."""
    slot = draft.get("task", event["task_id"])
    assert slot is not None
    hidden = {name: value for name, value in slot.hidden.items() if name != "was"}
    _change(draft, event["task_id"], hidden=hidden, status=slot.hidden["was"])


def complete(draft: Draft, event: Event, ctx: Context) -> None:
    """``TaskCompleted``: with its evidence."""
    _change(draft, event["task_id"], status="completed", evidence=event["evidence"])


def fail(draft: Draft, event: Event, ctx: Context) -> None:
    """``TaskFailed``: ended without evidence."""
    _change(draft, event["task_id"], status="failed")


def cancel(draft: Draft, event: Event, ctx: Context) -> None:
    """``TaskCancelled``: ended unneeded."""
    _change(draft, event["task_id"], status="cancelled")


def invalidate_outside(draft: Draft, scope: dict[str, Any]) -> None:
    """Pending, running and blocked tasks out of a goal's scope become ``invalidated``."""
    goal = GoalScope(scope)
    for id in sorted(enlisted(draft, "open")):
        if not goal.has(draft.value("task", id)["scope"]):
            _change(draft, id, status="invalidated")
