"""Commands that go on, as processes of their own: they follow what other processes do.

Invariants:
- Nothing here sleeps: what has to be waited for is a line of output, or an end.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foldlog import Engine
from foldlog.log.memory import MemoryLog
from foldlog_projector.follower import follow
from tests import needs
from tests.cli_runs import accept
from tests.test_cli_golden_operating import GOAL
from tests.test_cli_process import (
    COMMAND,
    INTERRUPTED,
    environment,
    foldlog,
    on_terminal,
)

__all__ = ["environment"]


@pytest.fixture
def home(environment: None) -> Path:
    """A home of one partition here, with one run in it."""
    with Engine.open(".foldlog", create=True, partitions=1) as engine:
        accept(engine, "run_1", GOAL)
    return Path(".foldlog")


@contextmanager
def going_on(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; killed at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *args], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that a command prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_history_follows(home: Path) -> None:
    """Rows come as other processes make them, each at once, until Ctrl-C."""
    with going_on("history", "run_1", "--follow", "--rejected", "--json") as process:
        assert json.loads(next_line(process))["sequence"] == 1
        foldlog("signal", "run_1", "k")
        assert json.loads(next_line(process))["revision_after"] == 2
        foldlog("release", "run_1", "--reason", "x")
        assert json.loads(next_line(process))["code"] == "INVALID_TRANSITION"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == INTERRUPTED


def test_a_wait_ends_when_another_process_moves_the_run(home: Path) -> None:
    """`wait` sees what another process proposes."""
    with going_on("wait", "run_1", "--until", "finish", "--json") as process:
        foldlog("cancel", "run_1", "--reason", "x")
        assert json.loads(next_line(process))["result"] == "cancelled"
        assert process.wait(60) == 0


def test_a_read_after_the_outcome_of_another_process(home: Path) -> None:
    """`show --after` with the sequence of an outcome is at least as new as that outcome."""
    with Engine.open(home):
        outcome = json.loads(foldlog("signal", "run_1", "k", "--json").stdout)
        shown = foldlog("show", "run_1", "--after", str(outcome["sequence"]), "--json")
        assert json.loads(shown.stdout)["revision"] == outcome["revision"]


def test_a_follower_folds_and_decides_nothing(home: Path) -> None:
    """`project --follow` tells how far the log is, and leaves what waits to others."""
    with going_on("project", "--follow", "--json") as process:
        first = json.loads(next_line(process))
        assert (first["partition"], first["sequence"], first["lag"]) == (0, 1, 0)
        foldlog("signal", "run_1", "k")
        second = json.loads(next_line(process))
        assert second["sequence"] == 2
        assert second["head"] != first["head"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    foldlog("signal", "run_1", "k", "--timeout", "0")
    with going_on("project", "--follow") as process:
        assert next_line(process).startswith("partition 0: sequence 2, head ")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert json.loads(foldlog("status", "--json").stdout)["lag"] == 1


def test_a_follower_leaves_signals_as_they_were() -> None:
    """Who follows in a process of his own finds its signals as he left them."""
    before = signal.getsignal(signal.SIGTERM)
    rows = follow(MemoryLog(1, lambda: 1))
    assert next(rows)["sequence"] == 0
    assert signal.getsignal(signal.SIGTERM) is not before
    rows.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_follower_stops_at_what_does_not_fit(home: Path) -> None:
    """The first record that does not fit ends the follower with 5, and is named."""
    with sqlite3.connect(home / "log.sqlite") as log:
        log.execute("UPDATE events_0 SET head = zeroblob(32)")
    log.close()
    done = foldlog("project", "--follow", "--json")
    assert (done.returncode, done.stdout) == (5, b"")
    assert b"DAMAGED: partition 0, run run_1, sequence 1: partition hash" in done.stderr


def test_doctor_of_a_damaged_home(home: Path) -> None:
    """Where no other command opens the home any more, doctor still says what is wrong."""
    with sqlite3.connect(home / "log.sqlite") as log:
        log.execute("DELETE FROM events_0")
    log.close()
    assert foldlog("show", "run_1").returncode == 5
    found = foldlog("doctor")
    assert found.returncode == 5
    assert b"the projection's head is not in the log" in b" ".join(found.stdout.split())


def test_colour_says_nothing_that_words_do_not(home: Path) -> None:
    """On a terminal the same words come, coloured unless NO_COLOR is set."""
    for args in (["doctor"], ["status"], ["why", "run_1"], ["show", "run_1"]):
        _, coloured = on_terminal(*args, NO_COLOR="", TERM="xterm")
        code, plain = on_terminal(*args, NO_COLOR="1", TERM="xterm")
        assert code == 0
        assert "\x1b[" in coloured
        assert "\x1b[" not in plain


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last of these words."""
    more = {
        "_FOLDLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "from foldlog.cli.main import cli; cli(prog_name='foldlog')"
    done = subprocess.run(
        [COMMAND[0], "-c", code], env={**os.environ, **more}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_what_a_shell_completes(home: Path) -> None:
    """Commands, options, statuses and the ids of runs; nothing where there is no home."""
    with Engine.open(home) as engine:
        accept(engine, "run_2", GOAL)
        accept(engine, "other", GOAL)
    assert completed("foldlog", "conf") == ["conflicts"]
    assert completed("foldlog", "show", "run") == ["run_1", "run_2"]
    assert completed("foldlog", "verify", "o") == ["other"]
    assert completed("foldlog", "wait", "run_1", "--until", "r") == ["running", "retry"]
    assert "--follow" in completed("foldlog", "history", "run_1", "--f")
    assert completed("foldlog", "--home", "nowhere", "show", "run") == []


def test_a_completion_script_works_in_its_shell(home: Path, tmp_path: Path) -> None:
    """bash takes the script, and knows then what completes foldlog."""
    bash = needs.program("bash")
    (tmp_path / "script").write_bytes(foldlog("completion", "bash").stdout)
    shown = subprocess.run(
        [bash, "-c", f". {tmp_path}/script && complete -p foldlog"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "_foldlog_completion" in shown.stdout
