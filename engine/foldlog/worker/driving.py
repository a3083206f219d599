"""One set of rules for two kinds of caller: steps that say what to do, driven blocking or async.

What the kit does is written once, as generators: each yields a ``Call`` (or a ``Pause``) and is
sent what came of it. A blocking caller does the calls itself; an async one has them done in threads
and awaits what the author's own code gives.

Invariants:
- A generator of the kit never blocks between two yields; whatever takes time is yielded.
- What a call raises is raised inside the generator, at its yield.
- No call is under way once its generator goes on, not even where the caller was cancelled, be it
  often. What a call gave is not lost either: the cancellation is raised at the next yield, and what
  is owed, such as the report of an outcome, is done before.
- Of the async calls of one claim one goes on at a time; while the author's code is under way, the
  others have their turn.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from foldlog.runtime import SECOND, Runtime
from foldlog.threads import begin, over

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """Something that takes time: done in a thread where the caller is async.

    ``theirs``: it is the author's code; if it gives an awaitable, ``around`` gives what to await in
    its place. ``owed``: it is done even where the caller was cancelled.
    """

    work: Callable[[], Any]
    theirs: bool = False
    owed: bool = False
    around: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """So many microseconds in which nothing is done."""

    microseconds: int


Steps = Generator[Call | Pause, Any, T]
"""What the kit does, one yield for each thing that takes time."""


def do(function: Callable[..., Any], /, *args: Any, **options: Any) -> Call:
    """A call of this function."""
    return Call(functools.partial(function, *args, **options))


def theirs(function: Callable[..., Any], /, *args: Any, **options: Any) -> Call:
    """A call of this function, which is the author's."""
    return Call(functools.partial(function, *args, **options), theirs=True)


def owed(function: Callable[..., Any], /, *args: Any, **options: Any) -> Call:
    """A call of this function that whoever reads the log, or this worker, relies on."""
    return Call(functools.partial(function, *args, **options), owed=True)


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


async def drive_async(
    steps: Steps[T], threads: ThreadPoolExecutor, turns: asyncio.Lock | None = None
) -> T:
    """Have what the steps say done in threads; what gives an awaitable is awaited here.

    Steps with the same ``turns`` go on one at a time.
    """
    return await _Driving(threads, turns or asyncio.Lock()).drive(steps)


class _Driving:
    """One drive of steps in an event loop."""

    def __init__(self, threads: ThreadPoolExecutor, turns: asyncio.Lock) -> None:
        self._threads, self._turns = threads, turns
        self._cancelled: asyncio.CancelledError | None = None
        """What the steps are still to be told."""

    async def drive(self, steps: Steps[T]) -> T:
        await self._take_turn()
        try:
            todo = next(steps)
            while True:
                try:
                    answer = await self._done(todo)
                except BaseException as error:
                    todo = steps.throw(error)
                else:
                    todo = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
        except BaseException as error:
            self._tell(error)
            raise
        finally:
            self._turns.release()
        self._tell()
        return value

    def _tell(self, cause: BaseException | None = None) -> None:
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            raise cancelled from cause

    async def _done(self, todo: Call | Pause) -> Any:
        if isinstance(todo, Pause):
            self._tell()
            return await asyncio.sleep(todo.microseconds / SECOND)
        if not todo.owed:
            self._tell()
        if not todo.theirs:
            return await self._in_thread(todo.work)
        self._turns.release()
        try:
            return await self._of_author(todo)
        finally:
            await self._take_turn()

    async def _take_turn(self) -> None:
        while True:
            try:
                await self._turns.acquire()
                return
            except asyncio.CancelledError as error:
                self._cancelled = error

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """A call and its end, also where this is cancelled: no thread can be.

        A lease is not to be released, nor anybody asked about an effect, while it goes on.
        """
        running = begin(functools.partial(contextvars.copy_context().run, work), self._threads)
        self._cancelled = await over(running) or self._cancelled
        return running.result()

    async def _of_author(self, todo: Call) -> Any:
        try:
            answer = await self._in_thread(todo.work)
            if not inspect.isawaitable(answer):
                return answer
            if self._cancelled is not None and inspect.iscoroutine(answer):
                answer.close()  # it was not begun
            self._tell()
            return await (todo.around(answer) if todo.around else answer)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # Nobody cancelled this: it comes from something that the author's code cancelled.
            raise RuntimeError("something that it awaited was cancelled") from error


def _is_cancelled() -> bool:
    """Whether somebody cancelled the task that this is."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
    """A method of steps as a coroutine, driven as ``self`` has its steps driven."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        value: T = await self._driven(method(self, *args, **options))
        return value

    return call
