"""A small strict model of the deciding rules, for what importers propose, and a client made of it.

It knows the events that importers write and refuses everything else, also what the real rules
would let pass: each proposal but the first must expect exactly the revision there is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
REFERENCE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f\x7f]+")
MOVES = {("start", "planning"), ("planning", "running")}
FIELDS = {
    "RunStarted": ({"goal"}, {"agent_version", "workspace", "labels"}),
    "WorkspaceMoved": ({"workspace"}, set()),
    "RunTransitioned": ({"to"}, set()),
    "Recorded": ({"name"}, {"payload"}),
    "ArtifactAdded": ({"artifact"}, set()),
    "ToolStarted": ({"step_id", "tool"}, {"arguments"}),
    "ToolSucceeded": ({"step_id"}, {"result", "result_ref"}),
    "ToolFailed": ({"step_id", "error", "recoverable"}, set()),
    "EffectIntended": ({"effect"}, set()),
    "EffectSucceeded": ({"effect_id"}, {"result_ref"}),
    "EffectFailed": ({"effect_id", "error"}, set()),
    "EffectUnknown": ({"effect_id", "reason"}, set()),
    "WaitStarted": ({"kind", "key", "reason"}, set()),
    "SignalReceived": ({"key", "signal_id"}, {"payload"}),
    "RunFinished": ({"result"}, {"reason", "result_ref"}),
}
RECORDED = ("message", "transcript", "reward", "step", "observation", "info")
TEXTS = ("error", "reason", "statement")
JSONS = ("payload", "arguments", "result")


def compact(value: Any) -> bytes:
    """Compact JSON in UTF-8, refusing what is no JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def depth(value: Any) -> int:
    """How many levels of objects and lists a value has."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@dataclass
class Model:
    """The state of one run as far as importers touch it; `apply` asserts that a batch is valid."""

    status: str = "none"
    result: str | None = None
    revision: int = 0
    goal: str = ""
    wait: str | None = None
    pending: dict[str, str] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    artifacts: dict[str, str] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)
    batches: set[str] = field(default_factory=set)
    commits: list[str] = field(default_factory=list)

    def apply(self, proposal: dict[str, Any]) -> None:
        """One accepted batch, or AssertionError."""
        assert set(proposal) <= {"batch_id", "author", "events", "expected_revision"}
        assert UUID.fullmatch(proposal["batch_id"])
        assert proposal["batch_id"] not in self.batches
        self.batches.add(proposal["batch_id"])
        author = proposal["author"]
        assert author["kind"] in ("agent", "user", "tool", "system")
        assert 0 < len(author["id"]) <= 2048
        assert proposal.get("expected_revision", 0) == self.revision
        assert self.status != "finish"
        events = proposal["events"]
        assert 0 < len(events) <= 100
        assert depth(proposal) <= 64
        assert len(compact(proposal)) <= 256 * 1024
        for event in events:
            check_shape(event)
            getattr(self, f"on_{event['type']}")(event)
        self.revision += 1

    def take(self, collection: str, name: str) -> None:
        """An id is used once."""
        assert 0 < len(name) <= 2048
        assert (collection, name) not in self.used
        self.used.add((collection, name))

    def on_RunStarted(self, event: dict[str, Any]) -> None:
        assert (self.status, self.revision) == ("none", 0)
        self.status, self.goal = "start", event["goal"]["statement"]

    def on_RunTransitioned(self, event: dict[str, Any]) -> None:
        assert (self.status, event["to"]) in MOVES
        self.status = event["to"]

    def on_Recorded(self, event: dict[str, Any]) -> None:
        assert self.status != "none"
        assert event["name"] in RECORDED

    def on_ArtifactAdded(self, event: dict[str, Any]) -> None:
        artifact = event["artifact"]
        assert set(artifact) == {"id", "uri", "sha256", "media_type"}
        assert artifact["uri"] == f"artifact://sha256/{artifact['sha256']}"
        self.take("artifact", artifact["id"])
        self.artifacts[artifact["id"]] = artifact["uri"]

    def on_ToolStarted(self, event: dict[str, Any]) -> None:
        assert self.status in ("planning", "running")
        assert 0 < len(event["tool"]) <= 2048
        assert isinstance(event.get("arguments", {}), dict)
        self.take("tool", event["step_id"])
        self.pending[event["step_id"]] = event["tool"]

    def on_ToolSucceeded(self, event: dict[str, Any]) -> None:
        del self.pending[event["step_id"]]
        assert not {"result", "result_ref"} <= set(event)

    def on_ToolFailed(self, event: dict[str, Any]) -> None:
        del self.pending[event["step_id"]]
        assert event["recoverable"] is False

    def on_EffectIntended(self, event: dict[str, Any]) -> None:
        effect = event["effect"]
        assert self.status == "running"
        assert set(effect) == {"id", "kind", "target", "idempotency_key"}
        assert REFERENCE.fullmatch(effect["target"])
        assert max(map(len, effect.values())) <= 2048
        assert effect["idempotency_key"] not in self.keys
        self.keys.add(effect["idempotency_key"])
        self.take("effect", effect["id"])
        self.effects[effect["id"]] = "intended"

    def on_EffectSucceeded(self, event: dict[str, Any]) -> None:
        self.settle(event, "succeeded")

    def on_EffectFailed(self, event: dict[str, Any]) -> None:
        self.settle(event, "failed")

    def on_EffectUnknown(self, event: dict[str, Any]) -> None:
        self.settle(event, "unknown")

    def settle(self, event: dict[str, Any], outcome: str) -> None:
        """An outcome, of an effect that is intended."""
        assert self.effects[event["effect_id"]] == "intended"
        self.effects[event["effect_id"]] = outcome

    def on_WorkspaceMoved(self, event: dict[str, Any]) -> None:
        workspace = event["workspace"]
        assert {"workspace_id", "current_commit"} <= set(workspace)
        assert set(workspace) <= {"workspace_id", "current_commit", "base_commit"}
        assert 0 < len(workspace["workspace_id"]) <= 2048
        self.commits.append(workspace["current_commit"])

    def on_WaitStarted(self, event: dict[str, Any]) -> None:
        assert (self.status, self.wait, event["kind"]) == ("running", None, "user")
        self.status, self.wait = "waiting", event["key"]

    def on_SignalReceived(self, event: dict[str, Any]) -> None:
        self.take("signal", event["signal_id"])
        assert (self.status, self.wait) == ("waiting", event["key"])
        self.status, self.wait = "running", None

    def on_RunFinished(self, event: dict[str, Any]) -> None:
        if event["result"] == "completed":
            assert self.status == "running"
            assert not self.pending
            assert not {"intended", "unknown"} & set(self.effects.values())
        else:
            assert event["result"] == "failed"
        self.status, self.result = "finish", event["result"]


def check_shape(event: dict[str, Any]) -> None:
    """Fields and limits of one event."""
    required, optional = FIELDS[event["type"]]
    assert required <= set(event) - {"type"} <= required | optional
    assert None not in event.values()
    for name in TEXTS:
        text = event.get(name, event.get("goal", {}).get(name, ""))
        assert len(text.encode()) <= 8192
    for name in JSONS:
        assert len(compact(event.get(name))) <= 65536
    assert REFERENCE.fullmatch(event.get("result_ref", "x:y"))


@dataclass
class Answer:
    """An outcome as the client gives it."""

    outcome: str
    duplicate: bool = False
    code: str | None = None
    message: str | None = None


@dataclass
class ModelRun:
    """A run of the model's client."""

    model: Model = field(default_factory=Model)
    known: dict[str, tuple[bytes, Answer]] = field(default_factory=dict)

    def propose_json(self, value: Any) -> Answer:
        """The first answer again for a known batch id; RUN_EXISTS; else accepted."""
        content = compact(value)
        if value["batch_id"] in self.known:
            before, answer = self.known[value["batch_id"]]
            assert before == content, "BATCH_ID_REUSED"
            return Answer(answer.outcome, True, answer.code, answer.message)
        answer = Answer("accepted")
        if value["events"][0]["type"] == "RunStarted" and self.model.revision:
            answer = Answer("rejected", code="RUN_EXISTS", message="the run exists")
        else:
            self.model.apply(value)
        self.known[value["batch_id"]] = content, answer
        return answer


class ModelEngine:
    """The client, in memory; `stop_after` proposals it is as if the process had died."""

    def __init__(self) -> None:
        self.runs: dict[str, ModelRun] = {}
        self.stop_after: int | None = None

    def run(self, run_id: str, /) -> ModelEngineRun:
        """A run, begun or not."""
        return ModelEngineRun(self, self.runs.setdefault(run_id, ModelRun()))


@dataclass
class ModelEngineRun:
    """Counts down to the engine's end, then hands over."""

    engine: ModelEngine
    inner: ModelRun

    def propose_json(self, value: Any) -> Answer:
        """What the run answers, or ConnectionError."""
        if self.engine.stop_after is not None:
            if self.engine.stop_after == 0:
                raise ConnectionError
            self.engine.stop_after -= 1
        return self.inner.propose_json(value)
