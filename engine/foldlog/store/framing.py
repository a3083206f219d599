"""Whether the folder of a RocksDB database can be opened without losing something in silence.

RocksDB takes a MANIFEST that is cut short for a shorter one: it then opens without the tables named
in what is missing, or without any. And a folder without CURRENT is made a new, empty database.

Invariants:
- Looks and changes nothing.
- What it finds is damage for certain; a MANIFEST cut exactly between two of its records is not
  found here (key counts and the fold find that).
"""

from __future__ import annotations

import os
from pathlib import Path

BLOCK_BYTES = 32768
"""A MANIFEST is written in blocks; no record's fragment crosses the end of one."""

HEADER_BYTES = 7
"""Before each fragment: CRC-32C (4), length (2, lowest byte first), type (1)."""


def damage(path: str | os.PathLike[str]) -> str | None:
    """What is wrong with a store's folder; None if nothing is, or if nothing is there."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return None
    if "CURRENT" not in names:
        left = [name for name in names if name.endswith(".sst") or name.startswith("MANIFEST-")]
        return f"CURRENT is gone, {len(left)} files are there without it" if left else None
    name = os.fsdecode(Path(path, "CURRENT").read_bytes()).strip()
    if not name.startswith("MANIFEST-") or name not in names:
        return f"CURRENT names {name!r}, which is not there"
    return _cut(name, Path(path, name).read_bytes())


def _cut(name: str, data: bytes) -> str | None:
    place = 0
    while place < len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER_BYTES:
            place += left
            continue
        length = int.from_bytes(data[place + 4 : place + 6], "little")
        if place + HEADER_BYTES + length > len(data) or HEADER_BYTES + length > left:
            return f"{name} is cut short: a record at byte {place} goes beyond its end"
        place += HEADER_BYTES + length
    return None if data else f"{name} is empty"
