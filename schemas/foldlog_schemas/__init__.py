"""The Avro schemas of everything foldlog writes to a log, as package data.

Invariants:
- A schema is what its file says: `NAME.vVERSION.avsc`, record `foldlog.vVERSION.NAME`.
- Only what `released.json` lists exists; a listed file never changes (the tests compare its hash).
- Importing this package reads nothing; a schema is read when it is asked for.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

__all__ = ["EVENTS_FOLDER", "fingerprints", "load", "names", "read", "released", "versions"]

EVENTS_FOLDER = "events/"


def read(path: str) -> bytes:
    """The bytes of one file of this package, `path` as `released.json` names it."""
    from importlib.resources import files  # imported late: it costs more than all the rest here

    return files(__name__).joinpath(path).read_bytes()


@cache
def released() -> dict[str, dict[str, str]]:
    """The manifest: path -> {"sha256", "fingerprint"}, both as lower-case hex."""
    manifest: dict[str, dict[str, str]] = json.loads(read("released.json"))
    return manifest


def name_and_version(path: str) -> tuple[str, int]:
    """("FactConfirmed", 1) for "events/FactConfirmed.v1.avsc"."""
    name, version, _ = path.removeprefix(EVENTS_FOLDER).split(".")
    return name, int(version.removeprefix("v"))


@cache
def _paths() -> dict[tuple[str, int], str]:
    """Every released schema's path by name and version."""
    return {name_and_version(path): path for path in released()}


def names(*, events: bool | None = None) -> tuple[str, ...]:
    """The names of all schemas, sorted; only those of events, or only the others, where asked."""
    found = {
        name
        for (name, _), path in _paths().items()
        if events is None or events == path.startswith(EVENTS_FOLDER)
    }
    return tuple(sorted(found))


def versions(name: str) -> tuple[int, ...]:
    """The versions of one schema, ascending; KeyError for a name that there is not."""
    found = tuple(sorted(version for known, version in _paths() if known == name))
    if not found:
        raise KeyError(name)
    return found


def load(name: str, version: int) -> dict[str, Any]:
    """One schema as parsed JSON, a fresh object each time; KeyError for one that there is not."""
    schema: dict[str, Any] = json.loads(read(_paths()[name, version]))
    return schema


@cache
def fingerprints() -> dict[bytes, tuple[str, int]]:
    """(name, version) by CRC-64-AVRO fingerprint, 8 bytes in the order in which they travel."""
    return {
        bytes.fromhex(entry["fingerprint"]): name_and_version(path)
        for path, entry in released().items()
    }
