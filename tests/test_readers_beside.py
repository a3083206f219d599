"""Readers beside a live daemon: they change nothing, wait for nobody, and see one moment.

Invariants:
- Every reader is a process of its own, as an auditor's shell is.
- Nobody writes while files are compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import Engine
from tests.processes import files, settled
from tests.workers import daemon, foldlog, stop, stopped, until, workers

READERS = {
    "show": ["show", "run_1", "--json"],
    "show-at": ["show", "run_1", "--at", "2", "--json"],
    "history": ["history", "run_1", "--json"],
    "resume-check": ["resume-check", "run_1", "--json"],
    "context": ["context", "run_1", "--json"],
    "status": ["status", "--json"],
    "runs": ["runs", "--json"],
    "diff": ["diff", "run_1", "1", "2", "--json"],
    "verify": ["verify", "--json"],
    "verify-evidence": ["verify", "--evidence", "--json"],
    "verify-redecide": ["verify", "--redecide", "--json"],
    "replay": ["replay", "--json"],
    "health": ["project", "--health", "--json"],
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a run at revision 3."""
    with Engine.open(tmp_path / "home", create=True, partitions=2, author="user:ada") as engine:
        run = engine.start("run_1", goal="count")
        for number in range(2):
            run.propose({"type": "BudgetSpent", "tokens": number})
    return tmp_path / "home"


@pytest.fixture
def beside(home: Path, tmp_path: Path) -> Iterator[Path]:
    """The same with a daemon that has decided something itself."""
    with daemon(home, tmp_path / "log"):
        with Engine.open(home, author="user:ada") as engine:
            engine.run("run_1").propose({"type": "BudgetSpent", "tokens": 1})
        yield home


def test_fault_29_reading_changes_no_file(beside: Path) -> None:
    """Content and time of every file of the home, and of its folders, are as they were, whatever
    is read, and by several readers at once."""
    before = settled(beside)
    for name, args in READERS.items():
        done = foldlog(beside, *args)
        assert done.returncode == 0, (name, done.stderr)
        assert files(beside) == before, name
    with Engine.open(beside) as one, Engine.open(beside) as other:
        assert one.run("run_1").state() == other.run("run_1").state()
        assert files(beside) == before
    assert files(beside) == before


def test_the_daemon_goes_on_after_its_readers(beside: Path, tmp_path: Path) -> None:
    """After all of them it decides as before, and starts again as before."""
    for args in READERS.values():
        foldlog(beside, *args)
    proposal = b'{"events": [{"type": "BudgetSpent", "tokens": 1}]}'
    done = foldlog(beside, "propose", "run_1", "--json", stdin=proposal)
    assert json.loads(done.stdout)["revision"] == 5
    assert foldlog(beside, "verify").returncode == 0


def test_readers_of_a_stopped_daemon_are_answered(home: Path, tmp_path: Path) -> None:
    """A daemon that is stopped keeps no reader waiting."""
    with daemon(home, tmp_path / "log") as process, stopped(process):
        for name in ("show", "show-at", "history", "runs", "diff", "verify", "replay"):
            began = time.monotonic()
            done = foldlog(home, *READERS[name])
            assert done.returncode == 0, (name, done.stderr)
            assert time.monotonic() - began < 8, name


def test_a_reader_sees_one_moment(home: Path, tmp_path: Path) -> None:
    """While others write without a pause, each reading is whole: what a document counts, its
    revision and its chain are those of one record, and every proof holds."""
    with (
        daemon(home, tmp_path / "log"),
        workers(home, tmp_path, 2, runs=1) as made,
        Engine.open(home, author="user:ada") as engine,
    ):
        run = engine.start("run_0", goal="count")
        until(lambda: all(worker.outcomes() for worker in made))
        seen = []
        for _ in range(12):
            state = run.state()
            assert state is not None
            # One fact a revision: a document of two moments would not agree with itself.
            facts = len(state.confirmed_facts)
            seen.append((state.revision, state.chain, facts))
            assert engine.verify("run_0").ok
        report = engine.verify()
        assert report.ok, report.first_difference
        stop(made)
        rows = {row.revision_after: row for row in run.history()}
    for revision, chain, facts in seen:
        assert rows[revision].chain == chain
        kinds = [rows[n].to_dict()["events"][0]["type"] for n in range(1, revision + 1)]
        assert facts == kinds.count("FactConfirmed")
    assert [revision for revision, _, _ in seen] == sorted(revision for revision, _, _ in seen)
    assert len({revision for revision, _, _ in seen}) > 2
