"""An engine that was opened before a fork: the parent's goes on, the child is told to open its own.

Invariants:
- The forks are real ones, by `os.fork` and by multiprocessing, while threads are at work.
- The child says what it saw through its exit code; no test runs on in it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from foldlog import Engine, errors
from foldlog.client import Run
from tests.workers import daemon

SPENT = {"type": "BudgetSpent", "tokens": 1}

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(work: Callable[[], object]) -> None:
    """Do something in a forked child; fails if it raises there, or does not end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def is_told(call: Callable[[], object]) -> None:
    """The call says that it belongs to another process, at once."""
    with pytest.raises(errors.EngineForked, match="open one") as caught:
        call()
    assert caught.value.code == "ENGINE_FORKED"


def uses(engine: Engine, run: Run) -> list[Callable[[], object]]:
    """Every way of using an engine."""
    return [
        lambda: run.propose(SPENT),
        lambda: engine.start("run_2", goal="x"),
        lambda: run.signal("key"),
        lambda: run.cancel("why"),
        run.state,
        lambda: run.at(1),
        run.history,
        run.transitions,
        lambda: run.diff(1, 1),
        lambda: run.outcome("5bfc1d98-7697-48d2-b42d-cddfd75d6180"),
        lambda: next(run.watch(after=0, timeout=1)),
        engine.runs,
        engine.verify,
        engine.replay,
        engine.digest,
        engine.project,
    ]


@pytest.mark.parametrize("beside", [False, True], ids=["holder", "guest"])
def test_fault_35_a_child_is_told_whatever_it_calls(tmp_path: Path, beside: bool) -> None:
    """Every call in the child raises EngineForked at once, leaving it does nothing, and the parent
    goes on as before, whether it holds the projection or not."""
    home = tmp_path / "home"
    with Engine.open(home, create=True, author="user:ada") as engine:
        engine.start("run_1", goal="count")
    if beside:
        with daemon(home, tmp_path / "log"):
            fork_and_go_on(home)
    else:
        fork_and_go_on(home)


def fork_and_go_on(home: Path) -> None:
    """Fork with an engine open; both sides then do what they may."""
    with Engine.open(home, author="user:ada") as engine:
        run = engine.run("run_1")
        assert run.propose(SPENT).outcome == "accepted"

        def child() -> None:
            for use in uses(engine, run):
                is_told(use)
            engine.close()

        for _ in range(3):
            in_child(child)
            assert run.propose(SPENT).outcome == "accepted"
        assert engine.verify().ok


def test_a_child_opens_its_own(tmp_path: Path) -> None:
    """In the child an engine that it opens itself is a guest of its parent's, and works."""
    with Engine.open(tmp_path, create=True, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")

        def child() -> None:
            with Engine.open(tmp_path, author="user:child") as own:
                assert not own._seat.is_holder
                assert own.run("run_1").propose(SPENT).outcome == "accepted"
                assert own.run("run_1").state() is not None

        in_child(child)
        rows = run.history()
        assert [row.to_dict()["author"]["id"] for row in rows] == ["ada", "child"]
        assert engine.verify().ok


def test_a_child_outlives_its_parents_engine(tmp_path: Path) -> None:
    """The right to the projection does not stay with a child that has nothing to do with it."""
    ours, theirs = os.pipe()
    with Engine.open(tmp_path, create=True, author="user:ada") as engine:
        engine.start("run_1", goal="count")
        pid = os.fork()
        if pid == 0:
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
    try:
        with Engine.open(tmp_path, author="user:ada") as engine:
            assert engine._seat.is_holder
            assert engine.run("run_1").propose(SPENT).outcome == "accepted"
    finally:
        os.close(theirs)
        os.close(ours)
        os.waitpid(pid, 0)


def test_forks_while_threads_propose(tmp_path: Path) -> None:
    """Forking in the middle of other threads' proposals costs none of them its outcome."""
    with Engine.open(tmp_path, create=True, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")
        ends, wrong = threading.Event(), []

        def propose() -> None:
            while not ends.is_set():
                outcome = run.propose(SPENT)
                if outcome.outcome != "accepted":
                    wrong.append(outcome)

        threads = [threading.Thread(target=propose) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            in_child(lambda: is_told(lambda: run.propose(SPENT)))
        ends.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert wrong == []
        assert engine.verify().ok


def work_in_pool(home: str) -> str:
    """What a process of a pool does: opens the home for itself and proposes."""
    with Engine.open(home, author="agent:pool") as engine:
        return engine.run("run_1").propose(SPENT, timeout=30).outcome


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes(tmp_path: Path, method: str) -> None:
    """The processes of a pool each open the home, beside the engine of the one that made them."""
    if method == "spawn":
        pytest.importorskip("tests.test_fork", reason="the tests are no package here")
    with Engine.open(tmp_path, create=True, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")
        with multiprocessing.get_context(method).Pool(3) as pool:
            assert pool.map(work_in_pool, [str(tmp_path)] * 6) == ["accepted"] * 6
        state = run.state()
        assert state is not None
        assert state.revision == 7
