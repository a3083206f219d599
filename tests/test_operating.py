"""What people who look after runs ask an engine and a run: operating.py, heads.py, the async twin.

Invariants:
- Heads are compared with logs that were really cut and rewritten, not with changed heads alone.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, aio, errors, operating, testing
from tests.cli_runs import accept, login_run
from tests.test_cli_golden_operating import BATCH, GOAL, collided

RUN_IDS = ["run_1", "run_2", "run_3", "run_4"]


@pytest.fixture
def engine() -> Iterator[testing.Engine]:
    """An engine in memory."""
    with testing.Engine() as engine:
        yield engine


def make_home(path: Path, *run_ids: str) -> list[dict[str, Any]]:
    """A home with these runs; its heads."""
    with Engine.open(path, create=True, partitions=2) as engine:
        for run_id in run_ids:
            accept(engine, run_id, GOAL)
        return [head.to_dict() for head in engine.heads()]


def report(path: Path, heads: list[dict[str, Any]]) -> Any:
    """What verification of a home against heads says."""
    with Engine.open(path) as engine:
        return engine.verify(heads=heads)


def cut(path: Path, partition: int, records: int) -> None:
    """Take the last records off a log, and the projection that would tell of them."""
    shutil.rmtree(path / "projection")
    with sqlite3.connect(path / "log.sqlite") as log:
        last = f'SELECT max("offset") FROM events_{partition}'
        log.execute(f'DELETE FROM events_{partition} WHERE "offset" > ({last}) - {records}')
        log.execute(f"DELETE FROM proposals_{partition}")
    log.close()


def test_status(engine: testing.Engine) -> None:
    """Status says who turns, how far each partition is, and what is quarantined."""
    accept(engine, "run_1", GOAL)
    [row] = engine.status()
    assert list(row.to_dict()) == [
        "partition", "owner", "position", "sequence", "lag", "head", "void", "quarantined",
        "alarms", "plugins_missing", "halted", "outage",
    ]  # fmt: skip
    assert str(row.owner).startswith("worker:")
    assert (row.position, row.sequence, row.lag, row.void, row.quarantined) == (2, 1, 0, 0, 0)
    assert row.head == engine.heads()[0].head


def test_status_counts_alarms() -> None:
    """Status says how many runs of a partition have each alarm, as `runs` lists them."""
    with testing.Engine(partitions=2) as engine:
        for number in range(6):
            accept(engine, f"run_{number}", GOAL, {"type": "RunTransitioned", "to": "planning"})
        lease = {"type": "LeaseAcquired", "worker": "w", "ttl_seconds": 60}
        accept(engine, "run_0", lease)
        engine.clock.advance(61)
        assert sorted((row.alarms.to_dict() for row in engine.status()), key=len) == [
            {},
            {"LEASE_EXPIRED": 1},
        ]
        engine.clock.advance(86_400)
        engine.run("run_1").cancel("not needed")
        listed: dict[str, int] = {}
        for row in engine.runs(alarms=True):
            for alarm in row.alarms:
                listed[alarm.code] = listed.get(alarm.code, 0) + 1
        assert listed == {"SILENT": 5, "LEASE_EXPIRED": 1}
        counted: dict[str, int] = {}
        for status in engine.status():
            for code, count in status.alarms.to_dict().items():
                counted[code] = counted.get(code, 0) + count
        assert counted == listed
        assert [row.run_id for row in engine.runs(alarms=True, limit=2)] == ["run_0", "run_2"]


def test_quarantined() -> None:
    """The quarantined runs, oldest first, until they are released."""
    with testing.Engine(raise_in="PhaseChanged", partitions=3) as engine:
        for run_id in ("run_2", "run_1"):
            accept(engine, run_id, GOAL)
            engine.run(run_id).propose({"type": "PhaseChanged", "phase": "x"}, expected_revision=1)
            engine.clock.advance(1)
        assert [row.run_id for row in engine.quarantined()] == ["run_2", "run_1"]
        assert sum(row.quarantined for row in engine.status()) == 2
        first = engine.quarantined()[0]
        assert (first.sequence, first.since) == (2, "2026-01-01T00:00:00.000000Z")
        assert "RuleRaised" in first.error
        assert engine.run("run_2").release("mended").accepted
        assert [row.run_id for row in engine.quarantined()] == ["run_1"]


def test_heads_of_the_same_log(tmp_path: Path) -> None:
    """A log that has grown still contains what its heads said."""
    heads = make_home(tmp_path / "home", *RUN_IDS)
    make_home(tmp_path / "home", "run_5", "run_6")
    assert report(tmp_path / "home", heads).ok
    more = make_home(tmp_path / "home")
    assert report(tmp_path / "home", heads + more).ok


def test_heads_find_a_cut_tail(tmp_path: Path) -> None:
    """A log whose tail and projection are gone verifies by itself, and not against its heads."""
    heads = make_home(tmp_path / "home", *RUN_IDS)
    partition = max(heads, key=lambda head: int(head["sequence"]))["partition"]
    cut(tmp_path / "home", partition, 1)
    assert report(tmp_path / "home", [heads[1 - partition]]).ok
    found = report(tmp_path / "home", heads).first_difference
    said = heads[partition]["sequence"]
    assert (found.sequence, found.expected) == (said, f"records up to sequence {said}")


def test_heads_find_a_rewritten_past(tmp_path: Path) -> None:
    """A log that was written anew verifies by itself, and not against the heads of the old one."""
    heads = make_home(tmp_path / "home", *RUN_IDS)
    with sqlite3.connect(tmp_path / "home" / "log.sqlite") as log:
        [identity] = log.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
    log.close()
    shutil.rmtree(tmp_path / "home")
    make_home(tmp_path / "home", *RUN_IDS)
    found = report(tmp_path / "home", heads).first_difference
    assert (found.what, found.expected) == ("the log is another one", identity)
    # Whoever rewrites the past can give it the old name too.
    with sqlite3.connect(tmp_path / "home" / "log.sqlite") as log:
        log.execute("UPDATE meta SET value = ? WHERE name = 'identity'", (identity,))
    log.close()
    shutil.rmtree(tmp_path / "home" / "projection")
    with Engine.open(tmp_path / "home") as engine:
        assert engine.verify().ok
        found = engine.verify(heads=heads).first_difference
    assert found is not None
    assert "heads once spoke" in found.what
    assert found.expected in {head["head"] for head in heads}


def test_heads_without_the_name_of_a_log(engine: testing.Engine) -> None:
    """What the contract names of a head is enough."""
    accept(engine, "run_1", GOAL)
    head = engine.heads()[0].to_dict()
    del head["log"]
    assert engine.verify(heads=[head]).ok
    assert engine.verify(heads=engine.heads()).ok
    assert not engine.verify(heads=[{**head, "sequence": 0}]).ok
    assert engine.verify(heads=[{**head, "head": head["head"].upper()}]).ok


@pytest.mark.parametrize(
    "heads",
    [
        [],
        ["x"],
        [{}],
        [{"partition": True, "sequence": 1, "head": "0" * 64}],
        [{"partition": 0, "sequence": -1, "head": "0" * 64}],
        [{"partition": 0, "sequence": 1.0, "head": "0" * 64}],
        [{"partition": 0, "sequence": 1, "head": 7}],
        [{"partition": 0, "sequence": 2**63, "head": "0" * 64}],
    ],
)
def test_what_is_no_heads(engine: testing.Engine, heads: list[Any]) -> None:
    """A witness that says nothing is refused, never passed."""
    with pytest.raises(errors.Usage):
        engine.verify(heads=heads)


def test_heads_beside_a_run(engine: testing.Engine) -> None:
    """Heads are looked for in the log where only one run is proven, too."""
    accept(engine, "run_1", GOAL)
    said = engine.heads()
    assert engine.verify("run_1", heads=said).ok
    assert not engine.verify("run_1", heads=[{**said[0].to_dict(), "sequence": 9}]).ok


# Waiting


def test_wait_returns_at_once_where_it_is_there(engine: testing.Engine) -> None:
    """A run that waits is at rest; so is one that is finished."""
    at = accept(engine, "r", GOAL, {"type": "RunTransitioned", "to": "planning"})
    run = engine.run("r")
    assert run.wait("planning").to_dict() == {  # type: ignore[union-attr]
        "run_id": "r",
        "until": "planning",
        "reached": True,
        "status": "planning",
        "result": None,
        "revision": 1,
        "since": "2026-01-01T00:00:00.000000Z",
        "condition": "ok",
    }
    wait = {"type": "WaitStarted", "kind": "user", "key": "k", "reason": "x"}
    accept(engine, "r", wait, expected_revision=at)
    assert run.wait().status == "waiting"  # type: ignore[union-attr]
    run.cancel("x")
    found = run.wait()
    assert found is not None
    assert (found.reached, found.status, found.result) == (True, "finish", "cancelled")


def test_wait_for_what_cannot_be(engine: testing.Engine) -> None:
    """A finished run reaches nothing more; a run that is not there is None; a time-out is told."""
    accept(engine, "r", GOAL)
    run = engine.run("r")
    found = run.wait("finish", timeout=0)
    assert found is not None
    assert (found.reached, found.status) == (False, "start")
    run.cancel("x")
    found = run.wait("running")
    assert found is not None
    assert (found.reached, found.status) == (False, "finish")
    assert engine.run("none").wait() is None
    assert engine.run("no run").wait() is None
    with pytest.raises(errors.Usage):
        run.wait("asleep")


def test_wait_sees_what_the_run_passed_through(engine: testing.Engine) -> None:
    """A status between two looks counts; one before the first look does not."""
    accept(engine, "r", GOAL, {"type": "RunTransitioned", "to": "planning"})
    run = engine.run("r")
    waiter = run._waiter("running", None)
    first = run._look(waiter)
    assert first is not None
    assert not waiter.is_over(first)
    accept(engine, "r", {"type": "RunTransitioned", "to": "running"}, expected_revision=1)
    run.cancel("x")
    found = run._look(waiter)
    assert found is not None
    assert (found.reached, found.status, found.revision) == (True, "running", 2)
    late = run.wait("running")
    assert late is not None
    assert not late.reached


def test_wait_ends_when_another_thread_moves_the_run(engine: testing.Engine) -> None:
    """Who waits is told when it happens."""
    accept(engine, "r", GOAL)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(engine.run("r").wait("finish")))
    waiting.start()
    engine.run("r").cancel("x")
    waiting.join(10)
    assert found[0].reached


def test_wait_beside_a_holder_that_decides_nothing(
    engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait does not go on in silence while proposals wait and the holder does not turn."""
    accept(engine, "r", GOAL)
    run = engine.run("r")
    waiter = run._waiter("finish", None)
    asked: list[int] = []
    monkeypatch.setattr(engine._seat, "check_holder", asked.append)
    ends = engine._seat.place.log.proposals_end
    monkeypatch.setattr(engine._seat.place.log, "proposals_end", lambda number: ends(number) + 1)
    now = engine._seat.runtime.monotonic()
    for seconds in (0, 9, 11):
        moment = now + seconds * 1_000_000
        monkeypatch.setattr(engine._seat.runtime, "monotonic", lambda moment=moment: moment)
        run._look(waiter)
    assert asked == [now]


# Settling


def test_conflicts_and_resolve(engine: testing.Engine) -> None:
    """A conflict is listed until it is settled, whatever the letters of its id."""
    collided(engine, "r")
    run = engine.run("r")
    [conflict] = run.conflicts()
    assert (conflict.id, conflict.entities, conflict.revision) == (BATCH, ["phase"], 3)
    outcome = run.resolve(BATCH.upper(), "take_proposed", "it is right", author="user:anna")
    assert outcome.accepted
    assert run.conflicts() == []
    state = run.state()
    assert state is not None
    assert state.phase == "diagnose"
    assert run.resolve(BATCH, "keep_current", "again").code == "INVALID_TRANSITION"
    assert run.resolve(7, "keep_current", "x").code == "MALFORMED"  # type: ignore[arg-type]
    assert engine.run("none").conflicts() == []


def test_release_without_a_quarantine(engine: testing.Engine) -> None:
    """A release of a run that is not quarantined is refused, as a value."""
    accept(engine, "r", GOAL)
    assert engine.run("r").release("x").code == "INVALID_TRANSITION"


def test_reconcile(engine: testing.Engine) -> None:
    """An effect in doubt is settled by a report, of a finished run too, and only once."""
    login_run(engine, "r")
    run = engine.run("r")
    run.cancel("not needed")
    assert run.reconcile("eff_1", "succeeded", "order://order_9").accepted
    state = run.state()
    assert state is not None
    assert (state.effects[0].status, state.effects[0].outcome) == ("reconciled", "succeeded")
    assert run.reconcile("eff_1", "failed", "order://order_9").code == "INVALID_TRANSITION"
    assert run.reconcile("eff_1", "perhaps", "order://order_9").code == "MALFORMED"


def test_state_after_a_sequence(engine: testing.Engine) -> None:
    """A read can wait for a sequence, and says so when it does not come."""
    accept(engine, "r", GOAL)
    run = engine.run("r")
    assert run.state(after=1) == run.state()
    with pytest.raises(errors.TimedOut) as raised:
        run.state(after=2, timeout=0)
    assert raised.value.exit_code == 6
    assert engine.run("no run").state(after=2, timeout=0) is None


def test_watch_with_what_was_refused(engine: testing.Engine) -> None:
    """Asked for, a watch gives what was refused too, from the first record on."""
    run = engine.run("r")
    run.propose({"type": "PhaseChanged", "phase": "x"}, expected_revision=1)
    accept(engine, "r", GOAL)
    run.signal("k")
    run.propose({"type": "PhaseChanged", "phase": "x"})
    everything = [row.outcome for row in run.watch(after=0, timeout=0.01, rejected=True)]
    assert everything == ["rejected", "accepted", "accepted", "rejected"]
    assert [row.outcome for row in run.watch(after=0, timeout=0.01)] == ["accepted", "accepted"]
    assert [row.revision_after for row in run.watch(after=1, timeout=0.01)] == [2]


def test_the_async_twin(tmp_path: Path) -> None:
    """Every call is there, and a wait holds no thread."""

    async def work() -> None:
        async with await aio.Engine.open(tmp_path / "home", create=True, partitions=1) as engine:
            run = await engine.start("r", goal="x")
            waits = [asyncio.create_task(run.wait("finish")) for _ in range(2 * aio.THREADS_MAX)]
            why = await run.why()
            assert why is not None
            assert why.waiting_for is None
            assert await run.conflicts() == []
            assert (await run.release("x")).code == "INVALID_TRANSITION"
            assert (await run.resolve("c", "keep_current", "x")).code == "INVALID_TRANSITION"
            assert (await run.reconcile("e", "failed", "a:b")).code == "INVALID_TRANSITION"
            await run.cancel("x")
            assert all(
                found is not None and found.reached for found in await asyncio.gather(*waits)
            )
            assert await run.state(after=4) == await run.state()
            [row] = await engine.status()
            assert row.sequence == 5
            assert await engine.quarantined() == []
            assert (await engine.verify(heads=await engine.heads())).ok

    asyncio.run(work())


def test_patience_grows_and_ends() -> None:
    """Looks come less and less often, and never after the time is up."""
    patience = operating.Patience(None)
    pauses = [patience.pause() for _ in range(8)]
    assert pauses[:3] == [0.005, 0.01, 0.02]
    assert pauses[-1] == operating.LOOK_SECONDS_MAX
    assert not patience.is_over()
    assert operating.Patience(0).is_over()
    assert operating.Patience(0).pause() == 0


@pytest.mark.parametrize("timeout", [float("nan"), -1])
def test_what_is_no_length_of_time_is_not_waited_for(
    engine: testing.Engine, timeout: float
) -> None:
    """A wait and a watch that would never end, or never begin, are refused."""
    run = engine.start("r", "x")
    with pytest.raises(errors.Usage, match="a timeout is 0 or more seconds"):
        run.wait("finish", timeout=timeout)
    with pytest.raises(errors.Usage, match="a timeout is 0 or more seconds"):
        next(run.watch(timeout=timeout))


@pytest.mark.parametrize(
    "author",
    [5, "user:", "", "user", {}, {"kind": "user"}, {"kind": "user", "id": 7},
     {"kind": 1, "id": "a"}, "user:\udc80", "user:" + "a" * 2_049],
)  # fmt: skip
def test_who_forks_or_imports_is_somebody(engine: testing.Engine, author: Any) -> None:
    """What is no author is told as such, and nothing is recorded."""
    run = engine.start("r", "x")
    with pytest.raises(errors.Usage, match="an author is KIND:ID"):
        run.fork("s", 1, author=author)
    with pytest.raises(errors.Usage, match="an author is KIND:ID"):
        engine.import_records("s", run.export() or [], author=author)
    assert [row.run_id for row in engine.runs()] == ["r"]


@pytest.mark.parametrize("at", ["1", True, 1.0, None])
def test_a_fork_is_at_a_revision(engine: testing.Engine, at: Any) -> None:
    """What is no whole number is no revision, also where it is equal to one."""
    run = engine.start("r", "x")
    with pytest.raises(errors.Usage, match="a revision is a whole number"):
        run.fork("s", at)
