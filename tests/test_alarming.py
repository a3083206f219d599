"""How a projector counts alarms: a few runs at a time, published whole.

Invariants:
- Time is given, and the runs are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from foldlog import testing
from foldlog.runtime import SECOND
from foldlog.store.base import Reader, StoreError
from foldlog_projector.alarming import ROUND_US, RUNS_AT_ONCE, STEP_US, AlarmCount, counted_at
from tests.client_runs import act, effect, running


def test_alarms_are_counted_a_few_runs_at_a_time(tmp_path: Path) -> None:
    """Each step looks at so many runs; what is published is of all of them, and is counted again
    some time later."""
    file, now = tmp_path / "worker-1.alarms", [0]
    with testing.Engine() as engine:
        run = running(engine)
        for number in range(2 * RUNS_AT_ONCE):
            engine.start(f"other_{number}", goal="so")
        counting = AlarmCount(file, lambda: now[0], engine.clock)
        with engine._reading_partition(0) as view:
            counting.step(list)
            for step in range(1, 4):
                assert not file.exists(), step
                now[0] = step * STEP_US
                counting.step(lambda: [view])
                counting.step(lambda: [view])  # too soon: nothing
        assert set(json.loads(file.read_bytes()).values()) == {0}
        act(run, effect("e1"))
        now[0] += ROUND_US - 1
        with engine._reading_partition(0) as view:
            for _ in range(4):
                counting.step(lambda: [view])
                now[0] += STEP_US
        assert json.loads(file.read_bytes())["EFFECT_IN_DOUBT"] == 1
    assert counted_at(tmp_path) is None  # nobody is at work there


@pytest.mark.parametrize("part", ["get", "scan"])
def test_a_store_that_cannot_be_read_ends_one_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """What a store raises in the midst of a count is told once, ends nothing else, and is counted
    again once the store can be read."""
    now, fails = [0], [True]

    class Failing:
        """A reader of a disk with a fault."""

        def __init__(self, reader: Reader) -> None:
            self.reader = reader

        def get(self, key: bytes) -> bytes | None:
            """What runs have does not come, where it is this part that fails."""
            if fails[0] and part == "get" and key.startswith(b"e"):
                raise StoreError("store/0", "input/output error", "see to the disk")
            return self.reader.get(key)

        def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
            """No list of runs comes, where it is this part that fails."""
            if fails[0] and part == "scan":
                raise StoreError("store/0", "input/output error", "see to the disk")
            return self.reader.scan(prefix, reverse)

    with testing.Engine() as engine:
        running(engine)
        file = tmp_path / "worker-1.alarms"
        counting = AlarmCount(file, lambda: now[0], engine.clock)
        with engine._reading_partition(0) as view:
            bad = replace(view, reader=Failing(view.reader))
            for _ in range(3):
                counting.step(lambda: [bad])
                now[0] += SECOND
            assert not file.exists()
            assert [row.getMessage() for row in caplog.records if "counted" in row.msg] == [
                "alarms are not counted: store/0: input/output error; see to the disk"
            ]
            fails[0] = False
            counting.step(lambda: [bad])
    assert file.exists()
