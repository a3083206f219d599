"""What stands at a place of snapshots: the pointer, the manifests as placed there, and their keys.

The bytes are described in FORMAT.md under "Snapshots at a place".

Invariants:
- Both end with their own SHA-256, so one that was changed by a bit does not read.
- A key says in which epoch it was written. What is of an older epoch than the pointer's, and not
  named by what the pointer names, is never named again: whoever would need it writes it anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from foldlog.core.values import canonical_json
from foldlog.errors import SnapshotDamaged
from foldlog.snapshots.manifest import Manifest, decode_manifest, encode_manifest

FORMAT = 1
"""Of what stands at a place; a greater one is refused."""

POINTER = "pointer.json"

_KEY = re.compile("(?:blobs|manifests)/([0-9]{8})/[0-9a-f-]+(?:\\.json)?")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listed:
    """One snapshot that a pointer names; ``reason`` says why it is not to be used, if it is not."""

    name: str
    epoch: int
    sha256: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Pointer:
    """The snapshots of one partition at a place, newest first, and the epoch of what is written."""

    log: str
    partition: int
    epoch: int = 1
    snapshots: tuple[Listed, ...] = ()

    @property
    def good(self) -> tuple[Listed, ...]:
        """Those that nothing bad is known of."""
        return tuple(each for each in self.snapshots if each.reason is None)

    def with_listed(self, *listed: Listed) -> Pointer:
        """The pointer with these in it, in the place of those of their names."""
        found = {each.name: each for each in (*self.snapshots, *listed)}
        return replace(self, snapshots=tuple(found[name] for name in sorted(found, reverse=True)))


@dataclass(frozen=True, slots=True)
class Placed:
    """A snapshot's manifest, and for the SHA-256 of each file the epoch of its blob's key."""

    manifest: Manifest
    epochs: Mapping[str, int] = field(default_factory=dict)

    def keys(self) -> dict[str, str]:
        """The key of each file's blob, by the file's name."""
        return {
            copied.name: blob_key(self.epochs[copied.sha256], copied.sha256)
            for copied in self.manifest.files
        }


def name_of(log: str) -> str:
    """What stands for a log where snapshots of several may lie."""
    return hashlib.sha256(log.encode()).hexdigest()[:16]


def folder_of(log: str, partition: int) -> str:
    """What the keys of a partition's snapshots begin with."""
    return f"{name_of(log)}/{partition}/"


def blob_key(epoch: int, sha256: str) -> str:
    """The key of a file."""
    return f"blobs/{epoch:08d}/{sha256}"


def manifest_key(epoch: int, name: str) -> str:
    """The key of a placed manifest."""
    return f"manifests/{epoch:08d}/{name}.json"


def epoch_of(key: str) -> int | None:
    """The epoch in a key; None if it is none of ours, or the pointer's."""
    match = _KEY.fullmatch(key)
    return None if match is None else int(match[1])


def encode_pointer(pointer: Pointer) -> bytes:
    """A pointer's bytes."""
    listed = [
        {"name": each.name, "epoch": each.epoch, "sha256": each.sha256, "reason": each.reason}
        for each in pointer.snapshots
    ]
    return _sealed(
        {
            "format": FORMAT,
            "log": pointer.log,
            "partition": pointer.partition,
            "epoch": pointer.epoch,
            "snapshots": listed,
        }
    )


def decode_pointer(data: bytes) -> Pointer:
    """The pointer in some bytes; SnapshotDamaged unless they are exactly those of one."""

    def read(said: dict[str, Any]) -> Pointer:
        listed = tuple(Listed(**each) for each in said["snapshots"])
        return Pointer(said["log"], said["partition"], said["epoch"], listed)

    return _opened(data, "the pointer", read, encode_pointer)


def encode_placed(placed: Placed) -> bytes:
    """A placed manifest's bytes."""
    manifest = json.loads(encode_manifest(placed.manifest))
    return _sealed({"format": FORMAT, "manifest": manifest, "epochs": dict(placed.epochs)})


def decode_placed(data: bytes) -> Placed:
    """The placed manifest in some bytes; SnapshotDamaged unless they are exactly those of one."""

    def read(said: dict[str, Any]) -> Placed:
        manifest = decode_manifest((canonical_json(said["manifest"]) + "\n").encode())
        if {copied.sha256 for copied in manifest.files} != set(said["epochs"]):
            raise ValueError("it does not say where each file lies")
        return Placed(manifest, said["epochs"])

    return _opened(data, "the placed manifest", read, encode_placed)


def sha256_of(data: bytes) -> str:
    """The SHA-256 of some bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def _sealed(said: dict[str, Any]) -> bytes:
    sealed = {**said, "sha256": sha256_of(canonical_json(said).encode())}
    return (canonical_json(sealed) + "\n").encode()


def _opened(
    data: bytes, what: str, read: Callable[[dict[str, Any]], T], encode: Callable[[T], bytes]
) -> T:
    try:
        said = json.loads(data)
        if said["format"] > FORMAT:
            raise ValueError(f"it has format {said['format']}, this build reads {FORMAT}")
        found = read(said)
        if encode(found) != data:
            raise ValueError("it is not in the form that it would be written in")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotDamaged(f"{what} does not read: {error}") from None
    return found
