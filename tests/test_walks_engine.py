"""The same walks through log, codec, turn, fold and store: the same outcomes and documents.

Invariants:
- What the pure harness decides and folds is the expectation; the engine knows nothing of it.
- Besides, what an engine kept proves itself: chain, state hashes, projection, decisions.
"""

from __future__ import annotations

from typing import Any

import pytest

from foldlog import client
from foldlog.core.document import document
from foldlog.core.values import format_instant
from foldlog.log.memory import MemoryLog
from foldlog.store.memory import MemoryStore
from foldlog.testing import Clock
from tests.core_model import Record, World
from tests.core_walk import RULES_OF_WALKS, walk
from tests.seats import seat_on

SEEDS = range(6)
WILD_SEEDS = range(1_000, 1_003)
COMPUTED = ("chain",)  # The harness has no log, so no hash of a record.


class WalkEngine(client.Engine):
    """An engine in memory under the rules of the walks, with a clock to be set."""

    def __init__(self) -> None:
        self.clock = Clock("2026-01-01T00:00:00Z")
        log = MemoryLog(2, self.clock)
        stores = [MemoryStore(), MemoryStore()]
        seat = seat_on(log, stores, self.clock, RULES_OF_WALKS, timekeeper=False)
        super().__init__(seat, self.clock, author="user:x")


def expected(world: World, record: Record) -> dict[str, Any]:
    """The outcome that a record's proposer should get: of a duplicate the first one, whole."""
    decision = record.decision
    duplicate = decision.outcome == "duplicate"
    if duplicate:
        assert decision.duplicate_of is not None
        decision = world.records[decision.duplicate_of - 1].decision
    return {
        "outcome": decision.outcome,
        "code": decision.code,
        "revision": decision.revision_after,
        "rebased": decision.rebased,
        "duplicate": duplicate,
        "recorded": True,
        "event_index": decision.event_index,
        "field": decision.field,
        "conflicts": list(decision.conflicts),
    }


def worlds() -> list[World]:
    """The walks that are taken through an engine."""
    return [walk(seed) for seed in SEEDS] + [walk(seed, ids=6) for seed in WILD_SEEDS]


@pytest.mark.parametrize("number", range(len(SEEDS) + len(WILD_SEEDS)))
def test_an_engine_comes_to_what_the_core_comes_to(number: int) -> None:
    """Every outcome of a walk, and every document on its way, is the pure core's."""
    world = worlds()[number]
    with WalkEngine() as engine:
        for record in world.records:
            engine.clock.set(format_instant(record.log_time))
            run = engine.run(record.run_id)
            outcome = run.propose_json(record.value).to_dict()
            want = expected(world, record)
            assert {name: outcome[name] for name in want} == want, record.value
            if record.sequence % 10 == 0 and record.after.exists:
                assert shown(run.state()) == without(document(record.after))
        for run_id, state in world.states.items():
            if state.exists:
                assert shown(engine.run(run_id).state()) == without(document(state))
        report = engine.verify(redecide=True).to_dict()
        assert report["ok"], report
        assert report["records"] == len(world.records)


def shown(state: Any) -> dict[str, Any]:
    """The document of an engine's run."""
    return without(state.to_dict())


def without(doc: dict[str, Any]) -> dict[str, Any]:
    """A document without what only a log can compute."""
    return {name: value for name, value in doc.items() if name not in COMPUTED}


def test_every_revision_can_be_shown_again() -> None:
    """`at` gives the document of each revision as it was when it was made."""
    world = walk(SEEDS[0])
    with WalkEngine() as engine:
        for record in world.records:
            engine.clock.set(format_instant(record.log_time))
            engine.run(record.run_id).propose_json(record.value)
        for record in world.records:
            if record.decision.draft is not None and record.before.quarantine is None:
                then = engine.run(record.run_id).at(record.decision.revision_after)
                assert shown(then) | CONDITION == without(document(record.after)) | CONDITION


CONDITION = {"condition": "ok"}  # A quarantine after the revision is part of its moment, too.
