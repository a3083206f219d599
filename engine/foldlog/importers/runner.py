"""Carries translations out through the client: a run a line of a file, or a run a file.

Invariants:
- Only the client's `run(...).propose_json(...)` touches the log; nothing here decides anything.
- A line or file is translated whole before its first proposal: of a broken one nothing is imported.
- A run stops at its first proposal that is not accepted; the file's other runs go on.
- An artifact is durable before the proposal that names it is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from foldlog.artifacts import ArtifactFolder
from foldlog.core.values import strict_json
from foldlog.importers.base import Broken, Translate, Translation
from foldlog.importers.places import line_of

LINE_BYTES_MAX = 64 * 1024 * 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors' mark for UTF-8
FILE_BYTES_MAX = LINE_BYTES_MAX  # of a file that is one run


class Outcome(Protocol):
    """What became of a proposal, as far as an importer looks at it."""

    @property
    def outcome(self) -> str: ...
    @property
    def duplicate(self) -> bool: ...
    @property
    def code(self) -> str | None: ...
    @property
    def message(self) -> str | None: ...


class Run(Protocol):
    """A run of the client."""

    def propose_json(self, value: Any) -> Outcome: ...


class Engine(Protocol):
    """The client, as far as an importer needs it."""

    def run(self, run_id: str, /) -> Run: ...


@dataclass(slots=True)
class RunImport:
    """What became of one run; `line` is its first, or the one at which the file is broken.

    `outcome`: imported (something new was accepted, perhaps the rest of an import that was cut
    off), unchanged (all of it was there), differs (the run is not what the file makes; `code` is
    the log's refusal), broken (it is not what its format says; `field` is a path in it).
    """

    line: int
    run_id: str | None = None
    outcome: str = "broken"
    proposals: int = 0
    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    code: str | None = None
    field: str | None = None
    message: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the run is now what the file says."""
        return self.outcome in ("imported", "unchanged")

    def to_dict(self) -> dict[str, Any]:
        """The JSON of one line of the command's output."""
        return asdict(self)


def import_lines(
    engine: Engine,
    source: str | os.PathLike[str] | BinaryIO,
    translate: Translate,
    artifacts: ArtifactFolder,
    progress: Callable[[RunImport], None] | None = None,
) -> list[RunImport]:
    """Import a file of JSON lines, one run a line; blank lines count, and are passed over."""
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            return import_lines(engine, file, translate, artifacts, progress)
    results = []
    for number, data in numbered_lines(source):
        result = _import_line(engine, number, data, translate, artifacts)
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def import_document(
    engine: Engine,
    source: BinaryIO,
    translate: Translate,
    artifacts: ArtifactFolder,
    run_id: str | None = None,
    progress: Callable[[RunImport], None] | None = None,
) -> list[RunImport]:
    """Import a file that is one JSON value and one run; `run_id` names it where it is broken."""
    data = source.read(FILE_BYTES_MAX + 1).removeprefix(BYTE_ORDER_MARK)
    try:
        translation = translate(_parse_document(data))
    except _BrokenAt as broken:
        result = _broken_document(run_id, broken.line, broken)
    except Broken as broken:
        result = _broken_document(run_id, line_of(data.decode(), broken.field), broken)
    else:
        result = carry_out(engine, 1, translation, artifacts, unit="file")
    if progress is not None:
        progress(result)
    return [result]


def carry_out(
    engine: Engine,
    line: int,
    translation: Translation,
    artifacts: ArtifactFolder,
    unit: str = "line",
) -> RunImport:
    """Propose one run, step by step, until the end or the first refusal; `unit` is what made it."""
    steps = translation.steps
    result = RunImport(line, translation.run_id, proposals=len(steps))
    run = engine.run(translation.run_id)
    for place, step in enumerate(steps):
        for artifact in step.artifacts:
            artifacts.store(artifact.data)
        outcome = run.propose_json(step.proposal)
        if outcome.outcome != "accepted":
            return _refused(result, place, outcome, unit)
        result.duplicates += outcome.duplicate
        result.accepted += not outcome.duplicate
    result.outcome = "imported" if result.accepted else "unchanged"
    result.message = "; ".join(translation.notes) or None
    return result


def _refused(result: RunImport, place: int, outcome: Outcome, unit: str) -> RunImport:
    result.outcome, result.code = "differs", outcome.code
    result.rejected += 1
    if outcome.code == "RUN_EXISTS":
        result.message = (
            f"run {result.run_id} exists with other content; nothing of this {unit} was imported."
            f" See it with `foldlog history {result.run_id}`, or import the {unit} under another"
            f" {'id' if unit == 'line' else 'name'}"
        )
        return result
    done = result.accepted + result.duplicates
    result.message = (
        f"run {result.run_id}: proposal {place + 1} of {result.proposals} was not accepted"
        f" ({outcome.code or outcome.outcome}: {outcome.message}); the {done} before it were."
        f" See what changed the run with `foldlog history {result.run_id} --rejected`"
    )
    return result


def _import_line(
    engine: Engine, number: int, data: bytes, translate: Translate, artifacts: ArtifactFolder
) -> RunImport:
    value: Any = None
    try:
        value = parse_line(data)
        translation = translate(value)
    except Broken as broken:
        run_id = value.get("id") if isinstance(value, dict) else None
        named = run_id if isinstance(run_id, str) else None
        message = f"{broken.message}; nothing of this line was imported"
        return RunImport(number, named, field=broken.field, message=message)
    return carry_out(engine, number, translation, artifacts)


def parse_line(data: bytes) -> Any:
    """The JSON of a line; Broken if it is none."""
    if len(data) > LINE_BYTES_MAX:
        raise Broken(None, f"a line is at most {LINE_BYTES_MAX} bytes")
    try:
        return strict_json(data)
    except ValueError as error:
        raise Broken(None, f"not a JSON line: {error}") from error


class _BrokenAt(Broken):
    """No JSON, from this line of the file on."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(None, message)
        self.line = line


def _parse_document(data: bytes) -> Any:
    if len(data) > FILE_BYTES_MAX:
        raise _BrokenAt(1, f"a file that is one run is at most {FILE_BYTES_MAX} bytes")
    try:
        return strict_json(data)
    except json.JSONDecodeError as error:
        raise _BrokenAt(error.lineno, f"not a JSON file: {error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _BrokenAt(line, f"not a JSON file: {error}") from error
    except ValueError as error:
        raise _BrokenAt(1, f"not a JSON file: {error}") from error


def _broken_document(run_id: str | None, line: int, broken: Broken) -> RunImport:
    message = f"{broken.message}; nothing of this file was imported"
    return RunImport(line, run_id, field=broken.field, message=message)


def numbered_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Numbered lines (from 1) that are not blank; of one too long, enough to see that it is."""
    number = 0
    while line := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        rest = line
        while not rest.endswith(b"\n") and len(rest) > LINE_BYTES_MAX:
            rest = stream.readline(LINE_BYTES_MAX + 1)
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if stripped := line.strip(b" \t\r\n"):
            yield number, stripped
