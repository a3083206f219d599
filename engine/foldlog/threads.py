"""Calls in threads, as an event loop sees them.

Invariants:
- No thread can be stopped. Who must not leave a call alone waits for its end, however often it is
  cancelled meanwhile.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], threads: Executor | None) -> asyncio.Future[T]:
    """Begin a call in one of these threads; in one of the loop's own with None."""
    return asyncio.get_running_loop().run_in_executor(threads, _told, work)


def _told(work: Callable[[], T]) -> T:
    try:
        return work()
    except StopIteration as error:  # a future takes none, and nobody would hear of the end
        raise RuntimeError("a call raised StopIteration") from error


async def over(*running: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until all of these have ended; returns the cancellation that came meanwhile, if any."""
    cancelled = None
    while not all(each.done() for each in running):
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
