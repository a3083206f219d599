"""The README's first five minutes: what it tells a reader to type works, and prints what it shows.

Invariants:
- Blocks run in their order in one empty folder, with the `foldlog` of the tested environment.
- Compared is what a `text` block shows of stdout; times, ids, hashes and paths may differ.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
MASKS = (
    (r"/\S*/\.foldlog", "HOME"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"TIME \(\d+ s ago\)", "TIME (AGO)"),
    (r"[0-9a-f]{64}", "HASH"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "BATCH"),
    (r"healthy: (process \d+|nobody)", "healthy: HOLDER"),  # the daemon may not be there yet
)


def _blocks(heading: str) -> list[tuple[str, str]]:
    """The fenced blocks of a part of "First five minutes", as (language, text)."""
    part = README.read_text("utf-8").split(f"\n### {heading}\n")[1]
    part = re.split(r"^##+ ", part, flags=re.MULTILINE)[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


def _shown(text: str) -> str:
    """A text without its line breaks, and without what differs each time."""
    joined = " ".join(text.split())
    for pattern, name in MASKS:
        joined = re.sub(pattern, name, joined)
    return joined


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `foldlog` is the one under test, and nothing of the caller's."""
    found = shutil.which("foldlog", path=str(Path(sys.executable).parent))
    if found is None:  # not installed: the sources on PYTHONPATH are under test
        found = str(tmp_path / "bin" / "foldlog")
        code = "from foldlog.cli.main import main; main()"
        Path(found).parent.mkdir()
        Path(found).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
        Path(found).chmod(0o755)
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    if "PYTHONPATH" in kept:
        folders = [str(Path(folder).resolve()) for folder in kept["PYTHONPATH"].split(os.pathsep)]
        kept["PYTHONPATH"] = os.pathsep.join([*folders, str(_commands_of_the_sources(tmp_path))])
    path = os.pathsep.join([str(Path(found).parent), os.environ["PATH"]])
    return {**kept, "PATH": path, "HOME": str(tmp_path), "USER": "ada"}


def _commands_of_the_sources(folder: Path) -> Path:
    """A folder for PYTHONPATH that says what an installation would: who adds which commands."""
    about = folder / "site" / "foldlog_sources-0.dist-info"
    about.mkdir(parents=True)
    settings = tomllib.loads((README.parent / "pyproject.toml").read_text("utf-8"))
    commands = settings["project"]["entry-points"]["foldlog.commands"]
    lines = [f"{name} = {target}\n" for name, target in commands.items()]
    (about / "entry_points.txt").write_text("[foldlog.commands]\n" + "".join(lines))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: foldlog_sources\nVersion: 0\n")
    return about.parent


def _run(language: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    commands = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    done = subprocess.run(
        [*commands[language], text], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "headings",
    ["In the shell, With a daemon beside", "In Python", "An agent that survives", "In your tests"],
)
def test_the_first_five_minutes(headings: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Each block runs, and where the README shows what it prints, it prints that."""
    folder = tmp_path / "work"
    folder.mkdir()
    blocks = [block for heading in headings.split(", ") for block in _blocks(heading)]
    assert len(blocks) > 1
    printed = ""
    for language, text in blocks:
        if language == "text":
            assert _shown(printed) == _shown(text)
        else:
            printed = _run(language, text, folder, environment)


def test_every_exit_code_is_listed() -> None:
    """The table names the exit codes that have a page."""
    from foldlog.cli.explaining import codes

    table = README.read_text("utf-8").split("## Exit codes")[1].split("\n## ")[0]
    listed = {
        code for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for code in row.split(", ")
    }
    assert {f"EXIT_{code}" for code in listed} == {c for c in codes() if c.startswith("EXIT_")}
