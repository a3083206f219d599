"""Golden transcripts of rebuild, and of a home with a run that cannot be migrated.

Invariants:
- A golden file is what a user sees at 80 columns without colour; `UPDATE_GOLDEN=1` rewrites it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cli_shell import Shell, make_shell
from tests.golden_homes import GOLDEN, unpacked


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder."""
    return make_shell(tmp_path, monkeypatch)


def test_rebuild(shell: Shell) -> None:
    """A projection is rebuilt, with and without snapshots, and says how it compares."""
    shell.run("rebuild")
    shell.run("init", "--partitions", "2")
    shell.run("start", "run_128", "--goal", "x")
    shell.run("start", "run_129", "--goal", "x")
    shell.run("rebuild")
    shell.run("snapshot", "create")
    shell.lines.pop()  # sizes differ from run to run
    shell.lines.pop()
    shell.lines.pop()
    shell.run("signal", "run_128", "k", "--id", "s1")
    shell.run("rebuild", "--json")
    shell.run("rebuild", "--from", "start", "--partition", "1")
    shell.run("verify")
    shell.run("rebuild", "--partition", "2")
    shell.run("rebuild", "--from", "store")
    shell.run("rebuild", "run_128")
    shell.is_golden("rebuild")


def test_a_run_that_needs_a_migration(shell: Shell) -> None:
    """A home of format 1 with a run changed by hand: how it is shown, refused and mended."""
    unpacked(GOLDEN / "format-1", "damaged", shell.folder)
    os.rename(shell.folder / "damaged", shell.folder / ".foldlog")
    shell.run("runs")
    shell.run("show", "bad")
    shell.run("signal", "bad", "k", "--id", "s1")
    shell.run("why", "bad")
    shell.run("resume-check", "bad")
    shell.run("rebuild")
    shell.run("verify")
    shell.run("rebuild", "--from", "start")
    shell.run("show", "bad")
    shell.run("signal", "bad", "k", "--id", "s2")
    shell.lines = [re.sub(r"\(\d+ days ago\)", "(333 days ago)", line) for line in shell.lines]
    shell.is_golden("migration")
