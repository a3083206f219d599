"""How a process of the projector is told to end.

Invariants:
- A signal only asks for the end: what is under way is finished, however often one asks.
- Whoever runs a projector in a process of his own finds its signals as he left them.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While in here SIGTERM and SIGINT call ``stop``; for the main thread."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
