"""Alarms: what an operator should not have to look for. CONTRACT section 4, ``why``.

Invariants:
- Computed from a state and a time when read; never stored, never decided on.
"""

from collections.abc import Iterator
from typing import Any

from foldlog.core.document import condition
from foldlog.core.state import RunState, enlisted
from foldlog.core.values import format_instant, parse_instant

DAY_US = 86_400 * 1_000_000

CODES = (
    "NO_DEADLINE",
    "DEADLINE_PASSED",
    "LEASE_EXPIRED",
    "SILENT",
    "EFFECT_IN_DOUBT",
    "CONFLICT_OPEN",
    "BUDGET_EXHAUSTED",
    "QUARANTINED",
    "MIGRATION_REQUIRED",
)
"""Every alarm there is, in the contract's order."""

BUSY = ("running", "planning", "retry")

Found = tuple[str, int | None, str]


def alarms(state: RunState, recorded_at: int, now: int) -> list[dict[str, Any]]:
    """The alarms of a run at ``now``, as ``{code, since, message}`` in the contract's order.

    ``recorded_at`` is the log time of the run's last record; times in microseconds.
    """
    found = (
        *_wait(state, now),
        *_lease(state, now),
        *_silence(state, recorded_at, now),
        *_effects(state, now),
        *_conflicts(state),
        *_budget(state, now),
        *_condition(state),
    )
    return [
        {"code": code, "since": None if since is None else format_instant(since), "message": text}
        for code, since, text in found
    ]


def _wait(state: RunState, now: int) -> Iterator[Found]:
    wait = state.value("wait")
    if wait is None:
        return
    what = f"waits for {wait['kind']} {wait['key']!r}"
    if wait["deadline"] is None:
        since = parse_instant(wait["since"]) // 1000
        if now - since >= DAY_US:
            yield ("NO_DEADLINE", since, f"{what} for 24 h, without a deadline")
    elif now * 1000 >= (deadline := parse_instant(wait["deadline"])):
        yield ("DEADLINE_PASSED", deadline // 1000, f"{what}; its deadline has passed")


def _lease(state: RunState, now: int) -> Iterator[Found]:
    slot = state.slots.get("lease", "")
    if slot is None or slot.value is None or now < slot.hidden:
        return
    if state.value("status") not in ("finish", "waiting"):
        worker = slot.value["worker"]
        yield ("LEASE_EXPIRED", slot.hidden, f"the lease of {worker} is over and nobody took it")


def _silence(state: RunState, recorded_at: int, now: int) -> Iterator[Found]:
    if state.value("status") in BUSY and now - recorded_at >= DAY_US:
        yield ("SILENT", recorded_at, f"{state.value('status')}, and no record for 24 h")


def doubtful_effects(state: RunState, now: int) -> list[tuple[int, str]]:
    """Since when, and the id, of each effect in doubt that no worker with a lease is at."""
    if state.header.doubt_count == 0:
        return []
    lease = state.slots.get("lease", "")
    leased = lease is not None and lease.value is not None and now < lease.hidden
    found = []
    for id in enlisted(state, "doubt"):
        slot = state.slots.get("effect", id)
        if slot is None:
            continue  # of an imported run that no rule has seen: its fault hides no other run's
        if slot.value["status"] == "unknown" or not leased:
            found.append((slot.at, id))
    return found


def _effects(state: RunState, now: int) -> Iterator[Found]:
    if doubtful := doubtful_effects(state, now):
        ids = ", ".join(id for _, id in sorted(doubtful))
        yield ("EFFECT_IN_DOUBT", min(doubtful)[0], f"nobody knows whether it happened: {ids}")


def _conflicts(state: RunState) -> Iterator[Found]:
    found = [(slot.at, id) for id, slot in state.slots.scan("conflict")]
    if found:
        ids = ", ".join(id for _, id in sorted(found))
        yield ("CONFLICT_OPEN", min(found)[0], f"waits for a person to settle: {ids}")


def _budget(state: RunState, now: int) -> Iterator[Found]:
    if state.value("status") == "finish":
        return
    slot = state.slots.get("budget", "tokens")
    if slot is not None and slot.value is not None and slot.value <= 0:
        yield ("BUDGET_EXHAUSTED", slot.at, f"tokens_remaining is {slot.value}")
        return
    deadline = state.value("budget", "deadline")
    if deadline is not None and now * 1000 >= parse_instant(deadline):
        since = parse_instant(deadline) // 1000
        yield ("BUDGET_EXHAUSTED", since, f"the deadline {deadline} has passed")


def _condition(state: RunState) -> Iterator[Found]:
    quarantine = state.quarantine
    if quarantine is not None:
        where = f"record {quarantine.sequence}: {quarantine.error}"
        yield ("QUARANTINED", quarantine.since, where)
    if condition(state) == "migration_required":
        version = state.header.schema_version
        yield ("MIGRATION_REQUIRED", None, f"stored in schema version {version}")
