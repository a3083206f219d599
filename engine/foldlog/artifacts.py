"""The artifact folder of a home: bytes under the name of their own SHA-256.

    HOME/artifacts/sha256/ab/cdef...      (2 and 62 hex digits)   artifact://sha256/abcdef...

Invariants:
- A file under its final name is complete and durable: it is written under another name, synced,
  renamed, and the folder's entry is synced too.
- A file is never changed once it is there; storing the same bytes again writes nothing.
- Two processes may store the same bytes at once; the last rename wins and the bytes are equal.
- A file whose bytes do not have its name's SHA-256 (a disk that lied) is written again by `store`
  and refused by `load`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from pathlib import Path

_URI = re.compile(r"artifact://sha256/([0-9a-f]{64})")


def artifact_uri(sha256: str) -> str:
    """`artifact://sha256/HEX`."""
    return f"artifact://sha256/{sha256}"


class ArtifactFolder:
    """Content-addressed files below `home`; the folder is made when the first one is stored."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.root = Path(home) / "artifacts" / "sha256"

    def path(self, sha256: str) -> Path:
        """Where the bytes with this SHA-256 (64 hex digits) are, or would be."""
        return self.root / sha256[:2] / sha256[2:]

    def store(self, data: bytes) -> str:
        """Keep the bytes; durable on return. Returns their URI. Idempotent. OSError as it comes."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        if not _holds(path, sha256):
            _make_folder(path.parent)
            _write_durably(path, data)
        return artifact_uri(sha256)

    def load(self, uri: str) -> bytes:
        """The bytes of a URI that `store` returned.

        Raises ValueError if it is no such URI or the file's bytes are not what its name says,
        FileNotFoundError if they are not in this folder.
        """
        match = _URI.fullmatch(uri)
        if match is None:
            raise ValueError(f"not an artifact of this folder: {uri!r}")
        path = self.path(match[1])
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != match[1]:
            raise ValueError(f"the bytes of {path} do not have the SHA-256 of its name")
        return data


def _holds(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except FileNotFoundError:
        return False


def _make_folder(folder: Path) -> None:
    # Each new folder is an entry of its parent, which a crash could forget.
    missing = [folder, *folder.parents]
    for each in reversed([each for each in missing if not each.exists()]):
        each.mkdir(exist_ok=True)
        _sync_folder(each.parent)


def _write_durably(path: Path, data: bytes) -> None:
    # With the mode that the umask gives, as the home's other files: who reads it reads these too.
    temporary = path.parent / f".new-{uuid.uuid4().hex}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
