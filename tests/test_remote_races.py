"""A place elsewhere under two writers at once, and under SIGKILL; and the bytes that stand there.

Invariants:
- Another one's work comes between any two questions to a real server, each place in turn.
- After every race and every kill each snapshot that is named there is whole, read to its end.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from foldlog.errors import PlaceUnavailable, SnapshotDamaged
from foldlog.snapshots.place import Found, Place, open_place
from foldlog.snapshots.pointer import decode_placed, decode_pointer, encode_placed, encode_pointer
from foldlog.snapshots.remote import RemoteShelf
from foldlog.snapshots.shelf import Snapshot
from tests import needs
from tests.s3.homes import copied_place, elsewhere, folded, made, objects, opened, remote_of
from tests.s3.server import Server
from tests.snapshot_homes import grow, keeper_of, without_compactions
from tests.workers import environment

STEP = 2 if int(os.environ.get("FOLDLOG_UPLOAD_KILLS", "0")) else 17
"""Every so manieth call is one at which an upload is killed."""


class Interrupted:
    """A place at which something else happens before the n-th question."""

    def __init__(self, place: Place, number: int, other: Callable[[], object]) -> None:
        self._place, self._left, self._other = place, number, other
        self.url = place.url

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._other()

    @property
    def was_interrupted(self) -> bool:
        """Whether it came to the n-th question."""
        return self._left <= 0

    def read(self, key: str) -> Found | None:
        """See Place.read."""
        self._count()
        return self._place.read(key)

    def chunks(self, key: str) -> Iterator[bytes] | None:
        """See Place.chunks."""
        self._count()
        return self._place.chunks(key)

    def write(self, key: str, data: bytes | Path) -> None:
        """See Place.write."""
        self._count()
        self._place.write(key, data)

    def replace(self, key: str, data: bytes, tag: str | None) -> bool:
        """See Place.replace."""
        self._count()
        return self._place.replace(key, data, tag)

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See Place.sizes."""
        self._count()
        return self._place.sizes(prefix)

    def remove(self, keys: Iterable[str]) -> None:
        """See Place.remove; something else may happen before each."""
        for key in keys:
            self._count()
            self._place.remove([key])


@pytest.fixture
def contested(place_url: str, tmp_path: Path) -> tuple[str, Snapshot]:
    """A place with three snapshots, and a newer one elsewhere that shares a table with the oldest
    of them only: pruning takes away just what uploading that one would count on."""
    first, second = tmp_path / "one", tmp_path / "two"
    made(first, place_url, snapshots=1)
    subprocess.run(["cp", "-a", first, second], check=True)
    shutil.rmtree(first / "projection")
    shutil.rmtree(first / "snapshots")
    with opened(first, None) as engine:  # folded anew: its tables are others
        without_compactions(engine)
        [remote] = [RemoteShelf(open_place(place_url), keeper_of(engine)._log.identity, 0)]
        for number in (1, 2):
            grow(engine, range(40 * number, 40 * number + 10))
            engine.take_snapshots()
            shelf = keeper_of(engine).shelves[0]
            remote.upload(shelf.read(shelf.names()[0]))
    shutil.copy(first / "log.sqlite", second)
    with opened(second, None) as engine:
        grow(engine, range(3))
        [taken] = engine.take_snapshots()
        newest = keeper_of(engine).shelves[0].read(taken.name)
    names = remote.names()
    assert len(names) == 3
    tables = [{each.sha256 for each in remote.read(name).manifest.files} for name in names]
    ours = {each.sha256 for each in newest.manifest.files if each.name.endswith(".sst")}
    assert ours & tables[2] - tables[1] - tables[0]
    return place_url, newest


def check(remote: RemoteShelf, *wanted: str) -> None:
    """All that is named is whole, and these are."""
    names = remote.names()
    assert set(wanted) <= set(names)
    for name in names:
        remote.verify(name)


@pytest.mark.parametrize("interrupted", ["upload", "prune"])
def test_two_writers_at_a_place(
    contested: tuple[str, Snapshot], s3_server: Server, interrupted: str
) -> None:
    """Pruned at any moment of an upload, and uploaded to at any moment of a pruning, a place never
    names a snapshot of which a file is gone, and loses none that was placed."""
    url, newest = contested
    identity = newest.manifest.meta.identity
    count = 0
    for number in range(1, 80):
        copy = copied_place(s3_server, url, f"{url.rpartition('/')[2]}-{interrupted}-{number}")
        other = RemoteShelf(open_place(copy), identity, 0)
        works: dict[str, Callable[[RemoteShelf], object]] = {
            "upload": lambda remote: remote.upload(newest),
            "prune": lambda remote: remote.prune(2),
        }
        meanwhile = works["prune" if interrupted == "upload" else "upload"]
        place = Interrupted(open_place(copy), number, lambda: meanwhile(other))  # noqa: B023
        works[interrupted](RemoteShelf(place, identity, 0))
        check(other, *([newest.name] if place.was_interrupted or interrupted == "upload" else []))
        if not place.was_interrupted:
            break
        count += 1
        other.prune(2, whole=True)
        check(other, newest.name)
    assert count >= 5


def test_many_uploads_at_once(contested: tuple[str, Snapshot]) -> None:
    """Threads that upload and prune at the same time each end, and what they placed is whole."""
    url, newest = contested
    failed: list[BaseException] = []

    def work() -> None:
        try:
            remote = RemoteShelf(open_place(url), newest.manifest.meta.identity, 0)
            remote.upload(newest)
            remote.prune(2)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    check(RemoteShelf(open_place(url), newest.manifest.meta.identity, 0), newest.name)


UPLOAD = """
import sys
sys.path.insert(0, ".")
from pathlib import Path
from tests.s3.homes import opened
with opened(Path(sys.argv[1]), sys.argv[2]) as engine:
    engine.take_snapshots()
"""

SENDS = "connect,sendto,sendmsg,write,writev"


def test_fault_2_a_kill_in_an_upload_leaves_what_was_there(
    place_url: str, s3_server: Server, tmp_path: Path
) -> None:
    """Killed as it connects, sends or renames, at one call in so many, an upload leaves the pointer
    at whole snapshots, and the next one goes on by itself and clears what is left over."""
    strace = needs.program("strace")
    home = tmp_path / "home"
    digest = made(home, place_url)
    with opened(home, place_url) as engine:
        before = remote_of(engine).names()
    count = 0
    for number in range(1, 2_000, STEP):
        copy, url = (
            tmp_path / str(number),
            copied_place(s3_server, place_url, f"{tmp_path.name}-{number}"),
        )
        subprocess.run(["cp", "-a", home, copy], check=True)
        inject = ["-e", f"trace={SENDS}", "-e", f"inject={SENDS}:signal=SIGKILL:when={number}"]
        command = [strace, "-f", "-qq", "-o", os.devnull, *inject, sys.executable, "-c", UPLOAD]
        done = subprocess.run(
            [*command, str(copy), url], env=environment(), timeout=120, capture_output=True
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        other = elsewhere(copy, tmp_path / f"{number}-other")
        with opened(other, url) as engine:
            assert engine.digest() == digest
            assert set(before) & set(remote_of(engine).names())
            check(remote_of(engine))
            grow(engine, range(1))
            [taken] = engine.take_snapshots()
            check(remote_of(engine), taken.name)
            named = {
                key.rpartition("/")[2]
                for name in remote_of(engine).names()
                for key in remote_of(engine).read(name).keys().values()
            }
        assert {path.name for path in objects(s3_server, url, "/blobs/")} == named
        shutil.rmtree(copy)
        if done.returncode == 0:
            break
        count += 1
    assert count >= 3


def test_fault_2_a_kill_while_fetching_leaves_nothing_half(place_url: str, tmp_path: Path) -> None:
    """Killed as it renames or syncs while it recovers from the place, a home opens the next time
    with the same digest, from the same snapshot."""
    strace = needs.program("strace")
    digest = made(tmp_path / "home", place_url)
    calls = "fdatasync,fsync,rename,renameat,renameat2"
    count = 0
    for number in range(1, 2_000, STEP):
        other = elsewhere(tmp_path / "home", tmp_path / str(number))
        inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=SIGKILL:when={number}"]
        command = [strace, "-f", "-qq", "-o", os.devnull, *inject, sys.executable, "-c", UPLOAD]
        done = subprocess.run(
            [*command, str(other), place_url], env=environment(), timeout=120, capture_output=True
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        with opened(other, place_url) as engine:
            assert engine.digest() == digest
            assert folded(engine) <= 2
            assert engine.verify().ok
        if done.returncode == 0:
            break
        count += 1
    assert count >= 1


def test_a_server_without_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that writes although a condition says not to is found out before it is relied on."""

    class Careless(BaseHTTPRequestHandler):
        """Takes everything."""

        def do_PUT(self) -> None:
            """Take it."""
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("ETag", '"same"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
        "AWS_ALLOW_HTTP": "true", "AWS_REGION": "x",
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    if importlib.util.find_spec("obstore") is None:
        needs.cannot("a careless server was not tried: obstore missing (pip install obstore)")
    try:
        with pytest.raises(PlaceUnavailable, match="conditional writes"):
            open_place("s3://bucket/x").replace("pointer.json", b"x", None)
    finally:
        server.shutdown()
        server.server_close()


GOLDEN = Path(__file__).parent / "golden"


def test_what_stands_at_a_place_reads_for_ever() -> None:
    """The golden pointer and placed manifest of format 1 read, say what they said, and are written
    with the same bytes; with any bit changed they do not read."""
    pointer = decode_pointer((GOLDEN / "snapshot_pointer.json").read_bytes())
    placed = decode_placed((GOLDEN / "snapshot_placed.json").read_bytes())
    assert encode_pointer(pointer) == (GOLDEN / "snapshot_pointer.json").read_bytes()
    assert encode_placed(placed) == (GOLDEN / "snapshot_placed.json").read_bytes()
    assert (pointer.epoch, pointer.partition) == (7, 0)
    assert [(each.name, each.reason) for each in pointer.snapshots] == [
        (placed.manifest.name, None), ("0000000000000900-0123456789ab", "000010.sst is not there"),
    ]  # fmt: skip
    assert placed.keys()["CURRENT"].startswith("blobs/00000006/")
    for data, decode in (
        ((GOLDEN / "snapshot_pointer.json").read_bytes(), decode_pointer),
        ((GOLDEN / "snapshot_placed.json").read_bytes(), decode_placed),
    ):
        for place in range(len(data)):
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            with pytest.raises(SnapshotDamaged):
                decode(changed)
