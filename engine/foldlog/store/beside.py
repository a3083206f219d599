"""The files of a RocksDB database copied while another process has it open.

Invariants:
- Nothing in that process's folder is made, changed or locked.
- A copy counts only if the database's files had the same names and the same MANIFEST before and
  after it; then it opens as the database of some moment in between: tables never change once they
  are named, and of a log of writes that goes on a beginning is a moment of its own.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from foldlog.store.base import StoreError, StoreMissing

TRIES = 20
PAUSE_S = 0.01
"""After the first; each later pause is longer by as much."""


def link_live(path: Path, target: Path) -> None:
    """Make ``target``, a new folder, with the files of the database in ``path`` as of one moment.

    Tables are hard links where they can be; all else is copied. StoreMissing if nothing is there,
    StoreError if its holder worked on its files each time, OSError if ``target`` cannot be written.
    """
    for attempt in range(TRIES):
        time.sleep(PAUSE_S * attempt)
        before = _listing(path)
        target.mkdir()
        try:
            for name, size in before.items():
                _take(path / name, target / name, size)
        except FileNotFoundError:
            whole = False
        else:
            whole = _shape(_listing(path)) == _shape(before)
        if whole:
            return
        shutil.rmtree(target)
    what = f"its files changed during each of {TRIES} attempts to copy them"
    raise StoreError(str(path), what, "try again")


def _listing(path: Path) -> dict[str, int]:
    """The files that make up the database, and their sizes now; the log of writes last."""
    try:
        names = [entry.name for entry in os.scandir(path) if _is_part(entry.name)]
        sizes = {name: (path / name).stat().st_size for name in names}
    except FileNotFoundError:
        sizes = {}
    if "CURRENT" not in sizes:
        raise StoreMissing(str(path), "there is no store here yet", "open the home once")
    return dict(sorted(sizes.items(), key=lambda item: (item[0].endswith(".log"), item[0])))


def _is_part(name: str) -> bool:
    return name in ("CURRENT", "rocksdict-config.json") or name.startswith(
        ("MANIFEST-", "OPTIONS-")
    ) or name.endswith((".sst", ".log"))  # fmt: skip


def _shape(sizes: dict[str, int]) -> dict[str, int]:
    """What must not change meanwhile: all names, and the size of all that is no log of writes."""
    return {name: -1 if name.endswith(".log") else size for name, size in sizes.items()}


def _take(source: Path, target: Path, size: int) -> None:
    if source.suffix == ".sst":
        try:
            os.link(source, target)
            return
        except FileNotFoundError:
            raise
        except OSError:
            pass  # another file system, or one without links
    with open(source, "rb") as reading, open(target, "xb") as writing:
        # What came after the listing is left out, so that the parts are of one moment.
        left = size if source.suffix != ".sst" else -1
        writing.write(reading.read(left))
