"""Which format a file of transcripts has, by its beginning.

Invariants:
- Pure, and raises nothing: whatever the bytes, some format is named, and importing says the rest.
- Only keys of the first object decide; what stands deeper inside or behind it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A .traj names its parts at the top; those before `trajectory` or `history` are short.
HEAD_BYTES = 1024 * 1024

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"(?P<key>\s*:)?|\\?\Z)|[{}\[\]]', re.DOTALL)


def guess_format(head: bytes, name: str = "") -> str:
    """`chat`, `swe-agent` or `foldlog`, by a file's first `HEAD_BYTES`; else by its name."""
    keys = set(_keys(head.decode(errors="replace")))
    if {"format", "record"} <= keys:
        return "foldlog"
    if "messages" in keys:
        return "chat"
    if keys & {"trajectory", "history"} or name.endswith(".traj"):
        return "swe-agent"
    return "chat"


def _keys(text: str) -> Iterator[str]:
    """The keys of the object that the text begins with, as far as it goes."""
    depth = 0
    for token in _TOKEN.finditer(text):
        found = token.group()
        if depth == 1 and token["key"]:
            yield found[: token.start("key") - token.start()].strip('"')
        elif found in "{[":
            depth += 1
            if depth == 1 and found == "[":
                return
        elif found in "}]":
            depth -= 1
        if depth <= 0:
            return
