"""One turn of one partition: read proposals, decide, append, read back, write. DESIGN, "Two logs".

Invariants:
- The log comes first and the store after it; a crash in between is mended by folding the tail.
- A turn decides on a working copy that is dropped; what is written is folded from what was read
  back, and those bytes are compared with the bytes handed in.
- After any failure of an append, nothing is decided before the log was read to its end.
- A rule that raises quarantines a run; storage that fails stops the turn and changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from foldlog.core.catalogue import RULES, RULES_DEFAULT, Catalogue
from foldlog.core.proposals import Malformed, Proposal, hinted
from foldlog.core.values import is_run_id
from foldlog.errors import Damaged, LogTrimmed, PluginMissing
from foldlog.fold import (
    READ_BYTES_MAX,
    TURN_RECORDS_MAX,
    Fold,
    Seen,
    after,
    chained,
    decide_here,
    decided,
    log_time,
    note,
    seen_in,
    unread_content,
    unreadable,
)
from foldlog.imported import BrokenPart, carried, is_repeated, refuse
from foldlog.lacking import check_plugins, pinned_to
from foldlog.log.base import (
    Entry,
    ExchangeLog,
    HeadMoved,
    Log,
    LogError,
    LogUnreachable,
    PositionMoved,
    Proposed,
    Stored,
)
from foldlog.log.base import LogTrimmed as RowsTrimmed
from foldlog.store.base import Reader, Store
from foldlog.store.once import Once
from foldlog.version import __version__
from foldlog.wire.avro import WireError
from foldlog.wire.chain import ZERO, partition_hash, run_hash
from foldlog.wire.envelope import decode_proposal, read_envelope, readable_events
from foldlog.wire.imports import PART_RECORDS_MAX, ImportPart, decode_part, is_part
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import Record, decode_record, encode_record, trimmed
from foldlog.wire.slots import STATE_FORMAT, Meta
from foldlog.working import ProjectionDamaged, Run, Working, content_digest, folded_to

TURN_BYTES_MAX = 8 * 1024 * 1024
"""Proposal bytes of one turn; one proposal is at most 256 KiB."""


Noting = Callable[[], None]
"""What a working copy has to note of a decided proposal before it serves for another one."""


def _nothing() -> None:
    """What has been noted already."""


@dataclass(slots=True)
class Partition:
    """One partition's log and store, and the turn between them. One thread at a time.

    ``folded`` is told of each counted record after it is in the store.
    """

    log: Log
    store: Store
    number: int
    decider: str = ""
    rules: Mapping[int, Catalogue] = field(default_factory=lambda: RULES)
    folded: Callable[[Record], None] = lambda record: None
    meta: Meta = field(init=False)
    seen: Seen = field(init=False)
    in_doubt: bool = False

    def __post_init__(self) -> None:
        self._read_meta()

    def _read_meta(self) -> None:
        self.meta = folded_to(self.store, self.log.identity, self.number)
        self.seen = seen_in(self.log, self.number, lambda: self.meta.offset)
        self.seen.heads.append(self.meta.head)

    # Recovery

    def recover(self, tell: Callable[[int], None] = lambda records: None) -> int:
        """Check that the store's head is in the log, and fold what came after it.

        Returns the number of records folded, and tells of it meanwhile. Raises Damaged if the
        store is no fold of this log.
        """
        self.check()
        return self.catch_up(tell=tell)

    def check(self) -> None:
        """Check that the store's head is in the log; Damaged if the store is no fold of it."""
        check_projection(self.log, self.number, self.meta)

    def check_plugins(self) -> None:
        """PluginMissing if a run of this partition uses a plug-in that this build has not."""
        check_plugins(self.number, self.store, self.meta.sequence, self.rules)

    def catch_up(
        self, end: int | None = None, tell: Callable[[int], None] = lambda records: None
    ) -> int:
        """Fold the log to its end, or to before an offset; returns the number of records folded.

        Begins at what the store says, whatever an interrupted turn left in memory.
        """
        self.in_doubt = True
        self._read_meta()
        count = 0
        while (more := self._fold_some([], self.store, end)) > 0:
            count += more
            tell(count)
        self.in_doubt = False
        return count

    def fold_more(self) -> int:
        """A piece of ``catch_up``, a turn's worth at most; 0 once the log's end is reached."""
        if self.in_doubt:
            self._read_meta()
        count = self._fold_some([], self.store)
        self.in_doubt = count > 0
        return count

    def _fold_some(self, ours: list[bytes], reader: Reader, end: int | None = None) -> int:
        """Fold the next records, on what a reader of the store shows, as one write; takes those it
        reads out of ``ours``."""
        if end is not None and self.meta.offset >= end:
            return 0
        with _trimmed_told(self.number, self.meta):
            rows = self.log.events(self.number, self.meta.offset, TURN_RECORDS_MAX, READ_BYTES_MAX)
        if end is not None:
            rows = [stored for stored in rows if stored.offset < end]
        if not rows:
            return 0
        working = Working(reader, self.meta)
        fold = Fold(working, self.number, self.seen, self.rules)
        records = [fold.fold(stored) for stored in rows]
        self.store.write(working.written())
        self.meta = working.meta
        handed_in = set(ours)
        if handed_in:
            ours[:] = handed_in.difference(stored.value for stored in rows)
        for record in records:
            if record is not None:
                self.folded(record)
        return len(rows)

    # The turn

    def turn(self) -> int:
        """Decide the proposals that wait, at most one turn's worth; returns how many records.

        Durable on return: the records in the log, and the state folded from them. LogError and
        StoreError leave everything as the log has it; the next turn reads it back first.
        """
        if self.in_doubt:
            self.catch_up()
        with _trimmed_told(self.number, self.meta):
            proposals = self.log.proposals(
                self.number, self.meta.position, TURN_RECORDS_MAX, TURN_BYTES_MAX
            )
        if not proposals:
            return 0
        reader = Once(self.store)
        entries = self._decide_some(proposals, reader)
        self.in_doubt = True
        try:
            self.log.append(self.number, self.meta.head, entries)
        except HeadMoved:
            return self.catch_up()
        self._read_back([entry.value for entry in entries], reader)
        self.in_doubt = False
        return len(entries)

    def exchange(self, entries: Sequence[tuple[bytes, bytes]]) -> list[int] | None:
        """Take proposals and decide them in one transaction of the log, an ExchangeLog; returns
        their positions.

        None (nothing was taken) if others' proposals or records came before: turn, then try
        again. Durable and folded on return; errors as in ``turn``.
        """
        if self.in_doubt:
            self.catch_up()
        log, ours, reader = cast(ExchangeLog, self.log), list[bytes](), Once(self.store)
        working = Working(reader, self.meta)

        def decide_all(rows: list[Proposed]) -> list[Entry]:
            made = list[Entry]()
            self._decide_into(made, working, rows)
            ours.extend(entry.value for entry in made)
            return made

        self.in_doubt = True
        meta = self.meta
        try:
            rows = log.exchange(self.number, meta.position, meta.head, entries, decide_all)
        except (PositionMoved, HeadMoved):
            return None
        try:
            self._read_back(ours, reader)
        except LogUnreachable as error:
            # Out of an exchange that error says that nothing was written; here all of it was.
            raise LogError(error.where, error.what, error.remedy) from error
        self.in_doubt = False
        return [row.position for row in rows]

    def _read_back(self, ours: list[bytes], reader: Reader) -> None:
        """Fold what was appended; ``reader`` has seen the store since its last write."""
        while ours:
            count, reader = self._fold_some(ours, reader), self.store
            if count == 0:
                what = "the log does not hold the bytes it was given"
                expected = f"{len(ours)} more records of this turn"
                raise Damaged(self.number, None, self.meta.sequence + 1, what, expected, "none")

    def _decide_some(self, proposals: list[Proposed], reader: Reader) -> list[Entry]:
        """Decide proposals until a turn is full."""
        working, entries = Working(reader, self.meta), list[Entry]()
        try:
            self._decide_into(entries, working, _fitting(proposals, entries))
        except BrokenPart as broken:
            # Its first records may be in the working copy, so what comes after it waits for the
            # next turn; where it is the first, it is decided anew, knowing that it is broken.
            if not entries:
                again = Working(reader, self.meta)
                entries = [
                    self._beside(again, proposals[0], "rejected", broken.code, broken.reason)
                ]
        return entries

    def _decide_into(
        self, entries: list[Entry], working: Working, proposals: Iterable[Proposed]
    ) -> None:
        """Decide proposals one after the other."""
        note_last: Noting = _nothing
        for proposed in proposals:
            note_last()
            made, note_last = self._decide(working, proposed)
            entries.extend(made)

    def _decide(self, working: Working, proposed: Proposed) -> tuple[list[Entry], Noting]:
        """The records of a proposal (a part of an import makes several), and what is to be noted of
        them if another one comes."""
        if is_part(proposed.value):
            return self._decide_part(working, proposed), _nothing
        entry, noting = self._decide_one(working, proposed)
        return [entry], noting

    def _decide_part(self, working: Working, proposed: Proposed) -> list[Entry]:
        """The records of a part of an import; one that says so where it is not taken over."""
        blank = self._blank(working, proposed)
        try:
            part = decode_part(proposed.value)
            if part.run_id != blank.run_id:
                raise WireError(f"the key is not the run id {part.run_id} of this partition")
        except WireError as error:
            return [self._beside(working, proposed, "rejected", "MALFORMED", str(error))]
        run = working.run(part.run_id)
        if (refusal := refuse(run, part)) is not None:
            return [self._beside(working, proposed, "rejected", refusal.code, refusal.message)]
        if is_repeated(run, part):
            return [self._beside(working, proposed, "duplicate", None, "taken over before")]
        return list(self._take_over(working, part, blank))

    def _take_over(self, working: Working, part: ImportPart, blank: Record) -> Iterator[Entry]:
        fold = Fold(working, self.number, rules=self.rules)
        for record in carried(working, part, blank):
            try:
                run = fold.apply(record, 0)
            except ProjectionDamaged:
                raise
            except PluginMissing as error:
                reason = f"run {part.run_id} uses rules {error.found}, which this build has not"
                raise BrokenPart(blank.position, reason, "UNSUPPORTED_RULES") from None
            except Damaged as error:
                reason = f"the record of revision {record.revision_after}: {error.what} differs"
                raise BrokenPart(blank.position, reason) from None
            if run.head.importing is None and run.header.revision == 0:
                raise BrokenPart(blank.position, f"run {part.run_id} never began")
            if (pinned := pinned_to(run)) is not None and pinned not in self.rules:
                reason = f"run {part.run_id} takes rules {pinned}, which this build has not"
                raise BrokenPart(blank.position, reason, "UNSUPPORTED_RULES")
            yield self._entry(working, record)

    def _beside(
        self, working: Working, proposed: Proposed, outcome: str, code: str | None, message: str
    ) -> Entry:
        """A record about a part of an import that belongs to no run: its chain is not touched."""
        record = self._blank(working, proposed)._replace(
            run_id="",
            outcome=outcome,
            code=code,
            message=message,
            unreadable=unreadable(proposed.value),
        )
        record = trimmed(record)
        return self._entry(working, record._replace(chain=run_hash(ZERO, record)))

    def _entry(self, working: Working, record: Record) -> Entry:
        """A record as the log takes it; the working copy has come to it."""
        entry = _entry_of(record)
        working.meta = after(working.meta, record, working.meta.offset, entry.head)
        return entry

    def _decide_one(self, working: Working, proposed: Proposed) -> tuple[Entry, Noting]:
        record, proposal = self._read(working, proposed)
        run = working.run(record.run_id)
        self._check_plugins(run, record)
        time, draft = log_time(record, working.meta, run), None
        if proposal is None:
            revision = chained(run, record).revision
            record = record._replace(
                log_time=time, revision_before=revision, revision_after=revision
            )
        else:
            known = working.known(proposal.run_id, proposal.batch_id)
            # It is only compared where the batch id is known.
            content = content_digest(proposal) if known is not None else b""
            decision = decide_here(run, proposal, time, known, content, self.rules)
            read = {"batch_id": proposal.batch_id, "proposal": proposed.value, "log_time": time}
            record, draft = decided(record, decision, read), decision.draft
        record = trimmed(record)
        chain, state_hash = run_hash(chained(run, record).chain, record), None
        if draft is not None:
            state_hash = working.advance(run, draft, chain, time)
        record = record._replace(chain=chain, state_hash=state_hash)
        entry = _entry_of(record)

        def noting() -> None:
            content = unread_content(record) if proposal is None else content_digest(proposal)
            note(working, record, run, 0, content)
            working.meta = after(working.meta, record, working.meta.offset, entry.head)

        return entry, noting

    def _check_plugins(self, run: Run, record: Record) -> None:
        """Nothing is decided without the plug-ins that a run uses, nor around them."""
        pinned = pinned_to(run)
        if pinned is not None and pinned not in self.rules:
            raise PluginMissing(self.number, run.run_id, record.sequence, pinned)

    def _read(self, working: Working, proposed: Proposed) -> tuple[Record, Proposal | None]:
        """The record as far as reading goes, and the proposal unless it is malformed."""
        blank = self._blank(working, proposed)
        try:
            proposal = decode_proposal(proposed.value)
            if proposal.run_id != blank.run_id:
                raise Malformed(f"the key is not the run id {proposal.run_id} of this partition")
        except (WireError, Malformed) as error:
            return _malformed(blank, proposed.value, error), None
        return blank, proposal

    def _blank(self, working: Working, proposed: Proposed) -> Record:
        """What a record says before anything is decided."""
        meta = working.meta
        return Record(
            sequence=meta.sequence + 1,
            run_id=self._run_of(proposed.key),
            position=proposed.position,
            outcome="rejected",
            revision_before=0,
            revision_after=0,
            rules_version=RULES_DEFAULT,
            appended_at=proposed.appended_at,
            log_time=max(proposed.appended_at, meta.log_time),  # of no run
            build=__version__,
            decider=self.decider,
            state_format=STATE_FORMAT,
            previous=meta.head,
            chain=ZERO,
        )

    def _run_of(self, key: bytes) -> str:
        """The run that a key names, if it is one of this partition; else no run."""
        run_id = key.decode(errors="replace")
        if not is_run_id(run_id):
            return ""
        here = partition_of(run_id, self.log.partitions) == self.number
        return run_id if here else ""


def _fitting(proposals: list[Proposed], entries: list[Entry]) -> Iterator[Proposed]:
    """The proposals for whose records there is room behind those that are there by then."""
    for proposed in proposals:
        room = PART_RECORDS_MAX if is_part(proposed.value) else 1
        if len(entries) + room > TURN_RECORDS_MAX:
            return
        yield proposed


def _entry_of(record: Record) -> Entry:
    """A record as the log takes it."""
    value = encode_record(record)
    head = partition_hash(record.previous, record.chain, value)
    return Entry(record.run_id.encode(), value, record.sequence, record.log_time, head)


@contextmanager
def _trimmed_told(number: int, meta: Meta) -> Iterator[None]:
    """What the log has thrown away before it was decided or folded halts the partition."""
    try:
        yield
    except RowsTrimmed as error:
        what = f"the log does not reach back to what comes next ({error.where})"
        expected = f"the proposal at {meta.position}, the record at {meta.offset}"
        raise Damaged(number, None, meta.sequence + 1, what, expected, error.what) from error


def _malformed(record: Record, value: bytes, error: WireError | Malformed) -> Record:
    """The record of a foreign producer's proposal that cannot be taken: by hash and size."""
    index, name, message = None, None, str(error)
    if isinstance(error, Malformed):
        index, name = error.event_index, error.field
    try:
        envelope = read_envelope(value)
        batch_id = envelope.batch_id if envelope.run_id == record.run_id else None
        message = hinted(message, readable_events(envelope))
    except WireError:
        batch_id = None
    return record._replace(
        code="MALFORMED",
        message=message,
        event_index=index,
        field=name,
        batch_id=batch_id,
        unreadable=unreadable(value),
    )


def check_projection(log: Log, number: int, meta: Meta) -> None:
    """Check that a projection folded so far is one of this log; Damaged if it is not."""
    if (meta.identity, meta.partition) != (log.identity, number):
        where, here = f"{meta.identity}/{meta.partition}", f"{log.identity}/{number}"
        raise Damaged(number, None, meta.sequence, "projection of another log", here, where)
    with _trimmed_told(number, meta):
        check_reach(log, number, meta)
        if meta.sequence > 0:
            _check_last(log, number, meta)


def check_reach(log: Log, number: int, meta: Meta) -> None:
    """Check that the log still has what comes after so much; LogTrimmed if it has not."""
    rows = _first_from(log, number, meta.offset)
    if not rows or rows[0].offset == meta.offset or rows[0].sequence <= meta.sequence + 1:
        return
    first = _first_from(log, number, 0)[0]
    if first.offset == rows[0].offset:
        raise LogTrimmed(number, meta.sequence + 1, first.sequence)


def _first_from(log: Log, number: int, offset: int) -> list[Stored]:
    """The first record from an offset on that is still there; RowsTrimmed if none is."""
    try:
        return log.events(number, offset, 1, 1)
    except RowsTrimmed as error:
        if error.first is not None and (rows := log.events(number, error.first, 1, 1)):
            return rows
        raise


def _check_last(log: Log, number: int, meta: Meta) -> None:
    """The last record folded is in the log, and says what the store says of it."""
    rows = _first_from(log, number, meta.last_offset)
    found = rows[0].head.hex() if rows and rows[0].offset == meta.last_offset else None
    if found is None and _begins_behind(log, number, meta):
        return
    if found != meta.head.hex():
        what = "the projection's head is not in the log"
        raise Damaged(number, None, meta.sequence, what, meta.head.hex(), found)
    try:
        record = decode_record(rows[0].value)
    except WireError:
        return  # whoever reads the log from its start names it
    # The time of an imported run may be ahead of the partition's.
    ahead = record.imported is not None or record.appended_at <= meta.log_time < record.log_time
    time = meta.log_time if ahead else record.log_time
    position = record.position + 1 if record.ends_proposal else record.position
    there = (record.sequence, position, time)
    here = (meta.sequence, meta.position, meta.log_time)
    if here != there:
        what = "the projection's position (sequence, next proposal, log time)"
        raise Damaged(number, record.run_id, record.sequence, what, there, here)


def _begins_behind(log: Log, number: int, meta: Meta) -> bool:
    """Whether the log begins, trimmed, with the very record that extends the store's head."""
    for first in _first_from(log, number, 0):
        try:
            return (
                first.offset > meta.last_offset and decode_record(first.value).previous == meta.head
            )
        except WireError:
            return False
    return False
