"""Appends to the golden projection the cases it lacks: `python -m tests.projection_golden`.

`tests/golden/projection-N.json`, N the state format (format 1: `projection.json`): case -> the
proposals, their outcomes, and every key and value that they leave in the store. A key is a text
with a character for each byte; a value is its text, those of batch ids (`b`) and places of records
(`r`) are hex.

Invariants:
- What the golden file has is kept as it is: a change of these bytes is a NEW STATE FORMAT. Raise
  STATE_FORMAT in foldlog/wire/slots.py, lift the old one, and begin a golden file beside the old.
- The real decider, codec and fold run; identity, decider, build and clock are fixed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

from foldlog.testing import Engine
from foldlog.wire.slots import STATE_FORMAT
from tests.seats import holder_of

FOLDER = Path(__file__).parent / "golden"
FILES = {1: FOLDER / "projection.json", 2: FOLDER / "projection-2.json"}
"""By state format; only the newest grows, the others stay to be lifted."""

TABLES = "00112233445566778899aabbccddeeff"
IDENTITY = "00112233445566778899aabbccddeeff"
DECIDER = "golden:1:1767225600"
BUILD = "0.1.0"
SECONDS = 60  # between two proposals

RUN = "run_1"
USER = {"kind": "user", "id": "ada"}
AGENT = {"kind": "agent", "id": "worker-1"}
SYSTEM = {"kind": "system", "id": "timekeeper"}

Json = dict[str, Any]


def _batch_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def _by(author: Json, *events: Json, expected: int | None = None, **more: Any) -> Json:
    """A proposal; its batch id is its place in its case, unless it is given."""
    return {"author": author, "expected_revision": expected, "events": list(events), **more}


def _event(type: str, **fields: Any) -> Json:
    return {"type": type, **fields}


def _to(status: str) -> Json:
    return _event("RunTransitioned", to=status)


def _task(id: str, **fields: Any) -> Json:
    return _event("TaskAdded", task={"id": id, "title": f"title of {id}", **fields})


def _start(**fields: Any) -> Json:
    return _by(USER, _event("RunStarted", goal={"statement": "Fix the login é"}, **fields))


def _effect(id: str, key: str) -> Json:
    effect = {"id": id, "kind": "mail", "target": "mail://ada", "idempotency_key": key}
    return _event("EffectIntended", effect=effect)


def _fact(id: str, **fields: Any) -> Json:
    fact = {"id": id, "statement": f"statement of {id}", "evidence": "artifact://1"}
    return _event("FactConfirmed", fact=fact, **fields)


def _guess(id: str) -> Json:
    hypothesis = {"id": id, "statement": "s", "confidence": 0.66, "falsifier": "f"}
    return _event("HypothesisProposed", hypothesis=hypothesis)


def _wait(kind: str, key: str, **fields: Any) -> Json:
    return _event("WaitStarted", kind=kind, key=key, reason="r", **fields)


RUNNING = _by(AGENT, _to("planning"), _to("running"), expected=1)
CALL = _event("ToolStarted", step_id="step_1", tool="run_test", arguments={"n": 1, "b": [0.5]})
WORKSPACE = {"workspace_id": "ws_1", "base_commit": "abc"}
SEEN = _event(
    "EnvironmentObserved",
    subject="file://a",
    observed_state="s",
    observed_at="2026-08-11T16:22:10+08:00",
    observed_version="v1",
)
FULL_START = _start(
    budgets={"tokens_remaining": 1000, "deadline": "2026-08-11T18:00:00+08:00"},
    agent_version={"model": "m-1"},
    workspace=WORKSPACE,
    retry_limit=5,
    labels={"team": "web"},
    forked_from={"run_id": "run_0", "revision": 7, "chain": "ab" * 32},
)
CHECKPOINT = {"id": "c1", "boundary": "before_effect", "data": {"x": None}}
NARROWER = {"statement": "g", "scope": {"include": ["x"]}}
ARBITRATED: Json = {"expected": 1, "on_conflict": "arbitrate"}

CASES: dict[str, list[Json]] = {
    "header and singles": [
        FULL_START,
        _by(AGENT, _event("PhaseChanged", phase="diagnose"), _to("planning"), expected=1),
        _by(AGENT, _event("BudgetSpent", tokens=10, usage={"model": "m-1"})),
        _by(AGENT, _event("WorkspaceMoved", workspace={**WORKSPACE, "current_commit": "d"}),
            expected=3),
        _by(USER, _event("PermissionRevoked", permission="tool:*", reason="r")),
        _by(USER, _event("PermissionRestored", permission="tool:*", reason="r")),
        _by(USER, _event("PermissionRevoked", permission="effect:mail", reason="r")),
        _by(USER, _event("RunFinished", result="failed", reason="given up"), expected=7),
    ],
    "tasks and plan": [
        _start(),
        _by(AGENT, _to("planning"), _task("a"), _task("b", depends_on=["a"]), _task("c"),
            expected=1),
        _by(AGENT, _to("running"), _event("TaskStarted", task_id="a"), expected=2),
        _by(AGENT, _event("TaskStarted", task_id="c", worker="worker-2"), expected=3),
        _by(AGENT, _event("TaskBlocked", task_id="c", reason="no key"), expected=4),
        _by(AGENT, _event("PlanAdopted", tasks=[{"id": "d", "title": "t", "scope": ["src"]}]),
            expected=5),
        _by(AGENT, _event("TaskCompleted", task_id="a", evidence="artifact://2"), expected=6),
        _by(AGENT, _task("e")),
        _by(USER, _event("GoalChanged", goal=NARROWER, reason="r")),
        _by(AGENT, _event("TaskStarted", task_id="e"), expected=9),
    ],
    "knowledge": [
        _start(),
        _by(AGENT, _fact("f1"), _guess("h1"), _guess("h2"), _guess("h3")),
        _by(AGENT, _fact("f2", replaces_hypothesis_id="h1", supersedes_fact_id="f1"), expected=2),
        _by(AGENT, _event("HypothesisRevised", hypothesis_id="h2", confidence="0.10"),
            _event("HypothesisFalsified", hypothesis_id="h3", evidence="artifact://3"),
            expected=3),
        _by(AGENT, _event("QuestionOpened", question={"id": "q1", "text": "?"}),
            _event("QuestionOpened", question={"id": "q2", "text": "?"}),
            _event("ArtifactAdded", artifact={"id": "art_1", "uri": "artifact://1"}), SEEN),
        _by(AGENT, _event("QuestionAnswered", question_id="q1", answer="yes"),
            _event("FactRetracted", fact_id="f2", reason="r"), _fact("f3"), expected=5),
    ],
    "tools and effects": [
        _start(),
        RUNNING,
        _by(AGENT, CALL, {**CALL, "step_id": "step_2"}, {**CALL, "step_id": "step_3"}),
        _by(AGENT, _event("ToolSucceeded", step_id="step_1", result_ref="artifact://4")),
        _by(AGENT, _effect("e1", "k1"), _effect("e2", "k2"), _effect("e3", "k3"), expected=4),
        _by(AGENT, _event("EffectFailed", effect_id="e1", error="x")),
        _by(AGENT, _event("EffectUnknown", effect_id="e2", reason="time-out")),
        _by(AGENT, _effect("e4", "k1"), expected=7),
        _by(AGENT, _event("CheckpointTaken", checkpoint=CHECKPOINT)),
        _by(AGENT, _event("ToolFailed", step_id="step_2", error="x", recoverable=True)),
    ],
    "waits, signals and deadlines": [
        _start(),
        _by(USER, _event("SignalReceived", key="k", signal_id="s1", payload={"n": 1})),
        _by(USER, _event("SignalReceived", key="k", signal_id="s2")),
        _by(AGENT, _to("planning"), expected=1),
        _by(AGENT, _wait("user", "k"), expected=4),
        _by(AGENT, _wait("timer", "old", deadline="1969-12-31T23:59:59.999999999Z"), expected=5),
        _by(SYSTEM, _event("WaitTimedOut", key="old")),
        _by(AGENT, _wait("approval", "z", deadline="2026-08-11T18:00:00.5+08:00"), expected=7),
    ],
    "lease": [
        _start(),
        _by(AGENT, _event("LeaseAcquired", worker="worker-1", ttl_seconds=30)),
        _by(AGENT, _event("LeaseReleased")),
        _by(AGENT, _event("LeaseAcquired", worker="worker-1", ttl_seconds=86_400)),
    ],
    "rejected, duplicate, reused, arbitration, settled": [
        _start(),
        RUNNING,
        {**RUNNING, "batch_id": _batch_id(2)},
        {**RUNNING, "batch_id": _batch_id(2), "expected_revision": 0},
        _by(AGENT, _to("planning"), expected=1),
        _by(AGENT, _event("PhaseChanged", phase="p"), _to("planning"), **ARBITRATED),
        _by(AGENT, _event("PhaseChanged", phase="q"), _to("planning"), **ARBITRATED),
        _by(USER, _event("ConflictResolved", conflict_id=_batch_id(6), reason="r",
                         resolution="take_proposed")),
    ],
    "archived": [
        _start(),
        _by(USER, _event("RunCancelled", reason="r")),
        _by(USER, _event("RunArchived")),
        _by(AGENT, _event("BudgetSpent", tokens=1)),
    ],
    "no run, then a quarantine": [
        _by(AGENT, _event("QuestionOpened", question={"id": "q", "text": ""})),
        _start(),
        _by(AGENT, _event("Recorded", name="n", payload=1)),
        _by(AGENT, _event("QuestionOpened", question={"id": "q", "text": ""})),
    ],
}  # fmt: skip
RAISE_IN = "Recorded"  # nothing else records, so only the last case meets it


def replayed(proposals: list[Json]) -> Json:
    """A golden entry: what these proposals leave in a new store."""
    with (
        mock.patch("foldlog.turn.__version__", BUILD),
        Engine(timekeeper=False, raise_in=RAISE_IN) as engine,
    ):
        partition = holder_of(engine).held[0].partition
        partition.decider = DECIDER
        partition.meta = partition.meta._replace(identity=IDENTITY, tables=TABLES)
        outcomes = []
        for proposal in proposals:
            outcome = engine.run(RUN).propose_json(proposal)
            outcomes.append(outcome.code or outcome.outcome)
            engine.clock.advance(SECONDS)
        stored = {_text(key): _shown(key, value) for key, value in partition.store.scan(b"")}
    return {"proposals": proposals, "outcomes": outcomes, "stored": stored}


def _text(key: bytes) -> str:
    return key.decode("latin-1")


def _shown(key: bytes, value: bytes) -> str:
    return value.hex() if key[:1] in b"br" else value.decode()


def load(format: int = STATE_FORMAT) -> dict[str, Json]:
    """What the golden file of a state format has; nothing if it is not there."""
    return json.loads(FILES[format].read_bytes()) if FILES[format].exists() else {}


def bytes_of(key: str, value: str) -> tuple[bytes, bytes]:
    """A key and value of the golden file as they are stored."""
    raw = key.encode("latin-1")
    return raw, bytes.fromhex(value) if raw[:1] in b"br" else value.encode()


def main() -> None:
    """Add the cases that the golden file lacks."""
    kept = load()
    for name, proposals in CASES.items():
        if name not in kept:
            numbered = [
                {"batch_id": _batch_id(number), **proposal}
                for number, proposal in enumerate(proposals, 1)
            ]
            kept[name] = replayed(numbered)
    text = json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=True)
    FILES[STATE_FORMAT].write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
