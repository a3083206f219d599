"""Forks: a run's history up to a revision under another id, and then a run of its own.

Invariants:
- Whatever is forked, the home verifies, and deciding again gives the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foldlog_schemas
from foldlog import aio, client, errors, testing
from foldlog.core.forks import RUN_FORKED
from foldlog.core.values import Author, format_instant
from foldlog.forking import parts_of_fork
from foldlog.wire import avro
from foldlog.wire.envelope import read_envelope
from foldlog.wire.imports import ImportPart, encode_part
from foldlog.wire.records import decode_record
from tests.client_runs import (
    AGENT,
    BATCH,
    OTHER,
    accepted,
    act,
    document,
    effect,
    event,
    fact,
    hand_in,
    opened,
    refused,
    revision,
    running,
    started,
    store_of,
    task,
    wait,
)
from tests.core_walk import walk
from tests.export_runs import assert_proven, export, file_of, read
from tests.test_exported import WalkEngine

RUN = "run_1"
LIMIT = 256 * 1024
SETTLED = {"succeeded", "failed", "reconciled"}


@pytest.fixture
def engine() -> Iterator[testing.Engine]:
    """An engine in memory."""
    with testing.Engine() as engine:
        yield engine


def forked(run: client.Run, at: int, new_id: str = "run_2", **options: Any) -> client.Run:
    """A fork of a run, which must be accepted; by user ada."""
    outcome = accepted(run.fork(new_id, at, **{"author": "user:ada"} | options))
    assert (outcome.run_id, outcome.revision) == (new_id, at + 1)
    new: client.Run = run.engine.run(new_id)
    assert revision(new) == at + 1
    return new


def busy_run(engine: client.Engine) -> client.Run:
    """A run with a lease, a task that runs, a call, kept signals, a conflict and a wait."""
    run = running(engine, labels={"team": "x"}, budgets={"tokens_remaining": 100})
    act(run, task("t1"), task("t2", depends_on=["t1"]), task("t3"))
    act(run, event("TaskStarted", task_id="t1"), event("TaskStarted", task_id="t3"))
    act(run, event("TaskBlocked", task_id="t3", reason="no access"))
    act(run, event("ToolStarted", step_id="s1", tool="grep"), fact("f1"), effect("e0"))
    act(run, event("EffectSucceeded", effect_id="e0"))
    accepted(run.signal("later", signal_id="sig"))
    run.propose(event("PhaseChanged", phase="a"), expected_revision=revision(run))
    late = run.propose(
        event("PhaseChanged", phase="b"), expected_revision=3, author=OTHER, on_conflict="arbitrate"
    )
    assert late.outcome == "arbitration"
    act(run, event("CheckpointTaken", checkpoint={"id": "cp", "boundary": "before_wait"}))
    act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    act(run, wait("approval", deadline="2026-02-01T00:00:00Z"), lease_epoch=1)
    return run


def test_what_belonged_to_the_parents_workers_ends(engine: testing.Engine) -> None:
    """Lease, wait, signals, calls and conflicts are gone, and running tasks are pending."""
    parent = busy_run(engine)
    at = revision(parent)
    before = document(parent)
    shown = document(forked(parent, at))
    assert shown["forked_from"] == {"run_id": "run_1", "revision": at, "chain": before["chain"]}
    for key in ("lease", "waiting"):
        assert (before[key] is None, shown[key]) == (False, None)
    for key in ("signals", "pending_tool_calls", "conflicts"):
        assert (len(before[key]), shown[key]) == (1, [])
    assert (shown["status"], shown["active_task_id"]) == ("running", None)
    assert shown["last_transition"]["reason"] == RUN_FORKED
    tasks = {each["id"]: (each["status"], each["worker"]) for each in shown["tasks"]}
    assert tasks == {"t1": ("pending", None), "t2": ("pending", None), "t3": ("blocked", None)}
    for key in ("goal", "labels", "budgets", "confirmed_facts", "effects", "checkpoint", "phase"):
        assert shown[key] == before[key], key
    assert document(parent) == before
    assert_proven(engine)


def test_a_fork_goes_on_by_itself(engine: testing.Engine) -> None:
    """Another worker takes it up; what it does is not the parent's, nor the other way round."""
    parent = busy_run(engine)
    new = forked(parent, revision(parent))
    act(new, event("LeaseAcquired", worker="worker-2", ttl_seconds=60), author=OTHER)
    assert document(new)["lease"]["epoch"] == 2  # the parent's first is fenced here
    act(new, event("TaskStarted", task_id="t1"), lease_epoch=2, author=OTHER)
    act(new, event("TaskUnblocked", task_id="t3"), lease_epoch=2, author=OTHER)
    assert [each["status"] for each in document(new)["tasks"]] == ["running", "pending", "pending"]
    act(new, event("TaskCompleted", task_id="t1", evidence="test://1"), lease_epoch=2, author=OTHER)
    accepted(parent.signal("approval"))
    assert document(parent)["status"] == "running"
    assert document(parent)["tasks"][0]["status"] == "running"
    assert_proven(engine)


def test_the_past_is_the_parents(engine: testing.Engine) -> None:
    """At each revision up to the fork both have the same document, chain and id aside."""
    parent = busy_run(engine)
    at = revision(parent)
    new = forked(parent, at)
    for number in range(1, at + 1):
        then, here = parent.at(number), new.at(number)
        assert then is not None
        assert here is not None
        both = [each.to_dict() for each in (then, here)]
        for shown in both:
            for key in ("run_id", "chain", "effect_ledger_ref"):
                del shown[key]
        assert both[0] == both[1]
    rows = [row.to_dict() for row in new.history()]
    parents = [row.to_dict() for row in parent.history()]
    for key in ("log_time", "batch_id", "author", "outcome", "events"):
        assert [row[key] for row in rows[:-1]] == [row[key] for row in parents]
    assert [each["type"] for each in rows[-1]["events"]] == [RUN_FORKED]


def test_an_earlier_revision(engine: testing.Engine) -> None:
    """What came after it, refusals too, is no part of the fork."""
    run = started(engine)
    refused(run.propose(event("PhaseChanged", phase="x"), expected_revision=9), "FUTURE_REVISION")
    act(run, fact("f1"))
    act(run, fact("f2"))
    new = forked(run, 1)
    assert document(new)["confirmed_facts"] == []
    assert [row.code for row in new.history(rejected=True)] == [None, None]
    assert [row.code for row in forked(run, 2, "run_3").history(rejected=True)][1:2] == [
        "FUTURE_REVISION"
    ]
    assert_proven(engine)


def test_a_quarantine_after_the_revision_is_left_behind() -> None:
    """A run that a failing rule stopped goes on as a fork of where it was."""
    with testing.Engine(raise_in="PhaseChanged") as engine:
        run = running(engine)
        run.propose(event("PhaseChanged", phase="x"), expected_revision=3)
        assert document(run)["condition"] == "quarantined"
        assert document(forked(run, 3))["condition"] == "ok"


# Effects


def test_fault_11_effects_in_doubt_become_facts(engine: testing.Engine) -> None:
    """What nobody knows stands as a fact; the effect leaves the ledger and is no alarm any more."""
    run = running(engine)
    act(run, effect("e1", key="k1"), effect("e2", key="k2"))
    act(run, event("EffectUnknown", effect_id="e2", reason="no answer"))
    new = forked(run, revision(run))
    shown = document(new)
    assert shown["effects"] == []
    assert shown["effect_ledger_ref"] is None
    facts = {each["id"]: each for each in shown["confirmed_facts"]}
    assert set(facts) == {"effect/e1", "effect/e2"}
    assert facts["effect/e1"]["statement"] == (
        "effect e1 of run run_1, mail on mail://ada with idempotency key k1, was intended at"
        " revision 5, at which that run was forked; whether it happened is not known; this run must"
        " not make it again"
    )
    assert facts["effect/e2"]["evidence"] == "effects://run_1@rev5"
    assert facts["effect/e2"]["author"] == {"kind": "user", "id": "ada"}
    alarms = {row.run_id: [each.code for each in row.alarms] for row in engine.runs()}
    assert alarms == {"run_1": ["EFFECT_IN_DOUBT"], "run_2": []}
    act(new, event("RunFinished", result="completed"))
    assert_proven(engine)


@pytest.mark.parametrize("outcome", ["EffectSucceeded", "EffectFailed"])
def test_fault_11_no_effect_of_the_parent_is_made_again(
    engine: testing.Engine, outcome: str
) -> None:
    """Ids and keys used before the fork stay used, settled, in doubt or settled since."""
    run = running(engine)
    act(run, effect("done", key="k1"), effect("open", key="k2"), effect("failed", key="k3"))
    act(run, event("EffectSucceeded", effect_id="done"))
    act(run, event("EffectFailed", effect_id="failed", error="no"))
    at = revision(run)
    fields = {"result_ref": None} if outcome == "EffectSucceeded" else {"error": "no"}
    act(run, event(outcome, effect_id="open", **fields))
    new = forked(run, at)
    for id, key in (("x", "k1"), ("x", "k2"), ("done", "k9"), ("open", "k9"), ("failed", "k9")):
        attempt = new.propose(effect(id, key=key), expected_revision=revision(new), author=AGENT)
        refused(attempt, "INVALID_TRANSITION")
    report = event("EffectSucceeded", effect_id="open")
    refused(new.propose(report, author=AGENT), "INVALID_TRANSITION")
    act(new, effect("again", key="k3"))  # it failed, so its key is free, as in the parent
    told = {each["id"]: each["statement"] for each in document(new)["confirmed_facts"]}
    known = "it succeeded" if outcome == "EffectSucceeded" else "it failed"
    assert (
        f"was intended at revision {at}, at which that run was forked; {known}; "
        in told["effect/open"]
    )
    assert_proven(engine)


def test_fault_11_nor_one_that_came_later(engine: testing.Engine) -> None:
    """An effect of the parent after the revision is known to the fork, unless it failed."""
    run = running(engine)
    at = revision(run)
    act(run, effect("later", key="k1"), effect("failed", key="k2"))
    act(run, event("EffectSucceeded", effect_id="later"))
    act(run, event("EffectFailed", effect_id="failed", error="no"))
    new = forked(run, at)
    refused(
        new.propose(effect("x", key="k1"), expected_revision=revision(new), author=AGENT),
        "INVALID_TRANSITION",
    )
    act(new, effect("failed", key="k2"))
    [told] = document(new)["confirmed_facts"]
    assert "came after revision 3, at which that run was forked; it succeeded;" in told["statement"]
    assert_proven(engine)


def test_the_bytes_that_a_forgotten_effect_leaves(engine: testing.Engine) -> None:
    """A tombstone, and the key that still names it; the set of those in doubt is empty."""
    run = running(engine)
    act(run, effect("e1", key="k1"))
    forked(run, 4)
    store = store_of(engine)
    stored = {
        b"gone.effect\0e1": b'{"a":["user","ada"],"r":5,"t":1767225600000000,"v":null}',
        b"key\0k1": b'{"v":"e1"}',
        b"doubt\0": b'{"v":0}',
        b"effect\0e1": None,
    }
    assert {key: store.get(b"e\0run_2\0" + key) for key in stored} == stored


def test_ids_of_facts_that_are_taken_are_not_used_again(engine: testing.Engine) -> None:
    """A fact about an effect gets an id that nobody had, however long the effect's is."""
    run = running(engine)
    long = "e" * 2048
    act(run, effect("e1"), effect(long), fact("effect/e1"), fact("effect/1"))
    ids = [each["id"] for each in document(forked(run, revision(run)))["confirmed_facts"]]
    assert ids == ["effect/1", "effect/2", "effect/3", "effect/e1"]


def test_batch_ids_stay_used(engine: testing.Engine) -> None:
    """A batch proposed to the fork again gets the parent's answer; other content is refused."""
    run = started(engine)
    accepted(run.propose(fact("f1"), batch_id=BATCH, author=AGENT))
    new = forked(run, 2)
    again = new.propose(fact("f1"), batch_id=BATCH, author=AGENT)
    assert (again.outcome, again.duplicate, again.revision) == ("accepted", True, 2)
    refused(new.propose(fact("f2"), batch_id=BATCH, author=AGENT), "BATCH_ID_REUSED")


# Asking for it


def test_what_cannot_be_forked(engine: testing.Engine) -> None:
    """No such run or revision is None; an id in use, or none, is refused and changes nothing."""
    run = started(engine)
    started(engine, "run_3")
    assert engine.run("run_404").fork("run_2", 1) is None
    assert run.fork("run_2", 0) is None
    assert run.fork("run_2", 2) is None
    before = engine.digest()
    for id in ("run_3", "run_1"):
        refused(run.fork(id, 1), "RUN_EXISTS")
    outcome = refused(run.fork("no run", 1), "MALFORMED")
    assert (outcome.recorded, outcome.field) == (False, "run_id")
    refused(run.fork("run_2", 1, author="agent:w"), "NOT_AUTHORIZED")
    assert engine.digest() == before
    assert engine.run("run_2").state() is None


def test_a_proposal_too_large_for_the_longer_id(engine: testing.Engine) -> None:
    """The largest batch there may be fits under an id of the same length, and no longer one."""
    run = started(engine)
    text = "x" * 8000
    many = [event("Recorded", name="n", payload=[text] * 8) for _ in range(4)]
    act(run, *many)
    room = LIMIT - max(len(each.proposal or b"") for each in _records(engine, run))
    # The last event's own bytes come on top of its payload.
    act(run, *many, event("Recorded", name="n", payload="x" * (room - 60)))
    room = LIMIT - max(len(each.proposal or b"") for each in _records(engine, run))
    assert 0 <= room < 50
    at = revision(run)
    refused(run.fork("r" * (len(RUN) + room + 1), at), "MALFORMED")
    accepted(run.fork("r" * (len(RUN) + room), at, author="user:ada"))


def _records(engine: client.Engine, run: client.Run) -> list[Any]:
    with engine._reading(run.run_id) as view:
        return list(view.records(run.run_id))


def test_nobody_proposes_the_end_of_a_fork(engine: testing.Engine) -> None:
    """RunForked is no event of the catalogue: not for a client, not for a foreign producer."""
    run = running(engine)
    fields = {"run_id": "run_0", "revision": 3, "chain": "0" * 64, "effects": []}
    refused(run.propose(event(RUN_FORKED, **fields)), "MALFORMED")
    data = parts(engine, run, 3)[0].records[-1]
    proposal = decode_record(data).proposal
    assert proposal is not None
    envelope = read_envelope(proposal)
    assert avro.identify(envelope.events[0]) == ("RunForked", 1)
    hand_in(engine, "run_2", proposal)
    assert engine.run("run_2").state() is None
    [row] = _records(engine, engine.run("run_2"))
    assert (row.outcome, row.code) == ("rejected", "MALFORMED")


# A crash half-way


def parts(
    engine: client.Engine, run: client.Run, at: int, new_id: str = "run_2"
) -> list[ImportPart]:
    """The parts that a fork hands in."""
    with engine._reading(run.run_id) as view:
        found = parts_of_fork(view, run.run_id, at, new_id, Author("user", "ada"), 10**15)
    assert found is not None
    return found


def long_run(engine: client.Engine) -> client.Run:
    """A run whose copy takes three parts: a part is closed once the next record would be too many
    bytes."""
    run = running(engine)
    for number in range(3):
        long = [event("Recorded", name="n", payload="x" * 60_000) for _ in range(3)]
        act(run, fact(f"f{number}"), *long)
    return run


def test_fault_4_a_crash_half_way_leaves_nothing_visible(engine: testing.Engine) -> None:
    """Until the last part nothing of the fork is there; asked for again, it becomes whole."""
    run = long_run(engine)
    at = revision(run)
    before = engine.digest(), [row.run_id for row in engine.runs()]
    handed = parts(engine, run, at)
    assert len(handed) == 3
    for part in handed[:-1]:
        hand_in(engine, "run_2", encode_part(part))
        new = engine.run("run_2")
        assert (new.state(), new.history(rejected=True), new.at(1)) == (None, [], None)
        assert (engine.digest(), [row.run_id for row in engine.runs()]) == before
        assert engine.verify().ok
    refused(new.propose(fact("f"), author=AGENT), "RUN_NOT_FOUND")
    act(run, effect("e1"))  # the parent goes on, so the last record is another one now
    new = forked(run, at, author="operator:ops")
    assert len(new.history()) == at + 1
    assert [each["id"] for each in document(new)["confirmed_facts"] if "/" in each["id"]] == [
        "effect/e1"
    ]
    assert_proven(engine)


def test_another_fork_does_not_take_the_id_meanwhile(engine: testing.Engine) -> None:
    """While a fork is under way another one of that id, or a start, is refused."""
    run = long_run(engine)
    at = revision(run)
    hand_in(engine, "run_2", encode_part(parts(engine, run, at)[0]))
    refused(run.fork("run_2", at - 1), "RUN_EXISTS")
    refused(engine.start("run_2", "x", author="user:ada").started, "RUN_EXISTS")
    forked(run, at)


def test_a_fork_that_is_there_is_not_made_again(engine: testing.Engine) -> None:
    """The same fork again, however far both runs are by now, is a duplicate with the first outcome;
    of another revision it is refused."""
    run = long_run(engine)
    at = revision(run)
    first = accepted(run.fork("run_2", at, author="user:ada"))
    act(run, fact("f-more"))
    act(engine.run("run_2"), fact("f-more"))
    before = engine.digest()
    again = accepted(run.fork("run_2", at, author="operator:ops"))
    assert (again.duplicate, again.revision, again.chain) == (True, first.revision, first.chain)
    refused(run.fork("run_2", at - 1), "RUN_EXISTS")
    assert engine.digest() == before


@pytest.mark.parametrize("kind", ["memory", "home"])
def test_a_fork_in_any_home(kind: str, tmp_path: Path) -> None:
    """Forking works in memory and on disk, and survives a restart."""
    with opened(kind, tmp_path) as engine:
        new = forked(busy_run(engine), 5)
        shown = document(new)
        assert_proven(engine)
        if kind == "memory":
            return
    with client.Engine.open(tmp_path / "home") as engine:
        assert document(engine.run("run_2")) == shown


def test_the_async_twin_forks(engine: testing.Engine) -> None:
    """The twin has the same call."""
    run = started(engine)

    async def work() -> None:
        twin = aio.Engine(engine)
        outcome = await twin.run("run_1").fork("run_2", 1, author="user:ada")
        assert outcome is not None
        assert outcome.accepted

    asyncio.run(work())
    assert document(engine.run("run_2"))["forked_from"]["chain"] == document(run)["chain"]


# Elsewhere, and later


def test_a_fork_moves_like_any_run(engine: testing.Engine) -> None:
    """Exported and imported it has the same document and digest, and replays to it."""
    new = forked(busy_run(engine), 9)
    act(new, fact("own"))
    with testing.Engine(partitions=3) as other:
        [result] = read(other, file_of(export(engine, "run_2")))
        assert result.outcome == "imported"
        assert document(other.run("run_2")) == document(new)
        there, here = other.replay("run_2"), engine.replay("run_2")
        assert there is not None
        assert here is not None
        assert there.digest == here.digest
        assert_proven(other)


def test_a_fork_of_a_fork(engine: testing.Engine) -> None:
    """A fork is forked like any run, before or after its own beginning as one."""
    first = forked(busy_run(engine), 6)
    act(first, fact("own"))
    second = forked(first, 8, "run_3")
    assert document(second)["forked_from"]["run_id"] == "run_2"
    third = forked(first, 4, "run_4")
    assert document(third)["forked_from"]["revision"] == 4
    at_fork = second.at(7)
    assert at_fork is not None
    assert at_fork.forked_from is not None
    assert at_fork.forked_from.run_id == "run_1"
    assert_proven(engine)


def test_fault_6_a_build_that_knows_no_forks_refuses_loudly(
    engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader without the closing event names run and record, and shows no half of it."""
    forked(started(engine), 1)
    known = foldlog_schemas.fingerprints()
    older = {key: value for key, value in known.items() if value[0] != "RunForked"}
    monkeypatch.setattr(foldlog_schemas, "fingerprints", lambda: older)
    report = engine.verify("run_2")
    assert report.first_difference is not None
    assert (report.first_difference.run_id, report.first_difference.what) == ("run_2", "proposal")
    with pytest.raises(errors.Damaged):
        engine.run("run_2").at(2)


@pytest.mark.parametrize("seed", [0, 1_000])
def test_any_revision_of_any_run_forks(seed: int) -> None:
    """Forks of random runs, with refusals, quarantine and arbitration, are proven, their pasts the
    parents', and nothing of the parents' work is open in them."""
    world = walk(seed, ids=6 if seed >= 1_000 else 10**9)
    with WalkEngine(2) as engine:
        for record in world.records:
            engine.clock.set(format_instant(record.log_time))
            engine.run(record.run_id).propose_json(record.value)
        for row in engine.runs():
            step = max(1, row.revision // 3)
            for at in {*range(1, row.revision, step), row.revision}:
                run, id = engine.run(row.run_id), f"{row.run_id}.{at}"
                shown = document(forked(run, at, id))
                for key in ("waiting", "lease", "active_task_id"):
                    assert shown[key] is None
                for key in ("signals", "pending_tool_calls", "conflicts"):
                    assert shown[key] == []
                assert {each["status"] for each in shown["effects"]} <= SETTLED
                then, here = run.at(at), engine.run(id).at(at)
                assert then is not None
                assert here is not None
                assert here.confirmed_facts == then.confirmed_facts
        assert_proven(engine)


def test_the_projection_holds_nothing_of_the_parents_work(engine: testing.Engine) -> None:
    """No set or index of the store has what the fork ended."""
    parent = busy_run(engine)
    forked(parent, revision(parent))
    store = store_of(engine)
    for kind in (b"call", b"kept", b"doubt", b"running"):
        left = [key for key, _ in store.scan(b"e\0run_2\0" + kind + b"\0") if key[-1:] != b"\0"]
        assert left == [], kind
