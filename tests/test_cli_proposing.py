"""What proposing commands hand to the engine, and the exit codes that they end with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foldlog import client, testing
from foldlog.cli.outcomes import exit_code
from foldlog.errors import Unavailable
from tests.cli_runs import AGENT, accept
from tests.cli_shell import Shell, make_shell

BATCH = "7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11"
RECORDED = {"type": "Recorded", "name": "n", "payload": 1}
START = {"type": "RunStarted", "goal": {"statement": "x"}}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder."""
    return make_shell(tmp_path, monkeypatch)


@pytest.mark.parametrize("value", ["[1]", "5", "null", '{"events": []}'])
def test_an_outage_is_told_whatever_is_proposed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """What is no proposal at all does not hide that the log cannot be reached."""

    def away(run: client.Run, value: Any, *, timeout: float) -> None:
        raise Unavailable("the log is away")

    with testing.Engine() as engine:
        shell.use(engine)
        monkeypatch.setattr(client.Run, "propose_json", away)
        result = shell.run("propose", "run_1", stdin=value)
    assert result.exit_code == 6
    assert "UNAVAILABLE: the log is away" in result.stderr


@pytest.mark.parametrize(
    ("user", "named", "option", "author"),
    [
        ("anna", None, None, {"kind": "user", "id": "anna"}),
        (None, None, None, {"kind": "user", "id": "unknown"}),
        ("", None, None, {"kind": "user", "id": "unknown"}),
        ("anna", AGENT, None, AGENT),
        ("anna", None, "tool:t:1", {"kind": "tool", "id": "t:1"}),
        ("anna", AGENT, "tool:t", {"kind": "tool", "id": "t"}),
    ],
)
def test_authors(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    user: str | None,
    named: dict[str, str] | None,
    option: str | None,
    author: dict[str, str],
) -> None:
    """--author wins over the file, the file (null is absent) over the default user:$USER."""
    shell.run("init", "--partitions", "1")
    if user is None:
        monkeypatch.delenv("USER")
    else:
        monkeypatch.setenv("USER", user)
    more = [] if option is None else ["--author", option]
    text = json.dumps({"events": [START], "author": named})
    assert shell.run("propose", "run_1", *more, stdin=text).exit_code == 0
    [row] = shell.json("history", "run_1")
    assert row["author"] == author


@pytest.mark.parametrize(
    ("named", "option", "expected"), [(None, None, None), (3, None, 3), (3, "1", 1), (None, "1", 1)]
)
def test_expectations(
    shell: Shell, named: int | None, option: str | None, expected: int | None
) -> None:
    """--expect wins over the file's expected_revision."""
    with testing.Engine() as engine:
        shell.use(engine)
        accept(engine, "run_1", START)
        accept(engine, "run_1", RECORDED)
        accept(engine, "run_1", RECORDED)
        more = [] if option is None else ["--expect", option]
        text = json.dumps({"events": [RECORDED], "expected_revision": named})
        assert shell.run("propose", "run_1", *more, stdin=text).exit_code == 0
        assert engine.run("run_1").history()[-1].expected_revision == expected


def test_a_duplicate_ends_as_its_first_outcome(shell: Shell) -> None:
    """A refused proposal that is proposed again is refused again, with the same exit code."""
    with testing.Engine() as engine:
        shell.use(engine)
        first = shell.propose("run_1", RECORDED, batch_id=BATCH)
        accept(engine, "run_1", START)
        again = shell.propose("run_1", RECORDED, batch_id=BATCH)
        assert (first.exit_code, again.exit_code) == (3, 3)
        assert "RUN_NOT_FOUND" in again.stdout
        assert shell.run("outcome", "run_1", BATCH).exit_code == 3


def test_a_duplicate_of_a_quarantined_proposal(shell: Shell) -> None:
    """The outcome of a quarantined proposal stays quarantined, and its exit code 3."""
    with testing.Engine(raise_in="PhaseChanged") as engine:
        shell.use(engine)
        accept(engine, "run_1", START)
        phase = {"type": "PhaseChanged", "phase": "x"}
        for _ in range(2):
            result = shell.propose("run_1", phase, batch_id=BATCH, expected_revision=1)
            assert result.exit_code == 3
            assert result.stdout.startswith("quarantined run_1")


@pytest.mark.parametrize(
    "text", ["", "{", "nul", '{"events": [1e999]}', '{"a": 1, "a": 2}', "\ufeff{}"]
)
def test_what_is_no_json_is_not_recorded(shell: Shell, text: str) -> None:
    """A text that is no JSON is an outcome with all its keys, and leaves no record."""
    with testing.Engine() as engine:
        shell.use(engine)
        accept(engine, "run_1", START)
        result = shell.run("propose", "run_1", "--json", stdin=text)
        outcome = json.loads(result.stdout)
        assert result.exit_code == 3
        assert outcome["code"] == "MALFORMED"
        assert outcome["recorded"] is False
        assert (outcome["event_index"], outcome["field"], outcome["revision"]) == (None, None, 1)
        assert len(engine.run("run_1").history(rejected=True)) == 1


def test_a_home_is_needed_before_a_file_is_judged(shell: Shell) -> None:
    """A file that cannot be opened is 2, then a missing home 4, then what is no JSON 3."""
    (shell.folder / "bad.json").write_text("{")
    assert shell.run("propose", "run_1", "missing.json").exit_code == 2
    assert shell.run("propose", "run_1", "bad.json").exit_code == 4
    shell.run("init", "--partitions", "1")
    assert shell.run("propose", "run_1", "bad.json").exit_code == 3


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("accepted", 0), ("rejected", 3), ("arbitration", 3), ("quarantined", 3), ("unknown", 6)],
)
def test_exit_codes_of_outcomes(outcome: str, code: int) -> None:
    """Only what is accepted ends with 0."""
    found: dict[str, Any] = {"outcome": outcome}
    assert exit_code(found) == code
