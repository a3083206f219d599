"""What a Run State says about going on: work left, tasks that nobody can do, waits that are over.

Invariants:
- Functions of the state alone.
"""

from foldlog.results import RunState, Value

EFFECT, BLOCKED = "effect/", "blocked/"
"""Begin the keys of waits that the kit begins itself, and ends itself once their cause is gone."""

RETRY, PLAN, REFUSED, STEP = "retry/", "retry/plan/", "refused/", "step/"
"""Begin the keys of its other waits: until it is time to try (a plan) again, or for a person."""

OWN_KEYS = (EFFECT, BLOCKED, RETRY, REFUSED, STEP)
"""How no key of an author's begins: a wait of such a key is the kit's to end."""

OPEN = ("pending", "running", "blocked")
IN_DOUBT = ("intended", "unknown")
HOPELESS = ("failed", "cancelled", "invalidated")


def doubtful(state: RunState) -> list[Value]:
    """The effects of which nobody knows whether they happened."""
    return [effect for effect in state.effects if effect.status in IN_DOUBT]


def work_left(state: RunState) -> bool:
    """Whether a task is running, or may be started."""
    return bool(state.active_task_id or state.next_task_ids)


def blocked(state: RunState) -> list[Value]:
    """The tasks that somebody has blocked."""
    return [task for task in state.tasks if task.status == "blocked"]


def undone(state: RunState) -> list[str]:
    """The ids of tasks that failed, or depend on one that will never be completed."""
    lost = {task.id for task in state.tasks if task.status in HOPELESS}
    waiting = [task for task in state.tasks if task.status == "pending"]
    stuck = [task.id for task in waiting if lost & set(task.depends_on)]
    return [task.id for task in state.tasks if task.status == "failed"] + stuck


def ends_by_itself(state: RunState) -> bool:
    """Whether a wait that the kit began has lost its cause, so that no signal has to come."""
    key: str = state.waiting.key if state.waiting is not None else ""
    if key.startswith(EFFECT):
        return not any(effect.id == key.removeprefix(EFFECT) for effect in doubtful(state))
    return key.startswith(BLOCKED) and work_left(state)
