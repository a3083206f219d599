"""A partition's projection with changes on top of it: what a turn, a replay and a proof work on.

Invariants:
- Nothing is written here: ``written`` is what one atomic WriteBatch will hold.
- The state hash is kept in O(change): what a slot had is taken off, what it has is added.
- Work is proportional to what a batch touches; values read once are not read again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeVar

from foldlog.core.decide import Known
from foldlog.core.lifting import Unsafe
from foldlog.core.migrations import MIGRATIONS, Document
from foldlog.core.proposals import Proposal
from foldlog.core.state import (
    SCHEMA_VERSION,
    Draft,
    Header,
    RunState,
    Slot,
    StateUnreadable,
    merged,
)
from foldlog.core.values import parse_instant
from foldlog.errors import Damaged
from foldlog.store.base import Reader, StoreError
from foldlog.wire import keys, slots
from foldlog.wire.chain import entity_hash
from foldlog.wire.slots import CONTENT_BYTES, Meta, RunHead

STATE_MODULUS = 1 << 256
HEADER = ("header", "")

UNKNOWN_BUILD = "unknown"
"""What stands for the build of a run that is shown lifted; what is stored names it."""


T = TypeVar("T")


class ProjectionDamaged(Damaged, StateUnreadable):
    """A stored value that does not read. Met by a rule, it is not the rule's fault."""


def read_as(decode: Callable[[bytes], T], data: bytes, reader: Reader, run_id: str, what: str) -> T:
    """A value of a run's projection, decoded; ProjectionDamaged if it does not read."""
    try:
        return decode(data)
    except Exception as error:
        try:
            meta = slots.decode_meta(reader.get(keys.META) or b"")
        except Exception:
            meta = Meta("", -1)
        found = f"{type(error).__name__}: {error}"
        raise ProjectionDamaged(
            meta.partition, run_id, meta.sequence, f"projection: {what}", "what was written", found
        ) from None


def folded_to(reader: Reader, identity: str, partition: int) -> Meta:
    """How far a store says it is folded; the beginning if it says nothing."""
    data = reader.get(keys.META)
    if data is None:
        return Meta(identity, partition)
    try:
        return slots.decode_meta(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what, expected = "projection: position of the fold", "what was written"
        raise Damaged(partition, None, 0, what, expected, str(error)) from None


def content_digest(proposal: Proposal) -> bytes:
    """The digest by which contents under one batch id are compared (16 bytes)."""
    return blake2b(proposal.content(), digest_size=CONTENT_BYTES).digest()


class StoredSlots:
    """The slots of one run as a store has them, decoded once; storage errors stay outages."""

    def __init__(self, reader: Reader, run_id: str) -> None:
        self._reader = reader
        self._run_id = run_id

    def raw(self, kind: str, id: str) -> bytes | None:
        """A slot's stored bytes."""
        return _read(self._reader, keys.slot_key(self._run_id, kind, id))

    def get(self, kind: str, id: str) -> Slot | None:
        """The slot at that address, or None."""
        data = self.raw(kind, id)
        return None if data is None else self.decoded(kind, id, data)

    def decoded(self, kind: str, id: str, data: bytes) -> Slot:
        """The slot in some bytes of the store."""
        what = f"{kind}/{id}".rstrip("/")
        return read_as(slots.decode_slot, data, self._reader, self._run_id, what)

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """Every slot of a kind with its id, ordered by id."""
        prefix = keys.kind_prefix(self._run_id, kind)
        try:
            for key, data in self._reader.scan(prefix):
                id = key[len(prefix) :].decode(errors="replace")
                yield id, self.decoded(kind, id, data)
        except StoreError as error:
            raise StateUnreadable(str(error)) from error


def _read(reader: Reader, key: bytes) -> bytes | None:
    try:
        return reader.get(key)
    except StoreError as error:
        raise StateUnreadable(str(error)) from error


class NoSlots:
    """The slots of a run that does not exist."""

    def get(self, kind: str, id: str) -> Slot | None:
        """Nothing is there."""
        return None

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """Nothing is there."""
        return iter(())


class ChangedSlots:
    """Stored slots with a turn's changes on top."""

    def __init__(self, stored: StoredSlots) -> None:
        self._stored = stored
        self._seen: dict[tuple[str, str], tuple[bytes | None, Slot | None]] = {}
        self._changed: dict[str, dict[str, Slot | None]] = {}

    def _look(self, kind: str, id: str) -> tuple[bytes | None, Slot | None]:
        found = self._seen.get((kind, id))
        if found is None:
            data = self._stored.raw(kind, id)
            found = (data, None if data is None else self._stored.decoded(kind, id, data))
            self._seen[(kind, id)] = found
        return found

    def raw(self, kind: str, id: str) -> bytes | None:
        """A slot's bytes as they are now."""
        return self._look(kind, id)[0]

    def get(self, kind: str, id: str) -> Slot | None:
        """The slot as it is now."""
        return self._look(kind, id)[1]

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """Every slot of a kind as it is now, ordered by id."""
        changed = self._changed.get(kind)
        below = self._stored.scan(kind)
        return merged(below, changed) if changed else below

    def put(self, kind: str, id: str, data: bytes | None, slot: Slot | None) -> None:
        """Change a slot (None: it is gone)."""
        self._seen[(kind, id)] = (data, slot)
        self._changed.setdefault(kind, {})[id] = slot

    def changed(self) -> Iterator[tuple[tuple[str, str], bytes | None]]:
        """The slots that were put, and their bytes."""
        for kind, ids in self._changed.items():
            for id in ids:
                yield (kind, id), self._seen[(kind, id)][0]


@dataclass(slots=True)
class Run:
    """One run in a working copy; ``head_key`` is where its head is stored, if it is.

    ``lifted_from`` is the schema that it is stored in, if that is an older one and the run is
    shown lifted.
    """

    run_id: str
    header: Header
    header_bytes: bytes | None
    head: RunHead
    slots: ChangedSlots
    head_key: bytes | None = None
    lifted_from: int | None = None

    def state(self) -> RunState:
        """The run's state as it is now."""
        return RunState(self.header, self.slots, self.head.quarantine, self.head.migrated_from)


@dataclass(slots=True)
class Working:
    """A working copy of one partition's projection. Drop it, or write what is ``written``."""

    reader: Reader
    meta: Meta
    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    heads: dict[str, RunHead] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    def run(self, run_id: str) -> Run:
        """A run, also one that does not exist (revision 0)."""
        run = self.runs.get(run_id)
        if run is None:
            run = self.runs[run_id] = open_run(self.reader, run_id)
        return run

    def known(self, run_id: str, batch_id: str) -> Known | None:
        """What is kept of a batch id of a run."""
        key = keys.batch_key(run_id, batch_id)
        data = self.changes[key] if key in self.changes else _read(self.reader, key)
        if data is None:
            return None
        return read_as(slots.decode_known, data, self.reader, run_id, f"batch id {batch_id}")

    def advance(self, run: Run, draft: Draft, chain: bytes, log_time: int) -> bytes:
        """Take a draft over as the run's state; returns the state hash after it.

        ``chain`` is the run hash of the record that makes the revision, ``log_time`` its time.
        """
        if run.lifted_from is not None:
            self._keep_lifted(run)
        self._set_timer(run, draft)
        total = run.head.state_sum
        for (kind, id), slot in draft.changes.items():
            data = None if slot is None else slots.encode_slot(slot)
            total += _difference(kind, id, run.slots.raw(kind, id), data)
            run.slots.put(kind, id, data, slot)
            self.changes[keys.slot_key(run.run_id, kind, id)] = data
        run.header = draft.header
        run.header.chain = chain.hex()
        data = slots.encode_header(run.header)
        total = (total + _difference(*HEADER, run.header_bytes, data)) % STATE_MODULUS
        run.header_bytes = data
        self.changes[keys.slot_key(run.run_id, *HEADER)] = data
        archived = run.head.archived
        if ("archived", "") in draft.changes:
            archived = draft.changes[("archived", "")] is not None
        run.head = run.head._replace(
            state_sum=total,
            changed_at=log_time,
            quarantine=draft.quarantine,
            archived=archived,
        )
        return total.to_bytes(32, "big")

    def _keep_lifted(self, run: Run) -> None:
        """A run that is shown lifted is kept so from its first change on."""
        for (kind, id), data in run.slots.changed():
            self.changes[keys.slot_key(run.run_id, kind, id)] = data
        run.header_bytes = slots.encode_header(run.header)
        run.head = run.head._replace(state_sum=lifted_sum(self.reader, run))
        run.lifted_from = None

    def _set_timer(self, run: Run, draft: Draft) -> None:
        if ("wait", "") not in draft.changes:
            return
        for wait, here in ((run.state().value("wait"), None), (draft.value("wait"), b"")):
            if wait is not None and wait["deadline"] is not None:
                key = keys.timer_key(parse_instant(wait["deadline"]), run.run_id)
                self.changes[key] = here

    def put_head(self, run: Run, head: RunHead) -> None:
        """Change what is kept of a run beside its state."""
        run.head = head
        self.heads[run.run_id] = head

    def written(self) -> dict[bytes, bytes | None]:
        """Everything that changed, as one WriteBatch: what changes with every record only once."""
        heads: dict[bytes, bytes | None] = {}
        for id, head in self.heads.items():
            hot, cold = keys.head_keys(id)
            here, before = hot if head.is_hot else cold, self.runs[id].head_key
            if before not in (None, here):
                heads[before] = None
            heads[here] = slots.encode_head(head)
        return {**self.changes, **heads, keys.META: slots.encode_meta(self.meta)}


def _difference(kind: str, id: str, old: bytes | None, new: bytes | None) -> int:
    """What changing a slot adds to the sum of its run's state hash."""
    if old == new:
        return 0
    key = f"{kind}\0{id}".encode()
    added = 0 if new is None else entity_hash(key, new)
    return added - (0 if old is None else entity_hash(key, old))


def open_run(reader: Reader, run_id: str) -> Run:
    """A run as a store has it; one that is not there has revision 0."""
    stored = StoredSlots(reader, run_id)
    header_bytes = stored.raw(*HEADER)
    header = Header(run_id)
    if header_bytes is not None:

        def decode(data: bytes) -> Header:
            return slots.decode_header(run_id, data)

        header = read_as(decode, header_bytes, reader, run_id, "header")
    head, head_key = RunHead(), None
    for key in keys.head_keys(run_id):
        if (data := _read(reader, key)) is not None:
            head_key = key
            head = read_as(slots.decode_head, data, reader, run_id, "head of the run")
            break
    run = Run(run_id, header, header_bytes, head, ChangedSlots(stored), head_key)
    if header_bytes is not None and header.schema_version < SCHEMA_VERSION:
        _lift(run, stored)
    return run


def _lift(run: Run, stored: StoredSlots) -> None:
    """Show a run of an older schema as this build's has it, if that can be; the store is left."""
    lifted = MIGRATIONS.lifted(Document(run.header, stored), run.header.schema_version)
    if isinstance(lifted, Unsafe):
        return
    run.lifted_from = run.header.schema_version
    run.header = lifted.header
    for (kind, id), slot in lifted.changes.items():
        run.slots.put(kind, id, None if slot is None else slots.encode_slot(slot), slot)
    came_from = {"schema_version": run.lifted_from, "build": UNKNOWN_BUILD}
    run.head = run.head._replace(migrated_from=(*run.head.migrated_from, came_from))


def lifted_sum(reader: Reader, run: Run) -> int:
    """The sum of a lifted run's state hash, over all that a store has of it; as dear as that is."""
    changed = {**dict(run.slots.changed()), HEADER: slots.encode_header(run.header)}
    total = 0
    prefix = keys.run_prefix(run.run_id)
    for key, data in reader.scan(prefix):
        kind, _, id = key[len(prefix) :].decode().partition("\0")
        if (kind, id) not in changed:
            total += _difference(kind, id, None, data)
    return (total + sum(_difference(*at, None, new) for at, new in changed.items())) % STATE_MODULUS


def why_stuck(reader: Reader, run_id: str) -> str | None:
    """Why a run is kept in an older schema, where it cannot be lifted; None if it is not."""
    run = open_run(reader, run_id)
    if run.header_bytes is None or run.header.schema_version >= SCHEMA_VERSION:
        return None
    stored = StoredSlots(reader, run_id)
    lifted = MIGRATIONS.lifted(Document(run.header, stored), run.header.schema_version)
    return lifted.reason if isinstance(lifted, Unsafe) else None
