"""``Worker`` and ``Claim`` for who blocks; ``foldlog.worker.aio`` has their async twins.

Invariants:
- Nothing is done here: what the names do is written once, as steps, for both kinds of caller.
"""

from types import TracebackType
from typing import Self

from foldlog.worker.claim import ClaimSteps
from foldlog.worker.driving import blocking, drive
from foldlog.worker.signals import stopping_on_signals
from foldlog.worker.working import WorkerSteps


class Claim(ClaimSteps):
    """One run, held by a worker: what a step works with. Leaving its ``with`` lets the run go."""

    state = blocking(ClaimSteps._look)
    propose = blocking(ClaimSteps._propose_events)
    tool = blocking(ClaimSteps._tool)
    perform = blocking(ClaimSteps._perform)
    observe = blocking(ClaimSteps._observe)
    checkpoint = blocking(ClaimSteps._checkpoint)
    wait_for_user = blocking(ClaimSteps._wait_for_user)
    wait_for_approval = blocking(ClaimSteps._wait_for_approval)
    wait_for_timer = blocking(ClaimSteps._wait_for_timer)
    wait_for_event = blocking(ClaimSteps._wait_for_event)
    go_on = blocking(ClaimSteps._go_on)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return drive(self._leave(error), self.runtime)


class Worker(WorkerSteps):
    """Claims runs of an engine and works on them; see ``WorkerSteps`` for its options."""

    claim_class = Claim

    claim = blocking(WorkerSteps._claim)

    def work(self, *, until_idle: bool = False) -> int:
        """Claim and work until ``stop``, SIGTERM or SIGINT; returns how many claims there were.

        With ``until_idle``: until there is nothing to claim at the moment. The signals count where
        this is the main thread; the second SIGINT interrupts at once.
        """
        with stopping_on_signals(self.stop):
            return drive(self._work(until_idle=until_idle), self.runtime)
