"""Whether a run may be taken up again: each reason of `resume-check` through the command line.

Invariants:
- Each reason is shown in a run that has it, and in one that lacks it by as little as possible.
- A remedy that proposes something is typed as it stands, with what stands in capitals filled in.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foldlog import client, testing
from foldlog.core import resume
from tests.cli_shell import Shell, make_shell
from tests.client_runs import (
    AGENT,
    BATCH,
    OTHER,
    Json,
    accepted,
    act,
    effect,
    event,
    revision,
    rewrite_header,
    running,
    store_of,
    task,
    wait,
)

RUN = "run_1"
WORKSPACE = {"workspace_id": "ws", "base_commit": "c0", "current_commit": "c1"}
FILLED = {
    "TOKENS": "1000", "TIME": "2026-01-01T00:00:30Z", "ID": "an-id", "STATE": "seen", "TEXT": "why",
    "VERSION": "v9", "URI": "test://1", "OUTCOME": "succeeded", "RESOLUTION": "keep_current",
}  # fmt: skip


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


def check(shell: Shell, *options: str) -> Json:
    """What `resume-check --json` prints; it ends with the exit code that it names."""
    result = shell.run("resume-check", RUN, *options, "--json")
    found: Json = json.loads(result.stdout)
    assert result.exit_code == found["exit"]
    assert found["verdict"] == resume.VERDICTS[found["exit"]]
    codes = [reason["code"] for reason in found["reasons"]]
    exits = [resume.EXITS[code] for code in codes]
    assert found["exit"] == next((each for each in (20, 10, 30) if each in exits), 0)
    assert all(reason["remedy"].partition("foldlog ")[1] for reason in found["reasons"])
    return found


def codes(shell: Shell, *options: str) -> list[str]:
    """The codes of the reasons, the worst first."""
    return [reason["code"] for reason in check(shell, *options)["reasons"]]


def steps(shell: Shell, *options: str) -> list[tuple[str, str | None]]:
    """The plan: what to do, and with which entity."""
    return [(step["step"], step["entity"]) for step in check(shell, *options)["plan"]]


def typed(shell: Shell, how: str, **filled: str) -> None:
    """Type a command that `resume-check` named, with what stands in capitals filled in."""
    for word, text in (FILLED | filled).items():
        how = how.replace(f'"{word}"', f'"{text}"').replace(f" {word}", f" {text}")
    words = shlex.split(how)
    stdin = words[words.index("|") - 1] if "|" in words else ""
    words = words[words.index("foldlog") + 1 :]
    assert shell.run(*words, stdin=stdin).exit_code == 0, how


def checkpoint(id: str) -> Json:
    """A checkpoint at a safe boundary."""
    return event("CheckpointTaken", checkpoint={"id": id, "boundary": "tasks_done"})


def seen(subject: str = "order://9", version: str = "v1", at: str = "2026-01-01T00:00:00Z") -> Json:
    """An observation."""
    return event("EnvironmentObserved", subject=subject, observed_state="open",
                 observed_version=version, observed_at=at)  # fmt: skip


def test_a_run_with_nothing_against_it_is_safe(shell: Shell, engine: testing.Engine) -> None:
    """A run that nobody holds and nothing happened to is safe, and its plan is its work."""
    running(engine)
    assert check(shell)["verdict"] == "safe"
    assert steps(shell) == [("go on", "status")]


def test_a_quarantined_run_must_not_be_resumed(shell: Shell) -> None:
    """QUARANTINED: a rule failed, until the run is released; a finished run too."""
    with testing.Engine(raise_in="PhaseChanged") as engine:
        shell.use(engine)
        run = running(engine)
        run.propose(event("PhaseChanged", phase="x"), expected_revision=3)
        found = check(shell)
        assert [reason["code"] for reason in found["reasons"]] == ["QUARANTINED"]
        assert found["plan"][0]["step"] == "release"
        typed(shell, found["reasons"][0]["remedy"])
        assert codes(shell) == []


def test_a_run_of_another_schema_must_not_be_resumed(shell: Shell, engine: testing.Engine) -> None:
    """MIGRATION_REQUIRED: this build cannot take the run's state further."""
    running(engine)
    rewrite_header(store_of(engine), RUN, schema_version=0)
    assert codes(shell) == ["MIGRATION_REQUIRED"]
    assert check(shell)["exit"] == 20


def test_a_lease_of_another_that_is_live(shell: Shell, engine: testing.Engine) -> None:
    """LEASE_LIVE: every live lease but that of the worker who asks, until it is over."""
    act(running(engine), event("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    assert codes(shell) == ["LEASE_LIVE"]
    assert codes(shell, "--worker", "worker-2") == ["LEASE_LIVE"]
    assert check(shell, "--worker", "worker-1")["verdict"] == "safe"
    engine.clock.advance(59.999_999)
    assert codes(shell) == ["LEASE_LIVE"]
    engine.clock.advance(0.000_001)
    assert codes(shell) == []


def test_a_lease_counts_by_the_log_s_time(shell: Shell, engine: testing.Engine) -> None:
    """A reader whose clock is behind takes no lease for live that is over by the log."""
    run = running(engine)
    act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    engine.clock.advance(61)
    act(run, event("BudgetSpent", tokens=1), expected_revision=None)
    engine.clock.set("2026-01-01T00:00:00Z")
    assert codes(shell) == []


def test_tokens_that_are_spent(shell: Shell, engine: testing.Engine) -> None:
    """BUDGET_SPENT: no tokens are left, until more are given."""
    run = running(engine, budgets={"tokens_remaining": 10})
    act(run, event("BudgetSpent", tokens=9))
    assert codes(shell) == []
    act(run, event("BudgetSpent", tokens=1))
    [reason] = check(shell)["reasons"]
    assert (reason["code"], reason["entity"]) == ("BUDGET_SPENT", "budget/tokens")
    typed(shell, reason["remedy"].replace("TOKENS", "1000"))
    assert codes(shell) == []


def test_a_deadline_that_has_passed(shell: Shell, engine: testing.Engine) -> None:
    """DEADLINE_PASSED: from the instant of the budget's deadline on, until it is moved."""
    running(engine, budgets={"deadline": "2026-01-01T00:00:10Z"})
    engine.clock.advance(9.999_999)
    assert codes(shell) == []
    engine.clock.advance(0.000_001)
    [reason] = check(shell)["reasons"]
    assert (reason["code"], reason["entity"]) == ("DEADLINE_PASSED", "budget/deadline")
    typed(shell, reason["remedy"])
    assert codes(shell) == []


def test_a_workspace_that_is_lost(shell: Shell, engine: testing.Engine) -> None:
    """WORKSPACE_LOST: what is named as the workspace is no folder that can be read."""
    running(engine, workspace=WORKSPACE)
    (shell.folder / "file").write_text("x")
    for name in ("nowhere", "file"):
        [reason] = check(shell, "--workspace", name)["reasons"]
        assert (reason["code"], reason["entity"]) == ("WORKSPACE_LOST", "workspace")


@pytest.mark.parametrize("unknown", [False, True])
def test_an_effect_in_doubt(shell: Shell, engine: testing.Engine, unknown: bool) -> None:
    """EFFECT_IN_DOUBT: intended or unknown, one's own lease or not, until it is reconciled."""
    run = running(engine)
    act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    act(run, effect("eff_1"), effect("eff_2"), lease_epoch=1)
    act(run, event("EffectFailed", effect_id="eff_2", error="no"))
    if unknown:
        act(run, event("EffectUnknown", effect_id="eff_1", reason="no answer"))
    found = check(shell, "--worker", "worker-1")
    assert [(each["code"], each["entity"]) for each in found["reasons"]] == [
        ("EFFECT_IN_DOUBT", "effect/eff_1")
    ]
    assert found["plan"][0]["step"] == "reconcile"
    typed(shell, found["reasons"][0]["remedy"])
    assert codes(shell, "--worker", "worker-1") == []


def test_a_commit_that_is_not_the_run_s(shell: Shell, engine: testing.Engine) -> None:
    """WORKSPACE_MOVED: --commit differs from current_commit, also where the run has none."""
    running(engine, workspace=WORKSPACE)
    assert codes(shell, "--commit", "c1") == []
    for commit in ("c0", "C1", "c"):
        assert codes(shell, "--commit", commit) == ["WORKSPACE_MOVED"]
    accepted(engine.start("run_2", "x").started)
    assert shell.run("resume-check", "run_2", "--commit", "c1").exit_code == 10


def test_a_commit_is_told_to_the_run(shell: Shell, engine: testing.Engine) -> None:
    """A workspace that moved: tell the run, then take a checkpoint; then it is safe."""
    running(engine, workspace=WORKSPACE)
    found = check(shell, "--commit", "c2")
    assert steps(shell, "--commit", "c2") == [
        ("compare the workspace", "workspace"),
        ("checkpoint", "checkpoint"),
        ("go on", "status"),
    ]
    typed(shell, found["reasons"][0]["remedy"])
    state = engine.run(RUN).state()
    assert state is not None
    assert state.workspace == {**WORKSPACE, "current_commit": "c2", "uncommitted_changes": None}
    found = check(shell, "--commit", "c2")
    assert [reason["code"] for reason in found["reasons"]] == ["WORKSPACE_MOVED"]
    typed(shell, found["reasons"][0]["remedy"])
    typed(shell, found["plan"][1]["how"])
    assert codes(shell, "--commit", "c2") == []


def test_a_workspace_that_moved_since_the_checkpoint(shell: Shell, engine: testing.Engine) -> None:
    """WORKSPACE_MOVED: after the checkpoint, or after revision 1; there and back again too."""
    run = running(engine, workspace=WORKSPACE)
    assert codes(shell) == []
    act(run, event("WorkspaceMoved", workspace={**WORKSPACE, "current_commit": "c2"}))
    assert codes(shell) == ["WORKSPACE_MOVED"]
    act(run, checkpoint("cp_1"))
    assert codes(shell) == []
    act(run, event("WorkspaceMoved", workspace=WORKSPACE))
    act(run, event("WorkspaceMoved", workspace={**WORKSPACE, "current_commit": "c2"}))
    assert codes(shell) == ["WORKSPACE_MOVED"]


def test_what_a_checkpoint_s_own_batch_moved(shell: Shell, engine: testing.Engine) -> None:
    """A move before the checkpoint in its batch is known to it, one behind it is not."""
    run = running(engine, workspace=WORKSPACE)
    moves = [
        event("WorkspaceMoved", workspace={**WORKSPACE, "current_commit": f"c{number}"})
        for number in range(2, 4)
    ]
    act(run, moves[0], checkpoint("cp_1"))
    assert codes(shell) == []
    act(run, checkpoint("cp_2"), moves[1])
    assert codes(shell) == ["WORKSPACE_MOVED"]


def test_an_agent_version_that_changed(shell: Shell, engine: testing.Engine) -> None:
    """AGENT_VERSION_CHANGED: the caller's differs, or the run's changed since the checkpoint."""
    run = running(engine, agent_version={"model": "m1", "prompt": "p1"})
    assert codes(shell, "--agent-version", "model=m1") == []
    other = ("--agent-version", "model=m2", "--agent-version", "tools=t1")
    found = check(shell, *other)
    assert [reason["code"] for reason in found["reasons"]] == ["AGENT_VERSION_CHANGED"]
    assert "model is m2, the run has m1" in found["reasons"][0]["message"]
    typed(shell, found["reasons"][0]["remedy"])
    state = run.state()
    assert state is not None
    assert state.agent_version == {"model": "m2", "prompt": "p1", "tools": "t1"}
    assert codes(shell, *other) == ["AGENT_VERSION_CHANGED"]
    act(run, checkpoint("cp_1"))
    assert codes(shell, *other) == []


CONTROL = {
    "goal": event("GoalChanged", goal={"statement": "another"}, reason="x"),
    "permission/tool:shell": event("PermissionRevoked", permission="tool:shell", reason="x"),
    "budget/tokens": event("BudgetSet", tokens_remaining=50),
    "budget/deadline": event("BudgetSet", deadline="2027-01-01T00:00:00Z"),
}


@pytest.mark.parametrize("entity", CONTROL)
def test_control_since_the_checkpoint(shell: Shell, engine: testing.Engine, entity: str) -> None:
    """CONTROL_CHANGED: what a superseding control event changed, named; a checkpoint ends it."""
    run = running(engine, budgets={"tokens_remaining": 100})
    act(run, checkpoint("cp_1"))
    act(run, CONTROL[entity])
    found = check(shell)
    assert [(each["code"], each["entity"]) for each in found["reasons"]] == [
        ("CONTROL_CHANGED", entity)
    ]
    typed(shell, found["reasons"][0]["remedy"])
    act(run, checkpoint("cp_2"))
    assert codes(shell) == []


def test_control_that_supersedes_nothing(shell: Shell, engine: testing.Engine) -> None:
    """Of more budget, a permission restored and one revoked again only the last counts."""
    run = running(engine, budgets={"tokens_remaining": 100})
    act(run, CONTROL["permission/tool:shell"])
    act(run, checkpoint("cp_1"))
    act(run, event("BudgetSet", tokens_remaining=200))
    assert codes(shell) == []
    act(run, CONTROL["permission/tool:shell"])
    assert [(each["code"], each["entity"]) for each in check(shell)["reasons"]] == [
        ("CONTROL_CHANGED", None)
    ]
    act(run, checkpoint("cp_2"))
    act(run, event("PermissionRestored", permission="tool:shell", reason="x"))
    assert codes(shell) == []


def test_an_observation_with_an_effect_on_its_subject(shell: Shell, engine: testing.Engine) -> None:
    """OBSERVATION_OUTDATED: an effect on the very subject came after it, until it is seen again."""
    run = running(engine)
    act(run, seen("order://9"), seen("order://90"))
    event_ = effect("eff_1")
    event_["effect"]["target"] = "order://9"
    act(run, event_)
    assert codes(shell) == ["EFFECT_IN_DOUBT", "OBSERVATION_OUTDATED"]
    act(run, event("EffectSucceeded", effect_id="eff_1"))
    [reason] = check(shell)["reasons"]
    assert (reason["code"], reason["entity"]) == ("OBSERVATION_OUTDATED", "observation/order://9")
    assert ("read again", "observation/order://9") in steps(shell)
    typed(shell, reason["remedy"])
    assert codes(shell) == []


def test_an_observation_from_before_a_move(shell: Shell, engine: testing.Engine) -> None:
    """OBSERVATION_OUTDATED: every observation that the workspace moved after."""
    run = running(engine, workspace=WORKSPACE)
    act(run, seen("file://a"), seen("order://9"))
    act(run, event("WorkspaceMoved", workspace={**WORKSPACE, "current_commit": "c2"}))
    act(run, seen("file://b"), checkpoint("cp_1"))
    assert [each["entity"] for each in check(shell)["reasons"]] == [
        "observation/file://a",
        "observation/order://9",
    ]
    assert codes(shell) == ["OBSERVATION_OUTDATED"] * 2


@pytest.mark.parametrize("seen_first", [True, False])
@pytest.mark.parametrize("what", ["move", "intent", "outcome", "another"])
def test_within_one_batch_the_order_counts(
    shell: Shell, engine: testing.Engine, what: str, seen_first: bool
) -> None:
    """OBSERVATION_OUTDATED: also what came later in the very batch, and not what came before."""
    run = running(engine, workspace=WORKSPACE)
    intent = effect("eff_1")
    intent["effect"]["target"] = "order://9"
    change = {
        "move": event("WorkspaceMoved", workspace={**WORKSPACE, "current_commit": "c2"}),
        "intent": intent,
        "outcome": event("EffectFailed", effect_id="eff_1", error="refused"),
        "another": seen("order://10"),
    }[what]
    if what == "outcome":
        act(run, intent)
    batch = [seen("order://9"), change]
    act(run, task("t1"), *(batch if seen_first else batch[::-1]))
    act(run, task("t2"), checkpoint("cp_1"))
    outdated = seen_first and what != "another"
    found = [code for code in codes(shell) if code != "EFFECT_IN_DOUBT"]
    assert found == ["OBSERVATION_OUTDATED"] * outdated


def test_an_observation_out_of_a_conflict(shell: Shell, engine: testing.Engine) -> None:
    """OBSERVATION_OUTDATED: events that a person took stand in no order that is known."""
    run = running(engine, workspace=WORKSPACE)
    before = revision(run)
    act(run, task("t1"))
    moved, moved_again = (
        event("WorkspaceMoved", workspace={**WORKSPACE, "current_commit": commit})
        for commit in ("c2", "c3")
    )
    act(run, moved)
    kept = run.propose(
        [moved_again, seen("order://9")], expected_revision=before, on_conflict="arbitrate"
    )
    assert kept.outcome == "arbitration"
    resolved = run.resolve(str(kept.conflict_id), "take_proposed", reason="it was so")
    assert resolved.accepted
    act(run, checkpoint("cp_1"))
    assert codes(shell) == ["OBSERVATION_OUTDATED"]


def test_what_open_tasks_depend_on_is_read_again(shell: Shell, engine: testing.Engine) -> None:
    """Observations that open tasks may depend on stand in the plan and change no verdict."""
    run = running(engine)
    act(run, seen("file://src/auth/config.ts"), seen("file://docs/x.md"), seen("order://9"))
    assert steps(shell) == [("go on", "status")]
    act(run, task("t1", scope=["src/auth"]))
    again = [entity for step, entity in steps(shell) if step == "read again"]
    assert again == ["observation/file://src/auth/config.ts", "observation/order://9"]
    assert check(shell)["verdict"] == "safe"
    act(run, task("t2"))
    found = check(shell)["plan"]
    assert [step["entity"] for step in found if step["step"] == "read again"] == [
        "observation/file://docs/x.md",
        "observation/file://src/auth/config.ts",
        "observation/order://9",
    ]
    assert found[0]["what"].endswith("depended on by t2")
    assert found[1]["what"].endswith("depended on by t1, t2")
    for id in ("t1", "t2"):
        act(run, event("TaskCancelled", task_id=id, reason="x"))
    assert [step for step, _ in steps(shell)] == ["go on"]


def test_an_open_conflict(shell: Shell, engine: testing.Engine) -> None:
    """CONFLICT_OPEN: a proposal waits for a person, until it is settled."""
    run = running(engine)
    act(run, event("PhaseChanged", phase="a"))
    late = run.propose(
        event("PhaseChanged", phase="b"),
        expected_revision=3,
        author=OTHER,
        on_conflict="arbitrate",
        batch_id=BATCH,
    )
    assert late.outcome == "arbitration"
    [reason] = check(shell)["reasons"]
    assert (reason["code"], reason["entity"]) == ("CONFLICT_OPEN", f"conflict/{BATCH}")
    typed(shell, reason["remedy"])
    assert codes(shell) == []


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_a_finished_run(shell: Shell, engine: testing.Engine, how: str) -> None:
    """FINISHED: nothing to resume, however it ended; to cancel is no change to be read."""
    run = running(engine)
    if how == "cancelled":
        accepted(run.cancel("not needed", author="user:ada"))
    else:
        act(run, event("RunFinished", result=how))
    found = check(shell)
    assert [reason["code"] for reason in found["reasons"]] == ["FINISHED"]
    assert (found["exit"], found["plan"]) == (30, [])


def test_a_finished_run_with_an_effect_in_doubt(shell: Shell, engine: testing.Engine) -> None:
    """An effect in doubt has to be reconciled although the run is finished."""
    run = running(engine)
    act(run, effect("eff_1"))
    act(run, event("RunFinished", result="failed"))
    assert codes(shell) == ["EFFECT_IN_DOUBT", "FINISHED"]
    assert check(shell)["exit"] == 10
    assert steps(shell) == [("reconcile", "effect/eff_1")]
    typed(shell, check(shell)["reasons"][0]["remedy"])
    assert check(shell)["exit"] == 30


def test_a_run_that_waits(shell: Shell, engine: testing.Engine) -> None:
    """WAITING: until what it waits for comes; a signal that came before leaves nothing to wait."""
    run = running(engine)
    act(run, wait("k1"))
    found = check(shell)
    assert [reason["code"] for reason in found["reasons"]] == ["WAITING"]
    assert (found["exit"], found["plan"][0]["step"]) == (30, "wait")
    typed(shell, found["reasons"][0]["remedy"])
    assert codes(shell) == []
    accepted(run.signal("k2"))
    act(run, wait("k2"))
    assert codes(shell) == []


def test_the_worst_reason_decides(shell: Shell, engine: testing.Engine) -> None:
    """20 is worse than 10, 10 than 30; each reason is told all the same."""
    run = running(engine)
    act(run, effect("eff_1"))
    act(run, wait("k"))
    assert codes(shell) == ["EFFECT_IN_DOUBT", "WAITING"]
    assert check(shell)["exit"] == 10
    assert check(shell, "--workspace", "nowhere")["exit"] == 20
    act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    assert codes(shell, "--commit", "c9") == [
        "LEASE_LIVE",
        "EFFECT_IN_DOUBT",
        "WORKSPACE_MOVED",
        "WAITING",
    ]


def test_the_plan_says_which_step_is_next(shell: Shell, engine: testing.Engine) -> None:
    """After what has to be settled: calls without outcome, and the task that runs or comes next."""
    run = running(engine)
    act(run, task("t1"), task("t2", depends_on=["t1"]))
    assert steps(shell) == [("go on", "task/t1")]
    act(run, event("TaskStarted", task_id="t1"))
    act(run, event("ToolStarted", step_id="s1", tool="grep", task_id="t1"))
    assert steps(shell) == [("report", "tool/s1"), ("go on", "task/t1")]
    typed(shell, check(shell)["plan"][0]["how"])
    assert steps(shell) == [("go on", "status")]  # the failed call brought it into retry
    act(run, event("RunTransitioned", to="running"))
    act(run, event("TaskBlocked", task_id="t1", reason="no access"))
    assert steps(shell) == [("go on", "task/t1")]
    assert '"TaskUnblocked"' in check(shell)["plan"][0]["how"]


def test_every_reason_has_an_order_and_a_step() -> None:
    """What may speak against resuming has an exit code, and all but the end a step of the plan."""
    assert set(resume.STEPS) == set(resume.EXITS) - {"FINISHED"}
    assert list(resume.EXITS.values()) == sorted(
        resume.EXITS.values(), key=list(resume.VERDICTS).index
    )


def test_no_such_run(shell: Shell, engine: testing.Engine) -> None:
    """What is not there ends with 4, and the client gives None."""
    assert shell.run("resume-check", RUN).exit_code == 4
    assert engine.run(RUN).resume_check() is None
    assert engine.run("no run").resume_check() is None


def test_a_check_changes_nothing(shell: Shell, engine: testing.Engine) -> None:
    """However often it is asked, the run stays as it is."""
    act(running(engine, workspace=WORKSPACE), effect("eff_1"))
    before = engine.digest(), revision(engine.run(RUN))
    for option in ("--commit", "--worker", "--workspace"):
        check(shell, option, "x")
    assert (engine.digest(), revision(engine.run(RUN))) == before


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        resume.Caller,
        worker=st.none() | st.text(),
        commit=st.none() | st.text(),
        workspace=st.none()
        | st.builds(resume.Workspace, st.text(), st.none() | st.text(), st.text()),
        agent_version=st.dictionaries(st.text(), st.text(), max_size=3),
    )
)
def test_whatever_a_caller_says_its_remedies_can_be_shown(caller: resume.Caller) -> None:
    """Any text of a caller ends in printable one-line commands, and never in a better verdict."""
    with testing.Engine() as engine:
        act(running(engine, workspace=WORKSPACE), effect("eff_1\x1b[31m", "k\n"))
        with engine._reading(RUN) as view:
            state = view.run(RUN).state()
            nothing_said = resume.resume_check(state, 0, resume.Caller())
            found = resume.resume_check(state, 0, caller)
    ranks = {code: rank for rank, code in enumerate(resume.VERDICTS)}
    assert ranks[found["exit"]] <= ranks[nothing_said["exit"]]
    for each in (*found["reasons"], *found["plan"]):
        assert (each.get("remedy") or each["how"]).isprintable()


def test_author_names_are_claims(engine: testing.Engine) -> None:
    """The client compares the worker that is named with the lease, whoever the engine's author."""
    run: client.Run = running(engine)
    act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=60), author=AGENT)
    mine, other = run.resume_check(worker="worker-1"), run.resume_check(worker="worker-2")
    assert mine is not None
    assert other is not None
    assert (mine.verdict, other.verdict) == ("safe", "must_not")
    assert mine.to_dict()["reasons"] == []
