"""Decided records to bytes and back: what the events log holds, one for each proposal.

Invariants:
- decode_record(encode_record(r)) == r.
- A record carries the proposal's own bytes, or, where these cannot be read or are too many,
  their SHA-256 and size; never both, never neither.
- A trimmed record is never more than RECORD_BYTES_MAX, whatever its proposal holds.
- A record is written once; nothing here decides or computes a hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from foldlog.wire.avro import Limits, WireError, decode, encode
from foldlog.wire.envelope import batch_id_bytes, batch_id_text

__all__ = ["OUTCOMES", "RECORD_BYTES_MAX", "Record", "decode_record", "encode_record", "trimmed"]

OUTCOMES = ("accepted", "rejected", "arbitration", "duplicate", "quarantined")
# Below what Kafka's brokers take by default (1,048,588 bytes with the overhead of a batch).
RECORD_BYTES_MAX = 1_000_000
# What explains a decision is cut to this, so that a proposal of 256 KiB, its conflicts, three
# texts and the rest stay below RECORD_BYTES_MAX: 256 + 384 + 3 * 8 KiB, and a few hundred bytes.
EXPLANATION_BYTES_MAX = 8 * 1024
CONFLICTS_READ_BYTES_MAX = 384 * 1024
CONFLICT_BYTES_MAX = 17 * 1024  # two ids of 2,048 characters, four bytes each, and a little
LIMITS = Limits(size_max=RECORD_BYTES_MAX)


class Record(NamedTuple):
    """One decided proposal. Times are microseconds since the Unix epoch, hashes 32 bytes.

    A tuple, since every record is made several times on its way: a frozen dataclass of as many
    fields takes three to four times as long to make.
    """

    sequence: int  # dense within its partition, from 1
    run_id: str
    position: int  # of the proposal, in the proposals log
    outcome: str  # one of OUTCOMES
    revision_before: int
    revision_after: int
    rules_version: int
    appended_at: int  # when the log took the proposal
    log_time: int  # the same, made monotonic per partition
    build: str
    decider: str  # host:pid:start
    state_format: int
    previous: bytes  # the partition head that this record extends
    chain: bytes  # the run hash after this record
    batch_id: str | None = None  # None where the envelope could not be read
    code: str | None = None
    message: str | None = None
    event_index: int | None = None
    field: str | None = None
    conflicts: tuple[Mapping[str, Any], ...] = ()
    rebased: bool = False
    duplicate_of: int | None = None  # a sequence
    error: str | None = None  # of a quarantined one
    state_hash: bytes | None = None  # of a record that makes a revision
    proposal: bytes | None = None
    unreadable: Mapping[str, Any] | None = None  # {"sha256": 32 bytes, "size": int}
    imported: Mapping[str, Any] | None = None  # {"import_id": 16 bytes, "part", "place"}

    @property
    def ends_proposal(self) -> bool:
        """Whether no other record of the same proposal follows: a part of an import has several."""
        return self.imported is None or self.imported["place"] != "more"


def trimmed(record: Record) -> Record:
    """The record with what explains it cut to size; nearly always the very same one.

    A decider calls it before encode_record: a proposal may name tens of thousands of entities,
    each changed by an author with a long id, and no proposal may make a record that cannot be
    written. Run hashes do not cover what is cut.
    """
    cut: dict[str, Any] = {}
    for name in ("message", "field", "error"):
        text = getattr(record, name)
        if text is not None and len(text) > EXPLANATION_BYTES_MAX // 4:
            cut[name] = _begin(text)
    if len(record.conflicts) > CONFLICTS_READ_BYTES_MAX // CONFLICT_BYTES_MAX:
        cut["conflicts"] = _first(record.conflicts)
    return record._replace(**cut) if cut else record


def _begin(text: str) -> str:
    """As much of a text as fits, ending at a whole character."""
    return text.encode()[:EXPLANATION_BYTES_MAX].decode(errors="ignore")


def _first(conflicts: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """The conflicts that fit, from the first."""
    left = CONFLICTS_READ_BYTES_MAX
    for index, conflict in enumerate(conflicts):
        left -= 50 + len(conflict["entity"].encode()) + len(conflict["changed_by"]["id"].encode())
        if left < 0:
            return conflicts[:index]
    return conflicts


def encode_record(record: Record) -> bytes:
    """A record's bytes, as the value of an entry in the events log."""
    assert record.outcome in OUTCOMES
    assert (record.proposal is None) != (record.unreadable is None)
    fields = record._asdict()
    version = 1
    if fields.pop("imported") is not None:  # the only thing that version 2 adds
        fields["imported"], version = record.imported, 2
    if record.batch_id is not None:
        fields["batch_id"] = batch_id_bytes(record.batch_id)
    data = encode("Record", version, fields)
    assert len(data) <= RECORD_BYTES_MAX
    return data


def decode_record(data: bytes) -> Record:
    """The record in some bytes; WireError if they are not a whole, canonical record."""
    name, version, fields = decode(data, LIMITS)
    if name != "Record":
        raise WireError(f"{name} is not a record")
    if (version == 2) != ("imported" in fields):
        raise WireError("Record: version 2 is for imported records, and only for them")
    if fields["outcome"] not in OUTCOMES:
        raise WireError(f"Record: unknown outcome {fields['outcome'][:40]!r}")
    if ("proposal" in fields) == ("unreadable" in fields):
        raise WireError("Record: needs either a proposal or what could not be read")
    if "unreadable" in fields and fields["unreadable"]["size"] < 0:
        raise WireError("Record: a proposal of less than no bytes")
    if "batch_id" in fields:
        fields["batch_id"] = batch_id_text(fields["batch_id"])
    fields["conflicts"] = tuple(
        {"expected_revision": None, **conflict} for conflict in fields["conflicts"]
    )
    return Record(**fields)
