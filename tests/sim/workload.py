"""What clients propose: likely, late, hostile and malformed batches to a few runs.

Invariants:
- Proposals come from the dice of the workload and from what a client reads, nothing else.
- A proposal whose outcome stayed unknown is proposed again under its own batch id only.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from foldlog.core.catalogue import CATALOGUE
from foldlog.core.proposals import Malformed, Proposal, parse_proposal
from foldlog.core.values import Author
from foldlog.wire.envelope import encode_proposal
from tests.core_events import View, likely
from tests.core_walk import TWISTS, TYPES, author, author_kind, weights_for

Value = dict[str, Any]
SIGNALS_MAX = 1_000
START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


@dataclass(frozen=True)
class Earlier:
    """A proposal made before, for those twists that look back."""

    value: Value


@dataclass
class Workload:
    """The proposals of one simulation. ``total`` of them, ``full``: one run full of signals."""

    seed: int
    total: int
    runs: int
    full: bool
    made: int = 0
    begun: int = 0
    rng: random.Random = field(init=False)
    retries: list[tuple[str, Value]] = field(default_factory=list)
    opening: list[tuple[str, Value]] = field(default_factory=list)
    world: Any = field(init=False)
    """What the twists of ``core_walk`` look back on."""

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}/workload")
        self.world = SimpleNamespace(records=[])
        self.active = [self._name() for _ in range(self.runs)]
        if self.full:
            self.opening = self._full_run()

    def _name(self) -> str:
        self.begun += 1
        return f"run_{self.begun}"

    @property
    def done(self) -> bool:
        """Whether nothing more will be proposed."""
        return self.made >= self.total and not self.retries and not self.opening

    def run_id(self) -> str:
        """A run to propose to."""
        return self.rng.choice(self.active)

    def batch_id(self) -> str:
        """A new batch id."""
        return str(uuid.UUID(int=self.rng.getrandbits(128)))

    def note(self, value: Value) -> None:
        """Remember a proposal, so that later ones can repeat it."""
        self.world.records.append(Earlier(value))

    def finished(self, run_id: str) -> None:
        """A client saw that a run is finished: now and then another one begins in its place."""
        if run_id in self.active and self.rng.random() < 0.25:
            self.active[self.active.index(run_id)] = self._name()

    # One proposal

    def proposal(self, run_id: str, doc: Value, now: int) -> Value:
        """A proposal to a run that looks like ``doc`` ({} if it is not there) at ``now``."""
        view = View(doc, now, self.rng)
        if doc and doc["status"] == "finish":
            self.finished(run_id)
        if doc and view.chance(0.2) and (events := self._spite(view)):
            value = self._addressed(view, events, float=False)
            if view.chance(0.2):
                value["author"] = author(view, "agent")
            return value
        value = self._valid(view) if doc else self._start(view)
        return self._twisted(run_id, value, view) if view.chance(0.4) else value

    def _start(self, view: View) -> Value:
        if view.chance(0.1):
            return self._addressed(view, [{"type": "PhaseChanged", "phase": "fix"}])
        events: list[Any] = [likely("RunStarted", view)]
        if view.chance(0.8):
            events += [{"type": "RunTransitioned", "to": to} for to in ("planning", "running")]
            events += [
                {"type": "TaskAdded", "task": {"id": f"task_{number}", "title": "do it"}}
                for number in range(3)
            ]
        return {"batch_id": self.batch_id(), "author": author(view, "user"), "events": events}

    def _valid(self, view: View) -> Value:
        events = [self._event(view)]
        control = CATALOGUE[events[0]["type"]].control
        for _ in range(self.rng.choice((0, 0, 0, 0, 1, 2))):
            event = self._event(view)
            alone = {"RunReleased", "RunStarted"} & {event["type"], events[0]["type"]}
            if CATALOGUE[event["type"]].control == control and not alone:
                events.append(event)
        return self._addressed(view, events)

    def _event(self, view: View) -> Any:
        weights = weights_for(view)
        while True:
            event = likely(self.rng.choices(TYPES, weights)[0], view)
            if event is not None:
                return event

    def _addressed(self, view: View, events: list[Any], *, float: bool = True) -> Value:
        type = events[0]["type"]
        value = {
            "batch_id": self.batch_id(),
            "author": author(view, author_kind(type, view)),
            "expected_revision": view.doc.get("revision", 0),
            "events": events,
        }
        floats = not any(CATALOGUE[event["type"]].needs_expectation(event) for event in events)
        if type == "RunStarted" or (float and floats and view.chance(0.6)):
            del value["expected_revision"]
        lease = view.doc.get("lease")
        if lease and value["author"]["kind"] == "agent" and view.chance(0.8):
            value["lease_epoch"] = lease["epoch"]
        return value

    def _twisted(self, run_id: str, value: Value, view: View) -> Value:
        twisted = copy.deepcopy(value)
        walker: Any = self
        for twist in self.rng.choices(TWISTS, k=self.rng.choice((1, 1, 2))):
            twist(twisted, view, walker)
        twisted = copy.deepcopy(twisted)
        try:
            parse_proposal(run_id, twisted)
        except Malformed:
            return value
        return twisted

    # What the walks meet too seldom

    def _spite(self, view: View) -> list[Any] | None:
        """Events that a certain rule should refuse, if the run stands so that one can."""
        return self.rng.choice(SPITES)(view)

    def _full_run(self) -> list[tuple[str, Value]]:
        """A run that keeps as many signals as may be kept, and a few more."""
        run_id, user = "run_full", {"kind": "user", "id": "ada"}
        batches: list[list[Any]] = [[{"type": "RunStarted", "goal": {"statement": "wait"}}]]
        for first in range(0, SIGNALS_MAX, 100):
            batches.append([signal(number) for number in range(first, first + 100)])
        batches += [[signal(number)] for number in range(SIGNALS_MAX, SIGNALS_MAX + 3)]
        return [
            (run_id, {"batch_id": self.batch_id(), "author": user, "events": events})
            for events in batches
        ]

    # Foreign producers

    def foreign(self, partitions: int) -> tuple[int | None, bytes, bytes]:
        """Raw bytes for an inbox: (partition or None for the run's own, key, value)."""
        rng, run_id = self.rng, self.run_id()
        batch_id = self.batch_id()
        if self.world.records and rng.random() < 0.3:
            batch_id = rng.choice(self.world.records).value["batch_id"].lower()
        fact = {"id": rng.choice(("", "f" * 3_000)), "statement": "so it is"}
        events = ({"type": "FactConfirmed", "fact": fact},)
        wrong = Proposal(run_id, batch_id, Author("user", "eve"), events)
        fine = Proposal(run_id, batch_id, Author("user", "eve"), (signal(rng.getrandbits(40)),))
        value = encode_proposal(fine)
        return rng.choice(
            (
                (None, run_id.encode(), encode_proposal(wrong)),
                (None, run_id.encode(), encode_proposal(wrong)),
                (None, run_id.encode(), value[: rng.randrange(len(value))]),
                (None, run_id.encode(), rng.randbytes(rng.randrange(60))),
                (None, b"run_of_nobody", value),
                (rng.randrange(partitions), run_id.encode(), value),
                (rng.randrange(partitions), rng.choice((b"", b"\xff\x00", b"../x")), value),
            )
        )


def signal(number: int) -> Value:
    """A signal that no wait waits for."""
    return {"type": "SignalReceived", "key": "later", "signal_id": f"signal_{number}"}


def _revoked_tool(view: View) -> list[Value] | None:
    for permission in view.doc["permissions_revoked"]:
        kind, _, name = permission.partition(":")
        if kind == "tool":
            tool = name.rstrip("*") or "read"
            return [{"type": "ToolStarted", "step_id": view.fresh("step"), "tool": tool}]
        effect = {"id": view.fresh("eff"), "kind": name.rstrip("*") or "mail"}
        effect |= {"target": "x:1", "idempotency_key": view.fresh("key")}
        return [{"type": "EffectIntended", "effect": effect}]
    return [{"type": "PermissionRevoked", "permission": "tool:run_*", "reason": "costly"}]


def _unmet(view: View) -> list[Value] | None:
    waiting = [t for t in view.doc["tasks"] if t["status"] == "pending"]
    for task in waiting:
        if task["depends_on"] and task["id"] not in view.doc["next_task_ids"]:
            return [{"type": "TaskStarted", "task_id": task["id"]}]
    if not waiting:
        return None
    new = {"id": view.fresh("task"), "title": "after", "depends_on": [waiting[0]["id"]]}
    return [{"type": "TaskAdded", "task": new}]


def _stale_observation(view: View) -> list[Value] | None:
    if view.doc["status"] != "running":
        return None
    effect = {"id": view.fresh("eff"), "kind": "order", "target": "x:1"}
    effect["idempotency_key"] = view.fresh("key")
    requires = [{"subject": "file://a", "observed_version": "v9"}]
    return [{"type": "EffectIntended", "effect": effect, "requires": requires}]


def _no_evidence(view: View) -> list[Value] | None:
    return [{"type": "FactConfirmed", "fact": {"id": view.fresh("fact"), "statement": "so"}}]


def _lease(view: View) -> list[Value] | None:
    return [{"type": "LeaseAcquired", "worker": "worker-1", "ttl_seconds": 60}]


def _broke(view: View) -> list[Value] | None:
    tokens = view.doc["budgets"]["tokens_remaining"]
    if tokens is None or tokens > 0:
        return [{"type": "BudgetSet", "tokens_remaining": 0}] if view.chance(0.3) else None
    return [{"type": "ToolStarted", "step_id": view.fresh("step"), "tool": "other"}]


def _new_rules(view: View) -> list[Value] | None:
    return [{"type": "RulesActivated", "rules_version": 3}] if view.chance(0.5) else None


SPITES: tuple[Callable[[View], list[Value] | None], ...] = (
    _revoked_tool,
    _unmet,
    _unmet,
    _stale_observation,
    _no_evidence,
    _lease,
    _broke,
    _new_rules,
)
