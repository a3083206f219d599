"""Proposals to bytes and back: the envelope (who, on what grounds) around an array of events.

Invariants:
- The bytes of a proposal are made once, by whoever proposes; the log, the record and the hashes
  carry those very bytes on.
- decode_proposal(encode_proposal(p)) == p.
- What decode_proposal returns has passed parse_proposal, whoever wrote it. WireError: not even
  the envelope reads (no batch id is used up). Malformed: the envelope reads, its content does not
  hold; read_envelope then says whose it is.
- What was once decided still reads when the rules of shape have become stricter: decode_decided
  checks none of them.
- A run id that is not one does not count as read: it would become part of store keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foldlog.core.proposals import Malformed, Proposal, parse_proposal
from foldlog.core.shapes import EVENTS_MAX
from foldlog.core.values import Author, is_run_id
from foldlog.wire.avro import Limits, WireError, decode, encode
from foldlog.wire.events import decode_event, encode_event

__all__ = [
    "PROPOSAL_BYTES_MAX",
    "Envelope",
    "batch_id_bytes",
    "batch_id_text",
    "decode_decided",
    "decode_proposal",
    "encode_proposal",
    "read_envelope",
    "readable_events",
    "readdressed",
]

PROPOSAL_BYTES_MAX = 256 * 1024
LIMITS = Limits(size_max=PROPOSAL_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A proposal as its envelope has it; the events still in bytes, nothing checked but run_id."""

    run_id: str
    batch_id: str
    author: Author
    expected_revision: int | None = None
    lease_epoch: int | None = None
    on_conflict: str = "reject"
    reads: tuple[str, ...] = ()
    occurred_at: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    events: tuple[bytes, ...] = ()


def batch_id_bytes(text: str) -> bytes:
    """The 16 bytes of a batch id in its 8-4-4-4-12 form."""
    return bytes.fromhex(text.replace("-", ""))


def batch_id_text(data: bytes) -> str:
    """The lower-case 8-4-4-4-12 form of a batch id's 16 bytes."""
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def encode_proposal(proposal: Proposal) -> bytes:
    """A proposal's bytes; Malformed if they are more than 256 KiB."""
    fields = {
        "run_id": proposal.run_id,
        "batch_id": batch_id_bytes(proposal.batch_id),
        "author": {"kind": proposal.author.kind, "id": proposal.author.id},
        "expected_revision": proposal.expected_revision,
        "lease_epoch": proposal.lease_epoch,
        "on_conflict": proposal.on_conflict,
        "reads": proposal.reads,
        "occurred_at": proposal.occurred_at,
        "correlation_id": proposal.correlation_id,
        "causation_id": proposal.causation_id,
        "traceparent": proposal.traceparent,
        "events": [encode_event(event) for event in proposal.events],
    }
    return _bounded(fields)


def readdressed(data: bytes, run_id: str) -> bytes:
    """A proposal's bytes as one to another run; its events, read or not, are carried on."""
    _, _, fields = decode(data, LIMITS)
    return _bounded({**fields, "run_id": run_id})


def _bounded(fields: dict[str, Any]) -> bytes:
    data = encode("Envelope", 1, fields)
    if len(data) > PROPOSAL_BYTES_MAX:
        message = f"the batch is {len(data)} bytes encoded, more than {PROPOSAL_BYTES_MAX}"
        raise Malformed(message, None, None)
    return data


def read_envelope(data: bytes) -> Envelope:
    """The envelope of a proposal's bytes, its events unread; WireError if it does not read."""
    fields = _typed_fields(data)
    fields["events"] = tuple(fields["events"])
    return Envelope(**fields)


def readable_events(envelope: Envelope) -> list[dict[str, Any]]:
    """The events of an envelope as far as each of them reads; an empty object stands for others.

    No more than the first of those that are too many for a batch.
    """
    found: list[dict[str, Any]] = []
    for data in envelope.events[: EVENTS_MAX + 1]:
        try:
            found.append(decode_event(data))
        except WireError:
            found.append({})
    return found


def decode_proposal(data: bytes) -> Proposal:
    """The proposal in some bytes, its shape checked; WireError or Malformed, as said above."""
    value = _fields(data)
    # One too many is enough to see that there are.
    events = enumerate(value["events"][: EVENTS_MAX + 1])
    value["events"] = [_event(index, event) for index, event in events]
    return parse_proposal(value.pop("run_id"), value)


def decode_decided(data: bytes) -> Proposal:
    """The proposal of a record that was accepted or sent to arbitration, for folding it.

    Whoever decided has checked its shape. WireError, or Malformed if an event does not read,
    mean that this build is older than what it reads (or that the bytes are not a record's).
    """
    fields = _typed_fields(data)
    fields["events"] = tuple(_event(i, event) for i, event in enumerate(fields["events"]))
    return Proposal(**fields)


def _fields(data: bytes) -> dict[str, Any]:
    """The envelope's fields as a proposal object has them, with run_id, the events in bytes."""
    name, _, fields = decode(data, LIMITS)
    if name != "Envelope":
        raise WireError(f"{name} is not a proposal")
    if not is_run_id(fields["run_id"]):
        raise WireError("the envelope's run_id is not a run id")
    fields["batch_id"] = batch_id_text(fields["batch_id"])
    return fields


def _typed_fields(data: bytes) -> dict[str, Any]:
    """The same, author and reads as a Proposal has them."""
    fields = _fields(data)
    fields["author"] = Author(fields["author"]["kind"], fields["author"]["id"])
    fields["reads"] = tuple(fields["reads"])
    return fields


def _event(index: int, data: bytes) -> dict[str, Any]:
    """One event; bytes that do not read are a fault of the proposal, not of its envelope."""
    try:
        return decode_event(data)
    except WireError as error:
        raise Malformed(f"the event cannot be read: {error.reason}", index, None) from None
