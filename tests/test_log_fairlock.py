"""The lock by which processes append in turn: also where one of those who wait is stopped.

Invariants:
- Processes are real, and so are SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from foldlog.log.fairlock import FairLock
from tests import processes
from tests.processes import line
from tests.workers import stopped, until

START = "import os, sys, time; from foldlog.log.fairlock import FairLock\n"


@pytest.fixture
def name(tmp_path: Path) -> str:
    """What the lock is called."""
    return str(tmp_path / "x")


def child(code: str, *args: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A Python process that knows FairLock."""
    return processes.child(START, code, *args)


def is_locked(path: str) -> bool:
    """Whether somebody has an flock on a file."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


WAITER = """
    lock = FairLock(sys.argv[1], 60)
    print("waits", flush=True)
    assert lock.acquire()
    print("has it", flush=True)
    lock.release()
    """


def test_a_process_stopped_in_the_queue_holds_nobody_up(name: str) -> None:
    """While the first of the queue is stopped others take the lock again and again; it gets its
    turn when it goes on."""
    first, other = FairLock(name, 60), FairLock(name, 60)
    assert first.acquire()
    with child(WAITER, name) as waiter:
        assert line(waiter) == "waits"
        until(lambda: is_locked(name + ".queue"))
        with stopped(waiter):
            first.release()
            for lock in (first, other) * 20:
                assert lock.acquire()
                lock.release()
            assert is_locked(name + ".queue"), "nobody stood in the queue"
        assert line(waiter) == "has it"


def test_who_overtakes_stands_in_the_queue_once(name: str) -> None:
    """Taking the lock out of turn again and again leaves one thread in the queue, and none once
    the queue moves."""
    threads = threading.active_count()
    lock = FairLock(name, 60)
    with open(name + ".queue", "w") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        for _ in range(5):
            assert lock.acquire()
            assert threading.active_count() <= threads + 1
            lock.release()
    until(lambda: threading.active_count() == threads)
    assert not is_locked(name + ".lock")
    assert not is_locked(name + ".queue")


def test_a_wait_that_is_interrupted_leaves_the_lock_free(name: str) -> None:
    """An exception out of a signal's handler during the wait keeps nobody from the lock."""
    first, second = FairLock(name, 60), FairLock(name, 60)
    assert first.acquire()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            second.acquire()
    finally:
        signal.signal(signal.SIGALRM, before)
    first.release()
    third = FairLock(name, 60)
    assert third.acquire()
    third.release()


COUNTER = """
    lock, count, path = FairLock(sys.argv[1], 60), int(sys.argv[2]), sys.argv[1] + ".count"
    print("ready", flush=True)
    for _ in range(count):
        assert lock.acquire()
        with open(path) as file:
            number = int(file.read())
        with open(path, "w") as file:
            file.write(str(number + 1))
        lock.release()
    print("done", flush=True)
    """


def test_one_at_a_time_also_where_processes_are_stopped(name: str) -> None:
    """Processes that count in a file lose no count, whoever is stopped in the midst of it."""
    Path(name + ".count").write_text("0")
    dice, turns = random.Random(1), 300
    with ExitStack() as stack:
        crowd = [stack.enter_context(child(COUNTER, name, turns)) for _ in range(4)]
        for process in crowd:
            assert line(process) == "ready"
        while any(process.poll() is None for process in crowd):
            victim = dice.choice(crowd)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGSTOP)
                time.sleep(dice.uniform(0, 0.05))
                os.kill(victim.pid, signal.SIGCONT)
        assert [line(process) for process in crowd] == ["done"] * 4
    assert int(Path(name + ".count").read_text()) == 4 * turns
