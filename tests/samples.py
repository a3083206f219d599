"""Valid sample events and proposals for the tests.

Invariants:
- `maximal` gives every field of an event type, nested ones too; `minimal` the required ones only.
- Every call gives a new object: a test may change it.
"""

from __future__ import annotations

import copy
from typing import Any

from foldlog.core.shapes import FIELDS, Field, ListOf, Record

RUN_ID = "run_128"
BATCH_ID = "5bfc1d98-7697-48d2-b42d-cddfd75d6180"
AUTHOR = {"kind": "user", "id": "ada"}
TIME = "2026-08-11T16:22:10+08:00"
REFERENCE = "artifact://test-output/47"
SHA256 = "9a" * 32
TRACEPARENT = "00-4bf92f3577b34da64bf92f3577b34da6-00f067aa0ba902b7-01"

_GOAL = {
    "statement": "Fix the login failure",
    "scope": {"include": ["src/auth", "tests/login"], "exclude": ["public_api"]},
    "acceptance": ["test_login_refresh passes"],
    "constraints": ["no new dependency"],
}
_WORKSPACE = {
    "workspace_id": "ws_1",
    "base_commit": "c0",
    "current_commit": "c1",
    "uncommitted_changes": "artifact://diff/1",
}
_AGENT_VERSION = {"model": "m1", "prompt": "p7"}
_TASK = {"id": "task_3", "title": "find it", "depends_on": ["task_1"], "scope": ["src/auth"]}

_MAXIMAL: dict[str, dict[str, Any]] = {
    "RunStarted": {
        "goal": _GOAL,
        "budgets": {"tokens_remaining": 90_000, "deadline": TIME},
        "agent_version": _AGENT_VERSION,
        "workspace": _WORKSPACE,
        "retry_limit": 5,
        "labels": {"team": "a"},
        "rules_version": 1,
        "forked_from": {"run_id": "run_1", "revision": 7, "chain": SHA256},
    },
    "RunTransitioned": {"to": "planning", "reason": "next"},
    "PlanAdopted": {"tasks": [_TASK]},
    "PhaseChanged": {"phase": "diagnose"},
    "GoalChanged": {"goal": _GOAL, "reason": "the scope grew"},
    "RunCancelled": {"reason": "stop"},
    "PermissionRevoked": {"permission": "tool:run_*", "reason": "too costly"},
    "PermissionRestored": {"permission": "effect:create_order", "reason": "settled"},
    "BudgetSet": {"tokens_remaining": 5_000, "deadline": TIME},
    "AgentVersionChanged": {"agent_version": _AGENT_VERSION},
    "RulesActivated": {"rules_version": 1},
    "RunReleased": {"reason": "looked at"},
    "RunFinished": {"result": "completed", "reason": "done", "result_ref": REFERENCE},
    "FactConfirmed": {
        "fact": {
            "id": "fact_12",
            "statement": "session token uses RS256",
            "evidence": REFERENCE,
            "observed_at": TIME,
            "scope": ["src/auth"],
        },
        "replaces_hypothesis_id": "hyp_4",
        "supersedes_fact_id": "fact_1",
    },
    "FactRetracted": {"fact_id": "fact_12", "reason": "a misreading"},
    "HypothesisProposed": {
        "hypothesis": {
            "id": "hyp_4",
            "statement": "override order changed",
            "confidence": "0.66",
            "falsifier": "run the config parser tests",
        }
    },
    "HypothesisRevised": {"hypothesis_id": "hyp_4", "confidence": "0.9", "reason": "more seen"},
    "HypothesisFalsified": {"hypothesis_id": "hyp_4", "evidence": REFERENCE},
    "QuestionOpened": {"question": {"id": "q_1", "text": "Does the fixture pin HS256?"}},
    "QuestionAnswered": {"question_id": "q_1", "answer": "yes", "evidence": REFERENCE},
    "EnvironmentObserved": {
        "subject": "file://src/auth/config.ts",
        "observed_state": "algorithm=RS256",
        "observed_at": TIME,
        "observed_version": "sha256:9a2",
        "evidence": REFERENCE,
    },
    "ArtifactAdded": {
        "artifact": {
            "id": "art_1",
            "uri": "artifact://patch/1",
            "sha256": SHA256,
            "media_type": "text/x-diff",
        }
    },
    "TaskAdded": {"task": _TASK},
    "TaskStarted": {"task_id": "task_3", "worker": "worker-1"},
    "TaskBlocked": {"task_id": "task_3", "reason": "no access"},
    "TaskUnblocked": {"task_id": "task_3"},
    "TaskCompleted": {"task_id": "task_3", "evidence": REFERENCE},
    "TaskFailed": {"task_id": "task_3", "reason": "the tests fail"},
    "TaskCancelled": {"task_id": "task_3", "reason": "not needed"},
    "ToolStarted": {
        "step_id": "step_19",
        "tool": "run_test",
        "task_id": "task_3",
        "arguments": {"path": "tests/login", "flags": ["-x"]},
    },
    "ToolSucceeded": {"step_id": "step_19", "result_ref": REFERENCE, "result": {"passed": 3}},
    "ToolFailed": {"step_id": "step_19", "error": "exit 1", "recoverable": True},
    "WaitStarted": {
        "kind": "approval",
        "key": "approval",
        "reason": "may it be merged?",
        "deadline": TIME,
    },
    "SignalReceived": {"key": "approval", "signal_id": "sig_1", "payload": {"ok": True}},
    "WaitTimedOut": {"key": "approval"},
    "BudgetSpent": {
        "tokens": 900,
        "reason": "model",
        "usage": {"model": "m1", "input": 7, "cost": 0.25},
    },
    "EffectIntended": {
        "effect": {
            "id": "eff_1",
            "kind": "create_order",
            "target": "order://order_9",
            "idempotency_key": "k1",
        },
        "requires": [{"subject": "file://src/auth/config.ts", "observed_version": "sha256:9a2"}],
    },
    "EffectSucceeded": {"effect_id": "eff_1", "result_ref": REFERENCE},
    "EffectFailed": {"effect_id": "eff_1", "error": "refused"},
    "EffectUnknown": {"effect_id": "eff_1", "reason": "time-out"},
    "EffectReconciled": {"effect_id": "eff_1", "outcome": "succeeded", "evidence": REFERENCE},
    "WorkspaceMoved": {"workspace": _WORKSPACE},
    "CheckpointTaken": {
        "checkpoint": {
            "id": "cp_1",
            "boundary": "tasks_done",
            "task_id": "task_3",
            "note": "green",
            "data": {"seed": 7},
        }
    },
    "LeaseAcquired": {"worker": "worker-1", "ttl_seconds": 60},
    "LeaseRenewed": {"ttl_seconds": 60},
    "LeaseReleased": {},
    "ConflictResolved": {
        "conflict_id": BATCH_ID,
        "resolution": "keep_current",
        "reason": "seen",
    },
    "Recorded": {"name": "note", "payload": [1, "two", None]},
}

EVENT_TYPES = tuple(_MAXIMAL)


def maximal(event_type: str) -> dict[str, Any]:
    """A valid event of this type with all its fields."""
    return {"type": event_type, **copy.deepcopy(_MAXIMAL[event_type])}


def minimal(event_type: str) -> dict[str, Any]:
    """A valid event of this type with its required fields only."""
    return {"type": event_type, **_required(FIELDS[event_type], maximal(event_type))}


def _required(record: Record, value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _shrunk(field, value[name]) for name, field in record.fields.items() if field.required
    }


def _shrunk(field: Field, value: Any) -> Any:
    if isinstance(field.kind, Record):
        return _required(field.kind, value)
    if isinstance(field.kind, ListOf) and isinstance(field.kind.item, Record):
        return [_required(field.kind.item, item) for item in value]
    return value


def proposal(*events: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A valid proposal of these events, as JSON; `fields` are added or replace."""
    return {"batch_id": BATCH_ID, "author": dict(AUTHOR), "events": list(events), **fields}
