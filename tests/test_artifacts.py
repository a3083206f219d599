"""The artifact folder: bytes under their own hash, whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from foldlog.artifacts import ArtifactFolder


def test_artifacts_are_stored_under_their_hash(tmp_path: Path):
    """Two digits of folder, the rest the name; storing again writes nothing."""
    folder, sha256 = ArtifactFolder(tmp_path), hashlib.sha256(b"abc").hexdigest()
    uri = folder.store(b"abc")
    path = tmp_path / "artifacts" / "sha256" / sha256[:2] / sha256[2:]
    assert uri == f"artifact://sha256/{sha256}"
    assert path.read_bytes() == b"abc"
    before = path.stat()
    assert folder.store(b"abc") == uri
    assert path.stat().st_ino == before.st_ino
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert folder.load(uri) == b"abc"


def test_a_damaged_artifact_is_refused_and_mended(tmp_path: Path):
    """Bytes that are not what the name says are never handed out; storing puts them right."""
    folder = ArtifactFolder(tmp_path)
    uri = folder.store(b"abc")
    folder.path(uri.rpartition("/")[2]).write_bytes(b"ab")
    with pytest.raises(ValueError, match="SHA-256"):
        folder.load(uri)
    folder.store(b"abc")
    assert folder.load(uri) == b"abc"


def test_an_artifact_of_another_place_is_not_looked_for(tmp_path: Path):
    """Only well-formed URIs become paths."""
    for uri in ("artifact://sha256/../../x", "artifact://sha256/" + "A" * 64, "file:///etc/passwd"):
        with pytest.raises(ValueError, match="not an artifact"):
            ArtifactFolder(tmp_path).load(uri)


def test_an_artifact_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: Any):
    """A failed write leaves no file under the final name and none beside it."""

    def fail(_descriptor: int) -> None:
        raise OSError("disk full")

    folder = ArtifactFolder(tmp_path)
    folder.store(b"first")
    monkeypatch.setattr("foldlog.artifacts.os.fsync", fail)
    for data in (b"a", b"b"):
        with pytest.raises(OSError, match="disk full"):
            folder.store(data)
    files = [path for path in folder.root.rglob("*") if path.is_file()]
    assert len(files) == 1


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_who_may_read_the_home_may_read_its_artifacts(tmp_path: Path, umask: int, mode: int):
    """A file has the mode that the umask gives, as every other file of a home."""
    before = os.umask(umask)
    try:
        uri = ArtifactFolder(tmp_path).store(b"abc")
    finally:
        os.umask(before)
    path = ArtifactFolder(tmp_path).path(uri.rpartition("/")[2])
    assert path.stat().st_mode & 0o777 == mode
