"""Text of a run made harmless for a terminal, measured, cut and wrapped as a terminal shows it.

Invariants:
- What `safe` returns holds no control character, no escape sequence, no line break and no
  character that is invisible or turns the direction of writing; emoji and letters of any script
  stay as they are.
- Widths count terminal cells: wide characters two, combining ones none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from foldlog.core.printable import UNSAFE

_JOINERS = "\u200c\u200d"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(value: object) -> str:
    """Any value as text for a terminal, on one line: unsafe characters as `\\xhh` or `\\uhhhh`."""
    return UNSAFE.sub(lambda match: _escaped(match.group()), str(value))


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """The cells that a safe text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if character in _JOINERS or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, cells: int) -> str:
    """A safe text in at most so many cells (at least one), `…` where something is missing."""
    if width(text) <= cells:
        return text
    taken, used = [], 0
    for character in text:
        used += _cells(character)
        if used > cells - 1:
            break
        taken.append(character)
    return "".join(taken).rstrip() + "…"


def pad(text: str, cells: int) -> str:
    """A safe text filled with spaces to so many cells."""
    return text + " " * (cells - width(text))


def wrap(text: str, cells: int, lines_max: int = 0) -> list[str]:
    """A safe text as lines of at most so many cells; the last of `lines_max` ends in `…` if cut."""
    lines = list(_lines(text, cells)) or [""]
    if lines_max and len(lines) > lines_max:
        kept = lines[:lines_max]
        kept[-1] = cut(kept[-1] + " " + lines[lines_max], cells)
        return kept
    return lines


def _lines(text: str, cells: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and width(line) + 1 + width(word) > cells:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
        # A word that no line can hold is broken where the line ends.
        while width(line) > cells:
            head = _head(line, cells)
            yield head
            line = line[len(head) :]
    if line:
        yield line


def _head(text: str, cells: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += _cells(character)
        if used > cells:
            return text[: max(place, 1)]
    return text
