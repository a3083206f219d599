"""The core without a log: runs in memory, proposals decided and folded at once, records kept.

Invariants:
- A state once made is never changed, so that a record's `before` stays what it was.
- `World.propose` is the only way to change a run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from foldlog.core.catalogue import RULES, Catalogue
from foldlog.core.decide import Decision, Known, decide
from foldlog.core.document import document
from foldlog.core.proposals import Proposal, parse_proposal
from foldlog.core.state import Address, Header, Quarantine, RunState, Slot
from foldlog.core.values import format_instant
from tests import samples

START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
SECOND = 1_000_000
USER = {"kind": "user", "id": "ada"}
AGENT = {"kind": "agent", "id": "worker-1"}
OTHER_AGENT = {"kind": "agent", "id": "worker-2"}
SYSTEM = {"kind": "system", "id": "timekeeper"}


class Slots:
    """Where a state's slots are: a dictionary per kind, never changed once made."""

    def __init__(self, kinds: dict[str, dict[str, Slot]] | None = None) -> None:
        self.kinds = kinds or {}

    def get(self, kind: str, id: str) -> Slot | None:
        """The slot at that address, or None."""
        return self.kinds.get(kind, {}).get(id)

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """Every slot of a kind with its id, ordered by id."""
        return iter(sorted(self.kinds.get(kind, {}).items(), key=lambda item: item[0]))

    def with_changes(self, changes: Mapping[Address, Slot | None]) -> Slots:
        """The slots after a batch; only the kinds it changes are copied."""
        kinds = dict(self.kinds)
        for kind in {kind for kind, _ in changes}:
            kinds[kind] = dict(kinds.get(kind, {}))
        for (kind, id), slot in changes.items():
            if slot is None:
                kinds[kind].pop(id, None)
            else:
                kinds[kind][id] = slot
        return Slots(kinds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slots) and _filled(self.kinds) == _filled(other.kinds)

    __hash__ = None  # type: ignore[assignment]


def _filled(kinds: dict[str, dict[str, Slot]]) -> dict[str, dict[str, Slot]]:
    return {kind: slots for kind, slots in kinds.items() if slots}


def empty(run_id: str) -> RunState:
    """A run that does not exist yet."""
    return RunState(Header(run_id), Slots())


def after(state: RunState, decision: Decision) -> RunState:
    """The state that a decision makes of a state: the same one, unless it has a draft."""
    if decision.draft is None:
        return state
    assert isinstance(state.slots, Slots)
    draft = decision.draft
    return RunState(draft.header, state.slots.with_changes(draft.changes), draft.quarantine)


@dataclass(frozen=True)
class Record:
    """One decision with all it was made from; `value` is the proposal as JSON."""

    sequence: int
    run_id: str
    value: dict[str, Any]
    proposal: Proposal
    log_time: int
    known: Known | None
    before: RunState
    after: RunState
    decision: Decision


@dataclass
class World:
    """Runs by id, and the time of their log in microseconds; `rules` decide."""

    now: int = START_US
    rules: Mapping[int, Catalogue] = field(default_factory=lambda: RULES)
    states: dict[str, RunState] = field(default_factory=dict)
    known: dict[tuple[str, str], Known] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def state(self, run_id: str) -> RunState:
        """The run's state, also of a run that does not exist."""
        return self.states.setdefault(run_id, empty(run_id))

    def propose(self, run_id: str, value: dict[str, Any]) -> Decision:
        """Decide a proposal at `now` and fold what came of it."""
        proposal = parse_proposal(run_id, value)
        state, key = self.state(run_id), (run_id, proposal.batch_id)
        content, known = proposal.content(), self.known.get(key)
        decision = decide(state, proposal, self.now, known, content, self.rules)
        sequence = len(self.records) + 1
        self.known.setdefault(key, Known(sequence, content, decision.code))
        new = after(state, decision)
        if decision.outcome == "quarantined" and state.exists:
            error = str(decision.error)
            new = RunState(state.header, state.slots, Quarantine(self.now, sequence, error, "0"))
        if new is not state:
            self.states[run_id] = new
        self.records.append(
            Record(sequence, run_id, value, proposal, self.now, known, state, new, decision)
        )
        return decision


def ev(type: str, **fields: Any) -> dict[str, Any]:
    """A small valid event of this type; `fields` replace or add."""
    return {**samples.minimal(type), **fields}


def transition(to: str, **fields: Any) -> dict[str, Any]:
    """The event that moves the run to a status."""
    return ev("RunTransitioned", to=to, **fields)


def task(id: str, **fields: Any) -> dict[str, Any]:
    """The event that adds a task."""
    return ev("TaskAdded", task={"id": id, "title": id, **fields})


def effect(id: str, **fields: Any) -> dict[str, Any]:
    """The event that intends an effect; `requires` beside the effect's own fields."""
    requires = {"requires": fields.pop("requires")} if "requires" in fields else {}
    inner = {"kind": "mail", "target": "mail:ada", "idempotency_key": f"key of {id}", **fields}
    return ev("EffectIntended", effect={"id": id, **inner}, **requires)


def fact(id: str, evidence: str | None = "test:1", **fields: Any) -> dict[str, Any]:
    """The event that confirms a fact; fields of the fact itself are given as `fact_NAME`."""
    inner = {"id": id, "statement": id, "evidence": evidence}
    inner |= {n.removeprefix("fact_"): v for n, v in fields.items() if n.startswith("fact_")}
    outer = {name: value for name, value in fields.items() if not name.startswith("fact_")}
    return ev("FactConfirmed", fact=inner, **outer)


def observed(subject: str, at: str = "2026-01-01T00:00:00Z", **fields: Any) -> dict[str, Any]:
    """The event that says what was seen."""
    state = fields.pop("state", "seen")
    return ev(
        "EnvironmentObserved", subject=subject, observed_state=state, observed_at=at, **fields
    )


class Story:
    """One run told step by step, each step with its expected outcome.

    A step's expectation is the current revision unless `expected_revision` is given (None: absent);
    its author is a user unless given.
    """

    def __init__(self, status: str = "start", **start: Any) -> None:
        self.world = World()
        self.run_id = "run_1"
        self.ok(ev("RunStarted", **start), expected_revision=None)
        for to in {"planning": ["planning"], "running": ["planning", "running"]}.get(status, []):
            self.ok(transition(to))

    @property
    def state(self) -> RunState:
        """The run's state."""
        return self.world.state(self.run_id)

    @property
    def doc(self) -> dict[str, Any]:
        """The run's document."""
        return document(self.state)

    @property
    def revision(self) -> int:
        """The run's revision."""
        return self.state.header.revision

    @property
    def time(self) -> str:
        """The log's time, as foldlog shows it."""
        return format_instant(self.world.now)

    def wait(self, seconds: float) -> Story:
        """Let time pass."""
        self.world.now += round(seconds * SECOND)
        return self

    def later(self, seconds: int) -> str:
        """The time in so many seconds, as a deadline."""
        return format_instant(self.world.now + seconds * SECOND)

    def propose(self, *events: dict[str, Any], **fields: Any) -> Decision:
        """One proposal, whatever comes of it."""
        batch_id = str(uuid.UUID(int=len(self.world.records) + 1))
        value = {
            "batch_id": batch_id,
            "author": USER,
            "expected_revision": self.revision,
            **fields,
            "events": list(events),
        }
        return self.world.propose(self.run_id, value)

    def ok(self, *events: dict[str, Any], **fields: Any) -> Decision:
        """A proposal that is accepted."""
        decision = self.propose(*events, **fields)
        assert decision.outcome == "accepted", (decision.code, decision.message, decision.error)
        return decision

    def no(self, code: str, *events: dict[str, Any], **fields: Any) -> Decision:
        """A proposal that is rejected with this code and changes nothing."""
        before = self.state
        decision = self.propose(*events, **fields)
        assert (decision.outcome, decision.code) == ("rejected", code), decision
        assert self.state is before
        return decision

    def conflict(self, *entities: str, **fields: Any) -> Decision:
        """A proposal (`events=`) that conflicts on exactly these entities."""
        decision = self.no("CONFLICT", *fields.pop("events"), **fields)
        assert tuple(c["entity"] for c in decision.conflicts) == entities, decision.conflicts
        return decision

    def arbitrated(self, *events: dict[str, Any], **fields: Any) -> str:
        """A proposal that goes to arbitration; the conflict's id."""
        decision = self.propose(*events, on_conflict="arbitrate", **fields)
        assert decision.outcome == "arbitration", decision
        return self.world.records[-1].proposal.batch_id

    def find(self, collection: str, id: str, key: str = "id") -> dict[str, Any] | None:
        """A member of a collection of the document, or None."""
        return next((item for item in self.doc[collection] if item[key] == id), None)

    def task(self, id: str) -> dict[str, Any]:
        """A task of the document, which is there."""
        found = self.find("tasks", id)
        assert found is not None, id
        return found
