"""The SWE-agent importer: what each step becomes, in both forms, and that a log takes all of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from foldlog import testing
from foldlog.core.values import strict_json
from foldlog.importers.base import Broken
from foldlog.importers.guess import HEAD_BYTES, guess_format
from foldlog.importers.swe_agent import run_id_of, translate
from tests.chat_messages import of, payloads
from tests.core_fold import core_document
from tests.traj_files import (
    DEMO,
    PATCH,
    PROMPT,
    SYSTEM,
    TASK,
    acts,
    fold,
    history,
    imported,
    says,
    step,
    tools,
    traj,
    translated,
)

REPOSITORY = Path(__file__).resolve().parent.parent
TRACES = Path(os.environ.get("FOLDLOG_TRACES") or REPOSITORY.parent / "shared" / "traces")
CODING = TRACES / "coding"
needs_traces = pytest.mark.skipif(
    not CODING.exists() and "FOLDLOG_TRACES" not in os.environ,
    reason=f"no traces: {CODING} is missing (FOLDLOG_TRACES names the folder)",
)


def real(name: str) -> Any:
    """A real file, parsed."""
    return strict_json((CODING / name).read_bytes())


# The goal


def test_the_goal_is_the_tasks_first_message():
    """The first user message that is no demonstration, in both forms."""
    for document in (traj(step("ls")), history(acts("ls"), says("a.py"))):
        assert translated(document)[0]["goal"] == {"statement": "Fix the login failure."}


def test_demonstrations_are_skipped():
    """Marked either way, demonstrations are no goal, no step and no message of the run."""
    other = {"role": "user", "content": "Demo", "message_type": "demonstration"}
    demo = [DEMO, other, acts("rm -rf /", is_demo=True), says("gone", is_demo=True)]
    document = {"history": [SYSTEM, *demo, TASK, acts("ls"), says("a.py")]}
    events = translated(document)
    assert [start["tool"] for start, _ in tools(events)] == ["ls"]
    shown = json.dumps(events)
    assert "Demo" not in shown
    assert "demonstration" not in shown
    assert payloads(events) == [SYSTEM]


def test_a_goal_without_a_history():
    """What the first step's model call was given, then the problem statement, stand in for it."""
    given = [SYSTEM, DEMO, TASK]
    problem = {"problem_statement": {"text": "The issue."}}
    for key in ("query", "messages"):
        first = step("ls") | {key: given}
        assert translated({"trajectory": [first]})[0]["goal"]["statement"] == TASK["content"]
    configs: list[Any] = [problem, json.dumps(problem)]
    for config in configs:
        document = {"trajectory": [step("ls")], "replay_config": config}
        assert translated(document)[0]["goal"]["statement"] == "The issue."
    configs = [None, "{", "[]", 7, {"problem_statement": 7}]
    for config in configs:
        document = {"trajectory": [step("ls") | {"query": ["x"]}], "replay_config": config}
        assert translated(document)[0]["goal"]["statement"] == ""


def test_a_goal_of_parts_and_a_long_one():
    """Parts make a text and are recorded; what is over 8 KiB is cut and kept whole."""
    parts = [{"type": "text", "text": "Fix"}, {"type": "image_url", "image_url": "x"}]
    document = {"history": [TASK | {"content": parts}]}
    events = translated(document)
    assert events[0]["goal"]["statement"] == "Fix"
    assert payloads(events) == [{"role": "user", "content": parts}]
    long = translate({"history": [TASK | {"content": "é" * 9000}]}, "x")
    assert fold(long).goal == "é" * 4096
    assert ("é" * 9000).encode() in [each.data for each in long.artifacts]


# Steps


def test_a_step_of_the_trajectory():
    """Recorded with thought and state, started with the action, ended with the observation."""
    events = translated(traj(step("ls -F", "a.py", "Let me look.")))
    assert payloads(events, "step") == [
        {"thought": "Let me look.", "state": {"open_file": "n/a"}, "execution_time": 0.25}
    ]
    assert tools(events) == [
        (
            {
                "type": "ToolStarted",
                "step_id": "step_0",
                "tool": "ls",
                "arguments": {"action": "ls -F"},
            },
            {"type": "ToolSucceeded", "step_id": "step_0", "result": "a.py"},
        )
    ]


def test_a_step_of_the_history():
    """An action and the message after it; the step's number is the message's."""
    events = translated(history(acts("ls"), says("a.py" + PROMPT), acts("pwd"), says("/repo")))
    ends = [(start["step_id"], end["result"]) for start, end in tools(events)]
    assert ends == [("step_3", "a.py" + PROMPT), ("step_5", "/repo")]
    assert payloads(events, "step")[0] == {"role": "assistant", "thought": "Hm."}


def test_a_response_that_is_not_the_thought_is_recorded():
    """What the model said beside its thought is kept with the step."""
    events = translated(traj(step("ls", response="Hm.\n```\nls\n```")))
    assert payloads(events, "step")[0]["response"] == "Hm.\n```\nls\n```"


def test_a_tool_call_names_the_tool_and_its_arguments():
    """In both forms, where the file has one call for the action; the action is recorded then."""
    call = acts("open 'a.py'", "open", '{"path":"a.py"}')
    forms = (
        traj(step("open 'a.py'", "[File]"), history=[TASK, call, says("[File]", "tool")]),
        history(call, says("[File]", "tool", tool_call_ids=["c1"])),
    )
    for document in forms:
        events = translated(document)
        [(start, end)] = tools(events)
        assert (start["tool"], start["arguments"]) == ("open", {"path": "a.py"})
        assert end["result"] == "[File]"
        assert payloads(events, "step")[0]["action"] == "open 'a.py'"


def test_a_call_belongs_to_a_step_of_the_same_action():
    """Steps and messages are matched in order, and only where the action is the same."""
    messages = [TASK, acts("ls", "one"), acts("ls", "two"), acts("pwd", "three")]
    events = translated(traj(step("cd"), step("ls"), step("pwd"), step("ls"), history=messages))
    assert [start["tool"] for start, _ in tools(events)] == ["cd", "one", "three", "ls"]


def test_several_calls_for_one_action_are_none():
    """Which of them the action was is not guessed; all are recorded."""
    message = acts("ls -F", "ls")
    message["tool_calls"] *= 2
    events = translated(history(message, says("a.py", "tool")))
    assert [start["arguments"] for start, _ in tools(events)] == [{"action": "ls -F"}]
    assert payloads(events, "step")[0]["tool_calls"] == message["tool_calls"]


def test_a_message_without_an_action_is_recorded():
    """In a history, what is neither action nor observation stands in its place."""
    thinks = {"role": "assistant", "content": "I think."}
    events = translated(history(thinks, says("Go on."), acts("ls"), says("a.py"), says("More.")))
    assert payloads(events) == [SYSTEM, thinks, says("Go on."), says("More.")]
    assert len(tools(events)) == 1


def test_an_answer_to_another_call_is_no_observation():
    """Ids that name another call leave this one without a result, and the answer recorded."""
    other = says("a.py", "tool", tool_call_ids=["c2"])
    events = translated(history(acts("ls", "ls"), other))
    assert [end for _, end in tools(events)] == [None]
    assert payloads(events) == [SYSTEM, other]


def test_a_step_without_an_action_is_only_recorded():
    """Such as the step that says why the run ended."""
    events = translated(traj(step("", "Exit due to cost limit", "")))
    assert tools(events) == []
    assert payloads(events, "observation") == ["Exit due to cost limit"]
    assert payloads(events, "step")[0]["thought"] == ""


def test_an_observation_of_null_is_none_and_an_empty_one_is_one():
    """null leaves the call without a result; "" is a command that said nothing."""
    ended = {"exit_status": "exit_cost"}
    events = translated(traj(step("ls"), step("cat", None), info=ended))
    first, second = tools(events)
    assert first[1]["result"] == ""
    assert second[1]["error"] == "no result in the transcript"
    opened = translated(traj(step("cat", None), info={}))
    assert tools(opened)[0][1] is None


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("vim a.py", "Operation 'vim a.py' is not supported by this environment."),
        ("vim", "Interactive operation 'vim' is not supported by this environment"),
        ("ls (", "Your bash command contained syntax errors and was NOT executed. Fix"),
        ("sleep 99", "The command 'sleep 99' was cancelled because it took more than 30 seconds."),
        ("./rock", "\nEXECUTION TIMED OUT"),
        ("edit 1:1", "Your proposed edit has introduced new syntax error(s). Please"),
        ("edit a b", "Your edit was not applied (file not modified): Text 'a' not found"),
        ("edit a a", "Your search and replace strings are the same. No changes were made."),
        ("edit 1:1", "No file open. Use the open command first."),
        ("create a.py", "Warning: File 'a.py' already exists."),
        ("create", "Usage: create <filename>"),
        ("insert x", "Error: not a line"),
        ("str_replace_editor str_replace /a", "OBSERVATION:\nNo replacement was performed, old"),
        ("str_replace_editor create /a", "File already exists at: /a. Cannot overwrite"),
    ],
)
def test_what_was_refused_is_a_failure_and_moves_nothing(action: str, observation: str):
    """The words of the environment, and of the edit commands, that say that nothing was done."""
    for document in (traj(step(action, observation)), history(acts(action), says(observation))):
        events = translated(document)
        [(_, end)] = tools(events)
        assert (end["type"], end["error"]) == ("ToolFailed", observation)
        assert end["recoverable"] is False
        assert of(events, "WorkspaceMoved") == []


def test_a_program_that_says_error_did_run():
    """What a shell command printed is its result, whatever it says."""
    for text in ("Error: 3 tests failed", "Usage: pytest", "Traceback", "No file open"):
        assert tools(translated(traj(step("pytest", text))))[0][1]["type"] == "ToolSucceeded"


# Edits


@pytest.mark.parametrize(
    "action",
    [
        "create a.py",
        "edit 1:1\nx = 2\nend_of_edit",
        "insert 'x'",
        "str_replace_editor create /a.py --file_text x",
        "str_replace_editor str_replace /a.py",
        "str_replace_editor insert /a.py",
        "str_replace_editor undo_edit /a.py",
    ],
)
def test_an_edit_moves_the_workspace_and_is_an_artifact(action: str):
    """Each edit that was not refused; the artifact is the edit as the agent gave it."""
    for document in (traj(step(action, "done")), history(acts(action), says("done"))):
        translation = translate(document, "fix.traj")
        assert len(fold(translation).commits) == 1
        assert action.encode() in [each.data for each in translation.artifacts]


def test_an_edit_by_tool_call():
    """The call's `command` decides, not the words of the action; without an action it is kept."""
    call = acts("", "str_replace_editor", '{"command":"insert","path":"/a"}')
    assert len(of(translated(history(call, says("ok", "tool"))), "WorkspaceMoved")) == 1
    call = acts("x insert", "str_replace_editor", '{"command":"view"}')
    assert of(translated(history(call, says("ok", "tool"))), "WorkspaceMoved") == []


def test_what_is_no_edit_moves_nothing():
    """Shell commands, views and searches say nothing certain about the workspace."""
    for action in (
        "rm a.py",
        "sed -i s/1/2/ a.py",
        "open a.py",
        "str_replace_editor view /a",
        "submit",
    ):
        assert of(translated(traj(step(action, "x"))), "WorkspaceMoved") == []


def test_a_workspace_names_its_base_and_each_edit_another_commit():
    """The same edits on the same base are the same commits; any other edit makes others."""
    config = {"env": {"repo": {"base_commit": "abc123"}}}

    def commits(*actions: str, base: Any = config) -> list[str]:
        steps = [step(action, "done") for action in actions]
        document = traj(*steps, replay_config=base, environment="main")
        return [
            e["workspace"]["current_commit"] for e in of(translated(document), "WorkspaceMoved")
        ]

    one, two, one_again = commits("create a", "create b", "create a")
    assert len({one, two, one_again}) == 3
    assert commits("create a", "create b") == [one, two]
    assert commits("create a", base=None) != [one]
    events = translated(traj(step("create a", "x"), replay_config=config, environment="main"))
    named = {"workspace_id": "main", "base_commit": "abc123"}
    assert events[0]["workspace"] == named | {"current_commit": "abc123"}
    assert of(events, "WorkspaceMoved")[0]["workspace"] == named | {"current_commit": one}
    bare = translated(traj(step("create a", "x")))
    assert "workspace" not in bare[0]
    assert of(bare, "WorkspaceMoved")[0]["workspace"]["workspace_id"] == "fix"


# The end


@pytest.mark.parametrize(
    ("info", "status", "result"),
    [
        ({"exit_status": "submitted", "submission": PATCH}, "finish", "completed"),
        ({"exit_status": "submitted"}, "finish", "completed"),
        ({"exit_status": "submitted (exit_cost)", "submission": PATCH}, "finish", "failed"),
        ({"exit_status": "exit_context"}, "finish", "failed"),
        ({"exit_status": None, "submission": PATCH}, "running", None),
        ({"exit_status": ""}, "running", None),
        ({}, "running", None),
        (None, "running", None),
    ],
)
def test_the_exit_status_ends_the_run(info: Any, status: str, result: str | None):
    """Only "submitted" is completed, anything else is failed, and without one the run is open."""
    translation = translate(traj(step("ls"), info=info), "fix")
    shown = core_document(translation.run_id, translation.proposals)
    assert (shown["status"], shown["result"]) == (status, result)
    patches = [each for each in translation.artifacts if each.id == "patch"]
    assert [each.data for each in patches] == [PATCH.encode()] * bool(info and "submission" in info)
    for event in of([e for p in translation.proposals for e in p["events"]], "RunFinished"):
        assert event.get("result_ref") == (patches[0].uri if patches else None)
        assert event["reason"] == info["exit_status"]


def test_a_history_that_ends_with_its_submission_is_completed():
    """The patch that `submit` answered with is the result, less what the shell says around it."""
    for text in ("\r\n" + PATCH + PROMPT, PATCH, "OBSERVATION:\n" + PATCH):
        translation = translate(history(acts("submit", "submit"), says(text, "tool")), "fix")
        assert fold(translation).result == "completed"
        assert [each.data for each in translation.artifacts if each.id == "patch"] == [
            PATCH.encode()
        ]


def test_a_history_that_does_not_end_so_is_open():
    """A submit without a patch, with more after it, or without an answer, ends nothing."""
    submit = acts("submit")
    for messages in (
        [submit],
        [submit, says("Thank you. Check your diff once more:\n" + PATCH)],
        [submit, says(PATCH), says("Not yet.")],
        [submit, says(PATCH), acts("ls"), says("a.py")],
        [acts("git diff"), says(PATCH)],
    ):
        assert fold(translate(history(*messages), "fix")).status == "running"
    # A file that has info says there how it ended.
    said = history(submit, says(PATCH), info={"model_stats": {}})
    assert fold(translate(said, "fix")).status == "running"


def test_info_is_recorded_less_the_patch():
    """Statistics and the like stand beside the end."""
    info = {"exit_status": "submitted", "submission": PATCH, "model_stats": {"api_calls": 2}}
    events = translated(traj(step("ls"), info=info, replay_config={}))
    assert payloads(events, "info") == [
        {"exit_status": "submitted", "model_stats": {"api_calls": 2}}
    ]


def test_versions_and_the_instance_are_named():
    """The agent's versions and model, and the instance as a label, where the file has them."""
    config = {"agent": {"model": {"name": "m-1"}}, "problem_statement": {"id": "org__repo-1"}}
    info = {"swe_agent_version": "1.1.0", "swe_rex_hash": None, "other": "x"}
    started = translated(traj(step("ls"), info=info, replay_config=config))[0]
    assert started["agent_version"] == {"model": "m-1", "swe_agent_version": "1.1.0"}
    assert started["labels"] == {"instance_id": "org__repo-1"}
    assert set(translated(traj(step("ls")))[0]) == {"type", "goal"}


def test_an_effect_tool_is_an_effect_besides():
    """Intended before the step, its outcome after; one without a result keeps the run open."""
    events = translated(traj(step("push", "ok"), step("push", "\nEXECUTION TIMED OUT")), ("push",))
    assert [e["type"] for e in events if e["type"].startswith("Effect")] == [
        "EffectIntended", "EffectSucceeded", "EffectIntended", "EffectFailed",
    ]  # fmt: skip
    translation = translate(traj(step("push", None)), "fix", ("push",))
    model = fold(translation)
    assert (model.status, model.effects) == ("running", {"effect_0": "unknown"})
    assert "foldlog reconcile fix EFFECT" in translation.notes[0]


# Names


@pytest.mark.parametrize(
    ("name", "run_id"),
    [
        ("fix.traj", "fix"),
        ("/some/where/fix.traj", "fix"),
        ("org__repo-1.2.traj", "org__repo-1.2"),
        ("fix", "fix"),
        ("a" * 128 + ".traj", "a" * 128),
    ],
)
def test_a_good_name_is_the_run_id(name: str, run_id: str):
    """The folder and .traj aside, a name that can be a run id is one."""
    assert run_id_of(name) == run_id


def test_other_names_become_safe_and_stay_apart():
    """Any other name is made one, always the same, and never that of another file."""
    names = ["my fix.traj", "my-fix.traj", "my/../fix?.traj", "_fix.traj", "é.traj", "à.traj",
             "a" * 129, "a" * 130, ".traj", "..", "\udcff.traj", "-"]  # fmt: skip
    made = [run_id_of(name) for name in names]
    assert len(set(made)) == len(names)
    assert made == [run_id_of(name) for name in names]
    for run_id, name in zip(made, names, strict=True):
        assert fold(translate(traj(step("ls")), name)).status == "finish", run_id


def test_a_file_without_a_name_goes_by_its_instance():
    """Standard input has no name; an instance id in the file stands in for it."""
    config = {"problem_statement": {"id": "org__repo-1"}}
    assert translate(traj(replay_config=config)).run_id == "org__repo-1"
    assert translate(traj(instance_id="top", replay_config=config)).run_id == "top"
    assert translate(traj(replay_config=config), "fix.traj").run_id == "fix"
    with pytest.raises(Broken) as caught:
        translate(traj())
    assert caught.value.field == "instance_id"


# Nothing is lost


def test_the_whole_file_is_an_artifact():
    """Demonstrations, configuration and all; the order of keys makes no difference."""
    document = traj(step("ls", query=[TASK]), replay_config={"x": [1.5]}, more={"y": None})
    again = {key: document[key] for key in reversed(document)}
    for each in (document, again):
        translation = translate(each, "fix")
        assert translation.artifacts[0].id == "transcript"
        assert json.loads(translation.artifacts[0].data) == document
    assert translate(document, "fix") == translate(again, "fix")


def test_large_texts_are_artifacts():
    """Thoughts, actions, results and errors over the limits are named, not held."""
    big = "é" * 70_000
    document = traj(
        step("ls " + big, big, big), step("edit " + big, "Error" + big), info={"log": big}
    )
    translation = translate(document, "fix")
    fold(translation)
    kept = [each.data for each in translation.artifacts]
    assert big.encode() in kept
    assert ("Error" + big).encode() in kept


def test_a_changed_file_has_no_batch_id_in_common():
    """Not even where no event tells: a demonstration that is another makes another import."""
    files = [
        traj(step("ls")),
        traj(step("ls"), step("pwd")),
        traj(step("ls"), history=[SYSTEM, DEMO | {"content": "x"}, TASK]),
        traj(step("ls"), info={}),
    ]
    made = [p["batch_id"] for each in files for p in translate(each, "fix").proposals]
    made += [p["batch_id"] for p in translate(files[0], "other").proposals]
    made += [p["batch_id"] for p in translate(files[0], "fix", ("ls",)).proposals]
    assert len(set(made)) == len(made)


# Real files


@needs_traces
def test_the_real_file_with_steps():
    """Eleven steps, one edit refused, three that moved the workspace, the patch as the result."""
    document = real("marshmallow-1867.traj")
    translation = translate(document, "marshmallow-1867.traj")
    model = fold(translation)
    events = [event for proposal in translation.proposals for event in proposal["events"]]
    assert translation.run_id == "marshmallow-1867"
    assert model.goal == document["history"][1]["content"]
    assert [start["tool"] for start, _ in tools(events)] == [
        "create", "edit", "bash", "bash", "find_file", "open", "edit", "edit", "bash", "bash",
        "submit",
    ]  # fmt: skip
    thoughts = [each["thought"] for each in payloads(events, "step")]
    assert thoughts == [each["thought"] for each in document["trajectory"]]
    assert [end["step_id"] for _, end in tools(events) if end["type"] == "ToolFailed"] == ["step_6"]
    assert len(model.commits) == 3
    assert model.result == "completed"
    patch = next(each for each in translation.artifacts if each.id == "patch")
    assert patch.data.decode() == document["info"]["submission"]
    assert of(events, "RunFinished")[0]["result_ref"] == patch.uri


@needs_traces
def test_the_real_file_with_a_history_only():
    """Five steps with the arguments of their calls, one edit, and the submission at the end."""
    document = real("function_calling_simple.traj")
    translation = translate(document, "function_calling_simple.traj")
    model = fold(translation)
    events = [event for proposal in translation.proposals for event in proposal["events"]]
    assert model.goal == document["history"][1]["content"]
    found = [(start["step_id"], start["tool"]) for start, _ in tools(events)]
    named = ["find_file", "open", "edit", "bash", "submit"]
    assert found == [(f"step_{2 + 2 * i}", tool) for i, tool in enumerate(named)]
    assert [end["result"] for _, end in tools(events)] == [
        each["content"] for each in document["history"] if each["role"] == "tool"
    ]
    assert (len(model.commits), model.result) == (1, "completed")
    patch = next(each for each in translation.artifacts if each.id == "patch")
    assert patch.data.startswith(b"diff --git a/tests/missing_colon.py")
    assert b"(Open file" not in patch.data


@needs_traces
def test_the_engine_takes_the_real_files(tmp_path: Path):
    """Accepted, then duplicates only; guessed by their content; the log verifies."""
    with testing.Engine() as engine:
        for outcome in ("imported", "unchanged"):
            for path in sorted(CODING.glob("*.traj")):
                data = path.read_bytes()
                assert guess_format(data[:HEAD_BYTES]) == "swe-agent"
                result = imported(engine, tmp_path, data, path.name)
                assert (result.outcome, result.rejected) == (outcome, 0)
        assert engine.verify(redecide=True).ok
        for run in engine.runs():
            assert (run.status, run.result) == ("finish", "completed")
