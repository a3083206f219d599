"""Ten logs of an independent model of the contract: every decision and every document must agree.

Invariants:
- The real client, turn, codec and fold run; only log, store and clock are in memory.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from foldlog.testing import Engine

DECISIONS = Path(__file__).parent / "conformance" / "decisions.jsonl"
TOLD = ("outcome", "code", "revision", "rebased", "duplicate", "recorded", "conflict_id")
NOT_COMPARED = ("schema_version", "rules_version")


def lines() -> dict[int, list[tuple[int, dict[str, Any]]]]:
    """The lines of each log with their numbers in the file."""
    logs = defaultdict(list)
    with DECISIONS.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            line = json.loads(text)
            logs[line["log"]].append((number, line))
    return dict(logs)


LOGS = lines()


@pytest.mark.parametrize("log", LOGS)
def test_every_decision_and_document_agrees(log: int) -> None:
    """Proposal by proposal the outcome is the model's, and so is every document at the end."""
    with Engine(timekeeper=False) as engine:
        for number, line in LOGS[log]:
            run = engine.run(line["run_id"])
            if "document" in line:
                assert shown(run.state(), line["document"]) == line["document"], number
                continue
            engine.clock.set(line["log_time"])
            outcome = run.propose_json(line["proposal"]).to_dict()
            assert told(outcome, line["expect"]) == line["expect"], (number, line["proposal"])


def told(outcome: dict[str, Any], expect: dict[str, Any]) -> dict[str, Any]:
    """What the file says of an outcome: no empty keys, and places only where the file has them."""
    found = {name: outcome.get(name) for name in TOLD if outcome.get(name) is not None}
    if outcome.get("conflicts"):
        found["conflicts"] = outcome["conflicts"]
    places = {name: outcome.get(name) for name in ("event_index", "field") if name in expect}
    return found | places


def shown(state: Any, expect: dict[str, Any]) -> dict[str, Any]:
    """The keys of a document that the file has, without what depends on the build."""
    document = state.to_dict()
    found = {name: document[name] for name in expect}
    if found["checkpoint"] is not None:
        checkpoint = found["checkpoint"].items()
        found["checkpoint"] = {k: v for k, v in checkpoint if k not in NOT_COMPARED}
    return found
