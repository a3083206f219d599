"""A store as a build of schema 1 would have left it: the inverse of the migration to schema 2.

Invariants:
- Only what schema 1 lacks is taken away, and the sum of the state hash, which was another one:
  lifted again, every byte is what it was.
- A run that is ``broken`` says another count than its transitions tell: it cannot be lifted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from foldlog.core.values import canonical_json
from foldlog.wire import keys

Rows = dict[bytes, bytes]
HEADS = (b"h\0", b"a\0")
BROKEN_BY = 7
"""More retries than any list of transitions tells."""


def as_schema_1(rows: Mapping[bytes, bytes], broken: Iterable[str]) -> Rows:
    """The rows of a store, as format 1 has them."""
    lost = {run_id.encode() for run_id in broken}
    found: Rows = {}
    for key, value in rows.items():
        if key == keys.META:
            found[key] = _meta(value)
        elif key[:2] in HEADS:
            found[key] = _bytes({**json.loads(value), "sum": "0" * 64})
        elif key[:2] != b"e\0":
            found[key] = value
        else:
            run, kind, _ = key[2:].split(b"\0", 2)
            if kind == b"attempt":
                continue
            if kind == b"header":
                value = _header(value, BROKEN_BY if run in lost else 0)
            elif kind == b"checkpoint":
                value = _checkpoint(value)
            found[key] = value
    return found


def _bytes(value: object) -> bytes:
    return canonical_json(value).encode()


def _meta(data: bytes) -> bytes:
    meta = json.loads(data)
    meta.pop("tables", None)  # it may be an older one by now
    return _bytes({**meta, "format": 1})


def _header(data: bytes, more: int) -> bytes:
    header = json.loads(data)
    if header["schema_version"] == 1:
        return data
    count = header.pop("attempts_count") - header.pop("attempts_before") + more
    return _bytes({**header, "schema_version": 1, "retry_count": count, "migrated_from": []})


def _checkpoint(data: bytes) -> bytes:
    slot = json.loads(data)
    if slot["v"] is not None and "schema_version" in slot["v"]:
        slot["v"]["schema_version"] = 1
    return _bytes(slot)


# What a store says of it


def stuck(rows: Mapping[bytes, bytes]) -> set[bytes]:
    """The runs of a store that stand in schema 1."""
    return {
        key[2:].split(b"\0", 1)[0]
        for key, value in rows.items()
        if key[:2] == b"e\0" and key.endswith(b"\0header\0") and b'"schema_version":1,' in value
    }


def is_of(key: bytes, runs: set[bytes]) -> bool:
    """Whether a key is one of these runs."""
    if key.startswith(keys.TIMER_PREFIX):
        return keys.timer_of(key)[1].encode() in runs
    return key[1:2] == b"\0" and key[2:].split(b"\0", 1)[0] in runs


def without_origin(key: bytes, value: bytes) -> bytes:
    """A row without what no replay knows: where a lifted run came from."""
    if key[:2] not in HEADS or b'"migrated_from"' not in value:
        return value
    head = json.loads(value)
    del head["migrated_from"]
    return _bytes(head)
