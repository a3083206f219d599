"""Disks that are full or read-only, or where files may not grow, under snapshots and recovery.

A limit on the size of files (RLIMIT_FSIZE) works for everybody; a small disk that is really full or
read-only has to be mounted, and where that is not allowed those tests are skipped aloud.

Invariants:
- The disk is a real one; nothing is replaced.
- After the failure the home is what it was, and once the disk works the same command succeeds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foldlog.errors import FoldlogError
from foldlog.home import Home
from foldlog.store.base import StoreError
from tests.snapshot_homes import beside, grow, keeper_of, opened, small_home
from tests.workers import environment

DISK_MIB = 8
RESERVED = 4096


def create(home: Home) -> None:
    """Take a snapshot beside nobody."""
    home.snapshots.create(0)


def restore(home: Home) -> None:
    """Put the newest snapshot in the place of the projection."""
    home.restore([0], None)


def rebuild(home: Home) -> None:
    """Build the projection anew from the log."""
    home.rebuild(0, "start")


def rebuild_from_snapshot(home: Home) -> None:
    """Build the projection anew from the newest snapshot."""
    home.rebuild(0, "snapshot")


WORKS: dict[str, Callable[[Home], None]] = {
    work.__name__: work for work in (create, restore, rebuild, rebuild_from_snapshot)
}

LIMITED = """
import resource, sys
sys.path.insert(0, ".")
from pathlib import Path
from tests.snapshot_homes import beside
from tests.test_disk_full import WORKS
home, work, limit = sys.argv[1:]
with beside(Path(home)) as found:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    try:
        WORKS[work](found)
        print("done")
    except Exception as error:
        print(type(error).__name__, error)
"""


def prepared(path: Path) -> str:
    """A home whose newest snapshot is not as new as its projection; returns its digest."""
    digest = small_home(path)
    with opened(path) as engine:
        assert engine.digest() == digest
    return digest


def check(home: Path, digest: str, snapshots: int) -> None:
    """The home is what it was: the digest, the snapshots, nothing half made that is shown."""
    with opened(home) as engine:
        assert engine.digest() == digest
        keeper = keeper_of(engine)
        assert keeper.shelves[0].quarantined() == {}
        assert len(keeper.names(0)) >= snapshots
        report = engine.verify()
        assert report.ok, report.first_difference


@pytest.mark.parametrize("work", WORKS)
def test_fault_32_files_that_may_grow_no_further(tmp_path: Path, work: str) -> None:
    """A process whose files may have so many bytes and no more names that, whatever the limit is,
    and leaves the home as it was; without the limit the same command succeeds."""
    home = tmp_path / "home"
    digest = prepared(home)
    failed = 0
    for limit in (0, 100, 3_000):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, home, work, str(limit)],
            env=environment(), check=True, timeout=120, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout, done.stderr
        if not done.stdout.startswith("done"):
            assert "too large" in done.stdout, done.stdout
            failed += 1
        check(home, digest, 2)
        half = [name for name in os.listdir(home / "snapshots" / "0") if name.startswith(".")]
        assert half == []
    assert failed >= 2
    with beside(home) as found:
        WORKS[work](found)
    check(home, digest, 2)


def moved(home: Path, disk: Path) -> None:
    """Have projection and snapshots on a disk of their own, and the log where it was."""
    for name in ("projection", "snapshots"):
        subprocess.run(["cp", "-a", home / name, disk / name], check=True)  # links stay links
        shutil.rmtree(home / name)
        (home / name).symlink_to(disk / name)


def fill(disk: Path) -> Path:
    """A file that leaves next to nothing on a disk."""
    left, filler = os.statvfs(disk), disk / "filler"
    with open(filler, "wb") as stream:
        stream.write(bytes(left.f_bavail * left.f_frsize - RESERVED))
    return filler


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, mounted for the test."""
    path = tmp_path / "disk"
    path.mkdir()
    options = f"size={DISK_MIB}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk may be mounted here: files of a limited size stand for it")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def failing(home: Path, work: str) -> str:
    """What somebody is told for whom some work fails."""
    try:
        with beside(home) as found:
            WORKS[work](found)
    except (FoldlogError, StoreError, OSError) as error:
        return str(error)
    pytest.fail(f"{work} succeeds without room")


@pytest.mark.parametrize("work", WORKS)
def test_fault_32_a_disk_that_is_full(disk: Path, tmp_path: Path, work: str) -> None:
    """With no room left the error says so and the home stays what it was; with room again the same
    command succeeds."""
    home = tmp_path / "home"
    digest = prepared(home)
    moved(home, disk)
    filler = fill(disk)
    told = failing(home, work)
    filler.unlink()
    assert "No space left" in told or "disk is full" in told, told
    check(home, digest, 2)
    with beside(home) as found:
        WORKS[work](found)
    check(home, digest, 2)


@pytest.mark.parametrize("work", WORKS)
def test_fault_32_a_disk_that_is_read_only(disk: Path, tmp_path: Path, work: str) -> None:
    """Nothing can be written: the error says so, and afterwards everything is as it was."""
    home = tmp_path / "home"
    digest = prepared(home)
    moved(home, disk)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    told = failing(home, work)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    assert "ead-only" in told, told
    check(home, digest, 2)
    with beside(home) as found:
        WORKS[work](found)
    check(home, digest, 2)


def test_fault_32_a_cold_start_without_room(disk: Path, tmp_path: Path) -> None:
    """Without room for a projection the home does not open, which is told; with room it is restored
    from the snapshot that is still there, and goes on."""
    home = tmp_path / "home"
    digest = prepared(home)
    moved(home, disk)
    shutil.rmtree(disk / "projection" / "0")
    filler = fill(disk)
    with pytest.raises(FoldlogError, match=r"No space left|full"):
        opened(home)
    filler.unlink()
    check(home, digest, 2)
    with opened(home) as engine:
        grow(engine, range(2))
