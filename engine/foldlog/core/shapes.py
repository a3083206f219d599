"""The shape of every event type and of a proposal, as data.

Invariants:
- Data only: what a kind admits is checked in `checks`, what an event means is decided elsewhere.
- Every field of every event stands here once; the validation, the schemas, the typed events and
  their tests walk this table.
- The order of the types is the catalogue's, the order of the fields is the order of checking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from foldlog.core.values import AUTHOR_KINDS, INTEGER_MAX, TEXT_BYTES_MAX

JSON_BYTES_MAX: Final = 64 * 1024
EVENTS_MAX: Final = 100
TOKENS_MAX: Final = 2**40
TTL_SECONDS_MAX: Final = 86_400
RETRY_LIMIT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Text:
    """Any text, the empty one too, of at most `bytes_max` bytes in UTF-8."""

    bytes_max: int = TEXT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Id:
    """A text of 1 to 2,048 characters."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A URI."""


@dataclass(frozen=True, slots=True)
class Time:
    """An instant, kept as written."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A JSON integer from `minimum` to `maximum`, both included."""

    minimum: int = 0
    maximum: int = INTEGER_MAX


@dataclass(frozen=True, slots=True)
class Json:
    """Any JSON (or any object) whose compact form has at most `bytes_max` bytes."""

    bytes_max: int = JSON_BYTES_MAX
    is_object: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few texts."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Confidence:
    """A number from 0 to 1, or a text that is one; normalised to the text that is shown."""


@dataclass(frozen=True, slots=True)
class Permission:
    """`tool:NAME` or `effect:KIND`."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A JSON boolean."""


@dataclass(frozen=True, slots=True)
class Sha256:
    """64 lower-case hex digits."""


@dataclass(frozen=True, slots=True)
class RunId:
    """The id of a run."""


@dataclass(frozen=True, slots=True)
class BatchId:
    """A UUID; normalised to lower case."""


@dataclass(frozen=True, slots=True)
class Traceparent:
    """A W3C traceparent."""


@dataclass(frozen=True, slots=True)
class Entity:
    """The name of an entity, as `diff` names them."""


@dataclass(frozen=True, slots=True)
class Events:
    """The list of a batch's events, whose items are checked each by its own type."""

    maximum: int = EVENTS_MAX


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, the empty one too."""

    item: Kind


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object whose keys are texts of the caller's and whose values are all of one kind."""

    item: Kind


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record. null in an optional field is absence, unless the field keeps it."""

    kind: Kind
    required: bool = True
    keeps_null: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """An object with exactly these fields."""

    fields: Mapping[str, Field]


Kind = (
    Text
    | Id
    | Reference
    | Time
    | Whole
    | Json
    | OneOf
    | Confidence
    | Permission
    | Flag
    | Sha256
    | RunId
    | BatchId
    | Traceparent
    | Entity
    | Events
    | ListOf
    | MapOf
    | Record
)


def _must(kind: Kind) -> Field:
    return Field(kind)


def _may(kind: Kind) -> Field:
    return Field(kind, required=False)


def _record(**fields: Field) -> Record:
    return Record(fields)


_TEXTS: Final = ListOf(Text())
_REVISION: Final = Whole()

GOAL: Final = _record(
    statement=_must(Text()),
    scope=_may(_record(include=_may(_TEXTS), exclude=_may(_TEXTS))),
    acceptance=_may(_TEXTS),
    constraints=_may(_TEXTS),
)
BUDGETS: Final = _record(tokens_remaining=_may(Whole()), deadline=_may(Time()))
WORKSPACE: Final = _record(
    workspace_id=_must(Id()),
    base_commit=_may(Text()),
    current_commit=_may(Text()),
    uncommitted_changes=_may(Reference()),
)
FORKED_FROM: Final = _record(
    run_id=_must(RunId()), revision=_must(_REVISION), chain=_must(Sha256())
)
FACT: Final = _record(
    id=_must(Id()),
    statement=_must(Text()),
    evidence=_may(Reference()),
    observed_at=_may(Time()),
    scope=_may(_TEXTS),
)
HYPOTHESIS: Final = _record(
    id=_must(Id()),
    statement=_must(Text()),
    confidence=_must(Confidence()),
    falsifier=_must(Text()),
)
QUESTION: Final = _record(id=_must(Id()), text=_must(Text()))
ARTIFACT: Final = _record(
    id=_must(Id()), uri=_must(Reference()), sha256=_may(Sha256()), media_type=_may(Text())
)
TASK: Final = _record(
    id=_must(Id()), title=_must(Text()), depends_on=_may(ListOf(Id())), scope=_may(_TEXTS)
)
EFFECT: Final = _record(
    id=_must(Id()), kind=_must(Id()), target=_must(Reference()), idempotency_key=_must(Id())
)
REQUIREMENT: Final = _record(subject=_must(Id()), observed_version=_must(Text()))
CHECKPOINT: Final = _record(
    id=_must(Id()),
    boundary=_must(
        OneOf(("tasks_done", "before_wait", "before_effect", "workspace_version", "lease_release"))
    ),
    task_id=_may(Id()),
    note=_may(Text()),
    data=_may(Json()),
)

STATUSES: Final = ("start", "planning", "running", "waiting", "retry", "finish")
_STATUSES: Final = OneOf(STATUSES)
_RULES_VERSION: Final = Whole(minimum=1)
_TTL_SECONDS: Final = Whole(minimum=1, maximum=TTL_SECONDS_MAX)
_AGENT_VERSION: Final = MapOf(Text())

FIELDS: Final[dict[str, Record]] = {
    "RunStarted": _record(
        goal=_must(GOAL),
        budgets=_may(BUDGETS),
        agent_version=_may(_AGENT_VERSION),
        workspace=_may(WORKSPACE),
        retry_limit=_may(Whole(maximum=RETRY_LIMIT_MAX)),
        labels=_may(MapOf(Text())),
        rules_version=_may(_RULES_VERSION),
        forked_from=_may(FORKED_FROM),
    ),
    "RunTransitioned": _record(to=_must(_STATUSES), reason=_may(Text())),
    "PlanAdopted": _record(tasks=_must(ListOf(TASK))),
    "PhaseChanged": _record(phase=_must(Text())),
    "GoalChanged": _record(goal=_must(GOAL), reason=_must(Text())),
    "RunCancelled": _record(reason=_must(Text())),
    "PermissionRevoked": _record(permission=_must(Permission()), reason=_must(Text())),
    "PermissionRestored": _record(permission=_must(Permission()), reason=_must(Text())),
    # Here null is a value: unlimited.
    "BudgetSet": _record(
        tokens_remaining=Field(Whole(), required=False, keeps_null=True),
        deadline=Field(Time(), required=False, keeps_null=True),
    ),
    "AgentVersionChanged": _record(agent_version=_must(_AGENT_VERSION)),
    "RulesActivated": _record(rules_version=_must(_RULES_VERSION)),
    "RunReleased": _record(reason=_must(Text())),
    "RunFinished": _record(
        result=_must(OneOf(("completed", "failed"))),
        reason=_may(Text()),
        result_ref=_may(Reference()),
    ),
    "FactConfirmed": _record(
        fact=_must(FACT), replaces_hypothesis_id=_may(Id()), supersedes_fact_id=_may(Id())
    ),
    "FactRetracted": _record(fact_id=_must(Id()), reason=_must(Text())),
    "HypothesisProposed": _record(hypothesis=_must(HYPOTHESIS)),
    "HypothesisRevised": _record(
        hypothesis_id=_must(Id()), confidence=_must(Confidence()), reason=_may(Text())
    ),
    "HypothesisFalsified": _record(hypothesis_id=_must(Id()), evidence=_must(Reference())),
    "QuestionOpened": _record(question=_must(QUESTION)),
    "QuestionAnswered": _record(
        question_id=_must(Id()), answer=_must(Text()), evidence=_may(Reference())
    ),
    "EnvironmentObserved": _record(
        subject=_must(Id()),
        observed_state=_must(Text()),
        observed_at=_must(Time()),
        observed_version=_may(Text()),
        evidence=_may(Reference()),
    ),
    "ArtifactAdded": _record(artifact=_must(ARTIFACT)),
    "TaskAdded": _record(task=_must(TASK)),
    "TaskStarted": _record(task_id=_must(Id()), worker=_may(Id())),
    "TaskBlocked": _record(task_id=_must(Id()), reason=_must(Text())),
    "TaskUnblocked": _record(task_id=_must(Id())),
    "TaskCompleted": _record(task_id=_must(Id()), evidence=_must(Reference())),
    "TaskFailed": _record(task_id=_must(Id()), reason=_must(Text())),
    "TaskCancelled": _record(task_id=_must(Id()), reason=_must(Text())),
    "ToolStarted": _record(
        step_id=_must(Id()),
        tool=_must(Id()),
        task_id=_may(Id()),
        arguments=_may(Json(is_object=True)),
    ),
    "ToolSucceeded": _record(
        step_id=_must(Id()), result_ref=_may(Reference()), result=_may(Json())
    ),
    "ToolFailed": _record(step_id=_must(Id()), error=_must(Text()), recoverable=_must(Flag())),
    "WaitStarted": _record(
        kind=_must(OneOf(("user", "approval", "timer", "external"))),
        key=_must(Id()),
        reason=_must(Text()),
        deadline=_may(Time()),
    ),
    "SignalReceived": _record(key=_must(Id()), signal_id=_must(Id()), payload=_may(Json())),
    "WaitTimedOut": _record(key=_must(Id())),
    "BudgetSpent": _record(
        tokens=_must(Whole(maximum=TOKENS_MAX)), reason=_may(Text()), usage=_may(Json())
    ),
    "EffectIntended": _record(effect=_must(EFFECT), requires=_may(ListOf(REQUIREMENT))),
    "EffectSucceeded": _record(effect_id=_must(Id()), result_ref=_may(Reference())),
    "EffectFailed": _record(effect_id=_must(Id()), error=_must(Text())),
    "EffectUnknown": _record(effect_id=_must(Id()), reason=_must(Text())),
    "EffectReconciled": _record(
        effect_id=_must(Id()),
        outcome=_must(OneOf(("succeeded", "failed"))),
        evidence=_must(Reference()),
    ),
    "WorkspaceMoved": _record(workspace=_must(WORKSPACE)),
    "CheckpointTaken": _record(checkpoint=_must(CHECKPOINT)),
    "LeaseAcquired": _record(worker=_must(Id()), ttl_seconds=_must(_TTL_SECONDS)),
    "LeaseRenewed": _record(ttl_seconds=_must(_TTL_SECONDS)),
    "LeaseReleased": _record(),
    "ConflictResolved": _record(
        conflict_id=_must(Id()),
        resolution=_must(OneOf(("keep_current", "take_proposed"))),
        reason=_must(Text()),
    ),
    # A required field of any JSON: null is as good a value as another.
    "Recorded": _record(name=_must(Id()), payload=Field(Json(), keeps_null=True)),
}

ARCHIVED: Final = _record(reason=_may(Text()))

# A batch is either all control or without any, which is why shapes must know them.
CONTROL_TYPES: Final = frozenset(
    {
        "GoalChanged",
        "RunCancelled",
        "PermissionRevoked",
        "PermissionRestored",
        "BudgetSet",
        "AgentVersionChanged",
        "RulesActivated",
        "RunReleased",
    }
)

# What happened outside and is only told: taken up whatever else holds.
REPORT_TYPES: Final = frozenset(
    {
        "ToolSucceeded",
        "ToolFailed",
        "BudgetSpent",
        "EffectSucceeded",
        "EffectFailed",
        "EffectUnknown",
        "EffectReconciled",
    }
)

# What stands around the events. The client has filled in batch_id and author.
PROPOSAL: Final = _record(
    batch_id=_must(BatchId()),
    expected_revision=_may(_REVISION),
    author=_must(_record(kind=_must(OneOf(AUTHOR_KINDS)), id=_must(Id()))),
    lease_epoch=_may(Whole()),
    on_conflict=_may(OneOf(("reject", "arbitrate"))),
    reads=_may(ListOf(Entity())),
    occurred_at=_may(Time()),
    correlation_id=_may(Id()),
    causation_id=_may(Id()),
    traceparent=_may(Traceparent()),
    events=_must(Events()),
)
