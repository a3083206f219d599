"""An entity is stamped if and only if its value changed, as `diff` names entities and values.

Invariants:
- Values are taken from the document alone, so that the law holds what a reader can see against
  what the decider compares.
"""

from __future__ import annotations

from typing import Any

from foldlog.core.document import document
from foldlog.core.state import RunState
from tests.core_model import Record
from tests.core_walk import walk
from tests.test_laws import stamped

SEEDS = range(60)
BARE = {
    "goal": "goal",
    "status": "status",
    "phase": "phase",
    "plan": "plan",
    "wait": "waiting",
    "lease": "lease",
    "workspace": "workspace",
    "checkpoint": "checkpoint",
    "agent_version": "agent_version",
    "rules": "rules_version",
}
MEMBERS = {
    "task": ("tasks", "id"),
    "fact": ("confirmed_facts", "id"),
    "hypothesis": ("hypotheses", "id"),
    "question": ("open_questions", "id"),
    "observation": ("environment_observations", "subject"),
    "effect": ("effects", "id"),
    "artifact": ("artifacts", "id"),
    "tool": ("pending_tool_calls", "step_id"),
    "signal": ("signals", "signal_id"),
    "conflict": ("conflicts", "id"),
}
Entities = dict[tuple[str, str], Any]


def entities(state: RunState) -> Entities:
    """Every entity of a run by kind and id, with its value as the document shows it."""
    if not state.exists:
        return {}
    doc = document(state)
    found: Entities = {(kind, ""): bare(doc[key]) for kind, key in BARE.items()}
    for kind, (key, id) in MEMBERS.items():
        found |= {(kind, member[id]): bare(member) for member in doc[key]}
    found |= {("hypothesis", h["id"]): {**bare(h), "ruled_out": True} for h in doc["ruled_out"]}
    found |= {("permission", name): True for name in doc["permissions_revoked"]}
    found["budget", "tokens"] = doc["budgets"]["tokens_remaining"]
    found["budget", "deadline"] = doc["budgets"]["deadline"]
    return {address: value for address, value in found.items() if value not in (None, [])}


def bare(value: Any) -> Any:
    """A value without author and revision; a checkpoint's own revision is part of it."""
    if not isinstance(value, dict) or "boundary" in value:
        return value
    return {key: item for key, item in value.items() if key not in ("author", "revision")}


def differing(record: Record) -> set[tuple[str, str]]:
    """The entities whose value a record changed."""
    before, after = entities(record.before), entities(record.after)
    return {
        address
        for address in before.keys() | after.keys()
        if before.get(address) != after.get(address)
    }


def drafts() -> list[Record]:
    """Every record that made a revision."""
    return [r for seed in SEEDS for r in walk(seed).records if r.decision.draft is not None]


def test_what_changed_is_stamped() -> None:
    """Whatever a batch made of an entity, a late reader or writer of it will meet its revision."""
    for record in drafts():
        assert differing(record) <= stamped(record), record.value


def test_what_did_not_change_is_not_stamped() -> None:
    """One event that writes the value that is there leaves the stamp that was there."""
    for record in drafts():
        events = record.proposal.events
        if len(events) > 1 or events[0]["type"] in ("RunStarted", "ConflictResolved"):
            continue
        extra = stamped(record) - differing(record)
        if events[0]["type"] == "WaitStarted":
            # A kept signal ended the wait at once: status and wait are back where they were.
            extra -= {("status", ""), ("wait", "")}
        if events[0]["type"] == "SignalReceived":
            extra -= {("signal", events[0]["signal_id"])}
        assert extra == set(), record.value


def test_a_stamp_is_what_the_document_shows() -> None:
    """Author and revision of a shown member are those of the batch that last changed it."""
    latest: dict[tuple[str, tuple[str, str]], tuple[int, dict[str, str]]] = {}
    for seed in SEEDS:
        for record in walk(seed).records:
            if record.decision.draft is None:
                continue
            stamp = (record.decision.revision_after, record.proposal.author.to_dict())
            latest |= {(record.run_id, address): stamp for address in stamped(record)}
            doc = document(record.after)
            for kind, (key, id) in MEMBERS.items():
                for member in doc[key]:
                    expected = latest[record.run_id, (kind, member[id])]
                    assert (member["revision"], member["author"]) == expected
