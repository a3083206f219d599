"""Waiting for outcomes: what is kept, what is left, and that one partition costs no other.

Invariants:
- The log and its tail are stand-ins that a test fills; records and heads are real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

import foldlog.awaiting as awaiting_module
from foldlog.awaiting import IDLE_US, Awaiting
from foldlog.errors import Damaged
from foldlog.log.base import Log, LogDamaged, LogForbidden, LogTrimmed, LogUnreachable, Stored
from foldlog.runtime import SECOND, RealRuntime
from foldlog.wire.chain import ZERO, partition_hash
from foldlog.wire.records import Record, encode_record
from foldlog.wire.slots import STATE_FORMAT

SOON_US = SECOND // 5


class World(RealRuntime):
    """A log that is empty at first, its tail, and a clock that can be put forward."""

    def __init__(self) -> None:
        self.heads: dict[int, bytes] = {}
        self.coming: list[list[tuple[int, Stored]] | Exception] = []
        self.followed: list[tuple[str, int]] = []
        self.asking: Callable[[], None] = lambda: None
        self.ahead = 0
        self.awaiting = Awaiting(cast(Log, self), self, self)

    def monotonic(self) -> int:
        """The machine's time, and what was put on top."""
        return super().monotonic() + self.ahead

    def end(self, partition: int) -> int:
        """Nothing was there before."""
        self.asking()
        return 1

    def events(self, *asked: Any) -> list[Stored]:
        """Nothing is there but what the tail gives."""
        return []

    def follow(self, partition: int, start: int) -> None:
        """See Tail."""
        self.followed.append(("follow", partition))

    def drop(self, partition: int) -> None:
        """See Tail."""
        self.followed.append(("drop", partition))

    def poll(self, seconds: float) -> list[tuple[int, Stored]]:
        """What comes next, or the error that does."""
        if not self.coming:
            time.sleep(min(seconds, 0.01))
            return []
        next_one = self.coming.pop(0)
        if isinstance(next_one, Exception):
            raise next_one
        return next_one

    def close(self) -> None:
        """See Tail."""

    def row(self, partition: int, number: int) -> tuple[int, Stored]:
        """The next record of a partition: the outcome of the proposal at that position."""
        previous = self.heads.get(partition, ZERO)
        record = Record(
            sequence=number, run_id="run_1", position=number, outcome="accepted",
            revision_before=number - 1, revision_after=number, rules_version=1, appended_at=1,
            log_time=1, build="b", decider="d", state_format=STATE_FORMAT, previous=previous,
            chain=b"c" * 32, batch_id="6f2a5c0e-2f0b-5a53-9a61-7d0a5b1c9e44", proposal=b"p",
            state_hash=b"s" * 32,
        )  # fmt: skip
        value = encode_record(record)
        head = partition_hash(previous, record.chain, value)
        self.heads[partition] = head
        return partition, Stored(number, b"run_1", value, number, 1, head)

    def join(self, *partitions: int) -> None:
        """Join these, with time enough."""
        for partition in partitions:
            self.awaiting.join(partition, self.monotonic() + SECOND)

    def find(self, partition: int, number: int) -> int | None:
        """The position of the outcome that is found soon, as somebody waits for it."""
        end = self.monotonic() + SOON_US
        record = self.awaiting.find(partition, lambda: [number], end)
        return None if record is None else record.position


@pytest.fixture
def world() -> World:
    """A world in which nobody waits yet."""
    return World()


def test_what_is_kept_is_bounded_and_stays_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many records came, as many of the last ones are kept as have room."""
    monkeypatch.setattr(awaiting_module, "RECENT_MAX", 10)
    size = len(world.row(1, 1)[1].value)
    monkeypatch.setattr(awaiting_module, "RECENT_BYTES_MAX", 20 * size)
    world.join(0)
    for number in range(1, 301):
        world.coming.append([world.row(0, number)])
        assert world.find(0, number) == number
    assert [world.find(0, number) for number in (290, 291, 300)] == [None, 291, 300]
    monkeypatch.setattr(awaiting_module, "RECENT_BYTES_MAX", size // 2)
    world.coming.append([world.row(0, 301)])
    assert world.find(0, 301) is None  # no room for a single one, and no error


def test_damage_is_told_where_it_is_and_costs_no_other_partition(world: World) -> None:
    """A record that does not read is told once, to who waits in its partition; what came with it
    for others is theirs, and its partition is joined anew."""
    world.join(0, 1)
    garbage = (0, Stored(1, b"x", b"garbage", 0, 0, b""))
    world.coming.append([garbage, world.row(1, 1), (0, world.row(0, 1)[1])])
    assert world.find(1, 1) == 1
    with pytest.raises(Damaged, match="a decided record"):
        world.find(0, 1)
    assert world.find(0, 1) is None
    world.heads.clear()
    world.join(0)
    world.coming.append([world.row(0, 1)])
    assert world.find(0, 1) == 1
    assert ("drop", 1) not in world.followed


@pytest.mark.parametrize("kind", [LogTrimmed, LogForbidden])
def test_what_ends_one_partition_is_raised_there(
    world: World, kind: type[LogTrimmed | LogForbidden]
) -> None:
    """An error of the tail that names its partition reaches who waits there, and nobody else."""
    world.join(0, 1)
    error = kind("events/0", "is not there", "restore it")
    error.partition = 0
    world.coming += [error, [world.row(1, 1)]]
    assert world.find(1, 1) == 1
    with pytest.raises(kind):
        world.find(0, 1)


def test_where_rows_may_be_lost_everything_is_joined_anew(world: World) -> None:
    """After an error that names no partition no head is trusted: all of them are joined anew."""
    world.join(0, 1)
    world.row(1, 1)  # the row that is lost
    world.coming.append(LogDamaged("events", "a message does not read", "restore it"))
    with pytest.raises(LogDamaged):
        world.find(0, 1)
    began = time.monotonic()
    assert world.find(1, 1) is None
    assert time.monotonic() - began < SOON_US / SECOND, "it says so at once"
    world.heads.clear()
    world.join(1)
    world.coming.append([world.row(1, 1)])
    assert world.find(1, 1) == 1


def test_partitions_that_nobody_asks_about_are_left(world: World) -> None:
    """Who waits in one partition reads nothing of others that were asked about long ago."""
    world.join(0, 1, 2)
    world.ahead += IDLE_US
    world.join(1)
    assert world.followed[-4:] == [("drop", 0), ("drop", 1), ("drop", 2), ("follow", 1)]
    world.coming.append([world.row(2, 1), world.row(1, 1)])
    assert world.find(1, 1) == 1


def test_who_waits_to_join_waits_no_longer_than_it_may(world: World) -> None:
    """In an outage, where each question takes long, many who join are through soon after their
    time is over: they do not ask one after the other."""
    took: list[float] = []

    def ask() -> None:
        time.sleep(0.2)
        raise LogUnreachable("events", "no answer", "wait")

    def join() -> None:
        began = time.monotonic()
        end = world.monotonic() + SECOND // 4
        while world.monotonic() < end:
            try:
                world.awaiting.join(0, end)
            except LogUnreachable:
                time.sleep(0.01)
        took.append(time.monotonic() - began)

    world.asking = ask
    threads = [threading.Thread(target=join) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(took) < 1, took
