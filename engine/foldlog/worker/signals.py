"""SIGTERM and SIGINT, while workers are at work.

Invariants:
- The first of them reaches every worker of the main thread; the next does what it did before.
- What the application had set stands again when the last worker has ended, and what it set since is
  left alone.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_stops: list[Callable[[], None]] = []
_before: dict[int, Any] = {}


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While in here the first SIGTERM or SIGINT calls ``stop``, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not _caught:
            _before[number] = signal.signal(number, _caught)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore()


def _caught(number: int, frame: Any) -> None:
    _restore()
    for stop in list(_stops):
        stop()


def _restore() -> None:
    while _before:
        number, handler = _before.popitem()
        if signal.getsignal(number) is _caught:
            signal.signal(number, handler)
