"""The shared options, before and after the command, and where the home is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from foldlog.cli import main, options
from foldlog.cli.main import COMMANDS, cli
from tests.cli_shell import Shell, make_shell

NAMES = [*(name for commands in COMMANDS.values() for name in commands), "project"]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder."""
    return make_shell(tmp_path, monkeypatch)


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


@pytest.mark.parametrize(
    "line",
    [
        "--home a --json runs",
        "runs --home a --json",
        "--json runs --home a",
        "--home b runs --home a --json",
        "--home b --home a --json runs --json",
        "--home=a runs --json",
    ],
)
def test_options_stand_before_or_after_the_command(shell: Shell, line: str) -> None:
    """--home and --json mean the same on both sides, and the later one wins."""
    for home in ("a", "b"):
        shell.run("init", "--home", home)
        shell.run("start", f"run_{home}", "--goal", "x", "--home", home)
    result = shell.run(*line.split())
    assert [json.loads(row)["run_id"] for row in result.stdout.splitlines()] == ["run_a"]


@pytest.mark.parametrize("line", ["--log nowhere runs --home a", "runs --home a --log nowhere"])
def test_log_stands_before_or_after_the_command(shell: Shell, line: str) -> None:
    """--log is heard on both sides."""
    result = shell.run(*line.split())
    assert result.exit_code == 2
    assert "'nowhere' is not kafka://HOST" in result.stderr


def test_options_go_before_home_variable(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """--home wins over FOLDLOG_HOME, which wins over the nearest .foldlog."""
    for home in ("a", "b", ".foldlog"):
        shell.run("init", "--home", home, "--partitions", "1")
        shell.run("start", f"run_{home.strip('.')}", "--goal", "x", "--home", home)
    assert shell.json("runs")[0]["run_id"] == "run_foldlog"
    monkeypatch.setenv("FOLDLOG_HOME", "b")
    assert shell.json("runs")[0]["run_id"] == "run_b"
    assert shell.json("runs", "--home", "a")[0]["run_id"] == "run_a"
    monkeypatch.setenv("FOLDLOG_HOME", "")
    assert shell.json("runs")[0]["run_id"] == "run_foldlog"


def test_init_makes_a_home_here_inside_another(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` never takes a home above for the one that it is to make."""
    shell.run("init")
    inner = shell.folder / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    shell.run("init")
    assert (inner / ".foldlog").is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_only_init_makes_a_home(shell: Shell, name: str) -> None:
    """Every other command ends with 4 where there is no home, and leaves nothing behind."""
    if name in ("init", "explain", "completion"):
        return
    arguments = {
        "start": ["r", "--goal", "x"], "cancel": ["r", "--reason", "x"], "signal": ["r", "k"],
        "outcome": ["r", "b"], "import": ["-"], "diff": ["r", "1", "1"], "project": ["--once"],
        "resolve": ["r", "c", "keep_current", "--reason", "x"], "release": ["r", "--reason", "x"],
        "reconcile": ["r", "e", "failed", "--evidence", "a://b"],
        "fork": ["r", "--at", "1", "--as", "n"], "snapshot": ["list"],
    }  # fmt: skip
    needs_run = (
        "show history propose why wait conflicts export resume-check context archive".split()
    )
    default = ["r"] if name in needs_run else []
    for more in ([], ["--home", "nowhere"]):
        result = shell.run(name, *arguments.get(name, default), *more, stdin="{}")
        assert result.exit_code == 4
        assert "HOME_MISSING" in result.stderr
        assert re.search("foldlog .*init", result.stderr)
        assert result.stdout == ""
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_an_example_that_parses(shell: Shell, name: str) -> None:
    """The examples in --help name the command, and their options and arguments are understood."""
    import shlex

    command = _command(name)
    assert isinstance(command, options.Command)
    assert command.examples
    shown = shell.run(name, "--help").stdout
    for example in command.examples:
        assert example in shown
        assert f"foldlog {name}" in example
        words = shlex.split(example.split("|")[-1].split(" > ")[0])
        command.make_context(name, words[2:], resilient_parsing=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_the_shared_options(shell: Shell, name: str) -> None:
    """--home, --log, --json and --help stand on each command."""
    declared = {opt for param in _command(name).params for opt in param.opts}
    assert {"--home", "--log", "--json"} <= declared


def test_the_list_of_commands_says_what_their_help_says() -> None:
    """The words in `foldlog --help`, which imports no command, are the first line of each help."""
    for commands in COMMANDS.values():
        for name, (_, words) in commands.items():
            assert (_command(name).help or "").split("\n")[0] == words


def test_commands_of_other_packages(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point adds a command; one that cannot be loaded harms no other."""
    points = {
        "explain-too": EntryPoint("explain-too", "foldlog.cli.explaining:explain", "x"),
        "broken": EntryPoint("broken", "foldlog.no_such_module:x", "x"),
    }
    monkeypatch.setattr(main, "_added", lambda: points)
    assert shell.run("explain-too", "CONFLICT").exit_code == 0
    listed = shell.run("--help").stdout
    assert "explain-too" in listed
    assert "cannot be loaded" in listed
    assert shell.run("broken").exit_code == 1


def test_help_imports_neither_engine_nor_commands() -> None:
    """`foldlog --help` starts at once: no command, storage or codec is imported for it."""
    script = (
        "import sys\nfrom foldlog.cli.main import cli\n"
        "try:\n    cli.main(['--help'], prog_name='foldlog')\nexcept SystemExit:\n    pass\n"
        "print(sorted(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = ("rocksdict", "fastavro", "pydantic", "sqlite3", "confluent_kafka", "rfc8785",
             "foldlog.client", "foldlog.cli.reading", "foldlog.log", "foldlog.store")  # fmt: skip
    assert [name for name in heavy if f"'{name}'" in done.stderr] == []
