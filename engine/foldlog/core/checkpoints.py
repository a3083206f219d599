"""Checkpoints: safe points inside a run, from which it may be resumed.

Invariants:
- A checkpoint says what was open at its revision; it is never changed, only followed by another.
"""

from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.state import SCHEMA_VERSION, Draft, enlisted
from foldlog.core.values import format_instant


def check(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``CheckpointTaken``: the id is new, the task it names is there."""
    checkpoint = event["checkpoint"]
    if draft.get("checkpoint.used", checkpoint["id"]) is not None:
        return invalid(f"checkpoint id {checkpoint['id']!r} was used before", "checkpoint.id")
    if "task_id" in checkpoint and draft.get("task", checkpoint["task_id"]) is None:
        return invalid(f"no task {checkpoint['task_id']!r}", "checkpoint.task_id")
    return None


def take(draft: Draft, event: Event, ctx: Context) -> None:
    """``CheckpointTaken``: keep what it says together with what was open at its revision."""
    checkpoint = event["checkpoint"]
    value = {
        "id": checkpoint["id"],
        "boundary": checkpoint["boundary"],
        "task_id": checkpoint.get("task_id"),
        "note": checkpoint.get("note"),
        "data": checkpoint.get("data"),
        "revision": draft.header.revision,
        "at": format_instant(ctx.log_time),
        "workspace": draft.value("workspace"),
        "agent_version": draft.value("agent_version"),
        "schema_version": SCHEMA_VERSION,
        "rules_version": draft.value("rules"),
        "effects_in_doubt": sorted(enlisted(draft, "doubt")),
        "pending_tool_calls": sorted(enlisted(draft, "call")),
    }
    draft.index("checkpoint.used", checkpoint["id"], True)
    draft.set("checkpoint", value)
