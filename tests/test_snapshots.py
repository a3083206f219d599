"""Snapshots as they are meant: what one holds, what it costs, when it is taken, what is kept.

Invariants:
- Homes are real ones on disk; each is looked at through the engine or its snapshots.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from foldlog.errors import Damaged, HomeBusy, SnapshotDamaged, SnapshotMissing, Usage
from foldlog.snapshots.manifest import decode_manifest, encode_manifest
from foldlog.snapshots.settings import SnapshotSettings, from_environment
from foldlog.snapshots.shelf import Shelf
from tests.processes import child, files, line
from tests.seats import holder_of, seat_of
from tests.snapshot_homes import (
    ASKED,
    beside,
    flip,
    grow,
    keeper_of,
    opened,
    small_home,
    without_compactions,
    without_projection,
)


def inodes(folder: Path) -> dict[str, int]:
    """The files below a folder by name, each with what it is on the disk."""
    return {path.name: path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def test_a_snapshot_names_where_it_stands_and_every_file(tmp_path: Path) -> None:
    """Its manifest has the partition's position, sequence and head, the log, the versions, the
    counts of its keys, and each file with its size and hash."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        grow(engine, range(3))
        [taken] = engine.take_snapshots()
        snapshot = keeper_of(engine).verify(0, taken.name)
        [head] = engine.heads()
    manifest = snapshot.manifest
    assert (taken.sequence, taken.head, taken.position) == (6, head.head, 7)
    assert (manifest.meta.identity, manifest.meta.head.hex()) == (head.log, head.head)
    assert manifest.keys["h"] == 3
    assert manifest.keys["r"] == manifest.keys["b"] == 6
    assert manifest.versions.rules.keys() == {"1"}
    stored = files(snapshot.files)
    del stored["."]
    assert {each.name: (each.sha256, each.size) for each in manifest.files} == {
        name: (sha256, size) for name, (sha256, size, _) in stored.items()
    }
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_the_first_copy_of_a_file_is_a_real_copy(tmp_path: Path) -> None:
    """No file of a snapshot is a link to one of the live store, and none has a third name."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        grow(engine, range(3))
        engine.take_snapshots()
        live, kept = inodes(tmp_path / "projection"), inodes(tmp_path / "snapshots")
        assert not set(live.values()) & set(kept.values())


def test_a_table_that_did_not_change_is_not_copied_again(tmp_path: Path) -> None:
    """The next snapshot shares the tables it has in common with the one before, and only those."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        without_compactions(engine)
        grow(engine, range(200))
        [first] = engine.take_snapshots()
        grow(engine, range(5))
        [second] = engine.take_snapshots()
        assert second.is_new
        one, two = (
            inodes(tmp_path / "snapshots" / "0" / each.name / "files") for each in (first, second)
        )
    shared = {name for name in one if one[name] == two.get(name)}
    assert shared == {name for name in one if name.endswith(".sst")}
    assert second.bytes_copied < second.bytes / 4


def test_nothing_changed_is_no_new_snapshot(tmp_path: Path) -> None:
    """Where nothing changed since the newest snapshot, that one is verified and given again."""
    with opened(tmp_path, create=True, partitions=2) as engine:
        assert engine.take_snapshots() == []
        grow(engine, range(6))
        first = engine.take_snapshots()
        again = engine.take_snapshots()
        assert [each.name for each in again] == [each.name for each in first]
        assert not any(each.is_new for each in again)


def test_a_snapshot_is_taken_beside_whoever_holds_the_projection(tmp_path: Path) -> None:
    """A process that is not the holder takes one too, while the holder goes on, and touches no
    file of the holder's."""
    code = """
        import sys, threading
        from tests.snapshot_homes import opened, grow
        with opened(sys.argv[1]) as engine:
            print("open", flush=True)
            while True:
                grow(engine, range(20))
        """
    with opened(tmp_path, create=True, partitions=1):
        pass
    taken = []
    with child("import sys; sys.path.insert(0, '.')", code, tmp_path) as holder:
        assert line(holder) == "open"
        with opened(tmp_path) as guest:
            assert not guest._seat.is_holder
            for _ in range(5):
                time.sleep(0.2)
                taken += guest.take_snapshots()
    assert len({each.name for each in taken}) >= 2
    with opened(tmp_path) as engine:
        report = engine.verify()
        assert report.ok, report.first_difference
        assert report.snapshots == len({each.name for each in taken})


def test_fault_5_replay_snapshot_and_tail_and_projection_agree(tmp_path: Path) -> None:
    """From every snapshot, snapshot + tail is byte for byte the projection, whose digest is that of
    a replay from the start and of one from the newest snapshot, for one run and for all."""
    digest = small_home(tmp_path, snapshots=4, partitions=2)
    with opened(tmp_path) as engine:
        report = engine.verify()
        assert (report.ok, report.snapshots) == (True, 8)
        for start in ("start", "snapshot"):
            replay = engine.replay(start=start)
            assert replay is not None
            assert (replay.digest, replay["from"], replay.runs) == (digest, start, 16)
            alone = [engine.replay("run_0", start=start, to=to) for to in (None, 1, 2, 3)]
            if start == "start":
                expected = [each and each.digest for each in alone]
            assert [each and each.digest for each in alone] == expected
        whole, tail = engine.replay(), engine.replay(start="snapshot")
        assert whole is not None
        assert tail is not None
        assert tail.records < whole.records
        with pytest.raises(Usage):
            engine.replay(start="middle")


def test_fault_18_a_snapshot_whose_content_drifted_is_a_difference(tmp_path: Path) -> None:
    """A snapshot that is whole but holds another state than the log makes is named by verify."""
    small_home(tmp_path, snapshots=1)
    with opened(tmp_path) as engine:
        store: Any = holder_of(engine).held[0].partition.store
        [(key, value), *_] = list(store.scan(b"e\0run_3\0goal"))
        engine.run("run_2").propose({"type": "BudgetSpent", "tokens": 1})
        store.write({key: value.replace(b"goal of 3", b"goal of 4")})
        [bad] = engine.take_snapshots()
        store.write({key: value})
        report = engine.verify()
    assert not report.ok
    found = report.first_difference
    assert found is not None
    assert found.what == f"snapshot {bad.name}: projection: goal"
    assert (found.run_id, "goal of 4" in found.found) == ("run_3", False)


def test_a_replay_from_a_snapshot_needs_one(tmp_path: Path) -> None:
    """Where there is no snapshot, asking for a replay from one is an error that says so."""
    with opened(tmp_path, create=True) as engine:
        grow(engine, range(2))
        with pytest.raises(SnapshotMissing):
            engine.replay(start="snapshot")


def test_snapshots_are_taken_when_they_are_due(tmp_path: Path) -> None:
    """A holder takes one by itself after so many records, keeps two, and goes on meanwhile."""
    often = SnapshotSettings(records=5, bytes=0, seconds=0)
    with opened(tmp_path, create=True, partitions=1, snapshots=often) as engine:
        keeper = keeper_of(engine)
        seen: set[str] = set()
        end = time.monotonic() + 60
        while len(seen) < 4 and time.monotonic() < end:
            grow(engine, range(6))
            time.sleep(0.1)
            seen |= set(keeper.names(0))
        seat_of(engine).place.snapshots._thread.join()  # type: ignore[attr-defined]
        assert len(seen) >= 4
        assert len(keeper.names(0)) == 2
        assert engine.verify().ok


@pytest.mark.parametrize(
    ("settings", "records", "size", "seconds", "due"),
    [
        (SnapshotSettings(records=10, bytes=0, seconds=0), 9, 1 << 40, 1e9, False),
        (SnapshotSettings(records=10, bytes=0, seconds=0), 10, 0, 0, True),
        (SnapshotSettings(records=0, bytes=100, seconds=0), 1, 99, 1e9, False),
        (SnapshotSettings(records=0, bytes=100, seconds=0), 1, 100, 0, True),
        (SnapshotSettings(records=0, bytes=0, seconds=60), 1, 1 << 40, 59.9, False),
        (SnapshotSettings(records=0, bytes=0, seconds=60), 1, 0, 60, True),
        (SnapshotSettings(records=1, bytes=1, seconds=1), 0, 1 << 40, 1e9, False),
        (ASKED, 1 << 40, 1 << 40, 1e9, False),
    ],
)
def test_what_makes_a_snapshot_due(
    settings: SnapshotSettings, records: int, size: int, seconds: float, due: bool
) -> None:
    """Records, bytes or seconds, each alone; never where nothing changed, and 0 is never."""
    assert settings.is_due(records, size, seconds) is due


def test_settings_come_from_the_environment() -> None:
    """Each trigger, the number kept and the folder can be set; what is no number is refused."""
    given = {
        "FOLDLOG_SNAPSHOT_RECORDS": "7",
        "FOLDLOG_SNAPSHOT_BYTES": "0",
        "FOLDLOG_SNAPSHOT_KEEP": "3",
        "FOLDLOG_SNAPSHOT_DIR": "/elsewhere",
    }
    found = from_environment(given)
    assert (found.records, found.bytes, found.keep) == (7, 0, 3)
    assert found.folder == Path("/elsewhere")
    assert found.seconds == SnapshotSettings().seconds
    for name, text in (("RECORDS", "many"), ("KEEP", "1"), ("SECONDS", "-1")):
        with pytest.raises(Usage):
            from_environment({f"FOLDLOG_SNAPSHOT_{name}": text})


def test_snapshots_may_lie_elsewhere(tmp_path: Path) -> None:
    """With a folder of their own they are taken there, found there, and recovered from there."""
    home, place = tmp_path / "home", tmp_path / "place"
    settings = SnapshotSettings(records=0, bytes=0, seconds=0, folder=place)
    with opened(home, create=True, partitions=1, snapshots=settings) as engine:
        grow(engine, range(3))
        [taken] = engine.take_snapshots()
        digest = engine.digest()
    [of_the_log] = place.iterdir()
    assert (of_the_log / "0" / taken.name / "manifest.json").exists()
    assert not (home / "snapshots").exists()
    without_projection(home)
    with opened(home, snapshots=settings) as engine:
        assert engine.digest() == digest


def test_homes_that_name_one_folder_for_snapshots(tmp_path: Path) -> None:
    """Each has those of its own log there: none counts, removes or condemns another's."""
    settings = SnapshotSettings(records=0, bytes=0, seconds=0, folder=tmp_path / "place")
    names: dict[str, set[str]] = {}
    for home, count in (("a", 3), ("b", 1)):
        with opened(tmp_path / home, create=True, partitions=1, snapshots=settings) as engine:
            for number in range(2):
                grow(engine, range(number * count, (number + 1) * count))
                names.setdefault(home, set()).update(row.name for row in engine.take_snapshots())
    for home in ("a", "b"):
        without_projection(tmp_path / home)
        with opened(tmp_path / home, snapshots=settings) as engine:
            assert engine.verify().snapshots == 2
    assert [len(found) for found in names.values()] == [2, 2]


def test_the_snapshots_of_a_partition_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The home opens and decides all the same, and says so."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        grow(engine, range(2))

    def refused(shelf: Shelf) -> list[str]:
        raise PermissionError(13, "Permission denied", str(shelf.folder))

    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "names", refused)
        with opened(tmp_path) as engine:
            grow(engine, range(2, 3))
    assert "snapshots of partition 0 cannot be listed" in caplog.text


@pytest.mark.parametrize("name", ["../x", "/x", "..", ".", "a/b", "", "x" * 256, "a\0b", "é"])
def test_a_manifest_that_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    """A name that is no plain file's is damage, whoever made its hashes right."""
    small_home(tmp_path, snapshots=1)
    with beside(tmp_path) as home:
        shelf = home.snapshots.shelves[0]
        manifest = shelf.read(shelf.names()[0]).manifest
    first, *others = manifest.files
    forged = replace(manifest, files=(replace(first, name=name), *others))
    with pytest.raises(SnapshotDamaged, match="no file of a snapshot"):
        decode_manifest(encode_manifest(forged))


def test_fault_26_pruning_keeps_two_that_verify(tmp_path: Path) -> None:
    """Older snapshots go once two newer ones verify; a bad one is quarantined and counts for
    nothing, and while fewer than two verify nothing is removed."""
    small_home(tmp_path, snapshots=4)
    with beside(tmp_path) as home:
        keeper = home.snapshots
        newest, second, third, oldest = keeper.names(0)
        flip(tmp_path / "snapshots" / "0" / newest / "manifest.json", 40)
        pruned = keeper.prune(0)
        assert (pruned.kept, pruned.removed) == ((second, third), (oldest,))
        assert pruned.quarantined == (newest,)
        assert keeper.names(0) == [second, third]
        assert newest in keeper.shelves[0].quarantined()
        flip(tmp_path / "snapshots" / "0" / second / "manifest.json", 40)
        pruned = keeper.prune(0)
        assert (pruned.kept, pruned.removed) == ((third,), ())
        assert keeper.names(0) == [third]
    with opened(tmp_path) as engine:
        grow(engine, range(3))
        engine.take_snapshots()
        grow(engine, range(3))
        engine.take_snapshots()
        pruned = keeper_of(engine).prune(0)
        assert set(pruned.removed) == {third, second, newest}
        assert keeper_of(engine).shelves[0].quarantined() == {}
        assert engine.verify().ok


def test_a_bad_table_is_not_shared_on(tmp_path: Path) -> None:
    """A snapshot that would share a broken table with the one before is made anew without it, and
    the one before is quarantined."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        without_compactions(engine)
        grow(engine, range(50))
        [first] = engine.take_snapshots()
        [table] = (tmp_path / "snapshots" / "0" / first.name / "files").glob("*.sst")
        flip(table, 100)
        grow(engine, range(2))
        [second] = engine.take_snapshots()
        keeper = keeper_of(engine)
        keeper.verify(0, second.name)
        assert keeper.names(0) == [second.name]
        assert "SHA-256" in keeper.shelves[0].quarantined()[first.name]
        assert second.bytes_copied == second.bytes


def test_a_live_store_with_a_bad_block_gives_no_snapshot(tmp_path: Path) -> None:
    """A snapshot reads every block of what it copies, so a broken live store is found by it: no
    snapshot is made, and the store is recovered when the home is opened again."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        grow(engine, range(50))
        engine.take_snapshots()
        digest = engine.digest()
        [table] = (tmp_path / "projection" / "0").glob("*.sst")
        flip(table, 100)
        shutil.rmtree(tmp_path / "snapshots" / "0")
        with pytest.raises(Exception, match="bytes are broken"):
            engine.take_snapshots()
        assert keeper_of(engine).names(0) == []
    with opened(tmp_path) as engine:
        assert engine.digest() == digest
        assert engine.verify().ok


def test_the_named_snapshot_or_the_newest_is_restored(tmp_path: Path) -> None:
    """A restore puts a snapshot in the place of the projection, and the next start folds the rest;
    it needs the projection to be free, and names what is not there."""
    digest = small_home(tmp_path, snapshots=3)
    with beside(tmp_path) as home:
        newest, _, oldest = home.snapshots.names(0)
        [row] = home.restore([0], None)
        assert row["name"] == newest
        [row] = home.restore([0], oldest)
        assert (row["name"], row["sequence"]) == (oldest, 8)
        with pytest.raises(SnapshotMissing):
            home.restore([0], "0000000000000001-0123456789ab")
        flip(tmp_path / "snapshots" / "0" / newest / "files" / "CURRENT", 3)
        with pytest.raises(SnapshotDamaged):
            home.restore([0], newest)
        with opened(tmp_path) as engine:
            assert engine.digest() == digest
            assert seat_of(engine)._folded > 0
            with pytest.raises(HomeBusy):
                home.restore([0], None)
            assert engine.digest() == digest


def test_a_snapshot_of_another_log_is_never_used(tmp_path: Path) -> None:
    """A snapshot of another home is quarantined with the reason, and the log is folded instead."""
    digest = small_home(tmp_path / "one")
    small_home(tmp_path / "two")
    shutil.rmtree(tmp_path / "one" / "snapshots")
    shutil.copytree(tmp_path / "two" / "snapshots", tmp_path / "one" / "snapshots")
    without_projection(tmp_path / "one")
    with opened(tmp_path / "one") as engine:
        assert engine.digest() == digest
        reasons = keeper_of(engine).shelves[0].quarantined().values()
    assert len(reasons) == 2
    assert all("of log" in reason for reason in reasons)


def test_a_snapshot_ahead_of_its_log_stops_the_start(tmp_path: Path) -> None:
    """Where the log has been put back to an older copy, a snapshot still knows what was lost: the
    start stops and says so, instead of going on as if nothing had been there."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        grow(engine, range(3))
    shutil.copy(tmp_path / "log.sqlite", tmp_path / "old")
    with opened(tmp_path) as engine:
        grow(engine, range(3))
        [taken] = engine.take_snapshots()
    os.replace(tmp_path / "old", tmp_path / "log.sqlite")
    without_projection(tmp_path)
    with pytest.raises(Damaged, match=taken.name):
        opened(tmp_path)
    shutil.rmtree(tmp_path / "snapshots" / "0" / taken.name)
    with opened(tmp_path) as engine:
        assert engine.verify().ok


def test_fault_25_a_cold_start_folds_only_what_came_after_the_snapshot(tmp_path: Path) -> None:
    """With a snapshot and without a projection, a home opens with the same digest and folds the
    tail alone; with neither it folds everything; with a warm store nothing."""
    digest = small_home(tmp_path, snapshots=2)
    folded = []
    for gone in ((), ("projection",), ("projection", "snapshots")):
        for name in gone:
            shutil.rmtree(tmp_path / name)
        with opened(tmp_path) as engine:
            folded.append(seat_of(engine)._folded)
            assert engine.digest() == digest
            assert engine.verify().ok
    assert folded == [0, 2, 18]


def test_an_engine_in_memory_has_no_snapshots() -> None:
    """The engine for users' tests says so."""
    from foldlog.testing import Engine as MemoryEngine

    with MemoryEngine() as engine:
        engine.start("run_1", goal="x")
        with pytest.raises(Usage):
            engine.take_snapshots()
        assert engine.verify().snapshots == 0


def test_two_who_work_on_the_snapshots_take_turns(tmp_path: Path) -> None:
    """Who finds the snapshots locked waits, and after that says so."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        grow(engine, range(2))
        keeper = keeper_of(engine)
        with beside(tmp_path) as other:
            for shelf in (other.snapshots.shelves[0], keeper.shelves[0]):
                with shelf.locked(), pytest.raises(HomeBusy):
                    keeper.create(0, patience=0.05)
        assert keeper.create(0).is_new


def test_an_engine_that_closes_ends_its_snapshot(tmp_path: Path) -> None:
    """Closing does not wait for a long copy: what was being made is gone, what was there stays."""
    eager = SnapshotSettings(records=1, bytes=0, seconds=0)
    for _ in range(5):
        with Engine.open(tmp_path, create=True, partitions=1, snapshots=eager) as engine:
            grow(engine, range(3))
            time.sleep(0.12)
    with opened(tmp_path) as engine:
        report = engine.verify()
        assert report.ok, report.first_difference
        keeper = keeper_of(engine)
        with keeper.shelves[0].locked():
            assert not [name for name in os.listdir(keeper.shelves[0].folder) if name[0] == "."]


GOLDEN_MANIFEST = Path(__file__).parent / "golden" / "snapshot_manifest.json"


def test_a_manifest_of_format_1_reads_for_ever() -> None:
    """The golden manifest reads, says what it said, and is written with the same bytes."""
    data = GOLDEN_MANIFEST.read_bytes()
    manifest = decode_manifest(data)
    assert encode_manifest(manifest) == data
    assert manifest.name == "0000000000001042-404db3b1c615"
    assert manifest.meta.head.hex().startswith("4270e6ae")
    assert manifest.origin == {"cluster": "lkc-1", "events": "foldlog.events"}
    assert [each.name for each in manifest.files] == ["000012.sst", "CURRENT"]
    for place in range(len(data)):
        for bit in (1, 32):
            changed = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
            with pytest.raises(SnapshotDamaged):
                decode_manifest(changed)


def test_more_rules_are_no_reason_to_pass_a_snapshot_over() -> None:
    """A snapshot is of use where every rule it was made under is the same here; a changed or
    missing one, another schema, a missing version or plug-in are named."""
    from dataclasses import replace

    from foldlog.snapshots.manifest import Versions, unusable

    manifest = decode_manifest(GOLDEN_MANIFEST.read_bytes())
    same = Versions(1, 1, {"1": {**manifest.versions.rules["1"], "New": "0" * 16}, "2": {}})
    assert unusable(manifest, same) is None
    row = {"RunStarted": "f" * 16}
    for other, words in (
        (replace(same, rules={"1": row}), "another rule of RunStarted"),
        (replace(same, rules={"1": {}}), "another rule of RunStarted"),
        (replace(same, rules={}), "rules 1, which this build has not"),
        (replace(same, state_format=0), "state format 1"),
        (replace(same, schema_version=0), "schema version 1"),
    ):
        assert words in (unusable(manifest, other) or "")
