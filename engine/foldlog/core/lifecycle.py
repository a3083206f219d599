"""The six statuses of a run: start, transitions, waits and their signals, finish, cancel.

Invariants:
- ``move`` is the only place that changes the status, and each move is kept as a transition.
- A signal is used once: it ends the open wait of its key, or is kept until a wait of its key.
- Any entry into ``retry`` counts, a wait's return to it aside.
"""

from collections.abc import Mapping
from typing import Any

from foldlog.core.budgets import exhausted
from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.leases import release
from foldlog.core.state import Draft, delist, enlist, enlisted, ordinal
from foldlog.core.values import format_instant, parse_instant

SIGNALS_MAX = 1000
"""Kept signals of one run; one more is LIMIT_EXCEEDED (CONTRACT section 2, Limits)."""

TRANSITIONS = {
    ("start", "planning"),
    ("planning", "running"),
    ("running", "planning"),
    ("waiting", "planning"),
    ("retry", "running"),
    ("retry", "start"),
}
"""What ``RunTransitioned`` may do; everything else moves by an event of its own."""

WAIT_FROM = ("planning", "running", "retry")


def move(draft: Draft, to: str, reason: str, log_time: int, *, counts: bool = True) -> None:
    """Change the status and keep the transition; entering ``retry`` counts unless told not to."""
    header = draft.header
    number = header.transitions_count + 1
    transition = {
        "from": draft.value("status"),
        "to": to,
        "reason": reason,
        "at": format_instant(log_time),
        "revision": header.revision,
    }
    draft.index("transition", ordinal(number), transition)
    draft.note(transitions_count=number)
    if to == "retry" and counts:
        _count_attempt(draft, transition)
    draft.set("status", to)


def attempt_of(transition: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a transition that enters retry and counts."""
    return {name: transition[name] for name in ("at", "reason", "revision")}


def _count_attempt(draft: Draft, transition: dict[str, Any]) -> None:
    header = draft.header
    if header.retries_kept is not None:  # a document of schema 1 goes on as one
        draft.note(retries_kept=header.retries_kept + 1)
        return
    number = header.attempts_count + 1
    draft.index("attempt", ordinal(number), attempt_of(transition))
    draft.note(attempts_count=number)


def _begin_anew(draft: Draft) -> None:
    if draft.header.retries_kept is not None:
        draft.note(retries_kept=0)
    draft.note(attempts_before=draft.header.attempts_count)


def goal_value(goal: dict[str, Any]) -> dict[str, Any]:
    """A goal as the document shows it: absent lists as empty ones."""
    scope = goal.get("scope", {})
    return {
        "statement": goal["statement"],
        "scope": {"include": scope.get("include", []), "exclude": scope.get("exclude", [])},
        "acceptance": goal.get("acceptance", []),
        "constraints": goal.get("constraints", []),
    }


def workspace_value(workspace: dict[str, Any]) -> dict[str, Any]:
    """A workspace as the document shows it."""
    optional = ("base_commit", "current_commit", "uncommitted_changes")
    return {
        "workspace_id": workspace["workspace_id"],
        **{name: workspace.get(name) for name in optional},
    }


def start_run(draft: Draft, event: Event, ctx: Context) -> None:
    """``RunStarted``: the run begins in ``start`` with what is given, three retries if none are."""
    budgets = event.get("budgets", {})
    draft.note(retry_limit=event.get("retry_limit", 3), forked_from=event.get("forked_from"))
    draft.set("goal", goal_value(event["goal"]))
    draft.set("agent_version", event.get("agent_version", {}))
    draft.set("rules", event.get("rules_version", ctx.rules_version))
    draft.index("labels", "", event.get("labels", {}))
    for name, field in (("tokens", "tokens_remaining"), ("deadline", "deadline")):
        if field in budgets:
            draft.put("budget", name, budgets[field])
    if "workspace" in event:
        draft.set("workspace", workspace_value(event["workspace"]))
    move(draft, "start", "RunStarted", ctx.log_time)


def check_transition(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``RunTransitioned``: budget (to running), the table, a retry that is left."""
    before, to = draft.value("status"), event["to"]
    if to == "running" and (refusal := exhausted(draft, ctx)):
        return refusal
    if (before, to) not in TRANSITIONS:
        return invalid(f"a run cannot go from {before} to {to}", "to")
    header = draft.header
    if (before, to) == ("retry", "running") and header.retry_count >= header.retry_limit:
        return invalid(
            f"{header.retry_count} of {header.retry_limit} retries are spent: go back to start",
            "to",
        )
    return None


def transition(draft: Draft, event: Event, ctx: Context) -> None:
    """``RunTransitioned``: leaving a wait ends it, going back to start gives retries back."""
    before, to = draft.value("status"), event["to"]
    if before == "waiting":
        draft.set("wait", None)
    if (before, to) == ("retry", "start"):
        _begin_anew(draft)
    move(draft, to, event.get("reason", event["type"]), ctx.log_time)


def change_phase(draft: Draft, event: Event, ctx: Context) -> None:
    """``PhaseChanged``: the given phase takes the place of the old one."""
    draft.set("phase", event["phase"])


# Waits and signals


def check_wait(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``WaitStarted``: from planning, running or retry, one wait at a time."""
    status = draft.value("status")
    if status == "waiting":
        return invalid(f"the run already waits for {draft.value('wait')['key']!r}")
    if status not in WAIT_FROM:
        return invalid(f"a run cannot wait from {status}")
    return None


def start_wait(draft: Draft, event: Event, ctx: Context) -> None:
    """``WaitStarted``: wait, or go on at once with the oldest kept signal of the key."""
    wait = {
        "kind": event["kind"],
        "key": event["key"],
        "reason": event["reason"],
        "deadline": event.get("deadline"),
        "since": format_instant(ctx.log_time),
        "from": draft.value("status"),
    }
    draft.set("wait", wait)
    move(draft, "waiting", event["reason"], ctx.log_time)
    if (signal := _oldest_kept(draft, event["key"])) is not None:
        draft.count(signals_count=-1)
        delist(draft, "kept", signal["signal_id"])
        _use_signal(draft, signal, ctx)


def _oldest_kept(draft: Draft, key: str) -> dict[str, Any] | None:
    """The oldest kept signal of a key, as the document shows it; at most 1,000 are looked at."""
    if draft.header.signals_count == 0:
        return None
    slots = [draft.get("signal", id) for id in enlisted(draft, "kept")]
    kept = [slot for slot in slots if slot is not None and slot.value["key"] == key]
    return min(kept, key=lambda slot: slot.hidden).shown() if kept else None


def _use_signal(draft: Draft, signal: dict[str, Any], ctx: Context) -> None:
    """End the open wait with this signal; ``signal`` carries the stamp of what brought it."""
    back_to = draft.value("wait")["from"]
    draft.remove("signal", signal["signal_id"])
    draft.index("last_signal", "", signal)
    draft.set("wait", None)
    move(draft, back_to, "SignalReceived", ctx.log_time, counts=False)


def check_signal(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``SignalReceived``: LIMIT_EXCEEDED where one more would have to be kept."""
    if draft.used("signal", event["signal_id"]) or _ends_wait(draft, event):
        return None
    if draft.header.signals_count >= SIGNALS_MAX:
        return Refusal("LIMIT_EXCEEDED", f"{SIGNALS_MAX} signals are kept already")
    return None


def _ends_wait(draft: Draft, event: Event) -> bool:
    wait = draft.value("wait")
    return wait is not None and wait["key"] == event["key"]


def receive_signal(draft: Draft, event: Event, ctx: Context) -> None:
    """``SignalReceived``: end the open wait of its key or be kept; once per signal id."""
    signal_id = event["signal_id"]
    if draft.used("signal", signal_id):
        return
    signal = {"key": event["key"], "signal_id": signal_id, "payload": event.get("payload")}
    if _ends_wait(draft, event):
        author = {"kind": draft.author_kind, "id": draft.author_id}
        _use_signal(draft, {**signal, "author": author, "revision": draft.header.revision}, ctx)
        return
    draft.put("signal", signal_id, signal, hidden=draft.header.next_signal)
    enlist(draft, "kept", signal_id)
    draft.count(signals_count=1, next_signal=1)


def check_time_out(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``WaitTimedOut``: the open wait of that key, its deadline passed."""
    wait = draft.value("wait")
    if wait is None or wait["key"] != event["key"]:
        return invalid(f"no open wait of key {event['key']!r}", "key")
    if wait["deadline"] is None:
        return invalid("the open wait has no deadline")
    if ctx.log_time * 1000 < parse_instant(wait["deadline"]):
        return invalid(f"the deadline {wait['deadline']} has not passed by log time")
    return None


def time_out(draft: Draft, event: Event, ctx: Context) -> None:
    """``WaitTimedOut``: a timer goes back to where it was, others to retry, and count."""
    wait = draft.value("wait")
    draft.set("wait", None)
    if wait["kind"] == "timer":
        move(draft, wait["from"], event["type"], ctx.log_time, counts=False)
    else:
        move(draft, "retry", event["type"], ctx.log_time)


def end_wait(draft: Draft, reason: str, log_time: int) -> None:
    """End an open wait, if there is one, without a signal: back to where the run was."""
    wait = draft.value("wait")
    if wait is not None:
        draft.set("wait", None)
        move(draft, wait["from"], reason, log_time, counts=False)


def drop_signals(draft: Draft) -> None:
    """Take every kept signal out of the state, unused."""
    for signal_id in sorted(enlisted(draft, "kept")):
        draft.remove("signal", signal_id)
        delist(draft, "kept", signal_id)
        draft.count(signals_count=-1)


# The end


def check_finish(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``RunFinished``: completed from running with nothing open, failed always."""
    if event["result"] == "failed":
        return None
    header = draft.header
    if draft.value("status") != "running":
        return invalid(f"a run completes from running, not from {draft.value('status')}")
    for count, what in (
        (header.running_count, "task still runs"),
        (header.doubt_count, "effect is still open (intended or unknown)"),
        (header.calls_count, "tool call is still pending"),
    ):
        if count:
            return invalid(f"{count} {what}")
    return None


def finish(draft: Draft, event: Event, ctx: Context) -> None:
    """``RunFinished``: the end, completed or failed."""
    _end(draft, event["result"], event.get("reason", event["type"]), ctx)


def cancel(draft: Draft, event: Event, ctx: Context) -> None:
    """The end by cancelling, from any status."""
    _end(draft, "cancelled", event["reason"], ctx)


def _end(draft: Draft, result: str, reason: str, ctx: Context) -> None:
    if draft.value("wait") is not None:
        draft.set("wait", None)
    release(draft)
    draft.note(result=result)
    move(draft, "finish", reason, ctx.log_time)


def no_change(draft: Draft, event: Event, ctx: Context) -> None:
    """``Recorded``: kept in the history, not in the state."""
