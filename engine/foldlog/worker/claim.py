"""One claimed run: what is left open is settled, then step after step, chosen by its state alone.

Invariants:
- Which step comes next is known from the Run State and from nothing else, so any worker can go on.
- A task that is recorded as completed is never begun again.
- Each move of the lifecycle is one batch: after a crash it was taken or it was not.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from foldlog.client import AnyEvent
from foldlog.errors import Damaged, EngineForked
from foldlog.events import Event
from foldlog.results import Outcome, RunState
from foldlog.worker.agent import Json, new_plan
from foldlog.worker.driving import Call, Steps, do, owed, theirs
from foldlog.worker.effects import Effects
from foldlog.worker.endings import GiveUp, HandOver, Refused, RunStopped, RunWaits, StepEnded
from foldlog.worker.holding import OUTAGES, short
from foldlog.worker.past import pauses
from foldlog.worker.progress import (
    BLOCKED,
    PLAN,
    REFUSED,
    RETRY,
    STEP,
    blocked,
    doubtful,
    ends_by_itself,
    undone,
    work_left,
)
from foldlog.worker.retries import Retries, came_from, failures

OUTSIDE = (Damaged, EngineForked, *OUTAGES)
"""What is wrong with log or store, and not with the run."""

REPORTS_MAX = 100
"""Events of one batch."""

logger = logging.getLogger("foldlog")


class ClaimSteps(Effects):
    """A claim's steps, for both kinds of caller."""

    retries = Retries()
    left: Callable[[Any, bool], None] = staticmethod(lambda claim, refused: None)
    is_stuck = False
    """Whether it ends with a run that seems free, and with which nothing can be done now."""

    # After it was claimed

    def _take_over(self) -> Steps[None]:
        """Settle what an earlier worker left: the end of a wait, its tool calls, its effects."""
        state = yield from self._known()
        if state.waiting is not None and not ends_by_itself(state):
            raise RunWaits(state.waiting.key)
        yield from self._guarded(self._settle_left(state))

    def _settle_left(self, state: RunState) -> Steps[None]:
        if state.waiting is not None:
            yield from self._end_own_wait(state, state.waiting.key)
        yield from self._note_end_of_wait()
        yield from self._end_calls()
        if state.status != "start":  # from where no person can be asked
            yield from self._settle_all()

    def _end_own_wait(self, state: RunState, key: str) -> Steps[None]:
        """A wait that the kit began, and whose cause is gone, is ended by the kit."""
        signal = {"type": "SignalReceived", "key": key, "signal_id": f"{key}@{state.revision}"}
        yield from self._propose(signal, reads=["wait"])

    def _end_calls(self) -> Steps[None]:
        state = yield from self._known()
        ended = {"error": "the worker ended before the tool did", "recoverable": False}
        calls = [
            {"type": "ToolFailed", "step_id": call.step_id, **ended}
            for call in state.pending_tool_calls
        ]
        for place in range(0, len(calls), REPORTS_MAX):
            yield from self._report(*calls[place : place + REPORTS_MAX])

    def _settle_all(self) -> Steps[None]:
        for effect in doubtful((yield from self._known())):
            yield from self._settle(effect)

    # One step of the run

    def _go_on(self) -> Steps[None]:
        """The next thing to do, by the run's status."""
        state = yield from self._known()
        if self._stopping():
            raise HandOver(f"{self.worker_id} was told to stop")
        if state.status == "finish":
            self._lease.held = False  # released with the end, whoever ended it
            raise RunStopped(f"run {self.run_id} is finished: {state.result}")
        if state.waiting is not None:
            raise RunWaits(state.waiting.key)
        yield from self._guarded(self._step(state))

    def _guarded(self, steps: Steps[None]) -> Steps[None]:
        """Steps in which the author's code is called: what it raises becomes part of the run."""
        try:
            yield from steps
        except Refused as error:
            yield from self._refused(error.outcome)
        except OUTSIDE:
            raise
        except Exception as error:
            logger.warning("run %s: a step failed", self.run_id, exc_info=True)
            yield from self._failed(error)

    def _step(self, state: RunState) -> Steps[None]:
        if state.status == "start":
            yield from self._propose({"type": "RunTransitioned", "to": "planning"})
        elif state.status == "retry":
            yield from self._retry(state)
        elif doubtful(state):
            yield from self._settle_all()
        elif state.status == "planning":
            yield from self._plan(state)
        elif state.active_task_id or state.next_task_ids:
            yield from self._task(state, state.active_task_id or state.next_task_ids[0])
        else:
            yield from self._finish(state)

    def _called(self, function: Callable[[Any], Any]) -> Call:
        """A call of a step or of the plan, in which this claim is called."""
        return theirs(function, self)

    def _plan(self, state: RunState) -> Steps[None]:
        adopted: list[Json] = []
        try:
            if not work_left(state):
                tasks = yield self._called(self.agent.planner)
                state = yield from self._known()
                adopted = [{"type": "PlanAdopted", "tasks": new_plan(tasks or [], state)}]
        except GiveUp as error:
            yield from self._end(f"no plan: {error}")
        except (Refused, *OUTSIDE):
            raise
        except Exception as error:
            logger.warning("run %s: planning failed", self.run_id, exc_info=True)
            yield from self._plan_failed(error)
        else:
            yield from self._propose(*adopted, {"type": "RunTransitioned", "to": "running"})

    def _task(self, state: RunState, task_id: str) -> Steps[None]:
        step = self.agent.step_for(task_id)
        if step is None:
            yield from self._park(f"{STEP}{self._revision}", f"no step for task {task_id!r}")
            return
        task = next(task for task in state.tasks if task.id == task_id)
        if task.status == "pending" or task.worker != self.worker_id:
            started = {"type": "TaskStarted", "task_id": task_id, "worker": self.worker_id}
            yield from self._propose(started)
        try:
            evidence = yield self._called(step)
        except GiveUp as error:
            reason = short(str(error))
            yield from self._propose({"type": "TaskFailed", "task_id": task_id, "reason": reason})
        else:
            yield from self._complete(task_id, evidence)

    def _complete(self, task_id: str, evidence: str | None) -> Steps[None]:
        state = yield from self._known()
        if not any(task.id == task_id and task.status == "running" for task in state.tasks):
            return  # the step ended its task itself
        done = {"type": "TaskCompleted", "task_id": task_id}
        done["evidence"] = evidence or f"history://{self.run_id}@rev{self._revision}"
        safe = self._checkpoint_event("tasks_done", state, task_id=task_id)
        yield from self._propose(done, safe)

    def _finish(self, state: RunState) -> Steps[None]:
        if stopped := blocked(state):
            why = ", ".join(f"{task.id}: {task.blocked_by}" for task in stopped)
            yield from self._park(f"{BLOCKED}{self._revision}", f"blocked: {why}")
            return
        finished: Json = {"type": "RunFinished", "result": "completed"}
        if lost := undone(state):
            finished |= {"result": "failed", "reason": short(f"not done: {', '.join(lost)}")}
        done = {task.id: task.evidence for task in state.tasks if task.status == "completed"}
        last = [done[id] for id in state.plan if id in done][-1:]
        if last and not lost:
            finished["result_ref"] = last[0]
        yield from self._propose(finished)

    # What goes wrong

    def _failed(self, error: Exception) -> Steps[None]:
        """A failure from which the run may recover: to retry, or some time later where it is."""
        state = yield from self._known()
        if state.status != "running":
            yield from self._pause(short(error), (yield do(self._pauses, RETRY)) + 1)
            return
        call = {"step_id": self._call_id("step")}
        started = {"type": "ToolStarted", "tool": "step", **call}
        if state.active_task_id is not None:
            started["task_id"] = state.active_task_id
        ended = {"type": "ToolFailed", **call, "error": short(error), "recoverable": True}
        try:
            yield from self._propose(started, ended)
        except Refused as refused:
            yield from self._refused(refused.outcome)

    def _plan_failed(self, error: Exception) -> Steps[None]:
        """Planning has no retries of the run's: as many tries as those of a step, then the end."""
        state = yield from self._known()
        count = (yield do(self._pauses, PLAN)) + 1
        if count < self.retries.failures_max(state.retry_limit):
            yield from self._pause(short(error), count, PLAN)
        else:
            yield from self._end(f"no plan after {count} tries: {short(error)}")

    def _retry(self, state: RunState) -> Steps[None]:
        """From retry: some time later back to running, or to a fresh start, or to the end."""
        if state.last_transition["from"] != "waiting":
            yield from self._pause(state.last_transition.reason, state.retry_count)
            return
        moves = yield do(self._run.transitions)
        # A plan whose question was not answered in time is no plan yet to go on with.
        if state.retry_count < state.retry_limit and came_from(moves) != "planning":
            yield from self._propose({"type": "RunTransitioned", "to": "running"})
        elif failures(moves) < self.retries.failures_max(state.retry_limit):
            yield from self._propose({"type": "RunTransitioned", "to": "start"})
        else:
            yield from self._end(
                f"its retries are spent: {state.retry_count} of {state.retry_limit}"
            )

    def _end(self, reason: str) -> Steps[None]:
        """The run has failed for good."""
        ended = {"type": "RunFinished", "result": "failed", "reason": short(reason)}
        yield from self._propose(ended)

    def _pause(self, reason: str, count: int, prefix: str = RETRY) -> Steps[None]:
        """Wait until it is time for retry ``count``; no process waits meanwhile."""
        state = yield from self._known()
        seconds = self.retries.pause(max(count, state.retry_count))
        if state.status not in ("planning", "retry"):
            raise self._stuck(reason)
        key, delay = f"{prefix}{self._revision}", timedelta(seconds=seconds)
        yield from self._rest("timer", key, reason, delay)

    def _pauses(self, prefix: str) -> int:
        """How many of the kit's pauses there were without anything else in between."""
        found: int = self._run._read(lambda view: pauses(view, self.run_id, prefix))
        return found

    def _refused(self, outcome: Outcome) -> Steps[None]:
        """A refusal that a person has to look at; a budget that is spent is an alarm already."""
        if outcome.code == "BUDGET_EXHAUSTED":
            raise self._stuck(outcome.message)
        yield from self._park(f"{REFUSED}{self._revision}", f"{outcome.code}: {outcome.message}")

    def _park(self, key: str, reason: str) -> Steps[None]:
        """Wait for a person, who sees why."""
        try:
            yield from self._rest("user", key, reason, None)
        except Refused as refused:  # not even that: the run is left as it is, with its alarms
            logger.exception("run %s cannot wait for a person: %s", self.run_id, reason)
            raise self._stuck(reason) from refused

    def _stuck(self, reason: str | None) -> RunWaits:
        self.is_stuck = True
        return RunWaits(reason)

    # The end of the claim

    def _leave(self, ending: BaseException | None = None) -> Steps[bool]:
        """Let the run go, if it is still held; whether ``ending`` is no more than a step's end."""
        refused = ending is None and self._lease.epoch == 0
        try:
            if self._lease.held:
                safe = ending is None or isinstance(ending, HandOver)
                yield from self._release(*((yield from self._last_checkpoint()) if safe else ()))
        except (StepEnded, *OUTSIDE) as error:  # the lease ends by itself
            logger.warning("run %s was left without a word: %s", self.run_id, error)
        finally:
            yield owed(self.left, self, refused)
        return isinstance(ending, StepEnded)

    def _last_checkpoint(self) -> Steps[list[Json]]:
        state = yield from self._known()
        return [] if state.status == "finish" else [self._checkpoint_event("lease_release", state)]

    def _propose_events(
        self, events: Sequence[AnyEvent] | AnyEvent, /, **options: Any
    ) -> Steps[Outcome]:
        """Propose a batch under the lease; options as of ``Run.propose``. A refusal is a value."""
        whole = [events] if isinstance(events, Event | Mapping) else list(events)
        return (yield from self._offer(*whole, **options))
