"""Leases: the timed right of one worker to write to a run, and the epochs that fence the old.

Invariants:
- A lease is live while log time < ``expires_at``; no event is written when it expires.
- Epochs only rise, also across releases; after a release every given epoch is fenced.
"""

from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.proposals import Proposal
from foldlog.core.state import Draft, RunState, Slot
from foldlog.core.values import format_instant

MICROSECONDS = 1_000_000


def _is_live(slot: Slot | None, log_time: int) -> bool:
    return slot is not None and slot.value is not None and log_time < slot.hidden


def carries_live_epoch(state: RunState, proposal: Proposal, log_time: int) -> bool:
    """Whether the batch names the epoch of a lease that is live at log time."""
    slot = state.slots.get("lease", "")
    return (
        slot is not None
        and _is_live(slot, log_time)
        and proposal.lease_epoch == slot.value["epoch"]
    )


def refuse_by_lease(state: RunState, proposal: Proposal, log_time: int) -> Refusal | None:
    """Step 4: FENCED for another epoch than the current one, LEASE_HELD for an agent without."""
    slot = state.slots.get("lease", "")
    lease = None if slot is None else slot.value
    if proposal.lease_epoch is not None:
        if lease is not None and lease["epoch"] == proposal.lease_epoch:
            return None
        current = "there is no lease" if lease is None else f"the current one is {lease['epoch']}"
        message = f"lease epoch {proposal.lease_epoch} is fenced: {current}"
        return Refusal("FENCED", message, field="lease_epoch")
    if proposal.author.kind != "agent" or not _is_live(slot, log_time):
        return None
    assert lease is not None
    if all(
        event["type"] == "LeaseAcquired" and event["worker"] == lease["worker"]
        for event in proposal.events
    ):
        return None
    return Refusal("LEASE_HELD", f"{lease['worker']} holds the lease until {lease['expires_at']}")


def check_acquire(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``LeaseAcquired``: LEASE_HELD while another worker's lease is live."""
    slot = draft.get("lease")
    if _is_live(slot, ctx.log_time):
        assert slot is not None
        if slot.value["worker"] != event["worker"]:
            until = slot.value["expires_at"]
            message = f"{slot.value['worker']} holds the lease until {until}"
            return Refusal("LEASE_HELD", message, field="worker")
    return None


def acquire(draft: Draft, event: Event, ctx: Context) -> None:
    """``LeaseAcquired``: the next epoch, one's own lease included."""
    epoch = draft.header.lease_epoch_last + 1
    draft.note(lease_epoch_last=epoch)
    _hold(draft, event["worker"], epoch, ctx.log_time + event["ttl_seconds"] * MICROSECONDS)


def _hold(draft: Draft, worker: str, epoch: int, expires_at: int) -> None:
    lease = {"worker": worker, "epoch": epoch, "expires_at": format_instant(expires_at)}
    draft.set("lease", lease, hidden=expires_at)


def check_held(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``LeaseRenewed`` and ``LeaseReleased``: there is a lease, live or not."""
    return None if draft.value("lease") is not None else invalid("there is no lease")


def renew(draft: Draft, event: Event, ctx: Context) -> None:
    """``LeaseRenewed``: the same worker and epoch, from log time on."""
    lease = draft.value("lease")
    expires_at = ctx.log_time + event["ttl_seconds"] * MICROSECONDS
    _hold(draft, lease["worker"], lease["epoch"], expires_at)


def give_up(draft: Draft, event: Event, ctx: Context) -> None:
    """``LeaseReleased``: no lease, and its epoch is fenced."""
    release(draft)


def release(draft: Draft) -> None:
    """End the lease there is, if any; its epoch is fenced from here on."""
    if draft.value("lease") is not None:
        draft.set("lease", None)
