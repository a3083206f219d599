"""What an agent author writes: a plan, a step for each task, and effects with their reconcilers.

Invariants:
- An agent holds functions and no state: any number of workers, in any processes, may use it.
- An effect without a reconciler is one of which nobody can tell: a person is asked.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foldlog.errors import Usage
from foldlog.results import RunState, Value

Json = dict[str, Any]
Function = Callable[..., Any]


class EffectCall(Value):
    """An effect as its function and its reconciler see it."""

    __slots__ = ()

    id: str
    kind: str
    target: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A reconciler's answer: it happened. ``evidence`` is a reference to where that stands."""

    evidence: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A reconciler's answer: it did not happen and will not; it may be tried again.

    Only for what is certain to stay so: no request may be on its way any more, or the other side
    refuses it because this key was given up there. Then ``key_given_up``: the next attempt has
    another key. Otherwise it has the same one, so that a world that knows keys takes only one.
    """

    evidence: str
    key_given_up: bool = False


@dataclass(frozen=True, slots=True)
class CannotTell:
    """A reconciler's answer: nobody can tell by asking, so a person is asked."""

    reason: str


Verdict = Succeeded | Failed | CannotTell


class EffectKind:
    """One way to act on the outside world: how it is done, and how it is found out later."""

    def __init__(self, kind: str, function: Function) -> None:
        self.kind, self.function = kind, function
        self.reconcile: Callable[[EffectCall], Any] = lambda effect: CannotTell(
            f"no way to ask {effect.target} about an effect of kind {kind}"
        )
        self.__doc__ = function.__doc__

    def reconciler(self, function: Callable[[EffectCall], Any]) -> Callable[[EffectCall], Any]:
        """Decorates the function that asks the other side: Succeeded, Failed or CannotTell."""
        self.reconcile = function
        return function


class Agent:
    """Steps by task id, a plan, effects by kind."""

    def __init__(self) -> None:
        self._steps: dict[str, Function] = {}
        self._planner: Function | None = None
        self.effects: dict[str, EffectKind] = {}

    # Decorators

    def step(self, task: Any = None) -> Any:
        """Decorates the step of a task; the task's id is the function's name unless given.

        ``task`` may end in ``*``: then it is a prefix, and the longest that fits counts. The step
        gets the claimed run and returns the evidence that its task is done, a reference.
        """
        if callable(task):
            return self._add(task.__name__, task)
        return lambda function: self._add(task or function.__name__, function)

    def _add(self, task: str, function: Function) -> Function:
        if task in self._steps:
            raise Usage(f"there is a step for {task!r} already")
        self._steps[task] = function
        return function

    def plan(self, function: Function) -> Function:
        """Decorates the function that makes the plan: it gets the claimed run, returns tasks."""
        self._planner = function
        return function

    def effect(self, kind: str) -> Callable[[Function], EffectKind]:
        """Decorates a function that acts on the outside world; it gets an ``EffectCall`` first.

        It returns a reference to what it did, or None; it raises NotDone if the other side has
        certainly not done it. Whatever else it raises leaves the effect in doubt.
        """

        def add(function: Function) -> EffectKind:
            if kind in self.effects:
                raise Usage(f"there is an effect of kind {kind!r} already")
            self.effects[kind] = EffectKind(kind, function)
            return self.effects[kind]

        return add

    # What the worker asks

    @property
    def planner(self) -> Function:
        """The plan's function; without one the steps are the plan, in the order of the file."""
        return self._planner or (lambda run: self._tasks_of_steps())

    def _tasks_of_steps(self) -> list[Json]:
        ids = [id for id in self._steps if not id.endswith("*")]
        tasks = []
        for id, before in zip(ids, [None, *ids], strict=False):
            title = (inspect.getdoc(self._steps[id]) or id).split("\n")[0]
            tasks.append({"id": id, "title": title, "depends_on": [before] if before else []})
        return tasks

    def step_for(self, task_id: str) -> Function | None:
        """The step of a task; None if this agent has none."""
        if task_id in self._steps:
            return self._steps[task_id]
        fits = [id for id in self._steps if id.endswith("*") and task_id.startswith(id[:-1])]
        return self._steps[max(fits, key=len)] if fits else None

    def reconcile(self, effect: EffectCall) -> Any:
        """What became of an effect, by the reconciler of its kind."""
        if (kind := self.effects.get(effect.kind)) is not None:
            return kind.reconcile(effect)
        return CannotTell(f"this worker knows no effect of kind {effect.kind}")


def new_plan(tasks: list[Any], state: RunState) -> list[Json]:
    """The tasks of a plan that may be given: those that are no longer pending stay as they are."""
    settled = {task.id for task in state.tasks if task.status != "pending"}
    plain = [task if isinstance(task, dict) else task.to_dict() for task in tasks]
    return [task for task in plain if task["id"] not in settled]
