"""The leases of claimed runs: taken over, renewed, lost, and kept while a step works.

Invariants:
- Every test runs on the blocking worker and on its async twin, through what authors call.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from foldlog import aio, client, testing
from foldlog.worker import Agent, LeaseLost, RunStopped, Succeeded
from foldlog.worker import aio as async_kit
from tests import kit
from tests.client_runs import NOW, act, at_home, event, fact, started, task
from tests.kit import OTHER, Kit, state_of, steps, types_of
from tests.kit import engine as engine
from tests.kit import made as made
from tests.workers import until


def test_a_dead_workers_run_is_picked_up(made: Kit, engine: testing.Engine) -> None:
    """Once the lease is over another worker takes the run and its task, and finishes it."""
    calls: list[str] = []
    run = started(engine)
    dead = made.worker(engine, OTHER, steps("read"), renew=False)
    claim = dead.claim()
    for _ in range(2):
        claim.go_on()
    claim.propose(event("TaskStarted", task_id="read", worker=OTHER))
    worker = made.worker(engine, agent=steps("read", calls=calls))
    assert worker.claim() is None
    engine.clock.advance(61)
    assert worker.work(until_idle=True) == 1
    assert (calls, state_of(run).result) == (["read"], "completed")
    with pytest.raises(RunStopped):
        claim.propose(fact("late"))
    assert [row.code for row in run.history(rejected=True) if row.code] == ["RUN_FINISHED"]


def test_a_worker_that_lost_its_run_does_nothing(made: Kit, engine: testing.Engine) -> None:
    """Fenced once, a claim proposes no more: not even what would be allowed."""
    run = started(engine)
    old = made.worker(engine, OTHER, renew=False).claim()
    engine.clock.advance(61)
    new = made.worker(engine).claim()
    for _ in range(2):
        with pytest.raises(LeaseLost):
            old.propose(fact("late"))
    assert [row.code for row in run.history(rejected=True) if row.code] == ["FENCED"]
    assert new.propose(fact("mine")).accepted


def test_a_restarted_worker_takes_its_own_run_at_once(made: Kit, engine: testing.Engine) -> None:
    """Under its old name a worker need not wait for its lease to end; its older self is fenced."""
    started(engine)
    older = made.worker(engine).claim()
    assert made.worker(engine).claim().state().lease.epoch == 2
    with pytest.raises(LeaseLost):
        older.propose(fact("late"))


def test_a_lease_is_renewed_at_a_third(made: Kit, engine: testing.Engine) -> None:
    """By the engine's clock: not before a third of its time has passed, and then for all of it."""
    run = started(engine)
    claim = made.worker(engine, renew=False).claim()
    before = state_of(run).lease.expires_at
    engine.clock.advance(19)
    claim.keep()
    assert state_of(run).lease.expires_at == before
    engine.clock.advance(2)
    claim.keep()
    assert state_of(run).lease.expires_at == "2026-01-01T00:01:21.000000Z"
    assert claim.propose(fact("f")).accepted


def test_a_lease_that_ended_meanwhile_is_renewed(
    made: Kit, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is over and taken by nobody is renewed before a task is taken over.

    Another worker's task is taken over by a live lease only; a simulated seed span on that."""
    run, real, late = started(engine), client.Run.propose, [61]
    with made.worker(engine, OTHER, steps("work")).claim() as claim:
        claim.go_on()
        claim.go_on()
        claim.propose(event("TaskStarted", task_id="work", worker=OTHER))

    def propose(self: client.Run, events: Any, **options: Any) -> Any:
        if events[0]["type"] == "TaskStarted" and late:
            engine.clock.advance(late.pop())
        return real(self, events, **options)

    monkeypatch.setattr(client.Run, "propose", propose)
    made.worker(engine, agent=steps("work"), renew=False).work(until_idle=True)
    assert state_of(run).result == "completed"
    assert [row.code for row in run.history(rejected=True) if row.code] == ["CONFLICT"]
    assert ["LeaseRenewed"] in types_of(run)


def codes_of(run: Any) -> list[str]:
    """The codes of what was refused, in order."""
    return [row.code for row in run.history(rejected=True) if row.code]


def test_a_clock_that_is_ahead_does_not_flood_the_log(
    made: Kit, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker by whose clock a lease is over that is live by the log's tries seldom, less and less
    often, and has the run once the log says so too."""
    run = started(engine)
    assert made.worker(engine, OTHER, lease_seconds=600, renew=False).claim() is not None
    monkeypatch.setattr(engine, "_clock", lambda: engine.clock() + 3_600_000_000)
    worker = made.worker(engine, agent=steps("work"))
    for expected in (1, 1, 2, 2, 2, 3):
        assert worker.work(until_idle=True) == 0
        assert codes_of(run) == ["LEASE_HELD"] * expected
        engine.clock.advance(0.4)
    for _ in range(597):
        assert worker.work(until_idle=True) == 0
        engine.clock.advance(1)
    assert len(codes_of(run)) < 30
    engine.clock.advance(32)
    assert worker.work(until_idle=True) == 1
    assert state_of(run).result == "completed"


def test_a_clock_that_was_set_back_does_not_flood_the_log(
    made: Kit, engine: testing.Engine
) -> None:
    """A run whose deadline is passed by the log's time is not claimed, whatever the clock says."""
    run = started(engine, budgets={"deadline": "2026-01-01T01:00:00Z"})
    agent = Agent()

    @agent.step
    def work(claim: Any) -> None:
        claim.wait_for_event("k", "the build")
        claim.tool("shell", int)

    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    engine.clock.advance(7200)
    run.signal("k", author="user:ada")
    before = len(run.history(rejected=True))
    engine.clock.set("2026-01-01T00:30:00Z")
    assert worker.work(until_idle=True) == 0
    assert len(run.history(rejected=True)) == before


def test_a_run_that_cannot_even_wait_is_left_alone(made: Kit, engine: testing.Engine) -> None:
    """A run in which somebody used up the ids of the kit's checkpoints is no reason to turn in
    circles: it is tried again seldom, and other runs are worked on."""
    run = started(engine)
    act(run, task("strange"))
    taken = [{"id": f"before_wait/{number}", "boundary": "before_wait"} for number in range(90)]
    act(run, *(event("CheckpointTaken", checkpoint=point) for point in taken))
    worker = made.worker(engine, agent=steps("work"))
    assert worker.work(until_idle=True) == 1
    other = started(engine, "other")
    assert worker.work(until_idle=True) == 1
    assert state_of(other).result == "completed"
    engine.clock.advance(1)
    assert worker.work(until_idle=True) == 1
    assert state_of(run).status == "running"


def test_a_worker_that_is_stopped_tries_no_further_run(
    made: Kit, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to stop while the runs that seem free are not to be had, it tries none after that."""
    real, tried = client.Run.propose, list[str]()
    for number in range(3):
        started(engine, f"run_{number}")
    worker = made.worker(engine)

    def propose(self: client.Run, events: Any, **options: Any) -> Any:
        tried.append(self.run_id)
        worker.stop()
        real(self, [event("LeaseAcquired", worker=OTHER, ttl_seconds=60)], author="agent:x")
        return real(self, events, **options)

    monkeypatch.setattr(client.Run, "propose", propose)
    assert (worker.claim(), len(tried)) == (None, 1)


def test_leases_are_renewed_in_the_background(made: Kit, tmp_path: Path) -> None:
    """A step that takes longer than its lease keeps it."""
    agent = Agent()
    seen: list[str] = []

    @agent.step
    def slow(run: Any) -> None:
        while len(seen) < 3:
            if (expires := run.state().lease.expires_at) not in seen:
                seen.append(expires)

    with at_home(tmp_path, client.wall_clock) as engine:
        run = started(engine)
        made.worker(engine, agent=agent, lease_seconds=1).work(until_idle=True)
        assert state_of(run).result == "completed"


def test_a_claim_that_nobody_has_is_renewed_no_longer(made: Kit, tmp_path: Path) -> None:
    """A claim that was dropped without being left does not keep its run for ever."""
    with at_home(tmp_path, client.wall_clock) as engine:
        started(engine)
        dropped = made.worker(engine, OTHER, lease_seconds=1).claim()
        assert dropped.run_id == "run_1"
        del dropped
        gc.collect()
        with made.worker(engine).claim(30) as claim:
            assert claim.state().lease.worker == kit.WORKER


def test_a_closed_engine_ends_what_was_held(made: Kit, tmp_path: Path) -> None:
    """The thread that renews ends with the last claim, also where the engine was closed before."""
    with at_home(tmp_path, client.wall_clock) as engine:
        started(engine)
        claim = made.worker(engine, lease_seconds=1).claim()
        assert claim.keep()
    assert not claim.keep()
    until(lambda: "foldlog-lease" not in {thread.name for thread in threading.enumerate()})


def test_two_selves_of_one_name_never_hold_one_epoch(
    made: Kit, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 3: a worker stood still after its lease was given, and its newer self of the same name
    has the run by now: it does not take that one's lease for its own, and only one can write."""
    run, real = started(engine), client.Run.propose
    newer: list[Any] = []

    def propose(self: client.Run, events: Any, **options: Any) -> Any:
        outcome = real(self, events, **options)
        if not newer:
            newer.append(None)
            newer[0] = made.worker(engine, renew=False).claim()
            assert newer[0].state().lease.epoch == 2
        return outcome

    monkeypatch.setattr(client.Run, "propose", propose)
    older = made.worker(engine, renew=False)
    assert older.claim() is None
    engine.clock.advance(1)
    older = older.claim()
    assert older.state().lease.epoch == 3  # by a lease of its own
    with pytest.raises(LeaseLost):
        newer[0].propose(fact("late"))
    assert older.propose(fact("mine")).accepted
    assert [row.code for row in run.history(rejected=True) if row.code] == ["FENCED"]


def test_a_tool_is_not_called_by_who_stood_still(
    made: Kit, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 3: stopped between the record of a call and the call, until its lease was over and
    another worker had the run, it calls nothing."""
    run, real, called = started(engine), client.Run.propose, list[str]()
    agent = Agent()

    @agent.step("build")
    def build(claim: Any) -> None:
        claim.tool("make", lambda: called.append(claim.worker_id))

    other = made.worker(engine, OTHER, agent)

    def propose(self: client.Run, events: Any, **options: Any) -> Any:
        outcome = real(self, events, **options)
        if events[-1]["type"] == "ToolStarted" and options["author"] == f"agent:{kit.WORKER}":
            engine.clock.advance(61)
            assert other.work(until_idle=True) == 1
        return outcome

    monkeypatch.setattr(client.Run, "propose", propose)
    made.worker(engine, agent=agent, renew=False).work(until_idle=True)
    assert (called, state_of(run).result) == ([OTHER], "completed")


def test_a_call_that_cannot_be_cancelled_is_waited_for() -> None:
    """An async worker that is cancelled while an effect is on its way in a thread keeps its lease
    until that is done, and reports what came of it: nobody is asked whether it happened."""
    acting, may_end, told = threading.Event(), threading.Event(), list[str]()
    agent = Agent()

    @agent.effect("order")
    def order(effect: Any) -> str:
        acting.set()
        assert may_end.wait(60)
        told.append("acted")
        return "shop:1"

    @order.reconciler
    def ask(effect: Any) -> Succeeded:
        told.append("asked")
        return Succeeded("shop:1")

    @agent.step
    async def act(run: Any) -> None:
        await run.perform("order-1", order, "shop:orders")

    async def cancelled(engine: testing.Engine) -> None:
        worker = async_kit.Worker(aio.Engine(engine), kit.WORKER, agent)
        working = asyncio.create_task(worker.work())
        await asyncio.to_thread(acting.wait, 60)
        working.cancel()
        other = async_kit.Worker(aio.Engine(engine), OTHER, agent)
        assert await other.work(until_idle=True) == 0
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert await other.work(until_idle=True) == 1
        for each in (worker, other):
            each.threads.shutdown()

    with testing.Engine(now=NOW) as engine:
        run = started(engine)
        asyncio.run(cancelled(engine))
        assert (told, state_of(run).result) == (["acted"], "completed")
