"""The embedded log: one SQLite file that many processes append to.

The bytes are laid out as FORMAT.md says under "Embedded log (SQLite)".

Invariants:
- `propose` and `append` return after an fsync of the write-ahead log, never before it.
- One call is one transaction. A writer holds the fair lock from before BEGIN IMMEDIATE until after
  COMMIT, so SQLite's own wait is reached only by programs that are not foldlog.
- Positions and offsets start at 1 and are dense per partition.
- Reading is one SELECT, which SQLite runs as a deferred transaction: it blocks no writer.
- Reading beside a process that has the log open changes no file; the writer is opened with the
  first write.
- No `sqlite3.Error` leaves this module, and no log is made except by `create`.
- A process forked with the log open cannot use it, and does not disturb its parent's.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from foldlog.log.base import (
    MAX_PARTITIONS,
    ZERO_HEAD,
    Clock,
    Entry,
    HeadMoved,
    LogBusy,
    LogClosed,
    LogDamaged,
    LogExists,
    LogTooNew,
    LogUnreachable,
    PositionMoved,
    Proposed,
    Stored,
    bounded,
    check_partition,
    check_read,
)
from foldlog.log.connections import RESTORE, Connections, translated
from foldlog.log.fairlock import FairLock

APPLICATION_ID = 0x666C6F67
""" "flog" in ASCII: what `file` and SQLite's header show for a log of ours."""

FORMAT = 1
"""The layout of tables this build reads and writes; kept in the header as `user_version`."""

PATIENCE_S = 5.0
"""How long a writer waits for others: a turn's append takes milliseconds, so this means stuck."""

_META = "CREATE TABLE meta (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)"
_PROPOSALS = """CREATE TABLE proposals_{} (
    position INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    appended_at INTEGER NOT NULL)"""
_EVENTS = """CREATE TABLE events_{} (
    "offset" INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    sequence INTEGER NOT NULL,
    log_time INTEGER NOT NULL,
    head BLOB NOT NULL)"""

Answer = TypeVar("Answer")


def create(path: str | os.PathLike[str], partitions: int) -> None:
    """Make an empty log in the file `path`, whose folder must exist. LogExists if it is there.

    All or nothing: the file appears under its name only once it is complete and on disk, so a
    crash leaves at most a `path` + ".new" that the next call removes.
    """
    assert 1 <= partitions <= MAX_PARTITIONS, f"{partitions} partitions"
    final = os.fspath(path)
    lock = FairLock(final, PATIENCE_S)
    with translated(final):
        if not lock.acquire():
            raise _busy(final, lock)
        try:
            if os.path.lexists(final):
                raise LogExists(final, "there is a log already", "open it, or choose another home")
            _build(final + ".new", partitions)
            os.rename(final + ".new", final)
            _sync(os.path.dirname(final) or ".")
        finally:
            lock.release()


def _build(path: str, partitions: int) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute(_META)
        meta = {"identity": os.urandom(16).hex(), "partitions": str(partitions)}
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        for partition in range(partitions):
            connection.execute(_PROPOSALS.format(partition))
            connection.execute(_EVENTS.format(partition))
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
    _sync(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SqliteLog:
    """The log in the file `path`, made by `create`. Threads may share it; forks may not.

    Opening: LogMissing, LogDamaged (not a log of ours, or broken), LogTooNew, LogUnreachable.
    Writers wait up to `patience_s` for each other, then LogBusy. Nothing else may open the file
    itself inside this process (reading it with `open` would drop SQLite's locks on it).
    """

    def __init__(
        self, path: str | os.PathLike[str], clock: Clock, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._path = os.fspath(path)
        self._clock = clock
        self._patience_s = patience_s
        self._pid = os.getpid()
        self._closed = False
        self._turnstile = FairLock(self._path, patience_s)
        self._writing_thread = 0
        self._meta: dict[str, str] | None = None
        self._connections = Connections(self._path, patience_s, self._check_meta)
        try:
            with self._connections.read_lock, translated(self._path):
                self._meta = self._connections.read(self._read_meta)
        except BaseException:
            self.close()
            raise
        self.identity = self._meta["identity"]
        self.partitions = int(self._meta["partitions"])
        self.conditional = True
        _open_logs.add(self)

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See Log.propose; all of one call get the same `appended_at`."""
        check_partition(partition, self.partitions)

        def write(connection: sqlite3.Connection) -> list[int]:
            first = _proposals_end(connection, partition)
            taken = self._take(connection, partition, first, entries)
            return [row.position for row in taken]

        return self._write(write)

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """See Log.append; the head is compared inside the transaction that writes."""
        check_partition(partition, self.partitions)

        def write(connection: sqlite3.Connection) -> None:
            offset = self._check_head(connection, partition, head)
            _insert_events(connection, partition, offset, entries)

        self._write(write)

    def exchange(
        self,
        partition: int,
        position: int,
        head: bytes,
        proposals: Sequence[tuple[bytes, bytes]],
        decide: Callable[[list[Proposed]], list[Entry]],
    ) -> list[Proposed]:
        """See ExchangeLog.exchange; `decide` runs inside the transaction, with others waiting."""
        check_partition(partition, self.partitions)

        def write(connection: sqlite3.Connection) -> list[Proposed]:
            found = _proposals_end(connection, partition)
            if found != position:
                raise PositionMoved(self._path, partition, position, found)
            offset = self._check_head(connection, partition, head)
            taken = self._take(connection, partition, position, proposals)
            try:
                entries = decide(list(taken))
            except (sqlite3.Error, OSError) as error:
                # An error of the caller's, and not about this log.
                raise _Passing(error) from error
            _insert_events(connection, partition, offset, entries)
            return taken

        try:
            return self._write(write)
        except _Passing as passing:
            error = passing.error
        raise error

    def proposals(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Proposed]:
        """See Log.proposals."""
        check_read(partition, self.partitions, limit)
        query = f"SELECT * FROM proposals_{partition} WHERE position >= ? ORDER BY position LIMIT ?"

        def read(connection: sqlite3.Connection) -> list[Proposed]:
            rows = connection.execute(query, (start, limit))
            return list(bounded((Proposed(*self._typed(row)) for row in rows), limit, max_bytes))

        return self._read(read)

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """See Log.events."""
        check_read(partition, self.partitions, limit)
        query = f'SELECT * FROM events_{partition} WHERE "offset" >= ? ORDER BY "offset" LIMIT ?'

        def read(connection: sqlite3.Connection) -> list[Stored]:
            rows = connection.execute(query, (start, limit))
            return list(bounded((Stored(*self._typed(row)) for row in rows), limit, max_bytes))

        return self._read(read)

    def end(self, partition: int) -> int:
        """See Log.end."""
        check_partition(partition, self.partitions)
        return self._read(lambda c: _end(c, f'SELECT max("offset") FROM events_{partition}'))

    def proposals_end(self, partition: int) -> int:
        """See Log.proposals_end."""
        check_partition(partition, self.partitions)
        return self._read(lambda c: _proposals_end(c, partition))

    def close(self) -> None:
        """Let go of the file; the last one to close it moves the write-ahead log into it.

        Unless that one only read and so changes no file: then the next to write does it.
        """
        if self._pid != os.getpid():
            return
        connections = self._connections
        with connections.write_lock, connections.read_lock:
            if self._closed:
                return
            self._closed = True
            _open_logs.discard(self)
            connections.forget()
            # No lock is needed: SQLite moves nothing while any other connection is open.
            with translated(self._path):
                connections.close()

    def _read(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        self._check_open()
        with self._connections.read_lock, translated(self._path):
            self._check_open()
            return self._connections.read(work)

    def _write(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        self._check_open()
        me = threading.get_ident()
        assert self._writing_thread != me, "`decide` may read the log, not write to it"
        if not self._connections.write_lock.acquire(timeout=self._patience_s):
            raise _busy(self._path, self._turnstile)
        try:
            self._writing_thread = me
            self._check_open()
            with translated(self._path):
                if not self._turnstile.acquire():
                    raise _busy(self._path, self._turnstile)
                try:
                    return _transaction(self._connections.open_writer(), work)
                finally:
                    self._turnstile.release()
        finally:
            self._writing_thread = 0
            self._connections.write_lock.release()

    def _take(
        self,
        connection: sqlite3.Connection,
        partition: int,
        first: int,
        proposals: Sequence[tuple[bytes, bytes]],
    ) -> list[Proposed]:
        now = self._clock()
        taken = [Proposed(first + i, key, value, now) for i, (key, value) in enumerate(proposals)]
        rows = [(row.position, row.key, row.value, row.appended_at) for row in taken]
        connection.executemany(f"INSERT INTO proposals_{partition} VALUES (?, ?, ?, ?)", rows)
        return taken

    def _check_head(self, connection: sqlite3.Connection, partition: int, head: bytes) -> int:
        """HeadMoved unless the last record has this head; its offset, 0 if there is none."""
        last = connection.execute(
            f'SELECT "offset", head FROM events_{partition} ORDER BY "offset" DESC LIMIT 1'
        ).fetchone()
        offset, found = last or (0, ZERO_HEAD)
        if found != head:
            raise HeadMoved(self._path, partition, head, found)
        return int(offset)

    def _read_meta(self, connection: sqlite3.Connection) -> dict[str, str]:
        return _checked_meta(connection, self._path)

    def _check_meta(self, connection: sqlite3.Connection) -> None:
        # A connection is opened by name, which may stand for another file since the last time.
        if self._meta is not None and self._meta != self._read_meta(connection):
            what = "another log has taken the place of the one that was opened"
            raise LogDamaged(self._path, what, "open it again")

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise LogClosed(
                self._path,
                f"opened by process {self._pid} and used in its fork {os.getpid()}",
                "open the log after the fork, in the process that uses it",
            )
        if self._closed:
            raise LogClosed(self._path, "the log is closed", "open it again")

    def _typed(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        # SQLite stores any type in any column, so a row changed by hand may hold anything.
        for value, kind in zip(row, _KINDS, strict=False):
            if type(value) is not kind:
                raise LogDamaged(
                    self._path, f"row {row[0]} holds a {type(value).__name__}", RESTORE
                )
        return row


class _Passing(Exception):
    """Carries an error of `decide` past the translation of our own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


# position, key, value, appended_at | offset, key, value, sequence, log_time, head
_KINDS = (int, bytes, bytes, int, int, bytes)


def _transaction(
    connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], Answer]
) -> Answer:
    connection.execute("BEGIN IMMEDIATE")
    try:
        answer = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        # After some errors (disk full, I/O) SQLite has rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return answer


def _insert_events(
    connection: sqlite3.Connection, partition: int, offset: int, entries: Sequence[Entry]
) -> None:
    rows = [
        (offset + i, e.key, e.value, e.sequence, e.log_time, e.head)
        for i, e in enumerate(entries, start=1)
    ]
    connection.executemany(f"INSERT INTO events_{partition} VALUES (?, ?, ?, ?, ?, ?)", rows)


def _proposals_end(connection: sqlite3.Connection, partition: int) -> int:
    return _end(connection, f"SELECT max(position) FROM proposals_{partition}")


def _end(connection: sqlite3.Connection, select_max: str) -> int:
    last: int | None = connection.execute(select_max).fetchone()[0]
    return 1 if last is None else last + 1


def _checked_meta(connection: sqlite3.Connection, path: str) -> dict[str, str]:
    def header(pragma: str) -> Any:
        return connection.execute(f"PRAGMA {pragma}").fetchone()[0]

    if header("application_id") != APPLICATION_ID:
        raise LogDamaged(path, "not a foldlog log", "name the folder that holds one")
    found = header("user_version")
    if found > FORMAT:
        what = f"written in format {found}, this build knows formats up to {FORMAT}"
        raise LogTooNew(path, what, "use a newer foldlog")
    if header("journal_mode") != b"wal" and header("journal_mode = WAL") != b"wal":
        what = "this file system gives no shared memory for the write-ahead log"
        raise LogUnreachable(path, what, "keep the home on a local disk")
    rows = connection.execute("SELECT name, value FROM meta").fetchall()
    meta = {name.decode(): value.decode() for name, value in rows}
    if not meta.get("identity") or not meta.get("partitions", "").isdecimal():
        raise LogDamaged(path, "the table `meta` is incomplete", RESTORE)
    return meta


def _busy(path: str, lock: FairLock) -> LogBusy:
    what = f"{lock.holder()} has kept the log to itself for too long"
    return LogBusy(path, what, "let that process go on, or end it; nothing was written")


_open_logs: weakref.WeakSet[SqliteLog] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for log in list(_open_logs):
        log._turnstile.forget()
    _open_logs.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
