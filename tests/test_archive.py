"""Archived runs: out of the hot set, readable and provable as before, and never run again.

Invariants:
- Whatever happens to an archived run, the home verifies, and deciding again gives the same.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import aio, client, testing
from foldlog.onlooker import Onlooker
from foldlog.wire import keys
from tests.client_runs import (
    AGENT,
    BATCH,
    OPERATOR,
    Json,
    accepted,
    act,
    at_home,
    document,
    effect,
    event,
    fact,
    opened,
    refused,
    revision,
    running,
    started,
    store_of,
)
from tests.export_runs import assert_proven, export, file_of, read

SPENT = event("BudgetSpent", tokens=5)


@pytest.fixture
def engine() -> Iterator[testing.Engine]:
    """An engine in memory."""
    with testing.Engine() as engine:
        yield engine


def finished(engine: client.Engine, run_id: str = "run_1") -> client.Run:
    """A run that ended, with a call that has no outcome."""
    run = running(engine, run_id, budgets={"tokens_remaining": 100})
    act(run, fact("f"), event("ToolStarted", step_id="s", tool="grep"))
    act(run, event("RunFinished", result="failed"))
    return run


def archived(run: client.Run) -> client.Run:
    """The run, which must go into the archive."""
    accepted(run.archive("billed", author="user:ada"))
    return run


def listed(engine: client.Engine, *, archived: bool = False) -> list[str]:
    """The ids that `runs` lists."""
    return sorted(row.run_id for row in engine.runs(archived=archived))


def test_an_archived_run_is_out_of_the_hot_set(engine: testing.Engine) -> None:
    """Lists and alarms leave it out; the archive lists it, and nothing else changed."""
    run, other = finished(engine), started(engine, "run_2")
    before = document(run)
    archived(run)
    assert (listed(engine), listed(engine, archived=True)) == (["run_2"], ["run_1"])
    assert [row.archived for row in engine.runs(archived=True)] == [True]
    shown = document(run)
    assert shown.pop("archived") is True
    assert {**shown, "revision": 0, "chain": ""} == {**before, "revision": 0, "chain": ""}
    assert shown["revision"] == before["revision"] + 1
    assert [key for key, _ in store_of(engine).scan(keys.head_key(""))] == [keys.head_key("run_2")]
    assert "archived" not in document(other)
    assert_proven(engine)


def test_it_is_read_and_proven_as_before(engine: testing.Engine) -> None:
    """History, past states, differences, replay, export and the digest of everything have it."""
    run = finished(engine)
    at = revision(run)
    past, digest = run.at(at), engine.digest()
    archived(run)
    assert run.at(at) == past
    assert run.diff(at, at + 1) == []
    assert [[each.type for each in row.events or []] for row in run.history()][-1] == [
        "RunArchived"
    ]
    assert engine.digest() != digest  # the run has one revision more
    replayed = engine.replay()
    assert replayed is not None
    assert (replayed.digest, replayed.runs) == (engine.digest(), 1)
    assert run.why() is not None
    check = run.resume_check()
    assert check is not None
    assert check.verdict == "nothing"
    assert engine.verify("run_1", redecide=True, evidence=True).records == at + 1
    assert_proven(engine)


def test_what_cannot_be_archived(engine: testing.Engine) -> None:
    """A run that goes on, has an effect in doubt, or is archived; by an agent; in company."""
    run = running(engine)
    assert "finished" in str(refused(run.archive(), "INVALID_TRANSITION").message)
    act(run, effect("e"))
    act(run, event("RunFinished", result="failed"))
    assert "in doubt" in str(refused(run.archive(), "INVALID_TRANSITION").message)
    act(run, event("EffectSucceeded", effect_id="e"))
    refused(run.archive(author=AGENT), "NOT_AUTHORIZED")
    refused(run.propose([event("RunArchived"), SPENT]), "MALFORMED")
    refused(run.propose(event("RunArchived", reason=7)), "MALFORMED")
    refused(engine.run("run_404").archive(), "RUN_NOT_FOUND")
    archived(run)
    assert "already" in str(refused(run.archive(), "INVALID_TRANSITION").message)
    assert_proven(engine)


def test_fault_2_a_late_write_does_not_resurrect(engine: testing.Engine) -> None:
    """A late proposal is rejected, a late report recorded; the run stays finished and archived."""
    run = archived(finished(engine))
    at = revision(run)
    for late in (
        event("RunTransitioned", to="running"),
        fact("g"),
        event("RunCancelled", reason="x"),
    ):
        author = OPERATOR if late["type"] == "RunCancelled" else AGENT
        refused(run.propose(late, expected_revision=at, author=author), "RUN_FINISHED")
    refused(engine.start("run_1", "x").started, "RUN_EXISTS")
    accepted(run.propose([SPENT, event("ToolSucceeded", step_id="s")], author=AGENT))
    shown = document(run)
    assert (shown["status"], shown["archived"], shown["pending_tool_calls"]) == ("finish", True, [])
    assert shown["budgets"]["tokens_remaining"] == 95
    assert (listed(engine), listed(engine, archived=True)) == ([], ["run_1"])
    assert_proven(engine)


def test_batch_ids_are_known_in_the_archive(engine: testing.Engine) -> None:
    """A batch proposed again gets its first answer, the archiving itself too."""
    run = running(engine)
    accepted(run.propose(fact("f"), batch_id=BATCH, author=AGENT))
    act(run, event("RunFinished", result="completed"))
    other = BATCH[:-1] + "1"
    accepted(run.archive(batch_id=other, author="user:ada"))
    again = run.propose(fact("f"), batch_id=BATCH, author=AGENT)
    assert (again.outcome, again.duplicate, again.revision) == ("accepted", True, 4)
    once_more = run.archive(batch_id=other, author="user:ada")
    assert (once_more.outcome, once_more.duplicate) == ("accepted", True)
    assert run.outcome(other) is not None


def test_a_quarantine_brings_it_back_into_sight_until_it_is_released() -> None:
    """A late report whose rule raises needs somebody: the run is listed while it is quarantined."""
    with testing.Engine(raise_in="BudgetSpent") as engine:
        run = archived(finished(engine))
        assert listed(engine) == []
        run.propose(SPENT, author=AGENT)
        assert (listed(engine), listed(engine, archived=True)) == (["run_1"], [])
        assert [row.run_id for row in engine.quarantined()] == ["run_1"]
        assert engine.status()[0].alarms == {"QUARANTINED": 1}
        assert document(run)["archived"] is True
        assert engine.verify(redecide=True).ok
        assert run.release("mended", author=OPERATOR).accepted
        assert (listed(engine), listed(engine, archived=True)) == ([], ["run_1"])
        assert engine.verify(redecide=True).ok


@pytest.mark.parametrize("kind", ["memory", "home"])
def test_fault_5_the_projection_is_the_fold_of_the_log(kind: str, tmp_path: Path) -> None:
    """With some runs archived the projection is what the log gives, made anew too."""
    with opened(kind, tmp_path) as engine:
        for number in range(4):
            run = finished(engine, f"run_{number}")
            if number % 2:
                archived(run)
                accepted(run.propose(SPENT, author=AGENT))
        assert_proven(engine)
        shown = {row.run_id: document(engine.run(row.run_id)) for row in engine.runs(archived=True)}
    if kind == "memory":
        return
    shutil.rmtree(tmp_path / "home" / "projection")
    with at_home(tmp_path / "home", create=False) as engine:
        assert {id: document(engine.run(id)) for id in shown} == shown
        assert (listed(engine), listed(engine, archived=True)) == (
            ["run_0", "run_2"],
            ["run_1", "run_3"],
        )
        assert engine.verify().ok
    with Onlooker(tmp_path / "home", engine._clock) as onlooker:
        assert onlooker.run_ids("run", 9) == ["run_0", "run_2"]


def test_a_changed_head_of_an_archived_run_is_found(engine: testing.Engine) -> None:
    """What the projection keeps of an archived run is compared like anything else."""
    run = archived(finished(engine))
    store, key = store_of(engine), keys.archived_head_key("run_1")
    data = store.get(key)
    assert data is not None
    for damaged in (None, data.replace(b'"archived":true', b'"archived":tru'), b"{}"):
        store.write({key: damaged})
        for report in (engine.verify(), engine.verify("run_1")):
            assert not report.ok
    store.write({key: data})
    assert engine.verify().ok
    assert run.state() is not None


def test_it_moves_archived(engine: testing.Engine) -> None:
    """Exported and imported, it is archived there too, and takes late reports."""
    archived(finished(engine))
    with testing.Engine() as other:
        [result] = read(other, file_of(export(engine)))
        assert result.outcome == "imported"
        assert (listed(other), listed(other, archived=True)) == ([], ["run_1"])
        accepted(other.run("run_1").propose(SPENT, author=AGENT))
        assert_proven(other)


@pytest.mark.parametrize("back", [0, 2])
def test_its_fork_is_in_the_hot_set(engine: testing.Engine, back: int) -> None:
    """Forked at its last revision or before its end, the fork is a run like others."""
    run = archived(finished(engine))
    accepted(run.fork("run_2", revision(run) - back, author="user:ada"))
    assert (listed(engine), listed(engine, archived=True)) == (["run_2"], ["run_1"])
    shown: Json = document(engine.run("run_2"))
    assert "archived" not in shown
    assert shown["status"] == ("running" if back else "finish")
    assert_proven(engine)


def test_the_async_twin_archives(engine: testing.Engine) -> None:
    """The twin has the same call."""
    finished(engine)

    async def work() -> None:
        outcome = await aio.Engine(engine).run("run_1").archive(author="user:ada")
        assert outcome.accepted

    asyncio.run(work())
    assert listed(engine, archived=True) == ["run_1"]
