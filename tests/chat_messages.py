"""Messages and transcripts in chat form for tests, and what their translations come to."""

from __future__ import annotations

from typing import Any

from foldlog.core.proposals import parse_proposal
from foldlog.importers.base import Translation
from foldlog.importers.chat import translate
from tests.import_model import Model

USER = {"role": "user", "content": "Where is order 17?"}
HELLO = {"role": "assistant", "content": "Let me look."}


def call(tool: str = "find", call_id: str = "c1", arguments: Any = '{"id":17}') -> dict[str, Any]:
    """One tool call of an assistant message."""
    return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": arguments}}


def calls(*given: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    """An assistant message with tool calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(given)}


def result(content: Any, call_id: str = "c1", **more: Any) -> dict[str, Any]:
    """A tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content} | more


def line(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A transcript of run_1."""
    return {"id": "run_1", "messages": list(messages)} | more


def fold(translation: Translation) -> Model:
    """The run that the proposals make; AssertionError if one of them would not be accepted."""
    model = Model()
    for proposal in translation.proposals:
        parse_proposal(translation.run_id, proposal)
        model.apply(proposal)
    assert set(model.artifacts.values()) == {each.uri for each in translation.artifacts}
    return model


def translated(*messages: dict[str, Any], effects: tuple[str, ...] = (), **more: Any) -> list[Any]:
    """All events of a valid translation, in order."""
    translation = translate(line(*messages, **more), effects)
    fold(translation)
    return [event for proposal in translation.proposals for event in proposal["events"]]


def of(events: list[Any], *types: str) -> list[Any]:
    """The events of these types."""
    return [event for event in events if event["type"] in types]


def payloads(events: list[Any], name: str = "message") -> list[Any]:
    """What was recorded under a name."""
    return [each["payload"] for each in of(events, "Recorded") if each["name"] == name]
