"""Many seeds: run them in several processes, sum what they met, and say what was too rare.

Invariants:
- A campaign fails if one seed fails, or if one of the named things occurred too seldom.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tests.sim.invariants import Violated
from tests.sim.world import Config, World

NEEDED = 50
"""How often each named thing must occur in ``NEEDED_IN`` seeds or more; in fewer, its share."""

NEEDED_IN = 500

CODES = tuple(
    """
    BATCH_ID_REUSED MALFORMED RUN_NOT_FOUND RUN_EXISTS RUN_FINISHED RUN_QUARANTINED
    UNSUPPORTED_RULES NOT_AUTHORIZED FENCED LEASE_HELD SUPERSEDED EXPECTATION_REQUIRED
    FUTURE_REVISION CONFLICT PERMISSION_REVOKED BUDGET_EXHAUSTED DEPENDENCY_UNMET
    EVIDENCE_REQUIRED STALE_OBSERVATION LIMIT_EXCEEDED INVALID_TRANSITION MIGRATION_REQUIRED
    """.split()
)
"""Every code of a refusal."""

NAMED = (*CODES, "accepted", "arbitration", "duplicate", "quarantined", "rebased", "void")
FAULTS = (
    "kill", "crash", "stall", "clock", "refused", "in_doubt", "fsync", "store", "rot", "disk"
)  # fmt: skip
FAULTS_NAMED = tuple(f"fault {kind}" for kind in FAULTS)
KEPT = ("snapshot taken", "snapshot pruned", "snapshot proved", "snapshot quarantined",
        "snapshot rotted", "store rotted", "operator replays",
        "operator rebuilds", "log trimmed")  # fmt: skip
MUST_OCCUR = (
    *NAMED,
    *FAULTS_NAMED,
    "torn",
    "kept",
    "head moved",
    "clock back",
    "batches lost",
    *KEPT,
)


@dataclass
class Failure:
    """A seed that failed: the invariant, and what was found."""

    config: Config
    step: int
    name: str
    text: str
    lines: list[str] = field(default_factory=list)
    used: list[int] = field(default_factory=list)


@dataclass
class Result:
    """What one seed gave."""

    seed: int
    seconds: float
    counts: Counter[str]
    failure: Failure | None


def run_one(config: Config) -> tuple[Counter[str], Failure | None]:
    """One simulation; its counts, and how it failed if it did."""
    world = World(config)
    try:
        with _heard():
            return world.run(), None
    except Violated as violated:
        step, used = world.scheduler.steps, list(world.faults.used)
        failure = Failure(config, step, violated.name, str(violated), world.lines, used)
        return world.counts, failure


class _Loud(logging.Handler):
    """What the engine logs as an error is one: a turn that failed, a partition that halted."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Fail the simulation at once."""
        name = "the_log_folds" if getattr(record, "event", "") == "halted" else "errors_are_ours"
        error = record.exc_info[1] if record.exc_info else None
        raise Violated(name, f"logged: {record.getMessage()} {error!r}") from error


@contextlib.contextmanager
def _heard() -> Iterator[None]:
    logger, loud = logging.getLogger("foldlog"), _Loud()
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.ERROR)
    logger.addHandler(loud)
    try:
        yield
    finally:
        logger.removeHandler(loud)
        logger.propagate = True
        logger.setLevel(level)


def _run_seed(seed: int) -> Result:
    began = time.process_time()
    counts, failure = run_one(Config(seed))
    return Result(seed, time.process_time() - began, counts, failure)


def run_many(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """These seeds, in so many processes, as they come to their end."""
    if jobs == 1:
        yield from map(_run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_seed, seeds, chunksize=4)


def missing(counts: Counter[str], seeds: int) -> dict[str, int]:
    """The named things that occurred too seldom in so many seeds, with their numbers."""
    needed = NEEDED if seeds >= NEEDED_IN else NEEDED * seeds // (2 * NEEDED_IN)
    return {name: counts[name] for name in MUST_OCCUR if counts[name] < needed}


def table(counts: Counter[str]) -> str:
    """What occurred how often, for people."""
    cells = [f"{name} {counts[name]}" for name in (*MUST_OCCUR, *_others(counts))]
    width = max(map(len, cells)) + 2
    rows = [cells[at : at + 4] for at in range(0, len(cells), 4)]
    return "\n".join("  " + "".join(cell.ljust(width) for cell in row).rstrip() for row in rows)


def _others(counts: Counter[str]) -> list[str]:
    return sorted(set(counts) - set(MUST_OCCUR))


# A failure, made smaller


def shrink(failure: Failure, runs: int = 60) -> Failure:
    """The smallest config found within so many runs that fails by the same invariant."""
    left = [runs]

    def fails(config: Config) -> Failure | None:
        if left[0] <= 0:
            return None
        left[0] -= 1
        _, found = run_one(config)
        return found if found is not None and found.name == failure.name else None

    best = failure
    for proposals in (2, 4, 8, 16, 24):
        if proposals < best.config.proposals:
            if (found := fails(replace(best.config, proposals=proposals))) is not None:
                best = found
                break
    for processes in (1, 2):
        if (found := fails(replace(best.config, processes=processes))) is not None:
            best = found
            break
    best = _shrink_faults(best, fails)
    return fails_traced(best) or best


def _shrink_faults(best: Failure, fails: Callable[[Config], Failure | None]) -> Failure:
    """Leave out faults, all of them, then halves, then smaller parts."""
    size = max(1, len(best.used))
    while size >= 1:
        used, at = best.used, 0
        while at < len(used):
            rest = [*used[:at], *used[at + size :]]
            found = fails(replace(best.config, keep=frozenset(rest)))
            if found is not None:
                best, used = found, rest
            else:
                at += size
        best.used = used
        if size == 1:
            return best
        size = min(size // 2, max(1, len(used)))
    return best


def fails_traced(failure: Failure) -> Failure | None:
    """The same failure again, with its trace."""
    return run_one(replace(failure.config, traced=True))[1]


def command(config: Config) -> str:
    """The command that repeats a run."""
    parts = [f"python -m tests.sim --seed {config.seed}"]
    default = Config(config.seed)
    if config.shape is not None:
        parts.append(f"--shape {config.shape}")
    if config.snapshots is not None:
        parts.append("--snapshots" if config.snapshots else "--no-snapshots")
    if config.proposals != default.proposals:
        parts.append(f"--proposals {config.proposals}")
    if config.processes is not None:
        parts.append(f"--processes {config.processes}")
    if config.keep is not None:
        parts.append("--keep " + (",".join(map(str, sorted(config.keep))) or "none"))
    return " ".join(parts)


def told(failure: Failure, lines: int = 60) -> str:
    """A failure as it is printed: seed, step, invariant, the trace's end, how to repeat it."""
    head = f"seed {failure.config.seed} fails at step {failure.step}: {failure.text}"
    trace = "\n".join(f"    {line}" for line in failure.lines[-lines:])
    return f"{head}\n{trace}\n  repeat it: {command(failure.config)} --trace"
