"""Users' own events: their shape, what they read and write, and the reducer, as rows of the table.

A *plug-in* brings event types ``NAME:TYPE`` and collections ``NAME:COLLECTION`` of the state that
only its own events change. A set of plug-ins is used under a rules version of its own, which a run
is pinned to like to any other; a plug-in that changes what its events do gets a new number, and
the old one stays in the code for as long as a run may be under it.

Invariants:
- A reducer sees the event and an ``Access``; it reaches no other state, and changes no core entity.
- What it does is applied twice on equal arguments and must be the same both times.
- A row that declares nothing conflicts with everything that has changed.
- A value of a collection is a JSON object without floats, of at most 64 KiB.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from foldlog.core.catalogue import (
    RULES,
    RULES_DEFAULT,
    WHOLE,
    Catalogue,
    EventType,
    address,
    touched,
)
from foldlog.core.checks import record_checker
from foldlog.core.context import Context, Event, Refusal, invalid, recordable
from foldlog.core.proposals import Malformed, Proposal, malformed_event
from foldlog.core.shapes import JSON_BYTES_MAX, Field, Record
from foldlog.core.state import Address, Draft, entity_name, is_plugin_kind
from foldlog.core.values import (
    INTEGER_MAX,
    JSON_REAL,
    Fault,
    canonical_json,
    check_json,
    fits,
    is_id,
)

RULES_OF_PLUGINS_MIN = 1_000_000
"""Rules versions from here on are the users'; foldlog's own stay below."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
TYPE = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
KEPT = frozenset({"id", "author", "revision"})
"""Keys of a member that foldlog fills in."""

Value = dict[str, Any]
Upgrade = Callable[[str, Value], Value]
"""``(collection, value of one version) -> value of the next``; pure."""


class PluginError(Exception):
    """A reducer did what it must not do; the run whose event it was is quarantined."""


@dataclass(frozen=True, slots=True)
class EventDefinition:
    """One event type of a plug-in.

    ``fields`` as in ``foldlog.plugins``; ``apply(access, event)`` changes the collections.
    ``check(access, event)`` says why the state does not allow it (INVALID_TRANSITION), or None.
    ``reads`` and ``writes`` name entities in terms of the event (``votes:ballot/{voter}``,
    ``task/{task_id}``); without ``writes`` the event conflicts with every change it has not seen.
    ``commutes`` with every other such event on another id, foldlog's included; it needs no
    expected revision then, and ``writes`` must say what it touches.
    """

    name: str
    fields: Mapping[str, Field]
    apply: Callable[["Access", Event], None]
    check: Callable[["Access", Event], str | None] | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] | None = None
    commutes: bool = False


@dataclass(frozen=True, slots=True)
class Plugin:
    """A set of event types and collections under one name.

    ``version`` counts the forms of the stored values. ``upgrades[n]`` makes a value of version n
    one of n + 1: a value is upgraded when an event reads it, and stored so when one writes it.
    """

    name: str
    events: Sequence[EventDefinition]
    collections: tuple[str, ...] = ()
    version: int = 1
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _demand(NAME.fullmatch(self.name), f"plug-in {self.name!r}", "a name like `votes`")
        for collection in self.collections:
            _demand(
                NAME.fullmatch(collection), f"collection {collection!r}", "a name like `ballot`"
            )
        for definition in self.events:
            _check_definition(self, definition)
        wanted = set(range(1, self.version))
        _demand(set(self.upgrades) == wanted, f"{self.name}: upgrades", f"one for each of {wanted}")

    def kind(self, collection: str) -> str:
        """The kind of a collection's members: ``votes:ballot``."""
        return f"{self.name}:{collection}"

    def event(self, name: str, **fields: Any) -> Value:
        """An event as a proposal takes it."""
        return {"type": f"{self.name}:{name}", **fields}

    def upgraded(self, kind: str, value: Value, version: int) -> Value:
        """A stored value in the form of this version."""
        for number in range(version, self.version):
            value = self.upgrades[number](kind.partition(":")[2], value)
        return value


def _demand(holds: object, what: str, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{what} needs {wanted}")


def _check_definition(plugin: Plugin, definition: EventDefinition) -> None:
    where = f"{plugin.name}:{definition.name}"
    _demand(TYPE.fullmatch(definition.name), f"event type {where!r}", "a name like `BallotCast`")
    _demand("type" not in definition.fields, f"{where}: fields", "other names than `type`")
    for name, shape in definition.fields.items():
        _demand(not shape.keeps_null, f"{where}: {name}", "null to mean absent")
    own = {plugin.kind(collection) for collection in plugin.collections}
    for template in definition.writes or ():
        kind = template.partition("/")[0]
        _demand(kind in own, f"{where} writes {template!r}: it", f"one of {sorted(own)}")
    commutes = not definition.commutes or definition.writes
    _demand(commutes, f"{where} commutes: it", "to say what it writes")


@dataclass(slots=True)
class Access:
    """What a reducer may see and do: what its event type declares, and nothing else.

    Entities are named as ``diff`` names them. ``log_time`` is in microseconds since 1970.
    """

    log_time: int
    author: str
    _draft: Draft
    _plugin: Plugin
    _readable: frozenset[Address] | None
    _writable: frozenset[Address] | None
    _done: dict[Address, Value | None] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """An entity's value, a copy; None if it is not there."""
        at = address(name)
        known = self._readable is None or at in self._readable
        if not known and (self._writable is None or at not in self._writable):
            raise PluginError(f"reads {name}, which its event type does not declare")
        if at in self._done:
            return _copy(self._done[at])
        slot = self._draft.get(*at)
        if slot is None or not is_plugin_kind(at[0]):
            return None if slot is None else _copy(slot.value)
        value = {key: item for key, item in slot.value.items() if key != "id"}
        return self._plugin.upgraded(at[0], _copy(value), slot.hidden or 1)

    def put(self, name: str, value: Value) -> None:
        """Give a member of a collection a value: a JSON object."""
        at = self._own(name)
        _check_value(name, value)
        self._done[at] = _copy(value)

    def remove(self, name: str) -> None:
        """Take a member out of its collection; its id may be used again."""
        self._done[self._own(name)] = None

    def done(self) -> dict[str, Value | None]:
        """What was put and removed (None), by name."""
        return {entity_name(*at): value for at, value in self._done.items()}

    def commit(self) -> None:
        """Write what was done into the draft."""
        draft, version = self._draft, self._plugin.version
        for (kind, id), value in sorted(self._done.items()):
            if value is not None:
                if draft.get("kinds", kind) is None:
                    draft.index("kinds", kind, 1)
                draft.put(kind, id, {"id": id, **value}, version if version > 1 else None)
            elif draft.get(kind, id) is not None:
                draft.remove(kind, id)

    def _own(self, name: str) -> Address:
        kind, id = address(name)
        own = {self._plugin.kind(collection) for collection in self._plugin.collections}
        if kind not in own or not is_id(id):
            raise PluginError(f"writes {name}, which is in none of its collections")
        if self._writable is not None and (kind, id) not in self._writable:
            raise PluginError(f"writes {name}, which its event type does not declare")
        return (kind, id)


def _copy(value: Any) -> Any:
    return json.loads(canonical_json(value))


def _check_value(name: str, value: Any) -> None:
    if type(value) is not dict or KEPT & value.keys():
        raise PluginError(f"{name}: a value is an object without {', '.join(sorted(KEPT))}")
    try:
        check_json(value)
    except Fault as fault:
        raise PluginError(f"{name}: {fault.reason}") from None
    if _has_reals(value):
        raise PluginError(f"{name}: a number with a fraction is not stored: write it as a text")
    if not fits(canonical_json(value), JSON_BYTES_MAX):
        raise PluginError(f"{name}: the value has more than {JSON_BYTES_MAX:,} bytes as JSON")


def _has_reals(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_reals, value.values()))
    if isinstance(value, list):
        return any(map(_has_reals, value))
    return type(value) is JSON_REAL


@contextmanager
def _running(name: str) -> Iterator[None]:
    """A plug-in's own function may fail as it likes, but not end the process."""
    try:
        yield
    except SystemExit as error:
        raise PluginError(f"{name} would end the process") from error


# A plug-in's rows


def _row(plugin: Plugin, definition: EventDefinition) -> EventType:
    """The row of the table that an event definition makes."""
    name = f"{plugin.name}:{definition.name}"
    shape = record_checker(Record(definition.fields), also=frozenset({"type"}))

    def normal(event: Event) -> Event:
        return {"type": name, **shape(dict(event))}

    def access(draft: Draft, event: Event, ctx: Context) -> Access:
        readable = writable = None
        if definition.writes is not None:
            writable = frozenset(touched(definition.writes, event, draft.base))
            readable = frozenset(touched(definition.reads, event, draft.base))
        author = f"{ctx.author.kind}:{ctx.author.id}"
        return Access(ctx.log_time, author, draft, plugin, readable, writable)

    def check(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
        if definition.check is None:
            return None
        event = normal(event)
        with _running(name):
            reason = definition.check(access(draft, event, ctx), _copy(event))
        if reason is None:
            return None
        if not isinstance(reason, str):
            raise PluginError(f"{name}: a check gives a reason or None, not {reason!r}")
        return invalid(recordable(reason))

    def apply(draft: Draft, event: Event, ctx: Context) -> None:
        event = normal(event)
        once, twice = access(draft, event, ctx), access(draft, event, ctx)
        for each in (once, twice):
            with _running(name):
                definition.apply(each, _copy(event))
        if canonical_json(once.done()) != canonical_json(twice.done()):
            raise PluginError(f"{name} does not do the same twice: its reducer is not pure")
        once.commit()

    writes = (WHOLE,) if definition.writes is None else definition.writes
    return EventType(
        name,
        apply,
        check,
        reads=definition.reads,
        writes=writes,
        commutes=definition.commutes,
        shape=shape,
    )


def rules_with(plugins: Mapping[int, Sequence[Plugin]]) -> Mapping[int, Catalogue]:
    """foldlog's own rules and, under each of these numbers, the newest of them with plug-ins.

    ValueError for a number that is foldlog's, and for two plug-ins of one name.
    """
    tables = dict(RULES)
    for version, used in plugins.items():
        whole = type(version) is int and RULES_OF_PLUGINS_MIN <= version <= INTEGER_MAX
        _demand(whole, f"rules {version}", f"a number from {RULES_OF_PLUGINS_MIN:,} up")
        names = [plugin.name for plugin in used]
        _demand(len(set(names)) == len(names), f"rules {version}", "each plug-in once")
        rows = [_row(plugin, each) for plugin in used for each in plugin.events]
        _demand(len({row.name for row in rows}) == len(rows), f"rules {version}", "each type once")
        tables[version] = {**RULES[RULES_DEFAULT], **{row.name: row for row in rows}}
    return tables


def check_events(proposal: Proposal, rows: Catalogue) -> None:
    """Raises Malformed for a plug-in's event whose type or fields are not those of these rules."""
    for index, event in enumerate(proposal.events):
        if is_plugin_kind(event["type"]):
            _check_event(index, event, rows)


def check_known_events(proposal: Proposal, rules: Mapping[int, Catalogue]) -> None:
    """The same for who does not know the run's rules: some rules must know each event so."""
    for index, event in enumerate(proposal.events):
        if not is_plugin_kind(event["type"]):
            continue
        tables = [rows for rows in rules.values() if event["type"] in rows] or [{}]
        for rows in tables:
            try:
                _check_event(index, event, rows)
                break
            except Malformed as error:
                refusal = error
        else:
            raise refusal


def _check_event(index: int, event: Event, rows: Catalogue) -> None:
    event_type = event["type"]
    row = rows.get(event_type)
    if row is None or row.shape is None:
        fault = Fault(f"{event_type!r} is no event type of the run's rules: is its plug-in there?")
        raise malformed_event(index, "", fault, ["type"])
    try:
        row.shape(event)
    except Fault as fault:
        raise malformed_event(index, event_type, fault, fault.steps[::-1]) from None
