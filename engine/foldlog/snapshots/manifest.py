"""What a snapshot says of itself: where in which log it stands, what made it, and every file.

The bytes are described in FORMAT.md under "Snapshots".

Invariants:
- A manifest that was changed by a bit does not read: it has its own SHA-256.
- Nothing here looks at a file; what is said is compared with the files in ``checking``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foldlog.core.values import canonical_json
from foldlog.errors import SnapshotDamaged
from foldlog.wire.slots import PLACE_FIELDS, Meta

FORMAT = 1
FILE, SHA256 = re.compile("[A-Za-z0-9._-]{1,255}"), re.compile("[0-9a-f]{64}")
"""Of a snapshot's manifest and folder; a greater one is refused."""

MANIFEST_FILE = "manifest.json"
FILES_FOLDER = "files"


@dataclass(frozen=True, slots=True)
class Copied:
    """One file of a snapshot: its name, its size in bytes, its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Versions:
    """What has to be the same for a build to go on from a snapshot.

    ``rules`` has the rows of each version of the rules, event types with their fingerprints;
    ``plug_ins`` names what else takes part in deciding (none so far).
    """

    state_format: int
    schema_version: int
    rules: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plug_ins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A snapshot's manifest.

    ``meta`` is how far its projection is folded, and of which log; ``origin`` names the cluster
    and topics of a log that has them. ``keys`` counts the keys of each kind. ``taken_at`` is for
    people: nothing is decided by it.
    """

    meta: Meta
    versions: Versions
    build: str
    taken_at: str
    origin: Mapping[str, str]
    keys: Mapping[str, int]
    files: tuple[Copied, ...]
    format: int = FORMAT

    @property
    def name(self) -> str:
        """The name of the snapshot's folder: its sequence, and what tells it from others there."""
        return f"{self.meta.sequence:016d}-{_sha256(self._said())[:12]}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(copied.size for copied in self.files)

    def _said(self) -> dict[str, Any]:
        meta = {name: getattr(self.meta, name) for name in PLACE_FIELDS}
        return {
            "format": self.format,
            "log": {**meta, "head": self.meta.head.hex()},
            "versions": {
                "state_format": self.versions.state_format,
                "schema_version": self.versions.schema_version,
                "rules": {version: dict(rows) for version, rows in self.versions.rules.items()},
                "plug_ins": list(self.versions.plug_ins),
            },
            "build": self.build,
            "taken_at": self.taken_at,
            "origin": dict(self.origin),
            "keys": dict(self.keys),
            "files": [[copied.name, copied.size, copied.sha256] for copied in self.files],
        }


def _sha256(said: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest's bytes: canonical JSON, with the SHA-256 of the rest under ``sha256``."""
    said = manifest._said()
    return (canonical_json({**said, "sha256": _sha256(said)}) + "\n").encode()


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in some bytes; SnapshotDamaged unless they are exactly those of one."""
    try:
        said = json.loads(data)
        found = said.pop("sha256")
        if found != _sha256(said):
            raise ValueError("its SHA-256 is not the one it names")
        if said["format"] > FORMAT:
            raise ValueError(f"it has format {said['format']}, this build reads {FORMAT}")
        manifest = _manifest(said)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotDamaged(f"the manifest does not read: {error}") from None
    if encode_manifest(manifest) != data:
        raise SnapshotDamaged("the manifest does not read: it is not in canonical form")
    return manifest


def _manifest(said: dict[str, Any]) -> Manifest:
    log, versions = said["log"], said["versions"]
    for name, size, sha256 in said["files"]:
        # A place elsewhere may be written to by others: a file must not lead out of its folder.
        if not FILE.fullmatch(name) or name in (".", "..") or type(size) is not int or size < 0:
            raise ValueError(f"{name!r} of {size!r} bytes is no file of a snapshot")
        if not SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is no SHA-256")
    return Manifest(
        meta=Meta(
            **{**log, "head": bytes.fromhex(log["head"])},
            format=versions["state_format"],
            tables="",
        ),
        versions=Versions(
            versions["state_format"],
            versions["schema_version"],
            versions["rules"],
            tuple(versions["plug_ins"]),
        ),
        build=said["build"],
        taken_at=said["taken_at"],
        origin=said["origin"],
        keys=said["keys"],
        files=tuple(Copied(*each) for each in said["files"]),
        format=said["format"],
    )


def unusable(manifest: Manifest, here: Versions) -> str | None:
    """Why a build of these versions cannot go on from a snapshot; None if it can.

    One of an older state format is lifted when it is restored.
    """
    there = manifest.versions
    if there.state_format > here.state_format:
        return f"it has state format {there.state_format}, this build {here.state_format}"
    if there.schema_version > here.schema_version:
        return f"it has schema version {there.schema_version}, this build {here.schema_version}"
    for version, rows in there.rules.items():
        if (known := here.rules.get(version)) is None:
            return f"it was made with rules {version}, which this build has not"
        for name in rows:
            if known.get(name) != rows[name]:
                return f"it was made under another rule of {name} (rules {version})"
    for name in there.plug_ins:
        if name not in here.plug_ins:
            return f"it needs the plug-in {name}"
    return None
