"""A member of the group of projectors, and its supervisor, where what they rest on fails.

Invariants:
- No broker is asked: the group and the log are stand-ins. ``tests/kafka`` has real ones.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog.errors import HomeBusy
from foldlog.locks import Note
from foldlog.log.base import LogError
from foldlog.log.kafka.groups import Report
from foldlog.runtime import SECOND, RealRuntime, wall_clock
from foldlog.store.base import StoreError
from foldlog_projector import health, member, supervisor
from foldlog_projector.member import JOIN_US, LET_IN_US, Member, Plan
from foldlog_projector.supervisor import Supervisor


class Log:
    """A log that nobody proposes to."""

    handles = None
    partitions = 2

    class known:
        """What it is recognised by."""

        @staticmethod
        def to_dict() -> dict[str, Any]:
            """Nothing."""
            return {}

    class address:
        """Where it is."""

        prefix = "p"

    def wait(self, seconds: float) -> None:
        """Nothing comes."""

    def close(self) -> None:
        """Nothing is open."""


class Snapshots:
    """A keeper that cannot look at its stores."""

    looked = 0

    def look(self) -> None:
        """What a disk with a fault raises."""
        self.looked += 1
        raise StoreError("store/0", "input/output error", "see to the disk")


class Home:
    """The stores of a member; there are none."""

    def __init__(self, *given: Any) -> None:
        self.snapshots = Snapshots()

    def close(self) -> None:
        """Nothing is open."""


class Silent:
    """A membership of a group that says nothing by itself."""

    def __init__(self, handles: Any, name: str, protocol: str, *told: Callable[..., None]) -> None:
        self.assigned, self.revoked, self.lost = told

    def poll(self) -> None:
        """Nothing is heard."""

    def report(self, reports: dict[int, Report]) -> None:
        """Nobody hears it."""

    def close(self) -> None:
        """Nothing is open."""


class Partition:
    """A partition in an outage, of which each step takes long."""

    phase, why, outage, more, view, position, reached = "waiting", "x", "x", False, None, None, None

    def __init__(self, steps: list[int], number: int, after: Callable[[], None]) -> None:
        self.steps, self.number, self.after = steps, number, after

    def step(self) -> None:
        """One that is told."""
        self.steps.append(self.number)
        self.after()

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Member]:
    """A member whose group says nothing."""
    monkeypatch.setattr(member, "open_owned_log", lambda *given: Log())
    monkeypatch.setattr(member, "ProjectorHome", Home)
    monkeypatch.setattr(member, "Membership", Silent)
    made = Member(Plan("kafka://x/y", tmp_path))
    yield made
    made._lock.release()


def said(each: Member) -> Note:
    """What it says of itself now."""
    each._write_note()
    note = each._lock.read()
    assert note is not None
    return note


def test_who_is_in_no_group_waits_and_joins_again(alone: Member) -> None:
    """A member that the group has not let in is not idle: it is well for as long as that may take,
    then waits, then joins again; once it is in, though it has no partition, it is idle."""
    now = [0]
    alone._monotonic = lambda: now[0]
    alone._serve(lambda: True)
    assert (said(alone).phase, said(alone).why) == ("recovering", "the group has not let it in yet")
    now[0] = LET_IN_US
    assert (said(alone).phase, said(alone).why) == ("waiting", "the group has not let it in yet")
    now[0] = JOIN_US - 1
    alone._work()
    now[0] = JOIN_US
    with pytest.raises(LogError, match="nothing was heard"):
        alone._work()
    alone._assigned([])
    alone._work()
    assert (said(alone).phase, said(alone).why) == ("idle", "")
    alone._lost([])
    assert (said(alone).phase, said(alone).why) == ("waiting", "it lost its partitions")


def test_it_ends_between_two_partitions(alone: Member) -> None:
    """Told to stop in the midst of a round, it makes no further step, which may take long."""
    alone._serve(lambda: True)
    steps: list[int] = []
    own: dict[int, Any] = {n: Partition(steps, n, alone.stop) for n in range(8)}
    alone._own = own
    alone._work()
    assert steps == [0]


def test_snapshots_that_cannot_be_looked_after_end_nothing(
    alone: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that the keeper of snapshots cannot read is told once, and the member goes on."""
    alone._serve(lambda: True)
    alone._work()
    snapshots: Any = alone._home.snapshots
    assert snapshots.looked == 2
    assert [row.getMessage() for row in caplog.records] == [
        "no snapshots are taken: store/0: input/output error; see to the disk"
    ]


def test_one_of_a_number(alone: Member) -> None:
    """Another member of its number at its home is refused."""
    with pytest.raises(HomeBusy):
        Member(alone._plan)


def judged(home: Path, notes: list[Note], still: list[int]) -> dict[str, Any]:
    """Its health, where something waits for an hour."""
    return health._judge_members(home, notes, 1_000, wall_clock() - 3_600 * SECOND, still)


def test_what_stands_still_is_ill_though_nobody_here_says_so(tmp_path: Path) -> None:
    """Late proposals of a partition that does not move count against the members that have it, or
    against all where nobody has; not against who recovers it, or has another."""
    turning, recovering = (
        Note(1, "projector", phase, RealRuntime().monotonic())
        for phase in ("turning", "recovering")
    )
    assert judged(tmp_path, [turning], [])["healthy"]
    found = judged(tmp_path, [turning], [3])
    assert not found["healthy"]
    assert "partitions [3]" in found["message"]
    owned = {0: "a@host", 1: "b@host", 2: "c@elsewhere"}
    here = {"a": turning, "b": recovering}
    assert health._concerning([0, 1, 2, 3], owned, here) == [3, 0]
    assert health._concerning([1, 2], owned, here) == []


def test_a_worker_that_does_not_start_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine has no process to spare, the worker is started later; the others go on."""
    started: list[int] = []

    class Process:
        """One that runs for ever, if it is not the second to start."""

        def __init__(self, *given: Any, **named: Any) -> None:
            started.append(len(started))
            self.pid = len(started)
            if len(started) == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")

        def poll(self) -> None:
            """It runs."""

        def send_signal(self, number: int) -> None:
            """It ends."""

        def wait(self, seconds: float) -> int:
            """It has ended."""
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    made = Supervisor([], 2)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.01)
    look = made._look

    def until_both(worker: Any) -> None:
        look(worker)
        if made.numbers()["foldlog_workers"] == 2:
            made.stop()

    monkeypatch.setattr(made, "_look", until_both)
    made.run()
    assert len(started) == 3
    assert made.numbers()["foldlog_worker_starts_total"] == 2
