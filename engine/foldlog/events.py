"""Typed events: what a caller proposes, with names and types that an editor knows.

Invariants:
- One class per event type; keywords are the fields of the catalogue, `type` is fixed.
- A keyword that is missing or unknown raises pydantic's ValidationError, which names it. Values are
  not judged here: that is done once, for every door, by `core.proposals`, and a bad value is an
  outcome (MALFORMED), never an exception.
- Inner objects may be the classes of this module or plain dicts.
- `to_dict()` is the event as a proposal has it; optional fields that are None are left out, but
  BudgetSet keeps a None that was given: it means unlimited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, SkipValidation

from foldlog.core.values import LEVELS_MAX

__all__ = [
    "EVENTS", "PARTS", "AgentVersionChanged", "Artifact", "ArtifactAdded", "BudgetSet",
    "BudgetSpent", "Budgets", "Checkpoint", "CheckpointTaken", "ConflictResolved", "Effect",
    "EffectFailed", "EffectIntended", "EffectReconciled", "EffectSucceeded", "EffectUnknown",
    "EnvironmentObserved", "Event", "Fact", "FactConfirmed", "FactRetracted", "ForkedFrom",
    "Goal", "GoalChanged", "Hypothesis", "HypothesisFalsified", "HypothesisProposed",
    "HypothesisRevised", "LeaseAcquired", "LeaseReleased", "LeaseRenewed", "Part",
    "PermissionRestored", "PermissionRevoked", "PhaseChanged", "PlanAdopted", "Question",
    "QuestionAnswered", "QuestionOpened", "Recorded", "Requirement", "RulesActivated",
    "RunCancelled", "RunFinished", "RunReleased", "RunStarted", "RunTransitioned", "Scope",
    "SignalReceived", "Task", "TaskAdded", "TaskBlocked", "TaskCancelled", "TaskCompleted",
    "TaskFailed", "TaskStarted", "TaskUnblocked", "ToolFailed", "ToolStarted", "ToolSucceeded",
    "WaitStarted", "WaitTimedOut", "Workspace", "WorkspaceMoved",
]  # fmt: skip

_T = TypeVar("_T")
_As = Annotated[_T, SkipValidation]  # known to editors and type checkers, let through unjudged
_Object = dict[str, Any]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keeps_none: ClassVar[bool] = False

    def to_dict(self, levels: int = LEVELS_MAX) -> dict[str, Any]:
        """The JSON of a proposal, in the order of the fields."""
        shown: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value is None and not field.is_required():
                if not (self.keeps_none and name in self.model_fields_set):
                    continue
            shown[name] = plain(value, levels - 1)
        return shown


def plain(value: Any, levels: int = LEVELS_MAX) -> Any:
    """A value with events and parts in it as JSON; what is nested too deep is left as it is."""
    if levels > 0 and isinstance(value, _Model):
        return value.to_dict(levels)
    if levels > 0 and isinstance(value, Mapping):
        return {key: plain(item, levels - 1) for key, item in value.items()}
    if levels > 0 and isinstance(value, (list, tuple)):
        return [plain(item, levels - 1) for item in value]
    return value


class Part(_Model):
    """An object inside an event."""


class Event(_Model):
    """One event of a batch; `type` tells which."""

    type: str


# --- inner objects ------------------------------------------------------------------------------


class Scope(Part):
    """What a goal touches and what it leaves alone: `/`-paths."""

    include: _As[Sequence[str] | None] = None
    exclude: _As[Sequence[str] | None] = None


class Goal(Part):
    """What a run is for."""

    statement: _As[str]
    scope: _As[Scope | _Object | None] = None
    acceptance: _As[Sequence[str] | None] = None
    constraints: _As[Sequence[str] | None] = None


class Budgets(Part):
    """What a run may spend; None is unlimited."""

    tokens_remaining: _As[int | None] = None
    deadline: _As[str | None] = None


class Workspace(Part):
    """Where a run's files are, and at which commit."""

    workspace_id: _As[str]
    base_commit: _As[str | None] = None
    current_commit: _As[str | None] = None
    uncommitted_changes: _As[str | None] = None


class ForkedFrom(Part):
    """The revision of another run that a run goes on from."""

    run_id: _As[str]
    revision: _As[int]
    chain: _As[str]


class Fact(Part):
    """What is known, with its evidence."""

    id: _As[str]
    statement: _As[str]
    evidence: _As[str | None] = None
    observed_at: _As[str | None] = None
    scope: _As[Sequence[str] | None] = None


class Hypothesis(Part):
    """What is supposed, how firmly, and what would falsify it."""

    id: _As[str]
    statement: _As[str]
    confidence: _As[int | float | str]
    falsifier: _As[str]


class Question(Part):
    """What is not known yet."""

    id: _As[str]
    text: _As[str]


class Artifact(Part):
    """Something made, by reference."""

    id: _As[str]
    uri: _As[str]
    sha256: _As[str | None] = None
    media_type: _As[str | None] = None


class Task(Part):
    """Something to be done."""

    id: _As[str]
    title: _As[str]
    depends_on: _As[Sequence[str] | None] = None
    scope: _As[Sequence[str] | None] = None


class Effect(Part):
    """One action on the outside world."""

    id: _As[str]
    kind: _As[str]
    target: _As[str]
    idempotency_key: _As[str]


class Requirement(Part):
    """The version of a subject that an effect rests on."""

    subject: _As[str]
    observed_version: _As[str]


class Checkpoint(Part):
    """A safe point inside a run."""

    id: _As[str]
    boundary: _As[
        Literal["tasks_done", "before_wait", "before_effect", "workspace_version", "lease_release"]
    ]
    task_id: _As[str | None] = None
    note: _As[str | None] = None
    data: _As[Any] = None


# --- the run ------------------------------------------------------------------------------------


class RunStarted(Event):
    """A run begins: revision 1."""

    type: Literal["RunStarted"] = "RunStarted"
    goal: _As[Goal | _Object]
    budgets: _As[Budgets | _Object | None] = None
    agent_version: _As[Mapping[str, str] | None] = None
    workspace: _As[Workspace | _Object | None] = None
    retry_limit: _As[int | None] = None
    labels: _As[Mapping[str, str] | None] = None
    rules_version: _As[int | None] = None
    forked_from: _As[ForkedFrom | _Object | None] = None


class RunTransitioned(Event):
    """The run moves to another status."""

    type: Literal["RunTransitioned"] = "RunTransitioned"
    to: _As[Literal["start", "planning", "running", "waiting", "retry", "finish"]]
    reason: _As[str | None] = None


class PlanAdopted(Event):
    """These tasks take the place of the pending ones."""

    type: Literal["PlanAdopted"] = "PlanAdopted"
    tasks: _As[Sequence[Task | _Object]]


class PhaseChanged(Event):
    """The run calls what it is at by another name."""

    type: Literal["PhaseChanged"] = "PhaseChanged"
    phase: _As[str]


class GoalChanged(Event):
    """Control: the goal is another one from here on."""

    type: Literal["GoalChanged"] = "GoalChanged"
    goal: _As[Goal | _Object]
    reason: _As[str]


class RunCancelled(Event):
    """Control: the run ends as cancelled."""

    type: Literal["RunCancelled"] = "RunCancelled"
    reason: _As[str]


class PermissionRevoked(Event):
    """Control: a tool or a kind of effect (`tool:NAME`, `effect:KIND`) may no longer be used."""

    type: Literal["PermissionRevoked"] = "PermissionRevoked"
    permission: _As[str]
    reason: _As[str]


class PermissionRestored(Event):
    """Control: takes back exactly that revocation."""

    type: Literal["PermissionRestored"] = "PermissionRestored"
    permission: _As[str]
    reason: _As[str]


class BudgetSet(Event):
    """Control: sets what may be spent. Not given: unchanged; None: unlimited."""

    keeps_none: ClassVar[bool] = True

    type: Literal["BudgetSet"] = "BudgetSet"
    tokens_remaining: _As[int | None] = None
    deadline: _As[str | None] = None


class AgentVersionChanged(Event):
    """Control: another model, prompt, set of skills, ... works on the run."""

    type: Literal["AgentVersionChanged"] = "AgentVersionChanged"
    agent_version: _As[Mapping[str, str]]


class RulesActivated(Event):
    """Control: the run is decided under this version of the rules from here on."""

    type: Literal["RulesActivated"] = "RulesActivated"
    rules_version: _As[int]


class RunReleased(Event):
    """Control: ends a quarantine."""

    type: Literal["RunReleased"] = "RunReleased"
    reason: _As[str]


class RunFinished(Event):
    """The run ends, completed or failed."""

    type: Literal["RunFinished"] = "RunFinished"
    result: _As[Literal["completed", "failed"]]
    reason: _As[str | None] = None
    result_ref: _As[str | None] = None


# --- what is known ------------------------------------------------------------------------------


class FactConfirmed(Event):
    """Something is known; it may replace a hypothesis or supersede an older fact."""

    type: Literal["FactConfirmed"] = "FactConfirmed"
    fact: _As[Fact | _Object]
    replaces_hypothesis_id: _As[str | None] = None
    supersedes_fact_id: _As[str | None] = None


class FactRetracted(Event):
    """A fact is none after all."""

    type: Literal["FactRetracted"] = "FactRetracted"
    fact_id: _As[str]
    reason: _As[str]


class HypothesisProposed(Event):
    """Something is supposed."""

    type: Literal["HypothesisProposed"] = "HypothesisProposed"
    hypothesis: _As[Hypothesis | _Object]


class HypothesisRevised(Event):
    """A hypothesis is held more or less firmly."""

    type: Literal["HypothesisRevised"] = "HypothesisRevised"
    hypothesis_id: _As[str]
    confidence: _As[int | float | str]
    reason: _As[str | None] = None


class HypothesisFalsified(Event):
    """A hypothesis is ruled out."""

    type: Literal["HypothesisFalsified"] = "HypothesisFalsified"
    hypothesis_id: _As[str]
    evidence: _As[str]


class QuestionOpened(Event):
    """Something is to be found out."""

    type: Literal["QuestionOpened"] = "QuestionOpened"
    question: _As[Question | _Object]


class QuestionAnswered(Event):
    """It has been found out."""

    type: Literal["QuestionAnswered"] = "QuestionAnswered"
    question_id: _As[str]
    answer: _As[str]
    evidence: _As[str | None] = None


class EnvironmentObserved(Event):
    """What was seen of the outside world, when, and at which version."""

    type: Literal["EnvironmentObserved"] = "EnvironmentObserved"
    subject: _As[str]
    observed_state: _As[str]
    observed_at: _As[str]
    observed_version: _As[str | None] = None
    evidence: _As[str | None] = None


class ArtifactAdded(Event):
    """Something has been made."""

    type: Literal["ArtifactAdded"] = "ArtifactAdded"
    artifact: _As[Artifact | _Object]


# --- tasks and tools ----------------------------------------------------------------------------


class TaskAdded(Event):
    """A task at the end of the plan."""

    type: Literal["TaskAdded"] = "TaskAdded"
    task: _As[Task | _Object]


class TaskStarted(Event):
    """A worker (if not given: the author) takes up a task."""

    type: Literal["TaskStarted"] = "TaskStarted"
    task_id: _As[str]
    worker: _As[str | None] = None


class TaskBlocked(Event):
    """A task cannot go on."""

    type: Literal["TaskBlocked"] = "TaskBlocked"
    task_id: _As[str]
    reason: _As[str]


class TaskUnblocked(Event):
    """A blocked task is again what it was."""

    type: Literal["TaskUnblocked"] = "TaskUnblocked"
    task_id: _As[str]


class TaskCompleted(Event):
    """A task is done, with evidence."""

    type: Literal["TaskCompleted"] = "TaskCompleted"
    task_id: _As[str]
    evidence: _As[str]


class TaskFailed(Event):
    """A task could not be done."""

    type: Literal["TaskFailed"] = "TaskFailed"
    task_id: _As[str]
    reason: _As[str]


class TaskCancelled(Event):
    """A task is not to be done any more."""

    type: Literal["TaskCancelled"] = "TaskCancelled"
    task_id: _As[str]
    reason: _As[str]


class ToolStarted(Event):
    """A tool is about to be called."""

    type: Literal["ToolStarted"] = "ToolStarted"
    step_id: _As[str]
    tool: _As[str]
    task_id: _As[str | None] = None
    arguments: _As[Mapping[str, Any] | None] = None


class ToolSucceeded(Event):
    """Report: a call came back."""

    type: Literal["ToolSucceeded"] = "ToolSucceeded"
    step_id: _As[str]
    result_ref: _As[str | None] = None
    result: _As[Any] = None


class ToolFailed(Event):
    """Report: a call failed; a recoverable failure leads to retry."""

    type: Literal["ToolFailed"] = "ToolFailed"
    step_id: _As[str]
    error: _As[str]
    recoverable: _As[bool]


# --- waits, budgets, effects, leases ------------------------------------------------------------


class WaitStarted(Event):
    """The run waits for a user, an approval, a timer or something external."""

    type: Literal["WaitStarted"] = "WaitStarted"
    kind: _As[Literal["user", "approval", "timer", "external"]]
    key: _As[str]
    reason: _As[str]
    deadline: _As[str | None] = None


class SignalReceived(Event):
    """What a wait of this key waits for has come, or comes before that wait."""

    type: Literal["SignalReceived"] = "SignalReceived"
    key: _As[str]
    signal_id: _As[str]
    payload: _As[Any] = None


class WaitTimedOut(Event):
    """The deadline of the open wait has passed."""

    type: Literal["WaitTimedOut"] = "WaitTimedOut"
    key: _As[str]


class BudgetSpent(Event):
    """Report: tokens have been used."""

    type: Literal["BudgetSpent"] = "BudgetSpent"
    tokens: _As[int]
    reason: _As[str | None] = None
    usage: _As[Any] = None


class EffectIntended(Event):
    """The outside world is about to be touched."""

    type: Literal["EffectIntended"] = "EffectIntended"
    effect: _As[Effect | _Object]
    requires: _As[Sequence[Requirement | _Object] | None] = None


class EffectSucceeded(Event):
    """Report: the effect took place."""

    type: Literal["EffectSucceeded"] = "EffectSucceeded"
    effect_id: _As[str]
    result_ref: _As[str | None] = None


class EffectFailed(Event):
    """Report: the effect did not take place."""

    type: Literal["EffectFailed"] = "EffectFailed"
    effect_id: _As[str]
    error: _As[str]


class EffectUnknown(Event):
    """Report: nobody knows whether the effect took place."""

    type: Literal["EffectUnknown"] = "EffectUnknown"
    effect_id: _As[str]
    reason: _As[str]


class EffectReconciled(Event):
    """Report: the outside system, or a person, said what became of the effect."""

    type: Literal["EffectReconciled"] = "EffectReconciled"
    effect_id: _As[str]
    outcome: _As[Literal["succeeded", "failed"]]
    evidence: _As[str]


class WorkspaceMoved(Event):
    """The files are elsewhere, or at another commit."""

    type: Literal["WorkspaceMoved"] = "WorkspaceMoved"
    workspace: _As[Workspace | _Object]


class CheckpointTaken(Event):
    """A safe point inside the run."""

    type: Literal["CheckpointTaken"] = "CheckpointTaken"
    checkpoint: _As[Checkpoint | _Object]


class LeaseAcquired(Event):
    """A worker takes the right to write; the epoch goes up."""

    type: Literal["LeaseAcquired"] = "LeaseAcquired"
    worker: _As[str]
    ttl_seconds: _As[int]


class LeaseRenewed(Event):
    """The lease lives on for this long."""

    type: Literal["LeaseRenewed"] = "LeaseRenewed"
    ttl_seconds: _As[int]


class LeaseReleased(Event):
    """The lease is given up."""

    type: Literal["LeaseReleased"] = "LeaseReleased"


class ConflictResolved(Event):
    """An open conflict is settled."""

    type: Literal["ConflictResolved"] = "ConflictResolved"
    conflict_id: _As[str]
    resolution: _As[Literal["keep_current", "take_proposed"]]
    reason: _As[str]


class Recorded(Event):
    """Anything worth keeping in the history and not in the state."""

    type: Literal["Recorded"] = "Recorded"
    name: _As[str]
    payload: _As[Any]


PARTS: tuple[type[Part], ...] = tuple(Part.__subclasses__())
EVENTS: dict[str, type[Event]] = {event.__name__: event for event in Event.__subclasses__()}
