"""The house style as tests: sizes, docstrings, words, and what each ring may import.

Invariants:
- A ratchet only goes down: an entry whose code is now shorter than the entry says fails too.
- The rings' imports are held twice, here module by module and in the import contracts for chains.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = {
    "foldlog": REPOSITORY / "engine",
    "foldlog_projector": REPOSITORY / "projector",
    "foldlog_schemas": REPOSITORY / "schemas",
}

FUNCTION_LINES_MAX = 69
FILE_LINES_MAX = 600
# What is longer for now: "path" -> lines, "path::function" -> lines. Numbers only go down.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}

# Words of the "not" column of the design's vocabulary that would name another thing here.
BANNED_NAMES = {
    "session": "run", "request": "proposal", "response": "outcome", "backup": "snapshot",
}  # fmt: skip
BANNED_MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

# The standard library that the core may use: nothing that reads a clock, randomness or the world.
CORE_STDLIB = frozenset(
    """
    __future__ abc bisect collections contextlib dataclasses decimal enum functools graphlib hashlib
    heapq itertools json operator re string struct types typing unicodedata
    """.split()
)
# Ring -> what of ours it may import, by prefix.
RINGS = {
    "foldlog.core": {"foldlog.core"},
    "foldlog.wire": {"foldlog.wire", "foldlog.core", "foldlog_schemas"},
    "foldlog.log": {"foldlog.log"},
    "foldlog.store": {"foldlog.store"},
    "foldlog_schemas": {"foldlog_schemas"},
    "foldlog": {"foldlog", "foldlog_schemas"},
}
# A third-party package -> the only modules that may import it, by prefix.
THIRD_PARTY = {
    "click": {"foldlog.cli", "foldlog_projector"},
    "confluent_kafka": {"foldlog.log.kafka"},
    "fastavro": {"foldlog.wire.avro", "foldlog_schemas"},
    "obstore": {"foldlog.snapshots.place"},
    "rocksdict": {"foldlog.store.rocks"},
}


def _package_files() -> list[Path]:
    return sorted(path for name, root in ROOTS.items() for path in (root / name).rglob("*.py"))


def _test_files() -> list[Path]:
    return sorted((REPOSITORY / "tests").rglob("*.py"))


def _all_files() -> list[Path]:
    others = [path for name in ("bench", "examples") for path in (REPOSITORY / name).rglob("*.py")]
    return _package_files() + _test_files() + sorted(others)


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=_name(path))


def _functions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}.{child.name}" if prefix else child.name
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield name, child
        yield from _functions(child, name)


def _module(path: Path) -> str:
    for root in ROOTS.values():
        if path.is_relative_to(root):
            parts = path.relative_to(root).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    raise AssertionError(f"{path} is in no source root")


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions; relative ones made absolute."""
    module = _module(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from foldlog import wire` imports foldlog.wire: both names count, the longer decides.
            if base in ROOTS:
                yield from (f"{base}.{alias.name}" for alias in node.names)
            else:
                yield base


def _within(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def _check_ratchet(found: dict[str, int], allowed: dict[str, int], limit: int) -> None:
    grown = {name: n for name, n in found.items() if n > max(limit, allowed.get(name, 0))}
    assert not grown, f"longer than {limit} lines: {grown}"
    stale = {name: n for name, n in allowed.items() if found.get(name, 0) < n}
    assert not stale, f"shorter now, lower or remove these entries: {stale}"


def test_files_are_short() -> None:
    """No file is longer than the limit, or than its entry in the ratchet."""
    found = {
        _name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in _all_files()
    }
    _check_ratchet(found, LONG_FILES, FILE_LINES_MAX)


def test_functions_are_short() -> None:
    """No function is longer than the limit, or than its entry in the ratchet."""
    found = {
        f"{_name(path)}::{name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in _all_files()
        for name, node in _functions(_tree(path))
    }
    _check_ratchet(found, LONG_FUNCTIONS, FUNCTION_LINES_MAX)


def test_every_module_says_its_job() -> None:
    """Every Python file opens with a docstring."""
    assert [_name(path) for path in _all_files() if not ast.get_docstring(_tree(path))] == []


def test_every_test_states_what_holds() -> None:
    """Each test has a docstring, and its first line is a sentence."""
    poor = []
    for path in _test_files():
        for name, node in _functions(_tree(path)):
            if node.name.startswith("test_"):
                first = (ast.get_docstring(node) or "").split("\n\n")[0].rstrip()
                if not first.endswith((".", "!", "?")):
                    poor.append(f"{_name(path)}::{name}")
    assert poor == []


def test_no_marks_of_unfinished_work() -> None:
    """Unfinished work is an issue, not a comment."""
    files = [path for path in _all_files() if path != Path(__file__).resolve()]
    marked = [
        f"{_name(path)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BANNED_MARKS.search(line)
    ]
    assert marked == []


def _defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def test_names_use_the_vocabulary() -> None:
    """What a package defines is not named with a word that the vocabulary rules out."""
    wrong = []
    for path in _package_files():
        for name, line in _defined_names(_tree(path)):
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
            for word in words:
                better = BANNED_NAMES.get(word.removesuffix("s"))
                if better is not None:
                    wrong.append(f"{_name(path)}:{line}: {name} (say {better})")
    assert wrong == []


@pytest.mark.parametrize("ring", sorted(RINGS))
def test_a_ring_imports_only_inner_rings(ring: str) -> None:
    """Of our own packages, a module imports those that its ring allows, and no others."""
    wrong = [
        f"{_module(path)} imports {name}"
        for path in _package_files()
        if _within(_module(path), {ring})
        for name in _imports(path)
        if name.split(".")[0] in ROOTS and not _within(name, RINGS[ring])
    ]
    assert wrong == []


def test_the_core_imports_only_pure_modules() -> None:
    """Nothing in the core can read a clock, a random number, the environment or a file."""
    wrong = [
        f"{_module(path)} imports {name}"
        for path in _package_files()
        if _within(_module(path), {"foldlog.core"})
        for name in _imports(path)
        if name.split(".")[0] not in CORE_STDLIB | {"foldlog"}
    ]
    assert wrong == []


def test_each_third_party_package_has_its_place() -> None:
    """A package that could be replaced is imported in one place, so that it can be."""
    wrong = [
        f"{_module(path)} imports {name}"
        for path in _package_files()
        for name in _imports(path)
        if (top := name.split(".")[0]) in THIRD_PARTY
        and not _within(_module(path), THIRD_PARTY[top])
    ]
    assert wrong == []
