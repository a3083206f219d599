"""``Engine`` in memory, with a clock that you set: for the tests of your own agents.

    from foldlog.testing import Engine

    with Engine(now="2026-01-01T00:00:00Z") as engine:
        run = engine.start("run_1", goal="...")
        engine.clock.advance(3600)          # deadlines pass, leases run out
        assert run.state().status == "retry"

Invariants:
- The real decider, turn, codec and fold run; only log, store and clock are in memory.
- Nothing happens by itself: time moves when the clock is told, and the timekeeper with it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import Any

from foldlog import client
from foldlog.core.catalogue import RULES, Catalogue, touched
from foldlog.core.context import Context, Event, Refusal
from foldlog.core.plugins import RULES_OF_PLUGINS_MIN, Plugin
from foldlog.core.state import Address, Draft, Header, RunState, is_plugin_kind
from foldlog.core.values import format_instant, parse_instant
from foldlog.errors import Damaged
from foldlog.evidence import EvidenceCheck
from foldlog.guest import Follower
from foldlog.log.base import Log
from foldlog.log.memory import MemoryLog
from foldlog.plugins import Plugins, rules_of
from foldlog.seat import Seat
from foldlog.snapshots.kept import NoSnapshots
from foldlog.store.base import Store, StoreError
from foldlog.store.memory import MemoryStore
from foldlog.working import NoSlots


class Clock:
    """A clock that stands still until it is told; microseconds since the Unix epoch when called."""

    def __init__(self, now: str, moved: Callable[[], None] = lambda: None) -> None:
        self._now = parse_instant(now) // 1000
        self._moved = moved

    def __call__(self) -> int:
        return self._now

    @property
    def now(self) -> str:
        """The time it shows."""
        return format_instant(self._now)

    def set(self, time: str) -> None:
        """Show this time from here on; it may be earlier than before."""
        self._now = parse_instant(time) // 1000
        self._moved()

    def advance(self, seconds: int | float) -> None:
        """Show a time that is later by so many seconds."""
        self._now += round(seconds * 1_000_000)
        self._moved()


class MemoryPlace:
    """A home in memory, where nobody else can be (``place.Place``)."""

    def __init__(self, log: Log, stores: Sequence[Store] | None = None) -> None:
        self.log = log
        self.snapshots = NoSnapshots()
        self._stores = stores

    def stores(self) -> list[Store | Damaged]:
        """The given stores, else empty ones: the log is folded into them."""
        return list(self._stores or [MemoryStore() for _ in range(self.log.partitions)])

    def follower(self, partition: int) -> Follower:
        """There is nobody to follow."""
        raise StoreError("memory", "is held by this process", "read it there")

    def try_hold(self) -> bool:
        """Nobody else wants it."""
        return True

    def let_go(self) -> None:
        """Nobody waits for it."""

    def note(self, role: str, phase: str, turned_at: int) -> None:
        """Nobody reads it."""

    def holder(self) -> None:
        """Nobody else holds it."""

    def recovering(self, partition: int, records: int) -> None:
        """Nobody watches."""

    def turned(self) -> bool:
        """Nothing is kept beside the log."""
        return False

    def daemon_waits(self) -> bool:
        """There is no daemon."""
        return False

    def listen(self) -> None:
        """Nobody rings."""

    def rest(self, microseconds: int) -> None:
        """Time stands still."""

    def ring(self) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Let the log go."""
        self.log.close()


class Engine(client.Engine):
    """An engine in memory. ``raise_in`` names an event type whose rule then raises."""

    def __init__(
        self,
        now: str = "2026-01-01T00:00:00Z",
        partitions: int = 1,
        timekeeper: bool = True,
        raise_in: str | None = None,
        author: str | None = None,
        plugins: Plugins | None = None,
        evidence_check: EvidenceCheck | None = None,
    ) -> None:
        self.clock = Clock(now, self._clock_moved)
        place = MemoryPlace(MemoryLog(partitions, self.clock))
        rules = rules_of(plugins or {})
        if raise_in is not None:
            rules = raising_rules(raise_in, rules)
        seat = Seat(place, self.clock, timekeeper=timekeeper, rules=rules)
        seat.take()
        super().__init__(seat, self.clock, author=author)
        self.evidence_check = evidence_check

    def _clock_moved(self) -> None:
        self.project()


class LawBroken(AssertionError):
    """A plug-in does not keep what the engine and its users rely on."""


def check_plugin(plugin: Plugin, events: Sequence[Event]) -> None:
    """Try a plug-in on samples of its events; LawBroken names the first law that does not hold.

    The events are proposed one after the other to a run, so they are a story in which each event
    type is accepted at least once; foldlog's own may stand among them. The laws: an event comes
    back from the log as it was proposed; the history folds, and is decided again, to the same; and
    whichever of two events that commute comes first, at the beginning of the run or at the end of
    the story, the collections are the same in the end.
    """
    accepted = _story(plugin, events)
    rows = rules_of({RULES_OF_PLUGINS_MIN: [plugin]})[RULES_OF_PLUGINS_MIN]
    for definition in plugin.events:
        name = f"{plugin.name}:{definition.name}"
        if all(event["type"] != name for event in accepted):
            raise LawBroken(f"{name}: the story has no event of this type that is accepted")
    own = [event for event in accepted if is_plugin_kind(event["type"])]
    for one, other in combinations([e for e in own if rows[e["type"]].is_plus(e)], 2):
        if _written(rows, one).isdisjoint(_written(rows, other)):
            for before in ([], accepted):
                _check_order(plugin, before, one, other)


def _story(plugin: Plugin, events: Sequence[Event]) -> list[Event]:
    """The events that are accepted, once what the log holds of them has been proven."""
    accepted = []
    with _run_of(plugin) as run:
        for event in events:
            if _propose(run, event):
                accepted.append(event)
                kept = run.history()[-1].to_dict()["events"]
                if kept != [{k: v for k, v in event.items() if v is not None}]:
                    raise LawBroken(f"{event} comes back from the log as {kept}")
        report = run.engine.verify(redecide=True).to_dict()
    if not report["ok"]:
        raise LawBroken(f"the history does not fold to the same again: {report}")
    return accepted


def _check_order(plugin: Plugin, before: Sequence[Event], one: Event, other: Event) -> None:
    ends = []
    for pair in ((one, other), (other, one)):
        with _run_of(plugin) as run:
            if not all(_propose(run, event) for event in (*before, *pair)):
                return  # refused: no promise was made
            state = run.state()
            assert state is not None
            ends.append(
                {
                    kind: [_bare(each) for each in members]
                    for kind, members in state.plugins.to_dict().items()
                }
            )
    if ends[0] != ends[1]:
        raise LawBroken(
            f"{one} and {other} do not commute: in this order they give {ends[0]}, "
            f"in the other {ends[1]}"
        )


@contextlib.contextmanager
def _run_of(plugin: Plugin) -> Iterator[client.Run]:
    with Engine(plugins={RULES_OF_PLUGINS_MIN: [plugin]}, author="operator:laws") as engine:
        yield engine.start("run", goal="try", rules_version=RULES_OF_PLUGINS_MIN)


def _propose(run: client.Run, event: Event) -> bool:
    """Whether an event is accepted; a reducer that raises is a law broken."""
    state = run.state()
    assert state is not None
    outcome = run.propose([event], expected_revision=state.revision)
    if outcome.outcome == "quarantined":
        raise LawBroken(f"{event}: its reducer raises: {outcome.message}")
    return outcome.accepted


def _written(rows: Catalogue, event: Event) -> set[Address]:
    return set(touched(rows[event["type"]].writes, event, RunState(Header("run"), NoSlots())))


def _bare(member: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in member.items() if key not in ("author", "revision")}


class RuleRaised(Exception):
    """What the rule of ``raise_in`` raises."""


def raising_rules(
    event_type: str, rules: Mapping[int, Catalogue] = RULES
) -> Mapping[int, Catalogue]:
    """The rules with one event type whose check raises, to see a quarantine."""

    def check(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
        raise RuleRaised(f"the rule of {event_type} was told to raise")

    if not any(event_type in table for table in rules.values()):
        raise ValueError(f"no event type {event_type!r}")
    return {
        version: MappingProxyType(
            {
                name: replace(row, check=check) if name == event_type else row
                for name, row in table.items()
            }
        )
        for version, table in rules.items()
    }
