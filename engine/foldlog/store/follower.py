"""Reading a RocksDB store beside the process that has it open, without changing a file of it.

RocksDB can open a second instance on a live database, but the binding then rewrites a file of its
own in the folder it is given. So the folder it is given is a shadow: a temporary one of symbolic
links to the primary's files, a new one whenever those come and go.

Invariants:
- Nothing in the primary's folder is ever made, changed, touched or locked.
- What is shown is some moment of the primary as a whole, and stays so until `refresh`.
- An opening or catch-up counts only if the primary's files had the same names and the same
  MANIFEST before and after it. If he flushed or compacted meanwhile, RocksDB may show some keys of
  one moment and some of another, without an error and also after the next catch-up (measured: in
  one of a hundred where flushes come every few milliseconds). Such an instance is dropped.
- An instance catches up only with what was appended to the primary's logs. Where he flushed,
  compacted or opened his store again since, a new instance takes its place: RocksDB would keep what
  it has read of the logs on top of the tables, and a compaction gives what is in the last ones the
  sequence 0, so keys that were overwritten or deleted since would be shown as they were.
- An instance catches up only while no scan runs on it; otherwise the next moment is shown by a new
  one, and the old one is kept for its scans.
- RocksDB knows a file by its number alone, so an instance is dropped too if another database has
  taken the place of its own (a rebuild).
- The temporary folder is removed by `close`, by a failed opening, and at the process's normal end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from foldlog.store.base import StoreClosed, StoreError, StoreMissing
from foldlog.store.rocks import Secondary, SharedCache

TRIES = 20
"""How often it is tried where the primary's own work on its files comes between. He flushes some
10 MB at a time, and an opening takes about 15 ms, so it is hardly ever more than twice."""

PAUSE_S = 0.005
"""After the first of these; each later pause is longer by as much."""

Names = frozenset[str]
Identity = tuple[int, int, bytes]
Files = tuple[Identity, Names, bytes, int]
LogSizes = list[tuple[str, int]]


class RocksFollower:
    """A Reader of the store in the folder `path`, which another process may have open.

    Shows the moment of its opening, then that of the last `refresh`. StoreMissing if there is no
    store yet. Any thread may call any method. A process forked with one open cannot use it.
    """

    def __init__(self, path: str | os.PathLike[str], cache: SharedCache | None = None) -> None:
        self._path = os.path.abspath(path)
        self._cache = cache or SharedCache()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._secondary: Secondary | None = None
        self._retired: list[Secondary] = []
        self._openings = 0
        self._shadow = ""
        self._files: Files | None = None
        self._sizes: LogSizes = []
        self._closed = False
        _names(self._path)
        try:
            self._home = tempfile.mkdtemp(prefix="foldlog-follower-")
        except OSError as error:
            raise _no_room(tempfile.gettempdir(), error) from error
        self._cleanup = weakref.finalize(self, _remove, self._home, self._pid)
        try:
            self._follow()
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        self._check_open()
        with self._lock:
            return self._instance().get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan; a refresh meanwhile costs a new opening, so end what is not needed."""
        self._check_open()
        with self._lock:
            return self._instance().scan(prefix, reverse)

    def tally(self, each: Callable[[int], None]) -> dict[bytes, int]:
        """See RocksStore.tally."""
        self._check_open()
        with self._lock:
            return self._instance().tally(each)

    def refresh(self) -> None:
        """Show all that the primary had written when this was called, as of one moment.

        StoreError if that could not be had, and then nothing is shown until a refresh succeeds.
        """
        self._check_open()
        with self._lock:
            self._check_open()
            self._follow()

    def close(self) -> None:
        """Let go of everything and remove the temporary folder."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            try:
                self._drop()
                while self._retired:
                    self._retired.pop().close()
            finally:
                self._cleanup()

    def _follow(self) -> None:
        failure: StoreError | None = None
        for attempt in range(TRIES):
            time.sleep(PAUSE_S * attempt)
            try:
                if self._catch_up():
                    return
            except StoreMissing:
                raise
            except StoreError as error:
                # A file that has vanished looks like a broken one, and sometimes is.
                failure = error
        if failure is not None:
            raise failure
        what = f"its files changed during each of {TRIES} attempts to read them"
        raise StoreError(self._path, what, "try again")

    def _catch_up(self) -> bool:
        """One attempt; False, and nothing is open, if the primary worked on its files meanwhile."""
        good = False
        try:
            before = _files(self._path)
            names, sizes = before[1], _log_sizes(self._path, before[1])
            if self._secondary is not None and (before, sizes) == (self._files, self._sizes):
                good = True
                return good
            if before != self._files or (self._secondary and self._secondary.busy()):
                self._drop()
            if self._secondary is None:
                self._open(names)
            else:
                self._secondary.catch_up()
            self._files, self._sizes = before, sizes
            good = before == _files(self._path)
        finally:
            if not good:
                self._drop()
        return good

    def _open(self, names: Names) -> None:
        self._openings += 1
        self._shadow = os.path.join(self._home, str(self._openings))
        scratch = os.path.join(self._home, "messages")
        try:
            os.makedirs(scratch, exist_ok=True)
        except OSError as error:
            raise _no_room(self._home, error) from error
        _link(self._path, self._shadow, names)
        self._secondary = Secondary(self._path, self._shadow, scratch, self._cache)

    def _drop(self) -> None:
        """Show nothing from now on; close what no scan needs any more."""
        if self._secondary is not None:
            self._retired.append(self._secondary)
            self._secondary = None
        for secondary in [each for each in self._retired if not each.busy()]:
            self._retired.remove(secondary)
            secondary.close()
            shutil.rmtree(secondary.folder, ignore_errors=True)

    def _instance(self) -> Secondary:
        self._check_open()
        if self._secondary is None:
            raise StoreError(self._path, "the last refresh failed", "refresh again")
        return self._secondary

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise StoreClosed(
                self._path,
                f"followed by process {self._pid} and used in its fork {os.getpid()}",
                "open a follower in a process that is started, not forked",
            )
        if self._closed:
            raise StoreClosed(self._path, "the follower is closed", "open it again")


def _files(path: str) -> Files:
    """The primary's files, and how far the list of them that is in use has come."""
    identity, names = _identity(path), _names(path)
    try:
        current = Path(path, "CURRENT").read_bytes()
        size = os.stat(os.path.join(path, os.fsdecode(current.strip()))).st_size
    except (OSError, ValueError) as error:
        what = f"its CURRENT file leads nowhere ({error})"
        raise StoreError(path, what, "if this lasts, run: foldlog doctor") from error
    return identity, names, current, size


def _log_sizes(path: str, names: Names) -> LogSizes:
    """How far the primary has written his logs, which only grow: the same again is nothing new."""
    logs = sorted(name for name in names if name.endswith(".log"))
    try:
        return [(name, os.stat(os.path.join(path, name)).st_size) for name in logs]
    except OSError as error:
        raise StoreError(path, f"a file has vanished ({error})", "try again") from error


def _names(path: str) -> Names:
    """The primary's files that a second instance reads."""
    try:
        found = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        found = []
    except OSError as error:
        raise StoreError(path, f"cannot be read ({error})", "check the folder's rights") from error
    names = frozenset(
        name for name in found
        if name in ("CURRENT", "IDENTITY")
        or name.startswith("MANIFEST-")
        or name.endswith((".sst", ".log", ".blob"))
    )  # fmt: skip
    if "CURRENT" not in names:
        what = "there is no store here yet"
        raise StoreMissing(path, what, "it is made by the first process that opens the home")
    return names


def _identity(path: str) -> Identity:
    """What tells this database from another one that takes its place."""
    try:
        folder = os.stat(path)
        name = Path(path, "IDENTITY").read_bytes()
    except OSError:
        return 0, 0, b""
    return folder.st_dev, folder.st_ino, name


def _link(path: str, shadow: str, names: Names) -> None:
    """Make links to `names` in the new folder `shadow`."""
    try:
        os.mkdir(shadow)
        for name in names:
            os.symlink(os.path.join(path, name), os.path.join(shadow, name))
    except OSError as error:
        raise _no_room(shadow, error) from error


def _no_room(folder: str, error: OSError) -> StoreError:
    what = f"the temporary folder failed ({error})"
    return StoreError(folder, what, "make room there, or set TMPDIR to another place")


def _remove(home: str, pid: int) -> None:
    # A forked child ends like this too, and the folder is not its own.
    if os.getpid() == pid:
        shutil.rmtree(home, ignore_errors=True)
