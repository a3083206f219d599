"""The hashes that make the log provable: run chain, partition chain, and entities of a state.

Every hash is BLAKE2b-256 with a `person` of its own, so that no input of one purpose can stand in
for an input of another. Lengths precede what varies, so that no two inputs give the same bytes.
FORMAT.md lists them byte by byte, with a worked example.

Invariants:
- A run hash covers what was asked and what was decided, and nothing of where it is stored: no
  partition, sequence or position. An exported run verifies anywhere.
- A partition hash covers every byte of the record and its headers.
- What goes into a hash never changes; a golden file holds it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b

from foldlog.wire.records import Record

__all__ = ["HASH_SIZE", "ZERO", "entity_hash", "partition_hash", "run_hash"]

HASH_SIZE = 32
ZERO = bytes(HASH_SIZE)  # the head of an empty partition, and of a run without records

RUN = b"foldlog.run"
PARTITION = b"foldlog.part"
ENTITY = b"foldlog.entity"

# revision before, revision after, rules version, log time: signed, big-endian
NUMBERS = struct.Struct(">qqqq")
SIZE_64 = struct.Struct(">Q")
SIZE_32 = struct.Struct(">I")


def run_hash(previous: bytes, record: Record) -> bytes:
    """The run's hash after a record, from the one before it (ZERO before the first).

    `record.chain` and all that only says where the record is stored are not looked at, so a
    decider may hash a record whose chain it does not know yet.
    """
    assert len(previous) == HASH_SIZE
    parts = [previous]
    if record.proposal is not None:
        parts += (b"\x01", SIZE_64.pack(len(record.proposal)), record.proposal)
    else:
        assert record.unreadable is not None
        sha256, size = record.unreadable["sha256"], record.unreadable["size"]
        parts += (b"\x00", SIZE_64.pack(size), sha256)
    parts += (_text(record.outcome), _optional(record.code))
    parts.append(
        NUMBERS.pack(
            record.revision_before, record.revision_after, record.rules_version, record.log_time
        )
    )
    return _hash(RUN, parts)


def partition_hash(
    previous: bytes,
    run_hash: bytes,
    record_bytes: bytes,
    headers: Iterable[tuple[str, bytes | None]] = (),
) -> bytes:
    """The partition's head after a record: what the next record must name as its `previous`."""
    assert len(previous) == len(run_hash) == HASH_SIZE
    parts = [previous, run_hash, SIZE_64.pack(len(record_bytes)), record_bytes]
    rows = list(headers)
    parts.append(SIZE_32.pack(len(rows)))
    for name, value in rows:
        parts += (_text(name), b"\x00" if value is None else b"\x01" + _sized(value))
    return _hash(PARTITION, parts)


def entity_hash(key: bytes, stored: bytes) -> int:
    """What one stored entity adds to its run's state hash; the caller sums modulo 2^256."""
    return int.from_bytes(_hash(ENTITY, (_sized(key), _sized(stored))), "big")


def _hash(person: bytes, parts: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(parts), digest_size=HASH_SIZE, person=person).digest()


def _sized(data: bytes) -> bytes:
    return SIZE_32.pack(len(data)) + data


def _text(text: str) -> bytes:
    return _sized(text.encode())


def _optional(text: str | None) -> bytes:
    """One byte that tells None from the empty text."""
    return b"\x00" if text is None else b"\x01" + _text(text)
