"""The async twin of the client: the same names, each call in a thread of the engine's own.

    from foldlog.aio import Engine

    async with await Engine.open("./.foldlog", create=True) as engine:
        run = await engine.start("run_1", goal="Fix the login failure")
        outcome = await run.propose(...)
        async for row in run.watch():
            ...

Invariants:
- Nothing is done here: every call is the client's. What holds there holds here.
- Who is cancelled while an engine is being opened waits for it, and it is closed again.
- Cancelling a call stops the waiting, not the proposal: it may still be decided, as after a
  time-out; give a ``batch_id`` to ask ``outcome`` later.
"""

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from foldlog import client
from foldlog.results import HistoryRow, Outcome, Waited
from foldlog.threads import begin, over

THREADS_MAX = 32
"""Calls of one engine under way at once; further ones wait for a thread."""

P = ParamSpec("P")
T = TypeVar("T")


class _Twin:
    """Something of the client, and the threads in which it is called."""

    def __init__(self, twin: Any, threads: ThreadPoolExecutor) -> None:
        self._twin = twin
        self._threads = threads

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            running = begin(work, self._threads)
        except RuntimeError:  # its threads are gone with the engine: the client itself says so
            running = begin(work, None)
        return await running


def _later(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of the client as a coroutine of its twin, with the same parameters."""

    @functools.wraps(method)
    async def call(self: _Twin, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._call(functools.partial(method, self._twin, *args, **options))

    return call


class Run(_Twin):
    """One run of an engine; see ``client.Run``."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self._twin.run_id)

    @property
    def started(self) -> Outcome | None:
        """The outcome of ``start``, if this handle came from it."""
        outcome: Outcome | None = self._twin.started
        return outcome

    propose = _later(client.Run.propose)
    propose_json = _later(client.Run.propose_json)

    async def signal(self, key: str, payload: Any = None, **options: Any) -> Outcome:
        """Send a signal; see ``client.Run.signal``."""
        return await self._call(functools.partial(self._twin.signal, key, payload, **options))

    async def cancel(self, reason: str, **options: Any) -> Outcome:
        """Cancel the run; see ``client.Run.cancel``."""
        return await self._call(functools.partial(self._twin.cancel, reason, **options))

    async def resolve(
        self, conflict_id: str, resolution: str, reason: str, **options: Any
    ) -> Outcome:
        """Settle an open conflict; see ``client.Run.resolve``."""
        settle = functools.partial(self._twin.resolve, conflict_id, resolution, reason, **options)
        return await self._call(settle)

    async def release(self, reason: str, **options: Any) -> Outcome:
        """Let a quarantined run go on; see ``client.Run.release``."""
        return await self._call(functools.partial(self._twin.release, reason, **options))

    async def reconcile(
        self, effect_id: str, outcome: str, evidence: str, **options: Any
    ) -> Outcome:
        """Say what became of an effect in doubt; see ``client.Run.reconcile``."""
        settle = functools.partial(self._twin.reconcile, effect_id, outcome, evidence, **options)
        return await self._call(settle)

    async def archive(self, reason: str | None = None, **options: Any) -> Outcome:
        """Take a finished run out of the hot set; see ``client.Run.archive``."""
        return await self._call(functools.partial(self._twin.archive, reason, **options))

    async def wait(self, until: str | None = None, timeout: float | None = None) -> Waited | None:
        """Wait for a status, on no thread between two looks; see ``client.Run.wait``."""
        waiter = self._twin._waiter(until, timeout)
        while True:
            found: Waited | None = await self._call(lambda: self._twin._look(waiter))
            if found is None or waiter.is_over(found):
                return found
            await asyncio.sleep(waiter.patience.pause())

    state = _later(client.Run.state)
    at = _later(client.Run.at)
    history = _later(client.Run.history)
    transitions = _later(client.Run.transitions)
    diff = _later(client.Run.diff)
    outcome = _later(client.Run.outcome)
    export = _later(client.Run.export)
    why = _later(client.Run.why)
    resume_check = _later(client.Run.resume_check)
    context = _later(client.Run.context)
    fork = _later(client.Run.fork)
    conflicts = _later(client.Run.conflicts)

    async def watch(
        self, *, after: int | None = None, timeout: float | None = None, rejected: bool = False
    ) -> AsyncIterator[HistoryRow]:
        """Each row that changes the run, as it comes; see ``client.Run.watch``."""
        # No thread is kept between two looks, or a few who watch would hold up all calls.
        watch = await self._call(lambda: self._twin._watching(after, timeout, rejected))
        while not watch.is_over():
            for row in await self._call(lambda: list(watch.look())):
                yield row
            await asyncio.sleep(watch.pause())


async def _opened(opening: Callable[[], client.Engine]) -> client.Engine:
    """An engine; nobody has it where the caller was cancelled meanwhile, so it is closed then."""
    running = begin(opening, None)
    if (cancelled := await over(running)) is None:
        return running.result()
    if running.exception() is None:
        await over(begin(running.result().close, None))
    raise cancelled


class Engine(_Twin):
    """An open home; see ``client.Engine``."""

    def __init__(self, twin: client.Engine) -> None:
        super().__init__(twin, ThreadPoolExecutor(THREADS_MAX, "foldlog-aio"))
        self._closed = False

    @classmethod
    async def open(cls, directory: str | os.PathLike[str], **options: Any) -> Self:
        """Open a home; options and errors as of ``client.Engine.open``."""
        return cls(await _opened(functools.partial(client.Engine.open, directory, **options)))

    @classmethod
    async def connect(cls, url: str, **options: Any) -> Self:
        """Connect to a log on Kafka; options and errors as of ``client.Engine.connect``."""
        return cls(await _opened(functools.partial(client.Engine.connect, url, **options)))

    def run(self, run_id: str) -> Run:
        """A handle on a run, which need not exist."""
        return Run(self._twin.run(run_id), self._threads)

    async def start(self, run_id: str, goal: Any, **options: Any) -> Run:
        """Start a run; its outcome is ``run.started``. Options as of ``client.Engine.start``."""
        twin = await self._call(functools.partial(self._twin.start, run_id, goal, **options))
        return Run(twin, self._threads)

    runs = _later(client.Engine.runs)
    status = _later(client.Engine.status)
    heads = _later(client.Engine.heads)
    take_snapshots = _later(client.Engine.take_snapshots)
    quarantined = _later(client.Engine.quarantined)
    verify = _later(client.Engine.verify)
    replay = _later(client.Engine.replay)
    digest = _later(client.Engine.digest)
    project = _later(client.Engine.project)
    import_records = _later(client.Engine.import_records)

    @property
    def partitions(self) -> int:
        """The number of partitions of this home's log."""
        return int(self._twin.partitions)

    async def close(self) -> None:
        """Leave the home; nothing acknowledged is lost. May be called twice."""
        if not self._closed:
            self._closed = True
            try:
                await self._call(self._twin.close)
            finally:
                self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
