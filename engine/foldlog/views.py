"""What readers see: a run's state now and then, its history, differences, lists and alarms.

Invariants:
- Nothing here decides or writes; a past state is folded from the run's own records, with every
  check the projector makes.
- List and detail are made from the same slots, so they cannot disagree.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from foldlog.core.alarms import CODES as ALARM_CODES
from foldlog.core.alarms import alarms, doubtful_effects
from foldlog.core.catalogue import RULES, Catalogue
from foldlog.core.context import Event
from foldlog.core.document import active_task_id, condition, document
from foldlog.core.entities import entities
from foldlog.core.proposals import Malformed, Proposal
from foldlog.core.state import RunState, same_json
from foldlog.core.values import format_instant, is_batch_id
from foldlog.core.why import why
from foldlog.errors import Damaged
from foldlog.fold import Fold
from foldlog.lacking import lacking
from foldlog.log.base import Log
from foldlog.store.base import Reader
from foldlog.store.memory import MemoryStore
from foldlog.wire import keys, slots
from foldlog.wire.avro import WireError
from foldlog.wire.chain import ZERO, partition_hash
from foldlog.wire.envelope import decode_decided
from foldlog.wire.records import Record, decode_record
from foldlog.wire.slots import Meta
from foldlog.working import Run, Working, content_digest, folded_to, open_run


@dataclass(frozen=True, slots=True)
class View:
    """One partition as of one moment: the log, and a reader of its projection."""

    log: Log
    reader: Reader
    partition: int
    rules: Mapping[int, Catalogue] = field(default_factory=lambda: RULES)

    def fold_of_a_run(self, redecide: bool = False) -> Fold:
        """A fold in memory for the records of one run, wherever in the log they lie."""
        meta = Meta(self.log.identity, self.partition)
        return Fold(
            Working(MemoryStore(), meta), self.partition, rules=self.rules, redecide=redecide
        )

    def run(self, run_id: str) -> Run:
        """A run's projection; revision 0 if it is not there, or not yet imported whole."""
        run = open_run(self.reader, run_id)
        return run if run.head.importing is None else open_run(MemoryStore(), run_id)

    def record(self, run_id: str, sequence: int) -> Record | None:
        """One record of a run, by its sequence."""
        offset = self.reader.get(keys.record_key(run_id, sequence))
        if offset is None:
            return None
        record = self._read(run_id, sequence, offset)[0]
        return None if record.imported and self._hides(run_id) else record

    def records(self, run_id: str) -> Iterator[Record]:
        """Every record of a run, oldest first."""
        yield from (record for record, _ in self.records_raw(run_id))

    def records_raw(self, run_id: str) -> Iterator[tuple[Record, bytes]]:
        """Every record of a run with its bytes, oldest first."""
        prefix = keys.record_prefix(run_id)
        if self._hides(run_id):
            return
        for key, offset in self.reader.scan(prefix):
            yield self._read(run_id, int.from_bytes(key[len(prefix) :], "big"), offset)

    def chain(self, run_id: str) -> Iterator[tuple[Record, bytes]]:
        """The records of a run's chain with their bytes, oldest first.

        What was refused of an imported run's id before it was whole is no part of its chain.
        """
        mixed = open_run(self.reader, run_id).head.outside != ZERO
        for record, data in self.records_raw(run_id):
            if record.imported is not None:
                mixed = record.imported["place"] != "last"
                yield record, data
            elif not mixed:
                yield record, data

    def _hides(self, run_id: str) -> bool:
        """Nothing of a run that is being imported is visible before it is whole."""
        return open_run(self.reader, run_id).head.importing is not None

    def records_after(self, run_id: str, sequence: int) -> list[Record]:
        """The records of a run after a sequence, oldest first; reads no others."""
        prefix = keys.record_prefix(run_id)
        found: list[Record] = []
        if self._hides(run_id):
            return found
        for key, offset in self.reader.scan(prefix, reverse=True):
            number = int.from_bytes(key[len(prefix) :], "big")
            if number <= sequence:
                break
            found.append(self._read(run_id, number, offset)[0])
        return found[::-1]

    def batches(self, run_id: str) -> Callable[[int], Sequence[Event]]:
        """What gives the events of the batch that made a revision, in order; none if that cannot be
        read. Its first call lists the run's records, and each reads a few of them."""

        @cache
        def places() -> list[tuple[int, bytes]]:
            prefix = keys.record_prefix(run_id)
            rows = self.reader.scan(prefix)
            return [(int.from_bytes(key[len(prefix) :], "big"), offset) for key, offset in rows]

        @cache
        def record_at(place: int) -> Record:
            return self._read(run_id, *places()[place])[0]

        def batch(revision: int) -> Sequence[Event]:
            every = range(len(places()))
            place = bisect_left(every, revision, key=lambda n: record_at(n).revision_after)
            if place == len(every) or record_at(place).revision_after != revision:
                return ()
            proposal = proposal_of(record_at(place))
            return () if proposal is None else proposal.events

        return batch

    def meta(self) -> Meta:
        """How far the projection is folded."""
        return folded_to(self.reader, self.log.identity, self.partition)

    def _read(self, run_id: str, sequence: int, offset: bytes) -> tuple[Record, bytes]:
        place = int.from_bytes(offset, "big")
        rows = self.log.events(self.partition, place, 1, 1)
        if not rows or rows[0].offset != place:
            raise Damaged(self.partition, run_id, sequence, "record", f"at offset {place}", "none")
        try:
            record = decode_record(rows[0].value)
        except WireError as error:
            what, expected = "record", "a decided record"
            raise Damaged(self.partition, run_id, sequence, what, expected, str(error)) from None
        head = partition_hash(record.previous, record.chain, rows[0].value)
        if head != rows[0].head:
            what = "partition hash"
            raise Damaged(self.partition, run_id, sequence, what, rows[0].head.hex(), head.hex())
        if (record.run_id, record.sequence) != (run_id, sequence):
            found = f"{record.run_id}/{record.sequence}"
            raise Damaged(self.partition, run_id, sequence, "record", "this record", found)
        return record, rows[0].value

    def run_ids(self) -> Iterator[str]:
        """The ids of the runs of this partition that exist, archived ones too."""
        yield from (run.run_id for run in self.runs())
        yield from (run.run_id for run in self.archived_runs())

    def runs(self) -> Iterator[Run]:
        """The runs of this partition that exist and are not archived, ordered by id."""
        yield from self._runs(keys.head_key(""))

    def archived_runs(self) -> Iterator[Run]:
        """The archived runs of this partition, ordered by id."""
        yield from self._runs(keys.archived_head_key(""))

    def _runs(self, prefix: bytes) -> Iterator[Run]:
        for key, _ in self.reader.scan(prefix):
            run = self.run(key[len(prefix) :].decode())
            if run.header.revision > 0:
                yield run


# Then


def fold_run(
    view: View,
    run_id: str,
    *,
    revision: int | None = None,
    instant: int | None = None,
    base: Reader | None = None,
    progress: Callable[[int], None] = lambda records: None,
) -> tuple[Working, int]:
    """A run's records folded again in memory, and how many they were.

    Stops before the record that makes a later revision, or whose log time is after ``instant``
    (nanoseconds). ``base`` is an earlier projection to begin at, where it is not beyond that.
    Damaged at the first record that does not fit.
    """
    fold = view.fold_of_a_run()
    records: Iterable[Record] = (record for record, _ in view.chain(run_id))
    if base is not None and _is_beginning(base, run_id, revision, instant):
        fold.working.reader = base
        records = view.records_after(run_id, fold.working.run(run_id).head.sequence)
    count = 0
    for record in records:
        if revision is not None and record.revision_after > revision:
            break
        if instant is not None and record.log_time * 1000 > instant:
            break
        fold.apply(record, 0)
        count += 1
        progress(1)
    return fold.working, count


def _is_beginning(base: Reader, run_id: str, revision: int | None, instant: int | None) -> bool:
    """Whether a projection's state of a run is one that it passes on its way to a moment."""
    run = open_run(base, run_id)
    if run.head.importing is not None or run.head.outside != ZERO:
        return False  # what is no part of an imported run's chain lies between its records
    if instant is not None and run.head.recorded_at * 1000 > instant:
        return False
    return revision is None or run.header.revision <= revision


def state_at(
    view: View, run_id: str, *, revision: int | None = None, instant: int | None = None
) -> RunState | None:
    """The state after a revision, or after the last record at or before an instant (ns).

    None if the run had not begun, or has no such revision.
    """
    working, _ = fold_run(view, run_id, revision=revision, instant=instant)
    state = working.run(run_id).state()
    reached = state.header.revision
    if reached == 0 or (revision is not None and reached != revision):
        return None
    return state


def exported(view: View, run_id: str) -> list[tuple[Record, bytes]]:
    """The records of a run's chain with their bytes, oldest first; empty if it never began."""
    return list(view.chain(run_id)) if view.run(run_id).header.revision else []


def proven(records: Iterable[Record], rules: Mapping[int, Catalogue] = RULES) -> None:
    """Fold records of one run in memory, from its beginning; Damaged at the first that does not
    fit, with its place (from 1) as the sequence."""
    fold = Fold(Working(MemoryStore(), Meta("", 0)), 0, rules=rules)
    place, run = 0, None
    for place, record in enumerate(records, start=1):
        known = record.batch_id and fold.working.known(record.run_id, record.batch_id)
        if record.outcome == "duplicate" and not known and record.code is None:
            raise Damaged(0, record.run_id, place, "first record of the batch id", "one", "none")
        run = fold.apply(record._replace(sequence=place, imported=None), 0)
    if run is None or run.header.revision == 0:
        raise Damaged(0, None, place, "beginning of the run", "RunStarted", "none")


# History


def proposal_of(record: Record) -> Proposal | None:
    """The proposal a record carries; None where it could not be read, then or by this build."""
    if record.proposal is None:
        return None
    try:
        return decode_decided(record.proposal)
    except (WireError, Malformed):
        return None


def history_row(record: Record) -> dict[str, Any]:
    """A record as ``history --json`` prints it; what could not be read is null."""
    proposal = proposal_of(record)
    return {
        "sequence": record.sequence,
        "log_time": format_instant(record.log_time),
        "occurred_at": proposal and proposal.occurred_at,
        "batch_id": record.batch_id,
        "author": proposal and proposal.author.to_dict(),
        "expected_revision": proposal and proposal.expected_revision,
        "outcome": record.outcome,
        "code": record.code,
        "message": record.message,
        "event_index": record.event_index,
        "field": record.field,
        "revision_before": record.revision_before,
        "revision_after": record.revision_after,
        "rebased": record.rebased,
        "conflicts": [dict(conflict) for conflict in record.conflicts],
        "lease_epoch": proposal and proposal.lease_epoch,
        "on_conflict": proposal and proposal.on_conflict,
        "reads": proposal and list(proposal.reads),
        "correlation_id": proposal and proposal.correlation_id,
        "causation_id": proposal and proposal.causation_id,
        "traceparent": proposal and proposal.traceparent,
        "duplicate_of": record.duplicate_of,
        "events": proposal and list(proposal.events),
        "rules_version": record.rules_version,
        "error": record.error,
        "build": record.build,
        "chain": record.chain.hex(),
        "state_hash": record.state_hash and record.state_hash.hex(),
    }


SHOWN_ALWAYS = ("accepted", "arbitration", "quarantined")
"""Outcomes that changed the run, or that nobody may overlook."""


def is_shown(record: Record) -> bool:
    """Whether a record is shown without being asked for rejected ones."""
    return record.outcome in SHOWN_ALWAYS


def history(view: View, run_id: str, *, rejected: bool = False) -> list[dict[str, Any]] | None:
    """A run's rows, oldest first; None if the run never began (and nothing was quarantined)."""
    records = [record for record in view.records(run_id) if rejected or is_shown(record)]
    if not any(map(is_shown, records)):
        return None
    return [history_row(record) for record in records]


def outcome_value(record: Record, partition: int, *, duplicate: bool = False) -> dict[str, Any]:
    """A record as the outcome of CONTRACT section 3."""
    outcome, message = record.outcome, record.message if record.error is None else record.error
    if outcome == "duplicate" and record.duplicate_of is None and record.code is not None:
        # Imported, and its first stands outside the imported chain.
        outcome, message = "rejected", f"refused with {record.code} before the run was imported"
    return {
        "outcome": outcome,
        "run_id": record.run_id,
        "batch_id": record.batch_id,
        "revision": record.revision_after,
        "rebased": record.rebased,
        "duplicate": duplicate,
        "recorded": True,
        "code": record.code,
        "message": message,
        "event_index": record.event_index,
        "field": record.field,
        "conflicts": [dict(conflict) for conflict in record.conflicts],
        "conflict_id": record.batch_id if record.outcome == "arbitration" else None,
        "partition": partition,
        "sequence": record.sequence,
        "chain": record.chain.hex(),
        "state_hash": record.state_hash and record.state_hash.hex(),
        "log_time": format_instant(record.log_time),
    }


def unrecorded(run_id: str, batch_id: str | None, revision: int) -> dict[str, Any]:
    """The outcome of what the client refuses and never hands in; code and place are to be added."""
    absent = "conflict_id partition sequence chain state_hash log_time".split()
    return {
        "outcome": "rejected",
        "run_id": run_id,
        "batch_id": batch_id,
        "revision": revision,
        "rebased": False,
        "duplicate": False,
        "recorded": False,
        "code": None,
        "message": None,
        "event_index": None,
        "field": None,
        "conflicts": [],
        **dict.fromkeys(absent),
    }


def part_value(record: Record, partition: int) -> dict[str, Any]:
    """What became of a part of an import, by the last record that it led to.

    That may be a carried one, which may itself say that somebody was refused.
    """
    value = outcome_value(record, partition)
    if record.imported is None and record.outcome == "rejected":
        return value
    duplicate = record.imported is None
    blank = dict.fromkeys(("code", "message", "event_index", "field", "conflict_id", "batch_id"))
    return {**value, **blank, "outcome": "accepted", "conflicts": [], "duplicate": duplicate}


def first_outcome(view: View, record: Record) -> dict[str, Any]:
    """A record's outcome; that of the first record, marked, where it is a duplicate."""
    if record.outcome != "duplicate":
        return outcome_value(record, view.partition)
    if record.duplicate_of is None:
        return outcome_value(record, view.partition, duplicate=True)
    first = view.record(record.run_id, record.duplicate_of)
    assert first is not None
    return outcome_value(first, view.partition, duplicate=True)


def record_of_batch(view: View, run_id: str, batch_id: str) -> Record | None:
    """The first record of a batch id of a run."""
    if not is_batch_id(batch_id):
        return None
    data = view.reader.get(keys.batch_key(run_id, batch_id.lower()))
    return None if data is None else view.record(run_id, slots.decode_known(data).sequence)


def record_of_proposal(view: View, proposal: Proposal) -> Record | None:
    """The record of this very proposal; not of another that used its batch id before."""
    data = view.reader.get(keys.batch_key(proposal.run_id, proposal.batch_id))
    if data is None:
        return None
    known = slots.decode_known(data)
    if known.content != content_digest(proposal):
        return None
    return view.record(proposal.run_id, known.sequence)


# Differences


def difference(before: RunState, after: RunState) -> list[dict[str, Any]]:
    """What changed between two states of a run, entity by entity, ordered by name."""
    then, now = entities(before), entities(after)
    stamps = after if after.header.revision >= before.header.revision else before
    rows = []
    for name in sorted(then.keys() | now.keys()):
        old, new = then.get(name), now.get(name)
        if same_json(old, new):
            continue
        change = "added" if old is None else "removed" if new is None else "changed"
        kind, _, id = name.partition("/")
        stamp = stamps.stamp(kind, id)
        rows.append(
            {
                "entity": name,
                "change": change,
                "before": old,
                "after": new,
                "revision": stamp and stamp[0],
                "author": stamp and {"kind": stamp[1], "id": stamp[2]},
            }
        )
    return rows


# Lists


def summary(run: Run, now: int) -> dict[str, Any]:
    """A run as ``runs --json`` lists it; ``now`` in microseconds."""
    state = run.state()
    return {
        "run_id": run.run_id,
        "status": state.value("status"),
        "result": state.header.result,
        "phase": state.value("phase"),
        "revision": state.header.revision,
        "active_task_id": active_task_id(state),
        "waiting": state.value("wait"),
        "condition": condition(state),
        "alarms": alarms(state, run.head.recorded_at, now),
        "labels": state.value("labels"),
        "changed_at": format_instant(run.head.changed_at),
        "archived": run.head.archived,
    }


def alarm_counts(view: View, now: int) -> dict[str, int]:
    """How many runs of a partition have each alarm at ``now`` (microseconds); as dear as ``runs``.

    Every code is there, so that what counts them sees one that went away.
    """
    counts = dict.fromkeys(ALARM_CODES, 0)
    for run in view.runs():
        for alarm in alarms(run.state(), run.head.recorded_at, now):
            counts[alarm["code"]] += 1
    return counts


def reasons(run: Run, now: int) -> dict[str, Any]:
    """A run as ``why --json`` prints it; ``at`` is ``now`` (microseconds), as alarms count it."""
    state = run.state()
    doubtful = [id for _, id in doubtful_effects(state, now)]
    found = why(document(state), alarms(state, run.head.recorded_at, now), doubtful)
    return {**found, "at": format_instant(now)}


def quarantines(view: View) -> Iterator[dict[str, Any]]:
    """The quarantined runs of a partition, as ``quarantine --json`` lists them."""
    prefix = keys.head_key("")
    for key, data in view.reader.scan(prefix):
        quarantine = slots.decode_head(data).quarantine
        if quarantine is not None:
            yield {
                "run_id": key[len(prefix) :].decode(),
                "since": format_instant(quarantine.since),
                "sequence": quarantine.sequence,
                "error": quarantine.error,
                "build": quarantine.build,
            }


def next_undecided(log: Log, partition: int) -> int:
    """The position of the first proposal without a record that reads, as the log itself says."""
    for offset in range(log.end(partition) - 1, 0, -1):
        for stored in log.events(partition, offset, 1, 1):
            with contextlib.suppress(WireError):
                record = decode_record(stored.value)
                return record.position + record.ends_proposal
    return 1


def status(
    view: View, owner: str | None, clock: int, halted: Damaged | None = None
) -> dict[str, Any]:
    """A partition as ``status --json`` prints it; ``owner`` is who turns it, ``clock`` the
    reader's time in microseconds, ``halted`` why nothing in it is decided."""
    meta, log = view.meta(), view.log
    # The last record may be void where that can be; a view of such a log is folded to its end.
    decided = next_undecided(log, view.partition) if log.conditional else meta.position
    counts = alarm_counts(view, max(clock, meta.log_time))
    return {
        "partition": view.partition,
        "owner": owner,
        "position": meta.position,
        "sequence": meta.sequence,
        "lag": log.proposals_end(view.partition) - decided,
        "head": meta.head.hex(),
        "void": meta.void,
        "quarantined": sum(1 for _ in quarantines(view)),
        "alarms": {code: count for code, count in counts.items() if count},
        "plugins_missing": lacking(view.reader, view.rules),
        "halted": None if halted is None else halted.message,
    }


def matches(row: Mapping[str, Any], status: str | None, labels: Mapping[str, str]) -> bool:
    """Whether a summary has this status and all of these labels."""
    if status is not None and row["status"] != status:
        return False
    return all(row["labels"].get(name) == value for name, value in labels.items())
