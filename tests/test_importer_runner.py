"""Importing files of transcripts: again, changed, cut off, broken."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from foldlog.artifacts import ArtifactFolder
from foldlog.importers.chat import import_chat, translate
from foldlog.importers.runner import LINE_BYTES_MAX, RunImport
from tests.chat_messages import HELLO, USER, call, calls, line, result
from tests.import_model import ModelEngine

# Batch ids


def ids(value: Any, *effects: str) -> list[str]:
    """The batch ids of a translation."""
    return [proposal["batch_id"] for proposal in translate(value, effects).proposals]


def test_the_same_content_has_the_same_batch_ids():
    """Order of keys, of effect tools, and effect tools that are not called, make no difference."""
    first = line(USER, calls(call("pay"), call("book", "c2")), reward=1.0)
    again = {key: first[key] for key in reversed(first)} | {"reward": 1}
    assert ids(first, "pay", "book") == ids(again, "book", "pay", "pay", "other")


def test_other_content_has_no_batch_id_in_common():
    """A changed or longer transcript, another run, or other options share no id at all."""
    base = line(USER, calls(call("pay")), result("ok"))
    others = [
        ids(line(USER, calls(call("pay")), result("OK"))),
        ids(line(*base["messages"], HELLO)),
        ids(base | {"reward": 0}),
        ids(base | {"reward": 0.5}),
        ids(base | {"id": "run_2"}),
        ids(base | {"model": "m"}),
        ids(line(HELLO, *base["messages"])),
        ids(line(base["messages"][0], HELLO, *base["messages"][1:])),
        ids(base, "pay"),
    ]
    every = [each for some in [ids(base), *others] for each in some]
    assert len(set(every)) == len(every)


# Importing


def jsonl(*values: Any) -> io.BytesIO:
    """A file of JSON lines; bytes are a line as they are."""
    lines = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return io.BytesIO(b"\n".join(lines))


def imported(engine: ModelEngine, home: Path, *values: Any, effects: tuple[str, ...] = ()) -> Any:
    """The results of importing these lines."""
    return import_chat(engine, jsonl(*values), ArtifactFolder(home), effects)


def test_importing_twice_changes_nothing(tmp_path: Path):
    """The first import is accepted, the second all duplicates."""
    engine, value = ModelEngine(), line(USER, calls(call()), result("x" * 70_000), reward=1.0)
    first, second = imported(engine, tmp_path, value)[0], imported(engine, tmp_path, value)[0]
    assert (first.outcome, first.accepted, first.duplicates) == ("imported", first.proposals, 0)
    assert (second.outcome, second.accepted, second.duplicates) == ("unchanged", 0, first.proposals)
    assert engine.runs["run_1"].model.revision == first.proposals


def test_a_run_with_other_content_differs(tmp_path: Path):
    """A changed or grown transcript under a known run id changes nothing, each time it is tried."""
    engine = ModelEngine()
    imported(engine, tmp_path, line(USER, HELLO))
    before = engine.runs["run_1"].model.revision
    for other in (line(USER, HELLO, USER), line(HELLO, USER)) * 2:
        differs = imported(engine, tmp_path, other)[0]
        assert (differs.outcome, differs.code, differs.rejected) == ("differs", "RUN_EXISTS", 1)
        assert "run_1" in differs.message
    assert engine.runs["run_1"].model.revision == before
    assert imported(engine, tmp_path, line(USER, HELLO))[0].outcome == "unchanged"


def test_an_import_that_died_goes_on(tmp_path: Path):
    """Wherever the process ends, importing again makes the same run."""
    value = line(USER, calls(call("pay")), result("ok"), USER, HELLO, reward=1.0)
    steps = len(translate(value, ["pay"]).steps)
    for stop in range(steps):
        engine = ModelEngine()
        engine.stop_after = stop
        with pytest.raises(ConnectionError):
            imported(engine, tmp_path, value, effects=("pay",))
        engine.stop_after = None
        done = imported(engine, tmp_path, value, effects=("pay",))[0]
        assert (done.outcome, done.duplicates, done.accepted) == ("imported", stop, steps - stop)
        assert engine.runs["run_1"].model.result == "completed"


def test_good_lines_go_on_past_broken_ones(tmp_path: Path):
    """Each broken line is named by number and field; the runs around it are imported."""
    other = line(USER) | {"id": "run_2"}
    bad = line(USER, reward="x") | {"id": "run_3"}
    engine = ModelEngine()
    results = imported(
        engine, tmp_path, line(USER), b"{", b"", bad, b'{"a":1,"a":2}', b"\xff", other
    )
    found = [(each.line, each.run_id, each.outcome, each.field) for each in results]
    assert found == [
        (1, "run_1", "imported", None),
        (2, None, "broken", None),
        (4, "run_3", "broken", "reward"),
        (5, None, "broken", None),
        (6, None, "broken", None),
        (7, "run_2", "imported", None),
    ]
    assert set(engine.runs) == {"run_1", "run_2"}
    assert [each.ok for each in results] == [True, False, False, False, False, True]


def test_line_ends_and_byte_order_marks_do_not_matter(tmp_path: Path):
    """Files from other systems are read as they are; the last line needs no end."""
    text = b"\xef\xbb\xbf" + json.dumps(line(USER)).encode() + b"\r\n\r\n"
    text += json.dumps(line(USER) | {"id": "b"}).encode()
    results = import_chat(ModelEngine(), io.BytesIO(text), ArtifactFolder(tmp_path))
    assert [(each.line, each.outcome) for each in results] == [(1, "imported"), (3, "imported")]


def test_a_line_that_is_too_long_is_broken_and_skipped(tmp_path: Path, monkeypatch: Any):
    """A line over the limit is not read into memory, and the next one has its own number."""
    monkeypatch.setattr("foldlog.importers.runner.LINE_BYTES_MAX", 100)
    assert LINE_BYTES_MAX == 64 * 1024 * 1024
    for size in (100, 101, 102, 202, 203, 350):
        data = b"[" * size + b"\n" + json.dumps({"id": "b", "messages": [USER]}).encode()
        results = import_chat(ModelEngine(), io.BytesIO(data), ArtifactFolder(tmp_path))
        assert [(each.line, each.outcome) for each in results] == [(1, "broken"), (2, "imported")]
        assert ("at most 100 bytes" in str(results[0].message)) is (size > 100)


def test_a_path_and_progress(tmp_path: Path):
    """A path is opened and read; each result is told as it is there."""
    path = tmp_path / "t.jsonl"
    told: list[RunImport] = []
    path.write_text(json.dumps(line(USER)) + "\n")
    results = import_chat(ModelEngine(), path, ArtifactFolder(tmp_path), progress=told.append)
    assert results == told
    assert results[0].to_dict()["outcome"] == "imported"
    with pytest.raises(FileNotFoundError):
        import_chat(ModelEngine(), tmp_path / "none", ArtifactFolder(tmp_path))
