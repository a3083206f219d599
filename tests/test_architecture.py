"""ARCHITECTURE.md sends a reader to the right file: what a row names is in a file of that row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parent.parent / "engine"
TABLE = (ENGINE / "ARCHITECTURE.md").read_text("utf-8").split("## Where to change what\n")[1]
ROWS = re.findall(r"^\| (.*) \|$", TABLE.split("\n## ")[0], re.MULTILINE)[2:]
# Words in code font that are no names in the code.
WORDS = {".avsc", "diff"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0])
def test_what_a_row_names_is_where_it_says(row: str) -> None:
    """Each file of a row is there, and each name of a row stands in one of its files."""
    quoted = re.findall(r"`([^`]+)`", row)
    files = [name for name in quoted if name.startswith("foldlog/")]
    assert files
    assert [name for name in files if not (ENGINE / name).exists()] == []
    text = "".join((ENGINE / name).read_text("utf-8") for name in files if name.endswith(".py"))
    names = [name.split(".")[-1] for name in quoted if "/" not in name and name not in WORDS]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)] == []


def test_there_are_rows() -> None:
    """The table is found, and has not shrunk to nothing."""
    assert len(ROWS) > 20
