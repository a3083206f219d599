"""What a run names as evidence, and whether it can be found.

Invariants:
- The decider never looks: what it decides must not depend on files that come and go. The client
  looks before it hands a proposal in, and ``verify --evidence`` at what stands.
- Only references to files and to artifacts of the home are looked up here; of others only the
  check that the engine was given can tell.
- Everything is only read.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from foldlog.artifacts import ArtifactFolder
from foldlog.core.document import document
from foldlog.core.values import is_plugin_type
from foldlog.views import View
from foldlog.working import Run

Json = dict[str, Any]
EvidenceCheck = Callable[[str], bool]
"""Whether what a reference names is there. What it raises is the caller's to handle."""

_OWN = re.compile("(?:history|effects)://(.+)@rev[0-9]+")
_BY_HASH = re.compile("sha256/([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Named:
    """A reference in an event of a proposal, and where it stands there."""

    event_index: int
    field: str
    reference: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A reference that an entity holds, and the hash of what it names where that is known."""

    entity: str
    revision: int
    reference: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a look for a reference gave; ``trouble`` is None if it is there or cannot be told."""

    told: bool
    trouble: str | None = None


THERE, UNTOLD = Look(True), Look(False)


def named(events: Sequence[Mapping[str, Any]]) -> Iterator[Named]:
    """The evidence that a proposal's events name, in their order."""
    for index, event in enumerate(events):
        if is_plugin_type(event["type"]):
            continue  # what its fields mean is the plug-in's own
        fact = event.get("fact", {})
        for field, holder in (("evidence", event), ("fact.evidence", fact)):
            if "evidence" in holder:
                yield Named(index, field, holder["evidence"])


def is_own(reference: str, *run_ids: str | None) -> bool:
    """Whether foldlog made a reference: it names what one of these runs was at a revision."""
    match = _OWN.fullmatch(reference)
    return match is not None and match[1] in run_ids


def missing(run_id: str, events: Sequence[Mapping[str, Any]], check: EvidenceCheck) -> Named | None:
    """The first evidence that the check does not find; each reference is asked for once.

    The run's own history is there, and a check of the world outside does not know it.
    """
    found: dict[str, bool] = {}
    for each in named(events):
        if is_own(each.reference, run_id):
            continue
        if each.reference not in found:
            found[each.reference] = check(each.reference)
        if not found[each.reference]:
            return each
    return None


# What stands


class Survey:
    """What was found of the evidence that runs name as they stand."""

    def __init__(self, home: Path | None, check: EvidenceCheck | None) -> None:
        self._home = home
        self._check = check
        self._checked = self._untold = 0
        self._missing: list[Json] = []
        self._first: Json | None = None

    def look_at(self, view: View, run_id: str | None = None) -> None:
        """Look for what the runs of a partition name, or one of them."""
        for id in view.run_ids() if run_id is None else [run_id]:
            run = view.run(id)
            if run.header.revision > 0:
                self._look_at_run(view, run)

    def _look_at_run(self, view: View, run: Run) -> None:
        shown = document(run.state())
        parent = (shown["forked_from"] or {}).get("run_id")
        for each in standing(shown):
            own = is_own(each.reference, run.run_id, parent)
            found = UNTOLD if own else look(each, self._home, self._check)
            self._checked += found.told
            self._untold += not found.told
            if found.trouble is not None:
                self._miss(view, run.run_id, each, found.trouble)

    def _miss(self, view: View, run_id: str, each: Standing, trouble: str) -> None:
        row = {"run_id": run_id, "entity": each.entity, "reference": each.reference}
        self._missing.append({**row, "found": trouble})
        if self._first is None:
            self._first = {
                "run_id": run_id,
                "sequence": _made_by(view, run_id, each.revision),
                "what": f"evidence of {each.entity}",
                "expected": each.reference,
                "found": trouble,
            }

    def report(self) -> Json:
        """What ``verify`` reports: all counts, and the first that is missing as the difference."""
        told = {"checked": self._checked, "untold": self._untold, "missing": self._missing}
        return {"ok": not self._missing, "first_difference": self._first, "evidence": told}


def _made_by(view: View, run_id: str, revision: int) -> int | None:
    """The sequence of the record that made a revision."""
    for record in view.records(run_id):
        if record.revision_after == revision:
            return record.sequence
    return None


def standing(document: Json) -> Iterator[Standing]:
    """The references of everything that stands in a document, in the order of its lists."""
    for kind, key, id in (
        ("fact", "confirmed_facts", "id"),
        ("hypothesis", "ruled_out", "id"),
        ("task", "tasks", "id"),
        ("observation", "environment_observations", "subject"),
    ):
        for each in document[key]:
            if each["evidence"] is not None:
                yield Standing(f"{kind}/{each[id]}", each["revision"], each["evidence"])
    for each in document["artifacts"]:
        entity = f"artifact/{each['id']}"
        yield Standing(entity, each["revision"], each["uri"], each["sha256"])


def look(each: Standing, home: Path | None, check: EvidenceCheck | None) -> Look:
    """Look for what a reference names: a file, an artifact of the home, else by the check."""
    scheme, _, rest = each.reference.partition(":")
    try:
        if scheme.lower() == "file":
            return _at(_path_of(each.reference), each.sha256)
        if scheme.lower() == "artifact" and home is not None:
            return _artifact(rest.removeprefix("//"), each.sha256, home)
    except (OSError, ValueError) as error:
        return Look(True, f"cannot be read: {error}")
    if check is None:
        return UNTOLD
    return THERE if check(each.reference) else Look(True, "the engine's check does not find it")


def _path_of(reference: str) -> Path:
    """The path of a file URI. ``file://src/x`` and ``file:src/x`` lie below the current folder."""
    parts = urlsplit(reference)
    host = "" if parts.netloc == "localhost" else parts.netloc
    return Path(unquote(host + parts.path))


def _artifact(name: str, sha256: str | None, home: Path) -> Look:
    match = _BY_HASH.fullmatch(name)
    if match is not None:
        return _at(ArtifactFolder(home).path(match[1]), match[1])
    parts = unquote(name).split("/")
    if not all(part.strip(".") for part in parts):
        return Look(True, "names no artifact of this home")
    return _at(home.joinpath("artifacts", *parts), sha256)


def _at(path: Path, sha256: str | None) -> Look:
    if not path.exists():
        return Look(True, f"{path} is not there")
    if sha256 is not None:
        with open(path, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != sha256:
            return Look(True, f"{path} has SHA-256 {found}, not {sha256}")
    return THERE
