"""A shell for the tests of the command line: runs commands, keeps the transcript, compares it.

Invariants:
- What a command sees of the world is fixed: folder, USER, width; no colour, no foldlog variables.
- A transcript is what a user would see, with `2>` before what went to stderr and `=` before the
  exit code where it is not 0; ids, hashes, times and folders that change are replaced by others of
  the same width, the same ones by the same one.
- `UPDATE_GOLDEN=1 pytest` rewrites the golden files instead of comparing them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foldlog.cli import options
from foldlog.cli.main import ENTRY_POINTS, cli
from foldlog.cli.safe import safe
from foldlog.version import __version__

GOLDEN = Path(__file__).parent / "golden" / "cli"
CHANGING = re.compile(
    r"(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})|(?P<hash>\b[0-9a-fA-F]{64}\b)"
    r"|(?P<identity>\b[0-9a-f]{32}\b)|(?P<short>\b[0-9a-f]{12}\b)"
    r'|(?P<record>(?<="record": ")[A-Za-z0-9+/=]+)'
    r"|(?P<instant>20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)|(?P<time>20\d\d-\d\d-\d\d [0-9:]{8}Z)"
)


class Shell:
    """Runs `foldlog` in one folder; `engine`, if set, is used instead of a home on disk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.replaced: dict[str, str] = {}
        self._patch = monkeypatch
        self._runner = CliRunner()

    def use(self, engine: Any) -> None:
        """Let every command work on this engine."""

        @contextmanager
        def opened(settings: options.Settings) -> Iterator[Any]:
            yield engine

        self._patch.setattr(options, "opened", opened)

    def run(self, *args: str, stdin: str | bytes = b"") -> Result:
        """Run a command and keep it in the transcript."""
        result = self._runner.invoke(cli, list(args), input=stdin, prog_name="foldlog")
        # What no error of ours stands for would end in a traceback.
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        self._keep(args, stdin, result)
        return result

    def json(self, *args: str, stdin: str | bytes = b"") -> list[Any]:
        """Run a command with --json; the objects that it printed."""
        return [
            json.loads(line)
            for line in self.run(*args, "--json", stdin=stdin).stdout.split("\n")[:-1]
        ]

    def propose(self, run_id: str, *events: dict[str, Any], **fields: Any) -> Result:
        """Run `propose` with a proposal from standard input."""
        text = json.dumps({**fields, "events": list(events)})
        return self.run("propose", run_id, stdin=text)

    def note(self, text: str) -> None:
        """A line of the transcript that says what happens beside the commands."""
        self.lines.append(f"# {text}")

    def _keep(self, args: tuple[str, ...], stdin: str | bytes, result: Result) -> None:
        typed = stdin.decode(errors="backslashreplace") if isinstance(stdin, bytes) else stdin
        pipe = f"echo {shlex.quote(typed)} | " if typed else ""
        self.lines.append(safe(f"$ {pipe}foldlog {shlex.join(args)}".rstrip()))
        self.lines += result.stdout.splitlines()
        self.lines += [f"2> {line}".rstrip() for line in result.stderr.splitlines()]
        if result.exit_code:
            self.lines.append(f"= {result.exit_code}")
        self.lines.append("")

    def transcript(self) -> str:
        """All of it, with what changes from run to run replaced."""
        text = "\n".join(self.lines).replace(str(self.folder), "/home/anna")
        text = text.replace(f"foldlog {__version__}", "foldlog VERSION")
        return CHANGING.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        found = match.group().lower()
        if match.lastgroup == "record":
            return "BASE64"
        if match.lastgroup == "instant":
            return "2026-01-01T00:00:00.000000Z"
        if match.lastgroup == "time":
            return "2026-01-01 00:00:00Z"
        if found not in self.replaced:
            same = sum(len(known) == len(found) for known in self.replaced) + 1
            self.replaced[found] = re.sub("[0-9a-f]", "0", found[:-4]) + f"{same:04x}"
        return self.replaced[found]

    def is_golden(self, name: str) -> None:
        """Compare the transcript with the golden file of this name."""
        path = GOLDEN / f"{name}.txt"
        found = self.transcript()
        if os.environ.get("UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, encoding="utf-8")
        assert path.exists(), f"{path} is missing: UPDATE_GOLDEN=1 pytest"
        assert found == path.read_text(encoding="utf-8")


def has_commands(folder: Path) -> list[str]:
    """A search path that makes pyproject.toml's entry points known, where no installation does."""
    if entry_points(group=ENTRY_POINTS):
        return []
    project = tomllib.loads((GOLDEN.parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / "foldlog-0.dist-info"
    info.mkdir()
    points = project["entry-points"][ENTRY_POINTS].items()
    lines = [f"[{ENTRY_POINTS}]", *(f"{name} = {value}" for name, value in points)]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foldlog\nVersion: 0\n")
    return [str(folder)]


def make_shell(place: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in a new folder of this place, with a fixed environment."""
    folder, metadata = place / "work", place / "metadata"
    folder.mkdir()
    metadata.mkdir()
    for path in has_commands(metadata):
        monkeypatch.syspath_prepend(path)
    for name in [name for name in os.environ if name.startswith("FOLDLOG_")]:
        # What says which installation is tested stays.
        if not name.startswith("FOLDLOG_TEST_"):
            monkeypatch.delenv(name)
    for name, value in {"USER": "anna", "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return Shell(folder, monkeypatch)
