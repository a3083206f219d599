"""Does a step cost the same in a large run as in a small one? Bytes written, and time.

A step is one proposal of two events and its outcome, through the real holder, turn and store. Each
kind of content (facts, tasks, effects, artifacts, batch ids) is grown alone in two runs with a log
and a store of their own, one small and one large. The two are then measured in one process, a step
here and a step there, so that both meet the same machine. Bytes are medians; times are means of the
middle half, since a disk may sync in steps of milliseconds, between which a median jumps.

Bytes are those handed to log and store: the proposal, the record, and the keys and values of the
atomic batch. With `--log memory` the log costs nothing and the CPU's share is seen; with
`--log sqlite` every step waits for the log's two fsyncs, as in use.

Exits with 1 if a large run's step writes more than 1.2 times a small one's, or takes more with the
log in memory. With fsync the disk decides how long a step takes: that is shown and not judged.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foldlog.core.proposals import parse_proposal
from foldlog.holder import Holder
from foldlog.log import sqlite
from foldlog.log.base import Entry, Log
from foldlog.log.memory import MemoryLog
from foldlog.log.sqlite import SqliteLog
from foldlog.runtime import SECOND, RealRuntime
from foldlog.store.base import Store
from foldlog.store.memory import MemoryStore
from foldlog.store.rocks import RocksStore
from foldlog.wire.envelope import encode_proposal

RATIO_MAX = 1.2
FILL_EVENTS = 100
RUN_ID = "run_1"
REFERENCE = "artifact://test-output/47"
START_US = 1_767_225_600_000_000

Event = dict[str, Any]


# The content, and steps on it; ids have one width, so that bytes compare


def _id(kind: str, number: int) -> str:
    return f"{kind}_{number:08d}"


def fact(number: int) -> list[Event]:
    """Confirm one fact."""
    id = _id("fact", number)
    return [{"type": "FactConfirmed", "fact": {"id": id, "statement": "it holds, as was seen"}}]


def artifact(number: int) -> list[Event]:
    """Add one artifact."""
    id = _id("artifact", number)
    return [{"type": "ArtifactAdded", "artifact": {"id": id, "uri": f"artifact://patch/{id}"}}]


def task(number: int) -> list[Event]:
    """Add one task."""
    return [
        {"type": "TaskAdded", "task": {"id": _id("task", number), "title": "do the next thing"}}
    ]


def plan(number: int) -> list[Event]:
    """Replace the one pending task of the plan by another, and note it."""
    task = {"id": _id("planned", number), "title": "do the next thing"}
    return [{"type": "PlanAdopted", "tasks": [task]}, *note(number)]


def task_done(number: int) -> list[Event]:
    """Start and complete a task that was added before."""
    id = _id("task", number)
    done = {"type": "TaskCompleted", "task_id": id, "evidence": REFERENCE}
    return [{"type": "TaskStarted", "task_id": id}, done]


def effect(number: int) -> list[Event]:
    """Intend an effect and report that it succeeded."""
    id = _id("effect", number)
    inner = {"id": id, "kind": "mail", "target": "mail:ada", "idempotency_key": f"key of {id}"}
    return [
        {"type": "EffectIntended", "effect": inner},
        {"type": "EffectSucceeded", "effect_id": id},
    ]


def checkpoint(number: int) -> list[Event]:
    """Take a checkpoint and note it."""
    inner = {"id": _id("checkpoint", number), "boundary": "tasks_done"}
    return [{"type": "CheckpointTaken", "checkpoint": inner}, *note(number)]


def unsettled(number: int) -> list[Event]:
    """Intend an effect and leave it open: the first step does, the others note something."""
    return (
        effect(9 * FIRST_STEP)[:1] + note(number)
        if number == FIRST_STEP * 3 // 2
        else checkpoint(number)
    )


def tool_call(number: int) -> list[Event]:
    """Start a tool call and report its result."""
    id = _id("step", number)
    return [
        {"type": "ToolStarted", "step_id": id, "tool": "run_test"},
        {"type": "ToolSucceeded", "step_id": id, "result_ref": REFERENCE},
    ]


def note(number: int) -> list[Event]:
    """Record something that changes no state."""
    return [{"type": "Recorded", "name": "note", "payload": _id("note", number)}]


def two(make: Callable[[int], list[Event]]) -> Callable[[int], list[Event]]:
    """A step of two such events."""
    return lambda number: make(2 * number) + make(2 * number + 1)


def one_by_one(*parts: Callable[[int], list[Event]]) -> Callable[[int], list[list[Event]]]:
    """A fill in batches of 100 events: each part for 100 numbers, then the next part for these.

    What a later part ends was written by an earlier batch, so that it has to be taken out again.
    """

    def batches(size: int) -> list[list[Event]]:
        return [
            [event for number in range(at, min(at + FILL_EVENTS, size)) for event in part(number)]
            for at in range(0, size, FILL_EVENTS)
            for part in parts
        ]

    return batches


@dataclass(frozen=True)
class Kind:
    """What is grown: the batches that make a run of a size, and the steps to measure then."""

    name: str
    fill: Callable[[int], list[list[Event]]]
    steps: Mapping[str, Callable[[int], list[Event]]]


def _part(make: Callable[[int], list[Event]], place: int) -> Callable[[int], list[Event]]:
    return lambda number: [make(number)[place]]


KINDS = (
    Kind("facts", one_by_one(fact), {"2 FactConfirmed": two(fact)}),
    Kind(
        "tasks",
        one_by_one(task, _part(task_done, 0), _part(task_done, 1)),
        # The last steps end what those before them added.
        {
            "PlanAdopted, Recorded": plan,
            "2 TaskAdded": two(task),
            "TaskStarted, TaskCompleted": lambda number: task_done(2 * number),
        },
    ),
    Kind("tasks, all pending", one_by_one(task), {"2 TaskAdded": two(task)}),
    Kind(
        "effects",
        one_by_one(_part(effect, 0), _part(effect, 1)),
        {
            "EffectIntended, EffectSucceeded": effect,
            "CheckpointTaken, Recorded": checkpoint,
            "the same with an effect in doubt": lambda number: unsettled(number + FIRST_STEP // 2),
        },
    ),
    Kind(
        "tool calls",
        one_by_one(_part(tool_call, 0), _part(tool_call, 1)),
        {"ToolStarted, ToolSucceeded": tool_call, "CheckpointTaken, Recorded": checkpoint},
    ),
    Kind("artifacts", one_by_one(artifact), {"2 ArtifactAdded": two(artifact)}),
    Kind("batch ids", lambda size: [note(n) for n in range(size)], {"2 Recorded": two(note)}),
)
FIRST_STEP = 1_000_000
"""Where the numbers of steps begin: beyond those of the fill."""


# A run with its own log and store, and what it writes


@dataclass
class Bytes:
    """What was handed to log and store."""

    log: int = 0
    store: int = 0


class CountingLog:
    """A log that counts what it is given."""

    def __init__(self, log: Log, count: Bytes) -> None:
        self.inner, self.count = log, count
        self.identity, self.partitions = log.identity, log.partitions
        self.conditional = log.conditional
        self.proposals, self.events = log.proposals, log.events
        self.end, self.proposals_end, self.close = log.end, log.proposals_end, log.close

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See Log.propose."""
        self.count.log += sum(len(key) + len(value) for key, value in entries)
        return self.inner.propose(partition, entries)

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """See Log.append."""
        self.count.log += sum(len(e.key) + len(e.value) + len(e.head) + 16 for e in entries)
        self.inner.append(partition, head, entries)


class CountingStore:
    """A store that counts what is written to it."""

    def __init__(self, store: Store, count: Bytes) -> None:
        self.inner, self.count = store, count
        self.get, self.scan, self.snapshot = store.get, store.scan, store.snapshot
        self.close = store.close

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """See Store.write."""
        self.count.store += sum(len(key) + len(value or b"") for key, value in changes.items())
        self.inner.write(changes)


@dataclass
class Place:
    """One run in a log and a store of its own. Without a folder, all of it is in memory."""

    folder: Path | None
    log_kind: str = "memory"
    bytes: Bytes = field(default_factory=Bytes)
    batches: int = 0
    now: int = START_US

    def __post_init__(self) -> None:
        if self.folder is not None and self.log_kind == "sqlite":
            self.folder.mkdir()
            sqlite.create(self.folder / "log.sqlite", 1)
        elif self.folder is not None:
            self.folder.mkdir()
        self.log: Log = MemoryLog(1, self.clock)
        if self.log_kind == "sqlite":
            assert self.folder is not None
            self.log = SqliteLog(self.folder / "log.sqlite", self.clock)
        self.store: Store = MemoryStore()
        self.open()

    def clock(self) -> int:
        """A millisecond later with each question."""
        self.now += 1_000
        return self.now

    def open(self) -> None:
        """Open the store, as after a start of the process: what was written is in files."""
        if self.folder is not None:
            self.store.close()
            self.store = RocksStore(self.folder / "projection")
        log, store = CountingLog(self.log, self.bytes), CountingStore(self.store, self.bytes)
        self.holder = Holder(log, [store], self.clock)

    def proposal(self, events: list[Event], revision: int) -> Any:
        """A proposal of these events that expects this revision."""
        self.batches += 1
        value = {
            "batch_id": str(uuid.UUID(int=self.batches)),
            "author": {"kind": "user", "id": "ada"},
            "expected_revision": revision,
            "events": events,
        }
        return parse_proposal(RUN_ID, value)

    def fill(self, kind: Kind, size: int) -> None:
        """Start the run and grow it, a turn's worth of batches at a time."""
        started = {"type": "RunStarted", "goal": {"statement": "grow"}}
        moves = [{"type": "RunTransitioned", "to": to} for to in ("planning", "running")]
        batches: list[list[Event]] = [[started], moves, *kind.fill(size)]
        entries = [
            (RUN_ID.encode(), encode_proposal(self.proposal(events, revision)))
            for revision, events in enumerate(batches)
        ]
        for at in range(0, len(entries), 500):
            self.log.propose(0, entries[at : at + 500])
            self.holder.turn_all()
        self.revision = len(batches)
        record = self.holder.held[0].partition
        assert record.meta.sequence == len(batches)
        self.open()

    def step(self, events: list[Event]) -> float:
        """One proposal and its outcome; returns the seconds it took."""
        proposal = self.proposal(events, self.revision)
        started = time.perf_counter()
        record = self.holder.propose(proposal, RealRuntime().monotonic() + 60 * SECOND)
        assert record is not None
        took = time.perf_counter() - started
        assert record.outcome == "accepted", record
        self.revision += 1
        return took

    def close(self) -> None:
        """Let go of the files."""
        self.holder.close()


# Measuring


@dataclass
class Row:
    """One kind of content and one kind of step, small against large."""

    log: str
    kind: str
    step: str
    steps: int
    bytes_small: int
    bytes_large: int
    us_small: float
    us_large: float

    @property
    def bytes_ratio(self) -> float:
        """How many times the bytes of a small run's step."""
        return self.bytes_large / self.bytes_small

    @property
    def time_ratio(self) -> float:
        """How many times the time of a small run's step."""
        return self.us_large / self.us_small

    @property
    def is_over(self) -> bool:
        """Whether it breaks a limit."""
        slower = self.log == "memory" and self.time_ratio > RATIO_MAX
        return slower or self.bytes_ratio > RATIO_MAX

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        ratios = {"bytes_ratio": self.bytes_ratio, "time_ratio": self.time_ratio}
        return {**vars(self), **{name: round(value, 3) for name, value in ratios.items()}}


def measure(kind: Kind, small: Place, large: Place, steps: int) -> Iterator[Row]:
    """Each kind of step, ``steps`` times in both places, by turns."""
    for name, make in kind.steps.items():
        times: dict[int, list[float]] = {0: [], 1: []}
        written: dict[int, list[int]] = {0: [], 1: []}
        for count in range(steps):
            events = make(FIRST_STEP + count)
            order = (0, 1) if count % 2 else (1, 0)
            for which in order:
                place = (small, large)[which]
                before = place.bytes.log + place.bytes.store
                times[which].append(place.step(events))
                written[which].append(place.bytes.log + place.bytes.store - before)
        us = [_middle(times[which]) * 1e6 for which in (0, 1)]
        size = [round(statistics.median(written[which])) for which in (0, 1)]
        yield Row(small.log_kind, kind.name, name, steps, *size, *us)


def _middle(times: list[float]) -> float:
    """The mean of the middle half."""
    quarter = len(times) // 4
    return statistics.fmean(sorted(times)[quarter : len(times) - quarter])


def compare(kind: Kind, small: int, large: int, steps: int, log: str, folder: Path) -> list[Row]:
    """Grow both runs and measure them."""
    places = [Place(folder / f"{log}-{kind.name}-{size}", log) for size in (small, large)]
    for place, size in zip(places, (small, large), strict=True):
        place.fill(kind, size)
    gc.collect()
    gc.freeze()
    rows = list(measure(kind, places[0], places[1], steps))
    gc.unfreeze()
    for place in places:
        place.close()
    return rows


def main() -> int:
    """Measure and print a table, or JSON."""
    options = _options()
    logs = ["memory", "sqlite"] if options.log == "both" else [options.log]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="growth-", dir=options.dir) as folder:
        for log in logs:
            for kind in KINDS:
                if options.kind in (None, kind.name):
                    sizes = (options.small, options.large)
                    rows += compare(kind, *sizes, options.steps, log, Path(folder))
    print(json.dumps(_report(options, rows), indent=2) if options.json else _table(options, rows))
    over = [row for row in rows if row.is_over]
    for row in over:
        print(f"more than {RATIO_MAX}: {row.log} log, {row.kind}: {row.step}", file=sys.stderr)
    return 1 if over else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--small", type=int, default=100, metavar="N", help="size of one (100)")
    parser.add_argument("--large", type=int, default=10_000, metavar="N", help="and the other")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="steps of each kind")
    parser.add_argument("--log", choices=["memory", "sqlite", "both"], default="both")
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], default=None)
    parser.add_argument("--dir", default=None, help="where to write: the disk that is measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


FSYNC = {
    "memory": "log in memory, no fsync",
    "sqlite": "SQLite WAL synchronous=FULL: one fsync for the proposal, one for the record",
}


def _report(options: argparse.Namespace, rows: list[Row]) -> dict[str, Any]:
    return {
        "small": options.small,
        "large": options.large,
        "steps": options.steps,
        "fsync": {log: FSYNC[log] for log in FSYNC if any(row.log == log for row in rows)},
        "rows": [row.to_dict() for row in rows],
    }


def _table(options: argparse.Namespace, rows: list[Row]) -> str:
    head = [
        "log",
        "content",
        "step",
        "B small",
        "B large",
        "ratio",
        "us small",
        "us large",
        "ratio",
    ]
    lines = [head]
    for row in rows:
        figures = [f"{row.bytes_small}", f"{row.bytes_large}", f"{row.bytes_ratio:.2f}"]
        figures += [f"{row.us_small:.0f}", f"{row.us_large:.0f}", f"{row.time_ratio:.2f}"]
        lines.append([row.log, row.kind, row.step, *figures])
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    said = (
        f"{options.small} against {options.large}; N={options.steps} steps of each kind, by turns"
    )
    modes = [f"{log}: {FSYNC[log]}" for log in FSYNC if any(row.log == log for row in rows)]
    return "\n".join(
        [said, *modes]
        + ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    )


if __name__ == "__main__":
    sys.exit(main())
