"""Bugs planted on purpose: each one must be found, and by the invariant that is named here.

Invariants:
- A plant replaces names of the engine (or of the simulated disk) for as long as it is planted,
  and changes no file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from foldlog import fold, guest, holder, migrating, seat, turn, working
from foldlog.core import decide as deciding
from foldlog.core import leases
from foldlog.core.decide import Decision
from foldlog.errors import Unavailable
from foldlog.log.base import LogError, LogUnreachable
from foldlog.snapshots import checking, pruning, restoring, taking
from foldlog.snapshots.copying import copied, hashed
from foldlog.snapshots.shelf import Shelf, Snapshot
from foldlog.wire import keys
from foldlog.wire.chain import partition_hash
from foldlog.wire.records import decode_record
from foldlog.worker.effects import Effects
from tests.sim.campaign import Failure, run_one
from tests.sim.logs import HomeLog, LogDisk
from tests.sim.workload import START_US
from tests.sim.world import Config, World

Planting = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Plant:
    """One bug: what it is, how it is planted, what finds it, and within how many seeds."""

    name: str
    bug: str
    planting: Planting
    found_by: tuple[str, ...]
    seeds: int = 40
    shape: str | None = None
    snapshots: bool | None = None


PLANTS: list[Plant] = []


def plant(
    bug: str,
    *found_by: str,
    seeds: int = 40,
    shape: str | None = None,
    snapshots: bool | None = None,
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    """Note a function that plants a bug while it is suspended."""

    def note(planting: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        name = planting.__name__.strip("_")
        manager = contextlib.contextmanager(planting)
        PLANTS.append(Plant(name, bug, manager, found_by, seeds, shape, snapshots))
        return planting

    return note


@contextlib.contextmanager
def _instead(*places: tuple[Any, str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, name, value in places:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def find(planted: Plant) -> tuple[int, Failure] | None:
    """The first seed that finds a planted bug, and how; None if no seed does."""
    with planted.planting():
        for seed in range(planted.seeds):
            _, failure = run_one(Config(seed, planted.shape, snapshots=planted.snapshots))
            if failure is not None:
                return seed, failure
    return None


# Deciding


@plant("a batch id is looked up after the revision was checked", "identity_first")
def _identity_after_revision() -> Iterator[None]:
    real = deciding.decide

    def decide(state: Any, proposal: Any, log_time: int, known: Any = None, *rest: Any) -> Decision:
        first = real(state, proposal, log_time, None, *rest)
        late = first.code in ("CONFLICT", "SUPERSEDED", "FUTURE_REVISION", "EXPECTATION_REQUIRED")
        return first if late else real(state, proposal, log_time, known, *rest)

    with _instead((fold, "decide", decide)):
        yield


@plant("a known batch id is a duplicate whatever it contains", "identity_first")
def _content_not_compared() -> Iterator[None]:
    real = deciding._decide_known

    def known_only(known: Any, content: bytes, *rest: Any) -> Decision:
        return real(known, known.content, *rest)

    with _instead((deciding, "_decide_known", known_only)):
        yield


@plant("a lease expires by the decider's clock, not by log time", "decided_again")
def _clock_in_a_rule() -> Iterator[None]:
    real, worlds = leases.refuse_by_lease, list[World]()

    def refuse(state: Any, proposal: Any, log_time: int) -> Any:
        now = START_US + worlds[-1].scheduler.now + worlds[-1].machines[0].clock_us
        return real(state, proposal, now)

    def begin(self: World, config: Config, real: Any = World.__init__) -> None:
        worlds.append(self)
        real(self, config)

    with _instead((deciding, "refuse_by_lease", refuse), (World, "__init__", begin)):
        yield


@plant("conflicts are listed in the order of a set, another one in every process", "decided_again")
def _unordered_iteration() -> Iterator[None]:
    real, calls = deciding._bounded, [0]

    def bounded(conflicts: Any) -> Iterator[Any]:
        calls[0] += 1
        found = list(real(conflicts))
        yield from found if calls[0] % 2 else reversed(found)

    with _instead((deciding, "_bounded", bounded)):
        yield


# The turn


@plant(
    "the next position is off by one: a proposal is passed over",
    "one_record_per_proposal",
    "all_decided",
)
def _position_skipped() -> Iterator[None]:
    real = fold.after

    def after(meta: Any, record: Any, *rest: Any) -> Any:
        return real(meta, record, *rest)._replace(position=record.position + 2)

    with _instead((fold, "after", after), (turn, "after", after)):
        yield


@plant("the next position is off by one: a proposal is decided twice", "one_record_per_proposal")
def _position_repeated() -> Iterator[None]:
    real = fold.after

    def after(meta: Any, record: Any, *rest: Any) -> Any:
        return real(meta, record, *rest)._replace(position=record.position)

    with _instead((fold, "after", after), (turn, "after", after)):
        yield


@plant("log time is when the log took it, although clocks step back", "the_log_folds", "log_time")
def _log_time_steps_back() -> Iterator[None]:
    def log_time(record: Any, meta: Any, run: Any) -> int:
        return int(record.appended_at)

    with _instead((turn, "log_time", log_time)):
        yield


@plant("the store is written before the log", "state_is_the_fold")
def _store_before_log() -> Iterator[None]:
    real = turn.Partition._decide

    def decide(self: Any, working: Any, proposed: Any) -> Any:
        entries, noting = real(self, working, proposed)
        noting()
        self.store.write(dict(working.written()))
        return entries, lambda: None

    with _instead((turn.Partition, "_decide", decide)):
        yield


@plant("what was decided is written, not what was read back", "state_is_the_fold")
def _not_read_back() -> Iterator[None]:
    real, made = turn.Partition._decide, list[Any]()

    def decide(self: Any, working: Any, proposed: Any) -> Any:
        made.append(working)
        entries, noting = real(self, working, proposed)
        noting()
        return entries, lambda: None

    def read_back(self: Any, ours: list[bytes], reader: Any) -> None:
        working = made.pop()
        made.clear()
        self.store.write(working.written())
        self.meta = working.meta
        for value in ours:
            self.folded(decode_record(value))

    decides = (turn.Partition, "_decide", decide)
    with _instead(decides, (turn.Partition, "_read_back", read_back)):
        yield


@plant("a failed append is taken for success", "acknowledged_is_logged", "reads_are_fresh")
def _error_taken_for_success() -> Iterator[None]:
    real, real_decide, made = turn.Partition.exchange, turn.Partition._decide, list[Any]()

    def decide(self: Any, working: Any, proposed: Any) -> Any:
        entries, noting = real_decide(self, working, proposed)
        made.extend(decode_record(entry.value) for entry in entries)
        return entries, noting

    def exchange(self: Any, entries: Any) -> Any:
        made.clear()
        try:
            return real(self, entries)
        except LogError:
            for record in made:
                self.folded(record)
            if len(made) == len(entries):
                return [record.position for record in made]
            raise

    decides = (turn.Partition, "_decide", decide)
    with _instead(decides, (turn.Partition, "exchange", exchange)):
        yield


# The fold


@plant(
    "a record counts by its sequence, the head is not compared",
    "the_log_folds",
    "head_extended",
    shape="broker",
)
def _head_not_checked() -> Iterator[None]:
    real = fold.Fold.fold

    def folded(self: Any, stored: Any) -> Any:
        record = self.read(stored)
        meta = self.working.meta
        if record.previous == meta.head or record.sequence != meta.sequence + 1:
            return real(self, stored)
        head = partition_hash(record.previous, record.chain, stored.value)
        self.check_columns(stored, record, head)
        self.apply(record, stored.offset)
        self.working.meta = fold.after(meta, record, stored.offset, head)
        return record

    with _instead((fold.Fold, "fold", folded)):
        yield


@plant("void records are taken for damage", "the_log_folds", shape="broker")
def _void_is_damage() -> Iterator[None]:
    with _instead((fold.Seen, "has", lambda self, record: False)):
        yield


@plant("runs share the key of one entity", "runs_are_apart")
def _shared_key() -> Iterator[None]:
    real = keys.slot_key

    def slot_key(run_id: str, kind: str, id: str) -> bytes:
        return real("shared" if kind == "signal" else run_id, kind, id)

    with _instead((keys, "slot_key", slot_key)):
        yield


@plant("a wait's deadline is not noted for the timekeeper", "all_decided")
def _timer_forgotten() -> Iterator[None]:
    with _instead((working.Working, "_set_timer", lambda self, run, draft: None)):
        yield


# The log, the seat and the guest


@plant("the log returns before it is synced", "history_only_grows", "acknowledged_is_logged")
def _fsync_missing() -> Iterator[None]:
    with _instead((LogDisk, "sync", lambda self: None)):
        yield


@plant("a conditional append does not look at the head", "the_log_folds", shape="twins")
def _head_check_dropped() -> Iterator[None]:
    with _instead((HomeLog, "check_head", lambda self, partition, head: None)):
        yield


@plant("a holder that steps down keeps its lock", "all_decided", shape="home")
def _lock_kept() -> Iterator[None]:
    real = seat.Seat.step_down

    def step_down(self: Any, *args: Any, **options: Any) -> bool:
        with mock.patch.object(self.place, "let_go"):
            return real(self, *args, **options)

    with _instead((seat.Seat, "step_down", step_down)):
        yield


@plant(
    "a guest reads what the holder has folded so far, not what it was told",
    "reads_are_fresh",
    seeds=150,
    shape="home",
)
def _stale_guest() -> Iterator[None]:
    real = guest.Guest.reading

    def reading(self: Any, partition: int, sequence: int) -> Any:
        return real(self, partition, 0)

    with _instead((guest.Guest, "reading", reading)):
        yield


@plant("a store whose write failed is not opened again", "all_decided", shape="home")
def _store_stays_failed() -> Iterator[None]:
    with _instead((seat, "UNUSABLE", ()), (holder, "UNUSABLE", ())):
        yield


@plant("an append in doubt is told as if nothing was handed in", "errors_are_ours")
def _batch_id_lost() -> Iterator[None]:
    real = seat.Seat._hand_in

    def hand_in(self: Any, proposal: Any) -> Any:
        try:
            return real(self, proposal)
        except LogUnreachable:
            raise
        except LogError as error:
            raise Unavailable(str(error)) from error

    with _instead((seat.Seat, "_hand_in", hand_in)):
        yield


@plant("the turn's own thread ends at an outage", "errors_are_ours")
def _turn_ends() -> Iterator[None]:
    with _instead((seat.Seat, "tick", seat.Seat._tick)):
        yield


@plant("a guest does not find its outcome in the log", "all_decided", shape="home")
def _deaf_guest() -> Iterator[None]:
    def look(self: Any, handed: Any) -> Any:
        return None

    with _instead((guest.Guest, "look", look)):
        yield


# The worker kit


@plant("an effect is done without a recorded intent", "intent_first")
def _no_intent() -> Iterator[None]:
    def intend(self: Effects, call: Any, requires: Any) -> Any:
        yield from self._fence()

    with _instead((Effects, "_intend", intend)):
        yield


@plant("what may have been done is taken as failed and done again", "done_once")
def _doubt_is_failure() -> Iterator[None]:
    def settle(self: Effects, effect: Any) -> Any:
        failed = {"outcome": "failed", "evidence": "world:guess"}
        event = {"type": "EffectReconciled", "effect_id": effect.id, **failed}
        yield from self._report(event)

    with _instead((Effects, "_settle", settle)):
        yield


# Snapshots, recovery, rebuild and migration


def _kept(bug: str, *found_by: str) -> Any:
    """A bug that only seeds with snapshots can find."""
    return plant(bug, *found_by, seeds=150, snapshots=True)


@_kept("a snapshot has its name before that is durable", "snapshots_stay")
def _published_unsynced() -> Iterator[None]:
    def publish(self: Shelf, folder: Any, manifest: Any) -> Snapshot:
        target = self.folder / manifest.name
        self.disk.rename(folder, target)
        return Snapshot(self.disk, target, manifest)

    with _instead((Shelf, "publish", publish)):
        yield


@_kept("old snapshots are pruned without a look at the newer ones", "two_are_kept")
def _pruned_unverified() -> Iterator[None]:
    with _instead((pruning, "verified", lambda shelf, name, stop: None)):
        yield


@_kept("a snapshot's files are not compared with their hashes", "two_are_kept", "bad_is_not_served")
def _hash_not_compared() -> Iterator[None]:
    def check(said: Any, found: Any) -> None:
        return

    with _instead((restoring, "check_file", check), (checking, "check_file", check)):
        yield


@_kept("a snapshot's tables are links to those of the live store", "snapshots_stay")
def _live_tables() -> Iterator[None]:
    def linked(disk: Any, source: Any, target: Any, *rest: Any) -> Any:
        if source.suffix != ".sst":
            return copied(disk, source, target, *rest)
        disk.link(source, target)
        return hashed(disk, target)

    with _instead((taking, "copied", linked)):
        yield


@_kept("a lifted run keeps the sum of its state hash", "state_is_the_fold", "the_log_folds")
def _old_sum_kept() -> Iterator[None]:
    with _instead((migrating, "lifted_sum", lambda reader, run: run.head.state_sum)):
        yield


@_kept("what cannot be lifted is decided all the same", "the_log_folds", "decided_again")
def _stuck_is_resumed() -> Iterator[None]:
    class Every(int):
        def __ne__(self, other: object) -> bool:
            return False

    with _instead((deciding, "SCHEMA_VERSION", Every(2))):
        yield
