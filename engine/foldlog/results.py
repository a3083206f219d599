"""What the client returns: the JSON's keys as attributes, ``to_dict()`` exactly the JSON.

Invariants:
- A value is read-only and equal to another of equal JSON.
- What the JSON nests is a value too; lists are lists, absent things are None.
"""

import copy
import json
from collections.abc import Iterator, KeysView
from typing import Any, Self

Json = dict[str, Any]


class Value:
    """JSON seen through attributes: ``state.goal.statement``, ``row["from"]``.

    Keys that Python reserves or that clash with a method are read as ``value["from"]``. An empty
    value is false, as an empty dictionary is.
    """

    __slots__ = ("_json",)

    def __init__(self, json: Json) -> None:
        object.__setattr__(self, "_json", json)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is read-only")

    def __getitem__(self, name: str) -> Any:
        return _seen(self._json[name])

    def __contains__(self, name: object) -> bool:
        return name in self._json

    def __iter__(self) -> Iterator[str]:
        return iter(self._json)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Value):
            return bool(self._json == other._json)
        return isinstance(other, dict) and self._json == dict(other)

    def __hash__(self) -> int:
        return hash(json.dumps(self._json, sort_keys=True))

    def __len__(self) -> int:
        return len(self._json)

    def keys(self) -> KeysView[str]:
        """The JSON's keys, so that ``dict(state.labels)`` works."""
        return KeysView(self._json)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._json!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[Json]]:
        return (type(self), (self._json,))

    def to_dict(self) -> Json:
        """The JSON itself; a copy, which may be changed."""
        return copy.deepcopy(self._json)


def _seen(value: Any) -> Any:
    if isinstance(value, dict):
        return Value(value)
    if isinstance(value, list):
        return [_seen(item) for item in value]
    return value


class Outcome(Value):
    """What became of a proposal. A rejection is an outcome, not an error."""

    __slots__ = ()

    outcome: str
    run_id: str
    batch_id: str
    revision: int
    rebased: bool
    duplicate: bool
    recorded: bool
    code: str | None
    message: str | None
    event_index: int | None
    field: str | None
    conflicts: list[Value]
    conflict_id: str | None
    partition: int | None
    sequence: int | None
    chain: str | None
    state_hash: str | None
    log_time: str | None

    @property
    def accepted(self) -> bool:
        """Whether the events were applied."""
        return bool(self["outcome"] == "accepted")


class RunState(Value):
    """A run at one moment, as ``foldlog show --json`` prints it."""

    __slots__ = ()

    schema_version: int
    run_id: str
    revision: int
    control_revision: int
    condition: str
    goal: Value
    phase: str | None
    status: str
    result: str | None
    plan: list[str]
    active_task_id: str | None
    next_task_ids: list[str]
    confirmed_facts: list[Value]
    hypotheses: list[Value]
    ruled_out: list[Value]
    open_questions: list[Value]
    tasks: list[Value]
    environment_observations: list[Value]
    effects: list[Value]
    effect_ledger_ref: str | None
    artifacts: list[Value]
    pending_tool_calls: list[Value]
    waiting: Value | None
    signals: list[Value]
    last_signal: Value | None
    retry_count: int
    attempts: list[Value]
    retry_limit: int
    lease: Value | None
    conflicts: list[Value]
    budgets: Value
    permissions_revoked: list[str]
    last_transition: Value
    last_action: Value | None
    workspace: Value | None
    agent_version: Value
    labels: Value
    checkpoint: Value | None
    forked_from: Value | None
    migrated_from: list[Value]
    rules_version: int
    chain: str

    @property
    def plugins(self) -> Value:
        """The collections of plug-ins (``votes:ballot`` -> members); empty if the run has none."""
        found: Value = self["plugins"] if "plugins" in self else Value({})
        return found


class HistoryRow(Value):
    """One record of a run, as ``foldlog history --json`` prints it."""

    __slots__ = ()

    sequence: int
    log_time: str
    occurred_at: str | None
    batch_id: str | None
    author: Value | None
    expected_revision: int | None
    outcome: str
    code: str | None
    revision_before: int
    revision_after: int
    rebased: bool
    conflicts: list[Value]
    lease_epoch: int | None
    on_conflict: str | None
    reads: list[str] | None
    duplicate_of: int | None
    events: list[Value] | None
    chain: str
    state_hash: str | None


class Difference(Value):
    """One entity that changed between two revisions."""

    __slots__ = ()

    entity: str
    change: str
    before: Any
    after: Any
    revision: int | None
    author: Value | None


class RunSummary(Value):
    """A run in a list, as ``foldlog runs --json`` prints it."""

    __slots__ = ()

    run_id: str
    status: str
    result: str | None
    phase: str | None
    revision: int
    active_task_id: str | None
    waiting: Value | None
    condition: str
    alarms: list[Value]
    labels: Value
    changed_at: str
    archived: bool


class VerifyReport(Value):
    """What ``verify`` found: everything as it should be, or the first difference."""

    __slots__ = ()

    ok: bool
    partitions: int
    records: int
    void: int
    snapshots: int
    first_difference: Value | None
    evidence: Value | None


class Replay(Value):
    """What a replay gave: the digest of everything, and how much was folded."""

    __slots__ = ()

    digest: str
    records: int
    runs: int
    snapshots: list[str]
    """Those it began at; empty if it began at the start of the log."""


class Head(Value):
    """How far a partition is and the hash it ends in: to be kept elsewhere, for ``verify``."""

    __slots__ = ()

    partition: int
    sequence: int
    head: str
    log: str


class SnapshotTaken(Value):
    """A snapshot as ``snapshot create`` prints it."""

    partition: int
    name: str
    sequence: int
    position: int
    head: str
    taken_at: str
    bytes: int
    bytes_copied: int
    """How many had to be written; the others are shared with the snapshot before."""
    is_new: bool


class PartitionStatus(Value):
    """One partition as ``foldlog status --json`` prints it; ``lag`` counts what is undecided."""

    __slots__ = ()

    partition: int
    owner: str | None
    position: int
    sequence: int
    lag: int
    head: str
    void: int
    quarantined: int
    alarms: Value
    halted: str | None
    """Why nothing in it is decided, until a person mends it."""
    outage: str | None
    """What keeps it from going on, as its projector says; only where the log is elsewhere."""


class Quarantined(Value):
    """A run that takes nothing until it is released, and the record that brought it there."""

    __slots__ = ()

    run_id: str
    since: str
    sequence: int
    error: str
    build: str


class Why(Value):
    """What keeps a run, since when, and who can move it with which command."""

    __slots__ = ()

    run_id: str
    revision: int
    status: str
    waiting_for: str | None
    since: str | None
    deadline: str | None
    movers: list[Value]
    blocked_tasks: list[Value]
    alarms: list[Value]
    at: str


class ResumeCheck(Value):
    """Whether a run may be taken up again: the verdict, what speaks against it, what to do."""

    __slots__ = ()

    run_id: str
    revision: int
    verdict: str
    exit: int
    reasons: list[Value]
    plan: list[Value]
    checkpoint: str | None
    since: int
    workspace: str | None
    at: str


class ContextText(Value):
    """What goes into a model's context; ``text`` is None where it needs more than was given."""

    __slots__ = ()

    run_id: str
    revision: int
    text: str | None
    tokens: int | None
    left_out: list[Value]
    needed: int
    max_tokens: int | None


class Waited(Value):
    """How a wait ended: ``reached``, or finished where it cannot be reached, or not yet there."""

    __slots__ = ()

    run_id: str
    until: str | None
    reached: bool
    status: str
    result: str | None
    revision: int
    since: str
    condition: str


class Conflict(Value):
    """A proposal that waits for a person: what it would change, and what changed before it."""

    __slots__ = ()

    id: str
    entities: list[str]
    events: list[Value]
    author: Value
    expected_revision: int | None
    revision: int


class Finding(Value):
    """One thing that ``doctor`` looked at; ``remedy`` is None where there is nothing to do."""

    __slots__ = ()

    check: str
    ok: bool
    what: str
    where: str
    remedy: str | None
    exit: int
