"""Many processes at one home: nothing is lost, everyone is served, whoever holds the projection.

Invariants:
- Every process is a real one; what it was told is compared with what the log says afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, errors
from tests import needs
from tests.workers import (
    FOLDLOG,
    Worker,
    daemon,
    environment,
    log_lines,
    pid_of_holder,
    said,
    start_worker,
    stop,
    stopped,
    until,
    workers,
)

WRITERS = 16
SECONDS = 5.0
ENOUGH = 10
"""Accepted proposals of the slowest of them, however loaded the machine is."""
CONFLICT_EVERY = 8


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home of four partitions."""
    with Engine.open(tmp_path / "home", create=True):
        pass
    return tmp_path / "home"


def begin_runs(home: Path, runs: int) -> None:
    """So many runs, each at a revision where an expectation of 1 is behind."""
    with Engine.open(home, author="user:ada") as engine:
        for number in range(runs):
            run = engine.start(f"run_{number}", goal="count")
            assert run.started is not None
            phase = {"type": "PhaseChanged", "phase": "begun"}
            assert run.propose(phase, expected_revision=1).revision == 2


def check_runs(home: Path, runs: int, told: list[dict[str, Any]]) -> None:
    """Revisions are dense, every batch has one record, and each outcome told is the log's."""
    with Engine.open(home) as engine:
        rows = {}
        for number in range(runs):
            history = engine.run(f"run_{number}").history(rejected=True)
            changed = [row.revision_after for row in history if row.outcome == "accepted"]
            assert changed == list(range(1, len(changed) + 1))
            rows.update({row.batch_id: row for row in history})
            assert len(rows) == len({row.batch_id for row in rows.values()})
            each = Counter(row.batch_id for row in history if row.outcome != "duplicate")
            assert set(each.values()) == {1}
        for line in told:
            row = rows[line["batch"]]
            have = (line["outcome"], line["code"], line["revision"])
            revision = row.revision_after if row.outcome == "accepted" else line["revision"]
            assert have == (row.outcome, row.code, revision)
            assert line["outcome"] == "rejected" or line["chain"] == row.chain
        report = engine.verify()
        assert report.ok, report.first_difference
        assert report.void == 0
        conflicts = [row for row in rows.values() if row.code == "CONFLICT"]
        assert len(conflicts) >= WRITERS
        for row in conflicts:
            shown = row.to_dict()
            assert shown["author"]["kind"] == "agent"
            assert [conflict["entity"] for conflict in shown["conflicts"]] == ["phase"]
            assert [conflict["changed_by"]["id"] for conflict in shown["conflicts"]] == ["ada"]


@pytest.mark.parametrize("beside", [True, False], ids=["daemon", "no-daemon"])
@pytest.mark.parametrize("runs", [1, 100])
def test_sixteen_processes_at_once(home: Path, tmp_path: Path, runs: int, beside: bool) -> None:
    """No outcome told is lost, each proposal has one, and the slowest writer has at least half of
    what the fastest has, whether a daemon turns the log or one of them."""
    begin_runs(home, runs)
    options = {"runs": runs, "conflict_every": CONFLICT_EVERY}
    with (
        daemon(home, tmp_path / "log") if beside else nullcontext(),
        workers(home, tmp_path, WRITERS, **options) as made,
    ):
        time.sleep(SECONDS)
        until(lambda: min(map(accepted, made)) >= ENOUGH, seconds=120, pause=0.5)
        stop(made)
        counts = [accepted(worker) for worker in made]
        told = [line for worker in made for line in worker.outcomes()]
    assert all(worker.lines()[-1].get("done") for worker in made)
    assert not any("retried" in line for worker in made for line in worker.lines())
    assert min(counts) * 2 >= max(counts), sorted(counts)
    check_runs(home, runs, told)


def accepted(worker: Worker) -> int:
    """How many of a worker's proposals were accepted."""
    return sum(line["outcome"] == "accepted" for line in worker.outcomes())


def test_conflicts_name_the_entity_and_both_authors(home: Path, tmp_path: Path) -> None:
    """Of two processes that change the same thing on the same revision one wins; the other's
    outcome names the thing and the winner, and the history names the loser."""
    begin_runs(home, 1)
    with Engine.open(home, author="agent:here") as engine:
        run = engine.run("run_0")
        assert run.propose({"type": "PhaseChanged", "phase": "here"}, expected_revision=2)
        with workers(home, tmp_path, 1, limit=1, conflict_every=1) as made:
            until(lambda: made[0].outcomes())
        [told] = made[0].outcomes()
        assert (told["outcome"], told["code"]) == ("rejected", "CONFLICT")
        row = run.history(rejected=True)[-1].to_dict()
        [conflict] = row["conflicts"]
        assert (row["author"]["id"], conflict["changed_by"]["id"]) == ("w0", "here")
        assert conflict["entity"] == "phase"


# Holders that go, stop, or give way


def test_a_dead_holder_is_replaced_at_once(
    home: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Killed while others wait for outcomes, it is followed by one of them within a moment, and
    all of them go on."""
    begin_runs(home, 1)
    with workers(home, tmp_path, 3) as made:
        until(lambda: all(len(worker.outcomes()) > 3 for worker in made))
        first = pid_of_holder(home)
        [held] = [worker for worker in made if worker.process.pid == first]
        held.process.kill()
        began = time.monotonic()
        until(lambda: pid_of_holder(home) != first, pause=0.001)
        took = time.monotonic() - began
        rest = [worker for worker in made if worker is not held]
        before = [len(worker.outcomes()) for worker in rest]
        until(lambda: all(len(w.outcomes()) > n + 3 for w, n in zip(rest, before, strict=True)))
        stop(rest)
    record_property("seconds until a dead holder was replaced", took)
    assert took < 2
    with Engine.open(home) as engine:
        assert engine.verify().ok


def test_an_idle_guest_takes_the_seat_of_a_dead_holder(home: Path, tmp_path: Path) -> None:
    """Also where nobody proposes, there is a holder again within a second."""
    begin_runs(home, 1)
    with daemon(home, tmp_path / "log") as process, Engine.open(home) as engine:
        assert not engine._seat.is_holder
        process.kill()
        until(lambda: engine._seat.is_holder, 5)


def test_a_stopped_holder_is_named(home: Path, tmp_path: Path) -> None:
    """Who waits for a holder that was stopped is told its pid after ten seconds, with exit 6 in a
    shell; once it goes on, what was handed in is decided under its batch id."""
    begin_runs(home, 1)
    batch = "5bfc1d98-7697-48d2-b42d-cddfd75d6180"
    phase = {"type": "PhaseChanged", "phase": "next"}
    proposal = b'{"events": [{"type": "BudgetSpent", "tokens": 1}]}'
    with (
        daemon(home, tmp_path / "log") as process,
        Engine.open(home, author="user:ada") as engine,
    ):
        run = engine.run("run_0")
        with stopped(process):
            shell = subprocess.Popen(
                [*FOLDLOG, "propose", "run_0", "--timeout", "30", "--home", str(home)],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(),
            )
            assert shell.stdin is not None
            shell.stdin.write(proposal)
            shell.stdin.close()
            began = time.monotonic()
            with pytest.raises(errors.ProjectorStalled) as caught:
                run.propose(phase, expected_revision=2, batch_id=batch, timeout=30)
            assert 9 < time.monotonic() - began < 14
            assert (caught.value.pid, caught.value.batch_id) == (process.pid, batch)
            assert shell.stderr is not None
            message = shell.stderr.read()
            shell.stderr.close()
            assert shell.wait(30) == 6
            assert str(process.pid).encode() in message
        until(lambda: run.outcome(batch), 20)
        outcome = run.propose(phase, expected_revision=2, batch_id=batch)
        assert (outcome.outcome, outcome.duplicate) == ("accepted", True)


def test_what_was_unknown_is_known_later(home: Path, tmp_path: Path) -> None:
    """A proposal whose time was up is not handed in again by itself; its batch id finds its one
    outcome once the holder goes on, and so does proposing it again under that id."""
    begin_runs(home, 1)
    spent = {"type": "BudgetSpent", "tokens": 1}
    with (
        daemon(home, tmp_path / "log") as process,
        Engine.open(home, author="user:ada") as engine,
    ):
        run = engine.run("run_0")
        with stopped(process):
            with pytest.raises(errors.OutcomeUnknown) as caught:
                run.propose(spent, timeout=0.5)
            batch = caught.value.batch_id
            state = run.state()  # a stopped holder keeps no reader waiting
            assert state is not None
            assert state.revision == 2
        until(lambda: run.outcome(batch), 20)
        outcome = run.outcome(batch)
        assert outcome is not None
        assert (outcome.outcome, outcome.revision, outcome.duplicate) == ("accepted", 3, False)
        again = run.propose(spent, batch_id=batch)
        assert (again.revision, again.duplicate) == (3, True)
        assert len(run.history()) == 3


SYNCS = """
import sys
from foldlog import Engine
with Engine.open(sys.argv[1], author="user:ada") as engine:
    run = engine.run("run_0")
    for _ in range(int(sys.argv[2])):
        assert run.propose({"type": "BudgetSpent", "tokens": 1}).outcome == "accepted"
"""


def test_the_holder_syncs_once_a_proposal(home: Path, tmp_path: Path) -> None:
    """A proposal of the holder's own process and its record are one transaction, one fdatasync."""
    begin_runs(home, 1)

    def syncs(proposals: int) -> int:
        trace = tmp_path / f"trace-{proposals}"
        strace = [
            needs.program("strace"),
            "-f",
            "-qq",
            "-o",
            str(trace),
            "-e",
            "trace=fsync,fdatasync",
        ]
        command = [*strace, sys.executable, "-c", SYNCS, str(home), str(proposals)]
        assert subprocess.run(command, env=environment(), check=False).returncode == 0
        lines = trace.read_text().splitlines()
        return sum("fsync(" in line or "fdatasync(" in line for line in lines)

    assert syncs(60) - syncs(20) == 40


def test_a_worker_gives_way_to_a_daemon(home: Path, tmp_path: Path) -> None:
    """A worker that holds the projection gives it to a daemon that starts, whatever it is doing,
    and takes it again when the daemon has gone."""
    begin_runs(home, 1)
    with Engine.open(home, author="user:ada") as engine:
        assert engine._seat.is_holder
        run = engine.run("run_0")
        with daemon(home, tmp_path / "log") as process:
            assert process.poll() is None
            assert run.propose({"type": "BudgetSpent", "tokens": 1}).outcome == "accepted"
            assert pid_of_holder(home) == process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        until(lambda: engine._seat.is_holder, 10)
        assert pid_of_holder(home) == os.getpid()
        assert run.propose({"type": "BudgetSpent", "tokens": 1}).outcome == "accepted"
    assert "waiting" in said(tmp_path / "log")
    assert log_lines(tmp_path / "log")[-1]["event"] == "stopped"


def test_fault_a_holder_is_starved_by_its_guests(home: Path, tmp_path: Path) -> None:
    """The process that holds the projection is served like the others while they propose without
    a pause, and opening or closing a home beside them comes to an end."""
    begin_runs(home, 1)
    with Engine.open(home, author="agent:holder") as engine:
        assert engine._seat.is_holder
        with workers(home, tmp_path, 4) as made:
            until(lambda: all(worker.outcomes() for worker in made))
            before, count = [len(worker.outcomes()) for worker in made], 0
            end = time.monotonic() + 3
            while time.monotonic() < end:
                engine.run("run_0").propose({"type": "BudgetSpent", "tokens": 1})
                count += 1
            others = [len(w.outcomes()) - n for w, n in zip(made, before, strict=True)]
            assert min(others) <= 2 * count, (count, others)
            assert count <= 2 * max(others), (count, others)
            assert engine.project() >= 0
            engine.close()
            with Engine.open(home):
                stop(made)


def test_a_new_worker_beside_busy_ones_reads_its_own_writes(home: Path, tmp_path: Path) -> None:
    """What a guest was told stands in what it reads next, while others write without a pause."""
    begin_runs(home, 1)
    with (
        daemon(home, tmp_path / "log"),
        workers(home, tmp_path, 3) as made,
        Engine.open(home, author="user:ada") as engine,
    ):
        run = engine.run("run_0")
        for number in range(20):
            question = {"id": f"q{number}", "text": "why?"}
            outcome = run.propose({"type": "QuestionOpened", "question": question})
            state = run.state()
            assert state is not None
            assert state.revision >= outcome.revision
            assert question["id"] in {each.id for each in state.open_questions}
        stop(made)


def test_a_started_worker_that_is_alone_becomes_the_holder(home: Path, tmp_path: Path) -> None:
    """With nobody there, whoever proposes takes the projection."""
    begin_runs(home, 1)
    worker = start_worker(home, tmp_path, 0, limit=1)
    worker.begin()
    assert worker.process.wait(30) == 0
    worker.process.communicate()
    assert pid_of_holder(home) == worker.process.pid
    assert [line["outcome"] for line in worker.outcomes()] == ["accepted"]
