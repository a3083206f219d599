"""What snapshots cost and save, at several numbers of runs.

For each number a home of one partition is made (SQLite WAL, synchronous=FULL, one fsync a group of
500 records; the projection and the snapshots as the engine writes them). Then, each opening in a
process of its own, whose time from the call until a run was read in the open engine, and peak
memory, are taken:

- warm: the projection is there and whole;
- snapshot: the projection is gone, the newest snapshot is restored and the tail folded;
- log: projection and snapshots are gone, the log is folded from its start.

Beside that the bytes that the first snapshot writes, and the second one after 5 % of the runs had
one more record. Exits with 1 where a limit is broken: a restore less than 10 times faster than a
replay, a second snapshot of more than 10 % of the bytes, a warm start that grows with the runs, or
any start that takes more memory than the budget, which is the same for every number of runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from throughput import START_US, entry

from foldlog import Engine
from foldlog.holder import Holder
from foldlog.home import create_home, open_log
from foldlog.snapshots.settings import SnapshotSettings
from foldlog.store.rocks import RocksStore

GROUP = 500
ASKED = SnapshotSettings(records=0, bytes=0, seconds=0)
FASTER_MIN = 10.0
SECOND_MAX = 0.10
WARM_GROWTH_MAX = 2.0
"""How much longer, and with how much more memory, the largest home may start than the smallest."""

BUDGET_MIB = 192.0
"""Memory that a start may take beside what Python and its modules take, whatever the runs: the
64 MiB of blocks and memtables that stores share, as much for RocksDB's own, a turn's records."""

TELL_SECONDS = 30.0

OPENING = """
import re, sys, time
from pathlib import Path
from foldlog import Engine
from foldlog.snapshots.settings import SnapshotSettings
import foldlog.recovery, foldlog.home, foldlog.store.rocks

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))

before = peak()
began = time.perf_counter()
engine = Engine.open(sys.argv[1], snapshots=SnapshotSettings(records=0, bytes=0, seconds=0))
assert engine.run("run_0").state() is not None
took = time.perf_counter() - began
after = peak()
folded = engine._seat._folded
engine.close()
print(took, before, after, folded)
"""


def main() -> int:
    """Measure each number of runs; print a line for each, or JSON."""
    options = _options()
    rows = []
    for runs in options.runs:
        with tempfile.TemporaryDirectory(prefix="snapshots-", dir=options.dir) as folder:
            rows.append(_measure(Path(folder), runs, options.records))
            if not options.json:
                _print(rows[-1])
    if options.json:
        print(json.dumps(rows, indent=2))
    broken = list(_broken(rows))
    for words in broken:
        print(f"LIMIT BROKEN: {words}", file=sys.stderr)
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, nargs="+", default=[1_000, 10_000], metavar="N")
    parser.add_argument("--records", type=int, default=8, help="records of each run (8)")
    parser.add_argument("--dir", default=None, help="where to write: the disk that is measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _decide(home: Path, runs: int, numbers: range) -> float:
    """Have these proposals decided in groups; the seconds that took."""
    now = iter(range(START_US, START_US + 10**14, 1_000))
    log = open_log(home, lambda: next(now))
    folder = home / "projection"
    folder.mkdir(exist_ok=True)
    holder = Holder(log, [RocksStore(folder / "0")], lambda: START_US, timekeeper=False)
    began = told = time.perf_counter()
    for at in range(numbers.start, numbers.stop, GROUP):
        group = range(at, min(at + GROUP, numbers.stop))
        log.propose(0, [entry(runs, number) for number in group])
        holder.turn_all()
        if time.perf_counter() - told >= TELL_SECONDS:
            told = time.perf_counter()
            print(f"{runs} runs: {group.stop} of {numbers.stop} decided", file=sys.stderr)
    took = time.perf_counter() - began
    holder.close()
    log.close()
    return took


def _measure(folder: Path, runs: int, records: int) -> dict[str, Any]:
    home = folder / "home"
    create_home(home, 1)
    first, whole = runs * records, runs * records + runs // 20
    took = _decide(home, runs, range(first))
    snapshots = [_snapshot(home)]
    _decide(home, runs, range(first, whole))
    snapshots.append(_snapshot(home))
    row: dict[str, Any] = {
        "runs": runs,
        "records": whole,
        "made_s": round(took, 1),
        "log_bytes": (home / "log.sqlite").stat().st_size,
        "snapshot_bytes": snapshots[0]["bytes"],
        "snapshot_s": [each["seconds"] for each in snapshots],
        "copied": [each["bytes_copied"] for each in snapshots],
        "second_share": round(snapshots[1]["bytes_copied"] / snapshots[1]["bytes"], 4),
    }
    row["warm"] = _opened(home)
    shutil.rmtree(home / "projection")
    row["snapshot"] = _opened(home)
    shutil.rmtree(home / "projection")
    shutil.rmtree(home / "snapshots")
    row["log"] = _opened(home)
    assert row["log"]["folded"] == whole
    row["faster"] = round(row["log"]["seconds"] / row["snapshot"]["seconds"], 1)
    return row


def _snapshot(home: Path) -> dict[str, Any]:
    with Engine.open(home, snapshots=ASKED) as engine:
        began = time.perf_counter()
        [taken] = engine.take_snapshots()
        seconds = round(time.perf_counter() - began, 3)
    return {"bytes": taken.bytes, "bytes_copied": taken.bytes_copied, "seconds": seconds}


def _opened(home: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", OPENING, str(home)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took, before, after, folded = done.stdout.split()
    mib = (int(after) - int(before)) / 1024
    return {"seconds": round(float(took), 3), "mib": round(mib, 1), "folded": int(folded)}


def _print(row: dict[str, Any]) -> None:
    size, share = row["snapshot_bytes"] / 1e6, row["second_share"]
    print(
        f"{row['runs']} runs, {row['records']} records, log {row['log_bytes'] / 1e6:.0f} MB: first"
        f" snapshot {size:.1f} MB in {row['snapshot_s'][0]} s, after 5 % more {share:.1%} of the"
        f" bytes in {row['snapshot_s'][1]} s"
    )
    for name in ("warm", "snapshot", "log"):
        each = row[name]
        print(
            f"  start, {name:<9} {each['seconds']:>9.3f} s, {each['mib']:>6.1f} MiB more memory,"
            f" {each['folded']} records folded"
        )
    print(f"  from the snapshot {row['faster']} times faster than from the log", flush=True)


def _broken(rows: list[dict[str, Any]]) -> Any:
    for row in rows:
        if row["faster"] < FASTER_MIN:
            yield f"{row['runs']} runs: a restore is only {row['faster']} times faster"
        if row["second_share"] > SECOND_MAX:
            yield f"{row['runs']} runs: the second snapshot wrote {row['second_share']:.1%}"
        for name in ("warm", "snapshot", "log"):
            if row[name]["mib"] > BUDGET_MIB:
                yield f"{row['runs']} runs: a start, {name}, took {row[name]['mib']} MiB"
    small, large = rows[0]["warm"], rows[-1]["warm"]
    for name, floor in (("seconds", 0.25), ("mib", 24.0)):
        if large[name] > max(floor, WARM_GROWTH_MAX * small[name]):
            yield f"a warm start grows with the runs: {small[name]} to {large[name]} {name}"


if __name__ == "__main__":
    sys.exit(main())
