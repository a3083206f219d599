"""The simulator in the tests: a few seeds, that they repeat, and that planted bugs are found.

The 500 seeds of a change are run by ``make sim`` (see README.md beside this file).

Invariants:
- Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.campaign import (
    MUST_OCCUR,
    NEEDED,
    NEEDED_IN,
    command,
    missing,
    run_one,
    shrink,
    table,
    told,
)
from tests.sim.invariants import HOLDS, Violated
from tests.sim.planted import PLANTS, Plant, find
from tests.sim.world import Config, World

SMOKE = 40
README = Path(__file__).with_name("README.md")


@pytest.mark.parametrize("block", range(4))
def test_seeds_hold(block: int) -> None:
    """Every invariant holds in these seeds, online and at the end."""
    for seed in range(block * SMOKE // 4, (block + 1) * SMOKE // 4):
        _, failure = run_one(Config(seed))
        assert failure is None, told(failure)


@pytest.mark.parametrize("seed", [470, 492, 1242, 1535, 7202])
def test_seeds_that_once_failed_hold(seed: int) -> None:
    """They found a turn that span at an outage, a wait for what was decided before (492), an
    outcome told before it could be read (1242, 1535), and a check that took another client's late
    copy of a proposal for this one's (7202); planted bugs stand for the others."""
    _, failure = run_one(Config(seed))
    assert failure is None, told(failure)


def digest(seed: int) -> str:
    """What a seed comes to."""
    world = World(Config(seed))
    world.run()
    return world.digest()


def test_the_same_seed_gives_the_same_run() -> None:
    """Step by step and byte for byte, in another process with other hashes too."""
    seeds = (1, 3, 5)
    here = [digest(seed) for seed in seeds]
    assert here == [digest(seed) for seed in seeds]
    code = f"from tests.sim.test_sim import digest; print(*map(digest, {seeds}))"
    for hashes in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hashes,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            check=True,
        )
        assert found.stdout.split() == here


def test_a_simulation_leaves_signals_as_they_were() -> None:
    """Workers that catch SIGTERM in turns and are killed leave no handler to who simulates them: a
    child that he forks later would not end by it."""
    before = signal.getsignal(signal.SIGTERM)
    run_one(Config(9))
    assert signal.getsignal(signal.SIGTERM) is before


def test_leaving_a_fault_out_changes_none_before_it() -> None:
    """A run without its later faults is the same up to them: that is what shrinking relies on."""
    config = Config(3, traced=True)
    whole = World(config)
    whole.run()
    assert len(whole.faults.used) > 2
    first = frozenset(whole.faults.used[:2])
    part = World(replace(config, keep=first))
    part.run()
    assert frozenset(part.faults.used) == first
    until = next(
        n for n, line in enumerate(whole.lines) if f"fault {whole.faults.used[2]}:" in line
    )
    assert part.lines[:until] == whole.lines[:until]


@pytest.mark.parametrize("planted", PLANTS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Plant) -> None:
    """The bug makes a seed fail, within the seeds it is given and by the invariant it names."""
    found = find(planted)
    assert found is not None, f"{planted.seeds} seeds do not find it"
    _, failure = found
    assert failure.name in planted.found_by, told(failure)
    assert run_one(failure.config)[1] is None, "the seed fails without the bug"


def test_a_failure_is_shrunk_and_told() -> None:
    """It is told with seed, step and invariant, a trace, and the command that repeats it."""
    planted = next(planted for planted in PLANTS if planted.name == "fsync_missing")
    found = find(planted)
    assert found is not None
    with planted.planting():
        small = shrink(found[1], runs=30)
        again = run_one(replace(small.config, traced=False))[1]
    assert again is not None
    assert (again.name, again.step, again.text) == (small.name, small.step, small.text)
    assert len(small.used) <= len(found[1].used)
    text = told(small)
    assert f"seed {found[0]} fails at step {small.step}: {small.name}" in text
    assert "fault " in text
    assert command(small.config) in text


def test_the_table_of_planted_bugs_is_told() -> None:
    """README lists every planted bug with the invariants that may find it, and every invariant."""
    text = README.read_text(encoding="utf-8")
    for planted in PLANTS:
        names = ", ".join(f"`{name}`" for name in planted.found_by)
        assert f"| `{planted.name}` | {planted.bug} | {names} |" in text
    for name, what in HOLDS.items():
        assert f"| `{name}` | {what} |" in text


def test_a_run_that_met_too_little_fails() -> None:
    """What is named must occur 50 times in 500 seeds; in fewer, half its share."""
    counts = Counter(dict.fromkeys(MUST_OCCUR, NEEDED))
    assert missing(counts, NEEDED_IN) == {}
    counts["void"] = NEEDED - 1
    assert missing(counts, NEEDED_IN) == {"void": NEEDED - 1}
    assert missing(counts, 40) == {}
    assert "void 49" in table(counts)


def test_an_invariant_has_a_name() -> None:
    """Nothing fails by a name that is not in the list."""
    with pytest.raises(AssertionError):
        Violated("something", "went wrong")
