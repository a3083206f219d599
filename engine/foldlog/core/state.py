"""The state of one run as slots addressed by entity, and the draft in which one batch changes it.

A run is a header (small counters and the last action) and *slots*: one per entity, addressed by
``(kind, id)``. A slot holds the entity's value as the document shows it, less author and
revision, the stamp of the batch that last changed it, and what foldlog keeps about it unseen.

Invariants:
- Nothing here is changed in place: a draft records the slots that differ from the state below.
- Putting the value that is already there stamps nothing.
- What has left the state leaves a *tombstone* (kind ``gone.KIND``), so that its id is never used
  again and a late writer still meets the revision that removed it.
- Work is proportional to what a batch changes; only ``scan`` walks a collection.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Protocol

SCHEMA_VERSION = 2
"""Version of the state document (see FORMAT.md, "Projection"); older ones: ``migrations``."""

Address = tuple[str, str]
"""``(kind, id)``; the id of an entity that exists once per run is the empty string."""

Stamp = tuple[int, str, str]
"""``(revision, author kind, author id)`` of the batch that last changed an entity."""

ORDINAL_MAX = 2**53 - 1

SINGLE_KINDS = frozenset(
    {"goal", "status", "wait", "lease", "workspace", "checkpoint", "plan", "phase"}
    | {"agent_version", "rules"}
)
"""Entities that exist once per run; their name is their kind."""

VANISHING_KINDS = frozenset(
    {"task", "fact", "hypothesis", "question", "tool", "signal", "conflict", "permission"}
    | {"effect"}  # by a fork alone
)
"""Collections whose members can leave the current state and then leave a tombstone."""

COLLECTION_KINDS = VANISHING_KINDS | {"observation", "effect", "artifact"}
"""foldlog's own collections."""


def is_plugin_kind(kind: str) -> bool:
    """Whether a kind is a plug-in's collection: ``NAME:COLLECTION``."""
    return ":" in kind


def vanishes(kind: str) -> bool:
    """Whether members of this collection can leave the state."""
    return kind in VANISHING_KINDS or is_plugin_kind(kind)


@dataclass(frozen=True, slots=True)
class Slot:
    """One stored entity: its value, who changed it last and when, and what is kept unseen.

    ``at`` is the log time of that change, in microseconds.
    """

    value: Any
    revision: int = 0
    author_kind: str = ""
    author_id: str = ""
    at: int = 0
    hidden: Any = None

    @property
    def stamp(self) -> Stamp:
        return (self.revision, self.author_kind, self.author_id)

    def shown(self) -> dict[str, Any]:
        """The value with author and revision, as the document lists it."""
        author = {"kind": self.author_kind, "id": self.author_id}
        return {**self.value, "author": author, "revision": self.revision}


@dataclass(slots=True)
class Header:
    """What every batch of a run reads and writes: counters, the last action, the chain.

    A draft changes a copy of its own; no other header is ever changed.

    ``*_revision`` is the revision that last changed any entity of that collection, so that "all
    tasks" is compared without a walk; ``*_count`` counts what finishing must find at zero;
    ``next_*`` numbers places in the plan, starts of tasks and kept signals. ``attempts_count``
    counts every entry into retry, ``attempts_before`` those before the run last began anew.
    ``retries_kept`` is the count that a document of schema 1 has in their place.
    """

    run_id: str
    schema_version: int = SCHEMA_VERSION
    revision: int = 0
    control_revision: int = 0
    result: str | None = None
    attempts_count: int = 0
    attempts_before: int = 0
    retries_kept: int | None = None
    retry_limit: int = 3
    lease_epoch_last: int = 0
    tasks_revision: int = 0
    effects_revision: int = 0
    running_count: int = 0
    doubt_count: int = 0
    calls_count: int = 0
    signals_count: int = 0
    permissions_count: int = 0
    next_place: int = 1
    next_start: int = 1
    next_signal: int = 1
    transitions_count: int = 0
    last_action: Mapping[str, Any] | None = None
    forked_from: Mapping[str, Any] | None = None
    chain: str = ""

    @property
    def retry_count(self) -> int:
        """How often the run came to retry since it last began anew."""
        if self.retries_kept is not None:
            return self.retries_kept
        return self.attempts_count - self.attempts_before


_values_of = attrgetter(*(field.name for field in fields(Header)))


class StateUnreadable(Exception):
    """Storage failed under a state: an outage of the reader, never the fault of a proposal."""


class Slots(Protocol):
    """Where a state's slots come from: a store, a working copy, a dictionary."""

    def get(self, kind: str, id: str) -> Slot | None:
        """The slot at that address, or None."""
        ...

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """Every slot of a kind with its id, ordered by id (code points)."""
        ...


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a run takes no proposals: the record, its log time (microseconds), error and build."""

    since: int
    sequence: int
    error: str
    build: str


@dataclass(frozen=True, slots=True)
class RunState:
    """One run at one moment. ``header.revision`` 0 means that the run does not exist.

    ``migrated_from`` says in which schemas it was kept before, and by which builds.
    """

    header: Header
    slots: Slots
    quarantine: Quarantine | None = None
    migrated_from: tuple[Mapping[str, Any], ...] = ()

    @property
    def exists(self) -> bool:
        return self.header.revision > 0

    def value(self, kind: str, id: str = "") -> Any:
        slot = self.slots.get(kind, id)
        return None if slot is None else slot.value

    def stamp(self, kind: str, id: str = "") -> Stamp | None:
        """Who last changed this entity, also when it has left the state; None if never there."""
        slot = self.slots.get(kind, id)
        if slot is None and vanishes(kind):
            slot = self.slots.get("gone." + kind, id)
        return None if slot is None else slot.stamp


@dataclass(slots=True)
class Draft:
    """A state with the changes of one batch on top of it; dropped if the batch is refused."""

    base: RunState
    author_kind: str
    author_id: str
    log_time: int
    header: Header = field(init=False)
    changes: dict[Address, Slot | None] = field(default_factory=dict)
    quarantine: Quarantine | None = field(init=False)

    def __post_init__(self) -> None:
        self.header = Header(*_values_of(self.base.header))
        self.header.revision += 1
        self.quarantine = self.base.quarantine

    # Reading: the draft's own changes first.

    def get(self, kind: str, id: str = "") -> Slot | None:
        address = (kind, id)
        if address in self.changes:
            return self.changes[address]
        return self.base.slots.get(kind, id)

    def value(self, kind: str, id: str = "") -> Any:
        slot = self.get(kind, id)
        return None if slot is None else slot.value

    def used(self, kind: str, id: str) -> bool:
        """Whether this id was ever used in its collection."""
        return self.get(kind, id) is not None or self.get("gone." + kind, id) is not None

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """Every slot of a kind as the draft has it, ordered by id."""
        changed = {id: slot for (k, id), slot in self.changes.items() if k == kind}
        below = self.base.slots.scan(kind)
        return merged(below, changed) if changed else below

    # Writing: entities are stamped, index entries are not.

    def put(self, kind: str, id: str, value: Any, hidden: Any = None) -> None:
        """Give an entity a value; it is stamped only if the value differs from the one there."""
        old = self.get(kind, id)
        if old is not None and same_json(old.value, value):
            if old.hidden != hidden:
                self.changes[(kind, id)] = replace(old, hidden=hidden)
            return
        self._stamp(kind, id, value, hidden)

    def set(self, kind: str, value: Any, hidden: Any = None) -> None:
        """``put`` for an entity that exists once per run."""
        self.put(kind, "", value, hidden)

    def mark(self, kind: str) -> None:
        """Stamp an entity whose value is derived and so has no value of its own: the plan."""
        self._stamp(kind, "", None, None)

    def remove(self, kind: str, id: str, value: Any = None) -> None:
        """Take a member out of its collection; its id stays used and its stamp is kept."""
        assert vanishes(kind), kind
        if self.base.slots.get(kind, id) is None:
            self.changes.pop((kind, id), None)
        else:
            self.changes[(kind, id)] = None
        self._stamp("gone." + kind, id, value, None)
        self._note(kind)

    def _stamp(self, kind: str, id: str, value: Any, hidden: Any) -> None:
        self.changes[(kind, id)] = Slot(
            value, self.header.revision, self.author_kind, self.author_id, self.log_time, hidden
        )
        self._note(kind)

    def _note(self, kind: str) -> None:
        if kind == "task":
            self.header.tasks_revision = self.header.revision
        elif kind == "effect":
            self.header.effects_revision = self.header.revision

    def index(self, kind: str, id: str, value: Any) -> None:
        """Write an index entry: derived, unstamped, never shown."""
        self.changes[(kind, id)] = Slot(value)

    def unindex(self, kind: str, id: str) -> None:
        if self.base.slots.get(kind, id) is None:
            self.changes.pop((kind, id), None)
        else:
            self.changes[(kind, id)] = None

    def count(self, **steps: int) -> None:
        """Add to the header's counters by name."""
        for name, step in steps.items():
            setattr(self.header, name, getattr(self.header, name) + step)

    def note(self, **values: Any) -> None:
        """Set header fields by name."""
        for name, value in values.items():
            setattr(self.header, name, value)


# Sets of ids that are listed without a scan: a store steps over the mark of every key that was ever
# deleted in the range of a scan, so a scan of what comes and goes grows dearer with the run's age.
# ``(kind, "")`` holds how many ids there are, ``(kind, ordinal(n))`` the n-th, ``(kind.at, id)`` n.


def enlist(draft: Draft, kind: str, id: str) -> None:
    """Add an id to a set; it must not be there."""
    count = (draft.value(kind) or 0) + 1
    draft.index(kind, ordinal(count), id)
    draft.index(kind + ".at", id, count)
    draft.index(kind, "", count)


def delist(draft: Draft, kind: str, id: str) -> None:
    """Take an id out of a set; the last one gets its place."""
    count, place = draft.value(kind), draft.value(kind + ".at", id)
    last = draft.value(kind, ordinal(count))
    if last != id:
        draft.index(kind, ordinal(place), last)
        draft.index(kind + ".at", last, place)
    draft.unindex(kind, ordinal(count))
    draft.unindex(kind + ".at", id)
    draft.index(kind, "", count - 1)


def enlisted(state: RunState | Draft, kind: str) -> list[str]:
    """The ids of a set, in no order; as dear as there are."""
    count = state.value(kind) or 0
    return [state.value(kind, ordinal(number)) for number in range(1, count + 1)]


def merged(
    below: Iterator[tuple[str, Slot]], changed: Mapping[str, Slot | None]
) -> Iterator[tuple[str, Slot]]:
    """A scan with changes on top of it, ordered by id; a change to None hides what is below."""
    waiting = iter(sorted(changed))
    mine = next(waiting, None)
    for id, slot in below:
        while mine is not None and mine < id:
            if (over := changed[mine]) is not None:
                yield mine, over
            mine = next(waiting, None)
        if mine != id:
            yield id, slot
    while mine is not None:
        if (over := changed[mine]) is not None:
            yield mine, over
        mine = next(waiting, None)


def ordinal(number: int) -> str:
    """An index id whose order by code points is the order of the numbers."""
    return f"{number:016d}"


def ordinal_latest_first(number: int) -> str:
    """An index id that sorts the greatest number first."""
    return f"{ORDINAL_MAX - number:016d}"


def entity_name(kind: str, id: str = "") -> str:
    """The name that ``diff``, ``reads`` and conflicts use: ``task/task_3``, ``goal``."""
    return f"{kind}/{id}" if id else kind


def same_json(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal and written alike (1, 1.0 and true are equal in Python)."""
    return bool(a == b) and _same_types(a, b)


def _same_types(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return all(_same_types(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return all(map(_same_types, a, b))
    return True
