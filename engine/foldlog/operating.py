"""What people who look after runs ask an engine and a run, beside what a worker needs.

Invariants:
- Reading changes nothing; settling a run is a proposal like any other, and its outcome a value.
- Nobody waits in silence: a wait beside a holder that decides nothing ends with ProjectorStalled.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foldlog import views
from foldlog.connected import ConnectedSeat
from foldlog.core.context_text import Counter, context_text
from foldlog.core.document import condition, document
from foldlog.core.proposals import RUN_ARCHIVED, Malformed
from foldlog.core.resume import Caller, Workspace, resume_check
from foldlog.core.shapes import STATUSES
from foldlog.core.state import RunState, ordinal
from foldlog.core.tokens import estimated_tokens
from foldlog.core.values import Author, can_be_id, is_batch_id
from foldlog.errors import Damaged, TimedOut, Unavailable, Usage, check_timeout
from foldlog.forking import parts_of_fork
from foldlog.halting import why_halted
from foldlog.heads import head_of
from foldlog.log.base import LogError
from foldlog.results import (
    Conflict,
    ContextText,
    Head,
    Outcome,
    PartitionStatus,
    Quarantined,
    ResumeCheck,
    SnapshotTaken,
    Waited,
    Why,
)
from foldlog.runtime import SECOND
from foldlog.seat import STALLED_US, Seat
from foldlog.store.base import StoreError
from foldlog.store.memory import MemoryStore
from foldlog.views import View
from foldlog.wire.envelope import batch_id_text
from foldlog.wire.imports import ImportPart, encode_part, parts_of
from foldlog.wire.partitioner import partition_of
from foldlog.workspace import WorkspaceUnreadable, workspace_version

AnySeat = Seat | ConnectedSeat

AT_REST = ("waiting", "finish")
"""What a wait is for unless told otherwise: no worker has anything to do there."""

TIMEOUT_SECONDS_MAX = 10**9
"""Longer than anybody waits; a longer time-out is this one."""

LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.005, 0.1
"""Between two looks of a wait; the first ones are short."""


def parse_author(author: Any) -> Any:
    """``KIND:ID``, or a mapping, as a proposal's author; the outcome tells what is wrong."""
    if not isinstance(author, str):
        return dict(author) if isinstance(author, Mapping) else author
    kind, _, id = author.partition(":")
    return {"kind": kind, "id": id}


def author_of(author: Any) -> Author:
    """The same as the author of an import or a fork, whose outcome tells only who may do that."""
    shown = parse_author(author)
    if not (isinstance(shown, dict) and all(can_be_id(shown.get(key)) for key in ("kind", "id"))):
        raise Usage(f"an author is KIND:ID, or a mapping of kind and id, not {author!r}")
    return Author(shown["kind"], shown["id"])


class EngineOperations:
    """What an engine answers about the home as a whole."""

    if TYPE_CHECKING:
        author: str
        _seat: AnySeat
        _clock: Callable[[], int]

        @property
        def partitions(self) -> int: ...
        def _reading_partition(self, number: int) -> contextlib.AbstractContextManager[View]: ...

    def status(self) -> list[PartitionStatus]:
        """Each partition: who turns it, how far it is, what waits, how many runs have alarms."""
        return [
            PartitionStatus({**self._status(number), "outage": self._seat.outage_of(number)})
            for number in range(self.partitions)
        ]

    def _status(self, number: int) -> dict[str, Any]:
        owner, clock = self._seat.owner_of(number), self._clock()
        try:
            with self._reading_partition(number) as view:
                return views.status(view, owner, clock, why_halted(view))
        except Damaged as error:  # halted without a projection that could be shown
            nothing = View(self._seat.place.log, MemoryStore(), number)
            return views.status(nothing, owner, clock, error)

    def heads(self) -> list[Head]:
        """Each partition's sequence and head. Keep them elsewhere, for ``verify(heads=...)``."""
        with self._views() as every:
            return [Head(head_of(view)) for view in every]

    def take_snapshots(
        self,
        partitions: Iterable[int] | None = None,
        *,
        progress: Callable[[int], None] = lambda size: None,
    ) -> list[SnapshotTaken]:
        """Take a snapshot of each of these partitions (all of them) while the log is turned.

        One of which nothing is folded yet gets none; where nothing changed since the newest one,
        that one is verified and given. Unavailable if it cannot be written, Damaged if the
        projection is no fold of the log.
        """
        kept, taken = self._seat.place.snapshots, list[SnapshotTaken]()
        for number in range(self.partitions) if partitions is None else partitions:
            with self._reading_partition(number) as view:
                if view.meta().sequence == 0:
                    continue
            try:
                row = kept.take(number, progress)
            except (OSError, StoreError, LogError) as error:
                raise Unavailable(f"no snapshot of partition {number}: {error}") from error
            if row is not None:
                taken.append(SnapshotTaken(row))
        return taken

    def quarantined(self) -> list[Quarantined]:
        """The quarantined runs, the one quarantined first before the others."""
        with self._views() as every:
            rows = [row for view in every for row in views.quarantines(view)]
        rows.sort(key=lambda row: (row["since"], row["run_id"]))
        return [Quarantined(row) for row in rows]

    def import_records(
        self,
        run_id: str,
        records: Sequence[bytes],
        *,
        author: str | Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> tuple[Outcome, int]:
        """Take over a run that another log decided: the bytes of its records, from its beginning.

        Nothing is decided again. Returns what became of the last part that was handed in (accepted
        or rejected), and how many parts there are; the run is visible once all are accepted. After
        a crash the same records go on where they stopped. ``timeout`` seconds for each part.
        """
        if not records:
            raise Usage(f"no records of run {run_id} were given")
        by = author_of(self.author if author is None else author)
        parts = parts_of(run_id, list(records), by)
        return self._hand_in_parts(parts, timeout), len(parts)

    def _hand_in_parts(self, parts: Sequence[ImportPart], timeout: float) -> Outcome:
        """What became of the last part of an import that was handed in: of all, if none is refused.

        ``timeout`` seconds for each.
        """
        for part in parts:
            number = partition_of(part.run_id, self.partitions)
            record = self._seat.hand_in(part.run_id, encode_part(part), microseconds(timeout))
            value = {**views.part_value(record, number), "run_id": part.run_id}
            if value["outcome"] == "rejected":
                with self._reading_partition(number) as view:
                    return Outcome({**value, "revision": view.run(part.run_id).header.revision})
        return Outcome(value)

    @contextlib.contextmanager
    def _views(self) -> Iterator[Iterator[View]]:
        """Each partition as of one moment of its own, one after the other."""

        def views_of_all() -> Generator[View, None, None]:
            for number in range(self.partitions):
                with self._reading_partition(number) as view:
                    yield view

        with contextlib.closing(views_of_all()) as every:
            yield every

    def _now(self, view: View) -> int:
        """The time as alarms count it: the clock's, or the log's where that is later."""
        return max(self._clock(), view.meta().log_time)

    def _await_folded(self, run_id: str, sequence: int, timeout: float) -> None:
        """Wait until a run's partition is folded so far; TimedOut if it is not in that time."""
        number = partition_of(run_id, self.partitions)
        patience = Patience(timeout)
        while True:
            with self._reading_partition(number) as view:
                found = view.meta().sequence
            if found >= sequence:
                return
            if patience.is_over():
                raise TimedOut(
                    f"partition {number} is folded to sequence {found}, not to {sequence}, within "
                    f"{timeout:g} s: foldlog status"
                )
            patience.rest()


def microseconds(timeout: float) -> int:
    """A time-out in seconds as the seat takes it; Usage for what is no length of time."""
    check_timeout(timeout)
    return round(min(timeout, TIMEOUT_SECONDS_MAX) * SECOND)


class Patience:
    """How long somebody waits, and how long until the next look. Seconds; None is for ever."""

    def __init__(self, timeout: float | None) -> None:
        check_timeout(timeout)
        self._end = None if timeout is None else time.monotonic() + timeout
        self._pause = LOOK_SECONDS_MIN

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    def pause(self) -> float:
        """Seconds until the next look; longer each time."""
        pause, self._pause = self._pause, min(self._pause * 2, LOOK_SECONDS_MAX)
        return pause if self._end is None else max(0.0, min(pause, self._end - time.monotonic()))

    def rest(self) -> None:
        """Wait for the next look."""
        time.sleep(self.pause())


class Waiter:
    """One wait for a status: what each look at the run says of it.

    A status that the run passed through between two looks counts: it was there.
    """

    def __init__(
        self, seat: Seat | ConnectedSeat, until: str | None, timeout: float | None
    ) -> None:
        if until is not None and until not in STATUSES:
            raise Usage(f"{until!r} is no status: {', '.join(STATUSES)}")
        self.patience = Patience(timeout)
        self._seat = seat
        self._until = until
        self._seen: int | None = None
        self._stuck = (0, 0)

    def look(self, view: View, run_id: str) -> Waited | None:
        """How the run stands now; None if there is no such run."""
        state = view.run(run_id).state()
        if not state.exists:
            return None
        last = state.header.transitions_count
        wanted = AT_REST if self._until is None else (self._until,)
        # The first look is at where the run stands, each later one also at what it passed.
        first = last if self._seen is None else self._seen + 1
        for number in range(first, last + 1):
            transition = state.value("transition", ordinal(number))
            if transition["to"] in wanted:
                return self._waited(state, transition, reached=True)
        self._seen = last
        self._check_turning(view)
        return self._waited(state, state.value("transition", ordinal(last)), reached=False)

    def is_over(self, waited: Waited) -> bool:
        """Whether there is nothing more to wait for."""
        return waited.reached or waited.status == "finish" or self.patience.is_over()

    def _waited(self, state: RunState, transition: dict[str, Any], *, reached: bool) -> Waited:
        result = state.header.result if transition["to"] == "finish" else None
        return Waited(
            {
                "run_id": state.header.run_id,
                "until": self._until,
                "reached": reached,
                "status": transition["to"],
                "result": result,
                "revision": transition["revision"],
                "since": transition["at"],
                "condition": condition(state),
            }
        )

    def _check_turning(self, view: View) -> None:
        """While something waits to be decided, somebody has to be at it."""
        position, now = view.meta().position, self._seat.runtime.monotonic()
        if position != self._stuck[0] or view.log.proposals_end(view.partition) == position:
            self._stuck = (position, now)
        elif now - self._stuck[1] >= STALLED_US:
            self._seat.check_holder(self._stuck[1])


class RunOperations:
    """What a run answers to who looks after it, and how they settle it."""

    if TYPE_CHECKING:
        run_id: str
        engine: Any

        def propose(self, *events: Any, **options: Any) -> Outcome: ...
        def _read(self, work: Callable[[View], Any]) -> Any: ...

    def why(self) -> Why | None:
        """What it waits for or is kept by, since when, and who can move it; None if not there."""

        def work(view: View) -> Why | None:
            run = view.run(self.run_id)
            if not run.state().exists:
                return None
            return Why(views.reasons(run, self.engine._now(view)))

        found: Why | None = self._read(work)
        return found

    def resume_check(
        self,
        *,
        worker: str | None = None,
        commit: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        agent_version: Mapping[str, str] | None = None,
    ) -> ResumeCheck | None:
        """Whether it may be taken up again: verdict, reasons, and the plan; None if not there.

        What the caller says of itself is compared with what the run knows: its ``worker`` id with
        the lease, ``commit`` and the version of the folder ``workspace`` (``workspace_version``)
        with the run's current_commit, ``agent_version`` key by key.
        """
        folder = None if workspace is None else _looked_at(workspace)
        caller = Caller(worker, commit, folder, agent_version or {})

        def work(view: View) -> ResumeCheck | None:
            state = view.run(self.run_id).state()
            if not state.exists:
                return None
            batch = view.batches(self.run_id)
            return ResumeCheck(resume_check(state, self.engine._now(view), caller, batch))

        found: ResumeCheck | None = self._read(work)
        return found

    def context(
        self, max_tokens: int | None = None, *, counter: Counter = estimated_tokens
    ) -> ContextText | None:
        """The compact text that goes into a model's context; None if there is no such run.

        At most ``max_tokens`` tokens as ``counter`` counts them; where not even what is never left
        out fits, ``text`` is None and ``needed`` the number that would do.
        """
        if max_tokens is not None and max_tokens < 0:
            raise Usage(f"max_tokens is {max_tokens}, not 0 or more")

        def work(view: View) -> dict[str, Any] | None:
            state = view.run(self.run_id).state()
            return document(state) if state.exists else None

        shown = self._read(work)
        return None if shown is None else ContextText(context_text(shown, max_tokens, counter))

    def wait(self, until: str | None = None, timeout: float | None = None) -> Waited | None:
        """Wait until the run is, or was meanwhile, in a status; ``reached`` says whether.

        Without ``until``: until it waits or is finished. Not reached once the run is finished
        otherwise, or after ``timeout`` seconds (None: for ever). None if there is no such run.
        """
        waiter = self._waiter(until, timeout)
        while (found := self._look(waiter)) is not None and not waiter.is_over(found):
            waiter.patience.rest()
        return found

    def _waiter(self, until: str | None, timeout: float | None) -> Waiter:
        return Waiter(self.engine._seat, until, timeout)

    def _look(self, waiter: Waiter) -> Waited | None:
        found: Waited | None = self._read(lambda view: waiter.look(view, self.run_id))
        return found

    def conflicts(self) -> list[Conflict]:
        """The open conflicts, ordered by id; none if there is no such run."""

        def work(view: View) -> list[Any]:
            slots = view.run(self.run_id).state().slots
            return [slot.shown() for _, slot in slots.scan("conflict")]

        return [Conflict(row) for row in self._read(work) or []]

    def resolve(self, conflict_id: str, resolution: str, reason: str, **options: Any) -> Outcome:
        """Settle an open conflict: keep_current or take_proposed. Options as in ``propose``."""
        id: Any = conflict_id
        if isinstance(id, str) and is_batch_id(id):
            id = id.lower()
        return self.propose(
            [
                {
                    "type": "ConflictResolved",
                    "conflict_id": id,
                    "resolution": resolution,
                    "reason": reason,
                }
            ],
            **options,
        )

    def reconcile(self, effect_id: str, outcome: str, evidence: str, **options: Any) -> Outcome:
        """Say what became of an effect in doubt: succeeded or failed. Options as in ``propose``."""
        event = {"type": "EffectReconciled", "effect_id": effect_id, "outcome": outcome}
        return self.propose([{**event, "evidence": evidence}], **options)

    def archive(self, reason: str | None = None, **options: Any) -> Outcome:
        """Take it, once finished, out of the hot set: lists, alarms, counts.

        It stays readable and provable, and late reports are still taken. Options as in ``propose``.
        """
        event = {"type": RUN_ARCHIVED} | ({} if reason is None else {"reason": reason})
        return self.propose([event], **options)

    def fork(
        self,
        new_id: str,
        at: int,
        *,
        author: str | Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Outcome | None:
        """Fork it: a new run with its history up to revision ``at``, which then goes on by itself.

        The outcome is that of the new run; None if this one, or its revision, is not there.
        Nothing of the new run is visible before all of it is there; after a crash the same call
        goes on, and once all is there it gives the first outcome again. ``timeout`` seconds for
        each part.
        """
        by = author_of(self.engine.author if author is None else author)
        if type(at) is not int:
            raise Usage(f"a revision is a whole number, not {at!r}")
        new = self.engine.run(new_id)

        def work(view: View) -> list[ImportPart] | None:
            return parts_of_fork(view, self.run_id, at, new_id, by, self.engine._now(view))

        try:
            if not new._valid:
                raise Malformed("the id of the new run is none", None, "run_id")
            parts = self._read(work)
        except Malformed as error:
            refused: Outcome = new.refused(None, error)
            return refused
        if parts is None:
            return None
        batch_id = batch_id_text(parts[0].import_id)  # of the record that closes this very fork
        done = new._read(lambda view: views.record_of_batch(view, new_id, batch_id))
        if done is not None:
            number = partition_of(new_id, self.engine.partitions)
            return Outcome(views.outcome_value(done, number, duplicate=True))
        forked: Outcome = self.engine._hand_in_parts(parts, timeout)
        return forked

    def release(self, reason: str, **options: Any) -> Outcome:
        """Let a quarantined run go on. Options as in ``propose``."""
        return self.propose([{"type": "RunReleased", "reason": reason}], **options)


def _looked_at(folder: str | os.PathLike[str]) -> Workspace:
    try:
        return Workspace(os.fspath(folder), workspace_version(folder))
    except WorkspaceUnreadable as error:
        return Workspace(os.fspath(folder), None, str(error))
