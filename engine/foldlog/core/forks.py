"""The end of a fork: a copy of a run up to a revision becomes a run of its own.

A fork is written like an import: the parent's records under the new id, and behind them one that
holds the event ``RunForked``. That event is never proposed; no shape of it is known to proposals.

Invariants:
- What belonged to the parent's workers ends: the lease, an open wait, kept signals, pending calls,
  open conflicts. Running tasks are pending again.
- The fork of an archived run is in the hot set.
- No effect of the parent can be made again by the fork: every key and id that it used stays used,
  those that came after the revision too, as far as the fork knows them. What is known of the
  effects that were in doubt, or came later, stands as facts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from foldlog.core import tasks
from foldlog.core.conflicts import drop_all
from foldlog.core.effects import IN_DOUBT, drop_calls, forget
from foldlog.core.leases import release
from foldlog.core.lifecycle import drop_signals, end_wait
from foldlog.core.proposals import Proposal
from foldlog.core.state import Draft, RunState, enlisted
from foldlog.core.values import ID_CHARACTERS_MAX, format_instant

Json = dict[str, Any]

RUN_FORKED = "RunForked"


def is_fork(proposal: Proposal) -> bool:
    """Whether a decided proposal is the end of a fork."""
    return [event["type"] for event in proposal.events] == [RUN_FORKED]


def changed_effects(then: Sequence[Json], now: Sequence[Json]) -> list[Json]:
    """The effects of a document that are not as they were in an older one, as the event has them.

    One that failed and was not there then is left out: its key is free again.
    """
    names = ("id", "kind", "target", "idempotency_key", "status")
    before = {effect["id"]: effect for effect in then}
    found = []
    for effect in now:
        older = before.get(effect["id"])
        if effect != older and (older is not None or effect["outcome"] != "failed"):
            outcome = {} if effect["outcome"] is None else {"outcome": effect["outcome"]}
            found.append({**{name: effect[name] for name in names}, **outcome})
    return found


def reduce_fork(state: RunState, proposal: Proposal, log_time: int) -> Draft:
    """The draft that ends a fork: ``state`` is the copy, not yet a run of its own."""
    [event] = proposal.events
    draft = Draft(state, proposal.author.kind, proposal.author.id, log_time)
    draft.note(forked_from={name: event[name] for name in ("run_id", "revision", "chain")})
    release(draft)
    end_wait(draft, RUN_FORKED, log_time)
    drop_signals(draft)
    drop_calls(draft)
    drop_all(draft)
    tasks.leave_to_others(draft)
    draft.unindex("archived", "")
    later = {effect["id"]: effect for effect in event["effects"]}
    doubtful = [draft.value("effect", id) for id in enlisted(state, "doubt")]
    new = [effect for id, effect in later.items() if not draft.used("effect", id)]
    for effect in sorted([*doubtful, *new], key=lambda effect: effect["id"]):
        statement = _statement(effect, later.get(effect["id"]), event)
        forget(draft, effect["id"], effect["idempotency_key"])
        _tell(draft, effect["id"], statement, event, log_time)
    return draft


def _statement(effect: Json, later: Mapping[str, Any] | None, event: Mapping[str, Any]) -> str:
    parent, revision = event["run_id"], event["revision"]
    what = (
        f"effect {effect['id']} of run {parent}, {effect['kind']} on {effect['target']} with"
        f" idempotency key {effect['idempotency_key']},"
    )
    if later is effect:
        then = f"came after revision {revision}, at which that run was forked"
    else:
        then = f"was {effect['status']} at revision {revision}, at which that run was forked"
    status = effect["status"] if later is None else later.get("outcome") or later["status"]
    known = "whether it happened is not known" if status in IN_DOUBT else f"it {status}"
    return f"{what} {then}; {known}; this run must not make it again"


def _tell(draft: Draft, id: str, statement: str, event: Mapping[str, Any], log_time: int) -> None:
    """A fact about an effect of the parent."""
    fact_id = _free_id(draft, id)
    value: Json = {
        "id": fact_id,
        "statement": statement,
        "evidence": f"effects://{event['run_id']}@rev{event['revision']}",
        "scope": [],
        "observed_at": format_instant(log_time),
        "supersedes": None,
    }
    draft.put("fact", fact_id, value)


def _free_id(draft: Draft, effect_id: str) -> str:
    """``effect/ID``, or ``effect/N`` with the lowest number where that is taken or too long."""
    id, number = f"effect/{effect_id}", 0
    while len(id) > ID_CHARACTERS_MAX or draft.used("fact", id):
        number += 1
        id = f"effect/{number}"
    return id
