"""Snapshots and stores that are broken, disks that fail: each is met, named and survived.

Invariants:
- Files are damaged as a disk does it: bytes change, ends are missing, names are gone.
- Whatever is broken, what is shown afterwards is the fold of the log, or nothing is shown.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from foldlog.errors import LogTrimmed, SnapshotDamaged, Unavailable
from foldlog.home import Home
from foldlog.snapshots.checking import verified
from foldlog.snapshots.restoring import restored
from foldlog.snapshots.shelf import Shelf
from foldlog.store.base import StoreBusy
from foldlog.store.framing import damage
from foldlog.store.rocks import RocksStore
from tests.seats import seat_of
from tests.snapshot_homes import (
    DAMAGES,
    beside,
    cut,
    flip,
    flip_middle,
    grow,
    keeper_of,
    opened,
    small_home,
    without_projection,
)

EVERY_BYTE = int(os.environ.get("FOLDLOG_EVERY_BYTE", "11"))
"""One byte in so many is tried; `make snapshot-bytes` tries all of them."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home of one partition with two snapshots and a tail, and its digest."""
    path = tmp_path_factory.mktemp("small") / "home"
    return path, small_home(path)


@pytest.fixture
def home(small: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the small home without its projection; its snapshots share files as before."""
    path = tmp_path / "home"
    os.system(f"cp -a {small[0]} {path}")  # keeps hard links, as shutil does not
    without_projection(path)
    return path


def snapshot_files(path: Path) -> list[Path]:
    """The files of the newest snapshot, its manifest among them."""
    newest = max((path / "snapshots" / "0").iterdir())
    return sorted(each for each in newest.rglob("*") if each.is_file())


def names_of(path: Path) -> list[str]:
    """The names of a home's snapshots, newest first."""
    return Shelf(path / "snapshots", 0).names()


def recovered(path: Path, digest: str, folded: int) -> dict[str, str]:
    """Open a home: it has this digest, verifies, and has folded so many records; returns what was
    quarantined."""
    with opened(path) as engine:
        assert seat_of(engine)._folded == folded
        assert engine.digest() == digest
        report = engine.verify()
        assert report.ok, report.first_difference
        return keeper_of(engine).shelves[0].quarantined()


TAILS = {"newest": 2, "older": 10, "log": 18}
"""How many records of the small home come after its newest snapshot, its older one, its start."""


@pytest.mark.parametrize("kind", DAMAGES)
def test_fault_26_each_broken_file_of_the_newest_snapshot_leads_to_the_next_older(
    small: tuple[Path, str], tmp_path: Path, kind: str
) -> None:
    """Flipped, cut or deleted, each file of the newest snapshot in turn is noticed; it is
    quarantined with a reason that names the file, and the older one is used."""
    count = len(snapshot_files(small[0]))
    assert count >= 7
    for number in range(count):
        path = tmp_path / str(number)
        os.system(f"cp -a {small[0]} {path}")
        without_projection(path)
        victim = snapshot_files(path)[number]
        if victim.stat().st_nlink > 1:
            continue  # shared with the older one: the next test
        newest = names_of(path)[0]
        DAMAGES[kind](victim)
        bad = recovered(path, small[1], TAILS["older"])
        assert list(bad) == [newest]
        assert victim.name in bad[newest] or "manifest" in bad[newest]
        assert names_of(path) == names_of(small[0])[1:]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_broken_file_that_snapshots_share_leads_to_the_log(
    small: tuple[Path, str], home: Path, kind: str
) -> None:
    """Where the bad file is in both snapshots, both are quarantined and the log is folded."""
    newest, older = names_of(home)
    [table] = [each for each in snapshot_files(home) if each.stat().st_nlink > 1]
    twin = home / "snapshots" / "0" / older / "files" / table.name
    assert table.stat().st_ino == twin.stat().st_ino
    DAMAGES[kind](table)
    if kind == "deleted":
        twin.unlink()
    assert set(recovered(home, small[1], TAILS["log"])) == {newest, older}


def test_every_byte_of_a_small_snapshot_counts(small: tuple[Path, str], home: Path) -> None:
    """Whichever byte of whichever file is changed, the snapshot does not verify."""
    shelf = Shelf(home / "snapshots", 0)
    name = shelf.names()[0]
    verified(shelf, name)
    places = [
        (path, place) for path in snapshot_files(home) for place in range(path.stat().st_size)
    ]
    dice = random.Random(EVERY_BYTE)
    for path, place in dice.sample(places, len(places) // EVERY_BYTE):
        flip(path, place)
        with pytest.raises(SnapshotDamaged):
            verified(shelf, name)
        flip(path, place)
    verified(shelf, name)


def test_what_is_no_part_of_a_snapshot_makes_it_a_bad_one(home: Path) -> None:
    """A file too many is noticed: RocksDB would read a log of writes that lies there."""
    shelf = Shelf(home / "snapshots", 0)
    snapshot = shelf.read(shelf.names()[0])
    for folder in (snapshot.folder, snapshot.files):
        (folder / "000099.log").write_bytes(b"")
        with pytest.raises(SnapshotDamaged, match="no part of it"):
            verified(shelf, snapshot.name)
        with pytest.raises(SnapshotDamaged, match="no part of it"):
            restored(snapshot, home / "fresh")
        assert not (home / "fresh").exists()
        (folder / "000099.log").unlink()


def test_a_newer_format_of_snapshot_is_not_guessed_at(home: Path) -> None:
    """A manifest of a greater format, whole by its own hash, is refused by its number."""
    from dataclasses import replace

    from foldlog.snapshots.manifest import encode_manifest

    shelf = Shelf(home / "snapshots", 0)
    snapshot = shelf.read(shelf.names()[0])
    newer = replace(snapshot.manifest, format=2)
    (snapshot.folder / "manifest.json").write_bytes(encode_manifest(newer))
    with pytest.raises(SnapshotDamaged, match="it has format 2, this build reads 1"):
        shelf.read(snapshot.name)


# The live store


def live(path: Path, pattern: str) -> Path:
    """A file of the live store."""
    return max((path / "projection" / "0").glob(pattern))


def leave_only_the_lock(folder: Path) -> None:
    """Delete every other file of a store."""
    for each in folder.iterdir():
        if each.name != "LOCK":
            each.unlink()


BREAKS: dict[str, Callable[[Path], Any]] = {
    "MANIFEST cut short": lambda path: cut(live(path, "MANIFEST-*")),
    "MANIFEST flipped": lambda path: flip_middle(live(path, "MANIFEST-*")),
    "MANIFEST empty": lambda path: os.truncate(live(path, "MANIFEST-*"), 0),
    "MANIFEST deleted": lambda path: live(path, "MANIFEST-*").unlink(),
    "CURRENT deleted": lambda path: live(path, "CURRENT").unlink(),
    "CURRENT flipped": lambda path: flip(live(path, "CURRENT"), 10),
    "table flipped": lambda path: flip(live(path, "*.sst"), 60),
    "table cut": lambda path: cut(live(path, "*.sst")),
    "table deleted": lambda path: live(path, "*.sst").unlink(),
    "all but the lock gone": lambda path: leave_only_the_lock(path / "projection" / "0"),
}


@pytest.mark.parametrize("what", BREAKS)
@pytest.mark.parametrize("has_snapshots", [True, False])
def test_fault_28_a_broken_store_is_put_aside_and_recovered(
    small: tuple[Path, str], tmp_path: Path, what: str, has_snapshots: bool
) -> None:
    """A store whose files are broken is never taken for an empty or an older one: it is recovered
    from the newest snapshot, else from the log, and kept aside with the reason."""
    path = tmp_path / "home"
    os.system(f"cp -a {small[0]} {path}")
    with opened(path) as engine:
        grow(engine, range(4), tokens=7)
        digest = engine.digest()
    if not has_snapshots:
        shutil.rmtree(path / "snapshots")
    BREAKS[what](path)
    told = "bytes are broken"
    for _ in range(2):  # a block that is read late is met by the first reader
        try:
            with opened(path) as engine:
                assert engine.digest() == digest
                report = engine.verify()
                assert report.ok, report.first_difference
            break
        except Unavailable as error:
            told = str(error)
    else:
        pytest.fail("the second start was not right")
    assert "bytes are broken" in told
    if what != "all but the lock gone":
        assert (path / "projection" / "0.damaged" / "reason.txt").read_text().strip()


def test_a_manifest_cut_anywhere_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Cut after any byte, a MANIFEST is found to be cut, unless the cut is between two records."""
    store = RocksStore(tmp_path / "db")
    for number in range(5):
        store.write({b"%d" % number: b"x"})
        store.checkpoint(tmp_path / f"copy-{number}")
    store.close()
    [manifest] = (tmp_path / "db").glob("MANIFEST-*")
    whole = manifest.read_bytes()
    unnoticed = []
    for size in range(len(whole)):
        manifest.write_bytes(whole[:size])
        if damage(tmp_path / "db") is None:
            unnoticed.append(size)
    manifest.write_bytes(whole)
    assert damage(tmp_path / "db") is None
    assert 5 <= len(unnoticed) <= 20
    assert damage(tmp_path / "nothing") is None


def test_fault_28_a_leaked_lock_is_named_and_gone_with_its_owner(home: Path) -> None:
    """A store that this process has open already is StoreBusy by name; once that one is closed the
    home opens. A folder that a snapshot is restored into is never one that somebody has open."""
    with opened(home) as engine:
        digest = engine.digest()
    leaked = RocksStore(home / "projection" / "0")
    with pytest.raises(Unavailable, match="open already"):
        opened(home)
    with pytest.raises(StoreBusy):
        RocksStore(home / "projection" / "0")
    leaked.close()
    with opened(home) as engine:
        assert engine.digest() == digest


def test_fault_28_a_half_written_restore_is_thrown_away(
    small: tuple[Path, str], home: Path
) -> None:
    """What a restore left that never ended is removed, and the restore is made anew."""
    half = home / "projection" / "0.restoring"
    half.mkdir(parents=True)
    (half / "CURRENT").write_text("MANIFEST-000005\n")
    (half / "000009.sst").write_bytes(b"half")
    assert recovered(home, small[1], TAILS["newest"]) == {}
    assert not half.exists()


# Disks that fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_fault_32_a_disk_that_fails_while_restoring_is_no_bad_snapshot(
    small: tuple[Path, str], home: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full, read-only or failing, the disk is named; no snapshot is quarantined for it, nothing
    half made stays, and once it works the same snapshot is restored."""
    real, left = os.fsync, [3]

    def failing(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(Unavailable, match=os.strerror(number)):
            opened(home)
    assert not (home / "projection" / "0.restoring").exists()
    assert recovered(home, small[1], TAILS["newest"]) == {}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_fault_32_a_disk_that_fails_while_a_snapshot_is_taken(
    home: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full or read-only, there is no new snapshot and nothing half made, the older ones stay, the
    run goes on, and the next one succeeds once the disk works."""
    with opened(home) as engine:
        before = names_of(home)
        grow(engine, range(2))
        calls, told = 0, list[str]()
        real = os.fsync

        def failing(descriptor: int) -> None:
            nonlocal calls
            calls += 1
            if calls == allowed + 1:
                raise OSError(number, os.strerror(number))
            real(descriptor)

        for allowed in range(100):
            calls = 0
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", failing)
                try:
                    engine.take_snapshots()
                    break
                except Unavailable as error:
                    told.append(str(error))
            assert names_of(home) == before or allowed > 5
            assert not [name for name in os.listdir(home / "snapshots" / "0") if name[0] == "."]
            grow(engine, range(1))
        assert allowed > 5
        assert all(os.strerror(number) in text for text in told)
        assert engine.verify().ok


# A log that no longer reaches back


def trimmed(path: Path, below: int) -> None:
    """Take the oldest records out of a log, as retention would."""
    with closing(sqlite3.connect(path / "log.sqlite")) as connection, connection:
        connection.execute('DELETE FROM events_0 WHERE "offset" < ?', (below,))


def test_fault_27_a_trimmed_log_is_covered_by_a_snapshot_or_stops_the_start(
    small: tuple[Path, str], home: Path
) -> None:
    """While a snapshot reaches to where the log begins, a cold start uses it; otherwise it stops
    and says which records are gone, also where an older snapshot is there."""
    trimmed(home, 17)
    with opened(home) as engine:
        assert engine.digest() == small[1]
    newest, older = names_of(home)
    without_projection(home)
    shutil.rmtree(home / "snapshots" / "0" / newest)
    with pytest.raises(LogTrimmed, match="records 9 to 16 are gone") as caught:
        opened(home)
    assert (caught.value.partition, caught.value.sequence) == (0, 9)
    without_projection(home)
    shutil.rmtree(home / "snapshots" / "0" / older)
    with pytest.raises(LogTrimmed, match="records 1 to 16 are gone"):
        opened(home)


def test_a_warm_store_needs_no_more_of_the_log_than_what_comes_next(
    small: tuple[Path, str], tmp_path: Path
) -> None:
    """A store whose last record is trimmed away goes on where the log's first one extends it."""
    path = tmp_path / "home"
    os.system(f"cp -a {small[0]} {path}")
    with opened(path) as engine:
        taken = engine.take_snapshots()
        grow(engine, range(1))
        digest = engine.digest()
    without_projection(path)
    trimmed(path, taken[0].sequence + 1)
    with opened(path) as engine:
        assert engine.digest() == digest
        assert seat_of(engine)._folded == 1


def test_status_of_a_home_that_is_recovered_is_told(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was restored, from which snapshot, and what was folded, is logged with its numbers."""
    newest = names_of(home)[0]
    with caplog.at_level("INFO", "foldlog"), opened(home):
        pass
    [line] = [row for row in caplog.records if getattr(row, "event", "") == "restored"]
    assert line.__dict__["snapshot"] == newest
    [line] = [row for row in caplog.records if getattr(row, "event", "") == "recovered"]
    assert line.__dict__["records"] == TAILS["newest"]


def test_progress_is_told_with_an_estimate(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery that takes long says how much is done, of how much, and how long it may take."""
    from foldlog import recovery

    now = [0.0]
    monkeypatch.setattr("foldlog.recovery.time.monotonic", lambda: now[0])
    alive: list[float] = []
    tell = recovery.Teller(lambda: alive.append(now[0]))
    with caplog.at_level("INFO", "foldlog"):
        for done in range(0, 60, 10):
            tell("records folded", 2, done, 100)
            now[0] += 0.5
    lines = [row.__dict__ for row in caplog.records]
    assert [(line["done"], line["whole"], line["seconds_left"]) for line in lines] == [
        (20, 100, 4.0),
        (40, 100, 3.0),
    ]
    assert alive == [1.0, 2.0]


def test_an_engine_that_restores_is_not_taken_for_stalled(home: Path) -> None:
    """While a snapshot is restored the holder's note goes on, so nobody who waits gives up."""
    with beside(home) as found:
        assert isinstance(found, Home)
        assert found.try_hold()
        found.note("worker", "recovering", 0)
        found._still_recovering()
        note = found.holder()
        assert note is not None
        assert (note.phase, note.turned_at > 0) == ("recovering", True)
        found.let_go()


def test_engines_of_one_process_recover_once(home: Path, small: tuple[Path, str]) -> None:
    """Two engines that open a home without a projection: one recovers it, the other reads it."""
    with Engine.open(home) as one, Engine.open(home) as other:
        assert one.digest() == other.digest() == small[1]


def test_a_terminal_shows_how_far_a_recovery_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a command opens its home, a terminal shows what is done; anything else shows none."""
    from foldlog.cli.recovering import recovery_shown

    facts = {"event": "recovering"}
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        with recovery_shown():
            logging.getLogger("foldlog").info("5 of 10", extra=facts)
            logging.getLogger("foldlog").info("something else")
        assert ("5 of 10" in capsys.readouterr().err) is is_terminal


def test_doctor_tells_of_snapshots_and_of_what_was_put_aside(home: Path) -> None:
    """How many snapshots there are, which are quarantined and why, and a store that was broken."""
    from foldlog.client import wall_clock
    from foldlog.doctor import examine

    newest, older = names_of(home)
    flip(home / "snapshots" / "0" / newest / "files" / "CURRENT", 2)
    with opened(home):
        pass
    BREAKS["MANIFEST cut short"](home)
    with opened(home):
        pass
    found = [(each.check, each.what) for each in examine(home, wall_clock)]
    what = f"partition 0 has 1 snapshot, the newest of sequence {int(older[:16])}"
    assert ("snapshots", what) in found
    assert any(newest in what and "CURRENT" in what for check, what in found)
    assert any(check == "leftover" and "put aside" in what for check, what in found)
