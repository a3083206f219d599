"""What a run does outside itself: tool calls, and effects with their ledger.

Invariants:
- An effect's outcome is recorded once; ``unknown`` is settled by a report or by reconciling.
- The set ``doubt`` and ``doubt_count`` hold exactly the effects that are intended or unknown; the
  set ``call`` and ``calls_count`` the pending tool calls.
- An idempotency key is free again only after its effect failed (index ``key`` -> effect id); one
  whose effect was forgotten never is.
"""

from foldlog.core.budgets import exhausted
from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.lifecycle import move
from foldlog.core.state import Draft, delist, enlist, enlisted

IN_DOUBT = ("intended", "unknown")


def revoked_by(draft: Draft, permission: str) -> str | None:
    """The revoked permission that covers this one: itself, or a prefix that ends in ``*``."""
    if draft.header.permissions_count == 0:
        return None
    for revoked, _ in draft.scan("permission"):
        if revoked == permission or (revoked[-1] == "*" and permission.startswith(revoked[:-1])):
            return revoked
    return None


def _not_permitted(draft: Draft, permission: str, field: str) -> Refusal | None:
    if (revoked := revoked_by(draft, permission)) is None:
        return None
    return Refusal("PERMISSION_REVOKED", f"permission {revoked!r} is revoked", field=field)


# Tool calls


def check_tool_start(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``ToolStarted``: permission, budget, then status, step id and task."""
    if (refusal := _not_permitted(draft, "tool:" + event["tool"], "tool")) is not None:
        return refusal
    if (refusal := exhausted(draft, ctx)) is not None:
        return refusal
    if draft.value("status") not in ("planning", "running"):
        return invalid(f"a tool starts in planning or running, not in {draft.value('status')}")
    if draft.used("tool", event["step_id"]):
        return invalid(f"step id {event['step_id']!r} was used before", "step_id")
    if "task_id" in event and draft.get("task", event["task_id"]) is None:
        return invalid(f"no task {event['task_id']!r}", "task_id")
    return None


def start_tool(draft: Draft, event: Event, ctx: Context) -> None:
    """``ToolStarted``: the call is pending until a report ends it."""
    value = {
        "step_id": event["step_id"],
        "tool": event["tool"],
        "task_id": event.get("task_id"),
        "arguments": event.get("arguments", {}),
    }
    draft.put("tool", event["step_id"], value)
    enlist(draft, "call", event["step_id"])
    draft.count(calls_count=1)


def check_tool_end(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``ToolSucceeded`` and ``ToolFailed``: the call is pending."""
    if draft.get("tool", event["step_id"]) is None:
        return invalid(f"no pending tool call {event['step_id']!r}", "step_id")
    return None


def end_tool(draft: Draft, event: Event, ctx: Context) -> None:
    """Take the call off the pending ones; a recoverable failure of a running run is a retry."""
    tool = draft.value("tool", event["step_id"])["tool"]
    draft.remove("tool", event["step_id"])
    delist(draft, "call", event["step_id"])
    draft.count(calls_count=-1)
    _act(draft, event["type"], tool, event.get("result_ref"))
    recoverable = event["type"] == "ToolFailed" and event["recoverable"]
    if recoverable and not ctx.late and draft.value("status") == "running":
        move(draft, "retry", event["error"], ctx.log_time)


def drop_calls(draft: Draft) -> None:
    """Take every pending call off, without an outcome."""
    for step_id in sorted(enlisted(draft, "call")):
        draft.remove("tool", step_id)
        delist(draft, "call", step_id)
        draft.count(calls_count=-1)


def _act(draft: Draft, type: str, action: str, result_ref: str | None) -> None:
    revision = draft.header.revision
    last = {"type": type, "action": action, "result_ref": result_ref, "revision": revision}
    draft.note(last_action=last)


# Effects


def check_intent(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``EffectIntended``: permission, budget, observations, status, id, key."""
    effect = event["effect"]
    if (refusal := _not_permitted(draft, "effect:" + effect["kind"], "effect.kind")) is not None:
        return refusal
    if (refusal := exhausted(draft, ctx)) is not None:
        return refusal
    for place, required in enumerate(event.get("requires", [])):
        seen = draft.value("observation", required["subject"])
        version = None if seen is None else seen["observed_version"]
        if version != required["observed_version"]:
            message = f"{required['subject']!r} was last seen at {version!r}"
            return Refusal("STALE_OBSERVATION", message, field=f"requires[{place}]")
    if draft.value("status") != "running":
        return invalid(f"an effect is intended in running, not in {draft.value('status')}")
    if draft.used("effect", effect["id"]):
        return invalid(f"effect id {effect['id']!r} was used before", "effect.id")
    return _key_is_free(draft, effect["idempotency_key"])


def _key_is_free(draft: Draft, key: str) -> Refusal | None:
    earlier = draft.value("key", key)
    if earlier is None:
        return None
    effect = draft.value("effect", earlier)
    if effect is None:
        message = f"idempotency key {key!r} belongs to effect {earlier!r} of the run it came from"
        return invalid(message, "effect.idempotency_key")
    if effect["outcome"] == "failed":
        return None
    message = f"idempotency key {key!r} belongs to effect {earlier!r}, which did not fail"
    return invalid(message, "effect.idempotency_key")


def intend(draft: Draft, event: Event, ctx: Context) -> None:
    """``EffectIntended``: into the ledger, in doubt until its outcome is reported."""
    effect = event["effect"]
    id = effect["id"]
    names = ("id", "kind", "target", "idempotency_key")
    value = {name: effect[name] for name in names}
    draft.put("effect", id, {**value, "status": "intended", "outcome": None, "result_ref": None})
    draft.index("key", effect["idempotency_key"], id)
    enlist(draft, "doubt", id)
    draft.count(doubt_count=1)


def forget(draft: Draft, id: str, key: str) -> None:
    """Take an effect that is not this run's to make out of the ledger; id and key stay used."""
    effect = draft.value("effect", id)
    if effect is not None and effect["status"] in IN_DOUBT:
        delist(draft, "doubt", id)
        draft.count(doubt_count=-1)
    draft.remove("effect", id)
    draft.index("key", key, id)


def check_outcome(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of an outcome: the effect is intended, or unknown and to be settled."""
    effect = draft.value("effect", event["effect_id"])
    if effect is None:
        return invalid(f"no effect {event['effect_id']!r}", "effect_id")
    allowed = ("intended",) if event["type"] == "EffectUnknown" else IN_DOUBT
    if effect["status"] not in allowed:
        message = f"effect {effect['id']!r} is {effect['status']}, not {' or '.join(allowed)}"
        return invalid(message, "effect_id")
    return None


def effect_of(event: Event) -> str | None:
    """The id of the effect that an event changes, if it changes one."""
    if event["type"] == "EffectIntended":
        return str(event["effect"]["id"])
    changes = event["type"] in STATUS_BY_EVENT or event["type"] == "EffectReconciled"
    return str(event["effect_id"]) if changes else None


STATUS_BY_EVENT = {
    "EffectSucceeded": ("succeeded", "succeeded"),
    "EffectFailed": ("failed", "failed"),
    "EffectUnknown": ("unknown", None),
}


def settle(draft: Draft, event: Event, ctx: Context) -> None:
    """Write an effect's outcome into the ledger; all but ``unknown`` end the doubt."""
    effect = draft.value("effect", event["effect_id"])
    status, outcome = STATUS_BY_EVENT.get(event["type"], ("reconciled", event.get("outcome")))
    result_ref = event.get("result_ref")
    value = {**effect, "status": status, "outcome": outcome, "result_ref": result_ref}
    draft.put("effect", effect["id"], value)
    if status != "unknown":
        delist(draft, "doubt", effect["id"])
        draft.count(doubt_count=-1)
    _act(draft, event["type"], effect["kind"], result_ref)
