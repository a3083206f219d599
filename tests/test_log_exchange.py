"""The embedded log's exchange among processes: crashes, interleaving, and what it costs.

Invariants:
- Crashes are real: a child process that ends in the middle, and what is on disk after it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from foldlog.log import sqlite
from foldlog.log.base import ZERO_HEAD, Entry, HeadMoved, LogBusy, PositionMoved
from foldlog.log.sqlite import SqliteLog
from tests import needs
from tests.processes import child, line

ALL = 1 << 30
START = "import os, signal, sys; from foldlog.log.base import *; from foldlog.log.sqlite import *"


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


def record(number: int) -> Entry:
    """A record whose columns are made from `number`."""
    return Entry(b"run", b"%d" % number, number, number, number.to_bytes(32, "big"))


IN_DECIDE = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    def decide(rows):
        print("inside", flush=True)
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        return [Entry(b"run", b"1", 1, 1, b"h" * 32)]
    log.exchange(0, 1, ZERO_HEAD, [(b"k", b"v" * 100_000)], decide)
    """


def test_a_crash_in_decide_leaves_nothing(log: SqliteLog, path: Path) -> None:
    """After SIGKILL inside decide neither half has a row, and another may exchange at once."""
    with child(START, IN_DECIDE, path, "SIGKILL") as process:
        assert line(process) == "inside"
        assert process.wait(10) == -signal.SIGKILL
    assert (log.proposals_end(0), log.end(0)) == (1, 1)
    taken = log.exchange(0, 1, ZERO_HEAD, [(b"k", b"v")], lambda rows: [record(1)])
    assert [row.position for row in taken] == [1]
    assert (log.proposals_end(0), log.end(0)) == (2, 2)


def test_a_process_stopped_in_decide_is_named(log: SqliteLog, path: Path) -> None:
    """While a process is stopped inside decide others get LogBusy with its pid, and can read."""
    with child(START, IN_DECIDE, path, "SIGSTOP") as process:
        assert line(process) == "inside"
        with pytest.raises(LogBusy, match=f"pid {process.pid} "):
            log.exchange(0, 1, ZERO_HEAD, [(b"k", b"v")], lambda rows: [])
        assert log.proposals(0, 0, 9, ALL) == []


OTHER = """
    log = SqliteLog(sys.argv[1], lambda: 7)
    for turn in range(300):
        log.propose(0, [(b"k", b"foreign")])
    print("done", flush=True)
    """


def test_a_process_that_proposes_comes_between(log: SqliteLog, path: Path) -> None:
    """Beside a process that proposes, every exchange that was not refused stands right behind
    what it knew, and what it returned is what is in the log."""
    patient = SqliteLog(path, lambda: 7)
    head, number, refused = ZERO_HEAD, 0, 0
    taken: dict[int, bytes] = {}
    with closing(patient), child(START, OTHER, path) as process:
        while process.poll() is None or number < 50:
            position = patient.proposals_end(0)
            new = record(number + 1)
            try:
                (row,) = patient.exchange(
                    0,
                    position,
                    head,
                    [(b"k", b"own")],
                    lambda rows, new=new: [new],  # type: ignore[misc]
                )
            except PositionMoved:
                refused += 1
                continue
            assert row.position == position
            taken[position] = row.value
            head, number = new.head, number + 1
    rows = log.proposals(0, 0, 100_000, ALL)
    assert {row.position for row in rows if row.value == b"own"} == set(taken)
    assert [row.position for row in rows] == list(range(1, 300 + number + 1))
    assert [row.sequence for row in log.events(0, 0, 100_000, ALL)] == list(range(1, number + 1))
    assert refused > 0, "the other process did not write at the same time"


def test_an_append_of_another_process_moves_the_head(log: SqliteLog, path: Path) -> None:
    """A record appended elsewhere makes an exchange on the old head HeadMoved."""
    code = """
        log = SqliteLog(sys.argv[1], lambda: 7)
        log.append(0, ZERO_HEAD, [Entry(b"run", b"1", 1, 1, b"h" * 32)])
        print("done", flush=True)
        """
    with child(START, code, path) as process:
        assert line(process) == "done"
        with pytest.raises(HeadMoved):
            log.exchange(0, 1, ZERO_HEAD, [(b"k", b"v")], lambda rows: [record(1)])
    assert log.proposals_end(0) == 1


COUNTED = """
from foldlog.log.base import *
from foldlog.log.sqlite import *
import sys
log = SqliteLog(sys.argv[1], lambda: 7)
log.propose(0, [(b"k", b"v")])
head = ZERO_HEAD
for n in range(1, 1 + int(sys.argv[3])):
    record = Entry(b"run", b"v" * 300, n, n, n.to_bytes(32, "big"))
    if sys.argv[2] == "exchange":
        log.exchange(0, n + 1, head, [(b"k", b"v" * 300)], lambda rows: [record])
    else:
        log.propose(0, [(b"k", b"v" * 300)])
        if sys.argv[2] == "both":
            log.append(0, head, [record])
    head = record.head
# Not closed: moving the write-ahead log into the file would count as well.
os._exit(0)
"""


def fsyncs(tmp_path: Path, what: str, calls: int) -> int:
    """How many fsyncs of any kind so many calls cost a process of their own."""
    log, trace = tmp_path / f"{what}-{calls}.sqlite", tmp_path / f"{what}-{calls}.trace"
    sqlite.create(log, 1)
    command = [
        needs.program("strace"),
        "-f",
        "-qq",
        "-e",
        "trace=fsync,fdatasync,sync_file_range",
        "-o",
    ]
    code = [sys.executable, "-c", COUNTED, str(log), what, str(calls)]
    done = subprocess.run([*command, str(trace), *code], check=False)
    if done.returncode != 0:
        needs.cannot("strace may not trace here, so no fsync was counted")
    return trace.read_text().count("sync(")


def test_an_exchange_costs_one_fsync(tmp_path: Path) -> None:
    """One exchange of a proposal costs exactly the fsync of one propose; propose and append two."""

    def each(what: str) -> float:
        return (fsyncs(tmp_path, what, 50) - fsyncs(tmp_path, what, 10)) / 40

    assert (each("propose"), each("exchange"), each("both")) == (1, 1, 2)
