"""Homes with snapshots for tests, and ways to damage a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.client import wall_clock
from foldlog.home import Home, open_home
from foldlog.snapshots.keeper import Keeper
from foldlog.snapshots.settings import SnapshotSettings
from tests.seats import seat_of

ASKED = SnapshotSettings(records=0, bytes=0, seconds=0)
"""Snapshots only where the test asks for one."""


def opened(home: Path, **options: Any) -> Engine:
    """An engine of a home; snapshots only when they are asked for, unless told otherwise."""
    return Engine.open(home, **{"author": "user:ada", "snapshots": ASKED, **options})


def keeper_of(engine: Engine) -> Keeper:
    """The snapshots of an engine's home."""
    kept = engine._seat.place.snapshots
    assert isinstance(kept, Keeper)
    return kept


def without_compactions(engine: Engine) -> None:
    """Keep RocksDB from rewriting tables when it finds time for it, so that names stay."""
    holder = seat_of(engine)._holder
    assert holder is not None
    for held in holder.held:
        store: Any = held.partition.store
        store._db.set_options({"disable_auto_compactions": "true"})


@contextmanager
def beside(home: Path) -> Iterator[Home]:
    """A home looked at without holding it."""
    found = open_home(home, wall_clock, ASKED)
    try:
        yield found
    finally:
        found.close()


def grow(engine: Engine, runs: range, tokens: int = 1) -> None:
    """Some more of these runs: each is started where it is missing, then spends tokens."""
    for number in runs:
        run = engine.run(f"run_{number}")
        if run.state() is None:
            engine.start(f"run_{number}", goal=f"goal of {number}")
        run.propose({"type": "BudgetSpent", "tokens": tokens})


def small_home(home: Path, snapshots: int = 2, partitions: int = 1) -> str:
    """A home with so many snapshots and a tail behind the last one; returns its digest."""
    with opened(home, create=True, partitions=partitions) as engine:
        without_compactions(engine)
        for number in range(snapshots):
            grow(engine, range(4 * number, 4 * number + 4))
            engine.take_snapshots()
        grow(engine, range(2), tokens=5)
        return engine.digest()


def without_projection(home: Path) -> None:
    """Take the projection away, so that the next start has to recover it."""
    shutil.rmtree(home / "projection")


def flip(path: Path, place: int) -> None:
    """Change one byte of a file, which may be shared by hard links."""
    data = bytearray(path.read_bytes())
    data[place] ^= 0x40
    path.chmod(0o644)
    with open(path, "r+b") as stream:
        stream.write(data)


def cut(path: Path) -> None:
    """Take the last bytes of a file away; an empty file gets some."""
    if path.stat().st_size == 0:
        path.write_bytes(b"more")
        return
    with open(path, "r+b") as stream:
        stream.truncate(max(0, path.stat().st_size - 20))


def flip_middle(path: Path) -> None:
    """Change a byte in the middle; an empty file gets one."""
    if path.stat().st_size == 0:
        path.write_bytes(b"x")
    else:
        flip(path, path.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip_middle,
    "cut": cut,
    "deleted": Path.unlink,
}
