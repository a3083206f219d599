"""A disk that is full under a projector: a real one, small, and filled to its last byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, errors
from foldlog.reaching import create_log
from tests.kafka.projectors import health, projecting
from tests.kafka.test_members import SOON, check, settle
from tests.needs import cannot
from tests.workers import FOLDLOG, environment, until

DISK_BYTES = 48 << 20
"""RocksDB keeps room for what it logs ahead; two stores' worth of it and some more."""


def as_root(*command: str) -> None:
    """Run a command as root, where that can be had without a word."""
    prefix = () if os.geteuid() == 0 else ("sudo", "-n")
    if prefix and shutil.which("sudo") is None:
        cannot("a full disk was not tested: mounting one needs root, or sudo")
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        cannot(f"a full disk was not tested: {command[0]} says {done.stderr.strip()}")


@contextmanager
def small_disk(place: Path) -> Iterator[Callable[[], Path]]:
    """A disk of its own at a folder; what is given fills it, with a file that makes room again."""
    place.mkdir(parents=True)
    options = f"size={DISK_BYTES},uid={os.getuid()},mode=0755"
    as_root("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place))

    def fill() -> Path:
        filler = place / "filler"
        with filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                try:
                    while file.write(bytes(size)) == size:
                        continue
                except OSError:
                    continue
        return filler

    try:
        yield fill
    finally:
        as_root("umount", "--lazy", str(place))


def large(name: str) -> list[dict[str, Any]]:
    """Events of some 180 KB that are kept in no state, and one that is."""
    payload = {"type": "Recorded", "name": "large", "payload": "x" * 60_000}
    fact = {"id": name, "statement": "so"}
    return [payload] * 3 + [{"type": "FactConfirmed", "fact": fact}]


def told_of(url: str, home: Path) -> str | None:
    """What `foldlog status` says that the partition waits for."""
    done = subprocess.run(
        [*FOLDLOG, "status", "--json", "--log", url, "--home", str(home)],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    found: str | None = json.loads(done.stdout)["outage"]
    return found


def test_fault_32_a_full_disk_is_waited_out(new_url: Callable[[], str], tmp_path: Path) -> None:
    """The projector waits, with log, health and status saying so; a start on a full disk waits too.
    Once there is room it goes on by itself; nothing is lost and nothing applied twice."""
    url = new_url()
    create_log(url, 1)
    home = tmp_path / "home"
    told: dict[str, tuple[str, int, int]] = {}
    with (
        small_disk(home / "projection") as fill,
        projecting(url, home, settings=SOON) as projector,
        Engine.connect(url, home=tmp_path / "worker") as engine,
    ):
        projector.await_turning(0)
        run = engine.start("run_1", goal="x", timeout=60)

        def propose() -> bool:
            batch_id = str(uuid.uuid4())
            try:
                outcome = run.propose(large(batch_id), batch_id=batch_id, timeout=5)
            except errors.OutcomeUnknown:
                return False
            assert outcome.outcome == "accepted", outcome.to_dict()
            assert outcome.sequence is not None
            told[batch_id] = ("run_1", 0, outcome.sequence)
            return True

        assert propose()
        filler = fill()
        while propose():  # what was put by for what is logged ahead is used up
            assert len(told) < 1_000
        until(lambda: projector.lines("outage"), 60, 0.2)
        assert "the disk is full" in projector.lines("outage")[0]["message"]

        def said() -> bool:
            code, found = health(url, home)
            waits = code == 6 and found["phase"] == "waiting"
            return waits and "the disk is full" in found["message"]

        until(said, 120, 0.5)
        until(lambda: "the disk is full" in (told_of(url, tmp_path / "worker") or ""), 120, 0.5)
        projector.kill()
        projector.restart()
        until(said, 120, 0.5)
        filler.unlink()
        settle(url, tmp_path / "worker")
        until(lambda: health(url, home)[0] == 0, 120, 0.5)
        until(lambda: told_of(url, tmp_path / "worker") is None, 120, 0.5)
        assert propose()
        outages, ends = (len(projector.lines(event)) for event in ("outage", "went_on"))
        assert 1 <= ends <= outages <= 3  # told once, unless the group moved meanwhile
        assert projector.lines("halted") == []
        settle(url, tmp_path / "worker")
    check(url, tmp_path / "auditor", told)


@pytest.mark.parametrize("size", [1 << 20])
def test_a_small_disk_is_full_and_has_room_again(tmp_path: Path, size: int) -> None:
    """The disk of these tests refuses the next byte once it is filled."""
    with small_disk(tmp_path / "disk") as fill:
        filler = fill()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "more").write_bytes(bytes(size))
        filler.unlink()
        (tmp_path / "disk" / "more").write_bytes(bytes(size))
