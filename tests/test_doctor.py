"""What doctor finds in a home, fault by fault, and that it changes nothing.

Invariants:
- Each fault is made on a real home.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, doctor, errors
from foldlog.client import wall_clock
from foldlog.onlooker import Onlooker
from tests.cli_runs import accept
from tests.processes import child, files, line
from tests.test_cli_golden_operating import GOAL

OPEN = """
import sys
from foldlog import Engine
engine = Engine.open(sys.argv[1])
engine.start("run_9", goal="x")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of one partition with two runs in it."""
    with Engine.open(tmp_path / "home", create=True, partitions=1) as engine:
        accept(engine, "run_1", GOAL)
        accept(engine, "run_2", GOAL)
    return tmp_path / "home"


def wrong(path: Path) -> list[Any]:
    """The findings that are not ok."""
    return [each for each in doctor.examine(path, wall_clock) if not each.ok]


def change(path: Path, statement: str) -> None:
    """Change the log by hand."""
    with sqlite3.connect(path / "log.sqlite") as log:
        log.execute(statement)
    log.close()


def test_a_home_that_is_well(home: Path) -> None:
    """Nothing is wrong, and every place was looked at."""
    findings = doctor.examine(home, wall_clock)
    checks = ["versions", "disk", "log", "projection", "holder"]
    assert [each.check for each in findings] == checks
    assert all(each.ok and each.remedy is None for each in findings)
    assert doctor.exit_code(findings) == 0


def test_no_home(tmp_path: Path) -> None:
    """Where there is no home, there is nothing to look at, and none is made."""
    with pytest.raises(errors.HomeMissing):
        doctor.examine(tmp_path, wall_clock)
    assert list(tmp_path.iterdir()) == []


def test_looking_changes_nothing(home: Path) -> None:
    """Neither doctor nor status changes a file of a home that nobody has open."""
    before = files(home)
    doctor.examine(home, wall_clock)
    with Onlooker(home, wall_clock) as onlooker:
        [row] = onlooker.status()
        assert (row.owner, row.sequence, row.lag) == (None, 2, 0)
        assert onlooker.run_ids("", 9) == ["run_1", "run_2"]
        assert onlooker.run_ids("run", 1) == ["run_1"]
    after = files(home)
    del before["."], after["."]  # the folder's time: SQLite makes and removes its index beside it
    assert after == before


def test_looking_decides_nothing(home: Path) -> None:
    """What a worker left in the log is counted, not decided; after a while that is wrong."""
    with Engine.open(home) as engine, pytest.raises(errors.OutcomeUnknown):
        engine.start("run_3", goal="x", timeout=0)
    with Onlooker(home, wall_clock) as onlooker:
        [row] = onlooker.status()
        assert (row.sequence, row.lag) == (2, 1)
    assert wrong(home) == []
    later = doctor.examine(home, lambda: wall_clock() + 11_000_000)
    assert [(each.check, each.exit, each.remedy) for each in later if not each.ok] == [
        ("holder", 6, "foldlog project --once")
    ]


def test_a_holder_and_a_stopped_one(home: Path) -> None:
    """Who holds the projection is named; a process that is stopped is wrong, and so told."""
    with child("", OPEN, home) as holder:
        assert line(holder) == "open"
        with Onlooker(home, wall_clock) as onlooker:
            [row] = onlooker.status()
            assert (row.owner, row.sequence) == (f"worker:{holder.pid}", 3)
        found = doctor.examine(home, wall_clock)[-1]
        assert found.what == f"process {holder.pid} (worker) holds the projection and is turning"
        if not Path("/proc/self/stat").exists():
            return
        os.kill(holder.pid, signal.SIGSTOP)
        os.waitpid(holder.pid, os.WUNTRACED)
        [found] = wrong(home)
        assert (found.check, found.exit) == ("holder", 6)
        assert f"kill -CONT {holder.pid}" in found.remedy


def test_a_missing_projection(home: Path) -> None:
    """A projection that is gone is no harm: the log has everything."""
    shutil.rmtree(home / "projection")
    findings = doctor.examine(home, wall_clock)
    assert doctor.exit_code(findings) == 0
    [found] = [each for each in findings if each.check == "projection"]
    assert found.what == "partition 0 has nothing folded yet; 2 in the log to be folded"
    assert not (home / "projection").exists()


def test_a_broken_projection(home: Path) -> None:
    """A projection that does not open is to be built anew."""
    (home / "projection" / "0" / "CURRENT").write_text("nonsense")
    [found] = wrong(home)
    assert (found.check, found.exit) == ("projection", 5)
    assert str(home / "projection" / "0") in (found.remedy or "")


def test_a_projection_of_another_log(home: Path, tmp_path: Path) -> None:
    """A projection that came from elsewhere is told from one of this log."""
    with Engine.open(tmp_path / "other", create=True, partitions=1) as engine:
        accept(engine, "run_1", GOAL)
    shutil.rmtree(home / "projection")
    shutil.copytree(tmp_path / "other" / "projection", home / "projection")
    [found] = wrong(home)
    assert "projection of another log" in found.what
    assert found.exit == 5


def test_a_log_that_was_cut(home: Path) -> None:
    """A projection ahead of its log says which record is gone."""
    change(home, 'DELETE FROM events_0 WHERE "offset" = 2')
    [found] = wrong(home)
    assert "the projection's head is not in the log" in found.what


def test_a_partition_that_is_halted(home: Path) -> None:
    """A record that cannot be folded next is found before anybody stumbles over it."""
    with Engine.open(home) as engine:
        saved = home.parent / "saved"
        shutil.copytree(home / "projection", saved)
        accept(engine, "run_3", GOAL)
    shutil.rmtree(home / "projection")
    saved.rename(home / "projection")
    change(home, 'UPDATE events_0 SET head = zeroblob(32) WHERE "offset" = 3')
    [found] = wrong(home)
    assert found.what.startswith("halted: partition 0, run run_3, sequence 3: partition hash")
    assert found.exit == 5


def test_a_log_that_is_none(home: Path) -> None:
    """A log that does not open is broken; what is beside it is looked at still."""
    (home / "log.sqlite").write_bytes(b"nonsense" * 1000)
    [found] = wrong(home)
    assert (found.check, found.exit) == ("log", 5)


def test_a_log_of_a_newer_build(home: Path) -> None:
    """A newer format is no damage: it wants a newer build."""
    change(home, "PRAGMA user_version = 99")
    [found] = wrong(home)
    assert (found.check, found.exit, found.remedy) == ("log", 6, "use a newer foldlog")


def test_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room is told before it is none."""
    usage = shutil.disk_usage(home)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1 << 20))
    [found] = wrong(home)
    assert (found.check, found.exit) == ("disk", 6)
    assert "1 MiB free" in found.what


def test_leftovers(home: Path) -> None:
    """What a crash left is named, and does no harm."""
    (home / "log.sqlite.new").touch()
    findings = doctor.examine(home, wall_clock)
    [found] = [each for each in findings if each.check == "leftover"]
    assert (found.ok, found.remedy) == (True, "remove it")
    assert doctor.exit_code(findings) == 0


def test_a_quarantined_run_and_void_records(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarantined run is to be mended; void records are only told."""
    row = {"run_id": "run_1", "since": "2026", "sequence": 7, "error": "E", "build": "0"}
    monkeypatch.setattr("foldlog.views.quarantines", lambda view: iter([row]))
    [found] = wrong(home)
    assert (found.check, found.exit) == ("quarantine", 5)
    assert "foldlog release run_1" in found.remedy
    with Onlooker(home, wall_clock) as onlooker:
        view = onlooker.view(0)
        meta = view.meta()._replace(void=3)
        monkeypatch.setattr(type(view), "meta", lambda self: meta)
        looks = list(doctor.contents(view, "here"))
    assert [(look.check, look.exit) for look in looks] == [("void", 0), ("quarantine", 5)]
