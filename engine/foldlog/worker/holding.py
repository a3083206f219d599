"""What every part of a claim stands on: proposing under the lease, reporting, looking, fencing.

Invariants:
- Every proposal carries the lease's epoch and the revision that this claim has seen; a report of
  what has happened carries neither, for it must reach the ledger whoever holds the run.
- A proposal whose outcome did not come is handed in again under its own batch id, never anew.
- Before the outside world is touched the lease is certain: renewed by the log, or read there.
"""

import inspect
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

from foldlog.client import AnyEvent, Run
from foldlog.errors import HomeBusy, OutcomeUnknown, Unavailable, Usage
from foldlog.events import Event
from foldlog.results import Outcome, RunState
from foldlog.runtime import SECOND, Runtime
from foldlog.views import View
from foldlog.worker.agent import Agent, Json
from foldlog.worker.driving import Call, Pause, Steps, do, drive, owed, theirs
from foldlog.worker.endings import HandOver, LeaseLost, Overtaken, Refused, RunStopped
from foldlog.worker.lease import Lease

OUTAGES = (HomeBusy, OutcomeUnknown, Unavailable)
"""What may be over in a moment: the same proposal is handed in again."""

OUTAGE_PAUSE_US = SECOND // 2
FENCE_TRIES = 3
TEXT_MAX = 2_000
"""Characters of an error that are recorded; a text of an event holds 8 KiB."""

LOST = ("FENCED", "LEASE_HELD")
STOPPED = ("RUN_FINISHED", "RUN_NOT_FOUND", "RUN_QUARANTINED", "MIGRATION_REQUIRED")
OVERTAKEN = ("CONFLICT", "SUPERSEDED", "FUTURE_REVISION")

_NOT_AWAITED = "a coroutine function needs the Worker of foldlog.worker.aio, which awaits it"

MARK = "#"
"""In no id of an author's: it stands between an id and what the kit adds to it."""

logger = logging.getLogger("foldlog")


def short(error: object) -> str:
    """An error as a text that can be recorded."""
    try:
        text = repr(error) if isinstance(error, BaseException) else str(error)
    except Exception:  # the author's own, which may raise what it likes
        text = type(error).__name__
    return text.encode("utf-8", "replace").decode()[:TEXT_MAX]


def _ends_the_run(event: AnyEvent) -> bool:
    return (event.type if isinstance(event, Event) else event.get("type")) == "RunFinished"


def _is_coroutine_function(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # of an object that can be called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Holding:
    """One run, held by one worker."""

    _awaits = False
    """Whether what the author's functions give is awaited."""

    def __init__(
        self, run: Run, lease: Lease, agent: Agent, stopping: Callable[[], bool], runtime: Runtime
    ) -> None:
        self.agent, self.runtime = agent, runtime
        self._run, self._lease, self._stopping = run, lease, stopping
        self._author = f"agent:{lease.worker_id}"
        self._revision = 0
        self._seen: RunState | None = None
        self._keeping = threading.RLock()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def worker_id(self) -> str:
        """The worker that holds it."""
        return self._lease.worker_id

    def _is_closed(self) -> bool:
        """Whether the engine was closed by its owner, so that nothing can be done here any more."""
        closed: bool = self._run.engine._stop.is_set()
        return closed

    # Looking

    def _look(self) -> Steps[RunState]:
        """The run as it is now; what is proposed from here on is decided on that."""
        state = yield do(self._run.state)
        if state is None:
            raise RunStopped(f"there is no run {self.run_id}")
        self._seen, self._revision = state, state.revision
        return self._seen

    def _known(self) -> Steps[RunState]:
        """The run as it is after what this claim proposed."""
        return self._seen if self._seen is not None else (yield from self._look())

    def _was_used(self, kind: str, id: str) -> bool:
        """Whether an id was ever used in its collection; it need not be there any more."""

        def work(view: View) -> bool:
            return view.run(self.run_id).state().stamp(kind, id) is not None

        return bool(self._run._read(work))

    # The author's functions

    def _check_callable_here(self, *functions: Callable[..., Any]) -> None:
        """Usage for a coroutine function that nobody awaits, before its call is recorded."""
        if not self._awaits and any(_is_coroutine_function(each) for each in functions):
            raise Usage(_NOT_AWAITED)

    def _given_by(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Steps[Any]:
        """What a function of the author's gives; Usage if nobody has awaited it: it did nothing."""
        answer = yield theirs(function, *args, **options)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise Usage(_NOT_AWAITED)
        return answer

    # Proposing

    def new_id(self) -> str:
        """A new batch id."""
        return str(uuid.uuid4())

    def _propose(self, *events: AnyEvent, **options: Any) -> Steps[Outcome]:
        """A batch of the kit's own: accepted, or the step ends, or it raises Refused."""
        outcome = yield from self._offer(*events, **options)
        if not outcome.accepted:
            if outcome.code in OVERTAKEN:
                raise Overtaken(outcome)
            raise Refused(outcome)
        return outcome

    def _offer(self, *events: AnyEvent, **options: Any) -> Steps[Outcome]:
        """A batch of the author's: a refusal is a value, but for the end of what is held."""
        self._check_held()
        given = {"expected_revision": self._revision, "lease_epoch": self._lease.epoch, **options}
        outcome = yield from self._hand_in(list(events), given)
        if outcome.code in LOST:
            self._lose()
            raise LeaseLost(outcome.message)
        if outcome.code in STOPPED:
            self._lease.held = False
            raise RunStopped(outcome.message)
        if outcome.accepted and any(_ends_the_run(event) for event in events):
            self._lease.held = False  # released with the end
        return outcome

    def _call_id(self, tool: str) -> str:
        """The id of a call that nobody named, at the revision that is known; so it is new."""
        return f"{tool}{MARK}rev{self._revision}"

    def _checkpoint_event(self, boundary: str, state: RunState, **fields: Any) -> Json:
        """A checkpoint at the revision that is known; revisions only grow, so its id is new."""
        if state.active_task_id is not None:
            fields.setdefault("task_id", state.active_task_id)
        checkpoint = {"id": f"{boundary}/{self._revision}", "boundary": boundary, **fields}
        return {"type": "CheckpointTaken", "checkpoint": checkpoint}

    def _report(self, *events: AnyEvent) -> Steps[Outcome]:
        """What has already happened, whoever holds the run by now."""
        outcome = yield from self._hand_in(list(events), {}, owed)
        if outcome.outcome == "rejected":
            # Somebody settled it first: the one who took the run over, or a person.
            logger.warning("a report of run %s was refused: %s", self.run_id, outcome.message)
        return outcome

    def _hand_in(
        self, events: list[AnyEvent], options: Json, call: Callable[..., Call] = do
    ) -> Steps[Outcome]:
        given = {"batch_id": self.new_id(), "author": self._author, **options}
        end = self.runtime.monotonic() + self._lease.ttl_seconds * SECOND
        while True:
            try:
                outcome: Outcome = yield call(self._run.propose, events, **given)
                break
            except OUTAGES:
                if self._is_closed() or self.runtime.monotonic() >= end:
                    raise
            yield Pause(OUTAGE_PAUSE_US)
        if outcome.outcome == "quarantined":  # nothing of it was applied, and nothing more will be
            self._lease.held = False
            raise RunStopped(outcome.message)
        if outcome.outcome in ("accepted", "arbitration"):
            self._seen, self._revision = None, max(self._revision, outcome.revision)
        return outcome

    # The lease

    def _check_held(self) -> None:
        if not self._lease.held:
            raise LeaseLost(f"run {self.run_id} is no longer held by {self.worker_id}")

    def _check_going_on(self) -> None:
        """At each point from which another worker could go on as well."""
        self._check_held()
        if self._stopping():
            raise HandOver(f"{self.worker_id} was told to stop")

    def _lose(self) -> None:
        self._lease.held = False
        logger.warning("%s has lost run %s", self.worker_id, self.run_id)

    def _acquire(self) -> Steps[bool]:
        """Take the lease; whether it was given."""
        moment = self._lease.moment()
        event = {
            "type": "LeaseAcquired",
            "worker": self.worker_id,
            "ttl_seconds": self._lease.ttl_seconds,
        }
        outcome = yield from self._hand_in([event], {})
        if outcome.code == "MALFORMED":  # no run would ever be had
            raise Usage(str(outcome.message))
        if not outcome.accepted:
            return False
        epoch = yield owed(self._epoch_given, outcome.revision)
        if epoch is None:
            return False
        self._lease.epoch = epoch
        self._lease.given(moment)
        yield from self._look()
        return True

    def _epoch_given(self, revision: int) -> int | None:
        """The epoch of the lease acquired at a revision; None if it was touched since.

        By whoever has the same worker id it may be acquired at once; that one's epoch is not ours.
        """

        def work(view: View) -> int | None:
            state = view.run(self.run_id).state()
            stamp, lease = state.stamp("lease"), state.value("lease")
            return None if stamp is None or stamp[0] != revision else int(lease["epoch"])

        return self._run._read(work)  # type: ignore[no-any-return]

    def keep(self) -> bool:
        """Renew the lease if a third of it has passed; whether it is held. For the keeper."""
        with self._keeping:
            if self._is_closed():
                self._lease.held = False
            if self._lease.held and self._lease.is_due():
                drive(self._renew(), self.runtime)
            return self._lease.held

    def _renew(self) -> Steps[bool]:
        """Have the log say that the lease goes on; whether it does."""
        moment, epoch = self._lease.moment(), self._lease.epoch
        event = {"type": "LeaseRenewed", "ttl_seconds": self._lease.ttl_seconds}
        options = {"author": self._author, "lease_epoch": epoch, "batch_id": self.new_id()}
        outcome = yield do(self._run.propose, [event], **options)
        if outcome.accepted:
            self._lease.given(moment)
        elif self._lease.held and self._lease.epoch == epoch:  # not one that was given back
            self._lose()
        return self._lease.held

    def _fence_if_late(self) -> Steps[None]:
        """After an accepted batch: look again if so much time has passed that it may be over."""
        if self._lease.left() <= 0:
            yield from self._fence()

    def _fence(self) -> Steps[None]:
        """Make sure that the lease is this claim's; to be called before the world is touched."""
        for _ in range(FENCE_TRIES):
            self._check_held()
            if self._lease.is_due():
                yield from self._renew()
            else:
                found = yield do(self._lease_there)
                if found is None or found["epoch"] != self._lease.epoch:
                    self._lose()
            self._check_held()
            if self._lease.left() > 0:
                return
        self._lose()  # it ends sooner than an answer comes
        self._check_held()

    def _lease_there(self) -> Json | None:
        return self._run._read(lambda view: view.run(self.run_id).state().value("lease"))  # type: ignore[no-any-return]

    def _release(self, *before: AnyEvent) -> Steps[None]:
        """Give the lease back, with these events before; nothing if it is not held."""
        if (yield owed(self._hold_no_longer)):
            events = [*before, {"type": "LeaseReleased"}]
            yield from self._hand_in(events, {"lease_epoch": self._lease.epoch}, owed)

    def _hold_no_longer(self) -> bool:
        """Believe no more in the lease, once no renewal is under way; whether it was held."""
        with self._keeping:
            held, self._lease.held = self._lease.held, False
        return held
