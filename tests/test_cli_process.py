"""The command line as a process of its own: streams, signals, pipes, terminals, encodings.

Invariants:
- Nothing here sleeps: what has to be waited for is a pipe, a file that is opened, or an end.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foldlog import client
from foldlog.client import Run
from foldlog.testing import Engine
from tests.cli_shell import make_shell
from tests.seats import holder_of

COMMAND = [sys.executable, "-c", "from foldlog.cli.main import main; main()"]
INTERRUPTED, NOBODY_READS = 130, 141


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and an environment of its own, in which processes find what is tested."""
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    make_shell(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", ":".join([*paths, str(tmp_path / "metadata")]))


def foldlog(
    *args: str | bytes, stdin: bytes = b"", **more: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; `more` is added to the environment."""
    return subprocess.run(
        [*COMMAND, *args], input=stdin, capture_output=True, env={**os.environ, **more}, check=False
    )


def on_terminal(*args: str, **more: str) -> tuple[int, str]:
    """Run a command on a terminal of its own; its exit code and all that it wrote."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, *args], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **more}
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:  # how a terminal says that its other end is closed
        pass
    os.close(ours)
    return process.wait(), written.decode()


def test_a_run_from_the_shell() -> None:
    """A home, a run, a proposal and a look at it, each by a process of its own."""
    assert foldlog("init").returncode == 0
    assert foldlog("start", "run_128", "--goal", "x").returncode == 0
    proposal = (
        b'{"events": [{"type": "PhaseChanged", "phase": "diagnose"}], "expected_revision": 1}'
    )
    first = foldlog("propose", "run_128", "--json", stdin=proposal)
    assert json.loads(first.stdout)["outcome"] == "accepted"
    again = foldlog("propose", "run_128", "--json", stdin=proposal)
    assert again.returncode == 3
    assert json.loads(again.stdout)["code"] == "CONFLICT"
    assert json.loads(foldlog("show", "run_128", "--json").stdout)["phase"] == "diagnose"
    assert foldlog("verify").stdout.startswith(b"ok: the log verifies")
    assert foldlog("project", "--once", "--json").stdout == b'{"decided": 0}\n'


def test_python_finds_the_command() -> None:
    """`python -m foldlog` is the command line, where its script is not on the path."""
    command = [sys.executable, "-m", "foldlog", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("foldlog")


def test_data_goes_to_stdout_and_all_else_to_stderr() -> None:
    """An error leaves stdout empty; data leaves stderr empty."""
    missing = foldlog("runs")
    assert (missing.returncode, missing.stdout) == (4, b"")
    assert missing.stderr.count(b"\n") == 1
    version = foldlog("--version")
    assert (version.returncode, version.stderr) == (0, b"")


def test_nobody_reads_the_output() -> None:
    """A closed pipe ends the command quietly."""
    for args in (["explain", "--json"], ["--help"], ["explain", "CONFLICT"]):
        process = subprocess.Popen(
            [*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() in (NOBODY_READS, 1)


def test_interrupted_while_it_waits_for_its_file() -> None:
    """Ctrl-C ends a command with 130 and without a traceback."""
    foldlog("init")
    os.mkfifo("batch")
    process = subprocess.Popen([*COMMAND, "propose", "run_128", "batch"], stderr=subprocess.PIPE)
    # Opening the other end waits until the command has opened its own.
    with open("batch", "wb"):
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == INTERRUPTED
    assert b"Traceback" not in error


def test_interrupted_while_it_waits_for_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after a proposal was handed in names its batch id, since it may be decided yet."""

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    place = tmp_path / "interrupted"
    place.mkdir()
    shell = make_shell(place, monkeypatch)
    with Engine() as engine:
        shell.use(engine)
        monkeypatch.setattr(Run, "propose_json", interrupted)
        result = shell.run("start", "run_128", "--goal", "x")
    assert result.exit_code == INTERRUPTED
    assert re.search(r"foldlog outcome run_128 [0-9a-f-]{36}\n", result.stderr)


def test_colours_on_a_terminal_only() -> None:
    """Colours appear on a terminal, unless NO_COLOR is set or the terminal is dumb."""
    foldlog("init")
    foldlog("start", "run_128", "--goal", "x")
    plain = foldlog("show", "run_128", NO_COLOR="", TERM="xterm")
    assert b"\x1b" not in plain.stdout
    assert "\x1b[1" in on_terminal("show", "run_128", NO_COLOR="", TERM="xterm")[1]
    for off in ({"NO_COLOR": "1", "TERM": "xterm"}, {"NO_COLOR": "", "TERM": "dumb"}):
        assert "\x1b" not in on_terminal("show", "run_128", **off)[1]


def test_progress_on_a_terminal_only() -> None:
    """How far a long command is appears on a terminal, and is gone when its data comes."""
    foldlog("init")
    foldlog("start", "run_128", "--goal", "x")
    assert foldlog("verify").stderr == b""
    code, written = on_terminal("verify")
    assert code == 0
    assert "verified records: 1" in written
    assert written.rindex("\r\x1b[K") < written.index("ok: the log verifies")


def test_a_stream_that_is_no_utf_8() -> None:
    """What an encoding cannot show is shown as its number; JSON stays JSON."""
    foldlog("init")
    foldlog("start", "run_128", "--goal", "fix é 🙂")
    shown = foldlog("show", "run_128", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0
    assert b"fix \\xe9 \\U0001f642" in shown.stdout
    printed = foldlog("show", "run_128", "--json", PYTHONIOENCODING="ascii")
    assert json.loads(printed.stdout.decode("ascii"))["goal"]["statement"] == "fix é 🙂"


def test_arguments_that_are_no_text() -> None:
    """Bytes that are no UTF-8 are refused as malformed, wherever they stand."""
    foldlog("init")
    refused = foldlog("start", "run_128", "--goal", b"\xff", "--json")
    assert refused.returncode == 3
    assert json.loads(refused.stdout)["code"] == "MALFORMED"
    assert foldlog("show", b"\xff").returncode == 4
    assert foldlog("runs", "--home", b"\xff").returncode == 4
    assert foldlog(b"\xff").returncode == 2


def test_closed_streams() -> None:
    """A command whose stderr or stdin is closed still does its work."""
    foldlog("init")
    for closed in ("2>&-", "<&-"):
        line = f"{shlex.join(COMMAND)} runs {closed}"
        assert subprocess.run(line, shell=True, check=False, stdout=subprocess.PIPE).returncode == 0


def test_a_traceback_on_demand_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What foldlog did not expect is one line, and a traceback with FOLDLOG_TRACEBACK."""
    script = (
        "from foldlog.cli import options\nfrom foldlog.cli.main import main\n"
        "options.find_home = lambda settings: 1 / 0\nmain()"
    )
    for more, lines in (({}, 2), ({"FOLDLOG_TRACEBACK": "1"}, 3)):
        done = subprocess.run(
            [sys.executable, "-c", script, "runs"],
            capture_output=True,
            env={**os.environ, **more},
            check=False,
        )
        assert done.returncode == 1
        assert (b"Traceback" in done.stderr) == (lines == 3)
        assert b"ZeroDivisionError" in done.stderr


def test_a_log_that_is_broken_as_a_file_does_not_verify(tmp_path: Path) -> None:
    """Pages that SQLite cannot read are a difference too: a report, and exit 5."""
    home = tmp_path / "home"
    with client.Engine.open(home, create=True, partitions=1) as engine:
        for number in range(40):
            engine.start(f"run_{number}", goal="x" * 2000)
    log = home / "log.sqlite"
    data = bytearray(log.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    log.write_bytes(data)
    done = foldlog("--home", str(home), "verify", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 5
    assert not report["ok"]
    assert report["first_difference"]["found"]


def test_a_run_that_the_projection_lost_does_not_verify(tmp_path: Path) -> None:
    """The log is asked whether there is such a run, not the projection that is to be proven."""
    home = tmp_path / "home"
    with client.Engine.open(home, create=True, partitions=1) as engine:
        engine.start("run_1", goal="x")
        store = holder_of(engine).held[0].partition.store
        store.write({key: None for key, _ in store.scan(b"") if b"run_1" in key})
    done = foldlog("--home", str(home), "verify", "run_1")
    assert done.returncode == 5
    assert foldlog("--home", str(home), "verify", "run_2").returncode == 4
