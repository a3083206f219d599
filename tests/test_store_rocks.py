"""What the RocksDB store does beyond the contract suite: files, processes, crashes, damage.

Invariants:
- Crashes are real: a child process, SIGKILL, and what is on disk after it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from foldlog.store.base import (
    Reader,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
)
from foldlog.store.rocks import RocksStore, SharedCache
from tests import processes
from tests.processes import line

START = "import os, sys; from foldlog.store.base import *; from foldlog.store.rocks import *\n"
KEYS = 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of a store that is not there yet."""
    return tmp_path / "store"


def child(code: str, *args: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A Python process that runs `code` with everything of the store imported."""
    return processes.child(START, code, *args)


def fill(path: Path) -> None:
    """Write many keys with values that do not compress, into one SST file."""
    with closing(RocksStore(path)) as store:
        store.write({b"k%06d" % n: os.urandom(50) for n in range(KEYS)})


def look_up_all(reader: Reader) -> None:
    """Look up every key that `fill` wrote."""
    for n in range(KEYS):
        assert reader.get(b"k%06d" % n) is not None


def test_an_open_store_is_busy(path: Path) -> None:
    """Opening a store that is open raises StoreBusy, in this process and in another."""
    code = """
        try:
            RocksStore(sys.argv[1])
        except StoreBusy as error:
            print(type(error).__name__)
        """
    with closing(RocksStore(path)) as store:
        with pytest.raises(StoreBusy, match=str(path)):
            RocksStore(path)
        with child(code, path) as process:
            assert line(process) == "StoreBusy"
        store.write({b"k": b"v"})
        assert store.get(b"k") == b"v"


def test_close_frees_the_lock_whatever_is_still_held(path: Path) -> None:
    """After close another may open, though scans and snapshots were begun and never ended."""
    first = RocksStore(path)
    first.write({b"a": b"1", b"b": b"2"})
    scan, view = first.scan(b""), first.snapshot()
    inner = view.scan(b"")
    next(scan)
    next(inner)
    first.close()
    with closing(RocksStore(path)) as second:
        assert second.get(b"a") == b"1"
    del scan, view, inner


def test_a_killed_process_leaves_every_batch_whole(path: Path) -> None:
    """After SIGKILL every batch whose write returned is there, and none in part."""
    code = """
        store = RocksStore(sys.argv[1])
        for n in range(10**9):
            store.write({b"a/%08d" % n: b"x" * 200, b"b/%08d" % n: b"y", b"at": b"%d" % n})
            print(n, flush=True)
        """
    with child(code, path) as process:
        for _ in range(300):
            line(process)
        process.kill()
        assert process.stdout is not None
        acknowledged = [int(n) for n in process.stdout.read().split()] or [299]
    with closing(RocksStore(path)) as store:
        last = int(store.get(b"at") or b"-1")
        assert last >= acknowledged[-1] >= 299
        for prefix in (b"a/", b"b/"):
            assert [int(key[2:]) for key, _ in store.scan(prefix)] == list(range(last + 1))


def test_a_flipped_byte_is_noticed(path: Path) -> None:
    """One changed byte in an SST file raises StoreDamaged from a scan in either direction, from a
    snapshot's scan and from a look-up: no key goes missing in silence."""
    fill(path)
    (sst,) = path.glob("*.sst")
    content = bytearray(sst.read_bytes())
    content[len(content) // 2] ^= 1
    sst.write_bytes(content)
    with closing(RocksStore(path)) as store:
        for scan in (store.scan(b"k"), store.scan(b"", True), store.snapshot().scan(b"k")):
            assert next(scan)
            with pytest.raises(StoreDamaged):
                list(scan)
        for reader in (store, store.snapshot()):
            with pytest.raises(StoreDamaged):
                look_up_all(reader)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_rubbish_in_its_own_files_is_refused(path: Path, name: str) -> None:
    """A store whose CURRENT or MANIFEST holds rubbish raises StoreDamaged at opening."""
    fill(path)
    (file,) = path.glob(name)
    file.write_bytes(b"\xa5" * 100 + b"\n")
    with pytest.raises(StoreDamaged):
        RocksStore(path)


def test_a_cut_manifest_opens_empty(path: Path) -> None:
    """RocksDB opens a store whose MANIFEST lost its end as if it were empty: whoever uses a store
    must compare what it counts in it. This test says when that is no longer so."""
    fill(path)
    (manifest,) = path.glob("MANIFEST-*")
    os.truncate(manifest, manifest.stat().st_size - 20)
    with closing(RocksStore(path)) as store:
        assert list(store.scan(b"")) == []


def test_a_file_in_the_way_is_told(path: Path) -> None:
    """A file where the store's folder should be raises a StoreError that names it."""
    path.write_bytes(b"")
    with pytest.raises(StoreError, match=str(path)):
        RocksStore(path)


class FullDisk:
    """Stands for the database when the disk is full."""

    def write(self, batch: object) -> None:
        """Fail as the binding does."""
        raise Exception("IO error: No space left on device: While appending to file: 000004.log")


def test_after_a_failed_write_every_other_says_so(path: Path) -> None:
    """The write that fails tells why; later ones raise StoreFailed with that reason and do not
    reach RocksDB, until the store is opened again."""
    with closing(RocksStore(path)) as store:
        store.write({b"a": b"1"})
        whole, store._db = store._db, FullDisk()  # type: ignore[assignment]
        with pytest.raises(StoreFull):
            store.write({b"b": b"2"})
        store._db = whole
        with pytest.raises(StoreFailed, match="No space left"):
            store.write({b"c": b"3"})
        assert dict(store.scan(b"")) == {b"a": b"1"}
    with closing(RocksStore(path)) as store:
        store.write({b"d": b"4"})
        assert dict(store.scan(b"")) == {b"a": b"1", b"d": b"4"}


def test_a_checkpoint_is_a_store_of_its_own(path: Path, tmp_path: Path) -> None:
    """A checkpoint holds what was written before it, opens as a store, and is not changed after."""
    copy = tmp_path / "copy"
    with closing(RocksStore(path)) as store:
        store.write({b"a": b"1"})
        store.checkpoint(copy)
        store.write({b"a": b"2", b"b": b"3"})
        with pytest.raises(StoreError):
            store.checkpoint(copy)
        with closing(RocksStore(copy)) as other:
            assert dict(other.scan(b"")) == {b"a": b"1"}


FORKED = """
    store = RocksStore(sys.argv[1])
    store.write({b"k": b"parent"})
    scan, view = store.scan(b""), store.snapshot()
    pid = os.fork()
    if pid == 0:
        for call in (lambda: store.get(b"k"), lambda: store.write({b"k": b"child"}),
                     lambda: view.get(b"k")):
            try:
                call()
                print("child used it")
            except StoreClosed as error:
                print("refused", "fork" in str(error))
        store.close()
        del store, scan, view
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    store.write({b"l": b"parent again"})
    print(status, dict(store.scan(b"")) == {b"k": b"parent", b"l": b"parent again"})
    store.close()
    """


def test_a_fork_is_refused_and_disturbs_nothing(path: Path) -> None:
    """A forked child cannot use its parent's store, ends without waiting for threads that it does
    not have, and leaves the parent's files alone."""
    with child(FORKED, path) as process:
        output = process.communicate(timeout=60)[0]
    assert output.splitlines() == ["refused True"] * 3 + ["0 True"]
    with closing(RocksStore(path)) as store:
        assert store.get(b"l") == b"parent again"


def test_stores_share_one_cache(tmp_path: Path) -> None:
    """Several stores work on one cache, and closing one leaves the others."""
    cache = SharedCache(8 << 20)
    stores = [RocksStore(tmp_path / f"store-{n}", cache) for n in range(4)]
    for n, store in enumerate(stores):
        store.write({b"k": b"%d" % n})
    stores[0].close()
    assert [store.get(b"k") for store in stores[1:]] == [b"1", b"2", b"3"]
    for store in stores:
        store.close()


def test_closing_beside_readers_ends_in_closed(path: Path) -> None:
    """Threads that read while the store is closed get whole answers, then StoreClosed."""
    store = RocksStore(path)
    store.write({b"k%04d" % n: b"v" * 100 for n in range(2_000)})
    problems: list[str] = []
    started = threading.Barrier(4)

    def read() -> None:
        started.wait()
        try:
            while True:
                if len(list(store.scan(b"k"))) != 2_000 or store.get(b"k0001") != b"v" * 100:
                    problems.append("a part")
        except StoreError as error:
            problems.extend([] if type(error).__name__ == "StoreClosed" else [repr(error)])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    threading.Event().wait(0.1)
    store.close()
    for thread in threads:
        thread.join()
    assert problems == []
    RocksStore(path).close()


def test_closing_waits_for_a_checkpoint(path: Path, tmp_path: Path) -> None:
    """Closed while another thread flushes and copies it, a store closes after that, or that thread
    is told that it is closed; neither meets anything else."""
    met: list[BaseException] = []
    for number in range(20):
        store = RocksStore(path)
        store.write({b"k%06d" % n: os.urandom(200) for n in range(5_000)})

        def copy(store: RocksStore = store, number: int = number) -> None:
            try:
                store.checkpoint(tmp_path / f"copy-{number}")
            except BaseException as error:
                met.append(error)

        thread = threading.Thread(target=copy)
        thread.start()
        store.close()
        thread.join()
    assert all(isinstance(error, StoreClosed) for error in met), met
