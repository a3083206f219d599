"""How far a long recovery is, on a terminal, while a command opens its home.

Invariants:
- Nothing is shown where stderr is no terminal, and nothing stays when the home is open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from foldlog.cli import output

logger = logging.getLogger("foldlog")


class Shown(logging.Handler):
    """Shows what a recovery logs of itself on one line of the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line; what is no progress of a recovery is left out."""
        if getattr(record, "event", "") == "recovering":
            output.Progress.show(record.getMessage())


@contextmanager
def recovery_shown() -> Iterator[None]:
    """Show what is logged of a recovery while the block runs."""
    shown, level, propagate = Shown(), logger.level, logger.propagate
    logger.addHandler(shown)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(shown)
        logger.setLevel(level)
        logger.propagate = propagate
        output.Progress.clear()
