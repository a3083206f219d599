"""What a worker does: claim a run, work on it until it waits or ends, claim the next.

Invariants:
- There is no coordinator: workers meet in the log, and the lease says who has a run.
- A worker that is told to stop gives its runs back at their next safe point.
- An outage of log or store is waited for; it is no failure of a run.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from foldlog.client import Engine
from foldlog.runtime import SECOND
from foldlog.worker.agent import Agent
from foldlog.worker.claim import ClaimSteps
from foldlog.worker.driving import Pause, Steps, do
from foldlog.worker.endings import Overtaken
from foldlog.worker.holding import OUTAGES
from foldlog.worker.lease import Keeper, Lease, check_options
from foldlog.worker.queue import Queue
from foldlog.worker.retries import Retries

PAUSE_US_MIN, PAUSE_US_MAX, PAUSE_US_MAX_ELSEWHERE = 5_000, 50_000, 250_000
"""Between two looks for a run; the first ones are short. Of a log that is elsewhere each look is a
request for every partition, and there may be many idle workers."""

logger = logging.getLogger("foldlog")


class WorkerSteps:
    """A worker's steps, for both kinds of caller.

    ``worker_id`` names this process: no other that is at work has the same. ``lease_seconds`` (1 to
    86,400) is how long its runs stay its own after it dies. ``labels``: only runs that have these.
    """

    claim_class: type[ClaimSteps] = ClaimSteps

    def __init__(
        self,
        engine: Any,
        worker_id: str,
        agent: Agent | None = None,
        *,
        lease_seconds: int = 60,
        labels: Mapping[str, str] | None = None,
        retries: Retries | None = None,
        renew: bool = True,
    ) -> None:
        check_options(worker_id, lease_seconds)
        self.worker_id = worker_id
        self.agent = agent or Agent()
        self.lease_seconds = lease_seconds
        self._engine = self._client(engine)
        self.runtime = self._engine._seat.runtime
        self._retries = retries or Retries()
        self._queue = Queue(self._engine, worker_id, labels or {})
        self._keeper = Keeper(lease_seconds) if renew else None
        self._stopping = threading.Event()

    @staticmethod
    def _client(engine: Any) -> Engine:
        client: Engine = engine
        return client

    def stop(self) -> None:
        """Let the runs that are held go at their next safe point, and claim no more."""
        self._stopping.set()

    def _made(self, run_id: str) -> ClaimSteps:
        engine = self._engine
        lease = Lease(self.worker_id, self.lease_seconds, engine._clock, self.runtime)
        claim = self.claim_class(
            engine.run(run_id), lease, self.agent, self._stopping.is_set, self.runtime
        )
        claim.retries = self._retries
        claim.left = self._left
        return claim

    # Claiming

    def _claim(self, timeout: float | None = 0.0) -> Steps[Any]:
        """The next run that may be worked on, held by this worker; None if there is none.

        Waits up to ``timeout`` seconds for one; for ever with None, until told to stop.
        """
        end = None if timeout is None else self.runtime.monotonic() + round(timeout * SECOND)
        is_here = self._engine._seat.place.log.conditional
        pause, longest = PAUSE_US_MIN, PAUSE_US_MAX if is_here else PAUSE_US_MAX_ELSEWHERE
        while not self._stopping.is_set():
            claim = yield from self._try_claim()
            if claim is not None:
                return claim
            left = pause if end is None else min(pause, end - self.runtime.monotonic())
            if left <= 0:
                return None
            yield Pause(left)
            pause = min(pause * 3 // 2, longest)
        return None

    def _try_claim(self) -> Steps[Any]:
        """One claim among those that seem free; None if none of them was to be had."""
        while not self._stopping.is_set() and (run_id := (yield do(self._queue.take))) is not None:
            claim, ending = self._made(run_id), None
            try:
                if (yield from claim._acquire()):
                    if self._keeper is not None:
                        self._keeper.hold(claim)
                    yield from claim._take_over()
                    yield Pause(0)  # a caller that was cancelled meanwhile gets no claim
                    return claim
            except BaseException as error:
                ending = error
            if not (yield from claim._leave(ending)) and ending is not None:
                raise ending
        return None

    def _left(self, claim: ClaimSteps, refused: bool) -> None:
        if self._keeper is not None:
            self._keeper.let_go(claim)
        self._queue.put_back(claim.run_id, refused=refused or claim.is_stuck)

    # Working

    def _work(self, *, until_idle: bool = False) -> Steps[int]:
        """Claim and work until told to stop; returns how many claims there were.

        With ``until_idle``: until there is nothing to claim at the moment.
        """
        count = 0
        while not self._stopping.is_set():
            try:
                claim = yield from self._claim(0.0 if until_idle else None)
                if claim is None:
                    break
                count += 1
                yield from self._work_on(claim)
            except OUTAGES as error:
                if self._engine._stop.is_set():  # closed by its owner
                    raise
                logger.warning("%s waits: %s", self.worker_id, error, extra={"event": "outage"})
                yield Pause(SECOND)
        return count

    def _work_on(self, claim: ClaimSteps) -> Steps[None]:
        """Step after step, until the run waits, ends, is lost, or is to be handed over."""
        ending: BaseException | None = None
        try:
            while True:
                try:
                    yield from claim._go_on()
                except Overtaken:
                    # With a lease that is over it would be so again: a task of another worker is
                    # taken over by a live one only.
                    yield from claim._renew()
                    yield from claim._look()
        except BaseException as error:
            ending = error
        if not (yield from claim._leave(ending)):
            raise ending
