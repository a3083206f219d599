"""One partition that is damaged is halted and named; the others of the home are served."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from foldlog.client import wall_clock
from foldlog.doctor import examine
from foldlog.errors import Damaged
from foldlog.onlooker import Onlooker
from foldlog.wire import keys, slots
from foldlog.wire.partitioner import partition_of
from foldlog_projector.health import health
from tests.snapshot_homes import beside, grow, opened

PARTITIONS = 3
RUNS = 12


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of three partitions, each with runs."""
    with opened(tmp_path / "home", create=True, partitions=PARTITIONS) as engine:
        grow(engine, range(RUNS))
    return tmp_path / "home"


def run_of(partition: int) -> str:
    """A run of a partition."""
    return next(
        f"run_{n}" for n in range(RUNS) if partition_of(f"run_{n}", PARTITIONS) == partition
    )


def cut_log(home: Path) -> None:
    """The log of partition 1 lost its last record, which the projection has."""
    with closing(sqlite3.connect(home / "log.sqlite")) as log, log:
        log.execute('DELETE FROM events_1 WHERE "offset" = (SELECT max("offset") FROM events_1)')


def trimmed_log(home: Path) -> None:
    """The log of partition 1 lost its first record, and there is no projection of it."""
    with closing(sqlite3.connect(home / "log.sqlite")) as log, log:
        log.execute('DELETE FROM events_1 WHERE "offset" = 1')
    shutil.rmtree(home / "projection" / "1")


def changed_tail(home: Path) -> None:
    """A record of partition 1 that is still to be folded is another than it was."""
    with opened(home) as engine:
        seat: Any = engine._seat
        store = seat._holder.held[1].partition.store
        copy = dict(store.scan(b""))
        engine.run(run_of(1)).propose({"type": "BudgetSpent", "tokens": 1})
        for key in dict(store.scan(b"")):
            store.write({key: copy.get(key)})
    with closing(sqlite3.connect(home / "log.sqlite")) as log, log:
        log.execute(
            "UPDATE events_1 SET value = value || x'00' "
            'WHERE "offset" = (SELECT max("offset") FROM events_1)'
        )


def served(engine: Engine, partition: int) -> None:
    """A run of this partition is read and goes on."""
    run = engine.run(run_of(partition))
    assert run.state() is not None
    assert run.propose({"type": "BudgetSpent", "tokens": 1}).outcome == "accepted"


@pytest.mark.parametrize("damage", [cut_log, trimmed_log, changed_tail])
def test_fault_26_a_damaged_partition_keeps_no_other_from_being_served(
    home: Path, damage: Any
) -> None:
    """The home opens; what asks the damaged partition is told what is wrong, the others go on; and
    status, doctor and health name it, from inside and beside."""
    damage(home)
    with opened(home) as engine:
        served(engine, 0)
        served(engine, 2)
        with pytest.raises(Damaged) as caught:
            engine.run(run_of(1)).propose({"type": "BudgetSpent", "tokens": 1})
        assert caught.value.partition == 1
        assert [row.halted is None for row in engine.status()] == [True, False, True]
        found = health(home)
        assert (found["healthy"], found["phase"]) == (False, "halted 1")
        report = engine.verify()
        assert not report.ok
        assert engine.verify(run_of(0)).ok
        with Onlooker(home, wall_clock) as onlooker:
            assert [row.halted is None for row in onlooker.status()] == [True, False, True]
    looks = [each for each in examine(home, wall_clock) if each.check == "projection"]
    assert [each.ok for each in looks] == [True, False, True]
    assert looks[1].what.startswith("halted")


def test_a_projection_that_is_no_fold_is_shown_to_nobody_and_rebuilt(home: Path) -> None:
    """A store that says of itself what is not in the log is not read; rebuilt beside the holder it
    is swapped in, and the partition goes on by itself."""
    with opened(home) as engine:
        seat: Any = engine._seat
        store = seat._holder.held[1].partition.store
        meta = slots.decode_meta(store.get(keys.META))
        store.write({keys.META: slots.encode_meta(meta._replace(head=bytes(32)))})
    with opened(home) as engine:
        with pytest.raises(Damaged):
            engine.run(run_of(1)).state()
        served(engine, 0)
        with beside(home) as other:
            assert other.rebuild(1, "start")[1]
        served(engine, 1)
        assert engine.verify().ok


def test_a_home_of_which_nothing_can_be_served_does_not_open(tmp_path: Path) -> None:
    """With its only partition damaged, opening tells what is wrong."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        grow(engine, range(2))
    with closing(sqlite3.connect(tmp_path / "log.sqlite")) as log, log:
        log.execute('DELETE FROM events_0 WHERE "offset" = 4')
    with pytest.raises(Damaged):
        opened(tmp_path)
