"""Decide: a state and a proposal give an outcome. The order is CONTRACT section 3's, steps 1-8.

Invariants:
- The result depends on the arguments alone; the state is never changed, only drafted on.
- The first rule that applies is the outcome.
- A rule or reducer that raises gives ``quarantined``; storage that fails is not a rule.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from foldlog.core.archiving import is_archive, with_own_events
from foldlog.core.catalogue import (
    RULES,
    RULES_DEFAULT,
    Catalogue,
    address,
    touched,
    unknown_type,
)
from foldlog.core.context import Event, Refusal, words_of
from foldlog.core.leases import carries_live_epoch, refuse_by_lease
from foldlog.core.plugins import check_events
from foldlog.core.proposals import Malformed, Proposal, hinted
from foldlog.core.reduce import apply_batch, reduce_arbitration
from foldlog.core.state import (
    SCHEMA_VERSION,
    Address,
    Draft,
    RunState,
    StateUnreadable,
    entity_name,
)
from foldlog.core.tasks import of_another

NAMES_RULES = ("RunStarted", "RulesActivated")
"""Event types with a field ``rules_version``."""

CONFLICTS_BYTES_MAX = 128 * 1024
"""Bytes of names in the conflicts that an outcome lists: a batch may touch more than fits."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is kept of a batch id: the sequence and code of its first record, and its content."""

    sequence: int
    content: bytes
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """An outcome with everything its record says; ``draft`` holds the next state, if there is one.

    ``conflicts`` are ``{entity, expected_revision, changed_at, changed_by}``, sorted by entity.
    """

    outcome: str
    revision_before: int
    revision_after: int
    rules_version: int
    code: str | None = None
    message: str | None = None
    event_index: int | None = None
    field: str | None = None
    conflicts: tuple[dict[str, Any], ...] = ()
    rebased: bool = False
    duplicate_of: int | None = None
    error: str | None = None
    draft: Draft | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A proposal seen through the table: what kind of batch it is."""

    proposal: Proposal
    rows: Catalogue
    starts: bool
    control: bool
    reports: bool
    signals: bool
    repeats: bool
    releases: bool

    @property
    def unconditional(self) -> bool:
        """Whether the batch is decided as if it had no expectation."""
        return self.control or self.reports or self.repeats


def decide(
    state: RunState,
    proposal: Proposal,
    log_time: int,
    known: Known | None = None,
    content: bytes = b"",
    rules: Mapping[int, Catalogue] = RULES,
) -> Decision:
    """Decide one well-formed proposal.

    ``log_time`` is in microseconds; ``known`` is what the run keeps of this batch id, ``content``
    the digest to compare it with. Never raises, except StateUnreadable and MemoryError.
    """
    revision, version = state.header.revision, RULES_DEFAULT
    try:
        version = _rules_version(state, proposal)
        if known is not None:
            batch = _see(state, proposal, _rows(proposal, rules, version))
            return _decide_known(known, content, batch, revision, version)
        return _decide_new(state, proposal, log_time, rules, version)
    except (StateUnreadable, MemoryError):
        raise
    except Exception as error:
        return Decision("quarantined", revision, revision, version, error=words_of(error))


def _rules_version(state: RunState, proposal: Proposal) -> int:
    pinned = state.value("rules") if state.exists else None
    named = None if state.exists else _rules_named(proposal.events[0])
    return int(pinned or named or RULES_DEFAULT)


def _rules_named(event: Event) -> int | None:
    """The rules that an event names. What a plug-in calls so is its own: it may be anything."""
    named: int | None = event.get("rules_version") if event["type"] in NAMES_RULES else None
    return named


def _decide_known(
    known: Known, content: bytes, batch: Batch, revision: int, version: int
) -> Decision:
    if known.content == content:
        return Decision(
            "duplicate", revision, revision, version, known.code, duplicate_of=known.sequence
        )
    message = f"record {known.sequence} used this batch id for other content: take a new one"
    refusal = _with_hint(Refusal("BATCH_ID_REUSED", message, field="batch_id"), batch)
    return _rejected(refusal, revision, version)


def _rejected(
    refusal: Refusal, revision: int, version: int, conflicts: tuple[dict[str, Any], ...] = ()
) -> Decision:
    return Decision(
        "rejected",
        revision,
        revision,
        version,
        refusal.code,
        refusal.message,
        refusal.event_index,
        refusal.field,
        conflicts,
    )


def _decide_new(
    state: RunState,
    proposal: Proposal,
    log_time: int,
    rules: Mapping[int, Catalogue],
    version: int,
) -> Decision:
    revision = state.header.revision
    batch = _see(state, proposal, _rows(proposal, rules, version))
    refusal = (
        _refuse_by_shape(batch, rules, version)
        or _refuse_by_run(state, batch, rules, version)
        or _refuse_by_lease(state, batch, log_time)
        or _refuse_by_revision(state, batch)
    )
    if refusal is not None:
        return _rejected(_with_hint(refusal, batch), revision, version)
    conflicts = _conflicts(state, batch, log_time)
    if conflicts:
        return _conflicting(state, batch, conflicts, log_time, version)
    draft, refusal = apply_batch(
        state, proposal, log_time, batch.rows, version, checked=not batch.repeats
    )
    if refusal is not None:
        return _rejected(_with_hint(refusal, batch), revision, version)
    expected = proposal.expected_revision
    compared = not (batch.control or batch.reports)
    rebased = compared and expected is not None and expected < revision
    return Decision("accepted", revision, revision + 1, version, rebased=rebased, draft=draft)


def _rows(proposal: Proposal, rules: Mapping[int, Catalogue], version: int) -> Catalogue:
    """The rows of these rules; each event of the proposal has one, if only to be refused."""
    rows = with_own_events(rules.get(version, rules[RULES_DEFAULT]), proposal)
    unknown = {event["type"] for event in proposal.events} - rows.keys()
    return {**rows, **{name: unknown_type(name) for name in unknown}} if unknown else rows


def _refuse_by_shape(batch: Batch, rules: Mapping[int, Catalogue], version: int) -> Refusal | None:
    """Step 2 of a plug-in's events: only the rules of the run know their fields."""
    if version not in rules:
        return None  # step 3 refuses
    try:
        check_events(batch.proposal, rules[version])
    except Malformed as error:
        return Refusal("MALFORMED", error.message, error.event_index, error.field)
    return None


def _see(state: RunState, proposal: Proposal, rows: Catalogue) -> Batch:
    types = [event["type"] for event in proposal.events]
    signals = all(type == "SignalReceived" for type in types)
    return Batch(
        proposal=proposal,
        rows=rows,
        starts=types[0] == "RunStarted",
        control=all(rows[type].control for type in types),
        reports=all(rows[type].report for type in types),
        signals=signals,
        repeats=signals and all(_repeats(state, event) for event in proposal.events),
        releases=types == ["RunReleased"],
    )


def _repeats(state: RunState, event: Event) -> bool:
    return (
        event["type"] == "SignalReceived" and state.stamp("signal", event["signal_id"]) is not None
    )


def _with_hint(refusal: Refusal, batch: Batch) -> Refusal:
    return replace(refusal, message=hinted(refusal.message, batch.proposal.events))


# Step 3: the run itself, and the author's rights


def _refuse_by_run(
    state: RunState, batch: Batch, rules: Mapping[int, Catalogue], version: int
) -> Refusal | None:
    run_id = batch.proposal.run_id
    if not state.exists and not batch.starts:
        return Refusal("RUN_NOT_FOUND", f"run {run_id} does not exist: start it first")
    if state.exists and batch.starts:
        return Refusal("RUN_EXISTS", f"run {run_id} exists already, at {state.header.revision}")
    finished = state.exists and state.value("status") == "finish"
    if finished and not (batch.reports or batch.releases or is_archive(batch.proposal)):
        return Refusal("RUN_FINISHED", f"run {run_id} is finished ({state.header.result})")
    if state.quarantine is not None and not batch.releases:
        where = f"since record {state.quarantine.sequence} ({state.quarantine.error})"
        message = f"run {run_id} is quarantined {where}: foldlog release {run_id} --reason TEXT"
        return Refusal("RUN_QUARANTINED", message)
    if state.exists and state.header.schema_version != SCHEMA_VERSION:
        found = state.header.schema_version
        message = f"run {run_id} is stored in schema {found}, this build has {SCHEMA_VERSION}"
        return Refusal("MIGRATION_REQUIRED", message)
    return _refuse_by_rules(batch, rules, version) or _refuse_by_author(batch)


def _refuse_by_rules(batch: Batch, rules: Mapping[int, Catalogue], version: int) -> Refusal | None:
    have = ", ".join(map(str, sorted(rules)))
    if version not in rules and not batch.starts:
        message = f"the run's rules {version} are not in this build, which has {have}"
        return Refusal("UNSUPPORTED_RULES", message)
    for index, event in enumerate(batch.proposal.events):
        named = _rules_named(event)
        if named is not None and named not in rules:
            message = f"rules {named} are not in this build, which has {have}"
            return Refusal("UNSUPPORTED_RULES", message, index, "rules_version")
    return None


def _refuse_by_author(batch: Batch) -> Refusal | None:
    kind = batch.proposal.author.kind
    for index, event in enumerate(batch.proposal.events):
        authors = batch.rows[event["type"]].authors
        if authors is not None and kind not in authors:
            who = ", ".join(sorted(authors))
            return Refusal("NOT_AUTHORIZED", f"{event['type']} is for {who}, not {kind}", index)
    return None


# Step 4: the lease


def _refuse_by_lease(state: RunState, batch: Batch, log_time: int) -> Refusal | None:
    if batch.control or batch.reports or batch.signals:
        return None
    return refuse_by_lease(state, batch.proposal, log_time)


# Steps 5 and 6: control, the expected revision, and the entities


def _refuse_by_revision(state: RunState, batch: Batch) -> Refusal | None:
    if batch.unconditional:
        return None
    proposal, header = batch.proposal, state.header
    expected = proposal.expected_revision
    if expected is None:
        return _refuse_without_expectation(batch)
    if expected < header.control_revision:
        message = f"control changed the run at revision {header.control_revision}: read it again"
        return Refusal("SUPERSEDED", message, field="expected_revision")
    if expected > header.revision:
        message = f"the run is at revision {header.revision}, {expected} is not there yet"
        return Refusal("FUTURE_REVISION", message, field="expected_revision")
    return None


def _refuse_without_expectation(batch: Batch) -> Refusal | None:
    if batch.proposal.reads:
        message = "reads needs an expected_revision to be compared with"
        return Refusal("EXPECTATION_REQUIRED", message, field="reads")
    if batch.starts:
        return None
    for index, event in enumerate(batch.proposal.events):
        if batch.rows[event["type"]].needs_expectation(event):
            message = f"{event['type']} needs an expected_revision"
            return Refusal("EXPECTATION_REQUIRED", message, index)
    return None


def _conflicts(state: RunState, batch: Batch, log_time: int) -> tuple[dict[str, Any], ...]:
    """What the batch reads or writes and has changed since, sorted by entity name."""
    proposal = batch.proposal
    expected = proposal.expected_revision
    if batch.unconditional or expected is None:
        return ()
    found: dict[str, dict[str, Any]] = {}
    candidates: list[Address] = []
    if expected < state.header.revision:
        candidates.extend(_compared(state, batch, expected))
    candidates.extend(_taken_tasks(state, batch, log_time))
    for kind, id in candidates:
        stamp = state.stamp(kind, id)
        assert stamp is not None
        found[entity_name(kind, id)] = {
            "entity": entity_name(kind, id),
            "expected_revision": expected,
            "changed_at": stamp[0],
            "changed_by": {"kind": stamp[1], "id": stamp[2]},
        }
    return tuple(_bounded(found[name] for name in sorted(found)))


def _bounded(conflicts: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The first conflicts whose names fit a record; the first one always."""
    size = 0
    for number, conflict in enumerate(conflicts):
        size += 64 + len(conflict["entity"].encode()) + len(conflict["changed_by"]["id"].encode())
        if number > 0 and size > CONFLICTS_BYTES_MAX:
            return
        yield conflict


def _compared(state: RunState, batch: Batch, expected: int) -> Iterator[Address]:
    """The entities the batch touches that carry a later revision than the expected one."""
    for kind, id in _touched(state, batch, expected):
        stamp = state.stamp(kind, id)
        if stamp is not None and stamp[0] > expected:
            yield (kind, id)


def _touched(state: RunState, batch: Batch, expected: int) -> Iterator[Address]:
    unchanged = {
        "task/*": state.header.tasks_revision <= expected,
        "effect/*": state.header.effects_revision <= expected,
    }
    for event in batch.proposal.events:
        if _repeats(state, event):
            continue
        row = batch.rows[event["type"]]
        templates = tuple(t for t in (*row.reads, *row.writes) if not unchanged.get(t, False))
        yield from touched(templates, event, state)
    yield from map(address, batch.proposal.reads)


def _taken_tasks(state: RunState, batch: Batch, log_time: int) -> Iterator[Address]:
    """Tasks that run for another worker, unless the batch may take them over."""
    if carries_live_epoch(state, batch.proposal, log_time):
        return
    for event in batch.proposal.events:
        if event["type"] == "TaskStarted":
            task = state.value("task", event["task_id"])
            if task is not None and of_another(task, event, batch.proposal.author.id):
                yield ("task", event["task_id"])


def _conflicting(
    state: RunState,
    batch: Batch,
    conflicts: tuple[dict[str, Any], ...],
    log_time: int,
    version: int,
) -> Decision:
    revision, proposal = state.header.revision, batch.proposal
    names = [conflict["entity"] for conflict in conflicts]
    if proposal.on_conflict == "arbitrate":
        draft = reduce_arbitration(state, proposal, log_time, names)
        return Decision(
            "arbitration", revision, revision + 1, version, conflicts=conflicts, draft=draft
        )
    message = f"changed since revision {proposal.expected_revision}: {', '.join(names)}"
    refusal = _with_hint(Refusal("CONFLICT", message), batch)
    return _rejected(refusal, revision, version, conflicts)
