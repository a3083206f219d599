"""Snapshots at a place elsewhere, on a real S3 server: another machine goes on from them.

Invariants:
- Another machine is another home that shares nothing but the log (a copy of it) and the place.
- An object is damaged as a disk would do it: in the file in which the server keeps it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog.errors import LogTrimmed, PlaceUnavailable, SnapshotDamaged, Usage
from foldlog.snapshots import sources, uploading
from foldlog.snapshots.place import open_place
from foldlog.snapshots.settings import from_environment
from tests.s3.homes import asked, elsewhere, folded, made, objects, opened, remote_of
from tests.s3.server import Server
from tests.snapshot_homes import cut, flip_middle, grow, keeper_of, without_compactions
from tests.workers import daemon, foldlog, log_lines, until


def rows(home: Path, *args: str) -> list[dict[str, Any]]:
    """What a command printed as JSON lines."""
    return [json.loads(line) for line in foldlog(home, *args, "--json").stdout.splitlines()]


def test_another_machine_goes_on_from_the_place(place_url: str, tmp_path: Path) -> None:
    """With an empty disk, the log and the place it has the same digest after folding the tail
    only; its own next snapshot uploads what changed, and the first machine goes on from that."""
    digest = made(tmp_path / "one", place_url)
    other = elsewhere(tmp_path / "one", tmp_path / "two")
    with opened(other, place_url) as engine:
        without_compactions(engine)
        assert (engine.digest(), folded(engine)) == (digest, 2)
        assert engine.verify().snapshots == 2
        grow(engine, range(3))
        [taken] = engine.take_snapshots()
        assert 0 < taken.bytes_uploaded < taken.bytes / 2
        assert engine.take_snapshots()[0].bytes_uploaded == 0
        digest = engine.digest()
    third = elsewhere(other, tmp_path / "three")
    with opened(third, place_url) as engine:
        assert (engine.digest(), folded(engine)) == (digest, 0)
        assert keeper_of(engine).shelves[0].names() == [taken.name]


def test_without_a_place_nothing_is_asked(tmp_path: Path) -> None:
    """A home whose snapshots have no place elsewhere loads nothing for it."""
    with opened(tmp_path, None, create=True, partitions=1) as engine:
        grow(engine, range(1))
        [taken] = engine.take_snapshots()
        assert (keeper_of(engine).remotes, taken.bytes_uploaded) == ([], None)


def test_by_hand_from_another_machine(place_url: str, tmp_path: Path) -> None:
    """list, verify, prune, restore, replay and verify work where nothing but the log is."""
    digest = made(tmp_path / "one", place_url, snapshots=2)
    other = elsewhere(tmp_path / "one", tmp_path / "two")
    place = ("--snapshots", place_url)
    listed = rows(other, "snapshot", "list", *place)
    assert [(row["state"], row["where"]) for row in listed] == 2 * [("published", ["place"])]
    assert rows(other, "snapshot", "list") == []
    names = [row["name"] for row in listed]
    checked = rows(other, "snapshot", "verify", *place)
    assert [(row["name"], row["where"], row["ok"]) for row in checked] == [
        (name, "place", True) for name in names
    ]
    here, there = rows(other, "snapshot", "prune", *place)
    assert (here["kept"], there["kept"], there["removed"]) == ([], names, [])
    replayed = rows(other, "replay", "--from", "snapshot", "--expect-digest", digest, *place)
    assert (replayed[0]["digest"], replayed[0]["records"]) == (digest, 2)
    [restored] = rows(other, "snapshot", "restore", names[1], *place)
    assert (restored["name"], restored["sequence"]) == (names[1], 80)
    where = {row["name"]: row["where"] for row in rows(other, "snapshot", "list", *place)}
    assert where == {name: ["here", "place"] for name in names}  # as recovery left the newest
    [report] = rows(other, "verify", *place)
    assert (report["ok"], report["snapshots"]) == (True, 2)
    text = foldlog(other, "snapshot", "list", *place).stdout.decode()
    assert "WHERE" in text


def test_pruned_there_too(place_url: str, s3_server: Server, tmp_path: Path) -> None:
    """Each upload leaves two there, and of what older ones had only what these share."""
    made(tmp_path / "one", place_url, snapshots=5)
    with opened(tmp_path / "one", place_url) as engine:
        remote = remote_of(engine)
        names = remote.names()
        assert len(names) == 2
        wanted = {key for name in names for key in remote.read(name).keys().values()}
    there = objects(s3_server, place_url, "/blobs/")
    assert {path.name for path in there} == {key.rpartition("/")[2] for key in wanted}
    assert len(objects(s3_server, place_url, "/manifests/")) == 2


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "flipped": flip_middle, "cut": cut, "deleted": Path.unlink,
}  # fmt: skip


@pytest.mark.parametrize("what", ["blobs", "manifests"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_fault_26_a_damaged_object_is_met_and_named(
    place_url: str, s3_server: Server, tmp_path: Path, what: str, damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A byte flipped, a file cut or gone in the newest snapshot: verify names it, recovery goes on
    from the older one, and the next snapshot is whole again."""
    digest = made(tmp_path / "one", place_url)
    with opened(tmp_path / "one", place_url) as engine:
        newest, older = remote_of(engine).names()
        keys = set(remote_of(engine).read(newest).keys().values())
        shared = set(remote_of(engine).read(older).keys().values())
    ours = {key.rpartition("/")[2] for key in keys - shared} | {f"{newest}.json"}
    hurt = next(path for path in objects(s3_server, place_url, f"/{what}/") if path.name in ours)
    DAMAGES[damage](hurt)
    other = elsewhere(tmp_path / "one", tmp_path / "two")
    done = foldlog(other, "snapshot", "verify", newest, "--snapshots", place_url)
    assert (done.returncode, b"DAMAGED" in done.stdout) == (5, True), done.stderr
    with opened(other, place_url) as engine:
        assert (engine.digest(), folded(engine)) == (digest, 82)
        assert any(newest in record.getMessage() for record in caplog.records)
        bad = remote_of(engine).quarantined()
        assert bad.keys() == {newest}
        grow(engine, range(1))
        [taken] = engine.take_snapshots()
        remote_of(engine).verify(taken.name)
        assert remote_of(engine).names() == [taken.name, older]
    third = elsewhere(other, tmp_path / "three")
    with opened(third, place_url) as engine:
        assert folded(engine) == 0


def test_a_damaged_pointer_is_named_and_done_without(
    place_url: str, s3_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a pointer that does not read, recovery says so and folds the log; once it is taken away
    the next snapshot is uploaded whole."""
    digest = made(tmp_path / "one", place_url)
    [pointer] = objects(s3_server, place_url, "pointer.json")
    flip_middle(pointer)
    other = elsewhere(tmp_path / "one", tmp_path / "two")
    with opened(other, place_url) as engine:
        assert (engine.digest(), folded(engine)) == (digest, 162)
        assert any("the pointer does not read" in record.getMessage() for record in caplog.records)
        with pytest.raises(SnapshotDamaged, match="pointer"):
            engine.take_snapshots()
        pointer.unlink()
        [taken] = engine.take_snapshots()
        assert taken.bytes_uploaded == taken.bytes
        remote_of(engine).verify(taken.name)
    assert len({path.parent.name for path in objects(s3_server, place_url, "/blobs/")}) == 2


@pytest.fixture
def outage(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server is away; those who wait for it have little patience. It comes back in the end."""
    monkeypatch.setattr(sources, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(uploading, "RETRY_SECONDS", 0.5)
    s3_server.kill()
    yield s3_server
    s3_server.kill()
    s3_server.start()


def test_fault_30_an_outage_of_the_place_stops_nobody(
    place_url: str, tmp_path: Path, outage: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """While the place is away snapshots are taken here and recovery goes on without it, and both
    are said; once it is back, what was taken is uploaded by itself."""
    caplog.set_level(logging.INFO, "foldlog")
    home = tmp_path / "one"
    often = asked(place_url, records=5)
    with opened(home, place_url, create=True, partitions=1, snapshots=often) as engine:
        grow(engine, range(10))
        shelf = keeper_of(engine).shelves[0]
        until(lambda: bool(shelf.names()), 60)
        until(lambda: "not_uploaded" in events(caplog), 60)
        assert "uploaded" not in events(caplog)
        with pytest.raises(PlaceUnavailable, match="is not uploaded yet"):
            engine.take_snapshots()
        digest = engine.digest()
    shutil.rmtree(home / "projection")
    with opened(home, place_url, snapshots=often) as engine:
        assert engine.digest() == digest
        [told, *_] = [
            each for each in caplog.records if getattr(each, "event", "") == "place_unreachable"
        ]
        assert "snapshot" in told.getMessage()
        outage.start()
        until(lambda: "uploaded" in events(caplog), 60)
        remote_of(engine).verify(shelf.names()[0])


def events(caplog: pytest.LogCaptureFixture) -> set[str]:
    """The kinds of events that were logged."""
    return {getattr(record, "event", "") for record in caplog.records}


def test_without_the_place_the_log_must_reach_back(
    place_url: str, tmp_path: Path, outage: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """On an empty disk, and with the place away, the log is folded from its start; where that is
    gone this is an outage that is waited out, not the end of the partition."""
    outage.start()
    digest = made(tmp_path / "one", place_url)
    outage.kill()
    other = elsewhere(tmp_path / "one", tmp_path / "two")
    with opened(other, place_url) as engine:
        assert (engine.digest(), folded(engine)) == (digest, 162)
        assert any("the start of the log" in record.getMessage() for record in caplog.records)
    third = elsewhere(tmp_path / "one", tmp_path / "three")
    trim(third, 100)
    with pytest.raises(PlaceUnavailable, match="no longer reaches back"):
        opened(third, place_url)
    with pytest.raises(LogTrimmed):
        opened(third, None)
    outage.start()
    with opened(third, place_url) as engine:
        assert engine.digest() == digest


def trim(home: Path, records: int) -> None:
    """Take the first records of the only partition out of the log."""
    import sqlite3

    connection = sqlite3.connect(home / "log.sqlite")
    connection.execute("DELETE FROM events_0 WHERE sequence <= ?", (records,))
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "url", ["s3://", "file:///tmp/x", "/tmp/x", "http://host/x", "memory:///", "bucket"]
)
def test_what_names_no_place_is_refused(url: str) -> None:
    """A URL that names no place is a usage error, wherever it comes from."""
    with pytest.raises(Usage, match="no place for snapshots"):
        from_environment({"FOLDLOG_SNAPSHOT_URL": url})
    with pytest.raises(Usage):
        open_place(url)


def test_a_place_that_refuses_says_why(
    place_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is not there, and credentials that are wrong, are said; nothing else fails."""
    monkeypatch.setattr(sources, "WAIT_SECONDS", 0.5)
    with opened(tmp_path / "one", "s3://no-such-bucket/x", create=True, partitions=1) as engine:
        grow(engine, range(1))
        with pytest.raises(PlaceUnavailable, match="no such bucket"):
            engine.take_snapshots()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with opened(tmp_path / "one", place_url) as engine:
        with pytest.raises(PlaceUnavailable, match="403 Forbidden"):
            engine.take_snapshots()
        assert engine.run("run_0").state() is not None


def test_two_logs_may_share_a_place(place_url: str, tmp_path: Path) -> None:
    """Each log has a folder of its own there, so none sees, prunes or recovers from another's."""
    digests = [made(tmp_path / name, place_url, snapshots=1) for name in ("one", "two")]
    for name, digest in zip(("one", "two"), digests, strict=True):
        other = elsewhere(tmp_path / name, tmp_path / f"{name}-again")
        with opened(other, place_url) as engine:
            assert (engine.digest(), len(remote_of(engine).names())) == (digest, 1)


def test_a_keeper_uploads_what_is_there_when_it_begins(place_url: str, tmp_path: Path) -> None:
    """A home that gets a place later uploads its newest snapshot by itself."""
    made(tmp_path / "one", place_url, snapshots=0)
    with opened(tmp_path / "one", None) as engine:
        [taken] = engine.take_snapshots()
    with opened(tmp_path / "one", place_url) as engine:
        until(lambda: remote_of(engine).names() == [taken.name], 60)


def test_the_daemon_uploads_by_itself(
    place_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`foldlog project` takes snapshots when they are due, uploads them and prunes there, while
    workers propose; another machine goes on from them."""
    home = tmp_path / "one"
    monkeypatch.setenv("FOLDLOG_SNAPSHOT_RECORDS", "10")
    monkeypatch.setenv("FOLDLOG_SNAPSHOT_URL", place_url)
    with opened(home, None, create=True, partitions=1) as engine, daemon(home, tmp_path / "log"):
        for number in range(4):
            grow(engine, range(12))
            until(lambda n=number: len(uploads(tmp_path / "log")) > n, 60)
        digest = engine.digest()
    other = elsewhere(home, tmp_path / "two")
    with opened(other, place_url) as engine:
        assert engine.digest() == digest
        assert len(remote_of(engine).names()) == 2
        assert folded(engine) < 60


def uploads(log: Path) -> set[str]:
    """The snapshots of which a daemon says that it uploaded them."""
    return {line["snapshot"] for line in log_lines(log) if line.get("event") == "uploaded"}
