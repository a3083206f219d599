"""A tool call of a transcript as events: its start, its end, and the effect where it is one.

Invariants:
- Pure. Each function gives the events of one place in a run, in the order that the rules accept.
- An effect's outcome stands after its call's, in the same list.
- What no field has room for is an artifact of the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foldlog.importers.base import Artifact, Event, keep_json, keep_text
from foldlog.importers.messages import text_of

NO_RESULT = "no result in the transcript"

Events = tuple[list[Event], tuple[Artifact, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `place` makes its ids, which are used once as long as places are."""

    place: str  # "7.1": message 7, call 1
    tool: str
    arguments: Any
    is_effect: bool = False

    @property
    def step_id(self) -> str:
        """The call's id in the run."""
        return f"step_{self.place}"

    @property
    def effect_id(self) -> str:
        """The id of its effect, if it is one."""
        return f"effect_{self.place}"


def started(call: Call, run_id: str) -> Events:
    """ToolStarted, after EffectIntended if the call is an effect."""
    arguments, artifacts = keep_json(call.arguments, f"{call.step_id}.arguments")
    events: list[Event] = [_intended(call, run_id)] if call.is_effect else []
    start = {"type": "ToolStarted", "step_id": call.step_id, "tool": call.tool}
    events.append(start | ({} if arguments is None else {"arguments": arguments}))
    return events, artifacts


def succeeded(call: Call, content: Any, artifact_id: str) -> Events:
    """ToolSucceeded with its result, if there is one; too large, it is an artifact."""
    done: Event = {"type": "ToolSucceeded", "step_id": call.step_id}
    artifacts: tuple[Artifact, ...] = ()
    if content is not None:
        done["result"], artifacts = keep_json(content, artifact_id)
    reference = {"result_ref": artifacts[0].uri} if artifacts else {}
    if artifacts:
        del done["result"]
    events = [done | reference]
    if call.is_effect:
        events.append({"type": "EffectSucceeded", "effect_id": call.effect_id} | reference)
    return events, artifacts


def failed(call: Call, content: Any, artifact_id: str) -> Events:
    """ToolFailed with the content's text."""
    error, artifacts = keep_text(text_of(content), artifact_id)
    events = [failure(call, error)]
    if call.is_effect:
        events.append({"type": "EffectFailed", "effect_id": call.effect_id, "error": error})
    return events, artifacts


def unanswered(call: Call, is_over: bool) -> list[Event]:
    """The end of a call without a result: it fails if the run is over, and nobody knows its effect.

    Empty where there is nothing to say: the call stays pending in a run that stays open.
    """
    events = [failure(call, NO_RESULT)] if is_over else []
    if call.is_effect:
        unknown = {"type": "EffectUnknown", "effect_id": call.effect_id}
        events.append(unknown | {"reason": NO_RESULT})
    return events


def failure(call: Call, error: str) -> Event:
    """A ToolFailed that changes no status: what came of it follows in the transcript."""
    failed = {"type": "ToolFailed", "step_id": call.step_id, "error": error}
    return failed | {"recoverable": False}


def doubts(run_id: str, ending: str, effects: list[str]) -> str:
    """The note on a run that would be completed were it not for these effects."""
    return (
        f"left open although its {ending}: no result for {', '.join(effects)};"
        f" settle with `foldlog reconcile {run_id} EFFECT ...`"
    )


def _intended(call: Call, run_id: str) -> Event:
    effect = {"id": call.effect_id, "kind": call.tool, "target": _target(call.tool)}
    # The transcript knows no key; one of the call's own place can at least never be another's.
    return {
        "type": "EffectIntended",
        "effect": effect | {"idempotency_key": f"{run_id}/{call.step_id}"},
    }


def _target(tool: str) -> str:
    """`tool:NAME` as a reference: whatever is no sign of a name is written as %HEX;."""
    return "tool:" + "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):X};" for c in tool)
