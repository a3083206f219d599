"""The table of event types: what each reads, writes, commutes with, and who may propose it.

Everything that treats event types differently asks this table: conflicts (step 6), the need of an
expectation, control, reports, authors' rights, the rules and the reducer. Its columns are those
of CONTRACT section 2; the source of a row is the row of the same name there.

Entity templates name what a row touches in terms of its event:

==========================  ======================================================
``goal``                    an entity that exists once
``fact/{fact.id}``          the entity that this field names; none if it is absent
``task/{task.depends_on}``  each entity of a list
``task/*``                  every entity of the collection, also those that left it
``task/@dependencies``      what the task named by ``task_id`` depends on
``task/@replanned``         the tasks that a plan adds or removes
``status?recoverable``      only if this field of the event is true
``*/*``                     everything that the run has or had
==========================  ======================================================

Invariants:
- One row per event type of ``shapes.FIELDS``, and no other place lists event types by what they
  touch.
- A reducer stamps nothing outside ``writes`` and ``also``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

from foldlog.core import (
    budgets,
    checkpoints,
    conflicts,
    control,
    effects,
    knowledge,
    leases,
    lifecycle,
    tasks,
)
from foldlog.core.context import Context, Event, Refusal
from foldlog.core.shapes import CONTROL_TYPES
from foldlog.core.state import (
    COLLECTION_KINDS,
    SINGLE_KINDS,
    Address,
    Draft,
    RunState,
    enlisted,
)

Check = Callable[[Draft, Event, Context], Refusal | None]
Apply = Callable[[Draft, Event, Context], None]
Shape = Callable[[Any], Any]

AUTHORITIES = frozenset({"user", "operator", "system"})
SYSTEM = frozenset({"system"})


@dataclass(frozen=True, slots=True)
class EventType:
    """One row.

    ``reads`` and ``writes`` are compared with the expected revision; ``also`` is what the event
    may change besides, uncompared. ``commutes`` is the contract's ``+``, taken away by any field
    of ``unless`` that is there and not empty; ``floats`` is its ``~``: no expectation needed.
    ``shape`` checks the fields of a plug-in's event; those of foldlog's own are in ``shapes``.
    """

    name: str
    apply: Apply
    check: Check | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    commutes: bool = False
    unless: tuple[str, ...] = ()
    floats: bool = False
    report: bool = False
    authors: frozenset[str] | None = None
    shape: Shape | None = None

    @property
    def control(self) -> bool:
        """Whether the event always takes effect; such batches hold nothing else."""
        return self.name in CONTROL_TYPES

    def is_plus(self, event: Event) -> bool:
        """Whether this event commutes with every other ``+`` on another id."""
        return self.commutes and not any(_named(event, path) for path in self.unless)

    def needs_expectation(self, event: Event) -> bool:
        return not (self.control or self.floats or self.is_plus(event))


def _named(event: Event, path: str) -> list[Any]:
    """The values at a dotted path of an event; each item of a list; nothing if absent or false."""
    value: Any = event
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return []
        value = value[part]
    if isinstance(value, list):
        return value
    return [] if value is None or value is False else [value]


def address(name: str) -> Address:
    """The address of an entity by its name (``task/task_3``, ``goal``)."""
    kind, _, id = name.partition("/")
    return (kind, id)


def touched(templates: tuple[str, ...], event: Event, state: RunState) -> Iterator[Address]:
    """The entities that these templates name for this event, on the state before its batch."""
    for template in templates:
        name, _, condition = template.partition("?")
        if condition and not any(_named(event, condition)):
            continue
        if name == WHOLE:
            yield from _everything(state)
            continue
        kind, id = address(name)
        if not id.startswith(("{", "@", "*")):
            yield (kind, id)
        elif id.startswith("{"):
            yield from ((kind, value) for value in _named(event, id[1:-1]))
        else:
            yield from ((kind, value) for value in _SETS[name](event, state))


def _everything(state: RunState) -> Iterator[Address]:
    yield from ((kind, "") for kind in sorted(SINGLE_KINDS))
    yield from (("budget", "tokens"), ("budget", "deadline"))
    for kind in sorted(COLLECTION_KINDS) + [kind for kind, _ in state.slots.scan("kinds")]:
        yield from ((kind, id) for id in _all(kind)({}, state))


def _all(kind: str) -> Callable[[Event, RunState], Iterator[str]]:
    def ids(event: Event, state: RunState) -> Iterator[str]:
        yield from (id for id, _ in state.slots.scan(kind))
        yield from (id for id, _ in state.slots.scan("gone." + kind))

    return ids


def _dependencies(event: Event, state: RunState) -> Iterator[str]:
    task = state.value("task", event["task_id"])
    yield from task["depends_on"] if task else ()


def _replanned(event: Event, state: RunState) -> Iterator[str]:
    yield from (task["id"] for task in event["tasks"])
    for id in enlisted(state, "open"):
        if state.value("task", id)["status"] == "pending":
            yield id


_SETS: dict[str, Callable[[Event, RunState], Iterator[str]]] = {
    "task/*": _all("task"),
    "effect/*": _all("effect"),
    "task/@dependencies": _dependencies,
    "task/@replanned": _replanned,
}

EVERYTHING = ("*",)

WHOLE = "*/*"
"""What an event type touches that does not say what it touches."""

_ROWS = (
    EventType(
        "RunStarted",
        lifecycle.start_run,
        also=(
            *("goal", "status", "workspace", "agent_version", "rules"),
            *("budget/tokens", "budget/deadline"),
        ),
    ),
    EventType(
        "RunTransitioned",
        lifecycle.transition,
        lifecycle.check_transition,
        writes=("status",),
        also=("wait",),
    ),
    EventType(
        "PlanAdopted",
        tasks.adopt_plan,
        tasks.check_plan,
        reads=("plan",),
        writes=("plan", "task/@replanned"),
    ),
    EventType("PhaseChanged", lifecycle.change_phase, writes=("phase",)),
    EventType(
        "GoalChanged",
        control.change_goal,
        writes=("goal",),
        also=("task/*",),
        authors=AUTHORITIES,
    ),
    EventType(
        "RunCancelled",
        control.cancel_run,
        writes=("status",),
        also=("wait", "lease"),
        authors=AUTHORITIES,
    ),
    EventType(
        "PermissionRevoked",
        control.revoke_permission,
        also=("permission/{permission}",),
        authors=AUTHORITIES,
    ),
    EventType(
        "PermissionRestored",
        control.restore_permission,
        also=("permission/{permission}",),
        authors=AUTHORITIES,
    ),
    EventType(
        "BudgetSet",
        budgets.set_budget,
        also=("budget/tokens", "budget/deadline"),
        authors=AUTHORITIES,
    ),
    EventType(
        "AgentVersionChanged",
        control.change_agent_version,
        also=("agent_version",),
        authors=AUTHORITIES,
    ),
    EventType(
        "RulesActivated",
        control.activate_rules,
        also=("rules",),
        authors=AUTHORITIES,
    ),
    EventType(
        "RunReleased",
        control.release,
        control.check_release,
        authors=AUTHORITIES,
    ),
    EventType(
        "RunFinished",
        lifecycle.finish,
        lifecycle.check_finish,
        reads=("goal", "task/*", "effect/*"),
        writes=("status",),
        also=("wait", "lease"),
    ),
    EventType(
        "FactConfirmed",
        knowledge.confirm_fact,
        knowledge.check_fact,
        writes=(
            "fact/{fact.id}",
            "hypothesis/{replaces_hypothesis_id}",
            "fact/{supersedes_fact_id}",
        ),
        commutes=True,
        unless=("replaces_hypothesis_id", "supersedes_fact_id"),
    ),
    EventType(
        "FactRetracted",
        knowledge.retract_fact,
        knowledge.check_retraction,
        writes=("fact/{fact_id}",),
    ),
    EventType(
        "HypothesisProposed",
        knowledge.propose_hypothesis,
        knowledge.check_hypothesis,
        writes=("hypothesis/{hypothesis.id}",),
        commutes=True,
    ),
    EventType(
        "HypothesisRevised",
        knowledge.revise_hypothesis,
        knowledge.check_named_hypothesis,
        writes=("hypothesis/{hypothesis_id}",),
    ),
    EventType(
        "HypothesisFalsified",
        knowledge.falsify_hypothesis,
        knowledge.check_named_hypothesis,
        writes=("hypothesis/{hypothesis_id}",),
    ),
    EventType(
        "QuestionOpened",
        knowledge.open_question,
        knowledge.check_question,
        writes=("question/{question.id}",),
        commutes=True,
    ),
    EventType(
        "QuestionAnswered",
        knowledge.answer_question,
        knowledge.check_answer,
        writes=("question/{question_id}",),
    ),
    EventType(
        "EnvironmentObserved",
        knowledge.observe,
        writes=("observation/{subject}",),
        commutes=True,
    ),
    EventType(
        "ArtifactAdded",
        knowledge.add_artifact,
        knowledge.check_artifact,
        writes=("artifact/{artifact.id}",),
        commutes=True,
    ),
    EventType(
        "TaskAdded",
        tasks.add,
        tasks.check_add,
        reads=("task/{task.depends_on}",),
        writes=("task/{task.id}",),
        also=("plan",),
        commutes=True,
        unless=("task.depends_on",),
    ),
    EventType(
        "TaskStarted",
        tasks.start,
        tasks.check_start,
        reads=("task/@dependencies",),
        writes=("task/{task_id}",),
    ),
    EventType(
        "TaskBlocked",
        tasks.block,
        tasks.check_from("pending", "running"),
        writes=("task/{task_id}",),
    ),
    EventType(
        "TaskUnblocked", tasks.unblock, tasks.check_from("blocked"), writes=("task/{task_id}",)
    ),
    EventType(
        "TaskCompleted", tasks.complete, tasks.check_from("running"), writes=("task/{task_id}",)
    ),
    EventType(
        "TaskFailed",
        tasks.fail,
        tasks.check_from("running", "blocked"),
        writes=("task/{task_id}",),
    ),
    EventType(
        "TaskCancelled",
        tasks.cancel,
        tasks.check_from("pending", "running", "blocked"),
        writes=("task/{task_id}",),
    ),
    EventType(
        "ToolStarted",
        effects.start_tool,
        effects.check_tool_start,
        reads=("task/{task_id}",),
        writes=("tool/{step_id}",),
        commutes=True,
    ),
    EventType(
        "ToolSucceeded",
        effects.end_tool,
        effects.check_tool_end,
        writes=("tool/{step_id}",),
        commutes=True,
        report=True,
    ),
    EventType(
        "ToolFailed",
        effects.end_tool,
        effects.check_tool_end,
        writes=("tool/{step_id}", "status?recoverable"),
        commutes=True,
        unless=("recoverable",),
        floats=True,
        report=True,
    ),
    EventType(
        "WaitStarted",
        lifecycle.start_wait,
        lifecycle.check_wait,
        writes=("status",),
        also=("wait", "signal/*"),
    ),
    EventType(
        "SignalReceived",
        lifecycle.receive_signal,
        lifecycle.check_signal,
        writes=("signal/{signal_id}",),
        also=("status", "wait"),
        commutes=True,
    ),
    EventType(
        "WaitTimedOut",
        lifecycle.time_out,
        lifecycle.check_time_out,
        writes=("status",),
        also=("wait",),
        floats=True,
        authors=SYSTEM,
    ),
    EventType("BudgetSpent", budgets.spend, also=("budget/tokens",), commutes=True, report=True),
    EventType(
        "EffectIntended",
        effects.intend,
        effects.check_intent,
        reads=("goal",),
        writes=("effect/{effect.id}",),
    ),
    *(
        EventType(
            name,
            effects.settle,
            effects.check_outcome,
            writes=("effect/{effect_id}",),
            floats=True,
            report=True,
        )
        for name in ("EffectSucceeded", "EffectFailed", "EffectUnknown", "EffectReconciled")
    ),
    EventType("WorkspaceMoved", control.move_workspace, writes=("workspace",)),
    EventType(
        "CheckpointTaken",
        checkpoints.take,
        checkpoints.check,
        writes=("checkpoint",),
        floats=True,
    ),
    EventType(
        "LeaseAcquired", leases.acquire, leases.check_acquire, writes=("lease",), floats=True
    ),
    EventType("LeaseRenewed", leases.renew, leases.check_held, writes=("lease",), floats=True),
    EventType("LeaseReleased", leases.give_up, leases.check_held, writes=("lease",), floats=True),
    EventType(
        "ConflictResolved",
        conflicts.close,
        conflicts.check,
        writes=("conflict/{conflict_id}",),
        also=EVERYTHING,
        floats=True,
        authors=AUTHORITIES,
    ),
    EventType("Recorded", lifecycle.no_change, commutes=True),
)

Catalogue = Mapping[str, EventType]


def unknown_type(name: str) -> EventType:
    """The row of an event type that the rules do not have: whoever meets it refuses it."""
    return EventType(name, lifecycle.no_change)


CATALOGUE: Catalogue = {row.name: row for row in _ROWS}

RULES: Mapping[int, Catalogue] = {1: CATALOGUE}
"""Every rules version this build can decide under; a version stays while a run may use it."""

RULES_DEFAULT = max(RULES)
"""The version pinned on a run whose RunStarted names none."""


def fingerprints(catalogue: Catalogue) -> dict[str, str]:
    """What tells each row of a rules table from a changed one: its columns and the names of its
    functions, less what is as by default.

    What a function does is not seen; a change there that changes states is a new version.
    """
    return {name: _fingerprint(catalogue[name]) for name in sorted(catalogue)}


def _fingerprint(row: EventType) -> str:
    digest = blake2b(digest_size=8)
    for column in fields(EventType):
        value = getattr(row, column.name)
        if value == column.default:
            continue
        if callable(value):
            value = getattr(value, "__qualname__", type(value).__qualname__)
        elif isinstance(value, frozenset):
            value = sorted(value)
        digest.update(f"{column.name}\0{value!r}\0".encode())
    return digest.hexdigest()
