"""The async twin: the client's own tests run through it, and what only it can do wrong.

Every test of the client that takes an engine of any kind is collected here once more; its engine
is then one of ``foldlog.aio`` behind a facade that waits for each call.

Invariants:
- No test is written twice: what the client must do, the twin must do.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import types
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog import aio, client, errors, testing
from tests import test_client, test_client_lists, test_client_reading, test_client_time, test_watch
from tests.client_runs import event, fact, opened
from tests.loops import Loop

SPENT = event("BudgetSpent", tokens=1)

# Reaches into the engine's own threads or objects, which a facade has not.
LEFT_OUT = {"test_an_engine_is_a_context_manager"}


class Facade:
    """Something of the twin that is called like the client's: each call is waited for."""

    def __init__(self, twin: Any, loop: Loop) -> None:
        self._facade = twin, loop

    def __getattr__(self, name: str) -> Any:
        twin, loop = self._facade
        if not hasattr(type(twin), name):
            return getattr(twin._twin, name)  # what is no part of the twin: clock, seat, author
        found = getattr(twin, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            answer = found(*args, **options)
            if inspect.isasyncgen(answer):
                return iterate(answer, loop)
            if inspect.iscoroutine(answer):
                answer = loop.wait(answer)
            return Facade(answer, loop) if isinstance(answer, aio.Run) else answer

        return call

    def __enter__(self) -> Facade:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def iterate(rows: AsyncIterator[Any], loop: Loop) -> Iterator[Any]:
    """An async iterator as an iterator."""

    async def following() -> Any:
        return await anext(rows, None)

    while (row := loop.wait(following())) is not None:
        yield row


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A running event loop."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path, loop: Loop) -> Iterator[Facade]:
    """An engine of the kind that is asked for, behind the twin."""
    with opened(request.param, tmp_path) as real:
        facade = Facade(aio.Engine(real), loop)
        yield facade
        facade.close()


def _copy(test: Any, kinds: list[str]) -> Any:
    """A test with these kinds of engine; marks of the copy are not the original's."""
    copy = types.FunctionType(test.__code__, test.__globals__, test.__name__)
    copy.__dict__.update(test.__dict__, pytestmark=list(getattr(test, "pytestmark", [])))
    copy.__doc__, copy.__annotations__ = test.__doc__, test.__annotations__
    return pytest.mark.parametrize("engine", kinds, indirect=True)(copy)


def _collect() -> None:
    kinds = {
        test_client: ["memory", "home"],
        test_client_lists: ["memory"],
        test_client_reading: ["memory"],
        test_client_time: ["memory"],
        test_watch: ["memory", "home"],
    }
    for module, wanted in kinds.items():
        for name, test in vars(module).items():
            if name.startswith("test_") and name not in LEFT_OUT and inspect.isfunction(test):
                if "engine" in inspect.signature(test).parameters:
                    globals()[f"test_twin_{module.__name__[6:]}{name[4:]}"] = _copy(test, wanted)


_collect()


# The twin itself


@pytest.mark.parametrize("name", ["Engine", "Run"])
def test_the_twin_has_the_same_names(name: str) -> None:
    """Every public call of the client is there with the same parameters, and no other."""
    real, twin = getattr(client, name), getattr(aio, name)
    only_inside = {"refused"}
    kinds = [kind for kind in real.__mro__ if kind is not object]
    names = {each for kind in kinds for each in vars(kind) if not each.startswith("_")}
    names -= only_inside
    assert {each for each in vars(twin) if not each.startswith("_")} - {
        "run_id",
        "started",
    } == names
    for each in names:
        theirs, ours = (inspect.getattr_static(kind, each) for kind in (real, twin))
        if not inspect.isfunction(theirs):
            continue
        have = inspect.signature(ours).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in have.values()):
            assert list(have) == list(inspect.signature(theirs).parameters), each


def run(work: Coroutine[Any, Any, None]) -> None:
    """A test's coroutine, with an end."""
    asyncio.run(asyncio.wait_for(work, 120))


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    """Opening, proposing, reading, watching and closing, as its documentation shows it."""

    async def work() -> None:
        async with await aio.Engine.open(tmp_path, create=True, author="user:ada") as engine:
            run = await engine.start("run_1", goal="Fix the login failure")
            assert run.started is not None
            assert run.started.revision == 1
            outcome = await run.propose(fact("f"))
            state = await run.state()
            assert state is not None
            assert state.revision == outcome.revision == 2
            rows = [row.revision_after async for row in run.watch(after=0, timeout=0.3)]
            assert rows == [1, 2]
            assert [row.run_id for row in await engine.runs()] == ["run_1"]
            assert (await engine.verify()).ok
        with pytest.raises(errors.Unavailable):
            engine._twin.run("run_1").state()

    run(work())


def test_many_at_once(tmp_path: Path) -> None:
    """More proposals at once than there are threads each have their own outcome."""

    async def work() -> None:
        async with await aio.Engine.open(tmp_path, create=True, author="user:ada") as engine:
            run = await engine.start("run_1", goal="count")
            count = aio.THREADS_MAX * 3
            outcomes = await asyncio.gather(*(run.propose(fact(f"f{n}")) for n in range(count)))
            assert sorted(each.revision for each in outcomes) == list(range(2, count + 2))

    run(work())


def test_those_who_watch_hold_up_nobody(tmp_path: Path) -> None:
    """More idle watchers than there are threads leave room for every other call, and all see the
    row that comes."""

    async def work() -> None:
        async with await aio.Engine.open(tmp_path, create=True, author="user:ada") as engine:
            run = await engine.start("run_1", goal="count")

            async def first() -> int:
                async for row in run.watch(after=1):
                    return int(row.revision_after)
                raise AssertionError("it ended without a row")

            watchers = [asyncio.create_task(first()) for _ in range(aio.THREADS_MAX + 8)]
            await asyncio.sleep(0.3)
            began = time.monotonic()
            await run.propose(fact("f"))
            assert time.monotonic() - began < 5
            assert await asyncio.gather(*watchers) == [2] * len(watchers)

    run(work())


def test_cancelling_stops_the_waiting_not_the_proposal(tmp_path: Path) -> None:
    """A cancelled call may still be decided; under its batch id it is asked for later."""
    batch = "5bfc1d98-7697-48d2-b42d-cddfd75d6180"

    async def work() -> None:
        async with await aio.Engine.open(tmp_path, create=True, author="user:ada") as engine:
            run = await engine.start("run_1", goal="count")
            task = asyncio.create_task(run.propose(fact("f"), batch_id=batch))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            outcome = await run.propose(fact("f"), batch_id=batch)
            assert (outcome.outcome, outcome.revision) == ("accepted", 2)
            watcher = asyncio.create_task(_take(run))
            await asyncio.sleep(0.1)
            watcher.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watcher
            assert len(await run.history()) == 2

    run(work())


async def _take(run: aio.Run) -> None:
    async for _ in run.watch():
        pass


def test_time_is_up_here_too() -> None:
    """OutcomeUnknown and its batch id come through; a rejection is a value."""

    async def work() -> None:
        engine = aio.Engine(testing.Engine())
        run = await engine.start("run_1", goal="count", author="user:ada")
        with pytest.raises(errors.OutcomeUnknown) as caught:
            await run.propose(SPENT, timeout=0)
        outcome = await run.outcome(caught.value.batch_id)
        assert outcome is None or outcome.outcome == "accepted"
        assert (await run.propose({"type": "Unheard"})).code == "MALFORMED"
        for _ in range(2):
            await engine.close()

    run(work())


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_open_leaves_nothing_open(tmp_path: Path, times: int) -> None:
    """Who is cancelled while an engine is being opened leaves no engine behind."""

    async def work() -> None:
        opening = asyncio.create_task(aio.Engine.open(tmp_path, create=True))
        await asyncio.sleep(0)
        for _ in range(times):
            opening.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await opening

    before = set(threading.enumerate())
    run(work())
    new = set(threading.enumerate()) - before
    assert [each for each in new if each.name == "foldlog-turn"] == []


def test_an_engine_that_is_closed(tmp_path: Path) -> None:
    """After its end every call says what the client's says: that this engine is closed."""

    async def work() -> None:
        engine = await aio.Engine.open(tmp_path, create=True, author="user:ada")
        run = await engine.start("run_1", goal="count")
        await engine.close()
        for call in (engine.runs, run.state, lambda: run.propose(fact("f"))):
            with pytest.raises(errors.Unavailable, match="this engine is closed"):
                await call()

    run(work())


def test_a_stop_iteration_comes_through(tmp_path: Path) -> None:
    """A check that raises StopIteration does not leave its caller waiting for ever."""

    async def work() -> None:
        async with await aio.Engine.open(
            tmp_path, create=True, author="user:ada", evidence_check=lambda uri: next(iter(()))
        ) as engine:
            run = await engine.start("run_1", goal="count")
            with pytest.raises(RuntimeError, match="StopIteration"):
                await asyncio.wait_for(run.propose(fact("f")), 10)

    run(work())
