"""`foldlog project` as a daemon: it starts, says what it does, decides, and ends as it is told.

Invariants:
- The daemon is a real process; its log lines are read as an operator's tools would.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from foldlog import Engine, RunTransitioned, errors
from foldlog.client import wall_clock
from foldlog.home import open_log
from foldlog_projector.health import health
from tests.processes import files, settled
from tests.workers import (
    daemon,
    foldlog,
    log_lines,
    said,
    start_daemon,
    stopped,
    until,
)

DAY_US = 86_400 * 1_000_000
SPENT = {"type": "BudgetSpent", "tokens": 1}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one run."""
    with Engine.open(tmp_path / "home", create=True, partitions=2, author="user:ada") as engine:
        engine.start("run_1", goal="count")
    return tmp_path / "home"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_when_told(home: Path, tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM or Ctrl-C ends it with 0 and a last line; the home is free and whole."""
    with daemon(home, tmp_path / "log") as process:
        assert (
            foldlog(home, "propose", "run_1", stdin=json.dumps(events()).encode()).returncode == 0
        )
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) == 0
        assert time.monotonic() - began < 10
    assert said(tmp_path / "log")[-2:] == ["stepped_down", "stopped"]
    with Engine.open(home) as engine:
        assert engine._seat.is_holder
        assert engine.verify().ok


def events() -> dict[str, object]:
    """A proposal as a file has it."""
    return {"events": [SPENT]}


def test_it_logs_one_object_a_line(home: Path, tmp_path: Path) -> None:
    """Each line has time, level, message and event; what happened stands there in its order."""
    with daemon(home, tmp_path / "log") as process:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    lines = log_lines(tmp_path / "log")
    for line in lines:
        assert {"time", "level", "message", "event"} <= set(line)
        assert line["level"] == "info"
    assert [line["event"] for line in lines] == [
        "started", "recovered", "took_over", "stepped_down", "stopped",
    ]  # fmt: skip
    assert lines[0]["home"] == str(home)
    assert (lines[1]["message"], lines[1]["records"]) == ("recovered 0 records", 0)


def test_it_says_how_many_records_it_recovered(home: Path, tmp_path: Path) -> None:
    """Started without a projection, it folds the log again and says so."""
    for file in sorted((home / "projection").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    with daemon(home, tmp_path / "log"):
        pass
    [line] = [line for line in log_lines(tmp_path / "log") if line["event"] == "recovered"]
    assert (line["message"], line["records"]) == ("recovered 1 records", 1)


def test_stopped_while_it_waits_for_the_projection(home: Path, tmp_path: Path) -> None:
    """SIGTERM ends a daemon that waits for a worker's place, too."""
    with Engine.open(home) as engine:
        # Inside a long read, a worker cannot give way yet.
        with engine._reading("run_1"):
            process = start_daemon(home, tmp_path / "log")
            until(lambda: "waiting" in said(tmp_path / "log"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert engine.verify().ok


def test_a_long_read_holds_up_nobody_while_a_daemon_waits(home: Path, tmp_path: Path) -> None:
    """While a thread of the holder reads for long, the daemon waits and the others go on; when it
    has read, the daemon has the projection."""
    with Engine.open(home, author="user:ada") as engine:
        took = []
        with engine._reading("run_1") as view:
            process = start_daemon(home, tmp_path / "log")
            until(lambda: "waiting" in said(tmp_path / "log"))

            def propose() -> None:
                for _ in range(20):
                    began = time.monotonic()
                    assert engine.run("run_1").propose(SPENT).outcome == "accepted"
                    took.append(time.monotonic() - began)

            thread = threading.Thread(target=propose)
            thread.start()
            thread.join(30)
            assert len(took) == 20
            assert max(took) < 3
            assert view.run("run_1").header.revision == 1  # as of its own moment
        until(lambda: "took_over" in said(tmp_path / "log"), 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_second_daemon_is_refused(home: Path, tmp_path: Path) -> None:
    """There is one daemon at a home; another ends with 6 and names it."""
    with daemon(home, tmp_path / "log") as process:
        second = foldlog(home, "project")
        assert second.returncode == 6
        assert str(process.pid).encode() in second.stderr
        assert process.poll() is None


def test_commands_of_a_shell_beside_it(home: Path, tmp_path: Path) -> None:
    """Whatever is typed beside a daemon works, and the daemon is the one that decides."""
    with daemon(home, tmp_path / "log") as process:
        stdin = json.dumps(events()).encode()
        proposed = foldlog(home, "propose", "run_1", "--json", stdin=stdin)
        outcome = json.loads(proposed.stdout)
        assert (proposed.returncode, outcome["revision"]) == (0, 2)
        shown = json.loads(foldlog(home, "show", "run_1", "--json").stdout)
        assert shown["revision"] == 2
        asked = json.loads(foldlog(home, "outcome", "run_1", outcome["batch_id"], "--json").stdout)
        assert asked == outcome
        for args in (["start", "run_2", "--goal", "x"], ["history", "run_1"], ["runs"]):
            assert foldlog(home, *args).returncode == 0
        assert foldlog(home, "project", "--once", "--json").stdout == b'{"decided": 0}\n'
        decider = decider_of_last(home)
        assert decider.split(":")[1] == str(process.pid)


def decider_of_last(home: Path) -> str:
    """Which process decided the last record of run_1, as the log says."""
    from foldlog.wire.partitioner import partition_of
    from foldlog.wire.records import decode_record

    log = open_log(home, lambda: 0)
    try:
        rows = log.events(partition_of("run_1", 2), 1, 1000, 1 << 24)
        records = [decode_record(row.value) for row in rows]
        return [record.decider for record in records if record.run_id == "run_1"][-1]
    finally:
        log.close()


# Health


def test_fault_31_health_is_progress(home: Path, tmp_path: Path) -> None:
    """A daemon that turns is healthy, idle or not; one that is stopped with work waiting is not,
    and exit 6 says so; none of the asking changes a file."""
    with daemon(home, tmp_path / "log") as process:
        assert (
            foldlog(home, "propose", "run_1", stdin=json.dumps(events()).encode()).returncode == 0
        )
        before = settled(home)
        found = health(home)
        assert (found["healthy"], found["role"], found["holder"]) == (True, "daemon", process.pid)
        assert foldlog(home, "project", "--health").returncode == 0
        assert files(home) == before
        with stopped(process):
            assert health(home)["healthy"]  # nothing waits
            with (
                Engine.open(home, author="user:ada") as engine,
                pytest.raises(errors.OutcomeUnknown),
            ):
                engine.run("run_1").propose(SPENT, timeout=0.5)
            until(lambda: not health(home)["healthy"], 20, 0.25)
            told = foldlog(home, "project", "--health", "--json")
            assert told.returncode == 6
            said_so = json.loads(told.stdout)
            assert (said_so["lag"], said_so["holder"]) == (1, process.pid)
        until(lambda: health(home)["lag"] == 0 and health(home)["healthy"], 10, 0.1)


def test_health_where_nobody_is(home: Path) -> None:
    """With nothing waiting and nobody there, nothing is wrong."""
    found = health(home)
    assert (found["healthy"], found["holder"], found["lag"]) == (True, None, 0)


def test_health_counts_alarms(tmp_path: Path) -> None:
    """Runs that nobody looks after are counted, and are no ill health of the projector."""
    home = tmp_path / "home"
    with Engine.open(home, create=True, clock=lambda: wall_clock() - 2 * DAY_US) as engine:
        assert health(home)["alarms"] == {}
        for run_id in ("run_1", "run_2"):
            run = engine.start(run_id, goal="x")
            run.propose(RunTransitioned(to="planning"), expected_revision=1)
    found = health(home)
    assert (found["healthy"], found["alarms"]) == (True, {"SILENT": 2})
    told = foldlog(home, "project", "--health").stdout.decode()
    assert told.endswith("alarms: 2 SILENT\n")


def test_health_where_the_projection_cannot_be_read(home: Path) -> None:
    """What the projection holds is then unknown, and said to be."""
    for place in (home / "projection").glob("*/CURRENT"):
        place.write_text("MANIFEST-999999\n")
    found = health(home)
    assert (found["healthy"], found["alarms"]) == (True, None)


def test_an_idle_daemon_hardly_works(home: Path, tmp_path: Path) -> None:
    """Waiting costs a daemon a few hundredths of a core at most."""
    with daemon(home, tmp_path / "log") as process:
        assert cpu_of(process.pid, 4.0) < 0.1


def cpu_of(pid: int, seconds: float) -> float:
    """The share of a core that a process uses."""

    def ticks() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds
