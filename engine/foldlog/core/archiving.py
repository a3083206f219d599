"""Archiving: a finished run leaves the hot set, and stays what it is.

The event ``RunArchived`` is foldlog's own: it stands in no row of the contract's catalogue, and is
the same under every version of the rules.

Invariants:
- It changes nothing of a run but that it is archived; nothing takes that back.
- What comes to an archived run is decided as for any finished one: reports are taken, nothing else.
"""

from foldlog.core.catalogue import AUTHORITIES, Catalogue, EventType
from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.proposals import RUN_ARCHIVED, Proposal
from foldlog.core.state import Draft


def is_archive(proposal: Proposal) -> bool:
    """Whether a proposal asks to archive its run."""
    return [event["type"] for event in proposal.events] == [RUN_ARCHIVED]


def with_own_events(rows: Catalogue, proposal: Proposal) -> Catalogue:
    """The rows under which a proposal is decided and folded."""
    return {**rows, RUN_ARCHIVED: _ROW} if is_archive(proposal) else rows


def _check(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    status = draft.value("status")
    if status != "finish":
        return invalid(f"a run is archived once it is finished, and this one is {status}")
    if draft.value("archived") is not None:
        return invalid("the run is archived already")
    if draft.header.doubt_count:
        return invalid(f"{draft.header.doubt_count} effects are in doubt: reconcile them first")
    return None


def _archive(draft: Draft, event: Event, ctx: Context) -> None:
    draft.index("archived", "", True)


_ROW = EventType(RUN_ARCHIVED, _archive, _check, floats=True, authors=AUTHORITIES)
