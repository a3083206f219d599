"""What `heads` once said, kept elsewhere: read back, and compared with the log as it is now.

Invariants:
- A witness that says nothing proves nothing: no heads at all, or a line that is none, is an error.
- Reading heads looks at no log; what does not fit the log is Damaged, as any difference is.
"""

import re
from collections.abc import Iterable
from typing import Any

from foldlog.core.values import is_sha256, strict_json
from foldlog.errors import Damaged, Usage
from foldlog.log.base import Log
from foldlog.results import Value
from foldlog.views import View

Said = dict[int, dict[int, list[bytes]]]
"""Partition -> sequence -> the heads that were said to stand there (one, if all is well)."""

WHOLE_MAX = 2**63 - 1

TITLE = re.compile(rb"\s*PART\s+SEQUENCE\s+HEAD\s*")
SHOWN = re.compile(rb"\s*([0-9]{1,19})\s+([0-9]{1,19})\s+([0-9a-f]{64})\s*")
"""What ``heads`` prints for people, kept just as well."""


def head_of(view: View) -> dict[str, Any]:
    """One partition's head, as ``heads --json`` prints it."""
    meta = view.meta()
    return {
        "partition": view.partition,
        "sequence": meta.sequence,
        "head": meta.head.hex(),
        "log": view.log.identity,
    }


def parse_lines(data: bytes) -> list[Any]:
    """The rows of a heads file, as ``heads`` or ``heads --json`` prints them; Usage for others."""
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if (shown := SHOWN.fullmatch(line)) is not None:
            partition, sequence, head = shown.groups()
            found.append(
                {"partition": int(partition), "sequence": int(sequence), "head": head.decode()}
            )
        elif line.strip() and not (number == 1 and TITLE.fullmatch(line)):
            try:
                found.append(strict_json(line))
            except ValueError as error:
                raise Usage(f"line {number} of the heads is not JSON: {error}") from None
    return found


def parse_heads(given: Iterable[Any]) -> tuple[Said, set[str]]:
    """Heads by partition and sequence, and the logs they name; Usage for what is none."""
    said: Said = {}
    logs = set()
    for number, row in enumerate(given, 1):
        partition, sequence, head = (
            _field(row, name, number) for name in ("partition", "sequence", "head")
        )
        places = said.setdefault(partition, {})
        places.setdefault(sequence, []).append(bytes.fromhex(head))
        if "log" in row:
            logs.add(str(row["log"]))
    if not said:
        raise Usage("there are no heads in it: give what `foldlog heads --json` printed")
    return said, logs


def _field(row: Any, name: str, number: int) -> Any:
    value = row[name] if isinstance(row, dict | Value) and name in row else None
    if name == "head":
        value = value.lower() if isinstance(value, str) else value
        fits = isinstance(value, str) and is_sha256(value)
    else:
        fits = type(value) is int and 0 <= value <= WHOLE_MAX
    if not fits:
        wanted = "64 hex digits" if name == "head" else "a whole number"
        raise Usage(
            f"{name} of object {number} is not {wanted}: give what `foldlog heads --json` printed"
        )
    return value


def check_log(said: Said, logs: set[str], log: Log) -> None:
    """Compare what heads name with the log as a whole; Damaged if it cannot be the one."""
    for name in sorted(logs - {log.identity}):
        raise Damaged(min(said), None, 0, "the log is another one", name, log.identity)
    for partition in sorted(said):
        if partition >= log.partitions:
            what, sequence = "the log has no such partition", max(said[partition])
            raise Damaged(partition, None, sequence, what, partition, f"0 to {log.partitions - 1}")
