"""A projection of an older state format lifted to this build's, run by run.

Invariants:
- Only for a store that nobody else has open and nobody reads: it is a copy, which takes the old
  one's place when all of it is done.
- How far it is folded is written last: a store that says it has this format has all of it.
- A run that cannot be lifted stays as it is, byte for byte, to be read and never resumed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from foldlog.core.state import SCHEMA_VERSION
from foldlog.store.base import Store
from foldlog.wire import keys, slots
from foldlog.wire.slots import STATE_FORMAT, TABLES, RunHead
from foldlog.working import HEADER, Run, lifted_sum, open_run

RUNS_AT_ONCE = 200
"""Runs that are written with one batch of the store."""

BuildOf = Callable[[str, RunHead], str]
"""Which build wrote a run last."""


@dataclass(frozen=True, slots=True)
class Lifted:
    """How many runs were lifted, and which could not be."""

    runs: int
    stuck: tuple[str, ...]


def migrate(
    store: Store, build_of: BuildOf, each: Callable[[int], None] = lambda runs: None
) -> Lifted:
    """Lift every run of a store, then its position of the fold; ``each`` is told of runs done."""
    data = store.get(keys.META)
    assert data is not None
    meta = slots.decode_meta(data)
    count, stuck = 0, list[str]()
    changes: dict[bytes, bytes | None] = {}
    for run_id in _run_ids(store):
        run = open_run(store, run_id)
        if run.header_bytes is not None and run.header.schema_version < SCHEMA_VERSION:
            stuck.append(run_id)
        elif run.lifted_from is not None:
            changes.update(_lifted(store, run, build_of(run_id, run.head)))
            count += 1
        if count % RUNS_AT_ONCE == 0 and changes:
            store.write(changes)
            changes = {}
            each(RUNS_AT_ONCE)
    meta = meta._replace(format=STATE_FORMAT, tables=TABLES)
    store.write({**changes, keys.META: slots.encode_meta(meta)})
    return Lifted(count, tuple(stuck))


def _run_ids(store: Store) -> Iterator[str]:
    for prefix in keys.head_keys(""):
        for key, _ in store.scan(prefix):
            yield key[len(prefix) :].decode()


def _lifted(store: Store, run: Run, build: str) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a run that lifting changes: slots, header, and the head with the new sum."""
    for (kind, id), new in run.slots.changed():
        assert new is not None, "no step removes a slot"
        yield keys.slot_key(run.run_id, kind, id), new
    yield keys.slot_key(run.run_id, *HEADER), slots.encode_header(run.header)
    came_from: dict[str, Any] = {"schema_version": run.lifted_from, "build": build}
    head = run.head._replace(
        state_sum=lifted_sum(store, run),
        migrated_from=(*run.head.migrated_from[:-1], came_from),
    )
    assert run.head_key is not None, "it was found by its head"
    yield run.head_key, slots.encode_head(head)
