"""Golden transcripts of the commands that operate, settle and wait; see test_cli_golden.

Invariants:
- A golden file is what a user sees at 80 columns without colour; `UPDATE_GOLDEN=1` rewrites it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, doctor, testing
from tests.cli_runs import accept, login_run
from tests.cli_shell import Shell, make_shell

BATCH = "7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11"
GOAL = {"type": "RunStarted", "goal": {"statement": "x"}}


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


def collided(engine: Any, run_id: str = "run_128") -> None:
    """A run with an open conflict about its phase."""
    accept(engine, run_id, GOAL)
    accept(engine, run_id, {"type": "PhaseChanged", "phase": "mend"}, expected_revision=1)
    outcome = engine.run(run_id).propose(
        {"type": "PhaseChanged", "phase": "diagnose"},
        expected_revision=1,
        author="agent:worker-2",
        on_conflict="arbitrate",
        batch_id=BATCH,
    )
    assert outcome.outcome == "arbitration"


def test_why(shell: Shell, engine: testing.Engine) -> None:
    """What keeps a run, since when, and the command of each who can move it."""
    login_run(engine)
    accept(engine, "run_129", GOAL)
    engine.clock.advance(25 * 3600)
    shell.run("why", "run_128")
    shell.run("why", "run_129")
    shell.run("why", "run_128", "--json")
    engine.run("run_128").cancel("not needed")
    shell.run("why", "run_128")
    shell.run("why", "run_404")
    shell.run("why", "run 128", "--json")
    shell.run("why")
    shell.is_golden("why")


def test_resume_check(shell: Shell, engine: testing.Engine) -> None:
    """The verdict, each reason with its command, and the plan; ends as the verdict says."""
    accept(engine, "run_129", GOAL)
    shell.run("resume-check", "run_129")
    shell.run("resume-check", "run_129", "--json")
    login_run(engine)
    accept(engine, "run_128", {"type": "LeaseAcquired", "worker": "worker-1", "ttl_seconds": 60})
    accept(
        engine,
        "run_128",
        {"type": "PermissionRevoked", "permission": "tool:shell", "reason": "not now"},
        author={"kind": "user", "id": "ada"},
    )
    shell.run("resume-check", "run_128", "--commit", "c2", "--workspace", "nowhere")
    mine = ("--worker", "worker-1", "--commit", "c1", "--agent-version", "model=m2")
    shell.run("resume-check", "run_128", *mine)
    shell.run("resume-check", "run_128", *mine, "--json")
    accept(
        engine,
        "run_128",
        {"type": "EffectReconciled", "effect_id": "eff_1", "outcome": "failed", "evidence": "a:b"},
        {"type": "CheckpointTaken", "checkpoint": {"id": "cp_2", "boundary": "before_wait"}},
        lease_epoch=1,
    )
    shell.run("resume-check", "run_128", "--worker", "worker-1")
    engine.run("run_128").cancel("not needed")
    shell.run("resume-check", "run_128")
    shell.run("resume-check", "run_404")
    shell.run("resume-check", "run 128", "--json")
    shell.run("resume-check", "run_128", "--agent-version", "m2")
    shell.run("resume-check")
    shell.is_golden("resume-check")


def test_context(shell: Shell, engine: testing.Engine) -> None:
    """The text for a model's context, whole, within a budget, and where there is no room for it."""
    login_run(engine)
    accept(engine, "run_129", GOAL)
    shell.run("context", "run_128")
    shell.run("context", "run_128", "--max-tokens", "400")
    shell.run("context", "run_128", "--max-tokens", "400", "--json")
    shell.run("context", "run_128", "--max-tokens", "100")
    shell.run("context", "run_128", "--max-tokens", "100", "--json")
    shell.run("context", "run_129")
    shell.run("context", "run_404")
    shell.run("context", "run 128", "--json")
    shell.run("context", "run_128", "--max-tokens", "-1")
    shell.run("context")
    shell.is_golden("context")


def test_wait(shell: Shell, engine: testing.Engine) -> None:
    """A wait returns where the run is, and says why it cannot or could not."""
    login_run(engine)
    accept(engine, "run_129", GOAL)
    shell.run("wait", "run_128")
    shell.run("wait", "run_128", "--until", "waiting", "--json")
    shell.run("wait", "run_129", "--timeout", "0")
    shell.run("wait", "run_129", "--until", "finish", "--timeout", "0.01", "--json")
    engine.run("run_129").cancel("not needed")
    shell.run("wait", "run_129")
    shell.run("wait", "run_129", "--until", "running")
    shell.run("wait", "run_404", "--json")
    shell.run("wait", "run_128", "--until", "asleep")
    shell.run("wait", "run_128", "--timeout", "soon")
    shell.is_golden("wait")


def test_conflicts(shell: Shell, engine: testing.Engine) -> None:
    """Each conflict with what was proposed, what changed before it, and how it is settled."""
    collided(engine)
    accept(engine, "run_129", GOAL)
    shell.run("conflicts", "run_128")
    shell.run("conflicts", "run_128", "--json")
    shell.run("conflicts", "run_129")
    shell.run("conflicts", "run_129", "--json")
    shell.run("conflicts", "run_404")
    shell.run("show", "run_128")
    shell.is_golden("conflicts")


def test_reconcile(shell: Shell, engine: testing.Engine) -> None:
    """An effect in doubt is settled by a report, once; what is not in doubt is refused."""
    login_run(engine)
    evidence = ("--evidence", "order://order_9")
    shell.run("reconcile", "run_128", "eff_1", "succeeded", *evidence)
    shell.run("reconcile", "run_128", "eff_1", "failed", *evidence, "--json")
    shell.run("reconcile", "run_128", "eff_none", "failed", *evidence)
    shell.run("reconcile", "run_404", "eff_1", "failed", *evidence)
    shell.run("reconcile", "run_128", "eff_1", "perhaps", *evidence)
    shell.run("reconcile", "run_128", "eff_1", "failed")
    shell.is_golden("reconcile")


def test_archive(shell: Shell, engine: testing.Engine) -> None:
    """A finished run goes into the archive, once; there it is shown, and no longer listed."""
    accept(engine, "run_128", GOAL)
    accept(engine, "run_129", GOAL)
    shell.run("archive", "run_128")
    engine.run("run_128").cancel("not needed")
    shell.run("archive", "run_128", "--author", "agent:worker-1")
    shell.run("archive", "run_128", "--reason", "billed")
    shell.run("archive", "run_128", "--json")
    shell.run("runs")
    shell.run("runs", "--archived")
    shell.run("show", "run_128")
    shell.run("history", "run_128")
    shell.run("cancel", "run_128", "--reason", "again")
    shell.run("archive", "run_404")
    shell.run("archive")
    shell.is_golden("archive")


def test_fork(shell: Shell, engine: testing.Engine) -> None:
    """A fork is a run of its own with the same past; what cannot be forked is said to be so."""
    at = login_run(engine)
    shell.run("fork", "run_128", "--at", str(at), "--as", "run_129")
    shell.run("show", "run_129")
    shell.run("history", "run_129")
    shell.run("diff", "run_129", str(at), str(at + 1))
    shell.run("fork", "run_128", "--at", "3", "--as", "run_130", "--json")
    shell.run("fork", "run_128", "--at", "3", "--as", "run_129")
    shell.run("fork", "run_128", "--at", "3", "--as", "run 131")
    shell.run("fork", "run_128", "--at", "3", "--as", "run_131", "--author", "agent:worker-1")
    shell.run("fork", "run_128", "--at", "9", "--as", "run_131", "--json")
    shell.run("fork", "run_404", "--at", "1", "--as", "run_131")
    shell.run("fork", "run_128", "--at", "now", "--as", "run_131")
    shell.run("fork", "run_128", "--as", "run_131")
    assert engine.verify(redecide=True).ok
    shell.is_golden("fork")


def test_resolve(shell: Shell, engine: testing.Engine) -> None:
    """A conflict is settled once, by those who may, and by its id in any case of letters."""
    collided(engine)
    shell.run("resolve", "run_128", BATCH, "keep_current", "--reason", "x", "--author", "agent:w")
    shell.run("resolve", "run_128", BATCH.upper(), "take_proposed", "--reason", "it is right")
    shell.run("resolve", "run_128", BATCH, "keep_current", "--reason", "x", "--json")
    shell.run("resolve", "run_404", BATCH, "keep_current", "--reason", "x")
    shell.run("resolve", "run_128", BATCH, "both", "--reason", "x")
    shell.run("resolve", "run_128", BATCH, "keep_current")
    state = engine.run("run_128").state()
    assert state is not None and state.phase == "diagnose"  # noqa: PT018
    shell.is_golden("resolve")


def test_quarantine_and_release(shell: Shell) -> None:
    """A quarantined run is listed with what raised, says how it is let go, and then goes on."""
    with testing.Engine(raise_in="PhaseChanged") as engine:
        shell.use(engine)
        shell.run("quarantine")
        shell.run("quarantine", "--json")
        accept(engine, "run_128", GOAL)
        shell.propose("run_128", {"type": "PhaseChanged", "phase": "x"}, expected_revision=1)
        engine.clock.advance(180)
        for command in ("quarantine", "why", "show"):
            shell.run(command, *([] if command == "quarantine" else ["run_128"]))
        shell.run("quarantine", "--json")
        shell.run("wait", "run_128", "--timeout", "0")
        shell.run("quarantine", "run_128")
        shell.is_golden("quarantine")
        shell.lines.clear()
        shell.run("release", "run_128", "--reason", "mended", "--author", "agent:worker-1")
        shell.run("release", "run_128", "--reason", "mended")
        shell.run("release", "run_128", "--reason", "mended", "--json")
        shell.run("release", "run_404", "--reason", "mended")
        shell.run("release", "run_128")
        shell.is_golden("release")


def test_status(shell: Shell) -> None:
    """Each partition of a home as it stands, which `status` itself does not move."""
    shell.run("status")
    shell.run("init", "--partitions", "2")
    shell.run("status")
    shell.run("start", "run_128", "--goal", "x")
    shell.run("status")
    shell.note("after a worker left a proposal behind")
    shell.run("start", "run_129", "--goal", "x", "--timeout", "0")
    shell.run("status")
    shell.run("status", "--json")
    with Engine.open(shell.folder / ".foldlog") as engine:
        run = engine.run("run_128")
        run.propose({"type": "RunTransitioned", "to": "planning"}, expected_revision=1)
        run.propose({"type": "RunTransitioned", "to": "running"}, expected_revision=2)
        effect = {"id": "e", "kind": "k", "target": "order://9", "idempotency_key": "k1"}
        run.propose({"type": "EffectIntended", "effect": effect}, expected_revision=3)
    shell.note("with an effect in doubt")
    shell.run("status")
    shell.run("status", "run_128")
    shell.is_golden("status")


def test_heads(shell: Shell, engine: testing.Engine) -> None:
    """Heads are printed, and what was printed is what `verify --heads` takes."""
    login_run(engine)
    (shell.folder / "shown").write_text(shell.run("heads").stdout)
    shell.run("verify", "--heads", "shown")
    shell.run("verify", "run_128", "--heads", "shown")
    said = shell.run("heads", "--json").stdout
    (shell.folder / "heads").write_text(said)
    shell.run("verify", "--heads", "heads")
    shell.run("verify", "--heads", "-", "--json", stdin=said)
    head = json.loads(said)
    for changed in ({"sequence": 99}, {"sequence": 3}, {"partition": 4}, {"log": "0" * 32}):
        shell.run("verify", "--heads", "-", stdin=json.dumps({**head, **changed}))
    shell.run("verify", "--heads", "-", "--json", stdin=json.dumps({**head, "sequence": 99}))
    for wrong in ("", "{", "[]", '{"partition": 0, "sequence": 1, "head": "abc"}'):
        shell.run("verify", "--heads", "-", stdin=wrong)
    shell.run("verify", "--heads", "missing")
    shell.run("heads", "run_128")
    shell.is_golden("heads")


def test_doctor(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is well, what is odd, what is wrong, each with what to do; then the worst ends it."""
    versions = doctor.Look("versions", "foldlog VERSION", ".foldlog")
    monkeypatch.setattr(doctor, "_versions", lambda path: versions)
    usage = shutil.disk_usage(".")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=9 << 30))
    shell.run("doctor")
    shell.run("init", "--partitions", "2")
    shell.run("start", "run_128", "--goal", "x")
    shell.run("doctor")
    home = shell.folder / ".foldlog"
    (home / "log.sqlite.new").touch()
    shutil.rmtree(home / "projection" / "0")
    shutil.rmtree(home / "projection" / "1")
    shell.note("without its projection, and with a leftover")
    shell.run("doctor")
    shell.run("doctor", "--json")
    with Engine.open(home) as engine:
        assert engine.run("run_128").state() is not None
    for place in sorted((home / "projection").glob("*/CURRENT")):
        place.write_text("MANIFEST-999999\n")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=9 << 20))
    monkeypatch.setenv("COLUMNS", "400")  # the folder's name is longer than what stands for it
    shell.note("with broken projections, on a full disk")
    shell.run("doctor")
    (home / "log.sqlite").write_bytes(b"no log at all" * 1000)
    shell.note("with a broken log")
    shell.run("doctor")
    shell.run("doctor", "run_128")
    shell.is_golden("doctor")


def test_completion(shell: Shell) -> None:
    """A script for each shell that is known; the script itself is click's and not kept here."""
    for name in ("bash", "zsh", "fish"):
        script = shell.run("completion", name).stdout
        assert "_FOLDLOG_COMPLETE" in script
        assert "foldlog" in script
    [found] = shell.json("completion", "fish")
    assert found["script"] == script.rstrip("\n")
    shell.lines = [line for line in shell.lines if line.startswith("$")]
    shell.lines.append(json.dumps({**found, "script": "(click's)"}) + "\n")
    shell.run("completion", "tcsh")
    shell.run("completion")
    shell.is_golden("completion")


def test_following(shell: Shell, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is followed goes on in the columns that are there; `--after` waits for its sequence."""
    login_run(engine)
    watch = type(engine.run("x")).watch

    def ended(run: Any, **options: Any) -> Any:
        for text in ("diagnose", "mend"):
            engine.run("run_128").propose({"type": "Recorded", "name": text, "payload": 1})
        engine.run("run_128").signal("deploy", author="user:a-rather-long-name")
        return watch(run, timeout=0.05, **options)

    monkeypatch.setattr("foldlog.client.Run.watch", ended)
    shell.run("history", "run_128", "--follow")
    shell.run("history", "run_128", "--follow", "--transitions")
    shell.run("history", "run_404", "--follow")
    shell.run("show", "run_128", "--after", "99", "--timeout", "0")
    shell.run("show", "run_128", "--after", "x")
    assert shell.json("show", "run_128", "--after", "1") == shell.json("show", "run_128")
    shell.lines = shell.lines[: shell.lines.index("$ foldlog show run_128 --after 1 --json")]
    shell.is_golden("following")
