"""A partition's projection built anew beside the one that is there, and put in its place.

    projection/0             the store, which goes on being written and read meanwhile
    projection/0.building    the new one, not there yet; worthless after a crash
    projection/0.built       the new one, folded to the end of the log, which takes its place
    projection/0.replaced    the old one, going

Invariants:
- The old store is only read. It is replaced by whoever begins to hold the projection, by renames:
  a crash between them leaves the built one, which the next one puts in its place.
- A run whose last record is the same in both has the same digest, or it is named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from foldlog.audit import run_digest
from foldlog.core.catalogue import Catalogue
from foldlog.core.document import condition
from foldlog.disk import Disk
from foldlog.errors import Damaged
from foldlog.log.base import Log
from foldlog.store.base import Reader, StoreError
from foldlog.turn import Partition
from foldlog.views import View
from foldlog.wire import keys

BUILDING, BUILT, REPLACED = ".building", ".built", ".replaced"

Begin = Callable[[Path], str | None]
"""Makes a folder the store that a build begins with and says what that is; None: nothing."""

Tell = Callable[[int], None]
"""Told how many records are folded."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A store that was built: what it began with, and how it compares with the one it replaces.

    ``differing`` are runs whose last record is the same and whose digest is not; ``stuck`` are
    those that need a migration that could not be made.
    """

    begun_with: str
    records: int
    runs: int
    compared: int
    differing: tuple[str, ...]
    stuck: tuple[str, ...]


def beside(path: Path, suffix: str) -> Path:
    """A name beside a store's."""
    return path.with_name(path.name + suffix)


def waits(disk: Disk, path: Path) -> bool:
    """Whether a built store waits to take a store's place."""
    return disk.exists(beside(path, BUILT))


def swap(disk: Disk, path: Path) -> None:
    """Put a built store in its place, if one waits; for who holds the projection."""
    built, replaced = beside(path, BUILT), beside(path, REPLACED)
    if disk.exists(built):
        if disk.exists(path):
            disk.remove(replaced)
            disk.rename(path, replaced)
        disk.rename(built, path)
        disk.sync(path.parent)
    disk.remove(replaced)


def build(
    disk: Disk,
    path: Path,
    log: Log,
    number: int,
    begin: Begin,
    *,
    rules: Mapping[int, Catalogue],
    tell: Tell = lambda records: None,
) -> Rebuilt:
    """Build a partition's store beside the one at ``path``, until it waits to take its place.

    One process at a time. Damaged at a record that does not fit, and then nothing waits.
    """
    fresh = beside(path, BUILDING)
    disk.remove(fresh)
    begun_with = begin(fresh)
    store = disk.store(fresh)
    try:
        partition = Partition(log, store, number, rules=rules)
        records = partition.recover(tell)
        with _old(disk, path) as old:
            found = _compared(View(log, store, number, rules), old)
    finally:
        store.close()
    disk.remove(beside(path, BUILT))
    disk.rename(fresh, beside(path, BUILT))
    disk.sync(path.parent)
    return Rebuilt(begun_with or "start", records, *found)


@contextlib.contextmanager
def _old(disk: Disk, path: Path) -> Iterator[Reader | None]:
    """The store that is to be replaced, as of now; None if it cannot be read."""
    try:
        follower = disk.follow(path)
    except StoreError:
        yield None
        return
    try:
        yield follower
    finally:
        follower.close()


def _compared(new: View, old: Reader | None) -> tuple[int, int, tuple[str, ...], tuple[str, ...]]:
    """How many runs there are, how many were compared, which differ, which are stuck."""
    runs, compared = 0, 0
    differing, stuck = list[str](), list[str]()
    before = None if old is None else View(new.log, old, new.partition, new.rules)
    for run_id in new.run_ids():
        runs += 1
        state = new.run(run_id).state()
        if condition(state) == "migration_required":
            stuck.append(run_id)
        elif before is not None and (theirs := _digest(before, new, run_id)) is not None:
            compared += 1
            if theirs != run_digest(state):
                differing.append(run_id)
    return runs, compared, tuple(differing), tuple(stuck)


def _digest(before: View, new: View, run_id: str) -> bytes | None:
    """The digest of a run in the old store, if it stands there at the same record; b"" if what
    is there does not read."""
    try:
        if all(before.reader.get(key) is None for key in keys.head_keys(run_id)):
            return b""
        run = before.run(run_id)
        if run.head.sequence != new.run(run_id).head.sequence:
            return None  # it has gone on since, or the old one never came so far
        if condition(run.state()) == "migration_required":
            return None
        return run_digest(run.state())
    except (Damaged, StoreError):
        return b""
