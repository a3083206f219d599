"""Laws of the core, over random walks: determinism, isolation, what a reducer may touch.

Invariants:
- The walks come from fixed seeds, so that a failure is met again by running the test again.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from foldlog.core.catalogue import CATALOGUE, Catalogue, touched
from foldlog.core.decide import Decision, decide
from foldlog.core.document import CONTRACT_KEYS, digest_form, document
from foldlog.core.reduce import reduce, reduce_arbitration
from foldlog.core.shapes import FIELDS
from foldlog.core.state import (
    SINGLE_KINDS,
    VANISHING_KINDS,
    Draft,
    RunState,
    enlisted,
    ordinal,
    ordinal_latest_first,
)
from foldlog.core.values import parse_instant
from tests.core_model import Record, Slots, World
from tests.core_walk import RULES_OF_WALKS, walk

SEEDS = range(45)
WILD_SEEDS = range(1_000, 1_015)
WILD_IDS = 6  # New ids in a wild walk are drawn from so few, and so are mostly used already.
ACCEPTED_MIN = 8  # Of each event type, over all walks.
CODES = (
    "BATCH_ID_REUSED RUN_NOT_FOUND RUN_EXISTS RUN_FINISHED RUN_QUARANTINED UNSUPPORTED_RULES "
    "NOT_AUTHORIZED FENCED LEASE_HELD SUPERSEDED EXPECTATION_REQUIRED FUTURE_REVISION CONFLICT "
    "PERMISSION_REVOKED BUDGET_EXHAUSTED DEPENDENCY_UNMET EVIDENCE_REQUIRED STALE_OBSERVATION "
    "INVALID_TRANSITION"
).split()


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Every decision of every walk."""
    worlds = [walk(seed) for seed in SEEDS]
    worlds += [walk(seed, ids=WILD_IDS) for seed in WILD_SEEDS]
    return [record for world in worlds for record in world.records]


def told(decision: Decision) -> tuple[Any, ...]:
    """A decision as values that can be compared, its draft without the state below it."""
    draft = decision.draft
    below = None if draft is None else changed(draft)
    names = [name for name in Decision.__slots__ if name != "draft"]
    return (*(getattr(decision, name) for name in names), below)


def changed(draft: Draft) -> tuple[Any, ...]:
    """What a draft makes of the state below it."""
    return (draft.changes, draft.header, draft.quarantine)


def decide_again(record: Record, rules: dict[int, Catalogue] | None = None) -> Decision:
    """The decision of a record, made again of what is in the record."""
    return decide(
        record.before,
        record.proposal,
        record.log_time,
        record.known,
        record.proposal.content(),
        rules or RULES_OF_WALKS,
    )


def test_the_walks_meet_every_event_type_and_code(records: list[Record]) -> None:
    """Every event type is accepted often and every code of the rules is met."""
    accepted = Counter(
        event["type"]
        for record in records
        if record.decision.outcome == "accepted"
        for event in record.proposal.events
    )
    assert {type: accepted[type] for type in FIELDS if accepted[type] < ACCEPTED_MIN} == {}
    codes = {record.decision.code for record in records}
    assert [code for code in CODES if code not in codes] == []
    outcomes = {record.decision.outcome for record in records}
    assert outcomes == {"accepted", "rejected", "arbitration", "duplicate", "quarantined"}


# Determinism


def test_deciding_again_gives_the_recorded_decision(records: list[Record]) -> None:
    """Under its recorded log time every decision of a walk comes out as it was."""
    for record in records:
        assert told(decide_again(record)) == told(record.decision), record.value


def test_deciding_and_reducing_change_none_of_their_inputs(records: list[Record]) -> None:
    """State and proposal are the same after deciding and folding as before."""
    for record in records[::5]:
        state, proposal = copy.deepcopy(record.before), copy.deepcopy(record.proposal)
        fold_again(record)
        decide_again(record)
        assert record.before == state
        assert record.proposal == proposal


def fold_again(record: Record) -> Draft | None:
    """The draft of a record made by folding, without asking a rule; None if nothing is folded."""
    decision = record.decision
    if decision.outcome == "accepted":
        rows = RULES_OF_WALKS[decision.rules_version]
        version = decision.rules_version
        return reduce(record.before, record.proposal, record.log_time, rows, version)
    if decision.outcome == "arbitration":
        names = [conflict["entity"] for conflict in decision.conflicts]
        return reduce_arbitration(record.before, record.proposal, record.log_time, names)
    return None


def test_folding_gives_what_deciding_drafted(records: list[Record]) -> None:
    """What a reader folds from a record is what its decider had in its draft, bit by bit."""
    for record in records:
        fold, draft = fold_again(record), record.decision.draft
        assert (fold is None) == (draft is None)
        if fold is not None and draft is not None:
            assert changed(fold) == changed(draft), record.value


def test_only_accepted_and_arbitrated_proposals_change_a_run(records: list[Record]) -> None:
    """A rejection, a duplicate or a quarantine leaves header and slots as they were."""
    for record in records:
        decision = record.decision
        grows = decision.outcome in ("accepted", "arbitration")
        assert decision.revision_after == decision.revision_before + grows
        assert record.after.header.revision == decision.revision_after
        if not grows:
            assert decision.draft is None
            assert record.after.header is record.before.header
            assert record.after.slots is record.before.slots


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(min_value=1_000, max_value=2**32))
def test_runs_do_not_see_each_other(seed: int) -> None:
    """Two runs that interleave come to what each comes to alone."""
    both = walk(seed, steps=60)
    for run_id in {record.run_id for record in both.records}:
        alone = World(rules=RULES_OF_WALKS)
        for record in [record for record in both.records if record.run_id == run_id]:
            alone.now = record.log_time
            decision = alone.propose(run_id, record.value)
            assert decision.code == record.decision.code
            assert decision.outcome == record.decision.outcome
            assert (decision.draft is None) == (record.decision.draft is None)
        assert alone.state(run_id).header == both.state(run_id).header
        assert alone.state(run_id).slots == both.state(run_id).slots


def test_no_rule_raises_by_itself(records: list[Record]) -> None:
    """Only the rules that were made to raise do; all else is an answer."""
    errors = {record.decision.error for record in records} - {None}
    assert errors == {"ZeroDivisionError: poisoned"}


# The table: what a reducer may touch


def stamped(record: Record) -> set[tuple[str, str]]:
    """The entities that a record stamped, what left the state under its former kind."""
    draft = record.decision.draft
    assert draft is not None
    return {
        (kind.removeprefix("gone."), id)
        for (kind, id), slot in draft.changes.items()
        if slot is not None and slot.revision == draft.header.revision
    }


def declared(
    templates: tuple[str, ...], record: Record, found: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Of the entities found, those that these templates name for this record's only event."""
    if "*" in templates:
        return found
    event = record.proposal.events[0]
    kinds = {template[:-2] for template in templates if template.endswith("/*")}
    exact = tuple(t for t in templates if not t.endswith("/*"))
    named = set(touched(exact, event, record.before))
    return {(kind, id) for kind, id in found if kind in kinds or (kind, id) in named}


def single_event_records(records: list[Record]) -> list[Record]:
    """Accepted batches of one event, whose stamps can be laid to that event."""
    accepted = [record for record in records if record.decision.outcome == "accepted"]
    return [record for record in accepted if len(record.proposal.events) == 1]


def undeclared(record: Record, rows: Catalogue) -> set[tuple[str, str]]:
    """What a batch of one event stamped although its row names it nowhere."""
    row, found = rows[record.proposal.events[0]["type"]], stamped(record)
    return found - declared((*row.writes, *row.also), record, found)


def test_a_reducer_stamps_only_what_its_row_names(records: list[Record]) -> None:
    """Nothing outside the `writes` and `also` of an event's row is ever stamped."""
    for record in single_event_records(records):
        assert undeclared(record, CATALOGUE) == set(), record.value


def test_every_entity_of_a_row_is_written_somewhere(records: list[Record]) -> None:
    """Each template of `writes` and `also` is stamped by its event in some reachable state."""
    left = {
        (row.name, template) for row in CATALOGUE.values() for template in (*row.writes, *row.also)
    }
    for record in single_event_records(records):
        name, found = record.proposal.events[0]["type"], stamped(record)
        for template in (*CATALOGUE[name].writes, *CATALOGUE[name].also):
            if (name, template) in left and declared((template,), record, found):
                left.discard((name, template))
    assert sorted(left) == []


# What is counted and indexed


def states(records: list[Record]) -> list[RunState]:
    """Every state that a walk came to, of runs that exist."""
    made = [r.after for r in records if r.after is not r.before and r.after.exists]
    return made


def computed_counters(state: RunState) -> dict[str, int]:
    """The header's counters as the slots have them."""
    assert isinstance(state.slots, Slots)
    count = {kind: len(slots) for kind, slots in state.slots.kinds.items()}
    tasks = [slot.value["status"] for _, slot in state.slots.scan("task")]
    effects = [slot.value["status"] for _, slot in state.slots.scan("effect")]
    return {
        "running_count": tasks.count("running"),
        "doubt_count": effects.count("intended") + effects.count("unknown"),
        "calls_count": count.get("tool", 0),
        "signals_count": count.get("signal", 0),
        "permissions_count": count.get("permission", 0),
        "transitions_count": count["transition"],
        "tasks_revision": latest(state, "task"),
        "effects_revision": latest(state, "effect"),
    }


def latest(state: RunState, kind: str) -> int:
    """The revision that last changed a member of a collection, one that left it too."""
    both = [slot for k in (kind, "gone." + kind) for _, slot in state.slots.scan(k)]
    return max((slot.revision for slot in both), default=0)


def test_the_headers_counters_are_what_the_slots_say(records: list[Record]) -> None:
    """Counters and `*_revision` of the header equal what is computed from the slots."""
    for state in states(records):
        expected = computed_counters(state)
        assert {name: getattr(state.header, name) for name in expected} == expected


def test_the_indexes_are_what_the_slots_say(records: list[Record]) -> None:
    """`open`, `running`, `doubt`, `call`, `key` hold exactly what tasks, calls, effects say."""
    for state in states(records):
        tasks = list(state.slots.scan("task"))
        effects = list(state.slots.scan("effect"))
        alive = [i for i in tasks if i[1].value["status"] in ("pending", "running", "blocked")]
        runs = [item for item in tasks if item[1].value["status"] == "running"]
        assert listed(state, "open") == {id for id, _ in alive}
        assert listed(state, "kept") == {id for id, _ in state.slots.scan("signal")}
        assert listed(state, "call") == {id for id, _ in state.slots.scan("tool")}
        assert index(state, "running") == {
            ordinal_latest_first(s.hidden["start"]): id for id, s in runs
        }
        assert listed(state, "doubt") == {
            id for id, s in effects if s.value["status"] in ("intended", "unknown")
        }
        holders = [(s.value["idempotency_key"], s.revision, id, s.value) for id, s in effects]
        assert set(index(state, "key")) == {key for key, *_ in holders}
        for key, _, id, value in holders:
            assert index(state, "key")[key] == id or value["outcome"] == "failed"


def listed(state: RunState, kind: str) -> set[str]:
    """The ids of a set, whose numbers must be dense and known by id."""
    ids = enlisted(state, kind)
    numbers = {ordinal(number): id for number, id in enumerate(ids, 1)}
    assert {n: id for n, id in index(state, kind).items() if n} == numbers
    assert index(state, kind + ".at") == {id: number for number, id in enumerate(ids, 1)}
    assert len(set(ids)) == len(ids) == (state.value(kind) or 0)
    return set(ids)


def index(state: RunState, kind: str) -> dict[str, Any]:
    """An index as a dictionary."""
    return {id: slot.value for id, slot in state.slots.scan(kind)}


def test_numbers_are_given_once(records: list[Record]) -> None:
    """Places, starts and signals' numbers differ, and lie below the next one to be given."""
    for state in states(records):
        for kind, name, following in (
            ("task", "place", state.header.next_place),
            ("task", "start", state.header.next_start),
            ("signal", None, state.header.next_signal),
        ):
            hidden = [slot.hidden for _, slot in state.slots.scan(kind)]
            numbers = [h[name] if name else h for h in hidden if not name or name in h]
            assert len(set(numbers)) == len(numbers)
            assert max(numbers, default=0) < following


def test_a_member_is_there_or_gone(records: list[Record]) -> None:
    """No id is in a collection and among those that left it, a permission revoked again aside."""
    for state in states(records):
        for kind in VANISHING_KINDS - {"permission"}:
            there = {id for id, _ in state.slots.scan(kind)}
            assert there.isdisjoint(id for id, _ in state.slots.scan("gone." + kind))


def test_stamps_are_of_the_run(records: list[Record]) -> None:
    """Every stamp is of a revision the run has had, and every transition is kept in order."""
    for state in states(records)[::3]:
        assert isinstance(state.slots, Slots)
        for kind, slots in state.slots.kinds.items():
            for id, slot in slots.items():
                assert 0 <= slot.revision <= state.header.revision, (kind, id)
                assert (slot.revision > 0) == (slot.author_kind != ""), (kind, id)
        moves = list(index(state, "transition").values())
        assert [b["from"] for b in moves[1:]] == [a["to"] for a in moves[:-1]]
        assert moves[0]["from"] is None
        assert moves[-1]["to"] == state.value("status")


def test_the_lease_ends_when_it_says(records: list[Record]) -> None:
    """What is compared with log time is what the document shows, and the epoch is the last."""
    for state in states(records):
        slot = state.slots.get("lease", "")
        if slot is not None and slot.value is not None:
            assert parse_instant(slot.value["expires_at"]) == slot.hidden * 1000
            assert slot.value["epoch"] == state.header.lease_epoch_last


# The document


def test_the_document_is_ordered_and_whole(records: list[Record]) -> None:
    """Every key is there, collections go by id, signals by age."""
    for state in states(records):
        doc = document(state)
        assert sorted([*CONTRACT_KEYS, "attempts"]) == sorted(doc)
        for name, key in COLLECTIONS.items():
            ids = [item[key] for item in doc[name]]
            assert ids == sorted(set(ids)), name
        assert doc["permissions_revoked"] == sorted(doc["permissions_revoked"])
        ages = [state.slots.get("signal", s["signal_id"]).hidden for s in doc["signals"]]  # type: ignore[union-attr]
        assert ages == sorted(ages)


COLLECTIONS = {
    "confirmed_facts": "id",
    "hypotheses": "id",
    "ruled_out": "id",
    "open_questions": "id",
    "tasks": "id",
    "environment_observations": "subject",
    "effects": "id",
    "artifacts": "id",
    "pending_tool_calls": "step_id",
    "conflicts": "id",
}


def test_the_documents_plan_is_its_tasks(records: list[Record]) -> None:
    """`plan` is the tasks by place, `active_task_id` the latest start, `next_task_ids` what may."""
    for state in states(records):
        doc, slots = document(state), dict(state.slots.scan("task"))
        assert doc["plan"] == sorted(slots, key=lambda id: slots[id].hidden["place"])
        runs = [id for id, slot in slots.items() if slot.value["status"] == "running"]
        latest = max(runs, key=lambda id: slots[id].hidden["start"], default=None)
        assert doc["active_task_id"] == latest
        by_id = {task["id"]: task for task in doc["tasks"]}
        assert doc["next_task_ids"] == [
            id
            for id in doc["plan"]
            if by_id[id]["status"] == "pending"
            and all(by_id.get(d, {}).get("status") == "completed" for d in by_id[id]["depends_on"])
        ]


def test_the_documents_parts_agree(records: list[Record]) -> None:
    """Status, wait, result, lease, blocked tasks, the ledger and the last transition fit."""
    for state in states(records):
        doc = document(state)
        assert (doc["status"] == "waiting") == (doc["waiting"] is not None)
        assert (doc["status"] == "finish") == (doc["result"] is not None)
        assert doc["status"] != "finish" or doc["lease"] is None
        assert doc["last_transition"]["to"] == doc["status"]
        assert 0 <= doc["control_revision"] <= doc["revision"]
        assert (doc["effect_ledger_ref"] is None) == (doc["effects"] == [])
        for task in doc["tasks"]:
            assert (task["status"] == "blocked") == (task["blocked_by"] is not None)
            assert (task["evidence"] is not None) == (task["status"] == "completed")
        for effect in doc["effects"]:
            assert (effect["outcome"] is None) == (effect["status"] in ("intended", "unknown"))


def test_every_document_has_a_digest(records: list[Record]) -> None:
    """RFC 8785 takes every document a run can come to."""
    for state in states(records)[::4]:
        assert rfc8785.dumps(digest_form(document(state)))


def test_a_digest_leaves_out_what_depends_on_the_build(records: list[Record]) -> None:
    """`schema_version` (the checkpoint's too), `condition` and `migrated_from`, what the contract
    does not name, and no more."""
    left_out = {"schema_version", "condition", "migrated_from"}
    for state in states(records)[::25]:
        doc = document(state)
        form = digest_form({**doc, "a_later_key": 1})
        assert set(form) == set(doc) - left_out - {"attempts", "plugins"}
        taken = doc["checkpoint"]
        if taken is not None:
            assert set(form["checkpoint"]) == set(taken) - {"schema_version"}
        rest = set(form) - {"checkpoint"}
        assert {key: form[key] for key in rest} == {key: doc[key] for key in rest}
    assert any(document(state)["checkpoint"] for state in states(records)[::25])


def test_a_kind_is_single_or_a_collection() -> None:
    """No entity is both one of a kind and a member of a collection."""
    assert SINGLE_KINDS.isdisjoint(VANISHING_KINDS)
