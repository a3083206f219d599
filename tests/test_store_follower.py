"""Following a RocksDB store beside the process that has it open.

Invariants:
- The primary is a real process, which writes, flushes, compacts, stops and is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from foldlog.store.base import StoreClosed, StoreDamaged, StoreError, StoreMissing
from foldlog.store.follower import RocksFollower
from foldlog.store.rocks import RocksStore, SharedCache
from tests.processes import child, files, line, tell

START = (
    "import os, random, sys, time; from foldlog.store.base import *; "
    "from foldlog.store.rocks import *; from foldlog.store.follower import *"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of a store that is not there yet."""
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for temporary folders, in which nothing is left after a test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


PRIMARY = """
    store = RocksStore(sys.argv[1])
    print("open", flush=True)
    for order in sys.stdin:
        name, *words = order.split()
        if name == "put":
            store.write({key.encode(): b"1" for key in words})
        elif name == "delete":
            store.write({key.encode(): None for key in words})
        elif name == "flush":
            store._db.flush()
        elif name == "compact":
            store._db.compact_range(None, None)
        elif name == "reopen":
            store.close()
            store = RocksStore(sys.argv[1])
        elif name == "close":
            store.close()
        print("done", flush=True)
    """


def keys(follower: RocksFollower) -> list[str]:
    """Every key that is shown; both directions and every look-up agree on it."""
    rows = list(follower.scan(b""))
    assert rows == list(follower.scan(b"", reverse=True))[::-1]
    assert all(follower.get(key) == value for key, value in rows)
    return [key.decode() for key, _ in rows]


def test_it_shows_what_the_primary_did_at_each_refresh(path: Path) -> None:
    """Unflushed writes, deletions, flushes, compactions and a primary that opens again are shown
    by a refresh and not before; a scan begun earlier goes on as it began."""
    with child(START, PRIMARY, path) as primary:
        line(primary)
        tell(primary, "put a b")
        with closing(RocksFollower(path)) as follower:
            shown = ["a", "b"]
            assert keys(follower) == shown
            for turn, order in enumerate(
                ("put c", "flush", "delete a", "put d e", "flush", "compact", "reopen", "put a",
                 "reopen", "delete b c", "compact", "flush", "put f", "close"),
            ):  # fmt: skip
                scan = follower.scan(b"")
                first = next(scan)[0].decode()
                tell(primary, order)
                assert keys(follower) == shown, order
                before = shown
                name, *words = order.split()
                changed = set(shown) | set(words) if name == "put" else set(shown) - set(words)
                shown = sorted(changed)
                follower.refresh()
                assert keys(follower) == shown, (turn, order)
                assert [first, *(key.decode() for key, _ in scan)] == before, (turn, order)


@pytest.mark.parametrize(
    ("orders", "shown"),
    [
        (("delete a", "flush", "compact"), ["b", "c", "d"]),
        (("delete a", "reopen", "compact"), ["b", "c", "d"]),
        (("delete a", "reopen", "put z", "flush", "compact"), ["b", "c", "d", "z"]),
    ],
    ids=["compacted", "opened again", "mixed with what came after"],
)
def test_what_it_has_read_does_not_cover_a_compaction(
    path: Path, orders: tuple[str, ...], shown: list[str]
) -> None:
    """What the primary's logs held at an earlier refresh is not shown on top of tables in which it
    was overwritten and compacted since: RocksDB's own catch-up would show it."""
    with child(START, PRIMARY, path) as primary:
        line(primary)
        tell(primary, "put a b c")
        with closing(RocksFollower(path)) as follower:
            tell(primary, "put d")
            follower.refresh()
            assert keys(follower) == ["a", "b", "c", "d"]
            for order in orders:
                tell(primary, order)
            follower.refresh()
            assert keys(follower) == shown


def test_it_changes_no_file_of_the_primary(path: Path) -> None:
    """Opening, refreshing, reading and closing leave bytes and times of every file as they were."""
    with child(START, PRIMARY, path) as primary:
        line(primary)
        for order in ("put a", "flush", "put b", "compact", "put c", "reopen", "put d"):
            tell(primary, order)
            before = files(path)
            with closing(RocksFollower(path)) as follower:
                follower.refresh()
                keys(follower)
            assert files(path) == before, order
        tell(primary, "close")
        before = files(path)
        with closing(RocksFollower(path)) as follower:
            assert keys(follower) == ["a", "b", "c", "d"]
        assert files(path) == before
    with closing(RocksStore(path)) as store:
        assert store.get(b"d") == b"1"


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_it_works_beside_a_primary_that_does_not(path: Path, how: signal.Signals) -> None:
    """A stopped or killed primary's last writes are shown, by a follower from before and by a new
    one."""
    with child(START, PRIMARY, path) as primary:
        line(primary)
        tell(primary, "put a")
        with closing(RocksFollower(path)) as early:
            tell(primary, "put b")
            primary.send_signal(how)
            if how == signal.SIGKILL:
                primary.wait()
            early.refresh()
            with closing(RocksFollower(path)) as late:
                assert keys(early) == keys(late) == ["a", "b"]


WRITER = """
    hot, reopening = float(sys.argv[2]), len(sys.argv) > 3
    store = RocksStore(sys.argv[1])
    number = int(store.get(b"at") or 0)
    flush = compact = reopen = time.monotonic()
    while True:
        number += 1
        text = b"%d" % number
        store.write({b"at": text, b"x/%d" % (number % 300): text, b"pad": os.urandom(3_000),
                     **{b"v/%d" % n: text for n in range(20)}})
        if number % 10 == 0:
            print(number, flush=True)
        now = time.monotonic()
        if now > flush:
            store._db.flush()
            flush = now + random.random() * hot
        if now > compact:
            store._db.compact_range(None, None)
            compact = now + random.random() * hot * 5
        if reopening and now > reopen:
            store.close()
            store = RocksStore(sys.argv[1])
            reopen = now + random.random() * hot * 5
    """

FOLLOWER = """
    deadline = time.monotonic() + float(sys.argv[2])
    follower = None
    refreshes = last = failed = 0
    while time.monotonic() < deadline:
        try:
            if follower is None:
                follower = RocksFollower(sys.argv[1])
            follower.refresh()
        except StoreError:
            failed += 1
            continue
        refreshes += 1
        for _ in range(2):
            at = int(follower.get(b"at"))
            assert at >= last, (at, last)
            last = at
            values = [value for _, value in follower.scan(b"v/")]
            assert values == [b"%d" % at] * 20, (at, values)
            found = {int(value) for _, value in follower.scan(b"x/")}
            assert found == set(range(max(1, at - 299), at + 1)), at
            assert int(follower.get(b"at")) == at
        if refreshes % 40 == 0:
            follower.close()
            follower = None
    if follower is not None:
        follower.close()
    print(refreshes, failed, last, flush=True)
    """


@pytest.mark.parametrize("hot", [0.5, 0.05, 0.005], ids=["as it is", "fast", "absurdly fast"])
@pytest.mark.parametrize("more", [(), ("reopen",)], ids=["open", "opening again and again"])
def test_it_never_mixes_two_moments(
    path: Path, temporary: Path, hot: float, more: tuple[str, ...]
) -> None:
    """For seconds, beside a primary that writes, flushes, compacts and rotates its logs all the
    time, several followers see nothing but whole batches, each time later ones. Where it flushes
    some times a second they always do; where much more often, they may get an error instead.
    """
    with child(START, WRITER, path, hot, *more) as primary:
        for _ in range(20):
            assert int(line(primary)) > 0
        with child(START, FOLLOWER, path, 3) as one, child(START, FOLLOWER, path, 3) as other:
            # Hundreds of flushes a second can keep RocksDB's own opening from ever reaching the end
            # of the list of files, so that he rests at last.
            rests = time.monotonic() + 15
            while (one.poll() is None or other.poll() is None) and time.monotonic() < rests:
                line(primary)
            primary.kill()
            for process in (one, other):
                assert process.wait(60) == 0
                refreshes, failed, last = map(int, line(process).split())
                if hot > 0.1:
                    # How often depends on the machine; that it happens does not.
                    assert (refreshes > 1, last > 0) == (True, True), failed
    assert list(temporary.iterdir()) == []


def test_a_refresh_shows_what_was_acknowledged_before_it(path: Path) -> None:
    """What the primary had written before refresh was called is always there after it."""
    with child(START, WRITER, path, 0.5) as primary:
        line(primary)
        with closing(RocksFollower(path)) as follower:
            ended = time.monotonic() + 2
            while time.monotonic() < ended:
                acknowledged = int(line(primary))
                follower.refresh()
                assert int(follower.get(b"at") or 0) >= acknowledged


def test_a_store_that_is_not_there_is_missing(path: Path, temporary: Path) -> None:
    """Without a folder, with an empty one and with a file in its place StoreMissing is raised and
    nothing is made."""
    with pytest.raises(StoreMissing, match=str(path)):
        RocksFollower(path)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(StoreMissing):
        RocksFollower(path)
    assert list(path.iterdir()) == []
    path.rmdir()
    path.write_bytes(b"")
    with pytest.raises(StoreMissing):
        RocksFollower(path)
    assert list(temporary.iterdir()) == []


def test_a_failed_opening_leaves_nothing(path: Path, temporary: Path) -> None:
    """A store that cannot be opened raises a StoreError, and the temporary folder is gone."""
    RocksStore(path).close()
    (manifest,) = path.glob("MANIFEST-*")
    manifest.write_bytes(b"\xa5" * 100)
    with pytest.raises(StoreDamaged):
        RocksFollower(path)
    assert list(temporary.iterdir()) == []


def test_another_store_in_its_place_is_shown(path: Path, tmp_path: Path) -> None:
    """After a rebuild, which puts a new store with the same file names in the old one's place, a
    refresh shows the new one and nothing of the old."""
    for where, number in ((path, b"1"), (tmp_path / "new", b"2")):
        with closing(RocksStore(where)) as store:
            store.write({b"k%04d" % n: number for n in range(2_000)})
    with closing(RocksFollower(path)) as follower:
        assert {value for _, value in follower.scan(b"")} == {b"1"}
        shutil.move(path, tmp_path / "old")
        with pytest.raises(StoreMissing):
            follower.refresh()
        with pytest.raises(StoreError):
            follower.get(b"k0001")
        shutil.move(tmp_path / "new", path)
        follower.refresh()
        assert {value for _, value in follower.scan(b"")} == {b"2"}
        shutil.rmtree(path)
        shutil.move(tmp_path / "old", path)
        follower.refresh()
        assert {value for _, value in follower.scan(b"")} == {b"1"}


def test_a_closed_follower_refuses_every_call(path: Path, temporary: Path) -> None:
    """After close every call raises StoreClosed, a scan under way too, and no folder is left."""
    with closing(RocksStore(path)) as store:
        store.write({b"a": b"1", b"b": b"2"})
        follower = RocksFollower(path, SharedCache(8 << 20))
        scan = follower.scan(b"")
        next(scan)
        follower.close()
        follower.close()
        for call in (
            lambda: follower.get(b"a"), lambda: follower.scan(b""), follower.refresh,
            lambda: next(scan),
        ):  # fmt: skip
            with pytest.raises(StoreClosed):
                call()
    assert list(temporary.iterdir()) == []


@pytest.fixture
def forked(path: Path) -> Iterator[list[str]]:
    """What a process says that forks with a follower open, which its child then tries to use."""
    RocksStore(path).close()
    code = """
        follower = RocksFollower(sys.argv[1])
        scan = follower.scan(b"")
        pid = os.fork()
        if pid == 0:
            for call in (lambda: follower.get(b"k"), lambda: follower.scan(b""), follower.refresh):
                try:
                    call()
                    print("child used it")
                except StoreClosed as error:
                    print("refused", "fork" in str(error))
            follower.close()
            del follower, scan
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        follower.refresh()
        print(status, follower.get(b"k"), len(os.listdir(os.environ["TMPDIR"])))
        """
    with child(START, code, path) as process:
        yield process.communicate(timeout=60)[0].splitlines()


def test_a_fork_is_refused_and_disturbs_nothing(forked: list[str], temporary: Path) -> None:
    """A forked child cannot use its parent's follower, ends in peace, and leaves the folder, which
    goes away with the parent though that did not close."""
    assert forked == ["refused True"] * 3 + ["0 None 1"]
    assert list(temporary.iterdir()) == []


def test_threads_share_one(path: Path) -> None:
    """While one thread refreshes, others look up and scan, and each scan is of one moment."""
    code = """
        import threading
        follower = RocksFollower(sys.argv[1])
        ended, problems = threading.Event(), []
        def read():
            try:
                while not ended.is_set():
                    assert len({value for _, value in follower.scan(b"v/")}) == 1
                    assert follower.get(b"at")
            except BaseException as error:
                problems.append(repr(error))
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            follower.refresh()
        ended.set()
        for thread in threads:
            thread.join()
        print(problems, flush=True)
        """
    with child(START, WRITER, path, 0.5) as primary:
        line(primary)
        with child(START, code, path) as process:
            while process.poll() is None:
                line(primary)
            assert line(process) == "[]"


def test_refreshing_leaves_no_old_folders(path: Path, temporary: Path) -> None:
    """Scans that outlive a refresh make it open the store anew; once they have ended only what is
    shown is kept."""
    with closing(RocksStore(path)) as store, closing(RocksFollower(path)) as follower:
        (home,) = temporary.iterdir()
        for number in range(4):
            store.write({b"%d" % number: b"v"})
            follower.refresh()
            scan = follower.scan(b"")
            next(scan)
            assert len(list(home.iterdir())) <= 4
            assert len(list(scan)) == number
        follower.refresh()
        assert len(list(home.iterdir())) <= 3
        assert len(keys(follower)) == 4


def test_its_folder_holds_links_only(path: Path, temporary: Path) -> None:
    """The shadow's only file of its own is the binding's; everything else links to the primary."""
    with closing(RocksStore(path)) as store:
        store.write({b"a": b"1"})
        with closing(RocksFollower(path)):
            (home,) = temporary.iterdir()
            found = list((home / "1").iterdir())
            assert [file.name for file in found if not file.is_symlink()] == [
                "rocksdict-config.json"
            ]
            links = [file for file in found if file.is_symlink()]
            assert {os.readlink(file) for file in links} <= {str(file) for file in path.iterdir()}
