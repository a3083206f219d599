"""The client: what an agent worker, an importer or a command line holds. CONTRACT section 5.

Invariants:
- A rejection is a value, never an exception; what does not exist is None or an empty list.
- An outcome that was returned is durable in the log and folded into the projection, so the next
  read of this client is at least as new.
- What is malformed is refused here, with ``recorded: false``; its batch id is not used up.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from foldlog import audit, views
from foldlog.apart import Apart
from foldlog.core.catalogue import Catalogue
from foldlog.core.document import document, transitions
from foldlog.core.plugins import check_known_events
from foldlog.core.proposals import Malformed, Proposal, parse_proposal
from foldlog.core.values import is_run_id
from foldlog.errors import Damaged, OutcomeUnknown, Unavailable, Usage
from foldlog.events import Event, Goal, plain
from foldlog.evidence import EvidenceCheck
from foldlog.holder import OUTAGES
from foldlog.home import Home, create_home, open_home, other_partitions
from foldlog.log.base import Clock
from foldlog.operating import (
    AnySeat,
    EngineOperations,
    RunOperations,
    microseconds,
    parse_author,
)
from foldlog.plugins import Plugins, rules_of
from foldlog.proving import EngineProofs, parse_moment
from foldlog.reaching import Reaching
from foldlog.refusals import Refusals
from foldlog.results import (
    Difference,
    HistoryRow,
    Outcome,
    RunState,
    RunSummary,
    Value,
)
from foldlog.runtime import SECOND
from foldlog.runtime import wall_clock as wall_clock
from foldlog.seat import Seat
from foldlog.snapshots.settings import SnapshotSettings
from foldlog.views import View
from foldlog.watching import Watch
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import Record

AnyEvent = Event | Mapping[str, Any]


def default_author() -> str:
    """``user:$USER``, or ``user:unknown`` where USER is not set."""
    return f"user:{os.environ.get('USER') or 'unknown'}"


@contextlib.contextmanager
def outages_told() -> Iterator[None]:
    """Tell an outage of log or store as Unavailable."""
    try:
        yield
    except Damaged:
        raise
    except OUTAGES as error:
        raise Unavailable(str(error)) from error


class Engine(EngineOperations, EngineProofs, Reaching):
    """An open home. Any thread may use it; it is a context manager.

    Any number of processes may have one home open: one of them holds the projection and turns
    the log, in a thread of its own, the others hand in proposals and read. Who does what changes
    over by itself, and makes no difference to the caller.
    """

    def __init__(self, seat: AnySeat, clock: Clock, *, author: str | None = None) -> None:
        self.author = author or default_author()
        self.evidence_check: EvidenceCheck | None = None
        self._folder: Path | None = None
        self._clock = clock
        self._seat = seat
        self._apart = Apart()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        create: bool = False,
        partitions: int | None = None,
        author: str | None = None,
        clock: Clock = wall_clock,
        plugins: Plugins | None = None,
        evidence_check: EvidenceCheck | None = None,
        snapshots: SnapshotSettings | None = None,
    ) -> Self:
        """Open the home in a directory, with ``create`` make it where it is missing.

        ``plugins`` are users' own events by the rules version that brings them; those that are
        installed, if None (``foldlog.plugins``). ``snapshots`` says when they are taken, instead of
        the environment.
        ``evidence_check`` says of a reference whether what it names is there. It is asked before a
        proposal is handed in: one whose evidence is missing gets EVIDENCE_REQUIRED, unrecorded.
        It is not asked for the run's own history (``history://RUN@revN``), which the worker names.

        HomeMissing, HomeExists (another number of partitions), Damaged (log and projection do
        not fit), Unavailable, Usage.
        """
        path, apart, made = Path(directory), Apart(), list[Self]()
        rules = rules_of(plugins)

        def work() -> None:
            if create:
                create_home(path, partitions)
            home = open_home(path, clock, snapshots, rules)
            made.append(cls._opened(home, partitions, clock, author, rules))

        apart.call(work, undo=lambda _: made.pop().close())
        [engine] = made
        engine._apart, engine._folder, engine.evidence_check = apart, path, evidence_check
        return engine

    @classmethod
    def _opened(
        cls,
        home: Home,
        partitions: int | None,
        clock: Clock,
        author: str | None,
        rules: Mapping[int, Catalogue],
    ) -> Self:
        try:
            if partitions not in (None, home.log.partitions):
                raise other_partitions(home.path, home.log.partitions)
            engine = cls(Seat(home, clock, rules=rules), clock, author=author)
        except BaseException:
            home.close()
            raise
        engine._sit_down()
        engine._start()
        return engine

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._tick, name="foldlog-turn", daemon=True)
        self._thread.start()

    def _sit_down(self) -> None:
        """Take the seat if it is free and decide what waits; if that fails, leave it as it was."""
        try:
            with outages_told():
                if self._seat.take():
                    # What is halted says so to whoever needs it; the rest is served.
                    with contextlib.suppress(Damaged):
                        self._seat.turn_all()
        except BaseException:
            self._seat.close()
            raise

    def _tick(self) -> None:
        while not self._stop.is_set():
            microseconds = self._seat.tick()
            if self._seat.is_holder:
                self._seat.place.rest(microseconds)
            else:
                self._stop.wait(microseconds / SECOND)

    def close(self) -> None:
        """Leave the home; nothing acknowledged is lost. May be called twice."""
        if self._seat.is_here:
            self._apart.call(self._close)
            self._apart.close()

    def _close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            if self._thread is not None:
                self._seat.place.ring()
                self._thread.join()
            self._seat.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def partitions(self) -> int:
        """The number of partitions of this home's log."""
        return self._seat.place.log.partitions

    # Runs

    def run(self, run_id: str) -> "Run":
        """A handle on a run, which need not exist."""
        return Run(self, run_id)

    def start(
        self,
        run_id: str,
        goal: str | Goal | Mapping[str, Any],
        *,
        author: str | None = None,
        batch_id: str | None = None,
        timeout: float = 10.0,
        **fields: Any,
    ) -> "Run":
        """Start a run; the outcome, rejected or not, is ``run.started``.

        ``goal`` is its statement or a whole goal; ``fields`` are those of RunStarted.
        """
        whole = {"statement": goal} if isinstance(goal, str) else goal
        run = self.run(run_id)
        event = {"type": "RunStarted", "goal": whole, **fields}
        run.started = run.propose([event], author=author, batch_id=batch_id, timeout=timeout)
        return run

    def runs(
        self,
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
        *,
        alarms: bool = False,
        archived: bool = False,
    ) -> list[RunSummary]:
        """The runs of this home, newest change first; at most ``limit`` of them.

        ``alarms``: only those that have one. ``archived``: those that are, in place of the others.
        """
        if limit is not None and limit < 0:
            raise Usage(f"limit is {limit}, not 0 or more")
        rows: list[dict[str, Any]] = []
        for number in range(self.partitions):
            with self._reading_partition(number) as view:
                now = max(self._clock(), view.meta().log_time)
                found = view.archived_runs() if archived else view.runs()
                rows.extend(views.summary(run, now) for run in found)
        rows = [
            row
            for row in rows
            if views.matches(row, status, labels or {}) and (row["alarms"] or not alarms)
        ]
        rows.sort(key=lambda row: row["run_id"])
        rows.sort(key=lambda row: row["changed_at"], reverse=True)
        return [RunSummary(row) for row in rows[:limit]]

    def project(self, progress: audit.Progress = audit.no_progress) -> int:
        """Have everything decided that waits now; returns how many records this process decided.

        Where another process holds the projection, waits until it has come so far.
        """
        count = self._settle()
        progress(count)
        return count

    # Inside

    @contextlib.contextmanager
    def _reading(self, run_id: str) -> Iterator[View]:
        with outages_told(), self._seat.reading(run_id) as view:
            yield view

    @contextlib.contextmanager
    def _reading_partition(self, number: int) -> Iterator[View]:
        with outages_told(), self._seat.reading_partition(number) as view:
            yield view

    def _hand_in(self, proposal: Proposal, timeout: int) -> Record:
        return self._apart.call(self._seat.begin(proposal, timeout))

    def _settle(self, run_id: str | None = None) -> int:
        """Have everything decided that waits now; how many records this process decided."""
        with outages_told():
            return self._apart.call(lambda: self._seat.settle(run_id))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _listed(value: Any) -> Any:
    """The list that an iterable gives; what is none is left for the outcome to name."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    return list(value) if is_list else value


class Run(Refusals, RunOperations):
    """One run of an engine: propose to it, read it, now and then."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self.engine = engine
        self.run_id = run_id
        self.started: Outcome | None = None
        self._valid = _is_text(run_id) and is_run_id(run_id)

    # Proposing

    def propose(
        self,
        events: Sequence[AnyEvent] | AnyEvent,
        *,
        expected_revision: int | None = None,
        author: str | Mapping[str, str] | None = None,
        lease_epoch: int | None = None,
        on_conflict: str | None = None,
        reads: Iterable[str] | None = None,
        batch_id: str | None = None,
        occurred_at: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        traceparent: str | None = None,
        timeout: float = 10.0,
    ) -> Outcome:
        """Propose a batch of events and return its outcome, durable and folded.

        ``author`` is "KIND:ID" (default: the engine's). OutcomeUnknown(batch_id) if the outcome
        is not there after ``timeout`` seconds; ask ``outcome(batch_id)`` later, and propose the
        same batch again only under the same ``batch_id``.
        """
        whole = [events] if isinstance(events, Event | Mapping) else _listed(events)
        optional = {
            "expected_revision": expected_revision,
            "lease_epoch": lease_epoch,
            "on_conflict": on_conflict,
            "batch_id": batch_id,
            "occurred_at": occurred_at,
            "correlation_id": correlation_id,
            "causation_id": causation_id,
            "traceparent": traceparent,
        }
        value = {
            **{name: given for name, given in optional.items() if given is not None},
            "author": parse_author(self.engine.author if author is None else author),
            "reads": [] if reads is None else _listed(reads),
            "events": plain(whole),
        }
        return self.propose_json(value, timeout=timeout)

    def propose_json(self, value: Any, *, timeout: float = 10.0) -> Outcome:
        """Propose a whole proposal as CONTRACT section 2 has it; fills in batch id and author."""
        if isinstance(value, dict):
            filled = dict(value)
            if filled.get("batch_id") is None:
                filled["batch_id"] = str(uuid.uuid4())
            if filled.get("author") is None:
                filled["author"] = parse_author(self.engine.author)
            value = filled
        try:
            proposal = parse_proposal(self.run_id, value)
            check_known_events(proposal, self.engine._seat.rules)
            if (refusal := self._without_evidence(proposal)) is not None:
                return refusal
            record = self.engine._hand_in(proposal, microseconds(timeout))
        except Malformed as error:
            return self.refused(value, error)
        if record.outcome != "duplicate":
            number = partition_of(self.run_id, self.engine.partitions)
            return Outcome(views.outcome_value(record, number))
        try:
            with self.engine._reading(self.run_id) as view:
                return Outcome(views.first_outcome(view, record))
        except Unavailable as error:
            # Decided, and not to be told now: who has no batch id of its own must learn this one.
            raise OutcomeUnknown(self.run_id, proposal.batch_id, f"{timeout:g}") from error

    def signal(
        self, key: str, payload: Any = None, *, signal_id: str | None = None, **options: Any
    ) -> Outcome:
        """Send a signal; ``signal_id`` makes it safe to send again. Options as in ``propose``.

        Without one it is the batch id, so that the same batch sent again is the same batch.
        """
        id = options.get("batch_id") if signal_id is None else signal_id
        if id is None:
            id = str(uuid.uuid4())
        event = {"type": "SignalReceived", "key": key, "signal_id": id}
        if payload is not None:
            event["payload"] = payload
        return self.propose([event], **options)

    def cancel(self, reason: str, **options: Any) -> Outcome:
        """Cancel the run. Options as in ``propose``."""
        return self.propose([{"type": "RunCancelled", "reason": reason}], **options)

    # Reading

    def state(self, *, after: int | None = None, timeout: float = 10.0) -> RunState | None:
        """The run now; None if it does not exist.

        ``after`` is a sequence that some outcome named: first waits until the projection has
        folded it, TimedOut if that takes more than ``timeout`` seconds.
        """
        if after is not None and self._valid:
            with outages_told():
                self.engine._await_folded(self.run_id, after, timeout)
        state: RunState | None = self._read(lambda view: _state(view.run(self.run_id).state()))
        return state

    def at(self, moment: int | str) -> RunState | None:
        """The run after a revision, or at a time (inclusive); None where it was not there."""
        revision, instant = parse_moment(moment)
        state: RunState | None = self._read(
            lambda view: _state(
                views.state_at(view, self.run_id, revision=revision, instant=instant)
            )
        )
        return state

    def history(self, *, rejected: bool = False) -> list[HistoryRow]:
        """What was proposed and decided, oldest first; only what changed the run by default."""
        rows = self._read(lambda view: views.history(view, self.run_id, rejected=rejected))
        return [HistoryRow(row) for row in rows or []]

    def transitions(self) -> list[Value]:
        """Every change of status, oldest first: {from, to, reason, at, revision}."""
        rows = self._read(lambda view: list(transitions(view.run(self.run_id).state())))
        return [Value(row) for row in rows or []]

    def diff(self, a: int, b: int) -> list[Difference] | None:
        """What changed between two revisions; None if the run has not both of them."""

        def work(view: View) -> list[dict[str, Any]] | None:
            before = views.state_at(view, self.run_id, revision=a)
            after = views.state_at(view, self.run_id, revision=b)
            return None if before is None or after is None else views.difference(before, after)

        rows = self._read(work)
        return None if rows is None else [Difference(row) for row in rows]

    def export(self) -> list[bytes] | None:
        """The bytes of the run's records, oldest first; None if it never began."""
        found = self._read(lambda view: [data for _, data in views.exported(view, self.run_id)])
        return found or None

    def outcome(self, batch_id: str) -> Outcome | None:
        """What became of a proposal; None if this run has none of that id.

        One that still waits to be decided is decided first.
        """

        def work(view: View) -> dict[str, Any] | None:
            known = batch_id if _is_text(batch_id) else ""
            record = views.record_of_batch(view, self.run_id, known)
            return None if record is None else views.outcome_value(record, view.partition)

        value = self._read(work)
        if value is None and self._valid:
            with contextlib.suppress(Damaged):  # told by whatever reads more than an outcome
                self.engine._settle(self.run_id)
            value = self._read(work)
        return None if value is None else Outcome(value)

    def watch(
        self, *, after: int | None = None, timeout: float | None = None, rejected: bool = False
    ) -> Iterator[HistoryRow]:
        """Each row that changes the run, as it comes; a quarantine too; with ``rejected`` each.

        ``after`` is a revision: what came since is given first, with 0 everything (default: only
        what comes from now on). Ends after ``timeout`` seconds without a row; never by itself
        without one. The run need not exist yet.
        """
        watch = self._watching(after, timeout, rejected)
        while not watch.is_over():
            yield from watch.look()
            time.sleep(watch.pause())

    def _watching(self, after: int | None, timeout: float | None, rejected: bool) -> Watch:
        return Watch(self.run_id, self.engine._reading, after, timeout, rejected)

    def _read(self, work: Callable[[View], Any]) -> Any:
        """Read this run; None if its id cannot be one."""
        if not self._valid:
            return None
        with self.engine._reading(self.run_id) as view:
            return work(view)


def _state(state: Any) -> RunState | None:
    return None if state is None or not state.exists else RunState(document(state))
