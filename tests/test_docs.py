"""The documents: links that lead somewhere, and a code map that matches the code.

Invariants:
- A path in the code map is written in backticks, relative to the repository, to `engine/`, or to
  the package it lies in: `engine/foldlog/core/values.py`, `foldlog/core/values.py` and
  `core/values.py` name the same file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ARCHITECTURE = REPOSITORY / "engine" / "ARCHITECTURE.md"
PACKAGES = [
    REPOSITORY / "engine" / "foldlog",
    REPOSITORY / "projector" / "foldlog_projector",
    REPOSITORY / "schemas" / "foldlog_schemas",
]
HIDDEN = {".git", ".venv", ".pytest_cache", "node_modules", "dist", "build"}
LINK = re.compile(
    r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE
)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def _documents() -> list[Path]:
    found = REPOSITORY.rglob("*.md")
    return sorted(p for p in found if not HIDDEN & set(p.relative_to(REPOSITORY).parts))


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def _anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as the usual viewers make them."""
    headings = re.findall(r"^#+\s+(.+?)\s*#*$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", _documents(), ids=_name)
def test_links_lead_somewhere(document: Path) -> None:
    """Each relative link of a document names a file, and a heading where it names one."""
    broken = []
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists():
            broken.append(target)
        elif anchor and file.suffix == ".md":
            if anchor not in _anchors(file.read_text(encoding="utf-8")):
                broken.append(target)
    assert broken == []


def _code_map() -> str:
    """The section of ARCHITECTURE.md under the heading "Code map"."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    match = re.search(r"^(#+) code map\s*$", text, re.MULTILINE | re.IGNORECASE)
    assert match is not None, "engine/ARCHITECTURE.md has no heading `Code map`"
    rest = text[match.end() :]
    end = re.search(rf"^#{{1,{len(match.group(1))}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def _mapped_paths() -> set[str]:
    """What the code map names in backticks and looks like a path."""
    quoted = re.findall(r"`([^`\n]+)`", _code_map())
    return {q for q in quoted if re.fullmatch(r"[\w./-]+(\.(py|md|avsc|toml|sh|yml)|/)", q)}


def _bases() -> list[Path]:
    return [REPOSITORY, REPOSITORY / "engine", *PACKAGES, *(p.parent for p in PACKAGES)]


def test_the_code_map_names_what_exists() -> None:
    """Each path in the code map is there."""
    missing = {p for p in _mapped_paths() if not any((base / p).exists() for base in _bases())}
    assert missing == set()


def test_no_module_is_an_orphan() -> None:
    """Each module of the packages is named in the code map, by its path."""
    mapped = {
        found
        for path in _mapped_paths()
        for base in _bases()
        if (found := (base / path).resolve()).is_file()
    }
    modules = {p for package in PACKAGES for p in package.rglob("*.py") if p.name != "__init__.py"}
    assert sorted(_name(p) for p in modules - mapped) == []


def test_decisions_have_numbers_of_their_own() -> None:
    """Decision notes are NNNN-title.md, no number twice, with context, decision, consequences."""
    notes = sorted((REPOSITORY / "engine" / "decisions").glob("*.md"))
    numbers = [note.name[:5] for note in notes]
    assert all(re.fullmatch("[0-9]{4}-", number) for number in numbers)
    assert len(set(numbers)) == len(numbers)
    for note in notes:
        text = note.read_text(encoding="utf-8")
        for heading in ("Context", "Decision", "Consequences"):
            assert f"\n## {heading}\n" in text, f"{note.name} has no section {heading}"
