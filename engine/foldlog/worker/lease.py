"""The lease of one claimed run, and the thread that renews those of a worker.

Invariants:
- A worker believes in its lease no longer than the log does: it counts from before the proposal
  that brought it, by two clocks that both go on while it is stopped. What the log's clock shows
  does not matter: they may be an hour apart.
- Once lost, a lease is lost: the next claim is another one, with another epoch.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from foldlog.core.shapes import TTL_SECONDS_MAX
from foldlog.core.values import ID_CHARACTERS_MAX, can_be_id
from foldlog.errors import Usage
from foldlog.runtime import SECOND, Runtime


def check_options(worker_id: Any, lease_seconds: Any) -> None:
    """Usage for what the log would refuse in every lease that a worker asks for."""
    if type(lease_seconds) is not int or not 1 <= lease_seconds <= TTL_SECONDS_MAX:
        shape = f"a whole number of 1 to {TTL_SECONDS_MAX} seconds"
        raise Usage(f"lease_seconds is {shape}, not {lease_seconds!r}")
    if not can_be_id(worker_id):
        shape = f"a text of 1 to {ID_CHARACTERS_MAX} characters, without lone surrogates"
        raise Usage(f"worker_id is {shape}, not {ascii(worker_id)[:80]}")


class Lease:
    """What a worker knows of a lease that it was given."""

    def __init__(
        self, worker_id: str, ttl_seconds: int, clock: Callable[[], int], runtime: Runtime
    ) -> None:
        self.worker_id, self.ttl_seconds = worker_id, ttl_seconds
        self.epoch = 0
        self.held = False
        self._ttl = ttl_seconds * SECOND
        self._clock, self._runtime = clock, runtime
        self._from = (0, 0)

    def moment(self) -> tuple[int, int]:
        """Now, by the engine's clock and by the machine's own; taken before a proposal."""
        return self._clock(), self._runtime.monotonic()

    def given(self, moment: tuple[int, int]) -> None:
        """It was acquired or renewed by a proposal handed in after ``moment``."""
        self._from = moment
        self.held = True

    def left(self) -> int:
        """Microseconds for which it is certainly live; 0 or less once it may be over."""
        clock, monotonic = self.moment()
        return self._ttl - max(clock - self._from[0], monotonic - self._from[1])

    def is_due(self) -> bool:
        """Whether a third of it has passed: time to renew it."""
        return self.left() <= self._ttl * 2 // 3


class Kept(Protocol):
    """What a keeper keeps: a claim."""

    def keep(self) -> bool:
        """Renew the lease if that is due; whether it is held still."""


class Keeper:
    """Renews the leases of a worker's claims, in a thread that is there while there are any.

    A claim that nobody refers to any more is renewed no longer: its run would be nobody's.
    """

    def __init__(self, ttl_seconds: int) -> None:
        self._pause = min(5.0, ttl_seconds / 12)
        self._kept: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._changing = threading.Lock()
        self._is_working = False

    def hold(self, claim: Kept) -> None:
        """Keep this one from now on."""
        with self._changing:
            self._kept.add(claim)
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, name="foldlog-lease", daemon=True).start()

    def let_go(self, claim: Kept) -> None:
        """Keep it no longer."""
        with self._changing:
            self._kept.discard(claim)

    def _work(self) -> None:
        while True:
            time.sleep(self._pause)
            with self._changing:
                kept = list(self._kept)
                if not kept:
                    self._is_working = False
                    return
            while kept:
                self._keep(kept.pop())

    def _keep(self, claim: Kept) -> None:
        with contextlib.suppress(Exception):  # an outage: tried again at the next round
            if not claim.keep():
                self.let_go(claim)
