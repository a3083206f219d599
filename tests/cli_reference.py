"""The part of engine/REFERENCE.md that is made of what the commands themselves declare.

Invariants:
- Depends on names, options, help texts and examples alone, not on how click lays out `--help`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from foldlog.cli.main import COMMANDS, cli

REFERENCE = Path(__file__).resolve().parent.parent / "engine" / "REFERENCE.md"
BEGIN = "<!-- commands: made from --help by the tests -->"
END = "<!-- end of commands -->"
GROUPS = {**{heading: list(names) for heading, names in COMMANDS.items()}, "Run": ["project"]}
SHARED = {"--home", "--log", "--json", "--help"}


def commands() -> Iterator[tuple[str, str, Any]]:
    """Heading, name and command of every command."""
    for heading, names in GROUPS.items():
        for name in names:
            yield heading, name, cli.get_command(click.Context(cli), name)


def section(name: str, command: Any) -> str:
    """The section of one command."""
    words = ["foldlog", name, *filter(None, map(_needed, command.params))]
    lines = [f"### {name}", "", f"`{' '.join(words)}`", ""]
    help_text = inspect.cleandoc(command.help)
    lines += [re.sub(r"(?<!\n)\n(?!\n)", " ", help_text), ""]
    options = [_option(param) for param in command.params if _is_own(param)]
    if options:
        lines += ["| option | does |", "|---|---|", *options, ""]
    lines += ["```console", *(f"$ {example}" for example in command.examples), "```", ""]
    return "\n".join(lines)


def made() -> str:
    """All sections, under their headings."""
    parts, last = [], ""
    for heading, name, command in commands():
        if heading != last:
            parts.append(f"## {heading}\n")
            last = heading
        parts.append(section(name, command))
    return "\n".join(parts)


def _is_own(param: Any) -> bool:
    return isinstance(param, click.Option) and not param.hidden and not SHARED & set(param.opts)


def _needed(param: Any) -> str:
    """An argument, or an option that has to be given."""
    if isinstance(param, click.Argument):
        return str(param.metavar)
    return f"{param.opts[0]} {param.metavar}" if param.required else ""


def _option(param: Any) -> str:
    choices = [str(choice) for choice in getattr(param.type, "choices", ())]
    value = "" if param.is_flag else f" {param.metavar or ' or '.join(choices)}"
    words = param.help
    if choices and param.metavar:
        words += f" {param.metavar}: {', '.join(choices)}."
    if param.show_default:
        words += f" [{param.default}]"
    return f"| `{param.opts[0]}{value}` | {words.replace('|', chr(92) + '|')} |"
