"""How many runs have each alarm, counted by a projector on Kafka for its monitor and its health.

    HOME/worker-1.alarms     {code: runs that have it}, of the partitions that this member turns

Looking at every run takes long, and a member must not: it looks at a few runs at a time, and at
all of them again some time after it has come through.

Invariants:
- Each step is bounded; between two steps nothing is held but a snapshot of one store.
- What is published was counted whole: every run of every partition that was there.
- A store that cannot be read ends one count, and nothing else.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from foldlog.core.alarms import CODES, alarms
from foldlog.errors import Damaged
from foldlog.holder import OUTAGES
from foldlog.locks import FileLock
from foldlog.runtime import SECOND
from foldlog.store.base import StoreClosed
from foldlog.views import View

RUNS_AT_ONCE = 50
"""Looked at in one step: a few milliseconds."""

STEP_US = SECOND // 20
ROUND_US = 10 * SECOND
"""Between two steps, and from the end of a count to the next."""

logger = logging.getLogger("foldlog")


def alarms_file(lock_file: Path) -> Path:
    """Where the member with this lock file says what it counted."""
    return lock_file.with_suffix(".alarms")


class AlarmCount:
    """Counts the alarms of a member's partitions, a few runs at a time."""

    def __init__(self, file: Path, monotonic: Callable[[], int], clock: Callable[[], int]) -> None:
        self._file = file
        self._monotonic, self._clock = monotonic, clock
        self._counting: Generator[None, None, Counter[str]] | None = None
        self._next_at = 0
        self._told = False

    def step(self, views: Callable[[], Sequence[View]]) -> None:
        """Look at some more runs, if it is time to; ``views`` gives the partitions there are."""
        now = self._monotonic()
        if now < self._next_at:
            return
        self._next_at = now + STEP_US
        if self._counting is None:
            if not (there := views()):
                return
            self._counting = self._count(there)
        try:
            next(self._counting)
        except StopIteration as end:
            self._publish(end.value)
            self._counting, self._next_at = None, now + ROUND_US
            self._told = False
        except (Damaged, *OUTAGES) as error:
            self._counting, self._next_at = None, now + SECOND
            # A partition that goes away closes its store in the midst of a count: no news.
            if not self._told and not isinstance(error.__cause__ or error, StoreClosed):
                self._told = True
                facts = {"event": "not_counted"}
                logger.warning("alarms are not counted: %s", error, extra=facts)

    def _count(self, views: Sequence[View]) -> Generator[None, None, Counter[str]]:
        counts, seen = Counter(dict.fromkeys(CODES, 0)), 0
        for view in views:
            at = max(self._clock(), view.meta().log_time)
            for run in view.runs():
                counts.update(
                    each["code"] for each in alarms(run.state(), run.head.recorded_at, at)
                )
                seen += 1
                if seen % RUNS_AT_ONCE == 0:
                    yield
        return counts

    def _publish(self, counts: Mapping[str, int]) -> None:
        with suppress(OSError):  # numbers for a monitor: a full disk must not stand in the way
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(counts) + "\n", "utf-8")
            new.replace(self._file)


def counted_at(home: Path) -> dict[str, int] | None:
    """How many runs have each alarm, by the members that are at work in a home; None if none of
    them has come through yet."""
    found: Counter[str] = Counter()
    for file in sorted(home.glob("worker-*.lock")):
        if FileLock(file).is_taken():
            with suppress(OSError, ValueError):
                found.update(json.loads(alarms_file(file).read_bytes()))
    return dict(found) if found else None
