"""How fast records become durable in the embedded log, one at a time and in groups.

Figures of different machines say little, so each run measures its own floor, a bare write with
fsync into a file beside the log, and gives ratios to it and to the single append. Every figure is
of durable records: the log runs as it always does, in WAL mode with synchronous=FULL, and each
call of `append` or `propose` returns after an fsync.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from foldlog.log import sqlite
from foldlog.log.base import ZERO_HEAD, Entry
from foldlog.log.sqlite import SqliteLog


def main() -> None:
    """Measure and print a table, or JSON."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="durable-append-", dir=options.dir) as folder:
        rows = list(_measure(Path(folder), options))
        mode = _mode(Path(folder) / "log.sqlite")
    report = {
        "fsync_mode": mode,
        "calls_per_row": options.calls,
        "value_bytes": options.bytes,
        "sqlite": sqlite3.sqlite_version,
        "rows": _with_ratios(rows),
    }
    print(json.dumps(report, indent=2) if options.json else _table(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--calls", type=int, default=1_000, metavar="N", help="calls of each kind")
    parser.add_argument("--bytes", type=int, default=600, help="size of a record (600)")
    parser.add_argument("--groups", type=int, nargs="*", default=[10, 100, 500], metavar="SIZE")
    parser.add_argument("--dir", default=None, help="where to write: the disk that is measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _measure(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    value = os.urandom(options.bytes)
    yield _timed("bare write + fsync", 1, options.calls, _bare(folder / "bare", value))
    path = folder / "log.sqlite"
    sqlite.create(path, 1)
    with closing(SqliteLog(path, lambda: time.time_ns() // 1_000)) as log:
        yield _timed("propose", 1, options.calls, lambda: log.propose(0, [(b"run_128", value)]))
        for size in (1, *options.groups):
            # Fewer calls of the large groups, which write that much more.
            calls = max(20, options.calls // max(1, size // 10))
            yield _timed("append", size, calls, _append(log, value, size))
        # One proposal and its record, in two transactions and in one.
        yield _timed("propose + append", 1, options.calls, _decided(log, value))
        yield _timed("exchange", 1, options.calls, _exchanged(log, value))


def _bare(path: Path, value: bytes) -> Callable[[], object]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def call() -> None:
        os.write(descriptor, value)
        os.fsync(descriptor)

    return call


def _head(log: SqliteLog) -> bytes:
    last = log.events(0, max(0, log.end(0) - 1), 1, 1)
    return last[0].head if last else ZERO_HEAD


def _decided(log: SqliteLog, value: bytes) -> Callable[[], object]:
    append = _append(log, value, 1)

    def call() -> None:
        log.propose(0, [(b"run_128", value)])
        append()

    return call


def _exchanged(log: SqliteLog, value: bytes) -> Callable[[], object]:
    head, position = _head(log), log.proposals_end(0)

    def call() -> None:
        nonlocal head, position
        record = Entry(b"run_128", value, position, position, os.urandom(32))
        log.exchange(0, position, head, [(b"run_128", value)], lambda _: [record])
        head, position = record.head, position + 1

    return call


def _append(log: SqliteLog, value: bytes, size: int) -> Callable[[], object]:
    head = _head(log)

    def call() -> None:
        nonlocal head
        group = [Entry(b"run_128", value, n, n, os.urandom(32)) for n in range(size)]
        log.append(0, head, group)
        head = group[-1].head

    return call


def _timed(name: str, size: int, calls: int, call: Callable[[], object]) -> dict[str, Any]:
    for _ in range(10):
        call()
    took: list[float] = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        took.append(time.perf_counter() - started)
    took.sort()
    return {
        "name": name,
        "group": size,
        "calls": calls,
        "records_per_s": round(size * calls / sum(took)),
        "p50_us": round(statistics.median(took) * 1e6),
        "p99_us": round(took[int(calls * 0.99)] * 1e6),
        "max_us": round(took[-1] * 1e6),
    }


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bare = rows[0]["records_per_s"]
    single = next(r["records_per_s"] for r in rows if (r["name"], r["group"]) == ("append", 1))
    return [
        row | {
            "ratio_to_bare": round(row["records_per_s"] / bare, 2),
            "ratio_to_single": round(row["records_per_s"] / single, 2),
        }
        for row in rows
    ]  # fmt: skip


def _mode(path: Path) -> str:
    with closing(SqliteLog(path, lambda: 0)) as log, log._connections.write_lock:
        writer = log._connections.open_writer()
        journal, synchronous = (
            writer.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        )
    names = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
    return f"journal_mode={journal.decode()} synchronous={names[synchronous]}, an fsync each call"


def _table(report: dict[str, Any]) -> str:
    columns = ["name", "group", "calls", "records_per_s", "p50_us", "p99_us", "max_us"]
    columns += ["ratio_to_bare", "ratio_to_single"]
    lines = [columns, *([str(row[column]) for column in columns] for row in report["rows"])]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    head = (
        f"{report['fsync_mode']}; N={report['calls_per_row']} calls, {report['value_bytes']} B "
        f"a record, SQLite {report['sqlite']}"
    )
    table = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join([head, *table])


if __name__ == "__main__":
    main()
