"""Reduce: a state and an accepted batch give the next state. Replays decisions, decides nothing.

Invariants:
- The result depends on the arguments alone, and nothing of the state below is changed.
- Folding never asks a rule: what was accepted once is applied for ever.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foldlog.core import conflicts
from foldlog.core.catalogue import Catalogue
from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.leases import carries_live_epoch, refuse_by_lease
from foldlog.core.proposals import Proposal
from foldlog.core.state import Draft, RunState
from foldlog.core.values import Author, Fault


@dataclass(frozen=True, slots=True)
class Step:
    """One event still to be applied: ``index`` is its place in the proposal.

    Of an event that a conflict kept, ``index`` is the place of the event that settles it.
    """

    event: Event
    index: int
    author: Author
    takes_over: bool
    kept: bool = False


def reduce(
    state: RunState, proposal: Proposal, log_time: int, rules: Catalogue, rules_version: int
) -> Draft:
    """The draft that an accepted batch makes of a state; ``log_time`` in microseconds."""
    draft, refusal = apply_batch(state, proposal, log_time, rules, rules_version, checked=False)
    assert refusal is None
    return draft


def reduce_arbitration(
    state: RunState, proposal: Proposal, log_time: int, entities: Sequence[str]
) -> Draft:
    """The draft with one more open conflict; ``entities`` are the names it conflicts on."""
    draft = Draft(state, proposal.author.kind, proposal.author.id, log_time)
    conflicts.keep(draft, proposal, entities)
    return draft


def apply_batch(
    state: RunState,
    proposal: Proposal,
    log_time: int,
    rules: Catalogue,
    rules_version: int,
    *,
    checked: bool,
) -> tuple[Draft, Refusal | None]:
    """Apply a batch's events in order; with ``checked``, ask step 7's rules before each.

    Kept events of a conflict that is settled by taking them are applied in its place, with the
    rights of who proposed them and the stamp of who settles.
    """
    draft = Draft(state, proposal.author.kind, proposal.author.id, log_time)
    late = is_late(state, proposal, log_time, rules)
    takes_over = carries_live_epoch(state, proposal, log_time)
    todo = deque(
        Step(event, index, proposal.author, takes_over)
        for index, event in enumerate(proposal.events)
    )
    place = 0
    while todo:
        step = todo.popleft()
        row = rules.get(step.event["type"])
        if row is None and checked:
            message = f"the run's rules have no event type {step.event['type']}"
            return draft, _placed(invalid(message), step)
        assert row is not None, step.event["type"]
        ctx = Context(
            log_time, proposal.batch_id, step.author, rules_version, place, step.takes_over, late
        )
        if checked and (refusal := _refuse(draft, step, ctx, rules)) is not None:
            return draft, _placed(refusal, step)
        kept = _taken(draft, step)
        row.apply(draft, step.event, ctx)
        todo.extendleft(reversed(kept))
        place += 1
    return draft, None


def _placed(refusal: Refusal, step: Step) -> Refusal:
    """A refusal with its place in the proposal; a field of a kept event is no field of that."""
    if not step.kept:
        return replace(refusal, event_index=step.index)
    message = f"the kept {step.event['type']}: {refusal.message}"
    return replace(refusal, message=message, event_index=step.index, field=None)


def is_late(state: RunState, proposal: Proposal, log_time: int, rules: Catalogue) -> bool:
    """Whether this is a batch of reports for which FENCED or LEASE_HELD is waived."""
    reports = all(rules[event["type"]].report for event in proposal.events)
    return reports and refuse_by_lease(state, proposal, log_time) is not None


def _refuse(draft: Draft, step: Step, ctx: Context, rules: Catalogue) -> Refusal | None:
    row = rules[step.event["type"]]
    if step.kept and row.shape is not None:
        # It was looked at when it was proposed, maybe under other rules than the run has now.
        try:
            row.shape(step.event)
        except Fault as fault:
            return invalid(f"is not as the run's rules have it: {fault.reason}")
    refusal = row.check(draft, step.event, ctx) if row.check is not None else None
    if refusal is not None and refusal.code != "INVALID_TRANSITION":
        return refusal
    if _ended_here(draft) and not row.report:
        return invalid(f"{row.name} cannot follow the end of the run in its batch")
    return refusal


def _ended_here(draft: Draft) -> bool:
    """Whether the batch itself ended the run; what may come to one that had ended is step 3's."""
    before, now = draft.base.value("status"), draft.value("status")
    return before != "finish" and bool(now == "finish")


def _taken(draft: Draft, step: Step) -> list[Step]:
    """The kept events that this event brings back: those of a conflict settled by taking them."""
    settling = step.event
    if settling["type"] != "ConflictResolved" or settling["resolution"] != "take_proposed":
        return []
    slot = draft.get("conflict", settling["conflict_id"])
    assert slot is not None, settling["conflict_id"]
    proposer = Author(slot.author_kind, slot.author_id)
    events = slot.value["events"]
    return [Step(event, step.index, proposer, takes_over=True, kept=True) for event in events]
