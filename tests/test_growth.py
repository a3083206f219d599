"""A step writes the same in a large run as in a small one. `bench/growth.py` measures the time too.

Invariants:
- Bytes are counted where they are handed over, so the figures are the same on every machine.
"""

from __future__ import annotations

import pytest
from bench import growth

SMALL, LARGE, STEPS = 100, 2_000, 12


@pytest.mark.parametrize("kind", growth.KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_fault_1_bytes_of_a_step_do_not_grow_with_the_state(kind: growth.Kind) -> None:
    """With 2,000 facts, tasks, effects, tool calls, artifacts or batch ids, a step writes what it
    writes with 100: to the log, to the store, in sum at most 1.2 times as much."""
    places = [growth.Place(None) for _ in (SMALL, LARGE)]
    for place, size in zip(places, (SMALL, LARGE), strict=True):
        place.fill(kind, size)
    for row in growth.measure(kind, places[0], places[1], STEPS):
        assert row.bytes_small > 500, row
        assert row.bytes_ratio <= growth.RATIO_MAX, row


def test_a_step_writes_a_few_keys_whatever_the_size() -> None:
    """Two facts touch two slots, and beside them header, heads, batch id and place of record."""
    place = growth.Place(None)
    place.fill(growth.KINDS[0], 1_000)
    before = dict(place.store.scan(b""))
    place.step(growth.two(growth.fact)(growth.FIRST_STEP))
    after = dict(place.store.scan(b""))
    changed = {key for key in after if after[key] != before.get(key)}
    assert len(changed) == 7
    assert before.keys() - after.keys() == set()
