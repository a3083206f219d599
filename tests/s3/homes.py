"""Homes whose snapshots are at a place elsewhere, and what the server keeps of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.snapshots.remote import RemoteShelf
from foldlog.snapshots.settings import SnapshotSettings
from tests.s3.server import Server
from tests.seats import seat_of
from tests.snapshot_homes import grow, keeper_of, without_compactions


def asked(url: str | None, **options: Any) -> SnapshotSettings:
    """Snapshots only where the test asks for one, and uploaded to this place."""
    return SnapshotSettings(**{"records": 0, "bytes": 0, "seconds": 0, **options}, url=url)


def opened(home: Path, url: str | None, **options: Any) -> Engine:
    """An engine of a home whose snapshots go to this place."""
    return Engine.open(home, **{"author": "user:ada", "snapshots": asked(url), **options})


def made(home: Path, url: str, snapshots: int = 2) -> str:
    """A home of one partition with snapshots at a place, and a tail; returns its digest."""
    with opened(home, url, create=True, partitions=1) as engine:
        without_compactions(engine)
        for number in range(snapshots):
            grow(engine, range(40 * number, 40 * number + 40))
            engine.take_snapshots()
        grow(engine, range(2), tokens=5)
        return engine.digest()


def elsewhere(home: Path, other: Path) -> Path:
    """Another machine: it has the log, and an empty disk."""
    other.mkdir()
    shutil.copy(home / "log.sqlite", other)
    return other


def folded(engine: Engine) -> int:
    """How many records of the log an engine folded when it was opened."""
    return seat_of(engine)._folded


def remote_of(engine: Engine) -> RemoteShelf:
    """The place's snapshots of the only partition."""
    [remote] = keeper_of(engine).remotes
    return remote


def objects(server: Server, url: str, what: str) -> list[Path]:
    """The files in which the server keeps the objects of some kind, the largest first."""
    found = (server.objects / url.rpartition("/")[2]).rglob("*")
    return sorted(
        (path for path in found if path.is_file() and what in str(path)),
        key=lambda path: -path.stat().st_size,
    )


def copied_place(server: Server, url: str, name: str) -> str:
    """The URL of a copy of all that is at a place."""
    there = url.rpartition("/")[2]
    # With what the server keeps beside the bytes, too.
    subprocess.run(["cp", "-a", server.objects / there, server.objects / name], check=True)
    return f"{url.rpartition('/')[0]}/{name}"
