"""The simulator by hand: ``python -m tests.sim --seed 7 --trace``, ``--seeds 500 --jobs 2``.

Invariants:
- Ends with 0 if every seed held and every named thing occurred often enough, else with 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter

from tests.sim.campaign import Failure, missing, run_many, run_one, shrink, table, told
from tests.sim.world import SHAPES, Config

FAILURES_SHOWN = 3


def say(text: str) -> None:
    """A line for whoever watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def commit() -> str:
    """The commit these files are at, with a mark if they have been changed since."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _numbers(text: str) -> frozenset[int]:
    return frozenset() if text == "none" else frozenset(map(int, text.split(",")))


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--shape", choices=sorted(set(SHAPES)))
    parser.add_argument(
        "--snapshots", action=argparse.BooleanOptionalAction, help="or as the seed has it"
    )
    parser.add_argument("--proposals", type=int, default=Config(0).proposals)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--keep", type=_numbers, help="faults to keep: 3,7 or none")
    parser.add_argument("--seeds", type=int, default=500, help="so many seeds")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--jobs", type=int, default=2, help="in so many processes")
    return parser.parse_args()


def one(given: argparse.Namespace) -> int:
    """One seed, told in full."""
    config = Config(
        given.seed,
        shape=given.shape,
        proposals=given.proposals,
        processes=given.processes,
        keep=given.keep,
        snapshots=given.snapshots,
        traced=given.trace,
    )
    counts, failure = run_one(config)
    if failure is not None:
        say(told(failure, 400 if given.trace else 0))
        return 1
    say(table(counts))
    return 0


def many(given: argparse.Namespace) -> int:
    """Many seeds, with a table of what occurred."""
    began, slowest = time.monotonic(), 0.0
    counts, failures = Counter[str](), list[Failure]()
    every = max(1, given.seeds // 10)
    results = run_many(range(given.first, given.first + given.seeds), given.jobs)
    for number, result in enumerate(results, 1):
        counts.update(result.counts)
        slowest = max(slowest, result.seconds)
        if result.failure is not None:
            failures.append(result.failure)
            say(f"seed {result.seed} fails: {result.failure.text.splitlines()[0][:200]}")
        if number % every == 0:
            say(f"{number} of {given.seeds} seeds, {time.monotonic() - began:.0f} s")
    for failure in failures[:FAILURES_SHOWN]:
        say(told(shrink(failure)))
    say(table(counts))
    rare = missing(counts, given.seeds)
    if rare:
        say(f"too seldom: {', '.join(f'{name} {count}' for name, count in rare.items())}")
    seconds = time.monotonic() - began
    last = given.first + given.seeds - 1
    say(
        f"sim: {len(failures)} of {given.seeds} seeds failed ({given.first} to {last}), "
        f"{seconds:.0f} s in {given.jobs} processes, "
        f"slowest seed {slowest:.2f} s of processor time, commit {commit()}"
    )
    return 1 if failures or rare else 0


def main() -> int:
    """Run what the command line asks for."""
    given = arguments()
    return one(given) if given.seed is not None else many(given)


if __name__ == "__main__":
    sys.exit(main())
