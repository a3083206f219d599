"""One likely event of a given type for a run as it stands: what an agent that looks would propose.

Invariants:
- The same document and the same randomness give the same event.
- Most events are accepted by the run they were made for; the rest is refused by a rule, never
  malformed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from foldlog.core.values import format_instant, parse_instant

SECOND = 1_000_000
WORKERS = ("worker-1", "worker-2", "worker-3")
SUBJECTS = ("file://a", "file://b", "env:node")
KEYS = ("approval", "timer", "build")
TOOLS = ("run_test", "run_lint", "read")
EFFECT_KINDS = ("mail", "order")
PATHS = ("src", "./src/auth", "src/auth/", "/tests", "docs", "tests/login")
PERMISSIONS = ("tool:run_test", "tool:run_*", "effect:mail", "effect:*", "tool:read")


class View:
    """What a proposer sees: the document, the log's time (microseconds), and its own dice.

    New ids are drawn from so many per collection; from a few, they are mostly used already.
    """

    def __init__(self, doc: dict[str, Any], now: int, rng: random.Random, ids: int = 10**9) -> None:
        self.doc, self.now, self.rng, self.ids = doc, now, rng, ids

    def pick(self, items: Any) -> Any:
        """One of the items, or None if there are none."""
        items = list(items)
        return self.rng.choice(items) if items else None

    def chance(self, share: float) -> bool:
        """True in that share of all cases."""
        return self.rng.random() < share

    def fresh(self, prefix: str) -> str:
        """An id that was hardly used before, unless ids are few."""
        return f"{prefix}_{self.rng.randrange(self.ids)}"

    def time(self, low: int, high: int) -> str:
        """A time so many seconds from now."""
        return format_instant(self.now + self.rng.randint(low, high) * SECOND)

    def task(self, *statuses: str) -> str | None:
        """The id of a task with one of these statuses."""
        return self.pick(t["id"] for t in self.doc["tasks"] if t["status"] in statuses)

    def scope(self) -> list[str]:
        """A few paths."""
        return self.rng.sample(PATHS, self.rng.randint(0, 2))


Maker = Callable[[View], dict[str, Any] | None]
MAKERS: dict[str, Maker] = {}


def maker(*types: str) -> Callable[[Maker], Maker]:
    """Note a function as the one that makes events of these types."""

    def note(make: Maker) -> Maker:
        for type in types:
            MAKERS[type] = make
        return make

    return note


def likely(type: str, view: View) -> dict[str, Any] | None:
    """An event of this type that the run would take, or None if there is none."""
    fields = MAKERS[type](view)
    return None if fields is None else {"type": type, **fields}


def goal(view: View) -> dict[str, Any]:
    """A goal, with a scope now and then."""
    value: dict[str, Any] = {"statement": f"goal {view.rng.randint(0, 3)}"}
    if view.chance(0.6):
        value["scope"] = {"include": view.scope(), "exclude": view.scope()[:1]}
    return value


def workspace(view: View) -> dict[str, Any]:
    """A workspace at some commit."""
    return {"workspace_id": "ws", "current_commit": f"c{view.rng.randint(0, 5)}"}


@maker("RunStarted")
def _run_started(view: View) -> dict[str, Any]:
    fields: dict[str, Any] = {"goal": goal(view)}
    if view.chance(0.5):
        fields["budgets"] = {"tokens_remaining": 90_000, "deadline": view.time(20_000, 90_000)}
    if view.chance(0.5):
        fields["workspace"] = workspace(view)
    if view.chance(0.5):
        fields["retry_limit"] = view.rng.randint(1, 3)
    return fields


@maker("RunTransitioned")
def _run_transitioned(view: View) -> dict[str, Any] | None:
    targets = {
        "start": ["planning"],
        "planning": ["running"],
        "running": ["planning"],
        "waiting": ["planning"],
        "retry": ["running", "running", "start"],
    }
    if view.doc["retry_count"] >= view.doc["retry_limit"]:
        targets["retry"] = ["start"]
    to = view.pick(targets.get(view.doc["status"], ["planning"]))
    return {"to": to, **({"reason": "next"} if view.chance(0.3) else {})}


@maker("PlanAdopted")
def _plan_adopted(view: View) -> dict[str, Any] | None:
    if view.doc["status"] not in ("planning", "running"):
        return None
    tasks = []
    for task in view.doc["tasks"]:
        if task["status"] == "pending" and view.chance(0.7):
            kept = {"id": task["id"], "title": task["title"]}
            if task["scope"]:
                kept["scope"] = task["scope"]
            tasks.append(kept)
    stays = [t["id"] for t in view.doc["tasks"] if t["status"] in ("completed", "running")]
    for _ in range(view.rng.randint(0, 2)):
        new: dict[str, Any] = {"id": view.fresh("task"), "title": "planned", "scope": view.scope()}
        known = stays + [task["id"] for task in tasks]
        if known and view.chance(0.4):
            new["depends_on"] = view.rng.sample(known, 1)
        tasks.append(new)
    return {"tasks": tasks}


@maker("PhaseChanged")
def _phase_changed(view: View) -> dict[str, Any]:
    return {"phase": view.pick(("diagnose", "fix", "verify"))}


@maker("GoalChanged")
def _goal_changed(view: View) -> dict[str, Any]:
    return {"goal": goal(view), "reason": "the customer called"}


@maker("RunCancelled", "RunReleased")
def _only_a_reason(view: View) -> dict[str, Any]:
    return {"reason": "enough"}


@maker("PermissionRevoked")
def _permission_revoked(view: View) -> dict[str, Any]:
    return {"permission": view.pick(PERMISSIONS), "reason": "costly"}


@maker("PermissionRestored")
def _permission_restored(view: View) -> dict[str, Any]:
    revoked = view.doc["permissions_revoked"] or PERMISSIONS
    return {"permission": view.pick(revoked), "reason": "settled"}


@maker("BudgetSet")
def _budget_set(view: View) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if view.chance(0.7):
        fields["tokens_remaining"] = view.pick((None, 0, 500, 50_000, 90_000))
    if view.chance(0.5):
        fields["deadline"] = view.pick((None, None, view.time(-5, 90_000)))
    return fields


@maker("AgentVersionChanged")
def _agent_version_changed(view: View) -> dict[str, Any]:
    return {"agent_version": {"model": f"m{view.rng.randint(1, 3)}"}}


@maker("RulesActivated")
def _rules_activated(view: View) -> dict[str, Any]:
    return {"rules_version": view.pick((1, 2))}


@maker("RunFinished")
def _run_finished(view: View) -> dict[str, Any]:
    doubt = any(effect["status"] in ("intended", "unknown") for effect in view.doc["effects"])
    busy = doubt or view.doc["pending_tool_calls"] or view.doc["active_task_id"]
    done = view.doc["status"] == "running" and not busy
    return {"result": "completed" if done else "failed"}


@maker("FactConfirmed")
def _fact_confirmed(view: View) -> dict[str, Any]:
    fact: dict[str, Any] = {"id": view.fresh("fact"), "statement": "so it is"}
    if view.chance(0.9):
        fact["evidence"] = "test:1"
    if view.chance(0.3):
        fact |= {"scope": view.scope(), "observed_at": view.time(-90, 90)}
    fields: dict[str, Any] = {"fact": fact}
    if view.doc["hypotheses"] and view.chance(0.25):
        fields["replaces_hypothesis_id"] = view.pick(view.doc["hypotheses"])["id"]
    if view.doc["confirmed_facts"] and view.chance(0.25):
        fields["supersedes_fact_id"] = view.pick(view.doc["confirmed_facts"])["id"]
    return fields


@maker("FactRetracted")
def _fact_retracted(view: View) -> dict[str, Any] | None:
    fact = view.pick(view.doc["confirmed_facts"])
    return fact and {"fact_id": fact["id"], "reason": "a misreading"}


@maker("HypothesisProposed")
def _hypothesis_proposed(view: View) -> dict[str, Any]:
    return {
        "hypothesis": {
            "id": view.fresh("hyp"),
            "statement": "perhaps",
            "confidence": view.pick((0.5, "0.25", 1.0)),
            "falsifier": "run it",
        }
    }


@maker("HypothesisRevised")
def _hypothesis_revised(view: View) -> dict[str, Any] | None:
    hypothesis = view.pick(view.doc["hypotheses"])
    return hypothesis and {
        "hypothesis_id": hypothesis["id"],
        "confidence": view.pick((0.5, 0.75, 0.9)),
    }


@maker("HypothesisFalsified")
def _hypothesis_falsified(view: View) -> dict[str, Any] | None:
    hypothesis = view.pick(view.doc["hypotheses"])
    return hypothesis and {"hypothesis_id": hypothesis["id"], "evidence": "test:2"}


@maker("QuestionOpened")
def _question_opened(view: View) -> dict[str, Any]:
    return {"question": {"id": view.fresh("q"), "text": "why?"}}


@maker("QuestionAnswered")
def _question_answered(view: View) -> dict[str, Any] | None:
    question = view.pick(view.doc["open_questions"])
    return question and {"question_id": question["id"], "answer": "so"}


@maker("EnvironmentObserved")
def _environment_observed(view: View) -> dict[str, Any]:
    fields = {
        "subject": view.pick(SUBJECTS),
        "observed_state": f"state {view.rng.randint(0, 2)}",
        "observed_at": view.pick((view.time(-60, 60), "2026-01-01T00:00:00Z")),
    }
    if view.chance(0.7):
        fields["observed_version"] = f"v{view.rng.randint(0, 2)}"
    return fields


@maker("ArtifactAdded")
def _artifact_added(view: View) -> dict[str, Any]:
    return {"artifact": {"id": view.fresh("art"), "uri": "artifact:1"}}


@maker("TaskAdded")
def _task_added(view: View) -> dict[str, Any]:
    task: dict[str, Any] = {"id": view.fresh("task"), "title": "do it", "scope": view.scope()}
    depends_on = view.task("pending", "running", "completed")
    if depends_on and view.chance(0.3):
        task["depends_on"] = [depends_on]
    return {"task": task}


@maker("TaskStarted")
def _task_started(view: View) -> dict[str, Any] | None:
    if view.doc["status"] != "running":
        return None
    id = view.pick(view.doc["next_task_ids"])
    if id is None or view.chance(0.15):
        id = view.task("running", "pending") or id
    return id and {"task_id": id, **({"worker": view.pick(WORKERS)} if view.chance(0.5) else {})}


def _of_task(*statuses: str, **fields: Any) -> Maker:
    def make(view: View) -> dict[str, Any] | None:
        id = view.task(*statuses)
        return id and {"task_id": id, **fields}  # type: ignore[return-value]

    return make


maker("TaskBlocked")(_of_task("pending", "running", reason="no access"))
maker("TaskUnblocked")(_of_task("blocked"))
maker("TaskCompleted")(_of_task("running", evidence="test:3"))
maker("TaskFailed")(_of_task("running", "blocked", reason="it fails"))
maker("TaskCancelled")(_of_task("pending", "running", "blocked", reason="not needed"))


@maker("ToolStarted")
def _tool_started(view: View) -> dict[str, Any] | None:
    if view.doc["status"] not in ("planning", "running"):
        return None
    fields: dict[str, Any] = {"step_id": view.fresh("step"), "tool": view.pick(TOOLS)}
    task = view.pick(task["id"] for task in view.doc["tasks"])
    if task and view.chance(0.5):
        fields["task_id"] = task
    if view.chance(0.3):
        fields["arguments"] = {"path": "x"}
    return fields


@maker("ToolSucceeded")
def _tool_succeeded(view: View) -> dict[str, Any] | None:
    call = view.pick(view.doc["pending_tool_calls"])
    return call and {"step_id": call["step_id"], "result_ref": "artifact:2"}


@maker("ToolFailed")
def _tool_failed(view: View) -> dict[str, Any] | None:
    call = view.pick(view.doc["pending_tool_calls"])
    return call and {"step_id": call["step_id"], "error": "exit 1", "recoverable": view.chance(0.5)}


@maker("WaitStarted")
def _wait_started(view: View) -> dict[str, Any] | None:
    if view.doc["status"] not in ("planning", "running", "retry"):
        return None
    kind = view.pick(("user", "approval", "timer", "external"))
    fields = {"kind": kind, "key": view.pick(KEYS), "reason": "may it?"}
    if kind == "timer" or view.chance(0.5):
        fields["deadline"] = view.time(1, 300)
    return fields


@maker("SignalReceived")
def _signal_received(view: View) -> dict[str, Any]:
    waiting = view.doc["waiting"]
    key = waiting["key"] if waiting and view.chance(0.5) else view.pick(KEYS)
    return {"key": key, "signal_id": view.fresh("sig"), "payload": {"ok": True}}


@maker("WaitTimedOut")
def _wait_timed_out(view: View) -> dict[str, Any] | None:
    waiting = view.doc["waiting"]
    if waiting is None or waiting["deadline"] is None:
        return None
    due = parse_instant(waiting["deadline"]) <= view.now * 1000
    return {"key": waiting["key"]} if due or view.chance(0.1) else None


@maker("BudgetSpent")
def _budget_spent(view: View) -> dict[str, Any]:
    return {"tokens": view.pick((0, 100, 2000))}


@maker("EffectIntended")
def _effect_intended(view: View) -> dict[str, Any] | None:
    if view.doc["status"] != "running":
        return None
    kind = view.pick(EFFECT_KINDS)
    key = view.fresh("key")
    failed = view.pick(e["idempotency_key"] for e in view.doc["effects"])
    if failed and view.chance(0.2):
        key = failed
    effect = {"id": view.fresh("eff"), "kind": kind, "target": "x:1", "idempotency_key": key}
    fields: dict[str, Any] = {"effect": effect}
    seen = view.pick(o for o in view.doc["environment_observations"] if o["observed_version"])
    if seen and view.chance(0.4):
        version = seen["observed_version"] if view.chance(0.8) else "v9"
        fields["requires"] = [{"subject": seen["subject"], "observed_version": version}]
    return fields


def _of_effect(*statuses: str, **fields: Any) -> Maker:
    def make(view: View) -> dict[str, Any] | None:
        effect = view.pick(e for e in view.doc["effects"] if e["status"] in statuses)
        return effect and {"effect_id": effect["id"], **fields}

    return make


maker("EffectSucceeded")(_of_effect("intended", "unknown", result_ref="artifact:3"))
maker("EffectFailed")(_of_effect("intended", "unknown", error="refused"))
maker("EffectUnknown")(_of_effect("intended", reason="time-out"))


@maker("EffectReconciled")
def _effect_reconciled(view: View) -> dict[str, Any] | None:
    effect = view.pick(e for e in view.doc["effects"] if e["status"] in ("intended", "unknown"))
    outcome = view.pick(("succeeded", "failed"))
    return effect and {"effect_id": effect["id"], "outcome": outcome, "evidence": "test:4"}


@maker("WorkspaceMoved")
def _workspace_moved(view: View) -> dict[str, Any]:
    return {"workspace": workspace(view)}


@maker("CheckpointTaken")
def _checkpoint_taken(view: View) -> dict[str, Any]:
    checkpoint = {"id": view.fresh("cp"), "boundary": "tasks_done", "data": {"n": 1.5}}
    task = view.pick(task["id"] for task in view.doc["tasks"])
    if task and view.chance(0.3):
        checkpoint["task_id"] = task
    return {"checkpoint": checkpoint}


@maker("LeaseAcquired")
def _lease_acquired(view: View) -> dict[str, Any]:
    lease = view.doc["lease"]
    worker = lease["worker"] if lease and view.chance(0.6) else view.pick(WORKERS)
    return {"worker": worker, "ttl_seconds": view.rng.randint(1, 60)}


@maker("LeaseRenewed")
def _lease_renewed(view: View) -> dict[str, Any] | None:
    return {"ttl_seconds": view.rng.randint(1, 60)} if view.doc["lease"] else None


@maker("LeaseReleased")
def _lease_released(view: View) -> dict[str, Any] | None:
    return {} if view.doc["lease"] else None


@maker("ConflictResolved")
def _conflict_resolved(view: View) -> dict[str, Any] | None:
    conflict = view.pick(view.doc["conflicts"])
    resolution = view.pick(("keep_current", "take_proposed", "take_proposed"))
    return conflict and {
        "conflict_id": conflict["id"],
        "resolution": resolution,
        "reason": "looked at",
    }


@maker("Recorded")
def _recorded(view: View) -> dict[str, Any]:
    return {"name": "note", "payload": [1, 2.5, None, {"a": True}]}
