"""Runs that `foldlog export` wrote, taken over as they are: nothing of them is decided again.

A line is one record: readable fields for whoever looks, and `record`, the record's bytes in
base64, which alone count: the others are compared with it. The lines of one run stand together, in
the order of its chain; each says how many there are, so that a file that was cut off shows.

Invariants:
- A run is checked as a whole before its first part is handed in: of a broken one nothing is.
- A run is visible once all of it is there; an import that was cut off goes on when done again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from foldlog import client
from foldlog.core.values import format_instant
from foldlog.errors import Damaged, PluginMissing
from foldlog.importers.base import Broken
from foldlog.importers.runner import RunImport, numbered_lines, parse_line
from foldlog.views import proven
from foldlog.wire.avro import WireError
from foldlog.wire.records import Record, decode_record

FORMAT = "foldlog"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Line:
    """A record with the line it stands on, and its number of how many of its run."""

    place: int
    record: Record
    data: bytes
    number: int
    of: int


@dataclass(slots=True)
class Group:
    """The lines of one run as they stand together, and what is broken about them."""

    run_id: str | None
    lines: list[Line] = field(default_factory=list)
    broken: RunImport | None = None

    @property
    def is_whole(self) -> bool:
        """Whether as many lines are there as the run has."""
        return self.broken is None and len(self.lines) == self.lines[0].of


def exported_lines(records: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """The bytes of a run's records as the lines of an export."""
    for number, data in enumerate(records, start=1):
        yield exported_line(decode_record(data), data, number, len(records))


def exported_line(record: Record, data: bytes, number: int, of: int) -> dict[str, Any]:
    """A record as a line of an export: the ``number``-th ``of`` its run."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "run_id": record.run_id,
        "number": number,
        "of": of,
        "sequence": record.sequence,
        "log_time": format_instant(record.log_time),
        "outcome": record.outcome,
        "code": record.code,
        "revision": record.revision_after,
        "sha256": hashlib.sha256(data).hexdigest(),
        "record": base64.b64encode(data).decode(),
    }


def import_exported(
    engine: client.Engine,
    source: BinaryIO,
    progress: Callable[[RunImport], None] = lambda result: None,
) -> list[RunImport]:
    """Take over every run of an export; a broken one is told and the others go on."""
    results: list[RunImport] = []
    for group in _groups(source):
        result = group.broken or _take_over(engine, group.run_id or "", group.lines)
        results.append(result)
        progress(result)
    return results


def _groups(source: BinaryIO) -> Iterator[Group]:
    """The lines of a file run by run; one that is broken belongs to the run it stands in."""
    group: Group | None = None
    for item in _lines(source):
        run_id = item.record.run_id if isinstance(item, Line) else item.run_id
        if run_id is None and group is not None and not group.is_whole:
            run_id = group.run_id
        again = isinstance(item, Line) and item.number == 1 and group is not None and group.is_whole
        if group is None or group.run_id != run_id or again:
            if group is not None:
                yield group
            group = Group(run_id)
        if isinstance(item, Line):
            group.lines.append(item)
        else:
            item.run_id = run_id
            group.broken = group.broken or item
    if group is not None:
        yield group


def _take_over(engine: client.Engine, run_id: str, lines: list[Line]) -> RunImport:
    result = RunImport(lines[0].place, run_id)
    for number, line in enumerate(lines, start=1):
        if (line.number, line.of) != (number, lines[0].of):
            result.line, result.field = line.place, "number"
            result.message = f"is line {line.number} of {line.of}, where {number} must stand"
            return result
    if len(lines) != lines[0].of:
        result.line, result.field = lines[-1].place, "of"
        result.message = f"line {len(lines) + 1} of {lines[0].of} is missing"
        return result
    try:
        proven((line.record for line in lines), engine._seat.rules)
    except Damaged as error:
        result.line = lines[error.sequence - 1].place
        result.field, result.message = "record", f"{error.what} does not fit what came before it"
        if isinstance(error, PluginMissing):
            result.message = f"is under rules {error.found}: install the plug-in that brings them"
        return result
    outcome, parts = engine.import_records(run_id, [line.data for line in lines])
    result.proposals, result.code = parts, outcome.code
    if outcome.outcome == "rejected":
        result.outcome, result.rejected, result.message = "differs", 1, outcome.message
    else:
        result.outcome, result.accepted = "imported", len(lines)
    return result


def _lines(source: BinaryIO) -> Iterator[Line | RunImport]:
    """The lines of an export; of one that is none, what is broken about it.

    `export` never writes nothing: a file without a line is one that it could not write.
    """
    empty = True
    for number, data in numbered_lines(source):
        empty = False
        value: Any = None
        try:
            value = parse_line(data)
            yield _line(number, value)
        except Broken as error:
            run_id = value.get("run_id") if isinstance(value, dict) else None
            run_id = run_id if isinstance(run_id, str) else None
            yield RunImport(number, run_id, field=error.field, message=error.message)
    if empty:
        yield RunImport(
            1, field="format", message="it has no line, and an export has one for each record"
        )


def _line(place: int, value: Any) -> Line:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise Broken("format", f"a line of an export says format {FORMAT!r}")
    if value.get("version") != VERSION:
        raise Broken("version", f"this build reads version {VERSION}, not {value.get('version')!r}")
    text = value.get("record")
    if not isinstance(text, str):
        raise Broken("record", "needs the record's bytes in base64")
    try:
        raw = base64.b64decode(text, validate=True)
        record = decode_record(raw)
    except (binascii.Error, ValueError, WireError) as error:
        raise Broken("record", f"is no record: {error}") from None
    number, of = (value.get(name) for name in ("number", "of"))
    if type(number) is not int or type(of) is not int:
        raise Broken("number", "needs the numbers number and of")
    for name, expected in exported_line(record, raw, number, of).items():
        found = value.get(name)
        if type(found) is not type(expected) or found != expected:
            raise Broken(name, f"is not what the record says: {expected}")
    return Line(place, record, raw, number, of)
