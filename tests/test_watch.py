"""`run.watch()`: every row that changes a run, once and in order, while it is read or written.

Invariants:
- The writers are other threads or other processes; the watcher is told by nobody.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import client, errors, testing
from foldlog.client import Engine
from tests.client_runs import KINDS, accepted, event, fact, opened, started
from tests.workers import daemon, stop, workers

PAST = 0.3


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[client.Engine]:
    """An engine of each kind in turn."""
    with opened(request.param, tmp_path) as engine:
        yield engine


def test_what_came_since_a_revision_is_given_first(engine: client.Engine) -> None:
    """Rows after `after` come at once, then those that follow; the revision itself does not."""
    run = started(engine)
    for number in range(3):
        accepted(run.propose(fact(f"f{number}"), author="user:ada"))
    rows = run.watch(after=1, timeout=PAST)
    assert [next(rows).revision_after for _ in range(3)] == [2, 3, 4]
    accepted(run.propose(fact("later"), author="user:ada"))
    assert next(rows).to_dict()["events"][0]["fact"]["id"] == "later"
    assert list(rows) == []
    assert [row.revision_after for row in run.watch(after=0, timeout=PAST)] == [1, 2, 3, 4, 5]


def test_by_default_only_what_comes_from_now_on(engine: client.Engine) -> None:
    """Without `after`, what was there before the first row was asked for is not given."""
    run = started(engine)
    rows = run.watch(timeout=2)
    timer = threading.Timer(0.2, lambda: run.propose(fact("f"), author="user:ada"))
    timer.start()
    assert next(rows).revision_after == 2
    timer.join()


def test_it_ends_after_a_time_without_rows(engine: client.Engine) -> None:
    """The time-out counts from the last row, not from the beginning."""
    run = started(engine)
    began = time.monotonic()
    assert list(run.watch(timeout=PAST)) == []
    assert PAST <= time.monotonic() - began < PAST + 2


def test_what_changes_nothing_is_not_given(engine: client.Engine) -> None:
    """Rejections and duplicates are no rows of it; a revision without content is."""
    run = started(engine)
    one = accepted(run.propose(fact("f"), author="user:ada"))
    assert run.propose(fact("f"), author="user:ada").outcome == "rejected"
    again = run.propose(fact("f"), author="user:ada", batch_id=one.batch_id)
    assert again.duplicate
    assert [row.revision_after for row in run.watch(after=1, timeout=PAST)] == [2]


def test_a_quarantine_is_given() -> None:
    """Who watches learns that the run stands still."""
    with testing.Engine(raise_in="PhaseChanged") as engine:
        run = started(engine)
        rows = run.watch(timeout=PAST)
        later = threading.Timer(
            0.1,
            lambda: run.propose(event("PhaseChanged", phase="p"), expected_revision=1),
        )
        later.start()
        assert next(rows).outcome == "quarantined"
        later.join()


def test_a_run_that_does_not_exist_yet(engine: client.Engine) -> None:
    """A watch may begin before its run does."""
    rows = engine.run("later").watch(timeout=3)
    timer = threading.Timer(0.1, lambda: started(engine, "later"))
    timer.start()
    assert next(rows).to_dict()["events"][0]["type"] == "RunStarted"
    timer.join()


def test_every_row_once_and_in_order_from_another_process(tmp_path: Path) -> None:
    """Beside a daemon and two writers, a watcher sees each revision once, in its order, soon."""
    home = tmp_path / "home"
    with Engine.open(home, create=True, author="user:ada") as engine:
        started(engine, "run_0")
    with daemon(home, tmp_path / "log"), Engine.open(home) as engine:
        run = engine.run("run_0")
        rows = run.watch(after=1, timeout=30)
        with workers(home, tmp_path, 2) as made:
            seen = [row.revision_after for row in itertools.islice(rows, 40)]
            stop(made)
            told = sum(len(worker.outcomes()) for worker in made)
        seen += [row.revision_after for row in itertools.islice(rows, told - 40)]
    assert seen == list(range(2, told + 2))


def test_it_goes_on_while_the_projection_changes_hands(tmp_path: Path) -> None:
    """A daemon that comes and goes meanwhile is no matter to who watches."""
    home = tmp_path / "home"
    with Engine.open(home, create=True, author="user:ada") as engine:
        run = started(engine)
        rows = run.watch(after=1, timeout=30)
        for number in range(2):
            accepted(run.propose(fact(f"held{number}"), author="user:ada"))
            assert next(rows).to_dict()["events"][0]["fact"]["id"] == f"held{number}"
            with daemon(home, tmp_path / f"log-{number}"):
                accepted(run.propose(fact(f"beside{number}"), author="user:ada"))
                assert next(rows).to_dict()["events"][0]["fact"]["id"] == f"beside{number}"


def test_it_ends_with_its_engine(tmp_path: Path) -> None:
    """After the engine was closed the next row is an error, not an endless wait."""
    with Engine.open(tmp_path, create=True, author="user:ada") as engine:
        rows = started(engine).watch(after=0)
        assert next(rows).revision_after == 1
    with pytest.raises(errors.Unavailable):
        next(rows)
