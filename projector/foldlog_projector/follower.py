"""A follower: folds what is decided as it comes, decides nothing, writes nothing.

Invariants:
- Every record is folded from the start of the log with every check that the projector makes; the
  first that does not fit ends the follower with Damaged.
- It needs nobody who holds the projection, and does not read the projection.
"""

import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from foldlog.audit import Proof
from foldlog.errors import Unavailable
from foldlog.log.base import Log, LogError
from foldlog.plugins import installed
from foldlog.store.memory import MemoryStore
from foldlog.views import View
from foldlog_projector.signals import stopping_on_signals

PAUSE_SECONDS = 0.1
"""Between two looks when nothing came."""


def follow(log: Log) -> Generator[dict[str, Any], None, None]:
    """A row for each partition at first, then whenever it moved, until SIGTERM or SIGINT.

    ``{partition, sequence, head, lag, void}``; ``lag`` counts proposals that are not decided yet.
    """
    stopping = threading.Event()
    with stopping_on_signals(stopping.set):
        proofs = [
            Proof(View(log, MemoryStore(), number, installed())) for number in range(log.partitions)
        ]
        told = [False] * len(proofs)
        while not stopping.is_set():
            moved = False
            for number, proof in enumerate(proofs):
                count = _fold(proof, stopping.is_set)
                moved = moved or count > 0
                if not stopping.is_set() and (count or not told[number]):
                    told[number] = True
                    yield _row(proof)
            if not moved:
                time.sleep(PAUSE_SECONDS)


def _fold(proof: Proof, stop: Callable[[], bool]) -> int:
    """Fold what is there by now, unless it has to end; how many records it was."""
    count = 0
    try:
        while not stop() and (more := proof.follow()):
            count += more
    except LogError as error:
        raise Unavailable(str(error)) from error
    return count


def _row(proof: Proof) -> dict[str, Any]:
    meta, view = proof.meta, proof.view
    return {
        "partition": view.partition,
        "sequence": meta.sequence,
        "head": meta.head.hex(),
        "lag": view.log.proposals_end(view.partition) - meta.position,
        "void": meta.void,
    }
