"""How this process waits: time that only goes forward, sleep, and locks; and the clock on the wall.
Real here; a simulator puts its own in their place.

Invariants:
- Only waiting goes through here. What is decided on is log time, which the log gives.
"""

import threading
import time
from typing import Protocol

SECOND = 1_000_000
"""Microseconds."""


def wall_clock() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


class Lock(Protocol):
    """Mutual exclusion between the threads of this process."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # pragma: no cover
        """Take it within ``timeout`` seconds; whether it was taken."""
        ...

    def release(self) -> None:  # pragma: no cover
        """Let it go."""
        ...


def let_go(lock: Lock) -> None:
    """Let a lock go if this thread has it: after an acquire that a signal may have ended."""
    # Nothing must come between: a signal's handler runs after a call, never before one.
    try:
        lock.release()
    except RuntimeError:
        return


class Runtime(Protocol):
    """What waiting needs."""

    def monotonic(self) -> int:
        """Microseconds since some moment, the same for all processes of this machine."""
        ...

    def sleep(self, microseconds: int) -> None:
        """Wait that long."""
        ...

    def lock(self) -> Lock:
        """A new lock."""
        ...


class RealRuntime:
    """Threads and the machine's own time."""

    def monotonic(self) -> int:
        """Microseconds since the machine started."""
        return time.monotonic_ns() // 1000

    def sleep(self, microseconds: int) -> None:
        """Block this thread."""
        time.sleep(microseconds / SECOND)

    def lock(self) -> Lock:
        """A thread lock; letting it go without having it is an error, so that it can be tried."""
        return threading.RLock()
