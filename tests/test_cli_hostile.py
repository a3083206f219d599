"""Run content that means harm to a terminal, in every command.

Invariants:
- Whatever stands in a run, what reaches the terminal has no control character but the line break,
  and no mark that turns or hides text; JSON still says exactly what was said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foldlog import testing
from foldlog.cli.safe import safe, width
from tests.cli_runs import accept, login_run
from tests.cli_shell import Shell, make_shell

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066\u200b\r\n\tfoldlog: ok\x00\x7f 👩‍💻 漢字 é"
AUTHOR = {"kind": "agent", "id": f"worker{EVIL}"}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder."""
    return make_shell(tmp_path, monkeypatch)


START = {
    "type": "RunStarted",
    "goal": {"statement": EVIL, "acceptance": [EVIL], "constraints": [EVIL],
             "scope": {"include": [EVIL], "exclude": [EVIL]}},
    "labels": {EVIL: EVIL},
    "agent_version": {EVIL: EVIL},
    "workspace": {"workspace_id": EVIL, "current_commit": EVIL},
}  # fmt: skip
WORK: list[dict[str, Any]] = [
    {"type": "RunTransitioned", "to": "planning", "reason": EVIL},
    {"type": "TaskAdded", "task": {"id": EVIL, "title": EVIL}},
    {"type": "RunTransitioned", "to": "running"},
    {"type": "TaskStarted", "task_id": EVIL, "worker": EVIL},
    {"type": "TaskBlocked", "task_id": EVIL, "reason": EVIL},
    {"type": "PhaseChanged", "phase": EVIL},
    {"type": "ToolStarted", "step_id": EVIL, "tool": EVIL, "arguments": {EVIL: EVIL}},
    {"type": "EffectIntended",
     "effect": {"id": EVIL, "kind": EVIL, "target": "x:a", "idempotency_key": EVIL}},
    {"type": "QuestionOpened", "question": {"id": EVIL, "text": EVIL}},
    {"type": "HypothesisProposed",
     "hypothesis": {"id": EVIL, "statement": EVIL, "confidence": 1, "falsifier": EVIL}},
    {"type": "EnvironmentObserved", "subject": EVIL, "observed_state": EVIL,
     "observed_at": "2026-01-01T00:00:00Z"},
    {"type": "SignalReceived", "key": f"other{EVIL}", "signal_id": EVIL, "payload": EVIL},
    {"type": "CheckpointTaken",
     "checkpoint": {"id": EVIL, "boundary": "tasks_done", "note": EVIL, "data": EVIL}},
    {"type": "LeaseAcquired", "worker": EVIL, "ttl_seconds": 60},
    {"type": "WaitStarted", "kind": "user", "key": EVIL, "reason": EVIL},
]  # fmt: skip


def hostile_run(engine: Any, run_id: str = "run_1") -> None:
    """A run whose every text is hostile."""
    at = accept(engine, run_id, START, author=AUTHOR)
    accept(engine, run_id, *WORK, author=AUTHOR, expected_revision=at)
    # A conflict that is kept, and one that is refused.
    completed = {"type": "TaskCompleted", "task_id": EVIL, "evidence": "x:y"}
    user = {"kind": "user", "id": EVIL}
    for how, outcome in (("arbitrate", "arbitration"), ("reject", "rejected")):
        value = {"author": user, "expected_revision": at, "on_conflict": how, "events": [completed]}
        assert engine.run(run_id).propose_json(value).outcome == outcome


def _is_harmless(text: str) -> bool:
    return all(line == safe(line) for line in text.split("\n"))


READING = [
    ["runs"], ["show", "run_1"], ["show", "run_1", "--at", "1"], ["history", "run_1"],
    ["history", "run_1", "--rejected"], ["history", "run_1", "--transitions"],
    ["diff", "run_1", "1", "3"], ["verify"], ["replay"], ["why", "run_1"], ["wait", "run_1"],
    ["conflicts", "run_1"], ["heads"], ["quarantine"],
]  # fmt: skip


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_terminal_injection_through_run_content(shell: Shell, command: list[str]) -> None:
    """Escape sequences, turning marks and line breaks in a run reach no terminal; emoji may."""
    with testing.Engine() as engine:
        shell.use(engine)
        hostile_run(engine)
        for more in ([], ["--json"]):
            result = shell.run(*command, *more)
            assert result.exit_code == 0
            assert _is_harmless(result.stdout)
            assert _is_harmless(result.stderr)


def test_json_says_exactly_what_was_said(shell: Shell) -> None:
    """What was escaped for the terminal is the same text once the JSON is read."""
    with testing.Engine() as engine:
        shell.use(engine)
        hostile_run(engine)
        [state] = shell.json("show", "run_1")
        assert state["goal"]["statement"] == EVIL
        assert state["labels"] == {EVIL: EVIL}


def test_hostile_arguments(shell: Shell) -> None:
    """Arguments, keys, payloads and files are as untrusted as what runs hold."""
    with testing.Engine() as engine:
        shell.use(engine)
        value = json.dumps({"events": [{"type": EVIL, EVIL: 1}], "batch_id": EVIL})
        results = [
            shell.run("start", "run_1", "--goal", EVIL, "--label", f"k={EVIL}"),
            shell.run("signal", "run_1", EVIL, "--id", EVIL),
            shell.run("signal", "run_1", EVIL, "--payload", EVIL),
            shell.run("propose", "run_1", stdin=value),
            shell.run(
                "propose", "run_1", stdin=json.dumps({"events": [{"type": "Recorded", EVIL: 1}]})
            ),
            shell.run("propose", EVIL, stdin=value),
            shell.run("propose", "run_1", EVIL.replace("\x00", "")),
            shell.run("show", EVIL),
            shell.run("outcome", "run_1", EVIL),
            shell.run("explain", EVIL),
            shell.run("show", "run_1", "--at", EVIL),
            shell.run("runs", "--status", EVIL),
            shell.run("start", "run_1", "--goal", "x", "--author", f"agent:{EVIL}"),
            shell.run("cancel", "run_1", "--reason", EVIL),
            shell.run(f"x{EVIL}"),
            shell.run("show", f"--x{EVIL}"),
            shell.run("show", "run_1", EVIL),
            shell.run("import", "-", stdin=json.dumps({"id": EVIL})),
            shell.run("why", EVIL),
            shell.run("wait", "run_1", "--until", EVIL),
            shell.run("wait", EVIL, "--timeout", "0"),
            shell.run("conflicts", EVIL),
            shell.run("resolve", "run_1", EVIL, "keep_current", "--reason", EVIL),
            shell.run("resolve", "run_1", "c", EVIL, "--reason", "x"),
            shell.run("release", "run_1", "--reason", EVIL),
            shell.run("verify", "--heads", EVIL.replace("\x00", "")),
            shell.run("verify", "--heads", "-", stdin=EVIL),
            shell.run("verify", "--heads", "-", stdin=json.dumps({"partition": EVIL})),
            shell.run("show", "run_1", "--after", EVIL),
            shell.run("completion", EVIL),
            shell.run("status", "--home", f"x{EVIL}".replace("\x00", "")),
            shell.run("doctor", "--home", f"x{EVIL}".replace("\x00", "")),
        ]
        for result in results:
            assert _is_harmless(result.stdout)
            assert _is_harmless(result.stderr)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["show", "run_1", "--at", "-1"], 4),
        (["diff", "run_1", "-1", "1"], 4),
        (["diff", "run_1", "--", "-1", "1"], 4),
        (["diff", "run_1", "1", "-9", "--json"], 4),
        (["diff", "run_1", "1", "-x"], 2),
        (["fork", "run_1", "--at", "-1", "--as", "run_2"], 4),
        (["replay", "run_1", "--to", "-1"], 4),
        (["verify", "a/b"], 4),
        (["verify", ""], 4),
        (["verify", "\udc80"], 4),
        (["verify", "\udc80", "--evidence"], 4),
        (["replay", "\udc80"], 4),
        (["show", "\udc80"], 4),
        (["fork", "run_1", "--at", "1", "--as", "run_2", "--timeout", "nan"], 2),
        (["fork", "run_1", "--at", "1", "--as", "run_2", "--timeout", "inf"], 0),
        (["signal", "run_1", "k", "--timeout", "nan"], 2),
        (["signal", "run_1", "k", "--timeout", "inf"], 0),
    ],
    ids=str,
)
def test_numbers_and_names_at_the_edges(shell: Shell, line: list[str], expected: int) -> None:
    """A revision or run that cannot be there is not found; a time that is none is a usage error."""
    with testing.Engine() as engine:
        shell.use(engine)
        engine.start("run_1", goal="x")
        result = shell.run(*line)
    assert result.exit_code == expected, result.stderr
    assert "UNEXPECTED" not in result.stderr


def test_a_command_to_type_holds_the_text_and_harms_nothing(shell: Shell) -> None:
    """What `why` tells to type signals the very key, whatever it holds."""
    with testing.Engine() as engine:
        shell.use(engine)
        hostile_run(engine)
        [found] = shell.json("why", "run_1")
        how = found["movers"][0]["how"]
        assert how.startswith("foldlog signal run_1 $'")
        assert how == safe(how)
        assert how in shell.run("why", "run_1").stdout


def test_a_rule_that_raises_hostile_words(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a quarantine is a text like any other."""
    monkeypatch.setattr(testing.RuleRaised, "__str__", lambda error: EVIL)
    with testing.Engine(raise_in="PhaseChanged") as engine:
        shell.use(engine)
        accept(engine, "run_1", {"type": "RunStarted", "goal": {"statement": "x"}})
        engine.run("run_1").propose({"type": "PhaseChanged", "phase": "x"}, expected_revision=1)
        assert EVIL in engine.quarantined()[0].error
        for command in (["quarantine"], ["why", "run_1"], ["show", "run_1"]):
            for more in ([], ["--json"]):
                assert _is_harmless(shell.run(*command, *more).stdout)


def test_hostile_text_keeps_its_row(shell: Shell) -> None:
    """A text with line breaks does not make rows of its own, so that none can be forged."""
    with testing.Engine() as engine:
        shell.use(engine)
        hostile_run(engine)
        lines = shell.run("show", "run_1").stdout.splitlines()
        assert not any(line.startswith(("foldlog:", "\tfoldlog")) for line in lines)
        assert len(shell.run("history", "run_1").stdout.splitlines()) == 3


def test_a_screen_stays_a_screen(shell: Shell) -> None:
    """However much a run holds, `show` stays within a screen, and counts what it leaves out."""
    with testing.Engine() as engine:
        shell.use(engine)
        login_run(engine, "run_1")
        for start in range(0, 300, 100):
            facts = [
                {"id": f"f{n}", "statement": "word " * 200, "evidence": "x:y"}
                for n in range(start, start + 100)
            ]
            accept(engine, "run_1", *({"type": "FactConfirmed", "fact": fact} for fact in facts))
        shown = shell.run("show", "run_1").stdout.splitlines()
        assert len(shown) < 48
        assert any("and 298 more" in line for line in shown)
        assert max(map(width, shown)) <= 80
