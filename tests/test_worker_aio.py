"""The async worker: what only it can do, and that it has the names of the blocking one."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foldlog import aio, client, testing, worker
from foldlog.errors import Usage
from foldlog.worker import Agent, Failed, Succeeded
from foldlog.worker import aio as async_kit
from foldlog.worker.queue import Queue
from tests.client_runs import NOW, started
from tests.kit import state_of

ONLY_ASYNC = {"at_once"}


PATIENCE = 10
"""Seconds after which a test no longer waits for what never comes."""


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


# Cancelled while something is under way


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("times", [1, 3])
def test_cancelling_waits_for_an_effect_in_a_thread(at_once: int, times: int) -> None:
    """However often a worker is cancelled, its run is held until the effect that is under way has
    ended, and its outcome is reported."""
    agent, begun, may_end = Agent(), threading.Event(), threading.Event()

    @agent.effect("charge")
    def charge(effect: Any) -> str:
        begun.set()
        assert may_end.wait(PATIENCE)
        return "bank:1"

    @agent.step
    async def work(claim: Any) -> None:
        await claim.perform("charge-1", charge, "bank:ada")

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            kit = async_kit.Worker(aio.Engine(real), "w1", agent)
            working = asyncio.create_task(kit.work(at_once=at_once))
            await asyncio.to_thread(begun.wait, PATIENCE)
            for _ in range(times):
                working.cancel()
                await asyncio.sleep(0.05)
            assert not working.done()
            assert state_of(handle).lease.worker == "w1"
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await working
            state = state_of(handle)
            assert (state.lease, state.effects[0].outcome) == (None, "succeeded")

    run(story())


def test_an_error_of_one_run_ends_the_others_first() -> None:
    """When ``work`` raises, nothing of it is under way any more."""
    agent, inside, ended = Agent(), list[str](), list[str]()

    class Fatal(BaseException):
        pass

    @agent.step
    async def work(claim: Any) -> None:
        inside.append(claim.run_id)
        while len(inside) < 2:
            await asyncio.sleep(0.001)
        if claim.run_id == "run_1":
            raise Fatal
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append(claim.run_id)

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            runs = [started(real, run_id) for run_id in ("run_1", "run_2")]
            with pytest.raises(Fatal):
                await async_kit.Worker(aio.Engine(real), "w1", agent).work(at_once=2)
            assert ended == ["run_2"]
            assert [state_of(each).lease for each in runs] == [None, None]

    run(story())


class Cancelling(ThreadPoolExecutor):
    """Threads; the task that begins the call of a certain number is cancelled while it goes on."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Begin a call."""
        self.left -= 1
        if self.left == 0 and (task := asyncio.current_task()) is not None:
            task.cancel()
        return super().submit(work, *args, **options)


def test_a_cancelled_claim_loses_no_run() -> None:
    """Whatever was under way when a claim was cancelled, its run is free, and may be claimed at
    once by this worker or by another."""

    async def story() -> None:
        for number in range(1, 50):
            with testing.Engine(now=NOW) as real:
                handle = started(real)
                kit = async_kit.Worker(aio.Engine(real), "w1")
                plain, kit.threads = kit.threads, Cancelling(number)
                claiming = asyncio.create_task(kit.claim())
                await asyncio.wait([claiming])
                if not claiming.cancelled():
                    assert number > 3
                    return
                assert state_of(handle).lease is None, number
                kit.threads = plain
                assert await kit.claim() is not None, number
        raise AssertionError("every claim was cancelled")

    run(story())


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_tool_call_whose_time_is_up(kind: str) -> None:
    """A tool call that its step no longer waits for is recorded, and the run goes on."""
    agent, end = Agent(), threading.Event()

    async def coroutine() -> None:
        await asyncio.sleep(60)

    def thread() -> None:
        end.wait(0.5)

    @agent.step
    async def work(claim: Any) -> None:
        tool = coroutine if kind == "coroutine" else thread
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(claim.tool("search", tool), 0.1)

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            await async_kit.Worker(aio.Engine(real), "w1", agent).work(until_idle=True)
            assert state_of(handle).result == "completed"
            types = [event.type for row in handle.history() for event in row.events or []]
            ended = {"coroutine": "ToolFailed", "thread": "ToolSucceeded"}[kind]
            assert types.count("ToolStarted") == types.count(ended) == 1

    run(story())


# What a step does by itself


async def _raises() -> None:
    raise StopAsyncIteration


async def _yields() -> AsyncIterator[int]:
    yield 1


async def _cancels() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


@pytest.mark.parametrize("in_a_tool", [False, True])
@pytest.mark.parametrize("function", [lambda: next(iter(())), _raises, _cancels])
def test_what_ends_other_things_fails_a_step(function: Callable[[], Any], in_a_tool: bool) -> None:
    """A StopIteration, or a cancellation of the step's own making, is the step's failure, and the
    other runs go on."""
    agent = Agent()

    @agent.step
    def work(claim: Any) -> Any:
        if claim.run_id == "run_1":
            return claim.tool("look", function) if in_a_tool else function()
        return asyncio.sleep(0.1)

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            failing, other = started(real), started(real, "run_2")
            kit = async_kit.Worker(aio.Engine(real), "w1", agent)
            await kit.work(until_idle=True, at_once=2)
            state = state_of(failing)
            assert (state.retry_count, state.waiting.kind) == (1, "timer")
            assert state.pending_tool_calls == []
            assert state_of(other).result == "completed"

    run(story())


def test_an_async_generator_is_no_step() -> None:
    """A step that yields gives no evidence: the run does not go on as if it had been done."""
    agent = Agent()
    agent.step("work")(lambda claim: _yields())

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            await async_kit.Worker(aio.Engine(real), "w1", agent).work(until_idle=True)
            state = state_of(handle)
            assert (state.status, [task.status for task in state.tasks]) == ("waiting", ["running"])

    run(story())


# Several calls at a time


@pytest.mark.parametrize("kind", ["tool", "observe", "checkpoint", "perform"])
def test_calls_at_the_same_time(kind: str) -> None:
    """A step may have many calls under way; each is recorded once, in one pass of the step."""
    agent, passes = Agent(), list[str]()

    @agent.effect("charge")
    async def charge(effect: Any) -> str:
        return "bank:1"

    def call(claim: Any, number: int) -> Any:
        return {
            "tool": lambda: claim.tool("search", lambda: number),
            "observe": lambda: claim.observe(f"shop:{number}", lambda: "v1"),
            "checkpoint": lambda: claim.checkpoint(f"note {number}"),
            "perform": lambda: claim.perform(f"charge-{number}", charge, "bank:ada"),
        }[kind]()

    @agent.step
    async def work(claim: Any) -> None:
        passes.append(claim.run_id)
        await asyncio.gather(*(call(claim, number) for number in range(5)))

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            kit = async_kit.Worker(aio.Engine(real), "w1", agent)
            await asyncio.wait_for(kit.work(until_idle=True), PATIENCE)
            assert (state_of(handle).result, passes) == ("completed", ["run_1"])
            assert [row.code for row in handle.history(rejected=True) if row.code] == []

    run(story())


def test_tools_at_the_same_time_overlap() -> None:
    """Only what is recorded waits for its turn; the tools' own work does not."""
    agent = Agent()

    @agent.step
    async def work(claim: Any) -> None:
        here, there = asyncio.Event(), asyncio.Event()

        async def meet(mine: asyncio.Event, other: asyncio.Event) -> None:
            mine.set()
            await asyncio.wait_for(other.wait(), PATIENCE)

        await asyncio.gather(
            claim.tool("meet", meet, here, there), claim.tool("meet", meet, there, here)
        )

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            await async_kit.Worker(aio.Engine(real), "w1", agent).work(until_idle=True)
            assert state_of(handle).result == "completed"

    run(story())


def test_the_same_effect_twice_at_a_time() -> None:
    """Nobody is asked about an effect that this claim is just performing: to begin it again
    meanwhile is Usage, and so it is with a tool call of the same step id."""
    agent, done = Agent(), list[str]()

    @agent.effect("charge")
    async def charge(effect: Any) -> str:
        await asyncio.sleep(0.1)
        done.append("charge")
        return "bank:1"

    @charge.reconciler
    def ask(effect: Any) -> Failed:
        done.append("ask")
        return Failed("bank:none")

    async def look() -> str:
        await asyncio.sleep(0.1)
        done.append("look")
        return "seen"

    @agent.step
    async def work(claim: Any) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: claim.perform("charge-1", charge, "bank:ada"),
            lambda: claim.tool("look", look, step_id="look-1"),
        ]
        for call in calls:
            answers = await asyncio.gather(call(), call(), return_exceptions=True)
            assert isinstance(answers[1], Usage)
            assert await call() == answers[0]

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            await async_kit.Worker(aio.Engine(real), "w1", agent).work(until_idle=True)
            assert (state_of(handle).result, done) == ("completed", ["charge", "look"])

    run(story())


def test_a_step_has_ended_when_its_calls_have() -> None:
    """Where a step fails while an effect that it began is under way in a thread, nobody is asked
    about that effect: its outcome is waited for."""
    agent, begun, done = Agent(), threading.Event(), list[str]()

    @agent.effect("charge")
    def charge(effect: Any) -> str:
        begun.set()
        threading.Event().wait(0.3)
        done.append("charge")
        return "bank:1"

    @charge.reconciler
    def ask(effect: Any) -> Failed:
        done.append("ask")
        return Failed("bank:none")

    async def fails() -> None:
        await asyncio.to_thread(begun.wait, PATIENCE)
        raise ValueError

    @agent.step
    async def work(claim: Any) -> None:
        await asyncio.gather(claim.perform("charge-1", charge, "bank:ada"), fails())

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            kit = async_kit.Worker(aio.Engine(real), "w1", agent)
            await kit.work(until_idle=True)
            assert (state_of(handle).effects[0].outcome, done) == ("succeeded", ["charge"])

    run(story())


# The loop, and the process


def test_a_renewal_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lets a run go while its lease is being renewed waits for that, and the event loop
    goes on."""
    renewing, may_end, in_time = threading.Event(), threading.Event(), list[bool]()
    propose = client.Run.propose

    def slow(self: Any, events: Any, **options: Any) -> Any:
        if events[0]["type"] == "LeaseRenewed":
            renewing.set()
            in_time.append(may_end.wait(PATIENCE))
        return propose(self, events, **options)

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            handle = started(real)
            monkeypatch.setattr(client.Run, "propose", slow)
            claim = await async_kit.Worker(aio.Engine(real), "w1", renew=False).claim()
            real.clock.advance(30)
            keeping = asyncio.create_task(asyncio.to_thread(claim.keep))
            await asyncio.to_thread(renewing.wait, PATIENCE)
            leaving = asyncio.create_task(claim.__aexit__(None, None, None))
            await asyncio.sleep(0.05)
            may_end.set()
            await asyncio.gather(keeping, leaving)
            assert (in_time, state_of(handle).lease) == ([True], None)

    run(story())


def test_a_look_for_runs_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lets a run go while this worker looks for another waits for that, and the event loop
    goes on."""
    looking, may_end, in_time = threading.Event(), threading.Event(), list[bool]()
    refresh = Queue._refresh

    def slow(self: Any, number: int) -> None:
        if looking.is_set():
            in_time.append(may_end.wait(PATIENCE))
        refresh(self, number)

    async def story() -> None:
        with testing.Engine(now=NOW) as real:
            started(real)
            kit = async_kit.Worker(aio.Engine(real), "w1")
            claim = await kit.claim()
            looking.set()
            other = asyncio.create_task(kit.claim())
            leaving = asyncio.create_task(claim.__aexit__(None, None, None))
            await asyncio.sleep(0.1)
            may_end.set()
            await asyncio.gather(other, leaving)
            assert in_time[0] is True

    monkeypatch.setattr(Queue, "_refresh", slow)
    run(story())


def test_a_signal_tells_every_worker() -> None:
    """SIGTERM ends all the workers of a process, and what its application had set stands again,
    be it the process's or the loop's; one that ends by itself takes nothing from the others."""
    heard = list[str]()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, heard.append, "loop")
        with testing.Engine(now=NOW) as real:
            twin = aio.Engine(real)
            kits = [async_kit.Worker(twin, f"w{number}", Agent()) for number in range(3)]
            first, *others = [asyncio.create_task(kit.work()) for kit in kits]
            await asyncio.sleep(0.05)
            kits[0].stop()
            await first
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(asyncio.gather(*others), PATIENCE) == [0, 0]
        assert heard == []
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
        assert sorted(heard) == ["loop", "process"]

    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append("process"))
    try:
        run(story())
    finally:
        signal.signal(signal.SIGTERM, before)
