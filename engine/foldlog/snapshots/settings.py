"""When snapshots are taken, how many are kept, and where they lie.

Invariants:
- Nothing is read from a file: values come from whoever opens the home, else from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foldlog.errors import Usage
from foldlog.snapshots.place import check_url
from foldlog.snapshots.pruning import KEEP_MIN

RECORDS_DEFAULT = 100_000
BYTES_DEFAULT = 256 << 20
SECONDS_DEFAULT = 3600
PREFIX = "FOLDLOG_SNAPSHOT_"


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """A partition gets a snapshot once one of these is reached since its last one; 0 is never.

    ``records`` counts those of the log, ``bytes`` what was written to the projection, ``seconds``
    counts only if something changed and somebody holds the projection. ``keep`` is 2 or more.
    ``folder`` is where they lie, by default ``snapshots`` in the home; ``url`` a place elsewhere
    to which each is uploaded too: ``s3://BUCKET/PREFIX``, ``gs://``, ``az://``.
    """

    records: int = RECORDS_DEFAULT
    bytes: int = BYTES_DEFAULT
    seconds: int = SECONDS_DEFAULT
    keep: int = KEEP_MIN
    folder: Path | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        for name in ("records", "bytes", "seconds"):
            if getattr(self, name) < 0:
                raise Usage(f"snapshots every {getattr(self, name)} {name}: 0 (never) or more")
        if self.keep < KEEP_MIN:
            raise Usage(f"{self.keep} snapshots cannot be kept: at least {KEEP_MIN} have to be")
        if self.url is not None:
            check_url(self.url)

    @property
    def is_automatic(self) -> bool:
        """Whether any snapshot is taken unasked."""
        return bool(self.records or self.bytes or self.seconds)

    def is_due(self, records: int, size: int, seconds: float) -> bool:
        """Whether so many records, bytes and seconds since the last snapshot are enough."""
        if records <= 0:
            return False
        return (
            0 < self.records <= records
            or 0 < self.bytes <= size
            or 0 < self.seconds <= seconds
        )  # fmt: skip


def from_environment(environment: Mapping[str, str] = os.environ) -> SnapshotSettings:
    """The settings of FOLDLOG_SNAPSHOT_RECORDS, _BYTES, _SECONDS, _KEEP, _DIR and _URL."""
    given = {}
    for name in ("records", "bytes", "seconds", "keep"):
        text = environment.get(PREFIX + name.upper())
        if text:
            if not text.isascii() or not text.isdigit():
                raise Usage(f"{PREFIX}{name.upper()} is {text!r}, not a whole number")
            given[name] = int(text)
    folder = environment.get(PREFIX + "DIR")
    url = environment.get(PREFIX + "URL") or None
    return SnapshotSettings(**given, folder=Path(folder) if folder else None, url=url)
