"""Whether a run may be taken up again by whoever asks, why not, and what to do first.

Invariants:
- A function of the state, a time and what the caller says of itself: no clock, no storage.
- Every reason that holds is told, not only the worst; the verdict is the worst of them.
- What cannot be compared counts as changed: a run is called safe only if nothing speaks against it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from foldlog.core.context import Event
from foldlog.core.document import condition, document
from foldlog.core.effects import IN_DOUBT, effect_of
from foldlog.core.knowledge import place_in_batch
from foldlog.core.scopes import covers
from foldlog.core.state import Address, RunState
from foldlog.core.tasks import OPEN
from foldlog.core.values import format_instant, parse_instant
from foldlog.core.why import Json, command, moved_on_by, propose_line, waited_for

EXITS = {
    "QUARANTINED": 20,
    "MIGRATION_REQUIRED": 20,
    "LEASE_LIVE": 20,
    "BUDGET_SPENT": 20,
    "DEADLINE_PASSED": 20,
    "WORKSPACE_LOST": 20,
    "EFFECT_IN_DOUBT": 10,
    "WORKSPACE_MOVED": 10,
    "AGENT_VERSION_CHANGED": 10,
    "CONTROL_CHANGED": 10,
    "OBSERVATION_OUTDATED": 10,
    "CONFLICT_OPEN": 10,
    "FINISHED": 30,
    "WAITING": 30,
}
"""What a reason makes of the verdict, the worst first (CONTRACT section 4, ``resume-check``)."""

VERDICTS = {20: "must_not", 10: "reconcile", 30: "nothing", 0: "safe"}
"""Exit code -> verdict, the worst first."""

STEPS = {
    "QUARANTINED": "release",
    "MIGRATION_REQUIRED": "migrate",
    "LEASE_LIVE": "wait for the lease",
    "BUDGET_SPENT": "raise the budget",
    "DEADLINE_PASSED": "move the deadline",
    "WORKSPACE_LOST": "find the workspace",
    "EFFECT_IN_DOUBT": "reconcile",
    "WORKSPACE_MOVED": "compare the workspace",
    "AGENT_VERSION_CHANGED": "compare the agent version",
    "CONTROL_CHANGED": "read the change",
    "OBSERVATION_OUTDATED": "read again",
    "CONFLICT_OPEN": "resolve",
    "WAITING": "wait",
}
"""What a plan calls the step that settles a reason."""

COUNTED_FROM_CHECKPOINT = ("WORKSPACE_MOVED", "AGENT_VERSION_CHANGED", "CONTROL_CHANGED")
"""Reasons that a checkpoint taken after looking at them ends."""

SETTLED_AFTER_FINISH = ("QUARANTINED", "MIGRATION_REQUIRED", "EFFECT_IN_DOUBT")
"""Reasons that a finished run can still be rid of: it takes releases and reports, nothing else."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder that was looked at: its version, or None and why it could not be read."""

    path: str
    version: str | None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """What whoever would resume the run says of itself; what it leaves out is not compared."""

    worker: str | None = None
    commit: str | None = None
    workspace: Workspace | None = None
    agent_version: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against going on, and the command that settles it or shows it."""

    code: str
    entity: str | None
    message: str
    remedy: str

    def to_json(self) -> Json:
        """The reason as ``resume-check --json`` prints it."""
        names = ("code", "entity", "message", "remedy")
        return {name: getattr(self, name) for name in names}


Batch = Callable[[int], Sequence[Event]]
"""The events of the batch that made a revision, in order; none where that is not known."""


def _unknown(revision: int) -> Sequence[Event]:
    return ()


def resume_check(state: RunState, now: int, caller: Caller, batch: Batch = _unknown) -> Json:
    """``{verdict, exit, reasons, plan}`` of a run that exists; ``now`` in microseconds.

    ``batch`` is asked where two changes carry one revision and their order counts.
    """
    shown = document(state)
    found = [*_forbidden(state, shown, now, caller), *_changed(state, shown, caller, batch)]
    found += [*_conflicts(shown), *_idle(shown)]
    found.sort(key=lambda reason: list(EXITS).index(reason.code))
    if shown["status"] == "finish":
        found = [_of_finished(shown, reason) for reason in found]
    exits = [EXITS[reason.code] for reason in found]
    code = next((each for each in VERDICTS if each in exits), 0)
    checkpoint = shown["checkpoint"]
    return {
        "run_id": shown["run_id"],
        "revision": shown["revision"],
        "verdict": VERDICTS[code],
        "exit": code,
        "reasons": [reason.to_json() for reason in found],
        "plan": list(_plan(shown, found)),
        "checkpoint": checkpoint and checkpoint["id"],
        "since": _since(shown),
        "workspace": caller.workspace and caller.workspace.version,
        "at": format_instant(now),
    }


def _of_finished(shown: Json, reason: Reason) -> Reason:
    """A finished run refuses what would settle most reasons: its end can only be looked at."""
    if reason.code in SETTLED_AFTER_FINISH:
        return reason
    return replace(reason, remedy=f"foldlog history {shown['run_id']} --transitions")


def _since(shown: Json) -> int:
    """The revision after which changes count: the latest checkpoint's, else the first."""
    checkpoint = shown["checkpoint"]
    return 1 if checkpoint is None else int(checkpoint["revision"])


def _revision(state: RunState, kind: str, id: str = "") -> int:
    """The revision that changed an entity last; 0 if it was never there."""
    stamp = state.stamp(kind, id)
    return 0 if stamp is None else stamp[0]


# Must not


def _forbidden(state: RunState, shown: Json, now: int, caller: Caller) -> Iterator[Reason]:
    run_id = shown["run_id"]
    if state.quarantine is not None:
        message = f"a rule failed on record {state.quarantine.sequence}: {state.quarantine.error}"
        yield Reason("QUARANTINED", None, message, f"foldlog release {run_id} --reason TEXT")
    if condition(state) == "migration_required":
        message = f"stored in schema version {shown['schema_version']}"
        yield Reason("MIGRATION_REQUIRED", None, message, "foldlog explain MIGRATION_REQUIRED")
    lease = shown["lease"]
    if lease is not None and now * 1000 < parse_instant(lease["expires_at"]):
        if lease["worker"] != caller.worker:
            message = (
                f"{lease['worker']} holds the lease until {lease['expires_at']}, unless it renews"
                " it; see whether it is at work"
            )
            yield Reason("LEASE_LIVE", "lease", message, f"foldlog history {run_id} --follow")
    yield from _spent(shown, now)
    place = caller.workspace
    if place is not None and place.version is None:
        message = f"{place.path}: {place.trouble}"
        remedy = f"foldlog resume-check {run_id} --workspace DIR"
        yield Reason("WORKSPACE_LOST", "workspace", message, remedy)


def _spent(shown: Json, now: int) -> Iterator[Reason]:
    tokens, deadline = shown["budgets"]["tokens_remaining"], shown["budgets"]["deadline"]
    if tokens is not None and tokens <= 0:
        event = {"type": "BudgetSet", "tokens_remaining": "TOKENS"}
        message = f"tokens_remaining is {tokens}"
        yield Reason("BUDGET_SPENT", "budget/tokens", message, propose_line(shown, event))
    if deadline is not None and now * 1000 >= parse_instant(deadline):
        event = {"type": "BudgetSet", "deadline": "TIME"}
        message = f"the deadline {deadline} has passed"
        yield Reason("DEADLINE_PASSED", "budget/deadline", message, propose_line(shown, event))


# Reconcile first


def _changed(state: RunState, shown: Json, caller: Caller, batch: Batch) -> Iterator[Reason]:
    for effect in shown["effects"]:
        if effect["status"] in IN_DOUBT:
            message = f"{effect['kind']} on {effect['target']} is {effect['status']}"
            options = " --evidence URI"
            how = command("reconcile", shown["run_id"], effect["id"], "OUTCOME", options=options)
            yield Reason("EFFECT_IN_DOUBT", f"effect/{effect['id']}", message, how)
    yield from _workspace(state, shown, caller)
    yield from _agent_version(state, shown, caller)
    yield from _control(state, shown)
    for seen in shown["environment_observations"]:
        if (because := _outdated_by(state, shown, seen, batch)) is not None:
            entity = f"observation/{seen['subject']}"
            yield Reason("OBSERVATION_OUTDATED", entity, because, _read_again(shown, seen))


def _workspace(state: RunState, shown: Json, caller: Caller) -> Iterator[Reason]:
    known = shown["workspace"] or {}
    commit = known.get("current_commit")
    place = caller.workspace
    given = {} if caller.commit is None else {caller.commit: "the caller is"}
    if place is not None and place.version is not None:
        given[place.version] = f"{place.path} is"
    for version, who in given.items():
        if version != commit:
            message = f"{who} at {version}, the run at {commit or 'no commit that it knows'}"
            moved = {"workspace_id": "ID", **_there(known), "current_commit": version}
            remedy = propose_line(shown, {"type": "WorkspaceMoved", "workspace": moved})
            yield Reason("WORKSPACE_MOVED", "workspace", message, remedy)
    if _moved_since_checkpoint(state, shown, "workspace"):
        message = f"the run's workspace moved to {commit or 'no commit that it knows'}"
        yield _since_checkpoint(shown, "WORKSPACE_MOVED", "workspace", message)


def _there(value: Json) -> Json:
    return {name: each for name, each in value.items() if each is not None}


def _moved_since_checkpoint(state: RunState, shown: Json, kind: str) -> bool:
    checkpoint = shown["checkpoint"]
    if checkpoint is not None and checkpoint[kind] != shown[kind]:
        return True  # also behind the checkpoint, in its very batch
    return _revision(state, kind) > _since(shown)


def _since_checkpoint(shown: Json, code: str, entity: str | None, message: str) -> Reason:
    """A reason that is settled by looking at what changed, and then taking a checkpoint."""
    since = _since(shown)
    what = "revision 1" if shown["checkpoint"] is None else f"the checkpoint at revision {since}"
    remedy = f"foldlog diff {shown['run_id']} {since} {shown['revision']}"
    return Reason(code, entity, f"{message} after {what}", remedy)


def _agent_version(state: RunState, shown: Json, caller: Caller) -> Iterator[Reason]:
    known = shown["agent_version"]
    other = {name: each for name, each in caller.agent_version.items() if known.get(name) != each}
    if other:
        differ = (f"{name} is {other[name]}, the run has {known.get(name)}" for name in other)
        event = {"type": "AgentVersionChanged", "agent_version": {**known, **other}}
        remedy = propose_line(shown, event)
        yield Reason("AGENT_VERSION_CHANGED", "agent_version", "; ".join(differ), remedy)
    if _moved_since_checkpoint(state, shown, "agent_version"):
        message = "the agent version changed"
        yield _since_checkpoint(shown, "AGENT_VERSION_CHANGED", "agent_version", message)


def _control(state: RunState, shown: Json) -> Iterator[Reason]:
    """What a superseding control event changed since the checkpoint.

    The cancellation that ended the run is no such change: it is the end.
    """
    since, control = _since(shown), shown["control_revision"]
    if control <= since:
        return
    # A control batch holds nothing else, so what its revision stamped was changed by control.
    found = [("goal", "")] if _revision(state, "goal") > since else []
    revoked = shown["permissions_revoked"]
    found += [("permission", id) for id in revoked if _revision(state, "permission", id) > since]
    budgets = ("tokens", "deadline")
    found += [("budget", id) for id in budgets if _revision(state, "budget", id) == control]
    for kind, id in found:
        entity = f"{kind}/{id}" if id else kind
        yield _since_checkpoint(shown, "CONTROL_CHANGED", entity, f"{entity} was changed")
    cancelled = shown["result"] == "cancelled"
    if not found and not (cancelled and shown["last_transition"]["revision"] == control):
        message = f"a control event came at revision {control}"
        yield _since_checkpoint(shown, "CONTROL_CHANGED", None, message)


def _outdated_by(state: RunState, shown: Json, seen: Json, batch: Batch) -> str | None:
    """What came after an observation and may have changed what it says."""
    for effect in shown["effects"]:
        if effect["target"] == seen["subject"]:
            if _came_after(state, seen, ("effect", effect["id"]), batch):
                return f"effect {effect['id']} came after it was seen"
    if _came_after(state, seen, ("workspace", ""), batch):
        return "the workspace moved after it was seen"
    return None


def _came_after(state: RunState, seen: Json, changed: Address, batch: Batch) -> bool:
    """Whether an entity was changed after an observation, in its own batch too."""
    if (revision := _revision(state, *changed)) != seen["revision"]:
        return bool(revision > seen["revision"])
    events, place = batch(revision), place_in_batch(state, seen["subject"])
    types = [event["type"] for event in events]
    if "ConflictResolved" in types or types[place : place + 1] != ["EnvironmentObserved"]:
        return True  # not to be read, or events out of a conflict stand in between
    return changed in map(_changed_by, events[place + 1 :])


def _changed_by(event: Event) -> Address | None:
    """The effect or the workspace that an event changes, if it does."""
    if event["type"] == "WorkspaceMoved":
        return ("workspace", "")
    id = effect_of(event)
    return None if id is None else ("effect", id)


def _read_again(shown: Json, seen: Json) -> str:
    event = {"type": "EnvironmentObserved", "subject": seen["subject"]}
    event |= {"observed_state": "STATE", "observed_version": "VERSION", "observed_at": "TIME"}
    return propose_line(shown, event)


def _conflicts(shown: Json) -> Iterator[Reason]:
    for conflict in shown["conflicts"]:
        message = f"a proposal for {', '.join(conflict['entities'])} waits for a person"
        how = command(
            "resolve", shown["run_id"], conflict["id"], "RESOLUTION", options=" --reason TEXT"
        )
        yield Reason("CONFLICT_OPEN", f"conflict/{conflict['id']}", message, how)


# Nothing to resume


def _idle(shown: Json) -> Iterator[Reason]:
    run_id, wait = shown["run_id"], shown["waiting"]
    if shown["status"] == "finish":
        remedy = f"foldlog history {run_id} --transitions"
        yield Reason("FINISHED", "status", f"it is finished: {shown['result']}", remedy)
    if wait is not None:
        signal = command("signal", run_id, wait["key"])
        how = f"foldlog wait {run_id}" if wait["kind"] == "timer" else signal
        yield Reason("WAITING", "wait", f"it waits for {waited_for(wait)}", how)


# The plan


def _plan(shown: Json, found: list[Reason]) -> Iterator[Json]:
    """What to do, in this order: settle the reasons, look again, then the work."""
    finished = shown["status"] == "finish"
    for reason in found:
        if not finished or reason.code in SETTLED_AFTER_FINISH:
            yield _step(STEPS[reason.code], reason.entity, reason.message, reason.remedy)
    if not finished:
        yield from _before_work(shown, found)
        for who, how, entity in moved_on_by(shown):
            yield _step("go on", entity, who, how)


def _before_work(shown: Json, found: list[Reason]) -> Iterator[Json]:
    """What changes no verdict and belongs before the work."""
    outdated = {reason.entity for reason in found if reason.code == "OBSERVATION_OUTDATED"}
    for seen in shown["environment_observations"]:
        entity = f"observation/{seen['subject']}"
        if entity not in outdated and (tasks := _dependents(shown, seen)):
            version = seen["observed_version"] or "no version"
            what = f"seen at {version}, {seen['observed_at']}; depended on by {', '.join(tasks)}"
            yield _step("read again", entity, what, _read_again(shown, seen))
    for call in shown["pending_tool_calls"]:
        event = {"type": "ToolFailed", "step_id": call["step_id"], "error": "TEXT"}
        how = propose_line(shown, {**event, "recoverable": True})
        what = f"{call['tool']} was started and has no outcome"
        yield _step("report", f"tool/{call['step_id']}", what, how)
    if any(reason.code in COUNTED_FROM_CHECKPOINT for reason in found):
        point = {"id": "ID", "boundary": "workspace_version"}
        how = propose_line(shown, {"type": "CheckpointTaken", "checkpoint": point})
        yield _step("checkpoint", "checkpoint", "what changed so far is known from here on", how)


def _step(step: str, entity: str | None, what: str, how: str) -> Json:
    return {"step": step, "entity": entity, "what": what, "how": how}


def _dependents(shown: Json, seen: Json) -> list[str]:
    """The open tasks that may depend on what was seen, in plan order.

    Only a path relative to the workspace can be told to lie outside a task's scope.
    """
    path = seen["subject"].removeprefix("file://")
    relative = path != seen["subject"] and not path.startswith("/")
    tasks = {task["id"]: task for task in shown["tasks"] if task["status"] in OPEN}
    return [
        id
        for id in shown["plan"]
        if id in tasks and (not relative or _in_scope(path, tasks[id]["scope"]))
    ]


def _in_scope(path: str, scope: list[str]) -> bool:
    return not scope or any(covers(item, path) for item in scope)
