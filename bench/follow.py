"""What it costs to read a store beside the process that has it open.

The primary is a process of its own, which writes batches with a pause between them, so that each
refresh has something to read. The same reads on the store itself stand beside the follower's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from foldlog.store.follower import RocksFollower
from foldlog.store.rocks import RocksStore, SharedCache

WRITER = """
import os, sys, time
from foldlog.store.rocks import RocksStore
store = RocksStore(sys.argv[1])
number = 0
while True:
    number += 1
    store.write({b"new/%08d/%d" % (number, n): os.urandom(200) for n in range(5)})
    if number == 1:
        print("ready", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--calls", type=int, default=1_000, metavar="N", help="calls of each kind")
    parser.add_argument("--keys", type=int, default=200_000, help="keys in the store (200000)")
    parser.add_argument("--pause", type=float, default=0.001, help="between the primary's batches")
    parser.add_argument("--dir", default=None, help="where to write: the disk that is measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="follow-", dir=options.dir) as folder:
        rows = _measure(Path(folder) / "store", options)
    if options.json:
        print(json.dumps({"calls": options.calls, "keys": options.keys, "rows": rows}, indent=2))
    else:
        for name, (p50, p99) in rows.items():
            print(f"{name:24} p50 {p50:>8} us   p99 {p99:>8} us")


def _measure(path: Path, options: argparse.Namespace) -> dict[str, tuple[int, int]]:
    rows = {}
    keys = [b"old/%08d" % n for n in range(options.keys)]
    with closing(RocksStore(path)) as store:
        for at in range(0, len(keys), 1_000):
            store.write({key: os.urandom(200) for key in keys[at : at + 1_000]})
        chosen = keys[:: max(1, len(keys) // options.calls)]
        rows["get, on the store"] = _timed([lambda key=key: store.get(key) for key in chosen])
    command = [sys.executable, "-c", WRITER, str(path), str(options.pause)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as primary:
        try:
            assert primary.stdout is not None
            primary.stdout.readline()
            rows |= _follow(path, chosen, options.calls)
        finally:
            primary.kill()
    return rows


def _follow(path: Path, keys: list[bytes], calls: int) -> dict[str, tuple[int, int]]:
    cache = SharedCache()

    def open_and_close() -> None:
        RocksFollower(path, cache).close()

    with closing(RocksFollower(path, cache)) as follower:

        def refresh() -> None:
            follower.refresh()

        return {
            "open + close": _timed([open_and_close] * max(10, calls // 20)),
            "refresh": _timed([refresh] * calls),
            "get, following": _timed([lambda key=key: follower.get(key) for key in keys]),
            "scan of 10, following": _timed(
                [lambda key=key: list(follower.scan(key[:-1])) for key in keys]
            ),
        }


def _timed(calls: list[Callable[[], object]]) -> tuple[int, int]:
    took = []
    for call in calls:
        started = time.perf_counter()
        call()
        took.append(time.perf_counter() - started)
    took.sort()
    return round(took[len(took) // 2] * 1e6), round(took[int(len(took) * 0.99)] * 1e6)


if __name__ == "__main__":
    main()
