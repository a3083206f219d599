"""A short soak in the tests; the long one is ``make soak``."""

from __future__ import annotations

from pathlib import Path

from foldlog import Engine
from foldlog.home import LOG_FILE
from tests.soak.crowd import Soak
from tests.soak.standstill import Standstill


def test_a_short_soak(tmp_path: Path) -> None:
    """Workers and daemon killed and stopped for seconds: every run ends, nothing is done twice."""
    soak = Soak(tmp_path, seconds=8, workers=4, runs=12, seed=1, pause=0.7, lease=3)
    soak.run()
    assert soak.counts["done outside"] >= 2 * 12
    assert soak.counts["killed workers"] > 0
    assert soak.counts["stopped workers"] > 0


def test_a_run_that_stands_still_is_found(tmp_path: Path) -> None:
    """A run is stuck where nothing happens to it but leases while runs are claimed; no other is."""
    claim = {"type": "LeaseAcquired", "worker": "w", "ttl_seconds": 60}
    phase = {"type": "PhaseChanged", "phase": "on"}
    with Engine.open(tmp_path, create=True, author="agent:w") as engine:
        watched = Standstill(tmp_path / LOG_FILE, claims=5, seconds=0)
        runs = [engine.start(name, goal="so") for name in ("left", "held", "moved")]
        for number in range(5):
            watched.read()
            assert not any(map(watched.is_stuck, ("left", "held", "moved"))), number
            assert runs[1 + number % 2].propose([claim]).accepted
            moved = runs[2].propose([phase], expected_revision=1 + number, author="user:ada")
            assert moved.accepted
        watched.read()
    assert [watched.is_stuck(name) for name in ("left", "held", "moved")] == [True, True, False]
