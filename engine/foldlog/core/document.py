"""The Run State as the JSON document of CONTRACT section 1, and its digest form.

Invariants:
- The document is a function of the state alone; collections are ordered by id, observations by
  subject, kept signals by age.
- Every key of the contract is always there; `plugins` is, once a run has a collection of one.
"""

from collections.abc import Iterator
from typing import Any

from foldlog.core.state import SCHEMA_VERSION, RunState, Slot, ordinal

BUILD_KEYS = frozenset({"schema_version", "condition", "migrated_from"})
"""What depends on the build or on this home, and so is left out of a digest."""

CONTRACT_KEYS = (
    "schema_version run_id revision control_revision condition goal phase status result plan "
    "active_task_id next_task_ids confirmed_facts hypotheses ruled_out open_questions tasks "
    "environment_observations effects effect_ledger_ref artifacts pending_tool_calls waiting "
    "signals last_signal retry_count retry_limit lease conflicts budgets permissions_revoked "
    "last_transition last_action workspace agent_version labels checkpoint forked_from "
    "migrated_from rules_version chain"
).split()


def condition(state: RunState) -> str:
    """``ok``, ``quarantined`` or ``migration_required``."""
    if state.quarantine is not None:
        return "quarantined"
    return "ok" if state.header.schema_version == SCHEMA_VERSION else "migration_required"


def document(state: RunState) -> dict[str, Any]:
    """The whole document of a run that exists; as dear as the run has entities."""
    header = state.header
    tasks = list(state.slots.scan("task"))
    effects = _members(state, "effect")
    ledger = f"effects://{header.run_id}@rev{header.effects_revision}"
    return {
        "schema_version": header.schema_version,
        "run_id": header.run_id,
        "revision": header.revision,
        "control_revision": header.control_revision,
        "condition": condition(state),
        "goal": _shown(state, "goal"),
        "phase": state.value("phase"),
        "status": state.value("status"),
        "result": header.result,
        **_plan(tasks),
        "active_task_id": active_task_id(state),
        "confirmed_facts": _members(state, "fact"),
        **_hypotheses(state),
        "open_questions": _members(state, "question"),
        "tasks": [slot.shown() for _, slot in tasks],
        "environment_observations": _members(state, "observation"),
        "effects": effects,
        "effect_ledger_ref": ledger if effects else None,
        "artifacts": _members(state, "artifact"),
        "pending_tool_calls": _members(state, "tool"),
        "waiting": state.value("wait"),
        "signals": _signals(state),
        "last_signal": state.value("last_signal"),
        "retry_count": header.retry_count,
        "retry_limit": header.retry_limit,
        "attempts": attempts(state),
        "lease": state.value("lease"),
        "conflicts": _members(state, "conflict"),
        "budgets": {
            "tokens_remaining": state.value("budget", "tokens"),
            "deadline": state.value("budget", "deadline"),
        },
        "permissions_revoked": [id for id, _ in state.slots.scan("permission")],
        "last_transition": state.value("transition", ordinal(header.transitions_count)),
        "last_action": header.last_action,
        "workspace": state.value("workspace"),
        "agent_version": state.value("agent_version"),
        "labels": state.value("labels"),
        "checkpoint": state.value("checkpoint"),
        "forked_from": header.forked_from,
        "migrated_from": list(state.migrated_from),
        "rules_version": state.value("rules"),
        "chain": header.chain,
        **_plugins(state),
        **({"archived": True} if state.value("archived") else {}),
    }


def _plugins(state: RunState) -> dict[str, Any]:
    """The collections of plug-ins, in a run that has any."""
    kinds = {kind: _members(state, kind) for kind, _ in state.slots.scan("kinds")}
    return {"plugins": kinds} if kinds else {}


def _shown(state: RunState, kind: str) -> dict[str, Any] | None:
    slot = state.slots.get(kind, "")
    return None if slot is None else slot.shown()


def _members(state: RunState, kind: str) -> list[dict[str, Any]]:
    return [slot.shown() for _, slot in state.slots.scan(kind)]


def _hypotheses(state: RunState) -> dict[str, Any]:
    """The open ones and, told apart by their hidden mark, the falsified ones."""
    both = [slot for _, slot in state.slots.scan("hypothesis")]
    return {
        "hypotheses": [slot.shown() for slot in both if not slot.hidden],
        "ruled_out": [slot.shown() for slot in both if slot.hidden],
    }


def _signals(state: RunState) -> list[dict[str, Any]]:
    kept = sorted((slot for _, slot in state.slots.scan("signal")), key=lambda slot: slot.hidden)
    return [slot.shown() for slot in kept]


def _plan(tasks: list[tuple[str, Slot]]) -> dict[str, Any]:
    """``plan`` in the order of places, and which pending tasks have every dependency completed."""
    planned = sorted(tasks, key=lambda item: item[1].hidden["place"])
    completed = {id for id, slot in tasks if slot.value["status"] == "completed"}
    ready = [
        id
        for id, slot in planned
        if slot.value["status"] == "pending" and completed.issuperset(slot.value["depends_on"])
    ]
    return {"plan": [id for id, _ in planned], "next_task_ids": ready}


def active_task_id(state: RunState) -> str | None:
    """The latest started task that still runs."""
    if state.header.running_count == 0:
        return None
    latest = next(state.slots.scan("running"), None)
    return None if latest is None else latest[1].value


def attempts(state: RunState) -> list[dict[str, Any]]:
    """Each time the run came to retry since it last began anew: ``{at, reason, revision}``."""
    header = state.header
    numbers = range(header.attempts_before + 1, header.attempts_count + 1)
    return [state.value("attempt", ordinal(number)) for number in numbers]


def transitions(state: RunState) -> Iterator[dict[str, Any]]:
    """Every transition of the run, oldest first: ``{from, to, reason, at, revision}``."""
    yield from (slot.value for _, slot in state.slots.scan("transition"))


def digest_form(shown: dict[str, Any]) -> dict[str, Any]:
    """A document less what depends on the build: what a run's digest is taken over."""
    form = {key: shown[key] for key in CONTRACT_KEYS if key not in BUILD_KEYS}
    if form["checkpoint"] is not None:
        checkpoint = form["checkpoint"].items()
        form["checkpoint"] = {key: value for key, value in checkpoint if key != "schema_version"}
    return form
