"""Parts of an import: proposals that carry records which another log decided.

Invariants:
- decode_part(encode_part(p)) == p; bytes that are no part are a WireError.
- A part fits one message of a broker, and its records one turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from foldlog.core.values import Author, is_run_id
from foldlog.wire.avro import Limits, WireError, decode, encode, identify
from foldlog.wire.records import RECORD_BYTES_MAX

__all__ = [
    "PART_BYTES", "PART_RECORDS_MAX", "ImportPart", "decode_part", "encode_part", "import_id_of",
    "is_part", "parts_of",
]  # fmt: skip

PART_RECORDS_MAX = 100
# A part is closed once it has so many bytes; one record of the largest size still fits a message.
PART_BYTES = 256 * 1024
LIMITS = Limits(size_max=RECORD_BYTES_MAX + PART_BYTES)


@dataclass(frozen=True, slots=True)
class ImportPart:
    """One proposal of an import; ``records`` are the bytes of decided records of one run."""

    run_id: str
    import_id: bytes
    author: Author
    part: int
    parts: int
    records: tuple[bytes, ...]


def import_id_of(records: list[bytes]) -> bytes:
    """The id of an import: 16 bytes made of everything it carries, so that it can be repeated."""
    whole = blake2b(digest_size=16, person=b"foldlog.import")
    for record in records:
        whole.update(len(record).to_bytes(8, "big") + record)
    return whole.digest()


def parts_of(
    run_id: str, records: list[bytes], author: Author, import_id: bytes | None = None
) -> list[ImportPart]:
    """The parts that carry a run's records, each small enough for one turn and one message.

    Without an ``import_id`` it is made of all they carry.
    """
    groups: list[list[bytes]] = []
    size = 0
    for record in records:
        if not groups or len(groups[-1]) == PART_RECORDS_MAX or size + len(record) > PART_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(record)
        size += len(record)
    id = import_id or import_id_of(records)
    return [
        ImportPart(run_id, id, author, number, len(groups), tuple(group))
        for number, group in enumerate(groups)
    ]


def is_part(data: bytes) -> bool:
    """Whether bytes of the proposals log are a part of an import."""
    try:
        return identify(data)[0] == "ImportPart"
    except WireError:
        return False


def encode_part(part: ImportPart) -> bytes:
    """A part's bytes."""
    fields = {
        "run_id": part.run_id,
        "import_id": part.import_id,
        "author": {"kind": part.author.kind, "id": part.author.id},
        "part": part.part,
        "parts": part.parts,
        "records": part.records,
    }
    return encode("ImportPart", 1, fields)


def decode_part(data: bytes) -> ImportPart:
    """The part in some bytes; WireError if they are none, or it makes no sense."""
    name, _, fields = decode(data, LIMITS)
    if name != "ImportPart":
        raise WireError(f"{name} is no part of an import")
    if not is_run_id(fields["run_id"]):
        raise WireError("the part's run_id is not a run id")
    if not 0 < len(fields["records"]) <= PART_RECORDS_MAX:
        raise WireError(f"a part carries 1 to {PART_RECORDS_MAX} records")
    if not 0 <= fields["part"] < fields["parts"]:
        raise WireError(f"there is no part {fields['part']} of {fields['parts']}")
    fields["author"] = Author(fields["author"]["kind"], fields["author"]["id"])
    return ImportPart(**{**fields, "records": tuple(fields["records"])})
