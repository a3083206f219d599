"""The async twins of ``Worker`` and ``Claim``: the same names, steps that are coroutines.

    from foldlog.aio import Engine
    from foldlog.worker.aio import Worker

    async with await Engine.open(".foldlog") as engine:
        await Worker(engine, "worker-1", agent).work(at_once=10)

Steps, plans, effects and reconcilers may be coroutines; plain functions run in a thread.

Invariants:
- What the names do is written once, as steps, for both kinds of caller. What is added here is only
  what calls at the same time need.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from foldlog.client import Engine
from foldlog.errors import Usage
from foldlog.threads import over
from foldlog.worker.claim import ClaimSteps
from foldlog.worker.driving import Call, Steps, awaited, drive_async
from foldlog.worker.signals import stopping_on_signals
from foldlog.worker.working import WorkerSteps

P = ParamSpec("P")
T = TypeVar("T")

THREADS_MAX = 32
"""Calls of one worker under way at once; further ones wait for a thread."""

_under_way: ContextVar[list[asyncio.Task[Any]]] = ContextVar("foldlog_calls_of_a_step")
"""The tasks that are in a call of a claim, begun by the step that this is in."""


def _once(
    method: Callable[Concatenate["Claim", P], Steps[T]],
    name_of: Callable[[tuple[Any, ...], dict[str, Any]], str | None],
) -> Callable[Concatenate["Claim", P], Steps[T]]:
    """What is done once in a run's life, by its name, is not done twice at a time either."""

    @functools.wraps(method)
    def steps(self: "Claim", /, *args: P.args, **options: P.kwargs) -> Steps[T]:
        name = name_of(args, options)
        if name is None:
            return (yield from method(self, *args, **options))
        key = method.__name__, name
        if key in self._names:
            raise Usage(f"{name!r} is under way already")
        self._names.add(key)
        try:
            return (yield from method(self, *args, **options))
        finally:
            self._names.discard(key)

    return steps


class Claim(ClaimSteps):
    """One run, held by a worker: what a step works with. Leaving its ``async with`` lets it go."""

    threads: ThreadPoolExecutor
    _awaits = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turns = asyncio.Lock()
        self._names: set[tuple[str, str]] = set()

    def _called(self, function: Callable[[Any], Any]) -> Call:
        return replace(super()._called(function), around=self._with_its_calls)

    async def _with_its_calls(self, answer: Awaitable[Any]) -> Any:
        """A step has ended when the calls that it began have: what goes on asks about effects."""
        begun: list[asyncio.Task[Any]] = []
        outside = _under_way.set(begun)
        try:
            return await answer
        finally:
            _under_way.reset(outside)
            for each in begun:
                each.cancel()
            if (cancelled := await over(*begun)) is not None:
                raise cancelled

    async def _driven(self, steps: Steps[Any]) -> Any:
        calls, task = _under_way.get([]), asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        calls.append(task)
        try:
            return await drive_async(steps, self.threads, self._turns)
        finally:
            calls.remove(task)

    state = awaited(ClaimSteps._look)
    propose = awaited(ClaimSteps._propose_events)
    tool = awaited(_once(ClaimSteps._tool, lambda args, options: options.get("step_id")))
    perform = awaited(_once(ClaimSteps._perform, lambda args, options: args[0] if args else None))
    observe = awaited(ClaimSteps._observe)
    checkpoint = awaited(ClaimSteps._checkpoint)
    wait_for_user = awaited(ClaimSteps._wait_for_user)
    wait_for_approval = awaited(ClaimSteps._wait_for_approval)
    wait_for_timer = awaited(ClaimSteps._wait_for_timer)
    wait_for_event = awaited(ClaimSteps._wait_for_event)
    go_on = awaited(ClaimSteps._go_on)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return bool(await self._driven(self._leave(error)))


class Worker(WorkerSteps):
    """Claims runs of an engine and works on them; see ``WorkerSteps`` for its options."""

    claim_class = Claim

    def __init__(self, engine: Any, worker_id: str, agent: Any = None, **options: Any) -> None:
        super().__init__(engine, worker_id, agent, **options)
        self.threads = ThreadPoolExecutor(THREADS_MAX, "foldlog-worker")

    @staticmethod
    def _client(engine: Any) -> Engine:
        client: Engine = engine._twin
        return client

    def _made(self, run_id: str) -> ClaimSteps:
        claim: Any = super()._made(run_id)
        claim.threads = self.threads
        return claim  # type: ignore[no-any-return]

    async def _driven(self, steps: Steps[Any]) -> Any:
        return await drive_async(steps, self.threads)

    claim = awaited(WorkerSteps._claim)

    async def work(self, *, until_idle: bool = False, at_once: int = 1) -> int:
        """Claim and work until ``stop``, SIGTERM or SIGINT, on so many runs ``at_once``.

        Returns how many claims there were. With ``until_idle``: until there is nothing to claim at
        the moment. The signals count where the loop runs in the main thread; after the first one
        the application's own handlers stand again. What is under way in a thread has ended when
        this returns, however often it is cancelled.
        """
        with stopping_on_signals(self.stop):
            steps = (self._work(until_idle=until_idle) for _ in range(at_once))
            works = [asyncio.create_task(self._driven(each)) for each in steps]
            cancelled = None
            try:
                await asyncio.wait(works, return_when=asyncio.FIRST_EXCEPTION)
            except asyncio.CancelledError as error:
                cancelled = error
            for each in works:
                each.cancel()
            cancelled = await over(*works) or cancelled
        failed = [each for each in works if not each.cancelled() and each.exception() is not None]
        if cancelled is not None:
            raise cancelled
        return sum(each.result() for each in failed or works)
