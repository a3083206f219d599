"""Ctrl-C at any point: what was acknowledged stays, and the engine is as usable as before.

Invariants:
- Interrupts are real signals, at moments that a dice chooses, or come out of a wrapped call.
- After each the same engine is used, and no later than that call's time it answers.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from foldlog.client import Run
from foldlog.locks import FileLock
from tests.workers import daemon, until

TIMES = 150

# A file that was being opened when the interrupt came is closed by Python itself, which warns.
# One that comes inside a callback of Python's WeakSet or of Hypothesis ends there: Python tells it.
# No other is let through, so that code of ours which swallows an interrupt is found.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <function (WeakSet.*_remove|.*gc_callback):"
        "pytest.PytestUnraisableExceptionWarning"
    ),
]


def fact() -> dict[str, Any]:
    """A fact of its own."""
    id = str(uuid.uuid4())
    return {"type": "FactConfirmed", "fact": {"id": id, "statement": "so"}}


armed = False


def strike(*_: object) -> None:
    """Ctrl-C, unless what it was for has ended."""
    if armed:
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """The timer's signal is a Ctrl-C here."""
    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.signal(signal.SIGALRM, before)


def interrupted(after: float, work: Callable[[], object]) -> bool:
    """Do something, with a Ctrl-C so many seconds from now; whether it came in time."""
    global armed
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, after)
        work()
        armed = False
    except KeyboardInterrupt:
        armed = False
        return True
    signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def check(engine: Engine, run: Run, told: dict[str, int]) -> None:
    """What was told stands, and the state is the fold of the log."""
    rows = {row.batch_id: row.revision_after for row in run.history()}
    assert {batch: rows.get(batch) for batch in told} == told
    report = engine.verify()
    assert report.ok, report.first_difference
    assert report.void == 0


def interrupt_often(engine: Engine, run: Run, dice: random.Random) -> None:
    """Interrupt proposing and reading; after each it must go on at once."""
    told: dict[str, int] = {}
    struck = 0
    for number in range(TIMES):
        batch = str(uuid.uuid4())

        def use(batch: str = batch) -> None:
            told[batch] = run.propose(fact(), batch_id=batch).revision
            run.state()
            run.outcome(batch)

        struck += interrupted(dice.random() * 0.01, use)
        began = time.monotonic()
        after = run.propose(fact())
        assert after.outcome == "accepted"
        assert time.monotonic() - began < 5, number
        told[after.batch_id] = after.revision
        known = run.outcome(batch)
        assert known is None or known.outcome == "accepted"
        assert batch not in told or known is not None
    assert struck > TIMES // 5
    check(engine, run, told)


def test_ctrl_c_at_random_as_the_holder(tmp_path: Path) -> None:
    """Interrupted while it proposes and reads, the holder goes on and has lost nothing."""
    with Engine.open(tmp_path, create=True, partitions=1, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")
        interrupt_often(engine, run, random.Random(1))
    with Engine.open(tmp_path) as engine:
        assert engine._seat.is_holder  # the one before has let go of everything
        assert engine.verify().ok


def test_ctrl_c_at_random_as_a_guest(tmp_path: Path) -> None:
    """The same beside a daemon."""
    home = tmp_path / "home"
    with Engine.open(home, create=True, partitions=1, author="user:ada") as engine:
        engine.start("run_1", goal="count")
    with daemon(home, tmp_path / "log"), Engine.open(home, author="user:ada") as engine:
        interrupt_often(engine, engine.run("run_1"), random.Random(2))


def test_ctrl_c_while_others_propose(tmp_path: Path) -> None:
    """One thread's interrupts cost the others of its process no outcome and no time."""
    with Engine.open(tmp_path, create=True, partitions=1, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")
        ends, took, told = threading.Event(), [0.0], dict[str, int]()

        def propose() -> None:
            while not ends.is_set():
                began = time.monotonic()
                outcome = run.propose(fact())
                told[outcome.batch_id] = outcome.revision
                took.append(time.monotonic() - began)

        threads = [threading.Thread(target=propose) for _ in range(2)]
        for thread in threads:
            thread.start()
        dice = random.Random(3)
        for _ in range(TIMES):

            def use() -> None:
                outcome = run.propose(fact())
                told[outcome.batch_id] = outcome.revision

            interrupted(dice.random() * 0.01, use)
        ends.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert max(took) < 5
        check(engine, run, told)


def test_ctrl_c_while_opening_and_closing(tmp_path: Path) -> None:
    """Whatever of an opening was interrupted is gone; closing comes to its end all the same."""
    dice = random.Random(5)
    with Engine.open(tmp_path, create=True, partitions=2, author="user:ada") as engine:
        engine.start("run_1", goal="count")
    for _ in range(40):
        engines: list[Engine] = []

        def use(engines: list[Engine] = engines) -> None:
            engines.append(Engine.open(tmp_path, author="user:ada"))
            engines[0].run("run_1").propose(fact())
            engines[0].close()

        interrupted(dice.random() * 0.08, use)
        for engine in engines:
            engine.close()
        with Engine.open(tmp_path, author="user:ada") as engine:
            # What an interrupted opening began is undone in its own time.
            until(lambda engine=engine: engine._seat.is_holder, 10)
            assert engine.run("run_1").propose(fact()).outcome == "accepted"
    with Engine.open(tmp_path) as engine:
        assert engine.verify().ok


def test_ctrl_c_does_not_wait_for_a_log_that_is_stuck(tmp_path: Path) -> None:
    """Somebody else keeps the log locked: the interrupt ends the call at once, and the proposal
    is decided later or never, but not twice."""
    with Engine.open(tmp_path, create=True, partitions=1, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")
        batch, event = str(uuid.uuid4()), fact()
        other = sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert interrupted(0.2, lambda: run.propose(event, batch_id=batch))
        assert time.monotonic() - began < 2
        other.execute("ROLLBACK")
        other.close()
        outcome = run.propose(event, batch_id=batch)
        assert (outcome.outcome, outcome.revision) == ("accepted", 2)
        assert len(run.history()) == 2
        assert engine.verify().ok


RAISED_AFTER = ["append", "exchange", "propose", "events", "proposals", "proposals_end", "end"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", RAISED_AFTER)
def test_ctrl_c_out_of_a_call_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: bool
) -> None:
    """Raised in a call of the log, before or after it took effect, the interrupt reaches the
    caller and nobody else; the same batch then has its one outcome."""
    with Engine.open(tmp_path, create=True, partitions=1, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")
        log = engine._seat.place.log
        real: Callable[..., Any] = getattr(log, name)
        times = iter([True])

        def raising(*args: Any) -> Any:
            proposing = threading.current_thread().name != "foldlog-turn"
            strikes = proposing and next(times, False)
            if strikes and before:
                raise KeyboardInterrupt
            answer = real(*args)
            if strikes:
                raise KeyboardInterrupt
            return answer

        monkeypatch.setattr(log, name, raising)
        batch, event = str(uuid.uuid4()), fact()
        with contextlib.suppress(KeyboardInterrupt):
            run.propose(event, batch_id=batch)
        next(times, None)
        outcome = run.propose(event, batch_id=batch)
        assert (outcome.outcome, outcome.revision) == ("accepted", 2)
        assert run.propose(fact()).revision == 3
        check(engine, run, {batch: 2})


def test_a_lock_is_let_go_by_whoever_has_it(tmp_path: Path) -> None:
    """Leaving a home whose locks a signal may have come between leaves it free."""
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    lock.release()
    lock.release()
    other = FileLock(tmp_path / "lock")
    assert other.try_acquire()
    other.release()
