"""SWE-agent files for tests, in both forms, and what their translations come to."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from foldlog.artifacts import ArtifactFolder
from foldlog.core.proposals import parse_proposal
from foldlog.importers.base import Translation
from foldlog.importers.swe_agent import import_swe_agent, translate
from tests.import_model import Model

PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
PROMPT = "\n(Open file: /repo/a.py)\n(Current directory: /repo)\nbash-$"
SYSTEM = {"role": "system", "content": "You are a programmer.", "agent": "main"}
DEMO = {"role": "user", "content": "Here is a demonstration: ...", "is_demo": True}
TASK = {"role": "user", "content": "Fix the login failure.", "agent": "main"}


def step(action: str, observation: str | None = "", thought: str = "Hm.", **more: Any) -> Any:
    """One item of `trajectory`."""
    said = {"action": action, "observation": observation, "thought": thought, "response": thought}
    return said | {"state": {"open_file": "n/a"}, "execution_time": 0.25} | more


def acts(action: str, tool: str | None = None, arguments: str = "{}", **more: Any) -> Any:
    """A message of the assistant with an action, as a tool call too if a tool is named."""
    message = {"role": "assistant", "content": "Hm.", "thought": "Hm.", "action": action}
    if tool is not None:
        function = {"name": tool, "arguments": arguments}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]  # type: ignore[assignment]
    return message | more


def says(content: Any, role: str = "user", **more: Any) -> Any:
    """A message of the environment."""
    return {"role": role, "content": content, "message_type": "observation"} | more


def traj(*steps: Any, **more: Any) -> dict[str, Any]:
    """A file with steps that was submitted, unless it says otherwise."""
    ended = {"exit_status": "submitted", "submission": PATCH}
    return {"trajectory": list(steps), "history": [SYSTEM, DEMO, TASK], "info": ended} | more


def history(*messages: Any, **more: Any) -> dict[str, Any]:
    """A file with messages only."""
    return {"history": [SYSTEM, DEMO, TASK, *messages]} | more


def fold(translation: Translation) -> Model:
    """The run that the proposals make; AssertionError if one of them would not be accepted."""
    model = Model()
    for proposal in translation.proposals:
        parse_proposal(translation.run_id, proposal)
        model.apply(proposal)
    assert set(model.artifacts.values()) == {each.uri for each in translation.artifacts}
    return model


def translated(document: Any, effects: tuple[str, ...] = ()) -> list[Any]:
    """All events of a valid translation of the file fix.traj, in order."""
    translation = translate(document, "fix.traj", effects)
    fold(translation)
    return [event for proposal in translation.proposals for event in proposal["events"]]


def tools(events: list[Any]) -> list[Any]:
    """How each tool call began and ended: (ToolStarted, end or None)."""
    ends = {e["step_id"]: e for e in events if e["type"] in ("ToolSucceeded", "ToolFailed")}
    return [(e, ends.get(e["step_id"])) for e in events if e["type"] == "ToolStarted"]


def imported(engine: Any, home: Path, data: Any, name: str | None = "fix.traj") -> Any:
    """What importing one file came to."""
    source = data if isinstance(data, bytes) else json.dumps(data, indent=1).encode()
    [result] = import_swe_agent(engine, io.BytesIO(source), ArtifactFolder(home), name)
    return result
