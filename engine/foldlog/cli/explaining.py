"""The command explain: a page for every code that foldlog prints, offline.

Invariants:
- A page is `foldlog/explain/CODE.md`: a heading that is the code, one line that says it, and the
  sections Meaning, Cause, Remedy, Example.
- Exit codes have pages too: EXIT_3, found as `foldlog explain 3`.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from importlib import resources
from typing import Any

import click

from foldlog.cli import output
from foldlog.cli.failures import Failure
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import paint

SECTIONS = ("meaning", "cause", "remedy", "example")


@command("explain", "foldlog explain CONFLICT", "foldlog explain 3", "foldlog explain")
@click.argument("code", metavar="[CODE]", required=False)
@pass_settings
def explain(settings: Settings, code: str | None) -> int:
    """Explain a code: meaning, cause and remedy.

    Without a code, lists them all. An exit code is explained by its number.
    """
    if code is None:
        return _list(settings)
    name = _page_name(code)
    if name not in codes():
        near = difflib.get_close_matches(name, codes(), 3, 0.5)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        words = f"there is no code {code!r}{meant}; see all with `foldlog explain`"
        raise Failure("CODE_NOT_FOUND", words, 4)
    if settings.json:
        output.say_json(page(name))
    else:
        _say_page(text(name))
    return 0


def codes() -> list[str]:
    """Every code that has a page, sorted; exit codes last."""
    files = (each.name for each in _folder().iterdir())
    names = [name.removesuffix(".md") for name in files if name.endswith(".md")]
    return sorted(names, key=lambda name: (name.startswith("EXIT_"), name))


def text(name: str) -> str:
    """The page as it is written."""
    return str(_folder().joinpath(f"{name}.md").read_text("utf-8"))


def page(name: str) -> dict[str, Any]:
    """The page in parts: {code, summary, meaning, cause, remedy, example}."""
    head, *sections = re.split(r"^## (\w+)\n", text(name), flags=re.MULTILINE)
    title, summary = head.strip().split("\n", 1)
    parts = {"code": title.removeprefix("# "), "summary": summary.strip()}
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        parts[heading.lower()] = textwrap.dedent(body).strip()
    return parts


def _folder() -> Any:
    return resources.files("foldlog").joinpath("explain")


def _page_name(code: str) -> str:
    name = re.sub(r"[\s-]+", "_", code.strip().upper())
    return f"EXIT_{name}" if re.fullmatch("[0-9]{1,3}", name) else name


def _list(settings: Settings) -> int:
    pages = [page(name) for name in codes()]
    for each in pages:
        if settings.json:
            output.say_json({"code": each["code"], "summary": each["summary"]})
    if not settings.json:
        rows = [(each["code"], each["summary"]) for each in pages]
        output.table(("CODE", "SAYS"), rows, prose=1)
    return 0


def _say_page(written: str) -> None:
    for line in written.rstrip("\n").split("\n"):
        if line.startswith("#"):
            line = paint(line.lstrip("# "), "bold")
        output.say(line)
