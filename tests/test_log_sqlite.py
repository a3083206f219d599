"""What the embedded log does beyond the contract suite: files, processes, crashes, damage.

Invariants:
- Crashes are real: a child process, SIGKILL, and what is on disk after it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from foldlog.log import sqlite
from foldlog.log.base import (
    ZERO_HEAD,
    Entry,
    LogBusy,
    LogDamaged,
    LogError,
    LogExists,
    LogFull,
    LogMissing,
    LogReadOnly,
    LogTooNew,
)
from foldlog.log.fairlock import FairLock
from foldlog.log.sqlite import SqliteLog
from tests import processes
from tests.processes import line

ALL = 1 << 30
START = "import os, sys, time; from foldlog.log.base import *; from foldlog.log.sqlite import *\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of an empty log with two partitions."""
    path = tmp_path / "log.sqlite"
    sqlite.create(path, 2)
    return path


@pytest.fixture
def log(path: Path) -> Iterator[SqliteLog]:
    """The log in `path`, impatient."""
    with closing(SqliteLog(path, lambda: 7, patience_s=0.2)) as log:
        yield log


def child(code: str, *args: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A Python process that runs `code` with everything of the log imported."""
    return processes.child(START, code, *args)


def rows(path: Path, statement: str) -> list[Any]:
    """What SQLite itself answers, past this library."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(statement).fetchall()
        connection.commit()
        return found


def entry(number: int) -> Entry:
    """A record whose columns are made from `number`."""
    return Entry(b"run", b"%d" % number, number, number, number.to_bytes(32, "big"))


def writer_of(log: SqliteLog) -> sqlite3.Connection:
    """The connection that writes, opened if it is not yet."""
    with log._connections.write_lock:
        return log._connections.open_writer()


def reader_of(log: SqliteLog) -> sqlite3.Connection:
    """The connection that reads."""
    assert log._connections.reader is not None
    return log._connections.reader


def refused(path: Path) -> LogError:
    """The error that opening `path` ends with; its message names the file."""
    with pytest.raises(LogError) as refusal:
        SqliteLog(path, lambda: 7)
    assert str(path) in str(refusal.value)
    return refusal.value


def test_pragmas_are_really_set(log: SqliteLog) -> None:
    """Both connections use the write-ahead log and fsync every commit."""
    for connection in (reader_of(log), writer_of(log)):
        answers = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
        }
        full = 2
        assert answers == {
            "journal_mode": b"wal", "synchronous": full, "fullfsync": 1, "checkpoint_fullfsync": 1,
        }  # fmt: skip
        assert connection.isolation_level is None


def test_the_file_says_what_it_is(path: Path) -> None:
    """Application id, format version, identity and partitions stand in the file."""
    assert rows(path, "PRAGMA application_id") == [(sqlite.APPLICATION_ID,)]
    assert rows(path, "PRAGMA user_version") == [(sqlite.FORMAT,)]
    meta = dict(rows(path, "SELECT name, value FROM meta"))
    assert meta["partitions"] == "2"
    assert len(meta["identity"]) == 32
    assert path.read_bytes()[68:72] == b"flog"


def test_create_leaves_an_existing_log_alone(path: Path) -> None:
    """A second create raises LogExists and the first log keeps its identity."""
    before = path.read_bytes()
    with pytest.raises(LogExists):
        sqlite.create(path, 2)
    assert path.read_bytes() == before


def test_a_crash_during_create_leaves_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If create ends before the last step nothing opens as a log, and create works again."""
    path = tmp_path / "log.sqlite"

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            sqlite.create(path, 2)
    assert isinstance(refused(path), LogMissing)
    sqlite.create(path, 3)
    with closing(SqliteLog(path, lambda: 7)) as log:
        assert log.partitions == 3
    assert not (tmp_path / "log.sqlite.new").exists()


def test_of_processes_that_create_at_once_one_wins(tmp_path: Path) -> None:
    """Several processes create the same log: one succeeds, the others get LogExists."""
    code = """
        try:
            create(sys.argv[1], 2)
            print("made")
        except LogExists:
            print("exists")
        """
    path = tmp_path / "log.sqlite"
    with child(code, path) as a, child(code, path) as b, child(code, path) as c:
        assert sorted(line(process) for process in (a, b, c)) == ["exists", "exists", "made"]


def test_opening_makes_no_file(tmp_path: Path) -> None:
    """Opening what is not there raises LogMissing and leaves the folder empty."""
    error = refused(tmp_path / "log.sqlite")
    assert isinstance(error, LogMissing)
    assert "foldlog init" in error.remedy
    assert isinstance(refused(tmp_path / "no" / "log.sqlite"), LogMissing)
    assert list(tmp_path.iterdir()) == []


def test_a_newer_format_is_refused(path: Path) -> None:
    """A log of a later format raises LogTooNew with both numbers and is not touched."""
    rows(path, f"PRAGMA user_version = {sqlite.FORMAT + 1}")
    before = path.read_bytes()
    error = refused(path)
    assert isinstance(error, LogTooNew)
    assert str(sqlite.FORMAT + 1) in error.what
    assert str(sqlite.FORMAT) in error.what
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 10_000], ids=["empty", "short", "long"])
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file and files of something else raise LogDamaged and stay as they are."""
    path = tmp_path / "log.sqlite"
    path.write_bytes(content)
    assert isinstance(refused(path), LogDamaged)
    assert path.read_bytes() == content


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """An SQLite database without our application id raises LogDamaged."""
    path = tmp_path / "other.sqlite"
    rows(path, "CREATE TABLE t (x)")
    assert isinstance(refused(path), LogDamaged)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """Naming the home instead of the log's file in it is told as such."""
    assert "folder" in refused(tmp_path).what


def fill(path: Path) -> None:
    """Append a thousand records of a kilobyte to partition 0 and close."""
    with closing(SqliteLog(path, lambda: 7)) as log:
        log.append(
            0, ZERO_HEAD, [Entry(b"run", b"x" * 1_000, n, n, b"h" * 32) for n in range(1000)]
        )


def read_all(path: Path) -> int:
    """The number of records that reading partition 0 from end to end gives."""
    with closing(SqliteLog(path, lambda: 7)) as log:
        return len(log.events(0, 0, 10_000, ALL))


@pytest.mark.parametrize("share", [0.9, 0.5, 0.01])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    """A log cut short raises LogDamaged, at the latest when the lost rows are read."""
    fill(path)
    assert read_all(path) == 1_000
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(LogDamaged):
        read_all(path)


def test_broken_pages_are_noticed(path: Path) -> None:
    """Pages overwritten with rubbish raise LogDamaged when they are read."""
    fill(path)
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xa5" * 3 * 4096)
    with pytest.raises(LogDamaged):
        read_all(path)


@pytest.mark.parametrize("word", [b"CREATE TABLE meta", b"identity", b"partitions", b"events_0"])
def test_a_broken_character_is_noticed(path: Path, word: bytes) -> None:
    """A bit that makes a name or text of the file no text raises LogDamaged, and nothing else."""
    fill(path)
    data = bytearray(path.read_bytes())
    assert word in data
    data[data.index(word)] |= 0x80
    path.write_bytes(data)
    with pytest.raises(LogDamaged):
        read_all(path)


@pytest.mark.parametrize("change", ["value = 1", "key = 1.5", "sequence = 'x'", "head = 0"])
def test_a_column_of_another_type_is_noticed(path: Path, change: str) -> None:
    """A row whose column was changed by hand to another type raises LogDamaged on reading."""
    fill(path)
    rows(path, f'UPDATE events_0 SET {change} WHERE "offset" = 10')
    with pytest.raises(LogDamaged, match="row 10"):
        read_all(path)


def test_text_in_a_column_reads_as_its_bytes(path: Path) -> None:
    """Bytes changed by hand to text come back as bytes, for the hash to find that they differ."""
    fill(path)
    rows(path, "UPDATE events_0 SET value = 'text' WHERE \"offset\" = 10")
    with closing(SqliteLog(path, lambda: 7)) as log:
        assert log.events(0, 10, 1, ALL)[0].value == b"text"


def test_a_missing_table_is_noticed(path: Path) -> None:
    """A log without one of its tables raises LogDamaged, not an error of SQLite."""
    rows(path, "DROP TABLE events_1")
    with closing(SqliteLog(path, lambda: 7)) as log, pytest.raises(LogDamaged):
        log.end(1)


def test_a_full_disk_is_told_and_survived(log: SqliteLog) -> None:
    """A write that finds no room raises LogFull and writes nothing; with room it works again."""
    pages = writer_of(log).execute("PRAGMA page_count").fetchone()[0]
    writer_of(log).execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LogFull):
        log.propose(0, [(b"k", b"small"), (b"k", b"x" * 100_000)])
    with pytest.raises(LogFull):
        log.append(0, ZERO_HEAD, [Entry(b"k", b"x" * 100_000, 1, 1, b"h" * 32)])
    assert (log.end(0), log.proposals_end(0)) == (1, 1)
    writer_of(log).execute("PRAGMA max_page_count = 1000000")
    assert log.propose(0, [(b"k", b"x" * 100_000)]) == [1]


def test_a_log_that_cannot_be_written_can_be_read(log: SqliteLog) -> None:
    """A write to a read-only log raises LogReadOnly; reading goes on."""
    log.propose(0, [(b"k", b"v")])
    writer_of(log).execute("PRAGMA query_only = 1")
    with pytest.raises(LogReadOnly):
        log.propose(0, [(b"k", b"v")])
    assert len(log.proposals(0, 0, 9, 99)) == 1


def test_a_program_that_locks_the_file_is_waited_for_then_told(log: SqliteLog, path: Path) -> None:
    """While another program holds SQLite's write lock a write raises LogBusy; reads go on."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogBusy):
            log.propose(0, [(b"k", b"v")])
        assert log.proposals(0, 0, 9, 99) == []
        other.execute("ROLLBACK")
    assert log.propose(0, [(b"k", b"v")]) == [1]


HOLDER = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    def stop():
        print("inside", flush=True)
        time.sleep(60)
        return 7
    log._clock = stop
    log.propose(0, [(b"k", b"held")])
    """


def test_a_stopped_writer_is_named(log: SqliteLog, path: Path) -> None:
    """While a process is stopped inside its write others get LogBusy with its pid, and can read."""
    with child(HOLDER, path) as holder:
        assert line(holder) == "inside"
        holder.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(LogBusy, match=f"pid {holder.pid} "):
            log.propose(0, [(b"k", b"v")])
        assert time.monotonic() - started < 5
        assert log.proposals(0, 0, 9, 99) == []
        holder.kill()
        holder.wait()
    assert log.propose(0, [(b"k", b"v")]) == [1]


def test_a_wait_given_up_does_not_take_the_lock_later(tmp_path: Path) -> None:
    """Whoever gave up waiting stands in nobody's way once the lock is free."""
    name = str(tmp_path / "x")
    first, second, third = (FairLock(name, 0.1) for _ in range(3))
    assert first.acquire()
    assert not second.acquire()
    first.release()
    patient = FairLock(name, 10)
    assert patient.acquire()
    assert not third.acquire()
    patient.release()


PROPOSER = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    print("ready", flush=True)
    for turn in range(int(sys.argv[3])):
        print(*log.propose(0, [(b"k", b"%s-%d" % (sys.argv[2].encode(), turn))]), flush=True)
    log.close()
    """


def test_processes_propose_at_once_and_lose_nothing(log: SqliteLog, path: Path) -> None:
    """Proposals of two processes all arrive, each once, at the position that was returned."""
    turns = 200
    with child(PROPOSER, path, "a", turns) as a, child(PROPOSER, path, "b", turns) as b:
        taken = {
            int(position): f"{name}-{turn}".encode()
            for name, output in (("a", a.communicate()[0]), ("b", b.communicate()[0]))
            for turn, position in enumerate(output.split()[1:])
        }
    found = log.proposals(0, 0, 10_000, ALL)
    assert {row.position: row.value for row in found} == taken
    assert sorted(taken) == list(range(1, 2 * turns + 1))


BUSY = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    print("ready", flush=True)
    while True:
        log.propose(0, [(b"k", b"busy")])
    """


def test_a_busy_writer_does_not_starve_another(log: SqliteLog, path: Path) -> None:
    """While a process writes without pause another gets in after a few of its writes, each time.

    Counted in writes, not in time, so that a slow disk does no harm: with SQLite's own wait it is
    thousands of them.
    """
    with closing(SqliteLog(path, lambda: 7)) as patient, child(BUSY, path) as busy:
        assert line(busy) == "ready"
        overtaken = []
        for _ in range(100):
            before = log.proposals_end(0)
            (position,) = patient.propose(0, [(b"k", b"v")])
            overtaken.append(position - before)
        busy.kill()
    assert sum(overtaken) > 0, "the other process did not write at the same time"
    assert max(overtaken) < 200


APPENDER = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    head, number = ZERO_HEAD, 0
    while True:
        batch = [Entry(b"run", b"x" * 500, number + i, 0, (number + i).to_bytes(32, "big"))
                 for i in range(1, 51)]
        log.append(0, head, batch)
        number, head = number + 50, batch[-1].head
        print(number, flush=True)
    """


def test_a_killed_writer_loses_nothing_it_acknowledged(path: Path) -> None:
    """After SIGKILL in the midst of appends every acknowledged record is there, none twice, no
    batch in part, and the next append goes on from the head."""
    with child(APPENDER, path) as writer:
        for _ in range(20):
            line(writer)
        writer.kill()
        assert writer.stdout is not None
        acknowledged = [int(n) for n in writer.stdout.read().split()] or [1_000]
    with closing(SqliteLog(path, lambda: 7)) as log:
        found = log.events(0, 0, 1_000_000, ALL)
        assert len(found) >= acknowledged[-1] >= 1_000
        assert len(found) % 50 == 0
        assert [row.sequence for row in found] == list(range(1, len(found) + 1))
        log.append(0, found[-1].head, [entry(len(found) + 1)])


FORKED = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    log.propose(0, [(b"k", b"parent")])
    pid = os.fork()
    if pid == 0:
        for call in (lambda: log.propose(0, [(b"k", b"child")]), lambda: log.end(0)):
            try:
                call()
                print("child used it")
            except LogClosed as error:
                print("refused", "fork" in str(error))
        log.close()
        del log
        own = SqliteLog(sys.argv[1], lambda: 7)
        own.propose(1, [(b"k", b"child's own")])
        sys.exit(0)
    os.waitpid(pid, 0)
    log.propose(0, [(b"k", b"parent again")])
    log.close()
    print("parent closed")
    """


def test_a_fork_is_refused_and_disturbs_nothing(log: SqliteLog, path: Path) -> None:
    """A forked child cannot use its parent's log but can open its own; the parent goes on."""
    with child(FORKED, path) as process:
        output = process.communicate()[0]
        assert process.returncode == 0
    assert output.splitlines() == ["refused True", "refused True", "parent closed"]
    assert [row.value for row in log.proposals(0, 0, 9, 99)] == [b"parent", b"parent again"]
    assert [row.value for row in log.proposals(1, 0, 9, 99)] == [b"child's own"]


FORKED_INSIDE = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    def clock():
        pid = os.fork()
        if pid == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
            os._exit(0)
        return 7
    log._clock = clock
    log.propose(0, [(b"k", b"v")])
    print("written", flush=True)
    os.kill(os.getpid(), 9)
    """


def test_a_child_forked_inside_a_write_keeps_no_lock(log: SqliteLog, path: Path) -> None:
    """A child forked while its parent wrote holds up nobody, though it lives on."""
    with child(FORKED_INSIDE, path) as process:
        lines = {line(process), line(process)}
        assert "written" in lines
        (grandchild,) = lines - {"written"}
        assert log.propose(0, [(b"k", b"w")]) == [2]
        os.kill(int(grandchild), signal.SIGKILL)


def test_readers_see_only_what_is_committed(log: SqliteLog, path: Path) -> None:
    """A reader beside a write under way neither waits nor sees a part of it."""
    seen: list[int] = []

    def clock() -> int:
        seen.append(log.proposals_end(0))
        return 7

    with closing(SqliteLog(path, clock)) as writer:
        writer.propose(0, [(b"k", b"v")])
    assert seen == [1]
    assert log.proposals_end(0) == 2


def test_closing_moves_everything_into_one_file(path: Path) -> None:
    """After the last close the log is the one file, which may then be copied."""
    fill(path)
    assert not path.with_name("log.sqlite-wal").exists()
    copy = path.with_name("copy.sqlite")
    copy.write_bytes(path.read_bytes())
    assert read_all(copy) == 1_000
