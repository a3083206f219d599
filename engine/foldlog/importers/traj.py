"""What a SWE-agent `.traj` file says: the task, the messages, the steps, the end. Reads, no more.

Invariants:
- `read` is pure, and raises nothing but `Broken`, with the path of the first field that is wrong.
- Demonstrations are no part of what is read, in whatever form: they show another task.
- A step has a tool call's name and arguments only where the file has exactly one call for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from foldlog.core.values import canonical_json, fits, strict_json
from foldlog.importers.base import Broken
from foldlog.importers.messages import (
    NAME_CHARACTERS_MAX,
    Message,
    arguments_of,
    check_calls,
    check_content,
    check_text,
    shown,
)

ROLES = ("system", "user", "assistant", "tool")
ENVIRONMENT_CHARACTERS_MAX = 2_048
VERSION_BYTES_MAX = 1_024
# What each model call was given; the messages stand in `history`, and in the whole file.
_REPEATED = ("query", "messages")

Function = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One action and what came of it."""

    place: int
    action: str
    function: Function | None
    observation: Any  # a text, parts, or None: none in the file
    record: dict[str, Any]  # the step as the file has it, less what stands elsewhere

    def tool(self) -> str | None:
        """The tool's name, or the command's: the first word of the action; None without one."""
        if self.function is not None:
            return str(self.function["name"])
        words = self.action.split(maxsplit=1)
        return words[0][:NAME_CHARACTERS_MAX] if words else None

    def arguments(self) -> Any:
        """The tool call's arguments, else the action as it was typed."""
        return {"action": self.action} if self.function is None else arguments_of(self.function)

    def subcommand(self) -> str | None:
        """`command` of the arguments, or the action's second word."""
        given = None if self.function is None else arguments_of(self.function)
        if isinstance(given, dict) and isinstance(given.get("command"), str):
            return str(given["command"])
        words = self.action.split(maxsplit=2)
        return words[1] if len(words) > 1 else None

    def command(self) -> str:
        """What was done, as a text."""
        return self.action or canonical_json(self.function)


@dataclass(frozen=True, slots=True)
class Traj:
    """A file, checked. `parts` are its steps, and the messages that are neither goal nor step."""

    document: dict[str, Any]
    goal: Any
    parts: list[Step | tuple[int, Message]]
    instance_id: str
    environment: str | None
    base_commit: str | None
    agent_version: dict[str, str]
    has_info: bool
    info: dict[str, Any] = field(default_factory=dict)  # less the submission
    exit_status: str | None = None
    submission: str | None = None


def read(document: Any) -> Traj:
    """A file's JSON, as `strict_json` read it."""
    if not isinstance(document, dict):
        raise Broken(None, "a .traj file is one JSON object {trajectory, history, info}")
    history, trajectory = _list(document, "history"), _list(document, "trajectory")
    if not history and trajectory is None:
        raise Broken("history", "a list of messages is needed where there is no trajectory")
    messages = list(_messages(history or []))
    for place, step in enumerate(trajectory or ()):
        _check_step(f"trajectory[{place}]", step)
    info, config = _info(document), _config(document)
    problem = _object(config, "problem_statement")
    goal, content = _goal(messages, trajectory, problem)
    rest = [each for each in messages if each[0] != goal]
    return Traj(
        document=document,
        goal=content,
        parts=list(_steps(trajectory, rest) if trajectory else _exchanges(rest)),
        instance_id=_instance_id(document, info, problem),
        environment=_environment(document),
        base_commit=_short(_object(_object(config, "env"), "repo").get("base_commit")),
        agent_version=_agent_version(info, config),
        has_info=document.get("info") is not None,
        info={key: value for key, value in info.items() if key != "submission"},
        exit_status=info.get("exit_status"),
        submission=info.get("submission"),
    )


# The two forms


def _steps(
    trajectory: list[Any], messages: list[tuple[int, Message]]
) -> Iterator[Step | tuple[int, Message]]:
    """The form with steps: what the history repeats of them gives their tool calls."""
    yield from (each for each in messages if each[1]["role"] == "system")
    actions = [each for _, each in messages if each["role"] == "assistant"]
    at = 0
    for place, step in enumerate(trajectory):
        # The next message with the very same action is this step's; without one, none is.
        found = next((i for i in range(at, len(actions)) if _is_of(actions[i], step)), None)
        at = at if found is None else found + 1
        function = None if found is None else _function(actions[found])
        without = ("observation", *_REPEATED)
        yield Step(
            place, step["action"], function, step["observation"], _record(step, function, without)
        )


def _is_of(message: Message, step: dict[str, Any]) -> bool:
    return bool(step["action"]) and message.get("action") == step["action"]


def _exchanges(messages: list[tuple[int, Message]]) -> Iterator[Step | tuple[int, Message]]:
    """The form without: an action of the assistant and the message that answers it are a step."""
    at = 0
    while at < len(messages):
        place, message = messages[at]
        at += 1
        function = _function(message)
        if message["role"] != "assistant" or not (message.get("action") or function):
            yield place, message
            continue
        answer = messages[at][1] if at < len(messages) else None
        observation = None
        if answer is not None and _answers(answer, message):
            at += 1
            observation = "" if answer.get("content") is None else answer["content"]
        action = message.get("action") or ""
        yield Step(
            place, action, function, observation, _record(message, function, ("tool_calls",))
        )


def _answers(answer: Message, message: Message) -> bool:
    """Whether a message is what came of an action: the environment's, and not another call's."""
    if answer["role"] not in ("user", "tool"):
        return False
    named = answer.get("tool_call_ids")
    own = {call["id"] for call in message.get("tool_calls") or ()}
    return not named or not own or bool(own & set(named))


def _function(message: Message) -> Function | None:
    """The one tool call of a message."""
    given = message.get("tool_calls") or []
    return given[0]["function"] if len(given) == 1 else None


def _record(
    step: dict[str, Any], function: Function | None, without: tuple[str, ...]
) -> dict[str, Any]:
    """A step as it is recorded: thought, state and the like, nothing that stands elsewhere."""
    kept = {key: value for key, value in step.items() if key not in without and value is not None}
    if function is None:
        kept.pop("action", None)
        if step.get("tool_calls"):
            kept["tool_calls"] = step["tool_calls"]
    for same in ("response", "content"):
        if kept.get(same) == kept.get("thought"):
            kept.pop(same, None)
    return kept


def _goal(
    messages: list[tuple[int, Message]], trajectory: list[Any] | None, problem: dict[str, Any]
) -> tuple[int | None, Any]:
    """The place and content of the task's first message; where the file has none, its text."""
    for place, message in messages:
        if message["role"] == "user":
            return place, message.get("content")
    for message in _given(trajectory):
        if message["role"] == "user":
            return None, message.get("content")
    text = problem.get("text")
    return None, text if isinstance(text, str) else None


def _given(trajectory: list[Any] | None) -> Iterator[Message]:
    """The messages that the first step's model call was given, if the file has them."""
    first = trajectory[0] if trajectory else {}
    for key in _REPEATED:
        given = first.get(key)
        try:
            yield from (each for _, each in _messages(given if isinstance(given, list) else []))
        except Broken:
            # Their form is not the format's concern; the problem statement is left.
            return


# The rest of the file: what follows refuses whatever the above takes for granted.


def _list(document: dict[str, Any], key: str) -> list[Any] | None:
    value = document.get(key)
    if value is not None and not isinstance(value, list):
        raise Broken(key, f"a list is needed, not {shown(value)}")
    return value


def _messages(history: list[Any]) -> Iterator[tuple[int, Message]]:
    for place, message in enumerate(history):
        path = f"history[{place}]"
        if not isinstance(message, dict):
            raise Broken(path, f"a message is an object, not {shown(message)}")
        is_demo = message.get("is_demo")
        if not isinstance(is_demo, bool | None):
            raise Broken(f"{path}.is_demo", f"true or false is needed, not {shown(is_demo)}")
        if not is_demo and message.get("message_type") != "demonstration":
            _check_message(path, message)
            yield place, message


def _check_message(path: str, message: Message) -> None:
    role = message.get("role")
    if role not in ROLES:
        raise Broken(f"{path}.role", f"{shown(role)} is none of {', '.join(ROLES)}")
    check_content(f"{path}.content", message.get("content"))
    for key in ("thought", "action"):
        if message.get(key) is not None:
            check_text(f"{path}.{key}", message[key])
    check_calls(path, message)
    named = _list_of(f"{path}.tool_call_ids", message.get("tool_call_ids"))
    for place, each in enumerate(named):
        check_text(f"{path}.tool_call_ids[{place}]", each)


def _list_of(path: str, value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise Broken(path, f"a list is needed, not {shown(value)}")
    return value or []


def _check_step(path: str, step: Any) -> None:
    if not isinstance(step, dict):
        raise Broken(path, f"a step is an object, not {shown(step)}")
    check_text(f"{path}.action", step.get("action"))
    if "observation" not in step:
        raise Broken(f"{path}.observation", "is missing; null says that there was none")
    check_content(f"{path}.observation", step["observation"])
    for key in ("thought", "response"):
        if step.get(key) is not None:
            check_text(f"{path}.{key}", step[key])


def _info(document: dict[str, Any]) -> dict[str, Any]:
    info = document.get("info")
    if info is not None and not isinstance(info, dict):
        raise Broken("info", f"an object is needed, not {shown(info)}")
    for key in ("exit_status", "submission"):
        if info and info.get(key) is not None:
            check_text(f"info.{key}", info[key])
    return info or {}


def _config(document: dict[str, Any]) -> dict[str, Any]:
    """How the run was configured: an object, or the JSON text of one; all else says nothing."""
    config = document.get("replay_config")
    if isinstance(config, str):
        try:
            config = strict_json(config)
        except ValueError:
            return {}
    return config if isinstance(config, dict) else {}


def _object(outer: dict[str, Any], key: str) -> dict[str, Any]:
    value = outer.get(key)
    return value if isinstance(value, dict) else {}


def _short(value: Any) -> str | None:
    """A text that is not empty and fits where a version or a commit goes."""
    return value if isinstance(value, str) and value and fits(value, VERSION_BYTES_MAX) else None


def _environment(document: dict[str, Any]) -> str | None:
    value = document.get("environment")
    if value is not None:
        check_text("environment", value)
    return value if value and len(value) <= ENVIRONMENT_CHARACTERS_MAX else None


def _instance_id(document: dict[str, Any], info: dict[str, Any], problem: dict[str, Any]) -> str:
    given = (document.get("instance_id"), info.get("instance_id"), problem.get("id"))
    return next((each for each in given if isinstance(each, str) and each), "")


def _agent_version(info: dict[str, Any], config: dict[str, Any]) -> dict[str, str]:
    found = {key: info.get(key) for key in sorted(info) if key.startswith("swe_")}
    found["model"] = _object(_object(config, "agent"), "model").get("name")
    return {key: text for key, value in found.items() if (text := _short(value)) and _short(key)}
