"""Runs for the tests of the public API: engines to open, and steps that must be accepted.

Invariants:
- Everything goes through what users have: `Engine`, `Run`, `foldlog.testing`; only the last
  functions reach past the client, as a foreign producer or another build would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from foldlog import client, testing
from foldlog.core.shapes import CONTROL_TYPES
from foldlog.results import Outcome
from foldlog.store.base import Store
from foldlog.wire import keys, slots
from tests.seats import holder_of

Json = dict[str, Any]

NOW = "2026-01-01T00:00:00.000000Z"
AGENT = "agent:worker-1"
OTHER = "agent:worker-2"
OPERATOR = "operator:ops"
BATCH = "5bfc1d98-7697-48d2-b42d-cddfd75d6180"
KINDS = ("memory", "home")


def at_home(path: Path, clock: Callable[[], int] | None = None, **options: Any) -> client.Engine:
    """The engine of a home of one partition in this folder, made if it is missing."""
    given = {"create": True, "partitions": 1, **options}
    return client.Engine.open(path, clock=clock or testing.Clock(NOW), **given)


@contextmanager
def opened(kind: str, path: Path) -> Iterator[client.Engine]:
    """An engine in memory, or of a new home; both begin at NOW."""
    with testing.Engine(now=NOW) if kind == "memory" else at_home(path / "home") as engine:
        yield engine


def event(type: str, **fields: Any) -> Json:
    """An event as JSON."""
    return {"type": type, **fields}


def fact(id: str, **fields: Any) -> Json:
    """A fact with evidence: what commutes with everything."""
    value = {"id": id, "statement": f"{id} holds", "evidence": "test://1"}
    return event("FactConfirmed", fact=value | fields)


def task(id: str, **fields: Any) -> Json:
    """A task at the end of the plan."""
    return event("TaskAdded", task={"id": id, "title": f"do {id}", **fields})


def effect(id: str, key: str | None = None, kind: str = "mail", **fields: Any) -> Json:
    """An effect that is intended."""
    value = {"id": id, "kind": kind, "target": "mail://ada", "idempotency_key": key or id}
    return event("EffectIntended", effect=value, **fields)


def wait(key: str = "approval", kind: str = "approval", **fields: Any) -> Json:
    """A wait that begins."""
    return event("WaitStarted", key=key, kind=kind, reason="may it?", **fields)


def accepted(outcome: Outcome | None) -> Outcome:
    """The outcome, which must be accepted."""
    assert outcome is not None
    assert outcome.outcome == "accepted", outcome
    return outcome


def refused(outcome: Outcome | None, code: str) -> Outcome:
    """The outcome, which must be a rejection with this code and a message that says something."""
    assert outcome is not None
    assert (outcome.outcome, outcome.code) == ("rejected", code), outcome
    assert len(outcome.message or "") >= 8, outcome
    return outcome


def revision(run: client.Run) -> int:
    """The run's revision; 0 if it does not exist."""
    state = run.state()
    return 0 if state is None else state.revision


def act(run: client.Run, *events: Json, **options: Any) -> Outcome:
    """Propose a batch on the revision that the run has; it must be accepted."""
    control = events[0]["type"] in CONTROL_TYPES
    given: Json = {"author": OPERATOR if control else AGENT, "expected_revision": revision(run)}
    return accepted(run.propose(list(events), **given | options))


def started(engine: client.Engine, run_id: str = "run_1", **fields: Any) -> client.Run:
    """A run that has begun: revision 1, by user ada."""
    run = engine.start(
        run_id, fields.pop("goal", "Fix the login failure"), author="user:ada", **fields
    )
    accepted(run.started)
    return run


def running(engine: client.Engine, run_id: str = "run_1", **fields: Any) -> client.Run:
    """A run in status running: revision 3."""
    run = started(engine, run_id, **fields)
    act(run, event("RunTransitioned", to="planning"))
    act(run, event("RunTransitioned", to="running"))
    return run


def document(run: client.Run) -> Json:
    """The run's document; it must exist."""
    state = run.state()
    assert state is not None
    return state.to_dict()


def hand_in(engine: client.Engine, key: str, value: bytes, partition: int = 0) -> None:
    """Put bytes into the proposals log as a foreign producer would, and have them decided."""
    engine._seat.place.log.propose(partition, [(key.encode(), value)])
    engine.project()


def rewrite_header(store: Store, run_id: str, **fields: Any) -> None:
    """Change header fields of a run under the engine, as another build would have left them."""
    key = keys.slot_key(run_id, "header", "")
    data = store.get(key)
    assert data is not None
    header = replace(slots.decode_header(run_id, data), **fields)
    store.write({key: slots.encode_header(header)})


def store_of(engine: client.Engine, partition: int = 0) -> Store:
    """The store of one partition of an open engine."""
    return holder_of(engine).held[partition].partition.store
