"""One set of rules for two kinds of caller: steps that say what to do, driven blocking or async.

What the kit does is written once, as generators: each yields a ``Call`` (or a ``Pause``) and is
sent what came of it. A blocking caller does the calls itself; an async one has them done in threads
and awaits what the author's own code gives.

Invariants:
- A generator of the kit never blocks between two yields; whatever takes time is yielded.
- What a call raises is raised inside the generator, at its yield.
- No call is under way once its generator goes on, not even where the caller was cancelled.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from foldlog.runtime import SECOND, Runtime

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """Something that takes time: done in a thread where the caller is async."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """So many microseconds in which nothing is done."""

    microseconds: int


Steps = Generator[Call | Pause, Any, T]
"""What the kit does, one yield for each thing that takes time."""


def do(function: Callable[..., Any], *args: Any, **options: Any) -> Call:
    """A call of this function."""
    return Call(functools.partial(function, *args, **options))


def drive(steps: Steps[T], runtime: Runtime) -> T:
    """Do what the steps say, one after the other, in this thread."""

    def done(todo: Call | Pause) -> Any:
        return todo.work() if isinstance(todo, Call) else runtime.sleep(todo.microseconds)

    try:
        todo = next(steps)
        while True:
            try:
                answer = done(todo)
            except BaseException as error:
                todo = steps.throw(error)
            else:
                todo = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(steps: Steps[T], threads: ThreadPoolExecutor) -> T:
    """Have what the steps say done in threads; what gives an awaitable is awaited here."""
    try:
        todo = next(steps)
        while True:
            try:
                answer = await _done(todo, threads)
            except BaseException as error:
                todo = steps.throw(error)
            else:
                todo = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def _done(todo: Call | Pause, threads: ThreadPoolExecutor) -> Any:
    if isinstance(todo, Pause):
        return await asyncio.sleep(todo.microseconds / SECOND)
    work = functools.partial(contextvars.copy_context().run, todo.work)
    running = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        answer = await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        raise
    return await answer if inspect.isawaitable(answer) else answer


async def _ended(running: asyncio.Future[Any]) -> None:
    """Wait for the end of a call whose caller was cancelled: no thread can be.

    A lease is not to be released, nor anybody asked about an effect, while it goes on.
    """
    await asyncio.wait([running])
    if running.exception() is None and inspect.iscoroutine(answer := running.result()):
        answer.close()


def blocking(
    method: Callable[Concatenate[S, P], Steps[T]],
) -> Callable[Concatenate[S, P], T]:
    """A method of steps as one that returns when they are done."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return drive(method(self, *args, **options), self.runtime)

    return call


def awaited(
    method: Callable[Concatenate[S, P], Steps[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method of steps as a coroutine."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return await drive_async(method(self, *args, **options), self.threads)

    return call
