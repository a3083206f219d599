"""Tool calls, observations and checkpoints from a step.

Invariants:
- A call with a step id is done once: recorded as done, it gives its recorded result again.
- A worker that stood still until its lease was over calls nothing.
- A call without one is new each time the step is; what it does must bear being done again.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foldlog.core.shapes import JSON_BYTES_MAX
from foldlog.core.values import (
    LEVELS_MAX,
    Fault,
    canonical_json,
    check_json,
    fits,
    format_instant,
)
from foldlog.errors import Usage
from foldlog.worker.agent import Json
from foldlog.worker.driving import Steps, do
from foldlog.worker.endings import Stale, StepEnded
from foldlog.worker.holding import MARK, short
from foldlog.worker.waits import Waits

LEVELS_AROUND = 3
"""Of nesting, around a value that stands in an event: the proposal, its events, and the event."""

LEFT_OUT = {"left_out": "this is no JSON of at most 64 KiB"}
"""Is recorded in place of arguments and results that an event cannot hold."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Something outside as a step saw it, and how to look again."""

    subject: str
    version: str
    state: str
    read: Callable[[], Any]


class Tools(Waits):
    """A claim that can call tools, look at the world, and take checkpoints."""

    def _tool(
        self,
        tool: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        step_id: str | None = None,
        **options: Any,
    ) -> Steps[Any]:
        """Call a tool, recorded before and after; returns what it gives, raises what it raises.

        With ``step_id`` it is done once in the run's life: if it is recorded as done, its recorded
        result (JSON, at most 64 KiB) is returned. A failed one is done again under the next id.
        """
        self._check_going_on()
        if step_id is not None and MARK in step_id:
            raise Usage(f"a step id has no {MARK}: {step_id[:80]!r}")
        self._check_callable_here(function)
        state = yield from self._known()
        given = self._call_id(tool)
        if step_id is not None:
            given, done = yield do(self._earlier, step_id)
            if done is not None:
                return _returned_again(step_id, done["result"])
        started = {"type": "ToolStarted", "step_id": given, "tool": tool}
        if state.active_task_id is not None:
            started["task_id"] = state.active_task_id
        yield from self._propose({**started, "arguments": _arguments(args, options)})
        yield from self._fence_if_late()
        try:
            result = yield from self._given_by(function, *args, **options)
        except (StepEnded, GeneratorExit):
            raise
        except BaseException as error:  # cancelled, too: no call is left pending
            failed = {"step_id": given, "error": short(error), "recoverable": False}
            yield from self._report({"type": "ToolFailed", **failed})
            raise
        kept = _result(result)
        yield from self._report({"type": "ToolSucceeded", "step_id": given, **kept})
        return result if step_id is None else _returned_again(step_id, kept.get("result"))

    def _earlier(self, step_id: str) -> tuple[str, Json | None]:
        """The id for the next attempt of a step, or the one that succeeded with its report."""
        attempt, number = step_id, 1
        while self._was_used("tool", attempt):
            if (report := self._report_of(attempt)) is not None:
                return attempt, report
            number += 1
            attempt = f"{step_id}{MARK}{number}"
        return attempt, None

    def _report_of(self, step_id: str) -> Json | None:
        for row in reversed(self._run.history()):
            for event in row.to_dict()["events"] or ():
                if event["type"] == "ToolSucceeded" and event["step_id"] == step_id:
                    return {"result": event.get("result")}
        return None

    def _observe(self, subject: str, read: Callable[[], Any]) -> Steps[Observed]:
        """Look at something outside and record what is seen, for ``perform(requires=[...])``.

        ``read`` gives its version, or (version, state): texts that are equal if nothing changed.
        """
        self._check_going_on()
        seen = yield from self._read(subject, read)
        yield from self._note_seen(seen)
        return seen

    def _read(self, subject: str, read: Callable[[], Any]) -> Steps[Observed]:
        found = yield from self._given_by(read)
        version, seen = found if isinstance(found, tuple) else (found, "")
        if not (isinstance(version, str) and isinstance(seen, str)):
            raise Usage(f"{subject!r} was read as {found!r}: not a version, or version and state")
        return Observed(subject, version, seen, read)

    def _note_seen(self, seen: Observed) -> Steps[None]:
        now = format_instant(self._run.engine._clock())
        event = {"type": "EnvironmentObserved", "subject": seen.subject}
        event |= {"observed_version": seen.version, "observed_state": seen.state}
        yield from self._propose({**event, "observed_at": now})

    def _look_again(self, observed: Observed) -> Steps[Json]:
        """What an intent requires; Stale, and recorded, if it is no longer as it was seen."""
        now = yield from self._read(observed.subject, observed.read)
        if now.version != observed.version:
            yield from self._note_seen(now)
            raise Stale(observed.subject, observed.version, now.version)
        return {"subject": observed.subject, "observed_version": observed.version}

    def _checkpoint(
        self, note: str | None = None, *, workspace: Json | None = None, data: Any = None
    ) -> Steps[None]:
        """Record a point from which it is safe to go on; with ``workspace``, where that is now."""
        state = yield from self._known()
        fields = {name: given for name, given in (("note", note), ("data", data)) if given}
        safe = self._checkpoint_event("workspace_version", state, **fields)
        moved = [] if workspace is None else [{"type": "WorkspaceMoved", "workspace": workspace}]
        yield from self._propose(*moved, safe)


def is_kept(value: Any) -> bool:
    """Whether a value can stand in an event, and is the same when it is read again."""
    try:
        check_json(value, LEVELS_MAX - LEVELS_AROUND)
    except Fault:
        return False
    return fits(canonical_json(value), JSON_BYTES_MAX)


def _arguments(args: tuple[Any, ...], options: Json) -> Json:
    """A call's arguments as they can be recorded: what is no JSON by its text."""
    shown = {**options, **({"args": list(args)} if args else {})}
    try:
        shown = json.loads(json.dumps(shown, default=repr))
    except Exception:  # a key that is no text, a value that holds itself, a repr that raises
        return LEFT_OUT
    return shown if is_kept(shown) else LEFT_OUT


def _result(result: Any) -> Json:
    """A call's result as it can be recorded. None is nothing, and what cannot be kept says so."""
    return {} if result is None else {"result": result if is_kept(result) else LEFT_OUT}


def _returned_again(step_id: str, result: Any) -> Any:
    """A recorded result; Usage, in each pass, if it could not be kept."""
    if result == LEFT_OUT:
        raise Usage(f"{step_id}: a result that is returned again is JSON of at most 64 KiB")
    return result
