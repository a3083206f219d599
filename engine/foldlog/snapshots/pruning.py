"""Old snapshots removed, once newer ones are verified.

Invariants:
- At least two snapshots that were verified just now are kept, or nothing is removed.
- What is found bad on the way is quarantined; it counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from foldlog.errors import SnapshotDamaged
from foldlog.snapshots.checking import verified
from foldlog.snapshots.copying import Stop, never
from foldlog.snapshots.shelf import Shelf

KEEP_MIN = 2


@dataclass(frozen=True, slots=True)
class Pruned:
    """Names of the snapshots that were verified and kept, of those removed, of the bad ones."""

    kept: tuple[str, ...]
    removed: tuple[str, ...]
    quarantined: tuple[str, ...]


def prune(
    shelf: Shelf, keep: int = KEEP_MIN, *, fresh: str | None = None, stop: Stop = never
) -> Pruned:
    """Keep the newest ``keep`` snapshots that verify, remove what is older; the caller has the
    lock. Removes nothing while fewer than that verify. ``fresh`` was verified just now."""
    assert keep >= KEEP_MIN, keep
    kept: list[str] = []
    bad: list[str] = []
    older = shelf.names()
    if len(older) <= keep and not shelf.quarantined():
        return Pruned(tuple(older), (), ())
    while older and len(kept) < keep:
        name = older.pop(0)
        try:
            if name != fresh:
                verified(shelf, name, stop)
        except SnapshotDamaged as error:
            shelf.quarantine(name, error.message)
            bad.append(name)
        else:
            kept.append(name)
    if len(kept) < keep:
        return Pruned(tuple(kept), (), tuple(bad))
    for name in older:
        shelf.remove(name)
    for name in shelf.quarantined():
        if name < kept[-1]:
            shelf.remove_quarantined(name)
            older.append(name)
    return Pruned(tuple(kept), tuple(older), tuple(bad))
