"""Proposals through the real rules, in memory: no log, no bytes, a dictionary for a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foldlog.core.decide import decide
from foldlog.core.document import document
from foldlog.core.proposals import parse_proposal
from foldlog.core.state import Header, RunState, Slot

START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


class Slots(dict[tuple[str, str], Slot]):
    """Where the state's slots are."""

    def get(self, kind: str, id: str) -> Slot | None:  # type: ignore[override]
        """The slot at that address, or None."""
        return super().get((kind, id))

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """Every slot of a kind with its id, ordered by id."""
        return iter(sorted((id, slot) for (k, id), slot in self.items() if k == kind))


def core_document(run_id: str, proposals: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of a run of which every proposal is accepted; AssertionError if one is not."""
    slots = Slots()
    state = RunState(Header(run_id), slots)
    for place, value in enumerate(proposals):
        decision = decide(state, parse_proposal(run_id, value), START_US + place)
        assert decision.outcome == "accepted", (place, decision)
        assert decision.draft is not None
        for address, slot in decision.draft.changes.items():
            if slot is None:
                slots.pop(address, None)
            else:
                slots[address] = slot
        state = RunState(decision.draft.header, slots, decision.draft.quarantine)
    return document(state)
