"""Every entity of a state under the name that ``diff`` uses, with the value that it shows.

Invariants:
- A value has neither author nor revision; an entity that holds nothing is not there.
"""

from typing import Any

from foldlog.core.document import document
from foldlog.core.state import RunState

COLLECTIONS = (
    ("task", "tasks", "id"),
    ("fact", "confirmed_facts", "id"),
    ("hypothesis", "hypotheses", "id"),
    ("hypothesis", "ruled_out", "id"),
    ("question", "open_questions", "id"),
    ("observation", "environment_observations", "subject"),
    ("effect", "effects", "id"),
    ("artifact", "artifacts", "id"),
    ("tool", "pending_tool_calls", "step_id"),
    ("signal", "signals", "signal_id"),
    ("conflict", "conflicts", "id"),
)
"""Kind, the document's list, and the key that holds the id."""

SINGLES = (
    ("goal", "goal"),
    ("status", "status"),
    ("phase", "phase"),
    ("wait", "waiting"),
    ("lease", "lease"),
    ("workspace", "workspace"),
    ("checkpoint", "checkpoint"),
    ("plan", "plan"),
    ("agent_version", "agent_version"),
    ("rules", "rules_version"),
)
"""Kind and the document's key."""


def entities(state: RunState) -> dict[str, Any]:
    """Name -> value of everything that stands in the state's document."""
    shown = document(state)
    found = {kind: shown[key] for kind, key in SINGLES}
    found["goal"] = _bare(shown["goal"])
    found["checkpoint"] = _bare(shown["checkpoint"])
    found["budget/tokens"] = shown["budgets"]["tokens_remaining"]
    found["budget/deadline"] = shown["budgets"]["deadline"]
    for permission in shown["permissions_revoked"]:
        found[f"permission/{permission}"] = True
    for kind, key, id in COLLECTIONS:
        mark = {"ruled_out": True} if key == "ruled_out" else {}
        for member in shown[key]:
            found[f"{kind}/{member[id]}"] = {**_bare(member), **mark}
    for kind, members in shown.get("plugins", {}).items():
        found.update({f"{kind}/{member['id']}": _bare(member) for member in members})
    return {name: value for name, value in found.items() if value is not None}


def _bare(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if key not in ("author", "revision")}
