"""What stands under the projection's keys, as bytes (FORMAT.md, "Projection").

Everything is canonical JSON: small keys, sorted, no spaces, characters as they are. A state hash
is taken over these very bytes, so their form is the state format and changes only with a new one.

Invariants:
- decode(encode(x)) == x, and equal values have equal bytes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import update_wrapper
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar

from foldlog.core.catalogue import RULES, fingerprints
from foldlog.core.decide import Known
from foldlog.core.state import Header, Quarantine, Slot
from foldlog.core.values import canonical_json
from foldlog.wire.chain import ZERO

T = TypeVar("T")

STATE_FORMAT = 2
"""The form of the bytes a state hash is taken over. Format 1 is read, to be migrated."""

TABLES = blake2b(
    canonical_json({str(v): fingerprints(table) for v, table in RULES.items()}).encode(),
    digest_size=16,
).hexdigest()
"""What tells the rules tables of this build from others; a store folded under others is rebuilt."""

CONTENT_BYTES = 16
"""Bytes kept of the digest of a batch's content: enough to tell contents apart by accident."""


class Meta(NamedTuple):
    """How far a partition is folded: the next proposal, the next offset, the head, log time.

    ``last_offset`` is where the record of ``head`` lies; ``void`` counts void records seen.
    ``format`` and ``tables`` are those of the build that folded.
    """

    identity: str
    partition: int
    position: int = 1
    offset: int = 1
    last_offset: int = 0
    sequence: int = 0
    head: bytes = ZERO
    log_time: int = 0
    void: int = 0
    format: int = STATE_FORMAT
    tables: str = TABLES

    @property
    def place(self) -> tuple[object, ...]:
        """Where the fold is, whatever build it was."""
        return tuple(getattr(self, name) for name in PLACE_FIELDS)


PLACE_FIELDS = (
    "identity", "partition", "position", "offset", "last_offset", "sequence", "head", "log_time",
    "void",
)  # fmt: skip


class RunHead(NamedTuple):
    """What is kept of a run beside its state: where its chain is, the sum of its state hash,

    its last record (sequence and log time), the log time of its last change, its quarantine.

    ``importing``: the import under way (its id in hex, the next part); the run is not visible
    until it is over. ``outside``: the chain of what was refused of this run id before and
    meanwhile, which is no part of the imported chain. ``migrated_from``: the schemas it was kept
    in before, and the builds that had written it; no part of the state hash, since a replay knows
    nothing of it. ``archived``: whether the run is.
    """

    chain: bytes = ZERO
    state_sum: int = 0
    sequence: int = 0
    recorded_at: int = 0
    changed_at: int = 0
    quarantine: Quarantine | None = None
    importing: tuple[str, int] | None = None
    outside: bytes = ZERO
    migrated_from: tuple[Mapping[str, Any], ...] = ()
    archived: bool = False

    @property
    def is_hot(self) -> bool:
        """Whether lists and alarms count the run: an archived one only while it is quarantined."""
        return not self.archived or self.quarantine is not None


KEPT_MAX, KEPT_BYTES_MAX = 2_048, 1_024
"""How many values each decoder keeps, and how large they may be: a few MB at most."""


class _Keeping(Generic[T]):
    """A decoder that keeps what it gave lately, of small values, and what was encoded lately: a
    turn reads what the last one read and wrote, and nobody changes what was read.

    Keyed by the bytes, so what is broken or was changed is decoded.
    """

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._kept: dict[bytes, T] = {}
        update_wrapper(self, decode)

    def __call__(self, data: bytes) -> T:
        if len(data) > KEPT_BYTES_MAX:
            return self._decode(data)
        value = self._kept.get(data)
        if value is None:
            value = self._decode(data)
            self.keep(data, value)
        return value

    def keep(self, data: bytes, value: T) -> None:
        """Give this value for these bytes, which decode to it; a large one is left."""
        if len(data) > KEPT_BYTES_MAX:
            return
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()  # in one step, whatever other threads do
        self._kept[data] = value


def encode_slot(slot: Slot) -> bytes:
    """A slot's bytes: value, and the stamp and hidden part where it has them."""
    stored: dict[str, Any] = {"v": slot.value}
    if slot.revision:
        stored["r"] = slot.revision
        stored["a"] = [slot.author_kind, slot.author_id]
        stored["t"] = slot.at
    if slot.hidden is not None:
        stored["h"] = slot.hidden
    return canonical_json(stored).encode()


@_Keeping
def decode_slot(data: bytes) -> Slot:
    """The slot in some bytes that ``encode_slot`` made."""
    stored = json.loads(data)
    kind, id = stored.get("a", ("", ""))
    return Slot(stored["v"], stored.get("r", 0), kind, id, stored.get("t", 0), stored.get("h"))


UNSTORED = ("run_id", "retries_kept")
HEADER_FIELDS = tuple(field.name for field in fields(Header) if field.name not in UNSTORED)
ATTEMPTS = ("attempts_count", "attempts_before")


def encode_header(header: Header) -> bytes:
    """A header's bytes; the run id is in the key. A document of schema 1 keeps its form."""
    stored = {name: getattr(header, name) for name in HEADER_FIELDS}
    if header.retries_kept is not None:
        stored = {name: value for name, value in stored.items() if name not in ATTEMPTS}
        stored |= {"retry_count": header.retries_kept, "migrated_from": []}
    return canonical_json(stored).encode()


def decode_header(run_id: str, data: bytes) -> Header:
    """The header in some bytes; a field that this build does not know is a ValueError."""
    try:
        return Header(run_id=run_id, **_header_fields(data))
    except TypeError as error:
        raise ValueError(f"header of run {run_id}: {error}") from None


@_Keeping
def _header_fields(data: bytes) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(data)
    if stored["schema_version"] == 1:
        # Nothing was ever migrated to schema 1, so its list of that was always empty.
        stored["retries_kept"] = stored.pop("retry_count")
        del stored["migrated_from"]
    return stored


def encode_head(head: RunHead) -> bytes:
    """A run head's bytes."""
    quarantine = head.quarantine
    stored = {
        "chain": head.chain.hex(),
        "sum": f"{head.state_sum:064x}",
        "sequence": head.sequence,
        "recorded_at": head.recorded_at,
        "changed_at": head.changed_at,
        "quarantine": None
        if quarantine is None
        else [quarantine.since, quarantine.sequence, quarantine.error, quarantine.build],
    }
    if head.importing is not None:
        stored["importing"] = list(head.importing)
    if head.outside != ZERO:
        stored["outside"] = head.outside.hex()
    if head.migrated_from:
        stored["migrated_from"] = [dict(each) for each in head.migrated_from]
    if head.archived:
        stored["archived"] = True
    data = canonical_json(stored).encode()
    if not head.migrated_from:  # objects: decoded, their keys are in another order
        decode_head.keep(data, head)
    return data


@_Keeping
def decode_head(data: bytes) -> RunHead:
    """The run head in some bytes."""
    stored = json.loads(data)
    quarantine = stored["quarantine"]
    return RunHead(
        chain=bytes.fromhex(stored["chain"]),
        state_sum=int(stored["sum"], 16),
        sequence=stored["sequence"],
        recorded_at=stored["recorded_at"],
        changed_at=stored["changed_at"],
        quarantine=None if quarantine is None else Quarantine(*quarantine),
        importing=tuple(stored["importing"]) if "importing" in stored else None,
        outside=bytes.fromhex(stored["outside"]) if "outside" in stored else ZERO,
        migrated_from=tuple(stored.get("migrated_from", ())),
        archived="archived" in stored,
    )


def encode_meta(meta: Meta) -> bytes:
    """The fold's position as bytes."""
    return canonical_json({**meta._asdict(), "head": meta.head.hex()}).encode()


def decode_meta(data: bytes) -> Meta:
    """The fold's position; ValueError if it was written in a form this build does not know."""
    stored = json.loads(data)
    if not 1 <= (found := stored["format"]) <= STATE_FORMAT:
        raise ValueError(f"the projection has state format {found}, this build {STATE_FORMAT}")
    if found == 1:
        stored["tables"] = ""  # format 1 did not say
    return Meta(**{**stored, "head": bytes.fromhex(stored["head"])})


def is_of_this_build(data: bytes) -> bool:
    """Whether a store that says this of itself was folded under this build's format and rules."""
    try:
        meta = decode_meta(data)
    except (ValueError, TypeError, KeyError, AttributeError):
        return True  # of a newer format, or broken: whoever reads it says so
    return (meta.format, meta.tables) == (STATE_FORMAT, TABLES)


def encode_known(known: Known) -> bytes:
    """A batch id's first record: sequence (8 bytes), content digest (16 bytes), code (text)."""
    code = (known.code or "").encode()
    return known.sequence.to_bytes(8, "big") + known.content + code


def decode_known(data: bytes) -> Known:
    """What ``encode_known`` made."""
    code = data[8 + CONTENT_BYTES :].decode() or None
    return Known(int.from_bytes(data[:8], "big"), data[8 : 8 + CONTENT_BYTES], code)
