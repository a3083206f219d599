"""The SQLite connections of the embedded log: how they are opened, kept apart, and their errors.

A reader is *quiet* where it can be: beside a process that has the log open it maps the shared
index read-only, so that reading changes no file, not even a time of modification.

Invariants:
- Within a process SQLite opens the -shm file once for all connections to a log, read-only if the
  first of them was quiet, and no writer works on that. So a writer is opened only while no reader
  has a read-only index, and none gets one until it is closed.
- No connection crosses a fork: SQLite's table of locks would, but the locks do not, so the child's
  own connections would hold none and its writes be lost with the write-ahead log. Where one had
  to be kept (a fork inside a write), the child cannot open that log at all.
- A reader is opened anew only between two reads, never in the middle of one.
- No `sqlite3.Error` or OSError leaves `translated` but as a LogError.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from urllib.parse import quote

from foldlog.log.base import (
    LogBusy,
    LogClosed,
    LogDamaged,
    LogError,
    LogFull,
    LogMissing,
    LogReadOnly,
    LogUnreachable,
)

WAL_BYTES_KEPT = 64 << 20
"""The write-ahead log is cut to this after a checkpoint, in case a long reader let it grow."""

QUIET_TRIES = 5
"""How often a quiet reader is opened anew before a normal one: whoever has the log open may just
be closing it, or have died in the middle of a commit."""

QUIET_PAUSE_S = 0.01
"""Between two of these tries."""

WAL_HEADER_BYTES = 32
BEGUN_PATIENCE_S = 1.0
"""How long a write-ahead log may have no more than its header: a writer syncs that first."""

FORK_PATIENCE_S = 1.0
"""How long a fork waits for reads and writes under way in other threads."""

ASK = "if this lasts, run: foldlog doctor"
RESTORE = "restore the file from a backup; what it still holds can be seen with: foldlog verify"

Answer = TypeVar("Answer")
Check = Callable[[sqlite3.Connection], None]
FileKey = tuple[int, int] | None


class Connections:
    """The reader of one log, and its writer from the first write on; each is opened when needed.

    `check` sees every connection once, before it is used for anything else.
    """

    def __init__(self, path: str, patience_s: float, check: Check) -> None:
        self._path = path
        self._patience_s = patience_s
        self._check = check
        # Two connections, each used by one thread at a time: who waits to write holds up no reader.
        self.read_lock = threading.Lock()
        self.write_lock = threading.Lock()
        self.reader: sqlite3.Connection | None = None
        self.writer: sqlite3.Connection | None = None
        self.quiet = False
        self._quiet_failures = 0
        self._readonly_index = False
        self._reader_checked = self._writer_checked = False
        self._reader_file: FileKey = None
        self._writer_file: FileKey = None
        with _opening:
            _all.add(self)

    def read(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """What `work`, which may be called again, reads. The caller holds `read_lock`."""
        while True:
            try:
                answer = work(self._open_reader())
                if self.quiet:
                    self._quiet_failures = 0
                return answer
            except sqlite3.OperationalError as error:
                if not self.quiet or not _quiet_is_over(error):
                    raise
            self._close_reader()
            self._quiet_failures += 1
            time.sleep(QUIET_PAUSE_S)

    def open_writer(self) -> sqlite3.Connection:
        """The writer. The caller holds `write_lock`, and not `read_lock`."""
        if self.writer is not None and self._writer_checked:
            return self.writer
        file = _file_key(self._path)
        while self.writer is None:
            with _opening:
                others = _readers_of_a_readonly_index(file)
            # All are held until the writer is open: one that came back sooner would keep the index
            # read-only. Always in one order, for two logs may get their writers at once.
            with ExitStack() as held:
                for other in sorted(others, key=id):
                    held.enter_context(other.read_lock)
                with _opening:
                    if _readers_of_a_readonly_index(file) <= others:
                        for other in others:
                            other._close_reader()
                        self._connect_writer(file)
        if not self._writer_checked:
            self._check(self.writer)
            self._writer_checked = True
        return self.writer

    def close(self) -> None:
        """Close both; they are opened again when needed. The caller holds both locks."""
        self._close_reader()
        if self.writer is not None:
            writer, self.writer = self.writer, None
            with _opening:
                _writers[self._writer_file] -= 1
            writer.close()

    def forget(self) -> None:
        """`close` was called for good."""
        with _opening:
            _all.discard(self)

    def _open_reader(self) -> sqlite3.Connection:
        if self.quiet and _stays_begun(self._path):
            self._close_reader()
        if self.reader is None:
            with _opening:
                file = _file_key(self._path)
                _refuse_inherited(self._path, file)
                reader = None
                if self._quiet_failures < QUIET_TRIES and not _writers[file]:
                    reader = _connect_quietly(self._path, self._patience_s)
                self.quiet = reader is not None
                self._readonly_index = self.quiet or bool(_readers_of_a_readonly_index(file))
                self._reader_file = file
                self.reader = reader or _connect(self._path, self._patience_s)
                self._reader_checked = False
        if not self._reader_checked:
            self._check(self.reader)
            self._reader_checked = True
        return self.reader

    def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        self.quiet = self._readonly_index = False
        if reader is not None:
            reader.close()

    def _connect_writer(self, file: FileKey) -> None:
        _refuse_inherited(self._path, file)
        self.writer = _connect(self._path, self._patience_s)
        self._writer_checked = False
        self._writer_file = file
        _writers[file] += 1


_opening = threading.Lock()
_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_writers: Counter[FileKey] = Counter()
_inherited: set[FileKey] = set()


def _readers_of_a_readonly_index(file: FileKey) -> set[Connections]:
    return {each for each in _all if each._readonly_index and each._reader_file == file}


def _file_key(path: str) -> FileKey:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _refuse_inherited(path: str, file: FileKey) -> None:
    if file is not None and file in _inherited:
        what = "this process was forked from one that was just using the log"
        raise LogClosed(path, what, "open it in a process of its own, or fork at another moment")


def _connect(path: str, patience_s: float) -> sqlite3.Connection:
    # mode=rw: sqlite3.connect would make an empty database where there is none.
    connection = _connected(path, "mode=rw", patience_s)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA checkpoint_fullfsync = 1")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        # Reads, and so opens the shared index: from now on its mode is settled.
        connection.execute("PRAGMA data_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_quietly(path: str, patience_s: float) -> sqlite3.Connection | None:
    """A connection that changes no file; None if there is nobody's index to read along in."""
    if not (os.path.exists(path + "-wal") and os.path.exists(path + "-shm")):
        return None
    if _stays_begun(path):
        return None
    connection = None
    try:
        connection = _connected(path, "mode=ro&readonly_shm=1", patience_s)
        connection.execute("PRAGMA data_version").fetchone()
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.OperationalError) and _quiet_is_over(error):
            return None
        raise
    return connection


def _connected(path: str, how: str, patience_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?{how}",
        uri=True,
        timeout=patience_s,
        isolation_level=None,
        check_same_thread=False,
    )
    # TEXT in a column of ours is damage; as bytes it is compared and reported, not decoded.
    connection.text_factory = bytes
    return connection


def _code(error: sqlite3.Error) -> int:
    # The low byte is the primary code; the rest says which call of the file system failed.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF


def _stays_begun(path: str) -> bool:
    """Whether the write-ahead log has a header and no frame, and gets none.

    A writer syncs the header before the first frame; who is killed in between leaves this behind.
    Where nobody has the index open, SQLite waits 10 s for another header, and gives up.
    """
    end = time.monotonic() + BEGUN_PATIENCE_S
    while _wal_bytes(path) == WAL_HEADER_BYTES:
        if time.monotonic() >= end:
            return True
        time.sleep(QUIET_PAUSE_S)
    return False


def _wal_bytes(path: str) -> int:
    try:
        return os.stat(path + "-wal").st_size
    except OSError:
        return 0


def _quiet_is_over(error: sqlite3.OperationalError) -> bool:
    # READONLY: the index wants what only a writer can do. CANTOPEN: its files are gone. PROTOCOL:
    # it waits for what nobody will do.
    over = sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL
    return _code(error) in over


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn the errors of SQLite and of the file system into LogErrors about `path`."""
    try:
        yield
    except sqlite3.Error as error:
        raise _from_sqlite(path, error) from error
    except OSError as error:
        raise _from_os(path, error) from error
    except UnicodeDecodeError as error:
        # SQLite keeps no checksum of its pages: a changed byte of a text comes out as it is.
        raise LogDamaged(path, f"holds text that does not read ({error})", ASK) from error


def _from_sqlite(path: str, error: sqlite3.Error) -> LogError:
    code = _code(error)
    if code == sqlite3.SQLITE_CANTOPEN:
        return _cannot_open(path)
    kind, what, remedy = _SQLITE_ERRORS.get(code, (LogError, "SQLite failed", ASK))
    return kind(path, f"{what} ({error})", remedy)


def _cannot_open(path: str) -> LogError:
    if os.path.isdir(path):
        return LogDamaged(path, "is a folder, not a log", "name the log's file in it")
    if not os.path.exists(path):
        return LogMissing(path, "there is no log", "make one with: foldlog init")
    return LogReadOnly(path, "cannot be opened for writing", "check the rights of file and folder")


_BUSY = (LogBusy, "another program keeps the log locked", "find it with: foldlog doctor")
_BROKEN = (LogDamaged, "the file is broken", RESTORE)
_SQLITE_ERRORS: dict[int, tuple[type[LogError], str, str]] = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_PROTOCOL: _BUSY,
    sqlite3.SQLITE_FULL: (LogFull, "the disk is full", "make room; writing then goes on"),
    sqlite3.SQLITE_READONLY: (
        LogReadOnly,
        "the file cannot be written",
        "check the rights of file and folder, and how the disk is mounted",
    ),
    sqlite3.SQLITE_PERM: (LogReadOnly, "not permitted", "check the rights of file and folder"),
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: (LogDamaged, "not a foldlog log", "name the folder that holds one"),
    sqlite3.SQLITE_IOERR: (LogError, "reading or writing failed", ASK),
    sqlite3.SQLITE_ERROR: (LogDamaged, "a table is missing or has another shape", RESTORE),
}


def _from_os(path: str, error: OSError) -> LogError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return LogMissing(path, "there is no such folder", "make one with: foldlog init")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LogReadOnly(path, "cannot be written", "check the rights of file and folder")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LogFull(path, "the disk is full", "make room; writing then goes on")
    return LogUnreachable(path, f"the file system failed ({error})", ASK)


_forking = threading.local()


def _before_fork() -> None:
    """Close what is open, and keep it so until the fork is done."""
    held: list[threading.Lock] = []
    for each in list(_all):
        taken = [
            lock for lock in (each.write_lock, each.read_lock)
            if lock.acquire(timeout=FORK_PATIENCE_S)
        ]  # fmt: skip
        held += taken
        # A thread that forks inside its own write waits in vain, and its connections stay open.
        if len(taken) == 2:
            try:
                each.close()
            except sqlite3.Error:
                # The next use of the log opens it anew, and finds what is wrong, if it still is.
                continue
    _forking.held = held


def _after_fork_in_parent() -> None:
    for lock in _forking.held:
        lock.release()
    _forking.held = []


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.Lock()
    _forking.held = []
    for each in list(_all):
        for connection, file in (
            (each.reader, each._reader_file), (each.writer, each._writer_file),
        ):  # fmt: skip
            if connection is not None:
                # Closing it works on locks the child does not have. One reference too many keeps
                # it open until the child is gone.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
                _inherited.add(file)
    _all.clear()
    _writers.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
