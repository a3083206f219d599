"""SWE-agent's `.traj` files as proposals: one file, one run.

Both forms: with `trajectory` (the steps) and with `history` only (the messages, in which each
action of the assistant and the observation after it are a step). The goal is the task's first
message: the first user message that is no demonstration. A step is ToolStarted beside a Recorded
"step" with the thought, then ToolSucceeded, or ToolFailed where the environment or an edit command
of SWE-agent refused. An edit that was not refused is WorkspaceMoved and an artifact with the edit.
`info.submission` is the artifact `patch` and the run's result; `info.exit_status` ends the run.

The run's id is the file's name without `.traj`; whatever no id can hold is written `-`, and 8
digits of the name's SHA-256 are added then. A file without a name (standard input) goes by the
instance's id, which is no name of its own because every attempt at the instance has the same one.

Invariants:
- `translate` is pure, and raises nothing but `Broken`.
- Every proposal is accepted by a log that holds nothing of the run (CONTRACT section 3).
- Nothing of the file is lost: the artifact `transcript` is the file as canonical JSON.
- Ids come from places: `step_3` is `trajectory[3]`, or `history[3]` where there are no steps.
- Nothing is guessed: no exit status leaves the run open, unless the file is a history whose last
  action is a `submit` that gave the patch; only "submitted" completes a run; shell commands move
  no workspace, whatever they did.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, BinaryIO

from foldlog.artifacts import ArtifactFolder
from foldlog.core.values import canonical_json, fits
from foldlog.importers import calls, runner
from foldlog.importers.base import (
    Artifact,
    Author,
    Broken,
    Event,
    Script,
    Translation,
    cut_text,
    keep_text,
    record,
)
from foldlog.importers.calls import Call
from foldlog.importers.messages import Message, text_of
from foldlog.importers.traj import Step, Traj, read

SUBMITTED = "submitted"
IMPORTER: Author = ("system", "import")
AGENT: Author = ("agent", "swe-agent")
RUN_ID_CHARACTERS_MAX = 128

TEXT_TYPE = "text/plain;charset=utf-8"
PATCH_TYPE = "text/x-diff;charset=utf-8"
_EDITING = frozenset(("create", "edit", "insert"))
_EDITING_COMMANDS = frozenset(("create", "str_replace", "insert", "undo_edit"))
# What the environment says instead of running an action.
_NOT_RUN = re.compile(
    r"Your bash command contained syntax errors and was NOT executed"
    r"|(?:Interactive operation|Operation) '.*' is not supported by this environment"
    r"|The command '.*' was cancelled because it took more than"
    r"|EXECUTION TIMED OUT",
    re.DOTALL,
)
# What the edit commands say instead of changing a file.
_NOT_EDITED = re.compile(
    r"Your proposed edit has introduced new syntax error|Your edit was not applied"
    r"|Your search and replace strings are the same|No replacement was performed"
    r"|No file open|No edit history found"
    r"|File already exists at: |Warning: File '.*' already exists"
    r"|Parameter `|Invalid `|Unrecognized command|The (?:parent directory|path) |Error|Usage:",
)
_BEFORE_OBSERVATION = re.compile(r"\s*(?:(?:OBSERVATION|Observation):)?\s*")
# What SWE-agent's templates put behind an observation: the state of its shell.
_PROMPT = re.compile(r"\n\(Open file: [^\n]*\)\n\(Current directory: [^\n]*\)\n(?:bash-)?\$\s*\Z")


def import_swe_agent(
    engine: runner.Engine,
    source: BinaryIO,
    artifacts: ArtifactFolder,
    name: str | None = None,
    effect_tools: Iterable[str] = (),
    progress: Callable[[runner.RunImport], None] | None = None,
) -> list[runner.RunImport]:
    """Import a file, which is one run; the one result, handed to `progress` too.

    `name` is the file's. What the result counts as accepted is durable. A broken file, or a run
    that exists with other content, is a result; errors of the engine and OSError are raised.
    """
    names = frozenset(effect_tools)
    run_id = None if name is None else run_id_of(name)
    return runner.import_document(
        engine, source, lambda value: translate(value, name, names), artifacts, run_id, progress
    )


def translate(
    document: Any, name: str | None = None, effect_tools: Iterable[str] = ()
) -> Translation:
    """A file as proposals; `Broken` if it is none. `document` is what `strict_json` read.

    A tool named in `effect_tools` changes the outside world.
    """
    traj = read(document)
    label = name or traj.instance_id
    if not label:
        needed = "the run has no name: give the file one, or an instance id"
        raise Broken("instance_id", needed)
    return _Translator(traj, run_id_of(label), frozenset(effect_tools)).translation()


def run_id_of(name: str) -> str:
    """A run id for a file's name or an instance's id: equal ones for equal ones, and no others."""
    plain = PurePath(name).name.removesuffix(".traj")
    safe = re.sub(r"[^A-Za-z0-9._:-]", "-", plain).lstrip("._:-")
    if safe == plain and 0 < len(plain) <= RUN_ID_CHARACTERS_MAX:
        return plain
    # Two names that differ in what an id cannot hold must not become one run.
    digits = hashlib.sha256(plain.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{safe[: RUN_ID_CHARACTERS_MAX - 9] or 'run'}-{digits}"


class _Translator:
    """Walks the file once. The run is `running` before and after each step."""

    def __init__(self, traj: Traj, run_id: str, effect_tools: frozenset[str]) -> None:
        self._traj = traj
        self._run_id = run_id
        self._effect_tools = effect_tools
        self._script = Script(run_id, traj.document)
        self._open: list[Call] = []
        self._commit = traj.base_commit

    def translation(self) -> Translation:
        self._start()
        for each in self._traj.parts:
            if isinstance(each, Step):
                self._step(each)
            else:
                self._message(*each)
        self._end()
        return self._script.finish()

    def _start(self) -> None:
        traj = self._traj
        goal = text_of(traj.goal)
        statement, artifacts = keep_text(goal, "goal")
        started: Event = {"type": "RunStarted", "goal": {"statement": statement}}
        if traj.agent_version:
            started["agent_version"] = traj.agent_version
        if traj.base_commit is not None:
            started["workspace"] = self._workspace()
        if traj.instance_id and fits(traj.instance_id, 1024):
            started["labels"] = {"instance_id": traj.instance_id}
        events = [started]
        if not isinstance(traj.goal, str | None):
            artifacts += record(events, "message", {"role": "user", "content": traj.goal}, "task")
        whole = canonical_json(traj.document).encode()
        artifacts += (Artifact("transcript", whole, "application/json"),)
        self._script.add(("user", "user"), events, *artifacts)
        moves = [{"type": "RunTransitioned", "to": to} for to in ("planning", "running")]
        self._script.add(AGENT, moves)

    def _message(self, place: int, message: Message) -> None:
        events: list[Event] = []
        artifacts = record(events, "message", message, f"message_{place}")
        role = message["role"]
        self._script.add(
            (_KINDS[role], AGENT[1] if role == "assistant" else role), events, *artifacts
        )

    def _step(self, step: Step) -> None:
        events: list[Event] = []
        kept = record(events, "step", step.record, f"step_{step.place}")
        tool = step.tool()
        if tool is None:
            # Such as a step at which the model gave no action; what came of it is its own record.
            self._script.add(AGENT, events, *kept)
            self._observed(step)
            return
        call = Call(str(step.place), tool, step.arguments(), tool in self._effect_tools)
        started, artifacts = calls.started(call, self._run_id)
        # The call first: it is what a line of the history shows of a batch.
        self._script.add(AGENT, started + events, *artifacts, *kept)
        if step.observation is None:
            self._open.append(call)
        else:
            self._result(step, call)

    def _observed(self, step: Step) -> None:
        if step.observation:
            events: list[Event] = []
            artifacts = record(events, "observation", step.observation, f"observation_{step.place}")
            self._script.add(IMPORTER, events, *artifacts)

    def _result(self, step: Step, call: Call) -> None:
        text = _said(step)
        is_edit = _is_edit(step, call.tool)
        refused = _NOT_RUN.match(text) or (is_edit and _NOT_EDITED.match(text))
        end = calls.failed if refused else calls.succeeded
        events, artifacts = end(call, step.observation, f"observation_{step.place}")
        if is_edit and not refused:
            edit = Artifact(f"edit_{step.place}", step.command().encode(), TEXT_TYPE)
            self._commit = _commit_after(self._commit, edit)
            events.append({"type": "WorkspaceMoved", "workspace": self._workspace()})
            artifacts += (edit,)
        self._script.add(("tool", call.tool), events, *artifacts)

    def _workspace(self) -> dict[str, Any]:
        traj = self._traj
        named = {"workspace_id": traj.environment or self._run_id, "current_commit": self._commit}
        return named if traj.base_commit is None else named | {"base_commit": traj.base_commit}

    def _end(self) -> None:
        status, patch = self._traj.exit_status, self._traj.submission
        given = self._given_patch()
        if not self._traj.has_info and given is not None:
            status, patch = SUBMITTED, given
        kept = () if not patch else (Artifact("patch", patch.encode(), PATCH_TYPE),)
        events: list[Event] = []
        artifacts: tuple[Artifact, ...] = ()
        if self._traj.info:
            artifacts = record(events, "info", self._traj.info, "info")
        if events or kept:
            self._script.add(IMPORTER, events, *artifacts, *kept)
        for call in self._open:
            if unanswered := calls.unanswered(call, is_over=bool(status)):
                self._script.add(IMPORTER, unanswered)
        if status:
            self._finish(status, kept[0].uri if kept else None)

    def _finish(self, status: str, result_ref: str | None) -> None:
        doubts = [call.effect_id for call in self._open if call.is_effect]
        if status == SUBMITTED and doubts:
            # Completed would claim that nothing is in doubt; failed would claim what is not so.
            note = calls.doubts(self._run_id, f"exit status is {SUBMITTED}", doubts)
            self._script.notes.append(note)
            return
        result = "completed" if status == SUBMITTED else "failed"
        finished = {"type": "RunFinished", "result": result, "reason": cut_text(status)}
        self._script.add(IMPORTER, [finished | ({"result_ref": result_ref} if result_ref else {})])

    def _given_patch(self) -> str | None:
        """The patch that the last step's `submit` answered with, if it did and nothing follows."""
        last = self._traj.parts[-1] if self._traj.parts else None
        if not isinstance(last, Step) or last.tool() != "submit" or last.observation is None:
            return None
        text = _PROMPT.sub("", _said(last))
        return text if text.startswith("diff --git ") else None


_KINDS = {"system": "system", "user": "user", "assistant": "agent", "tool": "tool"}


def _said(step: Step) -> str:
    """The observation's text from where the environment begins to speak."""
    text = text_of(step.observation)
    found = _BEFORE_OBSERVATION.match(text)
    return text if found is None else text[found.end() :]


def _is_edit(step: Step, tool: str) -> bool:
    if tool == "str_replace_editor":
        return step.subcommand() in _EDITING_COMMANDS
    return tool in _EDITING


def _commit_after(commit: str | None, edit: Artifact) -> str:
    """A reference to what an edit made of a workspace: the same for the same edits, in order."""
    return "sha256:" + hashlib.sha256(f"{commit or ''}\n{edit.sha256}".encode()).hexdigest()
