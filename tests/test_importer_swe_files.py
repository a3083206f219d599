"""The SWE-agent importer on whole files: broken ones, again, under other names, of any content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog import testing
from foldlog.core.values import canonical_json
from foldlog.importers.base import Broken
from foldlog.importers.guess import guess_format
from foldlog.importers.places import line_of
from foldlog.importers.swe_agent import translate
from tests.core_fold import core_document
from tests.import_model import ModelEngine
from tests.traj_files import PATCH, acts, fold, history, imported, says, step, tools, traj

# Broken files

BROKEN: list[tuple[Any, str | None]] = [
    ([], None),
    ("x", None),
    (None, None),
    ({}, "history"),
    ({"history": []}, "history"),
    ({"history": {}}, "history"),
    ({"trajectory": "x"}, "trajectory"),
    ({"trajectory": [], "history": "x"}, "history"),
    (traj("ls"), "trajectory[0]"),
    (traj(step("ls"), {"observation": ""}), "trajectory[1].action"),
    (traj(step("ls") | {"action": None}), "trajectory[0].action"),
    (traj({"action": "ls"}), "trajectory[0].observation"),
    (traj(step("ls") | {"observation": 5}), "trajectory[0].observation"),
    (traj(step("ls") | {"thought": []}), "trajectory[0].thought"),
    (traj(step("ls", response={})), "trajectory[0].response"),
    (history("x"), "history[3]"),
    (history({"content": "x"}), "history[3].role"),
    (history({"role": "human"}), "history[3].role"),
    (history({"role": ["user"]}), "history[3].role"),
    (history(says(5)), "history[3].content"),
    (history(says(["x"])), "history[3].content[0]"),
    (history(says("x", is_demo="no")), "history[3].is_demo"),
    (history(acts("ls", thought=1)), "history[3].thought"),
    (history(acts("ls") | {"action": 1}), "history[3].action"),
    (history(acts("ls", tool_calls={})), "history[3].tool_calls"),
    (history(acts("ls", "")), "history[3].tool_calls[0].function.name"),
    (history(says("x", tool_call_ids="c1")), "history[3].tool_call_ids"),
    (history(says("x", tool_call_ids=["a", 1])), "history[3].tool_call_ids[1]"),
    (traj(info=[]), "info"),
    (traj(info={"exit_status": 1}), "info.exit_status"),
    (traj(info={"submission": {}}), "info.submission"),
    (traj(environment=1), "environment"),
]


@pytest.mark.parametrize(("document", "field"), BROKEN)
def test_a_broken_file_names_its_field(document: Any, field: str | None):
    """What is not SWE-agent's form is refused whole, by the path of the first wrong field."""
    with pytest.raises(Broken) as caught:
        translate(document, "fix.traj")
    assert caught.value.field == field
    assert caught.value.message


def test_a_field_has_a_line():
    """The line of the value, or of the innermost one on the way to it that is there."""
    text = '\n{"a": [1,\n {"b": 2,\n  "c": [ ] }\n],\n"d":\n 5, "f": []}'
    found = {None: 2, "a": 2, "a[1]": 3, "a[1].b": 3, "a[1].c": 4, "a[1].c[0]": 4, "a[2]": 2,
             "d": 7, "e": 2, "d.x": 7, "a.x": 2, "f[0]": 7, "d[0]": 7}  # fmt: skip
    assert {path: line_of(text, path) for path in found} == found


# Importing


def test_a_file_again_changes_nothing_and_another_of_the_name_is_refused(tmp_path: Path):
    """Indented or not it is the same file; other content under the name is RUN_EXISTS."""
    engine = ModelEngine()
    first = imported(engine, tmp_path, traj(step("ls")))
    assert (first.outcome, first.line, first.run_id) == ("imported", 1, "fix")
    again = imported(engine, tmp_path, json.dumps(traj(step("ls"))).encode(), "x/fix.traj")
    assert (again.outcome, again.duplicates) == ("unchanged", first.accepted)
    other = imported(engine, tmp_path, traj(step("pwd")))
    assert (other.outcome, other.code, other.accepted) == ("differs", "RUN_EXISTS", 0)
    assert "nothing of this file" in str(other.message)
    assert "under another name" in str(other.message)


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"", 1, "not a JSON file"),
        (b"\n\nhello", 3, "not a JSON file"),
        (b'{\n"trajectory": [\n{"action": "ls",}\n]}', 3, "not a JSON file"),
        (b'{"history": []}\n{}', 2, "not a JSON file"),
        (b'{\n"a": "\xff"}', 2, "not a JSON file"),
        (b'{"a": 1, "a": 2}', 1, "twice"),
        (b"[" * 70 + b"]" * 70, 1, "levels"),
        (b'\xef\xbb\xbf{\n"history":\n\n 5}', 4, "a list is needed"),
    ],
)
def test_a_broken_file_names_its_line(data: bytes, line: int, words: str, tmp_path: Path):
    """Where it stops being JSON, or where the wrong field stands; nothing of it is imported."""
    engine = ModelEngine()
    result = imported(engine, tmp_path, data)
    assert (result.outcome, result.line, result.run_id) == ("broken", line, "fix")
    assert words in result.message
    assert "nothing of this file was imported" in result.message
    assert engine.runs == {}


def test_a_file_that_is_too_long_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file over the limit is not read into memory."""
    monkeypatch.setattr("foldlog.importers.runner.FILE_BYTES_MAX", 100)
    assert "at most 100 bytes" in imported(ModelEngine(), tmp_path, b" " * 101).message
    assert "not a JSON file" in imported(ModelEngine(), tmp_path, b" " * 100).message


def test_the_engine_takes_it(tmp_path: Path):
    """In the engine: accepted, then duplicates, and the log verifies."""
    document = traj(step("create a.py", "ok"), step("edit 1:1", "Error"), step("submit", PATCH))
    with testing.Engine() as engine:
        assert [imported(engine, tmp_path, document).outcome for _ in range(2)] == [
            "imported",
            "unchanged",
        ]
        assert engine.verify().ok


# Guessing


@pytest.mark.parametrize(
    ("head", "found", "named"),
    [
        (b'{"id": "a", "messages": []}\n{', "chat", "chat"),
        (b'{"history": [], "messages": []}', "chat", "chat"),
        (b'{"environment": "x", "trajectory": [{"messages": []', "swe-agent", "swe-agent"),
        (b'\n {\n "history" :\n [', "swe-agent", "swe-agent"),
        (b'{"a\\"{": "}", "history": [', "swe-agent", "swe-agent"),
        (b'{"info": {"history": 1}}\n{"history": 1}', "chat", "swe-agent"),
        (b'[{"history": 1}]', "chat", "swe-agent"),
        (b'{"a": "cut off, \\', "chat", "swe-agent"),
        (b"hello", "chat", "swe-agent"),
        (b"", "chat", "swe-agent"),
        (b"]]]", "chat", "swe-agent"),
    ],
)
def test_the_format_is_guessed(head: bytes, found: str, named: str):
    """By the first object's keys; where they do not tell, by the name."""
    assert (guess_format(head), guess_format(head, "x.traj")) == (found, named)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":\\ahistory ', max_size=60).map(str.encode))
def test_a_guess_never_fails(head: bytes):
    """Whatever the bytes, some format is named."""
    assert guess_format(head) in ("chat", "swe-agent")


# Laws

TEXT = st.sampled_from(["", "ls", "edit 1:1", "create a", "submit", PATCH, "Error", "x" * 9000])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
CALL = st.fixed_dictionaries(
    {
        "id": st.sampled_from("ab"),
        "function": st.fixed_dictionaries(
            {"name": st.sampled_from(["edit", "ls"])}, optional={"arguments": TEXT}
        ),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.none() | TEXT},
    optional={
        "action": st.none() | TEXT,
        "thought": TEXT,
        "is_demo": st.booleans(),
        "tool_calls": st.none() | st.lists(CALL, max_size=2),
        "tool_call_ids": st.none() | st.lists(st.sampled_from("ab"), max_size=2),
        "more": JSON,
    },
)
STEP = st.fixed_dictionaries(
    {"action": TEXT, "observation": st.none() | TEXT}, optional={"thought": TEXT, "state": JSON}
)
INFO = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "exit_status": st.none() | st.sampled_from(["submitted", "exit_cost", ""]),
        "submission": st.none() | TEXT,
        "model_stats": JSON,
    },
)
FILE = st.fixed_dictionaries(
    {"history": st.lists(MESSAGE, min_size=1, max_size=8)},
    optional={
        "trajectory": st.none() | st.lists(STEP, max_size=6),
        "info": INFO,
        "replay_config": JSON,
    },
)


@given(FILE, st.sets(st.sampled_from(["ls", "edit"])))
def test_every_translation_is_accepted(document: Any, effects: set[str]):
    """Whatever the file, a log accepts every proposal, and the run ends as the file says."""
    translation = translate(document, "fix.traj", effects)
    model = fold(translation)
    shown = core_document(translation.run_id, translation.proposals)
    assert (shown["status"], shown["result"]) == (model.status, model.result)
    info = document.get("info") or {}
    if info.get("exit_status") and not translation.notes:
        completed = info["exit_status"] == "submitted"
        assert model.result == ("completed" if completed else "failed")
        assert not model.pending
    elif document.get("info") is not None:
        assert model.status == "running"
    [whole] = [artifact for artifact in translation.artifacts if artifact.id == "transcript"]
    assert json.loads(whole.data) == json.loads(canonical_json(document))
    steps = document.get("trajectory") or []
    events = [event for proposal in translation.proposals for event in proposal["events"]]
    if steps:
        assert len(tools(events)) == sum(bool(each["action"].strip()) for each in steps)


def broken_or_valid(document: Any) -> Broken | None:
    """Why the file is broken; None, and every proposal accepted, if it is not."""
    try:
        translation = translate(document, "fix.traj")
    except Broken as broken:
        return broken
    fold(translation)
    return None


@given(FILE, st.data())
def test_a_damaged_file_is_translated_or_broken(document: Any, data: Any):
    """Any value anywhere replaced or removed: a valid translation, or Broken with a line."""
    place, inner = document, data.draw(st.integers(1, 4))
    for _ in range(inner):
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    broken = broken_or_valid(document)
    if broken is not None:
        assert broken.message
        assert line_of(json.dumps(document, indent=1), broken.field) >= 1


@given(JSON, JSON, JSON, JSON)
def test_any_json_is_translated_or_broken(trajectory: Any, messages: Any, info: Any, config: Any):
    """Any JSON in the four fields, and any JSON as the file."""
    whole = {"trajectory": trajectory, "history": messages, "info": info, "replay_config": config}
    for document in (trajectory, whole):
        broken = broken_or_valid(document)
        assert broken is None or broken.message
