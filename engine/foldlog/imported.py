"""Deciding a part of an import: may it be taken over, and as which records.

Invariants:
- Nothing is decided again: outcome, code, revisions, rules, log time and run chain stay as they
  were; sequence, partition chain and what refers to a sequence are this log's.
- Parts come in order and each once; the run is not visible before the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from foldlog.core.catalogue import AUTHORITIES
from foldlog.core.context import Refusal
from foldlog.core.forks import is_fork
from foldlog.core.proposals import Malformed
from foldlog.core.shapes import TTL_SECONDS_MAX
from foldlog.core.values import format_instant, parse_instant
from foldlog.runtime import SECOND
from foldlog.wire.avro import WireError
from foldlog.wire.envelope import decode_decided, decode_proposal
from foldlog.wire.imports import ImportPart
from foldlog.wire.records import RECORD_BYTES_MAX, Record, decode_record
from foldlog.working import Run, Working

CODE = re.compile("[A-Z_]{1,64}")

IMPORTED_BYTES_MAX = 100
"""The most bytes by which a record grows when it is taken over: 30 for the import, and varints."""


class BrokenPart(Exception):
    """A part whose records do not fit: the proposal's position, why, and the refusal's code."""

    def __init__(self, position: int, reason: str, code: str = "MALFORMED") -> None:
        super().__init__(reason)
        self.position = position
        self.reason, self.code = reason, code


def refuse(run: Run, part: ImportPart) -> Refusal | None:
    """Why a part is not taken over, before its records are looked at."""
    if part.author.kind not in AUTHORITIES:
        who = ", ".join(sorted(AUTHORITIES))
        return Refusal("NOT_AUTHORIZED", f"an import or fork is for {who}, not {part.author.kind}")
    importing = run.head.importing
    if importing is None and run.header.revision > 0:
        message = f"run {run.run_id} exists already, at {run.header.revision}"
        return Refusal("RUN_EXISTS", message)
    if importing is not None and importing[0] != part.import_id.hex():
        message = f"another import of run {run.run_id} is under way: finish that first"
        return Refusal("RUN_EXISTS", message)
    expected = 0 if importing is None else importing[1]
    if part.part > expected:
        message = f"part {part.part} of an import comes before part {expected}"
        return Refusal("INVALID_TRANSITION", message)
    return None


def is_repeated(run: Run, part: ImportPart) -> bool:
    """Whether this part was taken over before: an import that is done again goes on behind it."""
    return run.head.importing is not None and part.part < run.head.importing[1]


def carried(working: Working, part: ImportPart, blank: Record) -> Iterator[Record]:
    """The records of a part as this log has them; ``blank`` says where they go.

    The caller chains each to the one before and folds it, which checks run chain, revisions and
    state hash. BrokenPart for bytes that are no record, or one of another run. Where an append
    was cut off inside the part (a log that cannot append all or none), the rest of it.
    """
    last_part = part.part == part.parts - 1
    records = _decoded(part, blank.position)
    for index in range(_taken(working.run(part.run_id), part, records), len(records)):
        more = index < len(records) - 1
        place = "more" if more else "last" if last_part else "part"
        record = records[index]
        first = _first(working, record)
        if record.outcome == "duplicate" and first is None and record.code is None:
            raise BrokenPart(blank.position, f"record {index} is a duplicate of none")
        yield record._replace(
            sequence=working.meta.sequence + 1,
            position=blank.position,
            appended_at=blank.appended_at,
            previous=working.meta.head,
            duplicate_of=first,
            imported={"import_id": part.import_id, "part": part.part, "place": place},
        )


def _decoded(part: ImportPart, position: int) -> list[Record]:
    records = []
    for index, data in enumerate(part.records):
        try:
            record = decode_record(data)
            # What is decided after it names times as much later as a lease lasts.
            for time in (record.log_time, record.log_time + TTL_SECONDS_MAX * SECOND):
                parse_instant(format_instant(time))
            _check_shape(record)
        except (WireError, Malformed, ValueError) as error:
            raise BrokenPart(position, f"record {index}: {error}") from None
        if record.run_id != part.run_id:
            raise BrokenPart(position, f"record {index} is of run {record.run_id}")
        if len(data) > RECORD_BYTES_MAX - IMPORTED_BYTES_MAX:
            raise BrokenPart(position, f"record {index} is too large")
        records.append(record)
    return records


def _check_shape(record: Record) -> None:
    """WireError or Malformed for what no build of foldlog writes, however right its hashes are.

    The fold asks no rule, so a state could come of it that rules and readers fail at.
    """
    if record.code is not None and not CODE.fullmatch(record.code):
        raise WireError(f"{record.code[:40]!r} is no code")
    if record.outcome not in ("accepted", "arbitration") or record.proposal is None:
        return
    decided = decode_decided(record.proposal)
    if not is_fork(decided):
        decode_proposal(record.proposal)
        return
    effects = [effect["id"] for effect in decided.events[0]["effects"]]
    if len(set(effects)) < len(effects):
        raise WireError("a fork that names an effect twice")


def _taken(run: Run, part: ImportPart, records: list[Record]) -> int:
    """How many records of the part are in the log already."""
    if run.head.importing is None or run.head.importing[1] != part.part:
        return 0
    chains = [record.chain for record in records[:-1]]
    return chains.index(run.head.chain) + 1 if run.head.chain in chains else 0


def _first(working: Working, record: Record) -> int | None:
    """The sequence that the first record of a duplicate's batch id has in this log."""
    if record.outcome != "duplicate" or record.batch_id is None:
        return None
    known = working.known(record.run_id, record.batch_id)
    return None if known is None else known.sequence
