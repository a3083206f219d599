"""engine/REFERENCE.md against what the commands declare and print."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests import cli_reference
from tests.cli_reference import BEGIN, END, REFERENCE
from tests.cli_shell import GOLDEN, make_shell


@pytest.fixture(autouse=True)
def _all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shell(tmp_path, monkeypatch)


def test_the_reference_says_what_help_says() -> None:
    """Every command stands in the reference with its options, words and examples, and no other."""
    text = REFERENCE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    found, after = rest.split(END)
    if os.environ.get("UPDATE_GOLDEN"):
        found = f"\n{cli_reference.made()}\n"
        REFERENCE.write_text(f"{before}{BEGIN}{found}{END}{after}", "utf-8")
    assert found.strip() == cli_reference.made().strip()


def _printed(command: str) -> list[dict[str, Any]]:
    """The objects that the command printed in the golden transcripts."""
    found = []
    for path in GOLDEN.glob("*.txt"):
        for block in path.read_text("utf-8").split("\n\n"):
            typed, *lines = block.split("\n")
            if f"foldlog {command}" in typed:
                found += [json.loads(line) for line in lines if line.startswith("{")]
    return found


def _rows() -> list[tuple[str, str]]:
    text = REFERENCE.read_text("utf-8").split("## What `--json` prints")[1].split(BEGIN)[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE)
    return [(name, keys) for names, keys in rows for name in re.findall(r"`([\w-]+)`", names)]


@pytest.mark.parametrize(("name", "keys"), _rows(), ids=lambda value: str(value)[:12])
def test_the_reference_names_the_keys_of_json(name: str, keys: str) -> None:
    """Every key that a command printed stands in the reference, those of `show` aside."""
    named = set(re.findall(r"\w+", keys))
    printed = _printed(name)
    assert printed
    if name != "show":
        assert {key for each in printed for key in each} - named == set()


def test_the_reference_is_complete() -> None:
    """Each command has a row on what its JSON is."""
    named = {name for name, _ in _rows()}
    assert named == {name for _, name, _ in cli_reference.commands()}
