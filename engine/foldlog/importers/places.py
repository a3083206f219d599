"""Where in a JSON text a field stands, so that a message can name the line.

Invariants:
- Pure; takes only text that `strict_json` has read, whose nesting is therefore bounded.
- A path that leads nowhere is answered with the innermost value on it that is there.
"""

from __future__ import annotations

import json
import re

_STEP = re.compile(r"[^.\[\]]+")
_BLANK = re.compile(r"[ \t\r\n]*")
_value_at = json.JSONDecoder().raw_decode


def line_of(text: str, path: str | None) -> int:
    """The line, from 1, on which the value at a dotted path (`steps[3].name`) begins."""
    at = _skip(text, 0)
    for step in _STEP.findall(path or ""):
        found = _member(text, at, step) if text[at] == "{" else _item(text, at, step)
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _member(text: str, at: int, key: str) -> int | None:
    """Where the value of a key of the object at `at` begins."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, at = _value_at(text, at)
        value = _skip(text, _skip(text, at) + 1)
        if name == key:
            return value
        at = _after(text, value)
    return None


def _item(text: str, at: int, index: str) -> int | None:
    """Where an item of the list at `at` begins; None too if there is no list."""
    if text[at] != "[" or not index.isdecimal():
        return None
    at = _skip(text, at + 1)
    for _ in range(int(index)):
        if text[at] == "]":
            return None
        at = _after(text, at)
    return None if text[at] == "]" else at


def _after(text: str, at: int) -> int:
    """Behind the value at `at` and its comma, if one follows."""
    end = _skip(text, _value_at(text, at)[1])
    return _skip(text, end + 1) if text[end] == "," else end


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return at if match is None else match.end()
