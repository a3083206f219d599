"""Transcripts in OpenAI chat form as proposals: `{id, messages, reward?}`, one run a line.

The first user message is the goal. An assistant message is a Recorded "message" and, call by call,
ToolStarted; a result is ToolSucceeded, or ToolFailed where it begins with `Error`. A call of an
effect tool is an effect besides: intended before the call, its outcome after the result. Each
later user message ends a wait of kind user. `reward` ends the run.

Invariants:
- `translate` is pure, and raises nothing but `Broken`.
- Every proposal is accepted by a log that holds nothing of the run (CONTRACT section 3).
- Nothing of the transcript is lost: what no event has a field for stands in a Recorded event
  ("message", "transcript"), what is too long for one in an artifact.
- Ids come from places (`step_7.1` is `messages[7].tool_calls[1]`), never from the transcript's own
  ids, which real files use more than once.
- Nothing is guessed: a result without an open call is only recorded; an effect without a result is
  EffectUnknown, and a run that has one is not completed, whatever its reward says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

from foldlog.artifacts import ArtifactFolder
from foldlog.core.values import INTEGER_MAX, is_run_id
from foldlog.importers import calls, runner
from foldlog.importers.base import (
    Artifact,
    Author,
    Broken,
    Event,
    Script,
    Translation,
    cut_text,
    keep_json,
    keep_text,
    record,
    recorded,
)
from foldlog.importers.calls import Call
from foldlog.importers.messages import (
    NAME_CHARACTERS_MAX,
    Message,
    arguments_of,
    check_calls,
    check_content,
    check_text,
    shown,
    text_of,
)

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
IMPORTER: Author = ("system", "import")
AGENT: Author = ("agent", "assistant")


def import_chat(
    engine: runner.Engine,
    source: str | os.PathLike[str] | BinaryIO,
    artifacts: ArtifactFolder,
    effect_tools: Iterable[str] = (),
    progress: Callable[[runner.RunImport], None] | None = None,
) -> list[runner.RunImport]:
    """Import each line of a file; one result a line, in order, handed to `progress` as it is there.

    What a result counts as accepted is durable. Broken lines and runs that exist with other content
    are results; errors of the engine (time-out, log unreachable) and OSError are raised, and
    importing again goes on where it stopped.
    """
    names = frozenset(effect_tools)
    return runner.import_lines(
        engine, source, lambda line: translate(line, names), artifacts, progress
    )


def translate(line: Any, effect_tools: Iterable[str] = ()) -> Translation:
    """One line as proposals; `Broken` if it is no transcript. `line` is what `strict_json` read.

    A tool named in `effect_tools` changes the outside world; their order, and names that no call
    has, make no difference.
    """
    transcript = _read(line)
    return _Translator(transcript, frozenset(effect_tools)).translation()


@dataclass(frozen=True, slots=True)
class _Transcript:
    run_id: str
    messages: list[Message]
    reward: int | float | None
    rest: dict[str, Any]  # what the line has beside these

    def source(self) -> list[Any]:
        """All of it, as JSON."""
        return [self.messages, self.reward, self.rest]


@dataclass(frozen=True, slots=True)
class _Open:
    key: tuple[str, str]  # by what its result names it
    call: Call


class _Translator:
    """Walks the messages once. The run is `running` before and after each of them."""

    def __init__(self, transcript: _Transcript, effect_tools: frozenset[str]) -> None:
        self._transcript = transcript
        self._effect_tools = effect_tools
        self._script = Script(transcript.run_id, transcript.source())
        self._open: list[_Open] = []  # in the order of their start

    def translation(self) -> Translation:
        goal = self._start()
        for place, message in enumerate(self._transcript.messages):
            if place != goal:
                self._message(place, message)
        self._end()
        return self._script.finish()

    def _start(self) -> int | None:
        messages = self._transcript.messages
        goal = next((i for i, each in enumerate(messages) if each["role"] == "user"), None)
        first: Message = {} if goal is None else messages[goal]
        statement, artifacts = keep_text(text_of(first.get("content")), f"message_{goal}.text")
        events: list[Event] = [{"type": "RunStarted", "goal": {"statement": statement}}]
        if not _is_plain(first):
            artifacts += record(events, "message", first, f"message_{goal}")
        if self._transcript.rest:
            artifacts += record(events, "transcript", self._transcript.rest, "transcript")
        self._script.add(_author(first, "user"), events, *artifacts)
        steps = [{"type": "RunTransitioned", "to": to} for to in ("planning", "running")]
        self._script.add(AGENT, steps)
        return goal

    def _message(self, place: int, message: Message) -> None:
        match message["role"]:
            case "assistant":
                self._assistant(place, message)
            case "user":
                self._user(place, message)
            case "tool" | "function":
                self._result(place, message)
            case _:
                self._recorded(place, message, _author(message, "system"))

    def _recorded(self, place: int, message: Message, author: Author) -> None:
        events: list[Event] = []
        artifacts = record(events, "message", message, f"message_{place}")
        self._script.add(author, events, *artifacts)

    def _assistant(self, place: int, message: Message) -> None:
        author = _author(message, "agent")
        self._recorded(place, _without_arguments(message), author)
        # One proposal a call: any number of parallel calls stays within the limits of a batch.
        for each in _calls(place, message, self._effect_tools):
            events, artifacts = calls.started(each.call, self._transcript.run_id)
            self._script.add(author, events, *artifacts)
            self._open.append(each)

    def _user(self, place: int, message: Message) -> None:
        before = self._transcript.messages[place - 1]
        asked = text_of(before.get("content")) if before["role"] == "assistant" else ""
        wait = {"type": "WaitStarted", "kind": "user", "key": f"user_{place}"}
        self._script.add(AGENT, [wait | {"reason": cut_text(asked) or "the user's next message"}])
        signal: Event = {"type": "SignalReceived", "key": wait["key"]}
        signal["signal_id"] = f"message_{place}"
        events, artifacts = [signal], _fill(signal, "payload", message, f"message_{place}.content")
        if not _is_plain(message, any_content=True):
            artifacts += record(events, "message", _rest(message), f"message_{place}")
        self._script.add(_author(message, "user"), events, *artifacts)

    def _result(self, place: int, message: Message) -> None:
        call = self._take(_result_key(message))
        if call is None:
            self._recorded(place, message, ("tool", _name(message) or "tool"))
            return
        failed = text_of(message.get("content")).startswith("Error")
        translate_result = calls.failed if failed else calls.succeeded
        content = message.get("content")
        events, artifacts = translate_result(call, content, f"message_{place}.content")
        if not _is_plain(message, any_content=not failed, name=call.tool):
            kept = message if failed else _rest(message)
            artifacts += record(events, "message", kept, f"message_{place}")
        self._script.add(("tool", call.tool), events, *artifacts)

    def _take(self, key: tuple[str, str]) -> Call | None:
        """The nearest earlier open call of this key, no longer open."""
        for at in range(len(self._open) - 1, -1, -1):
            if self._open[at].key == key:
                return self._open.pop(at).call
        return None

    def _end(self) -> None:
        reward = self._transcript.reward
        doubts = [each.call.effect_id for each in self._open if each.call.is_effect]
        for each in self._open:
            if events := calls.unanswered(each.call, is_over=reward is not None):
                self._script.add(IMPORTER, events)
        if reward is not None:
            self._finish(reward, doubts)

    def _finish(self, reward: int | float, doubts: list[str]) -> None:
        if reward == 1 and doubts:
            # Completed would claim that nothing is in doubt; failed would claim what is not so.
            self._script.add(IMPORTER, [recorded("reward", reward)])
            note = calls.doubts(self._transcript.run_id, "reward is 1", doubts)
            self._script.notes.append(note)
            return
        result = "completed" if reward == 1 else "failed"
        finished = {"type": "RunFinished", "result": result, "reason": f"reward {reward}"}
        self._script.add(IMPORTER, [finished])


def _fill(event: Event, field: str, message: Message, artifact_id: str) -> tuple[Artifact, ...]:
    """Put the message's content into a field of the event, unless there is none."""
    content = message.get("content")
    if content is None:
        return ()
    event[field], artifacts = keep_json(content, artifact_id)
    return artifacts


def _is_plain(message: Message, any_content: bool = False, name: str | None = None) -> bool:
    """Whether the events made of a message, and their author, hold all of it (null fields aside).

    They hold the content where it is a text, or `any_content`; and the name where it is `name`, by
    default the author's.
    """
    known = {"role", "content"} | ({"tool_call_id"} if message.get("role") == "tool" else set())
    if message.get("name") == (name or _name(message)):
        known.add("name")
    plain = any_content or isinstance(message.get("content"), str | None)
    return plain and all(key in known or value is None for key, value in message.items())


def _rest(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "content"}


def _name(message: Message) -> str | None:
    name = message.get("name")
    return name if isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX else None


def _author(message: Message, kind: str) -> Author:
    """Who speaks: the message's own name, else its role."""
    return kind, _name(message) or str(message.get("role", kind))


def _without_arguments(message: Message) -> Message:
    """An assistant's message less what its ToolStarted events hold."""
    given = message.get("tool_calls")
    bare = dict(message)
    if given:
        bare["tool_calls"] = [c | {"function": _no_arguments(c["function"])} for c in given]
    if message.get("function_call"):
        bare["function_call"] = _no_arguments(message["function_call"])
    return bare


def _no_arguments(function: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in function.items() if key != "arguments"}


def _calls(place: int, message: Message, effect_tools: frozenset[str]) -> list[_Open]:
    found = [(("id", each["id"]), each["function"]) for each in message.get("tool_calls") or ()]
    legacy = message.get("function_call")
    if legacy:
        found.append((("name", legacy["name"]), legacy))
    return [
        _Open(key, Call(f"{place}.{at}", f["name"], arguments_of(f), f["name"] in effect_tools))
        for at, (key, f) in enumerate(found)
    ]


def _result_key(message: Message) -> tuple[str, str]:
    if message["role"] == "function":
        return "name", message["name"]
    return "id", message["tool_call_id"]


# Reading: what follows refuses whatever the walk above takes for granted.


def _read(line: Any) -> _Transcript:
    if not isinstance(line, dict):
        raise Broken(None, "a line is one JSON object {id, messages, reward}")
    run_id = line.get("id")
    if not isinstance(run_id, str) or not is_run_id(run_id):
        raise Broken("id", f"not a run id ([A-Za-z0-9][A-Za-z0-9._:-]{{0,127}}): {shown(run_id)}")
    messages = line.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Broken("messages", "a list of at least one message is needed")
    for place, message in enumerate(messages):
        _check_message(f"messages[{place}]", message)
    reward = line.get("reward")
    if reward is not None and type(reward) not in (int, float):
        raise Broken("reward", f"a number is needed, not {shown(reward)}")
    rest = {key: line[key] for key in line if key not in ("id", "messages", "reward")}
    return _Transcript(run_id, messages, _number(reward), rest)


def _number(reward: int | float | None) -> int | float | None:
    """1 for 1.0: the same number, however a program writes it, is the same transcript."""
    if isinstance(reward, float) and reward.is_integer() and abs(reward) <= INTEGER_MAX:
        return int(reward)
    return reward


def _check_message(path: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise Broken(path, f"a message is an object, not {shown(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise Broken(f"{path}.role", f"{shown(role)} is none of {', '.join(ROLES)}")
    check_content(f"{path}.content", message.get("content"))
    if role == "tool":
        check_text(f"{path}.tool_call_id", message.get("tool_call_id"))
    if role == "function":
        check_text(f"{path}.name", message.get("name"))
    if role == "assistant":
        check_calls(path, message)
