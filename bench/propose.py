"""How long an agent waits for an outcome: in-process, beside a daemon, with 1 and with 16 writers.

Figures of different machines say little, so each run measures its own floor in the same minute and
on the same disk: one bare durable append (a write and an fdatasync) of a record's size. The ratio
is to that. `--json` for machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.client import Run

RECORD_BYTES = 700
"""About what a record of one fact takes, its proposal included."""

DAEMON = "import sys, pathlib; from foldlog_projector.daemon import *; log_to(); "
DAEMON += "run_daemon(pathlib.Path(sys.argv[1]))"


def main() -> None:
    """Measure and print a table, or JSON; as `--writer`, be one of the writers."""
    options = _options()
    if options.writer is not None:
        _write(Path(options.dir), options.writer, options.calls)
        return
    with tempfile.TemporaryDirectory(prefix="propose-", dir=options.dir) as folder:
        rows = list(_measure(Path(folder), options))
    floor = rows[0]["p50_us"]
    rows = [{**row, "ratio": round(row["p50_us"] / floor, 1)} for row in rows]
    print(json.dumps({"rows": rows}, indent=2) if options.json else _table(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--calls", type=int, default=400, metavar="N", help="of one writer (400)")
    parser.add_argument("--writers", type=int, default=16, metavar="N", help="the many (16)")
    parser.add_argument("--dir", default=None, help="where to write: the disk that is measured")
    parser.add_argument("--writer", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _measure(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    calls, many = options.calls, options.writers
    each = max(20, calls // 8)
    with open(folder / "bare", "ab", buffering=0) as file:

        def append() -> None:
            file.write(bytes(RECORD_BYTES))
            os.fdatasync(file.fileno())

        yield _row("bare durable append", 1, _timed(append, calls))
    with Engine.open(folder / "held", create=True, author="agent:bench") as engine:
        run = engine.start("run_0", goal="measure")
        yield _row("propose, in the holder's process", 1, _timed(lambda: _propose(run), calls))
    for count, number in ((1, calls), (many, each)):
        yield _row("propose, no daemon", count, _by_writers(folder, False, count, number))
        yield _row("propose, beside a daemon", count, _by_writers(folder, True, count, number))


def _propose(run: Run) -> None:
    fact = {"id": str(uuid.uuid4()), "statement": "the fixture pins HS256", "evidence": "test://1"}
    outcome = run.propose({"type": "FactConfirmed", "fact": fact}, timeout=60)
    assert outcome.outcome == "accepted", outcome


def _timed(call: Callable[[], object], calls: int) -> list[float]:
    for _ in range(5):
        call()
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return took


def _by_writers(folder: Path, beside: bool, count: int, calls: int) -> list[float]:
    """What each of so many processes waited, all of them at once, on a home of its own."""
    home = folder / f"home-{beside}-{count}"
    with Engine.open(home, create=True, author="agent:bench") as engine:
        for number in range(count):
            engine.start(f"run_{number}", goal="measure")
    with _daemon(home) if beside else contextlib.nullcontext():
        options = ["--dir", str(home), "--calls", str(calls), "--writer"]
        made = [
            subprocess.Popen(
                [sys.executable, __file__, *options, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number in range(count)
        ]
        for process in made:
            assert process.stdout is not None
            process.stdout.readline()
        for process in made:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        return [took for process in made for took in json.loads(process.communicate()[0])]


@contextlib.contextmanager
def _daemon(home: Path) -> Iterator[None]:
    command = [sys.executable, "-c", DAEMON, str(home)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"took_over" not in process.stderr.readline():
            assert process.poll() is None, "the daemon ended"
        yield
        process.send_signal(signal.SIGTERM)
        process.stderr.read()


def _write(home: Path, number: int, calls: int) -> None:
    """Be a writer: open, wait for the word, propose to a run of its own, print what each took."""
    with Engine.open(home, author=f"agent:writer-{number}") as engine:
        print("ready", flush=True)
        sys.stdin.readline()
        took = _timed(lambda: _propose(engine.run(f"run_{number}")), calls)
    print(json.dumps(took))


def _row(name: str, writers: int, took: list[float]) -> dict[str, Any]:
    took.sort()
    return {
        "name": name,
        "writers": writers,
        "calls": len(took),
        "p50_us": round(statistics.median(took) * 1e6),
        "p99_us": round(took[int(len(took) * 0.99)] * 1e6),
        "max_us": round(took[-1] * 1e6),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'':<34}writers  calls   p50 us   p99 us   max us  p50 / bare"]
    for row in rows:
        figures = "".join(f"{row[name]:>9}" for name in ("p50_us", "p99_us", "max_us"))
        head = f"{row['name']:<34}{row['writers']:>7}{row['calls']:>7}"
        lines.append(f"{head}{figures}{row['ratio']:>12}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
