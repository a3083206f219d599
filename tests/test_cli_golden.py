"""Golden transcripts: what each command prints, as text and as JSON, and each way it can fail.

Invariants:
- A golden file is what a user sees at 80 columns without colour; `UPDATE_GOLDEN=1` rewrites it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog import errors, testing
from foldlog.cli import options
from foldlog.cli.main import COMMANDS
from tests.cli_runs import accept, login_run
from tests.cli_shell import GOLDEN, Shell, make_shell
from tests.traj_files import PATCH, acts, history, step, traj

BATCH = "7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder."""
    return make_shell(tmp_path, monkeypatch)


@pytest.fixture
def engine(shell: Shell) -> Iterator[testing.Engine]:
    """An engine in memory that the shell's commands use."""
    with testing.Engine() as engine:
        shell.use(engine)
        yield engine


def test_init(shell: Shell) -> None:
    """A home is made once, and left alone afterwards."""
    shell.run("init")
    shell.run("init")
    shell.run("init", "--partitions", "4", "--json")
    shell.run("init", "--partitions", "3")
    shell.run("init", "--home", "other", "--partitions", "1", "--json")
    shell.run("init", "--partitions", "0")
    shell.is_golden("init")


def test_start(shell: Shell, engine: testing.Engine) -> None:
    """A run is started once; a bad id is refused and not recorded."""
    shell.run("start", "run_128", "--goal", "Fix the login failure", "--label", "team=web")
    shell.run("start", "run_128", "--goal", "Fix the login failure")
    shell.run("start", "run_129", "--goal", "x", "--author", "agent:worker-1", "--json")
    shell.run("start", "../run", "--goal", "x")
    shell.run("start", "../run", "--goal", "x", "--json")
    shell.run("start", "run_130")
    shell.run("start", "run_130", "--goal", "x", "--label", "team")
    shell.run("start", "run_130", "--goal", "x", "--author", "anna")
    shell.run("start", "run_130", "--goal", "x", "--author", "robot:r2")
    shell.run("start", "run_130", "--goal", "x", "--timeout", "-1")
    shell.is_golden("start")


def test_propose(shell: Shell, engine: testing.Engine) -> None:
    """Each outcome is printed, with what collided and where, and ends with its exit code."""
    accept(engine, "run_128", {"type": "RunStarted", "goal": {"statement": "x"}})
    shell.propose("run_128", {"type": "PhaseChanged", "phase": "diagnose"}, expected_revision=1)
    shell.propose("run_128", {"type": "PhaseChanged", "phase": "mend"}, expected_revision=1)
    shell.propose("run_128", {"type": "PhaseChanged", "phase": "mend"},
                  expected_revision=1, on_conflict="arbitrate", batch_id=BATCH)  # fmt: skip
    text = json.dumps({"events": [{"type": "TaskAdded", "task": {"id": "t", "title": "t"}}],
                       "batch_id": BATCH[:-1] + "2"})  # fmt: skip
    (shell.folder / "batch.json").write_text(text)
    shell.run("propose", "run_128", "batch.json", "--expect", "2", "--author", "agent:worker-1")
    shell.run("propose", "run_128", "batch.json", "--expect", "2", "--author", "agent:worker-1")
    shell.run("propose", "run_128", "batch.json", "--expect", "3", "--json")
    shell.run("propose", "run_128", "batch.json", "--expect", "2", "--author", "agent:worker-1",
              "--json")  # fmt: skip
    shell.propose("run_128", {"type": "TaskStarted", "task_id": "t", "worker": 7})
    shell.propose("run_128", {"type": "TaskStarted", "task_id": "t"}, lease_epoch=4)
    shell.propose("run_404", {"type": "PhaseChanged", "phase": "mend"}, expected_revision=1)
    shell.is_golden("propose")


def test_propose_what_is_no_proposal(shell: Shell, engine: testing.Engine) -> None:
    """What is no JSON, or no proposal, is an outcome; a file that cannot be opened is usage."""
    accept(engine, "run_128", {"type": "RunStarted", "goal": {"statement": "x"}})
    shell.run("propose", "run_128", stdin="{")
    shell.run("propose", "run_128", "--json", stdin='{"events": [], "events": []}')
    shell.run("propose", "run_128", stdin=b"\xff")
    shell.run("propose", "run_128", stdin="[" * 65 + "]" * 65)
    shell.run("propose", "run_128", stdin="[]")
    shell.run("propose", "run_128", stdin='{"events": [{"type": "Nothing"}]}')
    shell.run("propose", "run 128", stdin='{"events": []}')
    shell.run("propose", "run_128", "missing.json")
    shell.run("propose", "run_128", ".")
    shell.run("propose", "run_128", "--expect", "-1", stdin="{}")
    shell.run("propose", "run_128", "--expect", "soon", stdin="{}")
    shell.run("propose")
    state = engine.run("run_128").state()
    assert state is not None and state.revision == 1  # noqa: PT018
    shell.is_golden("propose_malformed")


def test_signal(shell: Shell, engine: testing.Engine) -> None:
    """A signal is kept or ends a wait; its payload has to be JSON."""
    accept(engine, "run_128", {"type": "RunStarted", "goal": {"statement": "x"}})
    shell.run("signal", "run_128", "approval", "--payload", '{"granted": true}', "--id", "s1")
    shell.run("signal", "run_128", "approval", "--id", "s1")
    shell.run("signal", "run_128", "approval", "--payload", "yes", "--json")
    shell.run("signal", "run_404", "approval")
    shell.run("signal", "run_128")
    shell.run("signal", "run_128", "")
    state = engine.run("run_128").state()
    assert state is not None and state["signals"][0].payload == {"granted": True}  # noqa: PT018
    shell.is_golden("signal")


def test_cancel(shell: Shell, engine: testing.Engine) -> None:
    """A run is cancelled once, by those who may."""
    accept(engine, "run_128", {"type": "RunStarted", "goal": {"statement": "x"}})
    shell.run("cancel", "run_128", "--reason", "not needed", "--author", "agent:worker-1")
    shell.run("cancel", "run_128", "--reason", "not needed", "--json")
    shell.run("cancel", "run_128", "--reason", "not needed")
    shell.run("cancel", "run_128")
    shell.is_golden("cancel")


def test_outcome(shell: Shell, engine: testing.Engine) -> None:
    """An outcome is found by its batch id, and ends as the proposal did."""
    accept(engine, "run_128", {"type": "RunStarted", "goal": {"statement": "x"}}, batch_id=BATCH)
    refused = BATCH[:-1] + "2"
    engine.run("run_128").propose({"type": "PhaseChanged", "phase": "x"}, batch_id=refused)
    shell.run("outcome", "run_128", BATCH)
    shell.run("outcome", "run_128", BATCH, "--json")
    shell.run("outcome", "run_128", BATCH.upper())
    shell.run("outcome", "run_128", refused)
    shell.run("outcome", "run_128", BATCH[:-1] + "3")
    shell.run("outcome", "run_128", "first")
    shell.run("outcome", "run_404", BATCH)
    shell.run("outcome", "run/404", BATCH)
    shell.run("outcome", "run_128")
    shell.is_golden("outcome")


def test_time_is_up(shell: Shell, engine: testing.Engine) -> None:
    """A proposal whose outcome is not there in time prints its batch id and ends with 6."""
    shell.run("start", "run_128", "--goal", "x", "--timeout", "0")
    shell.run("start", "run_129", "--goal", "x", "--timeout", "0", "--json")
    shell.is_golden("unknown")


CHAT = [
    {"role": "user", "content": "Book a flight"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "book", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "booked"},
]  # fmt: skip


def test_import(shell: Shell) -> None:
    """Each line is a run; broken lines and runs of other content do not stop the others."""
    shell.run("init")
    lines = [
        {"id": "chat_1", "messages": CHAT},
        {"id": "chat 2"},
        {"id": "chat_3", "messages": CHAT},
    ]
    (shell.folder / "chats.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines) + "{\n")
    changed = {"id": "chat_1", "messages": [*CHAT, {"role": "user", "content": "Thanks"}]}
    shell.run("import", "chats.jsonl", "--effect-tool", "book")
    shell.run("import", "chats.jsonl", "--effect-tool", "book", "--json")
    shell.run("import", "-", stdin=json.dumps(changed))
    shell.run("import", "-", "--json", stdin="")
    shell.run("import", "chats.jsonl", "missing.jsonl")
    shell.run("import", "chats.jsonl", "--format", "morse")
    shell.run("import")
    shell.is_golden("import")


def test_export_and_import(shell: Shell) -> None:
    """A run goes to another home and is the same there; what is broken or there is refused."""
    shell.run("init")
    shell.run("init", "--home", "other", "--partitions", "1")
    lines = [{"id": f"chat_{number}", "messages": CHAT} for number in (1, 2)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    shell.run("import", "-", stdin=text)
    files = [shell.run("export", f"chat_{number}").stdout for number in (1, 2)]
    shell.run("export", "chat_1", "--json")
    shell.run("export", "chat_3")
    shell.run("export", "chat 3")
    shell.run("export")
    first, second = (file.splitlines(keepends=True) for file in files)
    (shell.folder / "runs.jsonl").write_text("".join([*first[:1], *first[2:], *second]))
    shell.run("import", "runs.jsonl", "--home", "other")
    shell.run("import", "runs.jsonl", "--format", "foldlog", "--home", "other", "--json")
    (shell.folder / "chat_1.jsonl").write_text(files[0])
    (shell.folder / "cut.jsonl").write_text(files[0][:-200])
    shell.run("import", "cut.jsonl", "--format", "foldlog", "--home", "other")
    shell.run("import", "chat_1.jsonl", "--format", "foldlog", "--home", "other")
    shell.run("import", "chat_1.jsonl", "--format", "chat", "--home", "other")
    shell.run("history", "chat_1", "--home", "other")
    shell.run("verify", "--redecide", "--home", "other")
    assert [shell.run("show", "chat_1", "--json", *home).stdout for home in ([], OTHER)] == [
        shell.run("show", "chat_1", "--json").stdout
    ] * 2
    shell.is_golden("export")


OTHER = ["--home", "other"]


def test_import_swe_agent(shell: Shell) -> None:
    """Each .traj is a run; a broken one is named by line and field, and the good ones stay."""
    shell.run("init")
    steps = [step("create a.py", "ok"), step("edit 1:1", "Error"), step("submit", PATCH)]
    good, broken = traj(*steps), traj({"action": "ls"})
    files = {"fix.traj": good, "broken.traj": broken, "my fix.traj": history(acts("ls"))}
    for name, document in files.items():
        (shell.folder / name).write_text(json.dumps(document, indent=1))
    (shell.folder / "cut.traj").write_text(json.dumps(good, indent=1)[:200])
    shell.run("import", *files, "cut.traj")
    shell.run("import", *files, "cut.traj", "--format", "swe-agent", "--json")
    shell.run("history", "fix")
    shell.run("show", "fix")
    (shell.folder / "fix.traj").write_text(json.dumps(traj(*steps[:1])))
    shell.run("import", "fix.traj")
    shell.run("import", "fix.traj", "--format", "chat")
    shell.run("import", "-", "--format", "swe-agent", stdin='{"history": [1]}')
    shell.run("import", "-", "--json", stdin=json.dumps(history() | {"instance_id": "org__repo-1"}))
    shell.run("import", "-", stdin="hello")
    shell.is_golden("import_swe_agent")


def test_runs(shell: Shell, engine: testing.Engine) -> None:
    """Runs are listed with what they wait for and their alarms, newest change first."""
    shell.run("runs")
    shell.run("runs", "--json")
    login_run(engine)
    engine.clock.advance(1)
    accept(engine, "run_129", {"type": "RunStarted", "goal": {"statement": "x"}})
    engine.clock.advance(1)
    engine.run("run_129").cancel("not needed")
    engine.clock.advance(25 * 3600)
    shell.run("runs")
    shell.run("runs", "--status", "waiting", "--label", "team=web", "--limit", "1", "--json")
    shell.run("runs", "--alarms")
    shell.run("runs", "--alarms", "--status", "planning")
    shell.run("runs", "--status", "asleep")
    shell.run("runs", "--label", "team")
    shell.run("runs", "--limit", "0")
    shell.is_golden("runs")


def test_show(shell: Shell, engine: testing.Engine) -> None:
    """A run on one screen, now and then."""
    login_run(engine)
    shell.run("show", "run_128")
    assert len(shell.lines) < 40
    shell.run("show", "run_128", "--at", "1")
    shell.run("show", "run_128", "--at", engine.clock.now)
    shell.run("show", "run_128", "--json")
    for moment in ("0", "9", "1" * 30, "2025-01-01T00:00:00Z", "yesterday", "-1", ""):
        shell.run("show", "run_128", "--at", moment)
    shell.run("show", "run_404")
    shell.run("show", "run 128", "--json")
    shell.run("show")
    shell.is_golden("show")


def test_history(shell: Shell, engine: testing.Engine) -> None:
    """One line a batch, with and without refusals; transitions alone; nothing for no run."""
    login_run(engine)
    engine.run("run_128").propose({"type": "PhaseChanged", "phase": "x"}, expected_revision=1)
    engine.run("run_404").propose({"type": "PhaseChanged", "phase": "x"}, expected_revision=1)
    shell.run("history", "run_128")
    shell.run("history", "run_128", "--rejected")
    shell.run("history", "run_128", "--transitions")
    shell.run("history", "run_128", "--transitions", "--json")
    shell.run("history", "run_128", "--rejected", "--json")
    shell.run("history", "run_404")
    shell.run("history", "run_404", "--rejected")
    shell.run("history", "run 128")
    shell.run("history", "run_128", "--rejected", "--transitions")
    shell.is_golden("history")


def test_quarantine(shell: Shell) -> None:
    """A rule that raises quarantines the run; a RunStarted that raises leaves a row."""
    with testing.Engine(raise_in="PhaseChanged") as engine:
        shell.use(engine)
        accept(engine, "run_128", {"type": "RunStarted", "goal": {"statement": "x"}})
        shell.propose("run_128", {"type": "PhaseChanged", "phase": "x"}, expected_revision=1)
        shell.propose("run_128", {"type": "TaskAdded", "task": {"id": "t", "title": "t"}})
        for command in ("show", "history"):
            shell.run(command, "run_128")
        shell.run("runs")
    with testing.Engine(raise_in="RunStarted") as engine:
        shell.use(engine)
        shell.run("start", "run_128", "--goal", "x", "--json")
        shell.run("history", "run_128")
        shell.run("show", "run_128")
    shell.is_golden("raised")


def test_diff(shell: Shell, engine: testing.Engine) -> None:
    """What changed, entity by entity, forwards and backwards; nothing outside the run."""
    last = login_run(engine)
    shell.run("diff", "run_128", "1", str(last))
    shell.run("diff", "run_128", str(last), str(last - 1))
    shell.run("diff", "run_128", "2", "2")
    shell.run("diff", "run_128", "2", "3", "--json")
    shell.run("diff", "run_128", "0", "1")
    shell.run("diff", "run_128", "1", "99")
    shell.run("diff", "run_128", "1", "x")
    shell.run("diff", "run_404", "1", "2")
    shell.run("diff", "run_128", "1")
    shell.is_golden("diff")


def test_verify(shell: Shell, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is as it should be, and the first difference of one that is not."""
    login_run(engine)
    shell.run("verify")
    shell.run("verify", "run_128", "--json")
    shell.run("verify", "--redecide")
    shell.run("verify", "--redecide", "run_128")
    shell.run("verify", "run_404")
    accept(
        engine,
        "run_129",
        {"type": "RunStarted", "goal": {"statement": "x"}},
        {"type": "FactConfirmed", "fact": {"id": "f", "statement": "s", "evidence": "file:gone"}},
    )
    shell.run("verify", "--evidence")
    shell.run("verify", "run_129", "--evidence", "--json")
    shell.run("verify", "run_128", "--evidence")

    def damaged(*args: object, **options: object) -> Any:
        raise errors.Damaged(0, "run_128", 3, "state hash", "aa", "bb")

    monkeypatch.setattr("foldlog.audit.verify_partition", damaged)
    shell.run("verify")
    shell.run("verify", "--json")

    def ahead(settings: options.Settings) -> Any:
        what = "the projection's head is not in the log"
        raise errors.Damaged(0, None, 3, what, "0" * 64, None)

    monkeypatch.setattr(options, "opened", ahead)
    shell.note("a home whose log was cut")
    shell.run("verify")
    shell.run("verify", "--json")
    shell.is_golden("verify")


def test_replay(shell: Shell, engine: testing.Engine) -> None:
    """The digest of a run or of everything, now and then, and compared with an expected one."""
    login_run(engine)
    [found] = shell.json("replay", "run_128")
    shell.run("replay")
    shell.run("replay", "run_128", "--to", "3")
    shell.run("replay", "--to", engine.clock.now, "--from", "start")
    shell.run("replay", "run_128", "--expect-digest", found["digest"].upper())
    shell.run("replay", "run_128", "--expect-digest", "0" * 64)
    shell.run("replay", "run_128", "--expect-digest", "abc")
    shell.run("replay", "run_128", "--to", "99")
    shell.run("replay", "run_128", "--to", "0")
    shell.run("replay", "run_128", "--to", "2025-01-01T00:00:00Z")
    shell.run("replay", "--to", "3")
    shell.run("replay", "run_404")
    shell.is_golden("replay")


def test_project(shell: Shell, engine: testing.Engine) -> None:
    """The projector decides what waits, and says how much it was."""
    shell.run("project", "--once")
    shell.run("project", "--once", "--json")
    shell.run("project")
    shell.is_golden("project")


def test_explain(shell: Shell) -> None:
    """A page for a code, for an exit code, and near names for one that there is not."""
    shell.run("explain", "conflict")
    shell.run("explain", "3")
    shell.run("explain", "FENCED", "--json")
    shell.run("explain")
    shell.run("explain", "--json")
    shell.run("explain", "CONFLIC")
    shell.run("explain", "99")
    shell.is_golden("explain")


def test_homes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home every command ends with 4 and says what to type; the nearest one is found."""
    for command in ("runs", "verify", "replay"):
        shell.run(command)
    shell.run("start", "run_128", "--goal", "x")
    shell.run("show", "run_128", "--home", "nowhere")
    shell.run("show", "run_128", "--home", "")
    assert list(shell.folder.iterdir()) == []
    (shell.folder / "file").touch()
    shell.run("init", "--home", "file")
    shell.run("runs", "--home", "file")
    shell.run("init")
    (shell.folder / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(shell.folder / "a" / "b")
    shell.note("in /home/anna/a/b")
    shell.run("start", "run_128", "--goal", "x")
    monkeypatch.setenv("FOLDLOG_HOME", str(shell.folder / "elsewhere"))
    shell.note("with FOLDLOG_HOME=/home/anna/elsewhere")
    shell.run("runs")
    shell.run("runs", "--home", str(shell.folder / ".foldlog"), "--json")
    shell.is_golden("homes")


def test_other_logs(shell: Shell) -> None:
    """A log that is not in the home: what is no address is named, and so is a missing home."""
    shell.run("--log", "kafka://localhost:9092", "runs", "--home", "there")
    shell.run("init", "--log", "redis://localhost/foldlog")
    shell.run("runs", "--log", "kafka://localhost:9092/foldlog")
    assert list(shell.folder.iterdir()) == []
    shell.is_golden("other_logs")


def test_usage(shell: Shell) -> None:
    """What is misspelt is named, with what is near."""
    shell.run("--version")
    shell.run("shwo")
    shell.run("show", "run_128", "--jsn")
    shell.run("show", "run_128", "run_129")
    shell.run("show", "run_128", "--at")
    shell.run("--colour", "show")
    shell.run("show\x1b[31m", "x")
    shell.is_golden("usage")


ERRORS = {
    "HomeBusy": errors.HomeBusy("process 4242 holds the projection of .foldlog", 4242),
    "ProjectorStalled": errors.ProjectorStalled("process 4242 has made no turn for 10 s", 4242),
    "Damaged": errors.Damaged(3, "run_128", 17, "state hash", "aa", "bb"),
    "Unavailable": errors.Unavailable(".foldlog/log.sqlite: the disk is full; make room"),
    "Usage": errors.Usage("a time that is none"),
    "FoldlogError": errors.FoldlogError("something else"),
    "ZeroDivisionError": ZeroDivisionError("division by \x1b[31mzero"),
}


def test_errors_of_the_engine(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error of the engine is one line with its code, and ends with its exit code."""
    for name, error in ERRORS.items():

        def opened(settings: options.Settings, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(options, "opened", opened)
        shell.note(name)
        shell.run("runs")
    shell.is_golden("errors")


def test_every_command_has_a_transcript() -> None:
    """No command is without a golden transcript of its text, its JSON and a failure."""
    transcripts = {path.stem: path.read_text("utf-8") for path in GOLDEN.glob("*.txt")}
    names = [name for commands in COMMANDS.values() for name in commands]
    lacking = []
    for name in [*names, "project"]:
        text = transcripts.get(name, "")
        if f"foldlog {name}" not in text or "--json" not in text or "\n= " not in text:
            lacking.append(name)
    assert lacking == []
