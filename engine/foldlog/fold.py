"""The fold: a partition's records, one by one, into its projection; every claim is checked.

A record counts if and only if it extends the head. One that extends a record already seen is
*void* and stepped over; one that extends nothing seen is a hole and halts the partition.

Invariants:
- Nothing is decided here: what was accepted is applied, what was refused is only remembered.
- Hash, run chain, columns, revision, log time and state hash of every counted record are compared;
  the first that does not fit raises ``Damaged`` with run, sequence, what, expected and found.
- Everyone folds through here: projector, readers and auditors.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from foldlog.core.archiving import with_own_events
from foldlog.core.catalogue import RULES, Catalogue
from foldlog.core.context import words_of
from foldlog.core.decide import Decision, Known, decide
from foldlog.core.forks import is_fork, reduce_fork
from foldlog.core.plugins import RULES_OF_PLUGINS_MIN
from foldlog.core.proposals import Malformed, Proposal
from foldlog.core.reduce import reduce, reduce_arbitration
from foldlog.core.state import SCHEMA_VERSION, Draft, Header, Quarantine, RunState, StateUnreadable
from foldlog.errors import BuildTooOld, Damaged, PluginMissing
from foldlog.lacking import count_pinned
from foldlog.log.base import Log, LogError, LogTrimmed, Stored
from foldlog.store.base import StoreError
from foldlog.wire import keys, slots
from foldlog.wire.avro import WireError
from foldlog.wire.chain import ZERO, partition_hash, run_hash
from foldlog.wire.envelope import decode_decided
from foldlog.wire.records import Record, decode_record
from foldlog.wire.slots import CONTENT_BYTES, STATE_FORMAT, Meta
from foldlog.working import NoSlots, Run, Working, content_digest

TURN_RECORDS_MAX = 500
"""The most records of one turn: a constant of the format, since no void chain is longer."""

SEEN_MAX = 4 * TURN_RECORDS_MAX
"""How many heads are remembered to tell a void record from a hole."""

READ_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of records that are read at once."""


@dataclass(slots=True)
class Seen:
    """What tells a void record from a hole: the heads before it, counted or void.

    ``behind`` looks for a record further back than the heads kept here: a decider may stop for
    as long as it likes between deciding and appending. None where nothing is ever void.
    """

    behind: Callable[[Record], bool] | None = None
    heads: deque[bytes] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))

    def has(self, record: Record) -> bool:
        """Whether the record extends one that was seen."""
        if self.behind is None:
            return False
        return record.previous in self.heads or self.behind(record)


def seen_in(log: Log, partition: int, folded_to: Callable[[], int]) -> Seen:
    """Seen, for a reader that has folded a partition's records below offset ``folded_to()``.

    A log whose append looks at the head has no void records: what does not extend it is damage.
    """
    if log.conditional:
        return Seen()
    return Seen(lambda record: _is_behind(log, partition, record, folded_to()))


def _is_behind(log: Log, partition: int, record: Record, end: int) -> bool:
    """Whether a record extends one below this offset, or the beginning of the partition."""
    if record.previous == ZERO:
        return True
    # Sequences are dense and offsets are not, so no record lies before the offset it counts.
    start = record.sequence - 2
    with contextlib.suppress(LogTrimmed):  # what it may extend is gone, and cannot be shown
        while rows := log.events(partition, max(0, start), TURN_RECORDS_MAX, READ_BYTES_MAX):
            for stored in rows:
                if stored.offset >= end:
                    return False
                if stored.head == record.previous:
                    return True
            start = rows[-1].offset + 1
    return False


@dataclass(slots=True)
class Fold:
    """Folds records onto a working copy of one partition.

    ``redecide`` also decides every record again, under its recorded rules and log time, and
    compares the outcome (``verify --redecide``).
    """

    working: Working
    partition: int
    seen: Seen = field(default_factory=Seen)
    rules: Mapping[int, Catalogue] = field(default_factory=lambda: RULES)
    redecide: bool = False

    def fold(self, stored: Stored) -> Record | None:
        """Fold one record; None if it is void. Damaged if it is wrong: drop the working copy."""
        record = self.read(stored)
        head = partition_hash(record.previous, record.chain, stored.value)
        if record.previous != self.working.meta.head:
            self._step_over(stored, record, head)
            return None
        self.check_columns(stored, record, head)
        self._check_order(record)
        self.apply(record, stored.offset)
        self.working.meta = after(self.working.meta, record, stored.offset, head)
        self.seen.heads.append(head)
        return record

    def apply(self, record: Record, offset: int) -> Run:
        """Fold one record into its run, wherever in the log it lies, and check it against it.

        Damaged for whatever cannot be folded; storage that fails stays an outage.
        """
        try:
            return self._apply(record, offset)
        except (Damaged, StateUnreadable, StoreError, LogError, MemoryError):
            raise
        except Exception as error:
            where = (self.partition, record.run_id, record.sequence)
            raise Damaged(*where, "fold", "a next state", words_of(error)) from error

    def _apply(self, record: Record, offset: int) -> Run:
        run = self.working.run(record.run_id)
        begin_import(run, record)
        self._check_run(record, run)
        content, draft = self._reduce(record, run)
        if draft is not None:
            count_pinned(self.working, run, draft)
            state_hash = self.working.advance(run, draft, record.chain, record.log_time)
            # What could not be lifted has no hash that others have.
            is_lifted = run.header.schema_version == SCHEMA_VERSION
            if record.state_format == STATE_FORMAT and is_lifted:
                self._expect(record, "state hash", _hex(record.state_hash), state_hash.hex())
        else:
            self._expect(record, "revision", record.revision_before, record.revision_after)
        note(self.working, record, run, offset, content)
        return run

    def restate(self, record: Record) -> Record:
        """Fold a record as the next of its run; the record with the hashes that it then has."""
        run = self.working.run(record.run_id)
        record = record._replace(chain=run_hash(run.head.chain, record))
        content, draft = self._reduce(record, run)
        if draft is not None:
            state_hash = self.working.advance(run, draft, record.chain, record.log_time)
            record = record._replace(state_format=STATE_FORMAT, state_hash=state_hash)
        note(self.working, record, run, 0, content)
        return record

    def read(self, stored: Stored) -> Record:
        """The record of a row; Damaged if it does not read."""
        try:
            return decode_record(stored.value)
        except WireError as error:
            run_id = stored.key.decode(errors="replace")
            raise Damaged(
                self.partition, run_id, stored.sequence, "record", "a decided record", str(error)
            ) from None

    def _step_over(self, stored: Stored, record: Record, head: bytes) -> None:
        meta = self.working.meta
        if not self.seen.has(record):
            sequence = meta.sequence + 1
            raise Damaged(
                self.partition,
                stored.key.decode(errors="replace"),
                stored.sequence,
                f"hole: record {sequence} must extend the head",
                meta.head.hex(),
                record.previous.hex(),
            )
        self.seen.heads.append(head)
        self.working.meta = meta._replace(offset=stored.offset + 1, void=meta.void + 1)

    def _expect(self, record: Record, what: str, expected: Any, found: Any) -> None:
        if expected != found:
            raise Damaged(self.partition, record.run_id, record.sequence, what, expected, found)

    def check_columns(self, stored: Stored, record: Record, head: bytes) -> None:
        """The log's own columns repeat what the record says."""
        key = stored.key.decode(errors="replace")
        sequence = self.working.meta.sequence + 1
        # Record or column may be the changed one; once they agree, the record's own word counts.
        run_id = key if stored.head != head else record.run_id
        for what, expected, found in (
            ("partition hash", stored.head.hex(), head.hex()),
            ("run column", record.run_id, key),
            ("sequence column", record.sequence, stored.sequence),
            ("time column", record.log_time, stored.log_time),
        ):
            if expected != found:
                raise Damaged(self.partition, run_id, sequence, what, expected, found)

    def _check_order(self, record: Record) -> None:
        meta = self.working.meta
        self._expect(record, "sequence", meta.sequence + 1, record.sequence)
        if record.imported is None:  # an imported one keeps the log time of its own log
            run = self.working.run(record.run_id)
            self._expect(record, "log time", log_time(record, meta, run), record.log_time)
        if record.position < meta.position:
            self._expect(record, "position", f">= {meta.position}", record.position)

    def _check_run(self, record: Record, run: Run) -> None:
        revision = chained(run, record).revision
        makes_revision = record.outcome in ("accepted", "arbitration")
        chain = run_hash(chained(run, record).chain, record).hex()
        self._expect(record, "run chain", chain, record.chain.hex())
        self._expect(record, "revision before", revision, record.revision_before)
        revision_after = revision + 1 if makes_revision else revision
        self._expect(record, "revision after", revision_after, record.revision_after)

    def _reduce(self, record: Record, run: Run) -> tuple[bytes | None, Draft | None]:
        """The digest of the proposal's content, and the draft if the record makes a revision."""
        if record.proposal is None:
            return unread_content(record), None
        try:
            proposal = decode_decided(record.proposal)
        except (WireError, Malformed) as error:
            # Its hashes are right: these are the bytes that were decided.
            raise self._too_old(record, "proposal", "one that this build can read", error) from None
        self._expect(record, "run of the proposal", record.run_id, proposal.run_id)
        self._expect(record, "batch id of the proposal", record.batch_id, proposal.batch_id)
        content = content_digest(proposal)
        if self.redecide and record.imported is None:
            self._decide_again(record, run, proposal, content)
        return content, self._draft(record, run, proposal)

    def _draft(self, record: Record, run: Run, proposal: Proposal) -> Draft | None:
        if record.outcome == "accepted" and is_fork(proposal):
            return reduce_fork(run.state(), proposal, record.log_time)
        if record.outcome == "accepted":
            rules = self.rules.get(record.rules_version)
            if rules is None and record.rules_version >= RULES_OF_PLUGINS_MIN:
                raise PluginMissing(
                    self.partition, record.run_id, record.sequence, record.rules_version
                )
            if rules is None:
                have = f"one that this build has: {', '.join(map(str, sorted(self.rules)))}"
                raise self._too_old(record, "rules version", have, record.rules_version)
            rows = with_own_events(rules, proposal)
            return reduce(run.state(), proposal, record.log_time, rows, record.rules_version)
        if record.outcome == "arbitration":
            entities = [conflict["entity"] for conflict in record.conflicts]
            return reduce_arbitration(run.state(), proposal, record.log_time, entities)
        return None

    def _too_old(self, record: Record, what: str, expected: str, found: object) -> BuildTooOld:
        where = (self.partition, record.run_id, record.sequence)
        expected += f" (foldlog {record.build} decided it: upgrade foldlog here)"
        return BuildTooOld(*where, what, expected, str(found))

    def _decide_again(self, record: Record, run: Run, proposal: Proposal, content: bytes) -> None:
        assert record.batch_id is not None
        if record.code == "MIGRATION_REQUIRED":
            return  # it was the decider's projection that was in an older schema, not the log
        known = self.working.known(record.run_id, record.batch_id)
        again = decide_here(run, proposal, record.log_time, known, content, self.rules)
        for name in ("outcome", "code", "event_index", "field", "conflicts", "rebased"):
            expected, found = getattr(record, name), getattr(again, name)
            self._expect(record, f"decision: {name}", expected, found)


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def log_time(record: Record, meta: Meta, run: Run) -> int:
    """The log time of a record that is decided here, after what ``meta`` and ``run`` say.

    Time goes back neither in a partition nor in a run, which may have been imported from a log
    whose clock was ahead; such a run does not take the others of its partition along.
    """
    return max(record.appended_at, meta.log_time, run.head.recorded_at)


def unread_content(record: Record) -> bytes | None:
    """What stands for the content of a proposal that does not read, if its envelope did."""
    if record.batch_id is None:
        return None
    assert record.unreadable is not None
    digest: bytes = record.unreadable["sha256"]
    return digest[:CONTENT_BYTES]


def unreadable(value: bytes) -> dict[str, Any]:
    """What a record keeps of proposal bytes that do not read."""
    return {"sha256": sha256(value).digest(), "size": len(value)}


def after(meta: Meta, record: Record, offset: int, head: bytes) -> Meta:
    """How far the fold is after a counted record at this offset with this partition hash."""
    return meta._replace(
        position=record.position + 1 if record.ends_proposal else record.position,
        offset=offset + 1,
        last_offset=offset,
        sequence=record.sequence,
        head=head,
        log_time=max(record.appended_at, meta.log_time),
    )


def note(working: Working, record: Record, run: Run, offset: int, content: bytes | None) -> None:
    """Remember a record in its run: its batch id, its place in the log, the run's head."""
    if not record.run_id:
        return
    batch_id = record.batch_id
    if batch_id is not None and content is not None:
        known_before = working.known(record.run_id, batch_id)
        if known_before is None or (record.imported and is_first(record)):
            known = Known(record.sequence, content, record.code)
            working.changes[keys.batch_key(record.run_id, batch_id)] = slots.encode_known(known)
    working.changes[keys.record_key(record.run_id, record.sequence)] = offset.to_bytes(8, "big")
    quarantine = run.head.quarantine
    if record.outcome == "quarantined" and run.header.revision > 0:
        error = record.error or ""
        quarantine = Quarantine(record.log_time, record.sequence, error, record.build)
    if is_outside(run, record):
        chains: dict[str, Any] = {"outside": record.chain}
    else:
        chains = {"chain": record.chain, "importing": _next_of(record)}
    head = run.head._replace(
        sequence=record.sequence,
        recorded_at=record.log_time,
        quarantine=quarantine,
        **chains,
    )
    working.put_head(run, head)


# Imports: the records of a run that another log decided, taken over as they are


@dataclass(frozen=True, slots=True)
class Chained:
    """What a record of a run continues: a run chain, and the revision before it."""

    chain: bytes
    revision: int


def is_first(record: Record) -> bool:
    """Whether no record of its run before it had its batch id, by what was decided of it."""
    return record.outcome != "duplicate" and record.code not in ("BATCH_ID_REUSED", "MALFORMED")


def is_outside(run: Run, record: Record) -> bool:
    """Whether a record is decided here while the run is being imported."""
    return run.head.importing is not None and record.imported is None


def chained(run: Run, record: Record) -> Chained:
    """What a record continues: of a run that is being imported, what is refused meanwhile stands
    outside its chain, as of a run that does not exist."""
    if is_outside(run, record):
        return Chained(run.head.outside, 0)
    return Chained(run.head.chain, run.header.revision)


def begin_import(run: Run, record: Record) -> None:
    """The first record of an import begins the run's chain; what was refused before is outside."""
    if record.imported is not None and run.head.importing is None:
        import_id = record.imported["import_id"].hex()
        run.head = run.head._replace(outside=run.head.chain, chain=ZERO, importing=(import_id, 0))


def _next_of(record: Record) -> tuple[str, int] | None:
    """How far the import is after its record; None after the last, and where there is none."""
    imported = record.imported
    if imported is None or imported["place"] == "last":
        return None
    part = imported["part"] + (imported["place"] == "part")
    return (imported["import_id"].hex(), part)


def decide_here(
    run: Run,
    proposal: Proposal,
    log_time: int,
    known: Known | None,
    content: bytes,
    rules: Mapping[int, Catalogue],
) -> Decision:
    """Decide a proposal to a run, which is not there yet while it is being imported."""
    if run.head.importing is None:
        return decide(run.state(), proposal, log_time, known, content, rules)
    # The batch ids of the part that is there are not visible either: no answer may tell of them.
    absent = RunState(Header(run.run_id), NoSlots())
    decision = decide(absent, proposal, log_time, None, content, rules)
    if decision.outcome == "rejected":
        return decision
    message = f"run {run.run_id} is being imported: finish that first"
    return Decision("rejected", 0, 0, decision.rules_version, "RUN_EXISTS", message)


def decided(record: Record, decision: Decision, read: Mapping[str, Any]) -> Record:
    """A record with everything a decision says, and the fields that were read before it."""
    return record._replace(
        **read,
        outcome=decision.outcome,
        code=decision.code,
        message=decision.message,
        event_index=decision.event_index,
        field=decision.field,
        conflicts=decision.conflicts,
        revision_before=decision.revision_before,
        revision_after=decision.revision_after,
        rebased=decision.rebased,
        rules_version=decision.rules_version,
        duplicate_of=decision.duplicate_of,
        error=decision.error,
    )
