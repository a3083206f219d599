"""Reading the embedded log beside a process that has it open: no file changes, no answer is wrong.

Invariants:
- The holder and the reader are real processes. The test's own process never has the log open while
  it reads the files: opening a file of it a second time would drop SQLite's locks.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from foldlog.log import sqlite
from foldlog.log.base import LogDamaged, LogReadOnly
from foldlog.log.sqlite import SqliteLog
from tests import needs
from tests.processes import child, files, line, tell

ALL = 1 << 30
START = "import os, sys, time; from foldlog.log.base import *; from foldlog.log.sqlite import *"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of an empty log with two partitions, in a folder of its own."""
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "log.sqlite"
    sqlite.create(path, 2)
    return path


HOLDER = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    head, number = ZERO_HEAD, 0
    def writer():
        with log._connections.write_lock:
            return log._connections.open_writer()
    print("open", flush=True)
    for order in sys.stdin:
        name, _, count = order.strip().partition(" ")
        for _ in range(int(count or 0)):
            number += 1
            log.propose(0, [(b"k", b"%d" % number)])
            record = Entry(b"k", b"%d" % number, number, 0, number.to_bytes(32, "big"))
            log.append(0, head, [record])
            head = record.head
        if name in ("PASSIVE", "FULL", "RESTART", "TRUNCATE"):
            print(writer().execute(f"PRAGMA wal_checkpoint({name})").fetchone()[0], flush=True)
        elif name == "close":
            log.close()
            print("closed", flush=True)
        else:
            print(number, flush=True)
    """

READER = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    rows = log.proposals(0, 0, 10**6, 1 << 30), log.events(0, 0, 10**6, 1 << 30)
    ends = log.proposals_end(0), log.end(0), log.proposals_end(1)
    quiet = log._connections.quiet
    assert [int(row.value) for row in rows[0]] == list(range(1, ends[0]))
    assert [row.sequence for row in rows[1]] == list(range(1, ends[1]))
    log.close()
    print(len(rows[0]), len(rows[1]), quiet, flush=True)
    """


def read_elsewhere(path: Path) -> str:
    """What a process that reads everything and closes says: proposals, records, quiet or not."""
    with child(START, READER, path) as process:
        said = line(process)
        assert process.wait(30) == 0
    return said


def test_reading_beside_a_holder_changes_no_file(path: Path) -> None:
    """Whatever the holder did last (opened, wrote, moved the write-ahead log into the file, began
    it anew), another process that reads everything changes neither bytes nor times."""
    with child(START, HOLDER, path) as holder:
        assert line(holder) == "open"
        written = 0
        for order in ("", "write 3", "PASSIVE", "write 1", "RESTART", "write 2", "TRUNCATE",
                      "write 1", "write 700", "FULL"):  # fmt: skip
            tell(holder, order)
            written += int(order.partition("write ")[2] or 0)
            before = files(path.parent)
            for _ in range(2):
                assert read_elsewhere(path) == f"{written} {written} True", order
            assert files(path.parent) == before, order


def test_reading_beside_a_stopped_holder_changes_no_file(path: Path) -> None:
    """A holder that is stopped is read beside as well."""
    with child(START, HOLDER, path) as holder:
        line(holder)
        tell(holder, "write 3")
        holder.send_signal(signal.SIGSTOP)
        before = files(path.parent)
        assert read_elsewhere(path) == "3 3 True"
        assert files(path.parent) == before


def test_a_log_that_nobody_has_open_is_read(path: Path) -> None:
    """Without a holder the log opens and reads too, and afterwards is one file as before."""
    with child(START, HOLDER, path) as holder:
        line(holder)
        tell(holder, "write 3")
        tell(holder, "close")
    before = files(path.parent)["log.sqlite"]
    assert read_elsewhere(path) == "3 3 False"
    assert files(path.parent)["log.sqlite"] == before
    assert not path.with_name("log.sqlite-wal").exists()


def test_what_a_killed_holder_left_is_read(path: Path) -> None:
    """What a holder wrote before SIGKILL is read from its files, with or without its index."""
    with child(START, HOLDER, path) as holder:
        line(holder)
        tell(holder, "write 5")
        holder.kill()
        holder.wait()
    before = files(path.parent)
    assert read_elsewhere(path) == "5 5 True"
    assert files(path.parent) == before
    path.with_name("log.sqlite-shm").unlink()
    assert read_elsewhere(path) == "5 5 False"


def test_a_reader_sees_through_the_holders_end_and_return(path: Path) -> None:
    """A reader that stays open reads on while holders close, are killed and come again."""
    code = """
        log = SqliteLog(sys.argv[1], lambda: 7)
        print("open", flush=True)
        for order in sys.stdin:
            print(len(log.proposals(0, 0, 10**6, 1 << 30)), flush=True)
        """
    with child(START, HOLDER, path) as first, child(START, code, path) as reader:
        line(first)
        assert line(reader) == "open"
        tell(first, "write 2")
        assert tell(reader, "") == "2"
        tell(first, "close")
        assert tell(reader, "") == "2"
        again = HOLDER.replace(
            "head, number = ZERO_HEAD, 0",
            "head, number = log.events(0, 0, 10**6, 1 << 30)[-1].head, log.end(0) - 1",
        )
        for number in range(3):
            with child(START, again, path) as next_holder:
                line(next_holder)
                tell(next_holder, "write 1")
                assert tell(reader, "") == str(3 + 2 * number)
                tell(next_holder, "TRUNCATE")
                tell(next_holder, "write 1")
                assert tell(reader, "") == str(4 + 2 * number)
                next_holder.kill()
                next_holder.wait()
                assert tell(reader, "") == str(4 + 2 * number)


def test_a_reader_may_begin_to_write(path: Path) -> None:
    """A process that only read beside a holder writes when it has to, and reads its own writes,
    through every object that it has open on the log."""
    code = """
        logs = [SqliteLog(sys.argv[1], lambda: 7) for _ in range(3)]
        print([log._connections.quiet for log in logs], flush=True)
        logs[0].propose(1, [(b"k", b"1")])
        logs[2].propose(1, [(b"k", b"2")])
        print([len(log.proposals(1, 0, 9, 99)) for log in logs], flush=True)
        print([log._connections.quiet for log in logs], flush=True)
        for log in logs:
            log.close()
        print(SqliteLog(sys.argv[1], lambda: 7)._connections.quiet, flush=True)
        """
    with child(START, HOLDER, path) as holder:
        line(holder)
        tell(holder, "write 1")
        with child(START, code, path) as process:
            assert line(process) == "[True, True, True]"
            assert line(process) == "[2, 2, 2]"
            assert line(process) == "[False, False, False]"
            assert line(process) == "True"


def test_threads_that_read_while_one_begins_to_write(path: Path) -> None:
    """Threads that read through several objects go on while another opens the writer."""
    code = """
        import threading
        logs = [SqliteLog(sys.argv[1], lambda: 7) for _ in range(4)]
        ended, problems = threading.Event(), []
        def read(log):
            last = 0
            try:
                while not ended.is_set():
                    found = len(log.proposals(1, 0, 10**6, 1 << 30))
                    assert found >= last
                    last = found
            except BaseException as error:
                problems.append(repr(error))
        threads = [threading.Thread(target=read, args=(log,)) for log in logs]
        for thread in threads:
            thread.start()
        for number in range(20):
            with contextlib.closing(SqliteLog(sys.argv[1], lambda: 7)) as writer:
                writer.propose(1, [(b"k", b"v")])
        ended.set()
        for thread in threads:
            thread.join()
        print(problems, len(logs[0].proposals(1, 0, 10**6, 1 << 30)), flush=True)
        """
    with child(START, HOLDER, path) as holder:
        line(holder)
        with child(START + "; import contextlib", code, path) as process:
            assert line(process) == "[] 20"


WRITER = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    head = ZERO_HEAD
    modes = ("PASSIVE", "FULL", "RESTART", "TRUNCATE")
    for number in range(1, 10**9):
        record = Entry(b"k", b"%d" % number, number, 0, number.to_bytes(32, "big"))
        log.exchange(0, number, head, [(b"k", os.urandom(2_000))], lambda rows: [record])
        head = record.head
        if number % 5 == 0:
            print(number, flush=True)
        if number % 7 == 0:
            try:
                log._connections.writer.execute(f"PRAGMA wal_checkpoint({modes[number % 4]})")
            except sqlite3.Error:
                pass
    """

CHECKER = """
    import sqlite3
    deadline = time.monotonic() + float(sys.argv[2])
    log = SqliteLog(sys.argv[1], lambda: 7)
    last = turns = openings = 0
    while time.monotonic() < deadline:
        end = log.end(0)
        records = log.events(0, max(1, end - 50), 10**6, 1 << 30)
        proposals = log.proposals_end(0)
        assert end >= last, (end, last)
        assert [int(r.value) for r in records] == [r.offset for r in records]
        assert [r.head for r in records] == [r.offset.to_bytes(32, "big") for r in records]
        assert not records or records[-1].offset >= end - 1
        assert proposals >= end
        last, turns = end, turns + 1
        openings += not log._connections.quiet
        if turns % 50 == 0:
            log.close()
            log = SqliteLog(sys.argv[1], lambda: 7)
    print(turns, openings, last, flush=True)
    """


@pytest.mark.parametrize("kill", [False, True], ids=["writing", "killed and started again"])
def test_a_write_ahead_log_begun_anew_never_misleads(path: Path, kill: bool) -> None:
    """Beside a writer that begins its write-ahead log anew all the time (and is killed over and
    over), readers see whole, growing histories and no error for seconds."""
    again = WRITER.replace("head = ZERO_HEAD", "head = (log.end(0) - 1).to_bytes(32, 'big')")
    again = again.replace("range(1,", "range(log.end(0),")
    with child(START + "; import sqlite3", again, path) as writer:
        assert int(line(writer)) > 0
        with child(START, CHECKER, path, 4) as one, child(START, CHECKER, path, 4) as other:
            ended = time.monotonic() + 3.5
            while kill and time.monotonic() < ended:
                time.sleep(0.1)
                writer.kill()
                writer.wait()
                with child(START + "; import sqlite3", again, path) as short:
                    line(short)
                    time.sleep(0.1)
            for reader in (one, other):
                turns, loud, last = map(int, line(reader).split())
                assert turns > 100
                assert last > 10
                assert loud <= turns * (0.9 if kill else 0)


@pytest.mark.parametrize("early", [False, True], ids=["opened after", "opened before"])
def test_a_write_ahead_log_without_a_frame_is_read(path: Path, early: bool) -> None:
    """Where a writer was killed between the header of a new write-ahead log and its first frame,
    and nobody else is there, a process reads what is in the log, at once."""
    code = """
        log = SqliteLog(sys.argv[1], lambda: 7)
        print(log.end(0), log._connections.quiet, flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        rows = log.events(0, 1, 9, 1 << 30)
        print(len(rows), log._connections.quiet, time.monotonic() - began < 5, flush=True)
        """
    wal, index = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    with child(START, HOLDER, path) as holder:
        line(holder)
        tell(holder, "write 3")
        header = wal.read_bytes()[:32]
        holder.kill()
        holder.wait()
    with ExitStack() as stack:
        reader = stack.enter_context(child(START, code, path)) if early else None
        if reader is not None:
            assert line(reader) == "4 True"
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            # The index goes with whoever is the last to close; who is killed leaves it behind.
            os.link(index, path.with_name("kept"))
        os.replace(path.with_name("kept"), index)
        wal.write_bytes(header)
        if reader is None:
            reader = stack.enter_context(child(START, code, path))
            assert line(reader) == "4 False"
        assert tell(reader, "") == "3 False True"


def test_a_log_without_rights_to_write_is_read_beside_a_holder() -> None:
    """A process that may not write to the files reads beside a holder; writing is LogReadOnly."""
    code = """
        os.setgid(65534); os.setuid(65534)
        log = SqliteLog(sys.argv[1], lambda: 7)
        print(len(log.proposals(0, 0, 9, 99)), flush=True)
        try:
            log.propose(0, [(b"k", b"v")])
        except LogReadOnly as error:
            print(type(error).__name__, flush=True)
        """
    if os.geteuid() != 0:
        needs.cannot("only root may become another user, so no reader of another user was tested")
    # Not below pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory(prefix="foldlog-test-") as folder:
        home = Path(folder)
        if any(not each.stat().st_mode & 0o001 for each in home.parents):
            needs.cannot("others may not enter the temporary folder: set TMPDIR to one they may")
        home.chmod(0o755)
        path = home / "log.sqlite"
        sqlite.create(path, 2)
        with child(START, HOLDER, path) as holder:
            line(holder)
            tell(holder, "write 3")
            for file in home.iterdir():
                file.chmod(0o644)
            before = files(home)
            with child(START, code, path) as process:
                assert line(process) == "3"
                assert line(process) == LogReadOnly.__name__
            assert files(home) == before


def test_another_log_in_its_place_is_noticed(path: Path, tmp_path: Path) -> None:
    """If the file was replaced by another log, the connection opened late raises LogDamaged."""
    with closing(SqliteLog(path, lambda: 7)) as log:
        assert log.proposals_end(0) == 1
        sqlite.create(tmp_path / "other.sqlite", 2)
        os.replace(tmp_path / "other.sqlite", path)
        with pytest.raises(LogDamaged, match="another log"):
            log.propose(0, [(b"k", b"v")])


@pytest.fixture
def forked(path: Path) -> Iterator[str]:
    """What a forked child says that goes on writing after its parent has closed the log."""
    code = """
        log = SqliteLog(sys.argv[1], lambda: 7)
        log.propose(0, [(b"k", b"parent")])
        closed, closing_now = os.pipe()
        if os.fork() == 0:
            own = SqliteLog(sys.argv[1], lambda: 7)
            own.propose(0, [(b"k", b"early")])
            print("early", flush=True)
            os.read(closed, 1)
            own.propose(0, [(b"k", b"late")])
            own.close()
            print("late", flush=True)
            os._exit(0)
        assert sys.stdin.readline()
        log.close()
        os.write(closing_now, b"x")
        os.wait()
        """
    with child(START, code, path) as process:
        assert line(process) == "early"
        yield tell(process, "close")


def test_a_forked_child_writes_on_after_its_parent(forked: str, path: Path) -> None:
    """What a forked child writes after its parent closed the log is there: the child's connections
    hold locks of their own, so nobody removed the write-ahead log under them."""
    assert forked == "late"
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT value FROM proposals_0").fetchall()
    assert found == [(b"parent",), (b"early",), (b"late",)]
