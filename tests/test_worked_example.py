"""The worked example: run_128 up to revision 18, and the two events that make revision 19.

The document is compared whole: every key, nested ones too, and every value that the events decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import foldlog
from foldlog import client
from foldlog.core.document import CONTRACT_KEYS
from tests.client_runs import (
    AGENT,
    BATCH,
    KINDS,
    NOW,
    OTHER,
    Json,
    accepted,
    act,
    document,
    event,
    opened,
    refused,
    revision,
)

DEADLINE = "2026-08-11T18:00:00+08:00"
SEEN_AT = "2026-08-11T16:22:10+08:00"
GOAL: Json = {
    "statement": "Fix the login failure after the dependency upgrade",
    "scope": {"include": ["src/auth", "tests/login"], "exclude": ["public_api"]},
    "acceptance": ["test_login_refresh passes", "public API unchanged"],
}
HYPOTHESIS: Json = {
    "id": "hyp_4",
    "statement": "override order changed in the upgrade",
    "confidence": "0.66",
    "falsifier": "run the config parser tests",
}
FACT: Json = {
    "id": "fact_12",
    "statement": "session token uses RS256",
    "evidence": "artifact://test-output/47",
    "scope": ["src/auth"],
    "observed_at": SEEN_AT,
}
QUESTION: Json = {"id": "q_1", "text": "Does the fixture still pin HS256?"}
SUBJECT = "file://src/auth/config.ts"
OBSERVED: Json = {
    "subject": SUBJECT,
    "observed_version": "sha256:9a2",
    "observed_state": "algorithm=RS256",
    "observed_at": SEEN_AT,
}
EFFECT: Json = {
    "id": "eff_1",
    "kind": "create_order",
    "target": "order://order_9",
    "idempotency_key": "k1",
}
PLAN: list[Json] = [
    {"id": "task_1", "title": "reproduce the failure"},
    {"id": "task_2", "title": "compare the lock files", "depends_on": ["task_1"]},
    {"id": "task_3", "title": "find where the algorithm is configured", "scope": ["src/auth"]},
]
CALL: Json = {"step_id": "step_19", "tool": "run_test", "task_id": "task_3"}
ARGUMENTS = {"path": "tests/login"}
TESTED: Json = {"step_id": "step_18", "tool": "run_test", "task_id": "task_3"}
RESULT = "artifact://test-output/47"
COMPARED = "artifact://diff/3"

# Revisions 2 to 18, a list of events each; 4 is the control event.
BATCHES: list[list[Json]] = [
    [event("RunTransitioned", to="planning")],
    [event("PlanAdopted", tasks=PLAN)],
    [event("BudgetSet", tokens_remaining=90_000)],
    [event("RunTransitioned", to="running"), event("PhaseChanged", phase="diagnose")],
    [event("TaskStarted", task_id="task_1")],
    [event("TaskCompleted", task_id="task_1", evidence="artifact://test-output/46")],
    [event("TaskStarted", task_id="task_2"), event("ToolStarted", step_id="step_17", tool="diff")],
    [event("ToolFailed", step_id="step_17", error="no lock file", recoverable=True)],
    [event("RunTransitioned", to="running", reason="lock file restored")],
    [event("TaskCompleted", task_id="task_2", evidence=COMPARED)],
    [event("HypothesisProposed", hypothesis=HYPOTHESIS)],
    [event("FactConfirmed", fact=FACT), event("EnvironmentObserved", **OBSERVED)],
    [
        event("QuestionOpened", question=QUESTION),
        event("ArtifactAdded", artifact={"id": "art_1", "uri": "artifact://patch/1"}),
    ],
    [
        event("TaskStarted", task_id="task_3"),
        event("ToolStarted", **TESTED),
        event("ToolStarted", **CALL, arguments=ARGUMENTS),
    ],
    [
        event("BudgetSpent", tokens=6_000),
        event("WaitStarted", kind="approval", key="order", reason="may the order be placed?"),
    ],
    [event("ToolSucceeded", step_id="step_18", result_ref=RESULT)],
    [
        event("SignalReceived", key="order", signal_id="sig_1", payload={"ok": True}),
        event("EffectIntended", effect=EFFECT),
    ],
]


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[client.Run]:
    """run_128 at revision 18, in memory and in a home."""
    with opened(request.param, tmp_path) as engine:
        budgets = {"tokens_remaining": 100_000, "deadline": DEADLINE}
        run = engine.start("run_128", goal=GOAL, author="user:ada", budgets=budgets)
        accepted(run.started)
        for batch in BATCHES:
            act(run, *batch)
        yield run


def stamp(number: int, author: str = AGENT) -> Json:
    """The author and revision that an entity carries."""
    kind, _, id = author.partition(":")
    return {"author": {"kind": kind, "id": id}, "revision": number}


def worked(task: Json, **values: object) -> Json:
    """A task as the document shows it."""
    absent: Json = {"depends_on": [], "scope": [], "blocked_by": None, "worker": "worker-1"}
    return {**absent, **task, **values}


REVISION_18: Json = {
    "schema_version": 2,
    "run_id": "run_128",
    "revision": 18,
    "control_revision": 4,
    "condition": "ok",
    "goal": {**GOAL, "constraints": [], **stamp(1, "user:ada")},
    "phase": "diagnose",
    "status": "running",
    "result": None,
    "plan": ["task_1", "task_2", "task_3"],
    "active_task_id": "task_3",
    "next_task_ids": [],
    "confirmed_facts": [{**FACT, "supersedes": None, **stamp(13)}],
    "hypotheses": [{**HYPOTHESIS, **stamp(12)}],
    "ruled_out": [],
    "open_questions": [{**QUESTION, **stamp(14)}],
    "tasks": [
        worked(PLAN[0], status="completed", evidence="artifact://test-output/46", **stamp(7)),
        worked(PLAN[1], status="completed", evidence=COMPARED, **stamp(11)),
        worked(PLAN[2], status="running", evidence=None, **stamp(15)),
    ],
    "environment_observations": [{**OBSERVED, "evidence": None, **stamp(13)}],
    "effects": [{**EFFECT, "status": "intended", "outcome": None, "result_ref": None, **stamp(18)}],
    "effect_ledger_ref": "effects://run_128@rev18",
    "artifacts": [
        {
            "id": "art_1",
            "uri": "artifact://patch/1",
            "sha256": None,
            "media_type": None,
            **stamp(14),
        }
    ],
    "pending_tool_calls": [{**CALL, "arguments": ARGUMENTS, **stamp(15)}],
    "waiting": None,
    "signals": [],
    "last_signal": {
        "key": "order",
        "signal_id": "sig_1",
        "payload": {"ok": True},
        **stamp(18),
    },
    "retry_count": 1,
    "retry_limit": 3,
    "attempts": [{"at": NOW, "reason": "no lock file", "revision": 9}],
    "lease": None,
    "conflicts": [],
    "budgets": {"tokens_remaining": 84_000, "deadline": DEADLINE},
    "permissions_revoked": [],
    "last_transition": {
        "from": "waiting",
        "to": "running",
        "reason": "SignalReceived",
        "at": NOW,
        "revision": 18,
    },
    "last_action": {
        "type": "ToolSucceeded",
        "action": "run_test",
        "result_ref": RESULT,
        "revision": 17,
    },
    "workspace": None,
    "agent_version": {},
    "labels": {},
    "checkpoint": None,
    "forked_from": None,
    "migrated_from": [],
    "rules_version": 1,
}

PROPOSAL: Json = {
    "batch_id": BATCH,
    "expected_revision": 18,
    "author": {"kind": "agent", "id": "worker-1"},
    "lease_epoch": None,
    "on_conflict": "reject",
    "reads": ["fact/fact_12"],
    "events": [
        {
            "type": "FactConfirmed",
            "fact": {
                "id": "fact_13",
                "statement": "the fixture pins HS256",
                "evidence": "artifact://test-output/48",
            },
        },
        {
            "type": "TaskCompleted",
            "task_id": "task_3",
            "evidence": "artifact://test-output/48",
        },
    ],
}


def test_revision_18_is_the_document(run: client.Run) -> None:
    """The document has every key of the contract and no other, with the values of the example."""
    shown = document(run)
    assert set(shown) == {*CONTRACT_KEYS, "attempts"} == {*REVISION_18, "chain"}
    assert len(shown.pop("chain")) == 64
    assert shown == REVISION_18
    assert json.loads(json.dumps(shown)) == shown
    at_18 = run.at(18)
    assert at_18 is not None
    assert {**at_18.to_dict(), "chain": None} == {**REVISION_18, "chain": None}


def test_the_proposal_makes_revision_19(run: client.Run) -> None:
    """Two events, one revision: a second fact, a completed task, and nothing else."""
    outcome = accepted(run.propose_json(PROPOSAL))
    assert (outcome.revision, outcome.rebased, outcome.duplicate) == (19, False, False)
    assert (outcome.recorded, outcome.batch_id, outcome.sequence) == (True, BATCH, 19)
    shown = document(run)
    assert shown["chain"] == outcome.chain
    fact = {"scope": [], "observed_at": NOW, "supersedes": None, **stamp(19)}
    expected = {
        **REVISION_18,
        "revision": 19,
        "active_task_id": None,
        "confirmed_facts": [
            *REVISION_18["confirmed_facts"],
            {**PROPOSAL["events"][0]["fact"], **fact},
        ],
        "tasks": [
            *REVISION_18["tasks"][:2],
            worked(PLAN[2], status="completed", evidence="artifact://test-output/48", **stamp(19)),
        ],
        "chain": outcome.chain,
    }
    assert shown == expected
    rows = run.diff(18, 19)
    assert rows is not None
    assert [(row.entity, row.change) for row in rows] == [
        ("fact/fact_13", "added"),
        ("task/task_3", "changed"),
    ]
    assert [row.revision for row in rows] == [19, 19]
    assert run.propose_json(PROPOSAL) == {**outcome.to_dict(), "duplicate": True}


def test_typed_events_make_the_same_proposal(run: client.Run) -> None:
    """The proposal as section 5 writes it is the one of section 2, under the same batch id."""
    first = accepted(run.propose_json(PROPOSAL))
    events = [
        foldlog.FactConfirmed(
            fact={
                "id": "fact_13",
                "statement": "the fixture pins HS256",
                "evidence": "artifact://test-output/48",
            }
        ),
        foldlog.TaskCompleted(task_id="task_3", evidence="artifact://test-output/48"),
    ]
    again = run.propose(
        events,
        expected_revision=18,
        on_conflict="reject",
        timeout=10,
        reads=["fact/fact_12"],
        author=AGENT,
        batch_id=BATCH,
    )
    assert again == {**first.to_dict(), "duplicate": True}


def test_the_conflict_of_the_example(run: client.Run) -> None:
    """Another worker was faster: CONFLICT on task/task_3 at 19, and arbitration makes 20."""
    act(run, event("TaskFailed", task_id="task_3", reason="no time"), author=OTHER)
    conflict = {
        "entity": "task/task_3",
        "expected_revision": 18,
        "changed_at": 19,
        "changed_by": {"kind": "agent", "id": "worker-2"},
    }
    outcome = refused(run.propose_json({**PROPOSAL, "batch_id": None}), "CONFLICT")
    assert (outcome.event_index, outcome.field, outcome.revision) == (None, None, 19)
    assert outcome.to_dict()["conflicts"] == [conflict]
    arbitrated = run.propose_json({**PROPOSAL, "on_conflict": "arbitrate"}).to_dict()
    assert (arbitrated["outcome"], arbitrated["conflict_id"]) == ("arbitration", BATCH)
    assert (arbitrated["revision"], arbitrated["conflicts"]) == (20, [conflict])
    assert revision(run) == 20
    [kept] = document(run)["conflicts"]
    assert kept == {
        "id": BATCH,
        "entities": ["task/task_3"],
        "events": PROPOSAL["events"],
        "expected_revision": 18,
        **stamp(20),
    }


def test_the_example_is_proven(run: client.Run) -> None:
    """Verified, decided again, and replayed, the run is what is shown."""
    accepted(run.propose_json(PROPOSAL))
    engine = run.engine
    assert engine.verify(redecide=True).ok
    assert engine.verify("run_128").ok
    replay = engine.replay()
    assert replay is not None
    assert (replay.digest, replay.records, replay.runs) == (engine.digest(), 19, 1)
