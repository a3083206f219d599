"""The async worker: what only it can do, and that it has the names of the blocking one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from foldlog import aio, testing, worker
from foldlog.worker import Agent, Succeeded
from foldlog.worker import aio as async_kit
from tests.client_runs import NOW, started
from tests.kit import state_of

ONLY_ASYNC = {"at_once"}


def run(work: Coroutine[Any, Any, None]) -> None:
    """A test's coroutine, with an end."""
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("name", ["Worker", "Claim"])
def test_the_twin_has_the_same_names(name: str) -> None:
    """Every public call of the blocking kit is there with the same parameters, and no other."""
    real, twin = getattr(worker, name), getattr(async_kit, name)
    names = {each for each in vars(real) if not each.startswith("_")}
    assert {each for each in vars(twin) if not each.startswith("_")} == names
    for each in names - {"claim_class"}:
        ours, theirs = (
            list(inspect.signature(getattr(of, each)).parameters) for of in (twin, real)
        )
        assert [one for one in ours if one not in ONLY_ASYNC] == theirs, each
        assert inspect.iscoroutinefunction(getattr(twin, each)), each


def test_steps_that_are_coroutines(tmp_path: Path) -> None:
    """Plan, steps, tools, effects and reconcilers may all be coroutines."""
    agent, seen = Agent(), []

    @agent.plan
    async def plan(claim: Any) -> list[dict[str, str]]:
        return [{"id": "work", "title": (await claim.state()).goal.statement}]

    @agent.effect("mail")
    async def mail(effect: Any) -> str:
        seen.append(effect.id)
        if len(seen) == 1:
            raise OSError("no answer")
        return "mail:1"

    @mail.reconciler
    async def ask(effect: Any) -> Succeeded:
        await asyncio.sleep(0)
        return Succeeded("mail:found")

    async def look(what: str) -> str:
        return what.upper()

    @agent.step
    async def work(claim: Any) -> Any:
        assert await claim.tool("look", look, "x", step_id="look") == "X"
        answer = await claim.wait_for_user("k", "what now?")
        with_reference: Any = await claim.perform("mail", mail, "mail:ada")
        return f"{with_reference}/{answer.payload}"

    async def story() -> None:
        async with await aio.Engine.open(tmp_path, create=True, author="user:ada") as engine:
            handle = await engine.start("run_1", goal="ask and write")
            kit = async_kit.Worker(engine, "w1", agent, retries=worker.Retries(0.01, 0.01))
            working = asyncio.create_task(kit.work())
            await handle.wait("waiting", timeout=30)
            await handle.signal("k", "yes")
            waited = await handle.wait("finish", timeout=30)
            kit.stop()
            assert await working >= 2
            assert waited is not None
            assert waited.result == "completed"
            state = await handle.state()
            assert state is not None
            assert state.tasks[0].evidence == "mail:found/yes"
            assert seen == ["mail"]

    run(story())


def test_many_runs_at_once() -> None:
    """One worker works on as many runs at once as it is told, and no more."""
    agent = Agent()
    inside: list[str] = []
    most: list[int] = []

    @agent.step
    async def work(claim: Any) -> None:
        inside.append(claim.run_id)
        most.append(len(inside))
        for _ in range(20):
            await asyncio.sleep(0.001)
        inside.remove(claim.run_id)

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            runs = [started(real, f"run_{number}") for number in range(12)]
            kit = async_kit.Worker(aio.Engine(real), "w1", agent)
            assert await kit.work(until_idle=True, at_once=4) == 12
            assert {state_of(run).result for run in runs} == {"completed"}
            assert max(most) == 4

    run(story())


def test_cancelling_lets_the_run_go() -> None:
    """A worker whose task is cancelled lets its run go; another may go on at once."""
    agent = Agent()
    begun = asyncio.Event()

    @agent.step
    async def work(claim: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            working = asyncio.create_task(async_kit.Worker(aio.Engine(real), "w1", agent).work())
            await begun.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert state_of(handle).lease is None

    run(story())
