"""Which run comes next: those that somebody may work on now, without looking at all of them.

At its first look a queue reads every run once; from then on only the runs of which there is a new
record in the log. Runs that wait, are finished or quarantined are forgotten until there is one, so
ten thousand of them cost nothing.

Invariants:
- It only suggests: the lease decides. Two workers that want the same run are answered by the log.
- Whether a lease or a deadline is over is asked by the log's time too, where that is later.
- A run that seems free and is not to be had is left alone for a while, each time for longer: the
  clocks here and there may be an hour apart, and each attempt is a record.
- It is fair: the runs that were touched least recently come first; among the oldest few the choice
  is by chance, or many workers would all want the same one.
"""

import random
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from foldlog.client import Engine, outages_told
from foldlog.core.document import condition, document
from foldlog.core.state import RunState as State
from foldlog.core.values import parse_instant
from foldlog.results import RunState
from foldlog.runtime import SECOND
from foldlog.views import View, matches
from foldlog.worker.progress import BLOCKED, EFFECT, ends_by_itself
from foldlog.working import Run

AMONG_OLDEST = 16
"""So many of the oldest are chosen from."""

ROWS_MAX, BYTES_MAX = 1_000, 4 * 1024 * 1024
"""Read from the log at once."""

FOR_EVER = 2**63

ALONE_US_MIN, ALONE_US_MAX = SECOND // 2, 32 * SECOND
"""How long a run is left alone that seems free and is not to be had."""


class Ready(NamedTuple):
    """A run that may be claimed: from when, until when, since when it is as it is; microseconds."""

    at: int
    until: int
    since: int
    partition: int


class Queue:
    """The runs of an engine that a worker may claim."""

    def __init__(self, engine: Engine, worker_id: str, labels: Mapping[str, str]) -> None:
        self._engine, self._worker_id, self._labels = engine, worker_id, dict(labels)
        self._dice = random.Random(worker_id)
        self._ready: dict[str, Ready] = {}
        self._alone: dict[str, tuple[int, int]] = {}
        self._next: dict[int, int] = {}
        self._log_time: dict[int, int] = {}
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def take(self) -> str | None:
        """A run to try, marked as held; None if there is none now."""
        with self._lock:
            for number in range(self._engine.partitions):
                self._refresh(number)
            clock = self._engine._clock()
            able = [
                (found.since, run_id)
                for run_id, found in self._ready.items()
                if run_id not in self._held and self._is_able(run_id, found, clock)
            ]
            if not able:
                return None
            _, run_id = self._dice.choice(sorted(able)[:AMONG_OLDEST])
            self._held.add(run_id)
            return run_id

    def put_back(self, run_id: str, *, refused: bool = False) -> None:
        """It is no longer held; ``refused``: it was not to be had, or nothing could be done."""
        with self._lock:
            self._held.discard(run_id)
            if not refused:
                self._alone.pop(run_id, None)
            elif run_id in self._ready:
                _, before = self._alone.get(run_id, (0, 0))
                length = min(max(before * 2, ALONE_US_MIN), ALONE_US_MAX)
                self._alone[run_id] = self._engine._clock(), length

    def _is_able(self, run_id: str, found: Ready, clock: int) -> bool:
        """Whether a run may be claimed now; a clock that was set back ends a time alone."""
        begun, length = self._alone.get(run_id, (0, 0))
        if begun <= clock < begun + length:
            return False
        return found.at <= max(clock, self._log_time[found.partition]) < found.until

    def _refresh(self, number: int) -> None:
        """Look at the runs of a partition of which there is a new record."""
        first = self._next.get(number)
        with outages_told():
            if first is not None and self._engine._seat.place.log.end(number) <= first:
                return
        with self._engine._reading_partition(number) as view:
            meta = view.meta()
            if first is None:
                touched = {run.run_id for run in view.runs()}
            else:
                touched = self._touched(view, first, meta.sequence)
            self._next.setdefault(number, meta.offset)
            self._log_time[number] = meta.log_time
            for run_id in sorted(touched):
                self._judge(view.run(run_id), number)

    def _touched(self, view: View, first: int, sequence: int) -> set[str]:
        """The runs of the records from an offset on, as far as they are folded."""
        found = set()
        while rows := view.log.events(view.partition, first, ROWS_MAX, BYTES_MAX):
            rows = [row for row in rows if row.sequence <= sequence]
            if not rows:
                break
            found |= {row.key.decode("utf-8", "replace") for row in rows}
            first = rows[-1].offset + 1
        self._next[view.partition] = first
        return found

    def _judge(self, run: Run, number: int) -> None:
        state = run.state()
        when = ready(state, self._worker_id)
        row = {"status": None, "labels": state.value("labels")}
        if when is None or not matches(row, None, self._labels):
            self._ready.pop(run.run_id, None)
            self._alone.pop(run.run_id, None)
            return
        found = self._ready[run.run_id] = Ready(*when, run.head.changed_at, number)
        if found.at > max(self._engine._clock(), self._log_time[number]):
            # It does not seem free, so why it was refused is known and will be over then.
            self._alone.pop(run.run_id, None)


def ready(state: State, worker_id: str) -> tuple[int, int] | None:
    """From when until when a run may be claimed (microseconds); None until there is a record."""
    if not state.exists or condition(state) != "ok" or state.value("status") == "finish":
        return None
    if state.value("status") == "waiting" and not _is_over(state):
        return None
    tokens, deadline = state.value("budget", "tokens"), state.value("budget", "deadline")
    if tokens is not None and tokens <= 0:
        return None  # nothing may be begun before somebody gives more
    until = FOR_EVER if deadline is None else parse_instant(deadline) // 1000
    slot = state.slots.get("lease", "")
    lease: Any = None if slot is None else slot.value
    if slot is None or lease is None or lease["worker"] == worker_id:
        return 0, until
    return slot.hidden, until


def _is_over(state: State) -> bool:
    key = state.value("wait")["key"]
    return key.startswith((EFFECT, BLOCKED)) and ends_by_itself(RunState(document(state)))
