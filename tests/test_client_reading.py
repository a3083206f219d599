"""Reading through the client: states now and then, history, transitions, differences.

Lists and alarms are in test_client_lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import client, errors, testing
from foldlog.results import HistoryRow
from tests.client_runs import (
    AGENT,
    BATCH,
    KINDS,
    NOW,
    OPERATOR,
    Json,
    accepted,
    act,
    document,
    effect,
    event,
    fact,
    hand_in,
    opened,
    refused,
    revision,
    running,
    started,
    task,
    wait,
)

HISTORY_KEYS = set(
    "sequence log_time occurred_at batch_id author expected_revision outcome code revision_before "
    "revision_after rebased conflicts lease_epoch on_conflict reads duplicate_of events chain "
    "state_hash".split()
)
# What the rows have beside the contract's keys.
HISTORY_KEYS_MORE = set(
    "message event_index field correlation_id causation_id traceparent rules_version error "
    "build".split()
)


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[client.Engine]:
    """An engine of each kind in turn."""
    with opened(request.param, tmp_path) as engine:
        yield engine


def history(run: client.Run, *, rejected: bool = True) -> list[Json]:
    """The run's rows as JSON."""
    return [row.to_dict() for row in run.history(rejected=rejected)]


# Then


def test_every_revision_can_be_seen_again(engine: client.Engine) -> None:
    """`at(N)` is the very document that `state` gave when N was the revision."""
    run = started(engine)
    seen = [document(run)]
    for events in (
        [event("RunTransitioned", to="planning"), task("t1"), task("t2", depends_on=["t1"])],
        [event("RunTransitioned", to="running"), event("TaskStarted", task_id="t1")],
        [event("ToolStarted", step_id="s1", tool="run", task_id="t1"), effect("e1")],
        [event("ToolSucceeded", step_id="s1", result_ref="test:1"), event("BudgetSpent", tokens=5)],
        [event("PermissionRevoked", permission="tool:x", reason="r")],
        [wait()],
        [event("SignalReceived", key="approval", signal_id="g1")],
        [event("RunCancelled", reason="enough")],
    ):
        act(run, *events)
        refused(run.propose([event("RunReleased", reason="r")]), "INVALID_TRANSITION")
        seen.append(document(run))
    then = [run.at(number) for number in range(1, 10)]
    assert [state and state.to_dict() for state in then] == seen
    assert [run.at(0), run.at(10), run.at(-1)] == [None, None, None]


def test_a_time_shows_the_state_then_bounds_included() -> None:
    """`at(TIME)` includes what was logged at that very time; before the run there is None."""
    with testing.Engine(now=NOW) as engine:
        run = started(engine)
        engine.clock.advance(10)
        act(run, fact("f"))
        engine.clock.advance(0.000001)
        act(run, fact("g"))
        for time, number in (
            ("2025-12-31T23:59:59.999999Z", None),
            ("2026-01-01T00:00:00Z", 1),
            ("2026-01-01T00:00:09.999999999Z", 1),
            ("2026-01-01T00:00:10Z", 2),
            ("2026-01-01T08:00:10.000000999+08:00", 2),
            ("2026-01-01T00:00:10.000001Z", 3),
            ("9999-12-31T23:59:59Z", 3),
        ):
            state = run.at(time)
            assert (state and state.revision) == number, time
        assert run.at("9999-12-31T23:59:59Z") == run.state()


@pytest.mark.parametrize("moment", ["", "x", "12", "2026-01-01", "2026-01-01 00:00:00Z", 1.0, True])
def test_a_moment_that_is_none_is_an_error_of_use(moment: str) -> None:
    """What is neither a revision nor a time raises Usage and names itself."""
    with testing.Engine() as engine, pytest.raises(errors.Usage) as caught:
        started(engine).at(moment)
    assert repr(moment) in caught.value.message


# History


def test_a_row_has_the_contracts_keys_and_values(engine: client.Engine) -> None:
    """Each row has exactly the known keys; the first one of a run is all spelled out here."""
    run = started(engine)
    outcome = run.started
    assert outcome is not None
    [row] = history(run)
    assert set(row) == HISTORY_KEYS | HISTORY_KEYS_MORE
    assert set(row) == set(HistoryRow.__annotations__) | HISTORY_KEYS_MORE
    assert {name: row[name] for name in HISTORY_KEYS} == {
        "sequence": 1,
        "log_time": NOW,
        "occurred_at": None,
        "batch_id": outcome.batch_id,
        "author": {"kind": "user", "id": "ada"},
        "expected_revision": None,
        "outcome": "accepted",
        "code": None,
        "revision_before": 0,
        "revision_after": 1,
        "rebased": False,
        "conflicts": [],
        "lease_epoch": None,
        "on_conflict": "reject",
        "reads": [],
        "duplicate_of": None,
        "events": [{"type": "RunStarted", "goal": {"statement": "Fix the login failure"}}],
        "chain": document(run)["chain"],
        "state_hash": outcome.state_hash,
    }


def test_history_shows_what_changed_the_run_and_with_rejected_all(engine: client.Engine) -> None:
    """Oldest first: accepted and sent to arbitration; rejected and duplicate ones on demand."""
    run = started(engine)
    act(run, event("PhaseChanged", phase="a"))
    stale: Json = {"events": [event("PhaseChanged", phase="b")], "expected_revision": 1}
    refused(run.propose(**stale, batch_id=BATCH, author=AGENT), "CONFLICT")
    assert run.propose(**stale, on_conflict="arbitrate").outcome == "arbitration"
    assert run.propose(**stale, batch_id=BATCH, author=AGENT).duplicate
    refused(run.propose([fact("f")], batch_id=BATCH), "BATCH_ID_REUSED")
    refused(run.propose([fact("")]), "MALFORMED")
    rows = history(run)
    assert [(row["outcome"], row["code"]) for row in rows] == [
        ("accepted", None),
        ("accepted", None),
        ("rejected", "CONFLICT"),
        ("arbitration", None),
        ("duplicate", "CONFLICT"),
        ("rejected", "BATCH_ID_REUSED"),
    ]
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert history(run, rejected=False) == [
        row for row in rows if row["revision_before"] != row["revision_after"]
    ]
    assert [len(row["conflicts"]) for row in rows] == [0, 0, 1, 1, 0, 0]
    assert [row["state_hash"] is not None for row in rows] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_duplicates_row_names_the_first(engine: client.Engine) -> None:
    """Outcome duplicate, the first's code, its sequence, and the current revision twice."""
    run = started(engine)
    refused(
        run.propose([event("RunTransitioned", to="running")], expected_revision=1, batch_id=BATCH),
        "INVALID_TRANSITION",
    )
    act(run, fact("f"))
    act(run, fact("g"))
    run.propose([event("RunTransitioned", to="running")], expected_revision=1, batch_id=BATCH)
    row = history(run)[-1]
    assert (row["outcome"], row["code"]) == ("duplicate", "INVALID_TRANSITION")
    assert (row["duplicate_of"], row["sequence"], row["batch_id"]) == (2, 5, BATCH)
    assert (row["revision_before"], row["revision_after"]) == (3, 3)
    assert row["events"] == [event("RunTransitioned", to="running")]
    assert row["state_hash"] is None


def test_what_could_not_be_read_is_null(engine: client.Engine) -> None:
    """A foreign producer's bytes stand in the history as MALFORMED, with null for all they hide."""
    run = started(engine)
    hand_in(engine, "run_1", b"\xff\xff no proposal")
    row = history(run)[-1]
    assert (row["outcome"], row["code"], row["revision_after"]) == ("rejected", "MALFORMED", 1)
    hidden = "batch_id author expected_revision lease_epoch on_conflict reads events occurred_at"
    assert {row[name] for name in hidden.split()} == {None}
    assert row["conflicts"] == []
    assert len(history(run, rejected=False)) == 1
    accepted(run.propose([fact("f")]))


def test_a_run_that_never_began_has_no_history(engine: client.Engine) -> None:
    """Refused proposals to a run that does not exist make no history of it."""
    run = engine.run("nobody")
    outcome = refused(run.propose([fact("f")]), "RUN_NOT_FOUND")
    assert (outcome.recorded, outcome.revision) == (True, 0)
    assert (run.history(rejected=True), run.state()) == ([], None)
    assert run.outcome(outcome.batch_id) == outcome


def test_events_are_shown_as_proposed(engine: client.Engine) -> None:
    """History has the events as given, less null optional fields; BudgetSet keeps its null."""
    run = started(engine)
    given = event("ToolStarted", step_id="s", tool="t", task_id=None, arguments={"x": None})
    act(run, event("RunTransitioned", to="planning"))
    act(run, given)
    act(run, event("BudgetSet", tokens_remaining=None))
    rows = history(run)
    assert rows[-2]["events"] == [
        {"type": "ToolStarted", "step_id": "s", "tool": "t", "arguments": {"x": None}}
    ]
    assert rows[-1]["events"] == [{"type": "BudgetSet", "tokens_remaining": None}]


def test_every_change_of_status_is_a_transition(engine: client.Engine) -> None:
    """Transitions tell from, to, reason, time and revision; two in one revision are two rows."""
    run = running(engine)
    act(run, event("SignalReceived", key="approval", signal_id="early"))
    act(run, wait())
    act(run, event("ToolStarted", step_id="s", tool="t"))
    act(run, event("ToolFailed", step_id="s", error="exit 1", recoverable=True))
    act(run, event("RunTransitioned", to="running", reason="again"))
    act(run, event("RunFinished", result="completed"))
    rows = [row.to_dict() for row in run.transitions()]
    assert {tuple(sorted(row)) for row in rows} == {("at", "from", "reason", "revision", "to")}
    assert {row["at"] for row in rows} == {NOW}
    assert [(row["from"], row["to"], row["reason"], row["revision"]) for row in rows] == [
        (None, "start", "RunStarted", 1),
        ("start", "planning", "RunTransitioned", 2),
        ("planning", "running", "RunTransitioned", 3),
        ("running", "waiting", "may it?", 5),
        ("waiting", "running", "SignalReceived", 5),
        ("running", "retry", "exit 1", 7),
        ("retry", "running", "again", 8),
        ("running", "finish", "RunFinished", 9),
    ]
    assert rows[-1] == document(run)["last_transition"]


# Differences

HYPOTHESIS = {"id": "h", "statement": "s", "confidence": 0.5, "falsifier": "try"}
QUESTION = {"id": "q", "text": "why?"}
SEEN: Json = {"subject": "file://a", "observed_state": "x", "observed_at": NOW}
CHECKPOINT: Json = {"id": "c", "boundary": "tasks_done"}

DIFFERENCES: list[tuple[str, list[Json], list[Json], str, object, object]] = [
    ("phase", [], [event("PhaseChanged", phase="b")], "added", None, "b"),
    ("status", [], [event("RunTransitioned", to="planning")], "changed", "running", "planning"),
    ("rules", [], [event("RulesActivated", rules_version=1)], "", None, None),
    ("plan", [], [task("t")], "changed", [], ["t"]),
    ("budget/tokens", [], [event("BudgetSpent", tokens=10)], "changed", 100, 90),
    ("budget/tokens", [], [event("BudgetSet", tokens_remaining=None)], "removed", 100, None),
    ("budget/deadline", [], [event("BudgetSet", deadline=NOW)], "added", None, NOW),
    (
        "permission/tool:x",
        [],
        [event("PermissionRevoked", permission="tool:x", reason="r")],
        "added",
        None,
        True,
    ),
    (
        "permission/tool:x",
        [event("PermissionRevoked", permission="tool:x", reason="r")],
        [event("PermissionRestored", permission="tool:x", reason="r")],
        "removed",
        True,
        None,
    ),
    (
        "question/q",
        [event("QuestionOpened", question=QUESTION)],
        [event("QuestionAnswered", question_id="q", answer="so")],
        "removed",
        QUESTION,
        None,
    ),
    (
        "agent_version",
        [],
        [event("AgentVersionChanged", agent_version={"model": "m"})],
        "changed",
        {},
        {"model": "m"},
    ),
    (
        "hypothesis/h",
        [event("HypothesisProposed", hypothesis=HYPOTHESIS)],
        [event("HypothesisFalsified", hypothesis_id="h", evidence="test:1")],
        "changed",
        {**HYPOTHESIS, "confidence": "0.5"},
        {"id": "h", "statement": "s", "evidence": "test:1", "ruled_out": True},
    ),
    (
        "observation/file://a",
        [],
        [event("EnvironmentObserved", **SEEN)],
        "added",
        None,
        {**SEEN, "observed_version": None, "evidence": None},
    ),
    (
        "artifact/a",
        [],
        [event("ArtifactAdded", artifact={"id": "a", "uri": "x:1"})],
        "added",
        None,
        {"id": "a", "uri": "x:1", "sha256": None, "media_type": None},
    ),
    (
        "tool/s",
        [event("ToolStarted", step_id="s", tool="t")],
        [event("ToolSucceeded", step_id="s")],
        "removed",
        {"step_id": "s", "tool": "t", "task_id": None, "arguments": {}},
        None,
    ),
    (
        "signal/g",
        [],
        [event("SignalReceived", key="k", signal_id="g")],
        "added",
        None,
        {"key": "k", "signal_id": "g", "payload": None},
    ),
    (
        "lease",
        [],
        [event("LeaseAcquired", worker="w", ttl_seconds=60)],
        "added",
        None,
        {"worker": "w", "epoch": 1, "expires_at": "2026-01-01T00:01:00.000000Z"},
    ),
    (
        "workspace",
        [],
        [event("WorkspaceMoved", workspace={"workspace_id": "w"})],
        "added",
        None,
        {
            "workspace_id": "w",
            "base_commit": None,
            "current_commit": None,
            "uncommitted_changes": None,
        },
    ),
    (
        "effect/e",
        [effect("e")],
        [event("EffectFailed", effect_id="e", error="no")],
        "changed",
        {
            "id": "e",
            "kind": "mail",
            "target": "mail://ada",
            "idempotency_key": "e",
            "status": "intended",
            "outcome": None,
            "result_ref": None,
        },
        {
            "id": "e",
            "kind": "mail",
            "target": "mail://ada",
            "idempotency_key": "e",
            "status": "failed",
            "outcome": "failed",
            "result_ref": None,
        },
    ),
    (
        "fact/f",
        [fact("f", observed_at=NOW)],
        [event("FactRetracted", fact_id="f", reason="r")],
        "removed",
        {
            "id": "f",
            "statement": "f holds",
            "evidence": "test://1",
            "scope": [],
            "observed_at": NOW,
            "supersedes": None,
        },
        None,
    ),
]


@pytest.mark.parametrize(("entity", "first", "then", "change", "before", "after"), DIFFERENCES)
def test_a_difference_shows_the_entity_before_and_after(
    entity: str, first: list[Json], then: list[Json], change: str, before: object, after: object
) -> None:
    """Each kind of entity appears under its name, as the document shows it, with its stamp."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine, budgets={"tokens_remaining": 100})
        if first:
            act(run, *first)
        here = revision(run)
        act(run, *then)
        author = history(run)[-1]["author"]
        rows = run.diff(here, here + 1)
        assert rows is not None
        found = [row.to_dict() for row in rows if row.entity == entity]
        if not change:
            assert found == []
            return
        assert found == [
            {
                "entity": entity,
                "change": change,
                "before": before,
                "after": after,
                "revision": here + 1,
                "author": author,
            }
        ]
        back = {"added": "removed", "removed": "added", "changed": "changed"}[change]
        reverse = run.diff(here + 1, here)
        assert reverse is not None
        [other] = [row.to_dict() for row in reverse if row.entity == entity]
        assert (other["change"], other["before"], other["after"]) == (back, after, before)


def test_differences_of_what_hangs_together() -> None:
    """A wait, a task, a checkpoint, a conflict and a goal: every entity touched, and no other."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        act(run, task("t", scope=["docs"]))
        act(run, event("CheckpointTaken", checkpoint=CHECKPOINT), event("PhaseChanged", phase="a"))
        act(run, wait())
        stale = [event("PhaseChanged", phase="b")]
        run.propose(stale, expected_revision=3, on_conflict="arbitrate", batch_id=BATCH)
        goal = {"statement": "g", "scope": {"include": ["src"]}}
        act(run, event("GoalChanged", goal=goal, reason="r"))
        act(
            run,
            event("ConflictResolved", conflict_id=BATCH, resolution="keep_current", reason="r"),
            author=OPERATOR,
        )

        def names(a: int, b: int) -> list[tuple[str, str]]:
            rows = run.diff(a, b)
            assert rows is not None
            return [(row.entity, row.change) for row in rows]

        assert names(3, 4) == [("plan", "changed"), ("task/t", "added")]
        assert names(4, 5) == [("checkpoint", "added"), ("phase", "added")]
        assert names(5, 6) == [("status", "changed"), ("wait", "added")]
        assert names(6, 7) == [(f"conflict/{BATCH}", "added")]
        assert names(7, 8) == [("goal", "changed"), ("task/t", "changed")]
        assert names(8, 9) == [(f"conflict/{BATCH}", "removed")]
        assert names(4, 4) == []
        assert [run.diff(0, 1), run.diff(1, 10), run.diff(10, 1), run.diff(-1, 2)] == [None] * 4


def test_bare_values_have_neither_author_nor_revision() -> None:
    """No entity of a difference carries a stamp of its own: it stands beside."""
    with testing.Engine() as engine:
        run = running(engine)
        act(run, task("t"), fact("f"), effect("e"), event("PhaseChanged", phase="p"))
        rows = run.diff(1, 4)
        assert rows is not None
        for row in rows:
            for value in (row.to_dict()["before"], row.to_dict()["after"]):
                assert not isinstance(value, dict) or not {"author", "revision"} & set(value)
        assert {row.revision for row in rows} == {3, 4}


def test_the_callers_own_keys_are_no_stamp() -> None:
    """Keys of an agent version that are called revision and author are shown like any other."""
    with testing.Engine() as engine:
        run = started(engine, agent_version={"revision": "a", "author": "x"})
        version = {"revision": "b", "author": "x"}
        act(run, event("AgentVersionChanged", agent_version=version), author=OPERATOR)
        [row] = run.diff(1, 2) or []
        found = row.to_dict()
        assert found["before"] == {"revision": "a", "author": "x"}
        assert found["after"] == version


def test_what_a_later_batch_undid_is_no_difference() -> None:
    """What has the same value at both revisions is not listed, nor what came and went between."""
    with testing.Engine() as engine:
        run = running(engine)
        act(run, event("PhaseChanged", phase="a"))
        act(run, event("PhaseChanged", phase="b"), event("QuestionOpened", question=QUESTION))
        act(
            run,
            event("PhaseChanged", phase="a"),
            event("QuestionAnswered", question_id="q", answer="so"),
        )
        assert run.diff(4, 6) == []
