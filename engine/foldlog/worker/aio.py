"""The async twins of ``Worker`` and ``Claim``: the same names, steps that are coroutines.

    from foldlog.aio import Engine
    from foldlog.worker.aio import Worker

    async with await Engine.open(".foldlog") as engine:
        await Worker(engine, "worker-1", agent).work(at_once=10)

Steps, plans, effects and reconcilers may be coroutines; plain functions run in a thread.

Invariants:
- Nothing is done here: what the names do is written once, as steps, for both kinds of caller.
"""

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from foldlog.client import Engine
from foldlog.worker.claim import ClaimSteps
from foldlog.worker.driving import awaited, drive_async
from foldlog.worker.working import WorkerSteps

THREADS_MAX = 32
"""Calls of one worker under way at once; further ones wait for a thread."""


class Claim(ClaimSteps):
    """One run, held by a worker: what a step works with. Leaving its ``async with`` lets it go."""

    threads: ThreadPoolExecutor
    _awaits = True

    state = awaited(ClaimSteps._look)
    propose = awaited(ClaimSteps._propose_events)
    tool = awaited(ClaimSteps._tool)
    perform = awaited(ClaimSteps._perform)
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
        return await drive_async(self._leave(error), self.threads)


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

    claim = awaited(WorkerSteps._claim)

    async def work(self, *, until_idle: bool = False, at_once: int = 1) -> int:
        """Claim and work until ``stop``, SIGTERM or SIGINT, on so many runs ``at_once``.

        Returns how many claims there were. With ``until_idle``: until there is nothing to claim at
        the moment. The signals count where the loop runs in the main thread.
        """
        loop, caught = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        handles = threading.current_thread() is threading.main_thread()
        for number in caught if handles else ():
            loop.add_signal_handler(number, self.stop)
        try:
            works = (
                drive_async(self._work(until_idle=until_idle), self.threads) for _ in range(at_once)
            )
            return sum(await asyncio.gather(*works))
        finally:
            for number in caught if handles else ():
                loop.remove_signal_handler(number)
