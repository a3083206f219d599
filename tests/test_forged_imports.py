"""Imports of records that no build ever decided, made so that every hash of them is right.

Invariants:
- Such a part is recorded and stepped over, whatever it holds, and touches no other run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foldlog.core.proposals import Proposal, parse_proposal
from foldlog.core.values import Author, parse_instant
from foldlog.views import View, alarm_counts
from foldlog.wire.chain import ZERO, run_hash
from foldlog.wire.envelope import encode_proposal
from foldlog.wire.imports import encode_part, parts_of
from foldlog.wire.records import Record, encode_record
from foldlog.working import content_digest
from tests.turn_world import START_US, Place, fact, records, start, value

RUN, OPERATOR = "run_1", Author("operator", "ada")
BEGIN = {"type": "RunStarted", "goal": {"statement": "x"}}
INTENT = {
    "type": "EffectIntended",
    "effect": {"id": "e", "kind": "mail", "target": "mail://ada", "idempotency_key": "k"},
}
PLANNING = {"type": "RunTransitioned", "to": "planning"}
SHA = {"sha256": bytes(32), "size": 1}
LATER = {"type": "Recorded", "name": "n", "payload": "x" * 60_000}
LATER_BATCH = uuid.UUID(int=77)


def later() -> Proposal:
    """A proposal that comes after the import, under a batch id that the import has used."""
    batch = {"batch_id": str(LATER_BATCH), "author": OPERATOR.to_dict(), "events": [LATER]}
    return parse_proposal(RUN, batch)


def decided(chain: bytes, before: int, event: dict[str, Any], **fields: Any) -> Record:
    """A record as if a rule had accepted an event, of a state format that nobody compares."""
    batch_id = str(uuid.UUID(int=1000 + before))
    proposal = Proposal(run_id=RUN, batch_id=batch_id, author=OPERATOR, events=(event,))
    record = Record(
        sequence=before + 1, run_id=RUN, position=before + 1, outcome="accepted",
        revision_before=before, revision_after=before + 1, rules_version=1, appended_at=START_US,
        log_time=START_US, build="0", decider="", state_format=1, previous=ZERO, chain=ZERO,
        batch_id=batch_id, state_hash=bytes(32), proposal=encode_proposal(proposal),
    )._replace(**fields)  # fmt: skip
    return record._replace(chain=run_hash(chain, record))


def refused(chain: bytes, before: int, **fields: Any) -> Record:
    """A record as if a proposal had not been readable."""
    nothing = {"proposal": None, "state_hash": None, "batch_id": None, "revision_after": before}
    return decided(
        chain, before, BEGIN, **{**nothing, "outcome": "rejected", "code": "MALFORMED", **fields}
    )


def run_of(*events: dict[str, Any], **fields: Any) -> list[Record]:
    """A run of these events, one a revision; the fields are those of its first record."""
    made: list[Record] = []
    for number, event in enumerate(events):
        chain = made[-1].chain if made else ZERO
        made.append(decided(chain, number, event, **({} if made else fields)))
    return made


def with_refused(**fields: Any) -> list[Record]:
    """A run that began, and a refused record after it."""
    [first] = run_of(BEGIN)
    return [first, refused(first.chain, 1, **fields)]


def with_a_size_below_zero() -> list[Record]:
    """The same, of less than no bytes: of such a record there is no hash."""
    first, second = with_refused(unreadable=SHA)
    return [first, second._replace(unreadable={**SHA, "size": -1})]


def beginning(**fields: Any) -> list[Record]:
    """A run whose first event has these fields too."""
    return run_of({**BEGIN, **fields})


def forked_twice() -> list[Record]:
    """A fork that names an effect twice."""
    effect = {**INTENT["effect"], "status": "intended"}  # type: ignore[dict-item]
    whole = {"type": "RunForked", "run_id": "r0", "revision": 1, "chain": "0" * 64}
    return run_of(BEGIN, {**whole, "effects": [effect, effect]})


def time_of_9999() -> list[Record]:
    """A run in the last second that can be written."""
    return run_of(BEGIN, log_time=parse_instant("9999-12-31T23:59:59Z") // 1000)


FORGERIES: dict[str, Callable[[], list[Record]]] = {
    "a size below zero": with_a_size_below_zero,
    "a code of 990 KB": lambda: with_refused(
        unreadable={**SHA, "sha256": content_digest(later()) + bytes(16)},
        batch_id=str(LATER_BATCH),
        code="X" * 990_000,
    ),
    "a wait until no time": lambda: run_of(
        BEGIN,
        PLANNING,
        {"type": "WaitStarted", "kind": "timer", "key": "k", "reason": "", "deadline": "soon"},
    ),
    "a wait of no kind": lambda: run_of(
        BEGIN, PLANNING, {"type": "WaitStarted", "kind": "odd", "key": "k", "reason": ""}
    ),
    "a deadline of no time": lambda: beginning(budgets={"deadline": "soon"}),
    "more tokens than there are numbers": lambda: beginning(budgets={"tokens_remaining": 1 << 62}),
    "no permission": lambda: run_of(
        BEGIN, {"type": "PermissionRevoked", "permission": "", "reason": ""}
    ),
    "a fork's effect twice": forked_twice,
    "a time nobody can add to": time_of_9999,
    "rules of a plug-in from the start": lambda: beginning(rules_version=2_000_000),
    "rules of a plug-in later": lambda: run_of(
        BEGIN, {"type": "RulesActivated", "rules_version": 1_000_000}
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_import_is_stepped_over(name: str) -> None:
    """It is recorded as refused; runs beside it, and readers of them all, go on."""
    place = Place("memory", Path())
    place.decide("run_2", start())
    data = [encode_record(record) for record in FORGERIES[name]()]
    for part in parts_of(RUN, data, OPERATOR):
        place.log.propose(0, [(RUN.encode(), encode_part(part))])
    place.turn_to_end()
    last = records(place.log)[-1]
    assert last.outcome == "rejected"
    assert last.code in ("MALFORMED", "UNSUPPORTED_RULES")
    place.log.propose(0, [(RUN.encode(), encode_proposal(later()))])
    place.propose("run_2", fact(2))
    place.turn_to_end()
    *_, refused_later, accepted = records(place.log)
    assert (refused_later.outcome, refused_later.code) == ("rejected", "RUN_NOT_FOUND")
    assert accepted.outcome == "accepted"
    view = View(place.log, place.store, 0)
    assert [run.run_id for run in view.runs()] == ["run_2"]
    assert not any(alarm_counts(view, START_US).values())


def test_an_effect_that_was_begun_twice_hides_no_other_run() -> None:
    """Which rule an event broke is not asked of what is imported; the list of runs is whole."""
    place = Place("memory", Path())
    settled = {"type": "EffectSucceeded", "effect_id": "e"}
    whole = {"type": "RunForked", "run_id": "r0", "revision": 1, "chain": "0" * 64, "effects": []}
    data = [encode_record(record) for record in run_of(BEGIN, INTENT, INTENT, whole)]
    [part] = parts_of(RUN, data, OPERATOR)
    place.decide("run_2", start())
    place.log.propose(0, [(RUN.encode(), encode_part(part))])
    place.turn_to_end()
    place.decide(RUN, value(settled, id=8))
    view = View(place.log, place.store, 0)
    assert "run_2" in [run.run_id for run in view.runs()]
    assert alarm_counts(view, START_US)["QUARANTINED"] == 0


def test_what_is_right_is_taken_over() -> None:
    """The same making gives a run that is taken over: others are refused for what is wrong."""
    place = Place("memory", Path())
    data = [encode_record(record) for record in run_of(BEGIN, PLANNING, INTENT)]
    [part] = parts_of(RUN, data, OPERATOR)
    place.log.propose(0, [(RUN.encode(), encode_part(part))])
    place.turn_to_end()
    assert [record.outcome for record in records(place.log)] == ["accepted"] * 3
    [cancelled] = place.decide(RUN, value({"type": "RunCancelled", "reason": ""}, id=9))
    assert (cancelled.outcome, cancelled.revision_after) == ("accepted", 4)
