"""How many proposals a second one process decides, and where the time goes.

Groups of proposals wait in the inbox; a turn decides a group, appends its records, reads them back
and writes the projection. Proposals are of two events, as an agent makes them. What is timed is
turning alone: handing in is the work of others. `--profile` prints where a turn's time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import json
import pstats
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foldlog.core.proposals import parse_proposal
from foldlog.holder import Holder
from foldlog.log import sqlite
from foldlog.log.base import Log
from foldlog.log.memory import MemoryLog
from foldlog.log.sqlite import SqliteLog
from foldlog.store.rocks import RocksStore
from foldlog.wire.envelope import encode_proposal

FSYNC = {
    "memory": "log in memory, no fsync",
    "sqlite": "SQLite WAL synchronous=FULL, one fsync a group",
}
START_US = 1_767_225_600_000_000
REFERENCE = "artifact://test-output/47"


def main() -> None:
    """Measure and print a line for each log, or JSON."""
    options = _options()
    logs = ["memory", "sqlite"] if options.log == "both" else [options.log]
    with tempfile.TemporaryDirectory(prefix="throughput-", dir=options.dir) as folder:
        rows = [_measure(log, Path(folder) / log, options) for log in logs]
    if options.json:
        print(
            json.dumps({"group": options.group, "groups": options.groups, "rows": rows}, indent=2)
        )
        return
    count, size, runs = options.groups, options.group, options.runs
    print(f"{count} groups of {size} proposals of two events over {runs} runs")
    for row in rows:
        figures = f"{row['per_s']:>7} records/s, a record {row['us']} us (median of groups)"
        print(f"{row['log']:<7} {figures}; {FSYNC[row['log']]}")
        if row.get("profile"):
            print(row["profile"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--group", type=int, default=100, help="proposals that wait (100)")
    parser.add_argument("--groups", type=int, default=60, metavar="N", help="groups to decide")
    parser.add_argument("--runs", type=int, default=4, help="runs they belong to")
    parser.add_argument("--log", choices=["memory", "sqlite", "both"], default="both")
    parser.add_argument("--dir", default=None, help="where to write: the disk that is measured")
    parser.add_argument("--profile", action="store_true", help="print the 25 dearest functions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _entry(
    run_id: str, number: int, events: list[dict[str, Any]], revision: int
) -> tuple[bytes, bytes]:
    value = {
        "batch_id": str(uuid.UUID(int=number)),
        "author": {"kind": "agent", "id": "worker-1"},
        "expected_revision": revision,
        "events": events,
    }
    return run_id.encode(), encode_proposal(parse_proposal(run_id, value))


def entries(runs: int, count: int) -> list[tuple[bytes, bytes]]:
    """So many proposals: each run starts, begins to work, and then works on tasks and facts."""
    return [entry(runs, number) for number in range(count)]


def entry(runs: int, number: int) -> tuple[bytes, bytes]:
    """One of these proposals."""
    run_id, step = f"run_{number % runs}", number // runs
    return _entry(run_id, number + 1, list(_events(step)), step)


def _events(step: int) -> list[dict[str, Any]]:
    if step == 0:
        return [{"type": "RunStarted", "goal": {"statement": "mend the lamp"}}]
    if step == 1:
        return [{"type": "RunTransitioned", "to": to} for to in ("planning", "running")]
    task, fact = f"task_{step // 3}", f"fact_{step}"
    if step % 3 == 2:
        title = "find where it is configured"
        added = {"type": "TaskAdded", "task": {"id": f"task_{step // 3 + 1}", "title": title}}
        return [added, {"type": "BudgetSpent", "tokens": 900, "reason": "model"}]
    inner = {"id": fact, "statement": "the fixture pins HS256", "evidence": REFERENCE}
    confirmed = {"type": "FactConfirmed", "fact": inner}
    if step % 3 == 0:
        return [{"type": "TaskStarted", "task_id": task}, confirmed]
    return [confirmed, {"type": "TaskCompleted", "task_id": task, "evidence": REFERENCE}]


def _open(kind: str, folder: Path, clock: Callable[[], int]) -> Log:
    folder.mkdir()
    if kind == "memory":
        return MemoryLog(1, clock)
    sqlite.create(folder / "log.sqlite", 1)
    return SqliteLog(folder / "log.sqlite", clock)


def _measure(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    now = iter(range(START_US, START_US + 10**12, 1_000))
    log = _open(kind, folder, lambda: next(now))
    holder = Holder(log, [RocksStore(folder / "projection")], lambda: START_US, timekeeper=False)
    waiting = entries(options.runs, options.group * options.groups)
    profile = cProfile.Profile() if options.profile else None
    took = []
    gc.collect()
    for at in range(0, len(waiting), options.group):
        log.propose(0, waiting[at : at + options.group])
        if profile:
            profile.enable()
        started = time.perf_counter()
        holder.turn_all()
        took.append(time.perf_counter() - started)
        if profile:
            profile.disable()
    partition = holder.held[0].partition
    assert partition.meta.sequence == len(waiting)
    last = log.events(0, partition.meta.last_offset, 1, 1)
    assert last, "the last record is there"
    holder.close()
    us = statistics.median(took) / options.group * 1e6
    row = {"log": kind, "records": len(waiting), "per_s": round(len(waiting) / sum(took))}
    return {**row, "us": round(us, 1), "profile": profile and _shown(profile)}


def _shown(profile: cProfile.Profile) -> str:
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(25)
    return text.getvalue()


if __name__ == "__main__":
    main()
