"""Seeded random walks: proposals to a few runs, valid and hostile, decided one after the other.

Invariants:
- The same seed gives the same walk, proposal by proposal.
- Every event type is accepted in some walk, and every code of section 3 is met (`test_laws`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import uuid
from collections.abc import Callable
from typing import Any

from foldlog.core.catalogue import CATALOGUE, Catalogue, EventType
from foldlog.core.context import Context, Event
from foldlog.core.decide import decide
from foldlog.core.document import document
from foldlog.core.proposals import Malformed, parse_proposal
from foldlog.core.state import Draft, RunState
from foldlog.core.values import parse_instant
from tests.core_events import MAKERS, WORKERS, View, likely
from tests.core_model import SECOND, World, after

TYPES = tuple(MAKERS)
AUTHOR_KINDS = ("agent", "user", "tool", "operator", "system")
PATIENCE = 12  # Proposals to a finished run before a new one is begun.
WEIGHTS = {
    "RunStarted": 0.1,
    "RunReleased": 0.15,
    "RunCancelled": 0.15,
    "RunFinished": 0.2,
    "BudgetSet": 0.5,
    "GoalChanged": 0.4,
    "PermissionRevoked": 0.4,
    "WaitStarted": 0.8,
    "LeaseAcquired": 0.7,
    "SignalReceived": 1.6,
    "TaskAdded": 1.5,
    "TaskStarted": 4.0,
    "TaskCompleted": 2.0,
    "EffectIntended": 2.0,
    "ToolStarted": 2.0,
    "ConflictResolved": 2.0,
    "WaitTimedOut": 9.0,
    "PermissionRestored": 0.3,
}


POISON = "poison"


def poisoned(rows: Catalogue) -> Catalogue:
    """A table of which two rules raise on a certain text: so that walks meet quarantine."""
    names = ("Recorded", "BudgetSpent")
    return {**rows, **{name: _raising(rows[name]) for name in names}}


def _raising(row: EventType) -> EventType:
    def apply(draft: Draft, event: Event, ctx: Context) -> None:
        if POISON in (event.get("name"), event.get("reason")):
            raise ZeroDivisionError("poisoned")
        row.apply(draft, event, ctx)

    return dataclasses.replace(row, apply=apply)


RULES_OF_WALKS = dict.fromkeys((1, 2), poisoned(CATALOGUE))
"""Two versions that do the same, so that a run can go from one to the other."""


class Walker:
    """A world, the dice, and the runs that go on in it."""

    def __init__(self, seed: int, runs: int = 2, ids: int = 10**9) -> None:
        self.ids = ids
        self.rng = random.Random(seed)
        self.seed = seed
        self.world = World(rules=RULES_OF_WALKS)
        self.active = {number: self._name(number, 0) for number in range(runs)}
        self.late = dict.fromkeys(range(runs), 0)

    def _name(self, number: int, begun: int) -> str:
        return f"run_{self.seed}_{number}_{begun}"

    def step(self) -> None:
        """Let some time pass and make one proposal to one run."""
        number = self.rng.choice(list(self.active))
        self.world.now += self.rng.choice((0, 1, 1, 2, 5, 5, 20, 200)) * SECOND
        run_id = self.active[number]
        state = self.world.state(run_id)
        if state.exists and state.value("status") == "finish":
            self.late[number] += 1
            if self.late[number] > PATIENCE:
                begun = int(run_id.rpartition("_")[2]) + 1
                self.active[number], self.late[number] = self._name(number, begun), 0
        self.world.propose(run_id, self.proposal(run_id))

    def proposal(self, run_id: str) -> dict[str, Any]:
        """A proposal to this run as it stands."""
        state = self.world.state(run_id)
        view = self.view(state)
        value = self._start(view) if not state.exists else self._valid(run_id, state, view)
        return self._twisted(run_id, value, view) if view.chance(0.35) else value

    def _twisted(self, run_id: str, value: dict[str, Any], view: View) -> dict[str, Any]:
        """The proposal made hostile; as it was, where that made it malformed."""
        twisted = copy.deepcopy(value)
        for twist in self.rng.choices(TWISTS, k=self.rng.choice((1, 1, 2))):
            twist(twisted, view, self)
        twisted = copy.deepcopy(twisted)
        try:
            parse_proposal(run_id, twisted)
        except Malformed:
            return value
        return twisted

    def view(self, state: RunState) -> View:
        """What a proposer sees of this state now."""
        return View(document(state) if state.exists else {}, self.world.now, self.rng, self.ids)

    def batch_id(self) -> str:
        """A new batch id."""
        return str(uuid.UUID(int=self.rng.getrandbits(128)))

    def _start(self, view: View) -> dict[str, Any]:
        event = likely("RunStarted" if view.chance(0.9) else "PhaseChanged", view)
        return {"batch_id": self.batch_id(), "author": author(view, "user"), "events": [event]}

    def _valid(self, run_id: str, state: RunState, view: View) -> dict[str, Any]:
        first = self.event(view)
        events = [first]
        value = self._addressed(first["type"], view, events)
        for _ in range(self.rng.choice((0, 0, 0, 0, 1, 2, 4))):
            found = decide(
                state, parse_proposal(run_id, value), self.world.now, rules=self.world.rules
            )
            if found.outcome != "accepted":
                break
            event = self.event(self.view(after(state, found)))
            if CATALOGUE[event["type"]].control == CATALOGUE[first["type"]].control:
                if "RunReleased" not in (event["type"], first["type"]):
                    if event["type"] != "RunStarted":
                        events.append(event)
        return value

    def _addressed(self, type: str, view: View, events: list[dict[str, Any]]) -> dict[str, Any]:
        value = {
            "batch_id": self.batch_id(),
            "author": author(view, author_kind(type, view)),
            "expected_revision": view.doc["revision"],
            "events": events,
        }
        row = CATALOGUE[type]
        floats = type == "RunStarted" or (not row.needs_expectation(events[0]) and view.chance(0.6))
        if floats:
            del value["expected_revision"]
        lease = view.doc["lease"]
        if lease and value["author"]["kind"] == "agent" and view.chance(0.9):
            value["lease_epoch"] = lease["epoch"]
        return value

    def event(self, view: View) -> dict[str, Any]:
        """An event that this run would probably take."""
        weights = weights_for(view)
        while True:
            type = self.rng.choices(TYPES, weights)[0]
            event = likely(type, view)
            if event is not None:
                return event


def weights_for(view: View) -> list[float]:
    """How often each type is tried, so that a walk goes on instead of standing still."""
    doc, weights = view.doc, dict.fromkeys(TYPES, 1.0) | WEIGHTS
    if doc["status"] in ("start", "planning", "retry"):
        weights["RunTransitioned"] = 12.0
    if doc["permissions_revoked"]:
        weights["PermissionRestored"] = 3.0
    if doc["condition"] == "quarantined":
        weights["RunReleased"] = 20.0
    tokens, deadline = doc["budgets"]["tokens_remaining"], doc["budgets"]["deadline"]
    if tokens is not None and tokens <= 0:
        weights["BudgetSet"] = 2.0
    if deadline is not None and parse_instant(deadline) <= view.now * 1000:
        weights["BudgetSet"] = 2.0
    return [weights[type] for type in TYPES]


def author(view: View, kind: str) -> dict[str, Any]:
    """An author of this kind; an agent is mostly the one who holds the lease."""
    if kind != "agent":
        return {"kind": kind, "id": view.pick(("ada", "bob"))}
    lease = view.doc.get("lease")
    if lease is not None and view.chance(0.8):
        return {"kind": kind, "id": lease["worker"]}
    return {"kind": kind, "id": view.pick(WORKERS)}


def author_kind(type: str, view: View) -> str:
    """A kind of author who may propose this type."""
    allowed = CATALOGUE[type].authors
    if allowed is not None and not view.chance(0.04):
        return view.pick(sorted(allowed))
    return view.pick(("agent", "agent", "agent", "agent", "user", "tool", "system"))


# Twists: what makes a proposal hostile, late, or merely unlucky.

Twist = Callable[[dict[str, Any], View, Walker], None]


def _stale(value: dict[str, Any], view: View, walker: Walker) -> None:
    revision = view.doc.get("revision", 0)
    back = view.rng.choice((1, 1, 2, 3, 5, 8, revision))
    value["expected_revision"] = max(0, revision - back)


def _stale_arbitrated(value: dict[str, Any], view: View, walker: Walker) -> None:
    _stale(value, view, walker)
    value["on_conflict"] = "arbitrate"


def _without_expectation(value: dict[str, Any], view: View, walker: Walker) -> None:
    value.pop("expected_revision", None)


def _future(value: dict[str, Any], view: View, walker: Walker) -> None:
    value["expected_revision"] = view.doc.get("revision", 0) + view.rng.randint(1, 3)


def _other_author(value: dict[str, Any], view: View, walker: Walker) -> None:
    value["author"] = author(view, view.pick(AUTHOR_KINDS))
    value.pop("lease_epoch", None)


def _other_epoch(value: dict[str, Any], view: View, walker: Walker) -> None:
    lease = view.doc.get("lease")
    value["lease_epoch"] = view.pick((0, 1, 2, lease["epoch"] if lease else 3))


def _reads(value: dict[str, Any], view: View, walker: Walker) -> None:
    names = ["goal", "status", "plan", "phase", "lease", "budget/tokens", "task/none"]
    names += [f"task/{task['id']}" for task in view.doc.get("tasks", ())]
    names += [f"observation/{o['subject']}" for o in view.doc.get("environment_observations", ())]
    value["reads"] = view.rng.sample(names, 2)
    if view.chance(0.7):
        _stale(value, view, walker)


def _again(value: dict[str, Any], view: View, walker: Walker) -> None:
    """A batch id that was used before, mostly with the content it had."""
    if not walker.world.records:
        return
    earlier = view.pick(walker.world.records[-40:])
    value["batch_id"] = earlier.value["batch_id"].upper()
    if view.chance(0.7):
        value.clear()
        value.update(copy.deepcopy(earlier.value))


def _other_ids(value: dict[str, Any], view: View, walker: Walker) -> None:
    """Ids of an earlier event of the same type, which are used, gone, or of another run."""
    records = walker.world.records
    earlier = [event for record in records for event in record.value["events"]]
    for place, event in enumerate(value["events"]):
        same = view.pick(e for e in earlier if e["type"] == event["type"])
        if same is not None and event["type"] != "RunStarted":
            value["events"][place] = copy.deepcopy(same)


def _with_report(value: dict[str, Any], view: View, walker: Walker) -> None:
    """A report beside whatever else the batch holds."""
    if any(CATALOGUE[event["type"]].control for event in value["events"]) or not view.doc:
        return
    for type in view.rng.sample(("ToolSucceeded", "ToolFailed", "EffectSucceeded"), 3):
        if (event := likely(type, view)) is not None:
            value["events"].append(event)
            return
    value["events"].append(likely("BudgetSpent", view))


def _report_only(value: dict[str, Any], view: View, walker: Walker) -> None:
    """Nothing but a report, late or with an old epoch."""
    reports = [type for type in TYPES if CATALOGUE[type].report]
    events = [event for type in reports if view.doc and (event := likely(type, view))]
    if events:
        value["events"] = [view.pick(events)]
        value["author"] = author(view, "agent")


def _end_and_more(value: dict[str, Any], view: View, walker: Walker) -> None:
    """Something after the end of the run in its own batch."""
    if view.doc and view.chance(0.2):
        if not any(CATALOGUE[event["type"]].control for event in value["events"]):
            value["events"].insert(0, likely("RunFinished", view))


def _rules(value: dict[str, Any], view: View, walker: Walker) -> None:
    for event in value["events"]:
        if event["type"] in ("RunStarted", "RulesActivated"):
            event["rules_version"] = view.pick((1, 2, 3))


def _poison(value: dict[str, Any], view: View, walker: Walker) -> None:
    """A rule that raises; a late one too, since a finished run takes reports only."""
    report = {"type": "BudgetSpent", "tokens": 1, "reason": POISON}
    if view.doc.get("status") == "finish":
        value["events"] = [report]
    elif not any(CATALOGUE[event["type"]].control for event in value["events"]):
        value["events"].append({"type": "Recorded", "name": POISON, "payload": None})


TWISTS: tuple[Twist, ...] = (
    _stale,
    _stale,
    _stale_arbitrated,
    _stale_arbitrated,
    _without_expectation,
    _future,
    _other_author,
    _other_epoch,
    _reads,
    _again,
    _other_ids,
    _with_report,
    _with_report,
    _report_only,
    _end_and_more,
    _rules,
    _poison,
)


@functools.lru_cache(maxsize=256)
def walk(seed: int, steps: int = 120, runs: int = 2, ids: int = 10**9) -> World:
    """The world after a walk of so many proposals; shared, so look and do not touch."""
    walker = Walker(seed, runs, ids)
    for _ in range(steps):
        walker.step()
    return walker.world
