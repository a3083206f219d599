"""Runs with something of everything in them, for the tests of the command line.

Invariants:
- Every proposal here is accepted, except where a function says what it is refused with.
"""

from __future__ import annotations

from typing import Any

AGENT = {"kind": "agent", "id": "worker-1"}
EVIDENCE = "artifact://test-output/47"


def accept(engine: Any, run_id: str, *events: dict[str, Any], **fields: Any) -> int:
    """Propose and insist; the run's revision."""
    value = {"author": AGENT, "events": list(events), **fields}
    outcome = engine.run(run_id).propose_json(value)
    assert outcome.outcome == "accepted", outcome
    return int(outcome.revision)


def login_run(engine: Any, run_id: str = "run_128") -> int:
    """A run in the middle of its work, at rest in a wait; its revision."""
    goal = {
        "statement": "Fix the login failure after the dependency upgrade",
        "scope": {"include": ["src/auth", "tests/login"], "exclude": ["public_api"]},
        "acceptance": ["test_login_refresh passes", "public API unchanged"],
        "constraints": ["no new dependency"],
    }
    started = {
        "type": "RunStarted",
        "goal": goal,
        "budgets": {"tokens_remaining": 90_000, "deadline": "2099-08-11T18:00:00+08:00"},
        "agent_version": {"model": "m1"},
        "labels": {"team": "web"},
        "workspace": {"workspace_id": "ws_1", "base_commit": "c0", "current_commit": "c1"},
    }
    at = accept(engine, run_id, started)
    at = accept(
        engine,
        run_id,
        {"type": "RunTransitioned", "to": "planning"},
        {
            "type": "PlanAdopted",
            "tasks": [
                {"id": "task_1", "title": "reproduce the failure", "scope": ["tests/login"]},
                {"id": "task_2", "title": "find where the algorithm is configured",
                 "depends_on": ["task_1"], "scope": ["src/auth"]},
                {"id": "task_3", "title": "mend it", "depends_on": ["task_2"]},
            ],
        },
        {"type": "RunTransitioned", "to": "running"},
        {"type": "PhaseChanged", "phase": "diagnose"},
        expected_revision=at,
    )  # fmt: skip
    at = accept(
        engine,
        run_id,
        {"type": "TaskStarted", "task_id": "task_1"},
        {"type": "TaskCompleted", "task_id": "task_1", "evidence": EVIDENCE},
        {"type": "TaskStarted", "task_id": "task_2"},
        expected_revision=at,
    )
    at = _learn(engine, run_id, at)
    return _act(engine, run_id, at)


def _learn(engine: Any, run_id: str, at: int) -> int:
    hypothesis = {"id": "hyp_4", "statement": "override order changed", "confidence": 0.66,
                  "falsifier": "run the config parser tests"}  # fmt: skip
    fact = {"id": "fact_12", "statement": "session token uses RS256", "evidence": EVIDENCE}
    accept(
        engine,
        run_id,
        {"type": "FactConfirmed", "fact": fact},
        {"type": "HypothesisProposed", "hypothesis": hypothesis},
        {"type": "HypothesisProposed", "hypothesis": {**hypothesis, "id": "hyp_5"}},
        {"type": "QuestionOpened", "question": {"id": "q_1", "text": "Does it still pin HS256?"}},
        {"type": "EnvironmentObserved", "subject": "file://src/auth/config.ts",
         "observed_state": "algorithm=RS256", "observed_at": "2026-08-11T16:22:10+08:00"},
        {"type": "ArtifactAdded", "artifact": {"id": "art_1", "uri": "artifact://patch/1"}},
    )  # fmt: skip
    return accept(
        engine,
        run_id,
        {"type": "HypothesisFalsified", "hypothesis_id": "hyp_5", "evidence": EVIDENCE},
        expected_revision=at + 1,
    )


def _act(engine: Any, run_id: str, at: int) -> int:
    effect = {"id": "eff_1", "kind": "create_order", "target": "order://order_9",
              "idempotency_key": "k1"}  # fmt: skip
    at = accept(
        engine,
        run_id,
        {"type": "ToolStarted", "step_id": "step_19", "tool": "run_test", "task_id": "task_2"},
        {"type": "ToolSucceeded", "step_id": "step_19", "result_ref": EVIDENCE},
        {"type": "ToolStarted", "step_id": "step_20", "tool": "read_file"},
        {"type": "EffectIntended", "effect": effect},
        {"type": "BudgetSpent", "tokens": 6000},
        expected_revision=at,
    )
    point = {"id": "cp_1", "boundary": "before_wait"}
    at = accept(engine, run_id, {"type": "CheckpointTaken", "checkpoint": point})
    return accept(
        engine,
        run_id,
        {"type": "WaitStarted", "kind": "approval", "key": "deploy", "reason": "needs a yes",
         "deadline": "2099-01-01T00:00:00Z"},
        expected_revision=at,
    )  # fmt: skip
