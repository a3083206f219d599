"""Golden transcripts of the command snapshot, and of verify and replay where there are snapshots.

Invariants:
- A golden file is what a user sees at 80 columns without colour; `UPDATE_GOLDEN=1` rewrites it.
- Sizes differ from run to run with what is compressed: they stand as 12345.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli_shell import Shell, make_shell
from tests.snapshot_homes import flip

SIZE = re.compile(
    r"\b[0-9]{1,2},?[0-9]{3}\b(?= bytes)|\b[0-9]{5}\b|(?<=bytes_copied\": )[0-9]{4,5}"
)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder."""
    return make_shell(tmp_path, monkeypatch)


def is_golden(shell: Shell, name: str) -> None:
    """Compare the transcript, with sizes replaced."""
    shell.lines = [SIZE.sub("12345", line) for line in shell.lines]
    shell.is_golden(name)


@pytest.mark.parametrize("action", ["restore", "verify"])
def test_a_snapshot_of_another_partition_than_the_one_named(shell: Shell, action: str) -> None:
    """What is named twice and does not agree is a usage error, and changes nothing."""
    shell.run("init", "--partitions", "2")
    for number in range(8):  # some of them in each
        shell.run("start", f"run_{number}", "--goal", "x")
    rows = shell.json("snapshot", "create")
    [name] = [row["name"] for row in rows if row["partition"] == 0]
    result = shell.run("snapshot", action, name, "--partition", "1")
    assert result.exit_code == 2
    assert f"snapshot {name} is of partition 0" in result.stderr
    assert shell.run("snapshot", action, name, "--partition", "0").exit_code == 0


def test_snapshot(shell: Shell) -> None:
    """Snapshots are taken, listed, verified, pruned and restored, and what is wrong is said."""
    shell.run("snapshot", "list")
    shell.run("init", "--partitions", "1")
    shell.run("snapshot", "create")
    shell.run("snapshot", "list")
    shell.run("snapshot", "verify")
    shell.run("start", "run_128", "--goal", "x")
    shell.run("snapshot", "create")
    shell.run("snapshot", "create")
    shell.run("signal", "run_128", "k", "--id", "s1")
    shell.run("snapshot", "create", "--json")
    shell.run("snapshot", "list")
    shell.run("snapshot", "verify")
    shell.run("snapshot", "verify", "--json")
    shell.run("signal", "run_128", "k", "--id", "s2")
    shell.run("verify")
    shell.run("replay")
    shell.run("replay", "--from", "snapshot")
    shell.run("replay", "run_128", "--from", "snapshot", "--json")
    shell.run("snapshot", "restore")
    shell.run("snapshot", "restore", "--json")
    shell.run("verify", "--json")
    shell.run("snapshot", "create", "--partition", "0")
    shell.run("snapshot", "prune")
    shell.run("snapshot", "prune", "--json")
    is_golden(shell, "snapshot")


def test_snapshot_that_is_damaged(shell: Shell) -> None:
    """A damaged snapshot is named with its file; the home recovers from the next older one."""
    shell.run("init", "--partitions", "1")
    shell.run("start", "run_128", "--goal", "x")
    shell.run("snapshot", "create")
    shell.run("signal", "run_128", "k", "--id", "s1")
    shell.run("snapshot", "create")
    home = shell.folder / ".foldlog"
    newest = max((home / "snapshots" / "0").iterdir())
    flip(newest / "files" / "CURRENT", 3)
    shell.note("a byte of the newest one's CURRENT is changed")
    shell.run("snapshot", "verify")
    shell.run("snapshot", "verify", "--json")
    shell.run("verify")
    shell.run("replay", "--from", "snapshot")
    shell.run("snapshot", "restore", newest.name)
    shell.run("snapshot", "restore")
    shell.run("snapshot", "list")
    shell.run("snapshot", "list", "--json")
    shell.run("verify")
    shell.run("snapshot", "verify", newest.name)
    for wrong in (
        ("create", "x"),
        ("verify", "x"),
        ("prune", "--keep", "1"),
        ("list", "--keep", "3"),
        ("list", "--partition", "7"),
        ("mend",),
        (),
    ):
        shell.run("snapshot", *wrong)
    is_golden(shell, "snapshot_damaged")
