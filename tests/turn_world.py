"""A partition in a test's hands: proposals in, failures in between, bytes out.

Invariants:
- The same proposals at the same times give the same bytes, whichever backend holds them.
- A failure is one call that raises; nothing else about log or store is imitated.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foldlog.core.catalogue import Catalogue
from foldlog.core.proposals import parse_proposal
from foldlog.log import sqlite
from foldlog.log.base import Entry, Log, LogError, Proposed, Stored
from foldlog.log.memory import MemoryLog
from foldlog.log.sqlite import SqliteLog
from foldlog.store.base import Store, StoreError
from foldlog.store.memory import MemoryStore
from foldlog.store.rocks import RocksStore
from foldlog.turn import Partition
from foldlog.wire import keys
from foldlog.wire.envelope import encode_proposal
from foldlog.wire.records import Record, decode_record
from tests.core_walk import RULES_OF_WALKS, walk

START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
ALL = 1 << 40
USER = {"kind": "user", "id": "ada"}
BACKENDS = ("memory", "durable")


class Clock:
    """Microseconds since the Unix epoch, as told."""

    def __init__(self, now: int = START_US) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def batch_id(number: int) -> str:
    """A batch id made of a number."""
    return str(uuid.UUID(int=number))


def value(*events: dict[str, Any], id: int, **fields: Any) -> dict[str, Any]:
    """A proposal of these events, as JSON."""
    return {"batch_id": batch_id(id), "author": USER, "events": list(events), **fields}


def encoded(run_id: str, proposal: dict[str, Any]) -> tuple[bytes, bytes]:
    """A proposal as an entry of the inbox: key and value."""
    return run_id.encode(), encode_proposal(parse_proposal(run_id, proposal))


def start(id: int = 1, **fields: Any) -> dict[str, Any]:
    """The proposal that starts a run."""
    event = {"type": "RunStarted", "goal": {"statement": "mend the lamp"}, **fields}
    return value(event, id=id)


def fact(id: int, name: str | None = None) -> dict[str, Any]:
    """A proposal of one fact that needs no expectation."""
    event = {"type": "FactConfirmed", "fact": {"id": name or f"fact_{id}", "statement": "it holds"}}
    return value(event, id=id)


def dump(store: Store) -> dict[bytes, bytes]:
    """Every key of a store; the fold's position without the log's random identity."""
    rows = dict(store.scan(b""))
    if keys.META in rows:
        meta = json.loads(rows[keys.META])
        rows[keys.META] = json.dumps({**meta, "identity": ""}).encode()
    return rows


def stored(log: Log, partition: int = 0) -> list[Stored]:
    """Every row of the truth."""
    return log.events(partition, 0, 1_000_000, ALL)


def records(log: Log, partition: int = 0) -> list[Record]:
    """Every record of the truth, void ones too."""
    return [decode_record(row.value) for row in stored(log, partition)]


class Place:
    """One partition: log, store, clock, and the turn between them."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        rules: Mapping[int, Catalogue] = RULES_OF_WALKS,
        wrap: Callable[[Log, Store], tuple[Log, Store]] = lambda log, store: (log, store),
    ) -> None:
        self.kind, self.folder, self.rules, self.wrap = kind, folder, rules, wrap
        self.clock = Clock()
        self._memory = MemoryLog(1, self.clock), MemoryStore()
        if kind == "durable":
            folder.mkdir(parents=True, exist_ok=True)
            sqlite.create(folder / "log.sqlite", 1)
        self._open()
        self.partition.recover()

    def _open(self) -> None:
        self.log: Log
        self.store: Store
        if self.kind == "memory":
            self.log, self.store = self._memory
        else:
            self.log = SqliteLog(self.folder / "log.sqlite", self.clock)
            self.store = RocksStore(self.folder / "projection")
        self.partition = Partition(*self.wrap(self.log, self.store), 0, rules=self.rules)

    def restart(self) -> int:
        """Forget what the process knew and recover; returns the number of records folded."""
        self.close()
        self._open()
        return self.partition.recover()

    def close(self) -> None:
        """Let go of the files."""
        if self.kind == "durable":
            self.log.close()
            self.store.close()

    def propose(self, run_id: str, *proposals: dict[str, Any]) -> list[int]:
        """Put proposals into the inbox."""
        return self.log.propose(0, [encoded(run_id, proposal) for proposal in proposals])

    def turn_to_end(self) -> int:
        """Decide everything that waits."""
        count = 0
        while (more := self.partition.turn()) > 0:
            count += more
        return count

    def decide(self, run_id: str, *proposals: dict[str, Any]) -> list[Record]:
        """Propose, turn to the end, and return the new records."""
        before = len(stored(self.log))
        self.propose(run_id, *proposals)
        self.turn_to_end()
        return records(self.log)[before:]


def play(place: Place, seed: int, group: int = 1, steps: int = 120) -> None:
    """Propose a random walk in groups, without turning in between two of a group."""
    world = walk(seed, steps)
    for number, record in enumerate(world.records):
        place.clock.now = record.log_time
        place.propose(record.run_id, record.value)
        if (number + 1) % group == 0:
            place.turn_to_end()
    place.turn_to_end()


class Faults:
    """Counts the calls to storage and fails those it is told to: ``lasting`` of them from ``at``
    on, and those of the name ``only``."""

    def __init__(self, at: int = -1, lasting: int = 1) -> None:
        self.at, self.lasting = at, lasting
        self.only: str | None = None
        self.calls = 0
        self.failed: list[str] = []

    def step(self, name: str, error: Callable[[str, str, str], Exception]) -> None:
        """One place where a call may fail."""
        self.calls += 1
        told = self.at >= 0 and 0 < self.calls - self.at <= self.lasting
        if told or name == self.only:
            self.failed.append(name)
            raise error("here", f"{name} was told to fail", "none")

    def wrap(self, log: Log, store: Store) -> tuple[Log, Store]:
        """Log and store with these faults."""
        return FaultyLog(log, self), FaultyStore(store, self)


class FaultyLog:
    """A log whose reads fail before, whose append fails before or after it has written."""

    def __init__(self, log: Log, faults: Faults) -> None:
        self.inner, self.faults = log, faults
        self.identity, self.partitions = log.identity, log.partitions
        self.conditional = log.conditional

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        return self.inner.propose(partition, entries)

    def proposals(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Proposed]:
        self.faults.step("proposals", LogError)
        return self.inner.proposals(partition, start, limit, max_bytes)

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        self.faults.step("before append", LogError)
        self.inner.append(partition, head, entries)
        self.faults.step("after append", LogError)

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        self.faults.step("events", LogError)
        return self.inner.events(partition, start, limit, max_bytes)

    def end(self, partition: int) -> int:
        return self.inner.end(partition)

    def proposals_end(self, partition: int) -> int:
        return self.inner.proposals_end(partition)

    def close(self) -> None:
        self.inner.close()


class FaultyStore:
    """A store whose reads fail, and whose writes fail before or after they were made."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self.inner, self.faults = store, faults

    def get(self, key: bytes) -> bytes | None:
        self.faults.step("get", StoreError)
        return self.inner.get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Any:
        self.faults.step("scan", StoreError)
        return self.inner.scan(prefix, reverse)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self.faults.step("before write", StoreError)
        self.inner.write(changes)
        self.faults.step("after write", StoreError)

    def snapshot(self) -> Any:
        return self.inner.snapshot()

    def close(self) -> None:
        self.inner.close()
