"""How a projector counts alarms: a few runs at a time, published whole.

Invariants:
- Time is given, and the runs are real.
"""

from __future__ import annotations

import json
from pathlib import Path

from foldlog import testing
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
