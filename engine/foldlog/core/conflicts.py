"""Conflicts: proposals that were sent to arbitration, kept until a person settles them.

Invariants:
- A conflict blocks nothing while it is open.
- It leaves the state before its kept events are applied, so that it cannot settle itself.
"""

from collections.abc import Sequence

from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.proposals import Proposal
from foldlog.core.state import Draft


def keep(draft: Draft, proposal: Proposal, entities: Sequence[str]) -> None:
    """Open a conflict of this proposal; its events are not applied."""
    value = {
        "id": proposal.batch_id,
        "entities": sorted(set(entities)),
        "events": list(proposal.events),
        "expected_revision": proposal.expected_revision,
    }
    draft.put("conflict", proposal.batch_id, value)


def check(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``ConflictResolved``: the conflict is open."""
    if draft.get("conflict", event["conflict_id"]) is None:
        return invalid(f"no open conflict {event['conflict_id']!r}", "conflict_id")
    return None


def close(draft: Draft, event: Event, ctx: Context) -> None:
    """``ConflictResolved``: the conflict leaves the state; what it kept is applied by the fold."""
    draft.remove("conflict", event["conflict_id"])


def drop_all(draft: Draft) -> None:
    """Take every open conflict out of the state, unsettled."""
    for id, _ in list(draft.scan("conflict")):
        draft.remove("conflict", id)
