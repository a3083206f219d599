"""Whether a run stands still while the others go on: told from the log, and relative to the load.

On a machine that is too small for so many workers everything takes long, so time alone says
nothing. What counts is how often workers have claimed a run meanwhile: each takes one of the
sixteen that it could claim and that were touched longest ago, so a run that could be claimed all
the time is passed over five hundred times once in 10^14.

Invariants:
- A lease is no progress, nor is the checkpoint before it is released: a run that is only claimed,
  or only held, stands still.
- While nothing is claimed, because the projector is stopped, nothing counts.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from foldlog.log.sqlite import SqliteLog
from foldlog.wire.envelope import decode_decided
from foldlog.wire.records import decode_record

CLAIMS, SECONDS = 500, 60.0
"""A run is stuck if nothing happened to it in so many claims and so many seconds. The seconds cover
the leases of the dead and the stopped, should the machine be quick. And a log is stuck that has no
new record in so many seconds, while there are runs to be worked on."""

NO_PROGRESS = {"LeaseAcquired", "LeaseRenewed", "LeaseReleased", "CheckpointTaken"}

ROWS, BYTES = 1_000, 1 << 24


class Standstill:
    """Reads the log along."""

    def __init__(self, log: Path, claims: int = CLAIMS, seconds: float = SECONDS) -> None:
        self._path = log
        self._enough = claims, seconds
        self._next: dict[int, int] = {}
        self._claims = 0
        self._moved: dict[str, tuple[int, float]] = {}
        self._heard = time.monotonic()

    def read(self) -> None:
        """Take in what is new in the log."""
        with closing(SqliteLog(self._path, lambda: 0)) as log:
            for number in range(log.partitions):
                start = self._next.get(number, 1)
                while rows := log.events(number, start, ROWS, BYTES):
                    self._heard = time.monotonic()
                    for row in rows:
                        self._take(row.value)
                    start = rows[-1].offset + 1
                self._next[number] = start

    def _take(self, value: bytes) -> None:
        record = decode_record(value)
        if record.outcome != "accepted" or record.proposal is None:
            return
        types = {event["type"] for event in decode_decided(record.proposal).events}
        self._claims += "LeaseAcquired" in types
        if types - NO_PROGRESS:
            self._moved[record.run_id] = self._claims, self._heard

    def is_stuck(self, run_id: str) -> bool:
        """Whether a run that somebody should work on was passed over for too long."""
        claims, heard = self._moved.get(run_id, (self._claims, self._heard))
        passed = self._claims - claims, time.monotonic() - heard
        return all(found >= enough for found, enough in zip(passed, self._enough, strict=True))

    def is_silent(self) -> bool:
        """Whether the whole log stands still."""
        return time.monotonic() - self._heard >= self._enough[1]
