"""What every importer shares: a script of proposals, counted and named by its own content.

An importer says *who* proposes *which events*, in order. `Script` makes whole proposals (CONTRACT
section 2) of that: each expects the revision that the one before it made, and each carries a batch
id derived from everything the script holds.

Invariants:
- Pure: no clock, no randomness, no files. One script, one result, byte for byte.
- Equal batch ids mean equal scripts of equal sources, so an id is never used again for other
  content. A transcript that changed or grew changes *every* id, the first proposal's too: the log
  then answers its RunStarted with RUN_EXISTS before anything of it could reach the run.
- A step's artifacts are named by an ArtifactAdded event of the same step.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foldlog.artifacts import artifact_uri
from foldlog.core import values
from foldlog.core.shapes import JSON_BYTES_MAX
from foldlog.core.values import LEVELS_MAX, TEXT_BYTES_MAX, canonical_json

# Outside a payload are its event, the list of events and the proposal; one level is spare.
DEPTH_MAX = LEVELS_MAX - 4
BATCH_NAMESPACE = uuid.UUID("b06b2a1c-5b0f-5f0e-9d0c-6a3a1d2f7c11")

Author = tuple[str, str]
Event = dict[str, Any]


class Broken(Exception):
    """A transcript that is not what its format says: which field (a dotted path) and why."""

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Artifact:
    """Bytes that are kept outside the log, under their SHA-256; `id` is its id in the run."""

    id: str
    data: bytes
    media_type: str

    @property
    def sha256(self) -> str:
        """64 lower-case hex digits."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def uri(self) -> str:
        """The reference under which events name it."""
        return artifact_uri(self.sha256)

    def event(self) -> Event:
        """The ArtifactAdded event that makes it known to the run."""
        named = {"id": self.id, "uri": self.uri, "sha256": self.sha256}
        return {"type": "ArtifactAdded", "artifact": named | {"media_type": self.media_type}}


@dataclass(frozen=True, slots=True)
class Step:
    """One proposal, and what must be durable before it is proposed."""

    proposal: dict[str, Any]
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, slots=True)
class Translation:
    """A whole run as proposals in order; `notes` say what a reader of the report should know."""

    run_id: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @property
    def proposals(self) -> list[dict[str, Any]]:
        """The proposals alone, in order."""
        return [step.proposal for step in self.steps]

    @property
    def artifacts(self) -> list[Artifact]:
        """All artifacts, in the order in which the proposals name them."""
        return [artifact for step in self.steps for artifact in step.artifacts]


Translate = Callable[[Any], Translation]


class Script:
    """Collects steps; `finish` numbers and names them.

    `source` is the transcript as JSON: two that differ are two imports, even where the events do
    not tell them apart (a greeting before the goal or after it).
    """

    def __init__(self, run_id: str, source: Any) -> None:
        self.run_id = run_id
        self._source = source
        self.notes: list[str] = []
        self._steps: list[tuple[Author, list[Event], tuple[Artifact, ...]]] = []

    def add(self, author: Author, events: list[Event], *artifacts: Artifact) -> None:
        """One more proposal; the artifacts' own events go to its end."""
        named = [artifact.event() for artifact in artifacts]
        self._steps.append((author, events + named, artifacts))

    def finish(self) -> Translation:
        """The proposals, complete with batch ids and expected revisions."""
        events_by_author = [[author, events] for author, events, _ in self._steps]
        content = canonical_json([self.run_id, self._source, events_by_author])
        digest = hashlib.sha256(content.encode()).hexdigest()
        steps = []
        for place, (author, events, artifacts) in enumerate(self._steps):
            proposal: dict[str, Any] = {
                "batch_id": str(uuid.uuid5(BATCH_NAMESPACE, f"{digest}/{place}")),
                "author": {"kind": author[0], "id": author[1]},
                "events": events,
            }
            # The first one starts the run and needs none; every accepted batch is one revision.
            if place:
                proposal["expected_revision"] = place
            steps.append(Step(proposal, artifacts))
        return Translation(self.run_id, tuple(steps), tuple(self.notes))


def cut_text(text: str, limit: int = TEXT_BYTES_MAX) -> str:
    """The longest beginning of `text` within `limit` bytes of UTF-8, ending on a character."""
    if values.fits(text, limit):
        return text
    return text.encode()[:limit].decode(errors="ignore")


def keep_text(text: str, artifact_id: str) -> tuple[str, tuple[Artifact, ...]]:
    """A text as a field may hold it, and the artifact that keeps it whole if it had to be cut."""
    cut = cut_text(text)
    return cut, () if cut == text else (_artifact(artifact_id, text),)


def keep_json(value: Any, artifact_id: str) -> tuple[Any, tuple[Artifact, ...]]:
    """A value as a payload may hold it: itself, or `{"artifact": URI}` where it is too large."""
    if fits(value):
        return value, ()
    artifact = _artifact(artifact_id, value)
    return {"artifact": artifact.uri}, (artifact,)


def recorded(name: str, payload: Any) -> Event:
    """A Recorded event: kept in the history, no part of the state."""
    return {"type": "Recorded", "name": name, "payload": payload}


def record(events: list[Event], name: str, value: Any, artifact_id: str) -> tuple[Artifact, ...]:
    """Add a Recorded event with the value, or with the artifact that keeps it."""
    payload, artifacts = keep_json(value, artifact_id)
    events.append(recorded(name, payload))
    return artifacts


def fits(value: Any) -> bool:
    """Whether a payload, arguments or result may hold the value (64 KiB of compact JSON)."""
    return _depth(value) <= DEPTH_MAX and values.fits(canonical_json(value), JSON_BYTES_MAX)


def _artifact(artifact_id: str, value: Any) -> Artifact:
    if isinstance(value, str):
        return Artifact(artifact_id, value.encode(), "text/plain;charset=utf-8")
    return Artifact(artifact_id, canonical_json(value).encode(), "application/json")


def _depth(value: Any) -> int:
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list):
        inner = value
    else:
        return 0
    return 1 + max(map(_depth, inner), default=0)
