"""Which events commute: every pair of `+` does, and every other pair has its reason.

Invariants:
- Of a pair that is not both `+`, either a known state shows that its orders differ, or one of the
  two is not `+` for the sake of another pair, or stands in `REASONS`.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from tests import core_pairs
from tests.core_model import Story, observed
from tests.core_pairs import OTHER_PAIRS, PLUS_PAIRS, PLUS_TYPES, Pair, Place
from tests.core_walk import walk

TIMES = 50  # Each pair of `+` is accepted so often in both orders.
SEEDS = range(60)

NAMES_ONE = (
    "changes one member that must be there: its author must have read that member, since on the "
    "same one the later event is lost or refused; on another one it commutes"
)
SINGLE = "changes an entity that exists once: of two the later one stands"
OUTCOME = "settles one effect: of two outcomes of the same effect the later one is refused"
REASONS = {
    "RunStarted": "begins a run, and nothing else is accepted before it or again after it",
    "RunReleased": "is accepted only in quarantine, where nothing else is",
    "PermissionRestored": "undoes a revocation: of the two on one permission the later one stands",
    "FactRetracted": NAMES_ONE,
    "HypothesisRevised": NAMES_ONE,
    "HypothesisFalsified": NAMES_ONE,
    "QuestionAnswered": NAMES_ONE,
    "TaskBlocked": NAMES_ONE,
    "TaskUnblocked": NAMES_ONE,
    "TaskCompleted": NAMES_ONE,
    "TaskFailed": NAMES_ONE,
    "TaskCancelled": NAMES_ONE,
    "EffectSucceeded": OUTCOME,
    "EffectFailed": OUTCOME,
    "EffectUnknown": OUTCOME,
    "EffectReconciled": OUTCOME,
    "PhaseChanged": SINGLE,
    "AgentVersionChanged": SINGLE,
    "RulesActivated": SINGLE,
    "WorkspaceMoved": SINGLE,
}


def witnesses() -> dict[Pair, tuple[int, int]]:
    """The pairs of the file, each with the walk and the record where its orders differ."""
    found = json.loads(core_pairs.WITNESSES.read_text(encoding="utf-8"))
    return {tuple(name.split()): tuple(where) for name, where in found.items()}


def test_every_pair_of_plus_commutes() -> None:
    """Any two `+` on different ids, accepted in both orders, come to the same state."""
    accepted: Counter[Pair] = Counter()
    for seed in SEEDS:
        for place in core_pairs.places(walk(seed).records, 1, PLUS_TYPES):
            for pair in PLUS_PAIRS:
                if accepted[pair] < TIMES:
                    accepted[pair] += _commutes(place, pair)
    assert {pair: accepted[pair] for pair in PLUS_PAIRS if accepted[pair] < TIMES} == {}


def _commutes(place: Place, pair: Pair) -> bool:
    """Whether the pair was accepted in both orders here; fails if they differ."""
    events = core_pairs.pair_at(place, pair)
    if events is None or not core_pairs.is_plus_pair(events):
        return False
    there, back = core_pairs.both_orders(place, events)
    if len(there.accepted) < 2 or len(back.accepted) < 2:
        return False
    assert there.form == back.form, events
    return True


def test_the_orders_of_the_witnesses_differ() -> None:
    """Each counterexample of the file still is one."""
    for pair, (seed, sequence) in witnesses().items():
        place = core_pairs.place_of(seed, sequence)
        events = core_pairs.pair_at(place, pair)
        assert events is not None, pair
        assert core_pairs.differs(place, events), (pair, events)


def test_every_other_pair_has_its_reason() -> None:
    """No pair is left without `+` by accident."""
    found = set(witnesses())
    excused = set(REASONS) | not_plus_for_others(found)
    unexplained = [pair for pair in OTHER_PAIRS if pair not in found and excused.isdisjoint(pair)]
    assert unexplained == []


def not_plus_for_others(found: set[Pair]) -> set[str]:
    """The types of which a counterexample shows that they do not commute with `+` or themselves."""
    plus = set(PLUS_TYPES)
    against_plus = {
        a for pair in found for a, b in (pair, pair[::-1]) if b in plus and a not in plus
    }
    return against_plus | {a for a, b in found if a == b}


def test_reasons_are_given_where_they_are_needed() -> None:
    """A type that fails to commute with some `+` shows it by that and needs no words."""
    shown = not_plus_for_others(set(witnesses()))
    assert [t for t in REASONS if t in shown and REASONS[t] is not SINGLE] == []


@pytest.mark.parametrize(
    "type", [type for type in REASONS if REASONS[type] in (NAMES_ONE, OUTCOME)]
)
def test_on_the_same_id_the_order_matters(type: str) -> None:
    """What names one member does not commute with another event on the same member."""
    for seed in SEEDS:
        for place in core_pairs.places(walk(seed).records, 1, REASONS):
            first = place.events[0].get(type)
            for second in place.events[1].values():
                if first and core_pairs.ids(first) & core_pairs.ids(second):
                    if core_pairs.differs(place, (first, second)):
                        return
    raise AssertionError(f"no state shows that the order of {type} matters")


def test_a_pair_with_a_reason_alone_commutes() -> None:
    """Two types of `REASONS` that name members commute on different ones, as the reasons say."""
    named = [type for type in REASONS if REASONS[type] in (NAMES_ONE, OUTCOME)]
    met: Counter[Pair] = Counter()
    for seed in itertools.islice(SEEDS, 0, None, 4):
        for place in core_pairs.places(walk(seed).records, 1, named):
            for pair in itertools.combinations(named, 2):
                events = core_pairs.pair_at(place, pair)
                if events is not None and met[pair] < 5:
                    met[pair] += 1
                    assert not core_pairs.differs(place, events), events
    assert len(met) > len(named)


def test_observations_of_one_subject_commute() -> None:
    """The same observation stands whichever of two of a subject came first."""
    times = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2025-12-31T23:59:59Z")
    versions = (None, "v1", "v2")
    choices = list(itertools.product(times, versions, ("a", "b")))
    story = Story("running")
    place = Place(story.state, story.world.now, ({}, {}))
    for first, second in itertools.product(choices, choices):
        events = tuple(
            observed("env:x", at, observed_version=version, state=state)
            for at, version, state in (first, second)
        )
        assert not core_pairs.differs(place, events), events


def test_a_signal_and_its_wait_meet_in_any_order() -> None:
    """A signal before its wait and a signal after it leave the run in the same place."""
    before, later = Story("running"), Story("running")
    signal = {"type": "SignalReceived", "key": "k", "signal_id": "s"}
    wait = {"type": "WaitStarted", "kind": "user", "key": "k", "reason": "may it?"}
    before.ok(signal)
    before.ok(wait)
    later.ok(wait)
    later.ok(signal)
    for story in (before, later):
        assert (story.doc["status"], story.doc["waiting"], story.doc["signals"]) == (
            "running",
            None,
            [],
        )
        assert story.doc["last_signal"]["signal_id"] == "s"
