"""Two events on one state, in both orders: do the results differ?

Invariants:
- Each event of a pair keeps its batch id and author in both orders; only its turn changes.
- What the contract sets aside for commuting events is taken out before documents are compared.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foldlog.core.catalogue import CATALOGUE, touched
from foldlog.core.decide import decide
from foldlog.core.document import document
from foldlog.core.proposals import parse_proposal
from foldlog.core.state import RunState
from tests.core_events import View, likely
from tests.core_model import Record, after
from tests.core_walk import RULES_OF_WALKS, TYPES, author_kind, walk

BATCH_IDS = ("00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b")
PLUS_TYPES = tuple(row.name for row in CATALOGUE.values() if row.commutes)
PAIRS = tuple((a, b) for place, a in enumerate(TYPES) for b in TYPES[place:])
PLUS_PAIRS = tuple(pair for pair in PAIRS if set(pair) <= set(PLUS_TYPES))
OTHER_PAIRS = tuple(pair for pair in PAIRS if not set(pair) <= set(PLUS_TYPES))

Pair = tuple[str, str]


@dataclass(frozen=True)
class Told:
    """What became of two events in one order: which were accepted, and the state after them."""

    accepted: frozenset[int]
    form: Any


@dataclass(frozen=True)
class Place:
    """A state of a walk, the time there, and two events of each type that it would take."""

    state: RunState
    now: int
    events: tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]


def places(records: Iterable[Record], salt: int, types: Iterable[str] = TYPES) -> Iterator[Place]:
    """The states of a walk that are not ended, each with likely events of these types."""
    for record in records:
        state = record.after
        ended = not state.exists or state.value("status") == "finish"
        if ended or record.decision.draft is None or state.quarantine is not None:
            continue
        rng = random.Random(f"{salt} {record.proposal.batch_id}")
        view = View(document(state), record.log_time, rng)
        made = tuple(
            {type: event for type in types if (event := likely(type, view)) is not None}
            for _ in range(2)
        )
        yield Place(state, record.log_time, made)  # type: ignore[arg-type]


def pair_at(place: Place, pair: Pair) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Two events of these types on different ids, or None if this state gives none."""
    first, second = place.events[0].get(pair[0]), place.events[1].get(pair[1])
    if first is None or second is None or ids(first) & ids(second):
        return None
    return first, second


def ids(event: dict[str, Any]) -> set[tuple[str, str]]:
    """The members of collections that an event writes by its own fields."""
    row = CATALOGUE[event["type"]]
    templates = [t for t in (*row.writes, *row.also) if "{" in t]
    found = set(touched(tuple(templates), event, EMPTY))
    if event["type"] == "CheckpointTaken":
        found.add(("checkpoint", event["checkpoint"]["id"]))
    if event["type"] == "PlanAdopted":
        found |= {("task", task["id"]) for task in event["tasks"]}
    return found


EMPTY: Any = None  # `{...}` templates look at the event alone.


def in_order(place: Place, events: tuple[dict[str, Any], ...], order: tuple[int, ...]) -> Told:
    """Propose two events one after the other, each knowing the revision it comes to."""
    state, accepted = place.state, set()
    for turn in order:
        event = events[turn]
        kind = author_kind(event["type"], View({}, 0, random.Random(turn)))
        value = {
            "batch_id": BATCH_IDS[turn],
            "author": {"kind": "user" if kind != "system" else kind, "id": f"author-{turn}"},
            "expected_revision": state.header.revision,
            "events": [event],
        }
        if event["type"] == "RunStarted":
            del value["expected_revision"]
        proposal = parse_proposal(state.header.run_id, value)
        decision = decide(state, proposal, place.now, rules=RULES_OF_WALKS)
        if decision.outcome == "accepted":
            accepted.add(turn)
            state = after(state, decision)
    return Told(frozenset(accepted), normal_form(document(state), events))


IGNORED = ("revision", "control_revision", "author", "chain", "effect_ledger_ref")
LAST = ("last_signal", "last_transition", "last_action")


def normal_form(doc: dict[str, Any], events: tuple[dict[str, Any], ...]) -> Any:
    """A document less what may differ between two orders of commuting events."""
    form = {name: value for name, value in doc.items() if name not in LAST}
    form["plan"] = sorted(doc["plan"])
    form["next_task_ids"] = sorted(doc["next_task_ids"])
    signals = [event for event in events if event["type"] == "SignalReceived"]
    if len(signals) == 2 and signals[0]["key"] == signals[1]["key"]:
        # Which of the two ended a wait is set aside: what is left of that key is a number.
        own = {signal["signal_id"] for signal in signals}
        kept = [s for s in doc["signals"] if s["signal_id"] not in own]
        form["signals"] = [*kept, len(doc["signals"]) - len(kept)]
        return unstamped(form)
    form["signals"] = sorted(doc["signals"], key=lambda signal: signal["signal_id"])
    return unstamped(form)


def unstamped(value: Any) -> Any:
    """A JSON value without author, revision and chain, at every depth."""
    if isinstance(value, dict):
        return {name: unstamped(item) for name, item in value.items() if name not in IGNORED}
    if isinstance(value, list):
        return [unstamped(item) for item in value]
    return value


def is_plus_pair(events: tuple[dict[str, Any], ...]) -> bool:
    """Whether both events are `+` by their row and their own fields."""
    return all(CATALOGUE[event["type"]].is_plus(event) for event in events)


def both_orders(place: Place, events: tuple[dict[str, Any], ...]) -> tuple[Told, Told]:
    """What two events come to in both orders."""
    return in_order(place, events, (0, 1)), in_order(place, events, (1, 0))


# Counterexamples: for pairs that are not both `+`, where the orders differ.

WITNESSES = Path(__file__).parent / "golden" / "core" / "pairs.json"
SALT = 1


def place_of(seed: int, sequence: int) -> Place:
    """The place that a walk came to by its record of this sequence."""
    record = walk(seed).records[sequence - 1]
    return next(places([record], SALT))


def differs(place: Place, events: tuple[dict[str, Any], ...]) -> bool:
    """Whether the orders differ: in what is accepted, or in the state after both."""
    there, back = both_orders(place, events)
    return there != back


def search(seeds: Iterable[int], tries: int) -> dict[Pair, tuple[int, int]]:
    """For each pair that is not both `+` the first (seed, sequence) where its orders differ."""
    found: dict[Pair, tuple[int, int]] = {}
    tried: Counter[Pair] = Counter()
    for seed in seeds:
        for record in walk(seed).records:
            for place in places([record], SALT):
                for pair in OTHER_PAIRS:
                    if pair in found or tried[pair] >= tries:
                        continue
                    events = pair_at(place, pair)
                    if events is not None:
                        tried[pair] += 1
                        if differs(place, events):
                            found[pair] = (seed, record.sequence)
    return found


def main() -> None:
    """Search again and write the file of witnesses."""
    found = search(range(SEARCHED_SEEDS), SEARCHED_TRIES)
    shown = {" ".join(pair): list(found[pair]) for pair in OTHER_PAIRS if pair in found}
    lines = [f"  {json.dumps(name)}: {json.dumps(where)}" for name, where in shown.items()]
    WITNESSES.parent.mkdir(parents=True, exist_ok=True)
    WITNESSES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


SEARCHED_SEEDS = 80
SEARCHED_TRIES = 250

if __name__ == "__main__":
    main()
