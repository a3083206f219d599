"""Projectors as members of a group: partitions come and go; nothing is lost or decided twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, errors
from foldlog.log.base import Stored
from foldlog.log.kafka.groups import owners, reported
from foldlog.log.kafka.log import KafkaLog
from foldlog.reaching import create_log, open_log
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import decode_record
from foldlog_projector.serving import run_once
from tests.kafka.broker import free_ports
from tests.kafka.projectors import Projector, health, projecting
from tests.workers import FOLDLOG, environment, until

NewUrl = Callable[[], str]
ALL = 1 << 30
SOON = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}


def fact(name: str) -> dict[str, Any]:
    """An event that needs no expectation."""
    return {"type": "FactConfirmed", "fact": {"id": name, "statement": "so"}}


def rows(log: KafkaLog, number: int) -> list[Stored]:
    """Every record of a partition, void ones too."""
    found: list[Stored] = []
    while more := log.events(number, found[-1].offset + 1 if found else 0, 500, ALL):
        found += more
    return found


def counted(log: KafkaLog, number: int) -> list[Stored]:
    """The records of a partition that count."""
    head, found = bytes(32), []
    for row in rows(log, number):
        if decode_record(row.value).previous == head:
            found.append(row)
            head = row.head
    return found


class Proposing:
    """Threads that propose all the time, and what they were told."""

    def __init__(self, url: str, home: Path, runs: list[str]) -> None:
        self.told: dict[str, tuple[str, int, int]] = {}
        self.unknown = 0
        self._engine = Engine.connect(url, home=home)
        self._runs = runs
        self._stopping = False
        self._threads = [threading.Thread(target=self._work, args=(run,)) for run in runs]
        for thread in self._threads:
            thread.start()

    def _work(self, run_id: str) -> None:
        run = self._engine.run(run_id)
        batch_id, event = str(uuid.uuid4()), {"type": "RunStarted", "goal": {"statement": "x"}}
        while not self._stopping:
            try:
                outcome = run.propose([event], batch_id=batch_id, timeout=3)
            except (errors.OutcomeUnknown, errors.Unavailable):
                self.unknown += 1  # the same batch again
                continue
            assert outcome.outcome == "accepted", outcome.to_dict()
            assert outcome.partition is not None
            assert outcome.sequence is not None
            self.told[batch_id] = (run_id, outcome.partition, outcome.sequence)
            batch_id = str(uuid.uuid4())
            event = fact(batch_id)
            time.sleep(0.005)

    def stop(self) -> None:
        """End after what is under way."""
        self._stopping = True
        for thread in self._threads:
            thread.join(60)
        self._engine.close()


@contextmanager
def proposing(url: str, home: Path, runs: list[str]) -> Iterator[Proposing]:
    """Proposals of these runs for as long as the block runs."""
    made = Proposing(url, home, runs)
    try:
        yield made
    finally:
        made.stop()


def check(url: str, home: Path, told: dict[str, tuple[str, int, int]]) -> int:
    """Nothing acknowledged is lost, nothing applied twice, no hole; returns the void records."""
    with Engine.connect(url, home=home) as auditor:
        report = auditor.verify()
        assert report.ok, report.to_dict()
        assert all(row.lag == 0 for row in auditor.status())
    log = open_log(url)
    try:
        accepted: dict[str, tuple[str, int, int]] = {}
        for number in range(log.partitions):
            records = [decode_record(row.value) for row in counted(log, number)]
            assert [record.sequence for record in records] == list(range(1, len(records) + 1))
            for record in records:
                if record.outcome == "accepted" and record.batch_id is not None:
                    assert record.batch_id not in accepted, "applied twice"
                    accepted[record.batch_id] = (record.run_id, number, record.sequence)
        lost = {id: where for id, where in told.items() if accepted.get(id) != where}
        assert lost == {}
    finally:
        log.close()
    return int(report.void)


def spread(count: int, partitions: int) -> list[str]:
    """Runs of which each partition has some."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        number += 1
        if partition_of(f"run_{number}", partitions) == len(found) % partitions:
            found.append(f"run_{number}")
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_move_in_mid_batch(new_url: NewUrl, tmp_path: Path, protocol: str) -> None:
    """With one projector, two, three, two and one again, workers get every outcome, every record is
    there once, and only the partitions that move stand still for a while."""
    url = new_url()
    create_log(url, 4)
    options = ("--group-protocol", protocol)
    settings = SOON if protocol == "classic" else None
    log = open_log(url)

    def shared_by(count: int) -> None:
        until(lambda: (has := owners(log.handles)).keys() == set(range(4))
              and len(set(has.values())) == count, 60, 0.2)  # fmt: skip

    with ExitStack() as stack:
        homes = [tmp_path / f"home-{n}" for n in range(3)]
        first = stack.enter_context(projecting(url, homes[0], *options, settings=settings))
        first.await_turning(0, 1, 2, 3)
        made = stack.enter_context(proposing(url, tmp_path / "worker", spread(8, 4)))
        others = []
        for count in (2, 3):
            others.append(
                stack.enter_context(projecting(url, homes[count - 1], *options, settings=settings))
            )
            shared_by(count)
        for count in (2, 1):
            leaving = others.pop()
            leaving.send(signal.SIGTERM)
            assert leaving.process.wait(90) == 0
            shared_by(count)
        before = len(made.told)
        until(lambda: len(made.told) > before + 20)
        made.stop()
        settle(url, tmp_path / "worker")
        assert check(url, tmp_path / "auditor", made.told) < len(made.told) / 10
        until(lambda: sum(r.position for r in reported(log.handles).values()) >= len(made.told))
    log.close()


def settle(url: str, home: Path) -> None:
    """Wait until everything that was proposed is decided; a new projector may take a while."""
    with Engine.connect(url, home=home) as engine:

        def settled() -> bool:
            with suppress(errors.ProjectorStalled, errors.Unavailable):
                engine.project()
                return True
            return False

        until(settled, 120)


def test_fault_33_a_zombie_under_other_rules(new_url: NewUrl, tmp_path: Path) -> None:
    """A projector that is stopped between deciding and appending, and goes on after ten turns of
    its successor under other rules, writes void records: nothing halts, and all agree."""
    url = new_url()
    create_log(url, 1)
    signals = tmp_path / "signals"
    signals.mkdir()
    hook = ZOMBIE.format(folder=str(signals))
    with ExitStack() as stack:
        zombie = stack.enter_context(
            projecting(url, tmp_path / "zombie", settings=SOON, before=hook)
        )
        zombie.await_turning(0)
        engine = stack.enter_context(Engine.connect(url, home=tmp_path / "worker"))
        run = engine.start("run_1", goal="x", timeout=60)
        (signals / "stop").touch()  # the next turn is decided, and not appended
        late = threading.Thread(target=lambda: run.propose([fact("late")], timeout=120))
        late.start()
        until((signals / "stopped").exists)
        zombie.await_stopped()
        heir = stack.enter_context(
            projecting(url, tmp_path / "heir", settings=SOON, before=OTHER_RULES)
        )
        heir.await_turning(0)
        late.join(120)
        for number in range(10):
            outcome = run.propose([fact(f"f{number}")])
            assert outcome.outcome == "accepted", outcome.to_dict()
        refused = run.propose([{"type": "QuestionOpened", "question": {"id": "q", "text": "why"}}])
        assert refused.outcome == "quarantined"
        log = open_log(url)
        end = log.end(0)
        zombie.send(signal.SIGCONT)
        until(lambda: log.end(0) > end)  # what it had decided arrives
        before = len(counted(log, 0))
        assert engine.run("run_2").propose(
            [{"type": "RunStarted", "goal": {"statement": "y"}}]
        ).outcome == "accepted"  # fmt: skip
        followers = [tmp_path / name for name in ("worker", "auditor", "another")]
        digests = set()
        for home in followers:
            with Engine.connect(url, home=home) as follower:
                report = follower.verify()
                assert report.ok, report.to_dict()
                assert report.void >= 1
                digests.add(follower.digest())
        assert len(digests) == 1
        assert len(counted(log, 0)) == before + 1
        log.close()
        assert zombie.process.poll() is None
        assert zombie.lines("halted") == heir.lines("halted") == []


ZOMBIE = """
import os, pathlib, signal
from foldlog.log.kafka.owned import OwnedLog
append, folder = OwnedLog.append, pathlib.Path({folder!r})
def stopping(self, partition, head, entries):
    if (folder / "stop").exists():
        (folder / "stop").unlink()
        (folder / "stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    append(self, partition, head, entries)
OwnedLog.append = stopping
"""

OTHER_RULES = """
import foldlog.plugins
from foldlog.testing import raising_rules
rules = raising_rules("QuestionOpened")
foldlog.plugins.installed = lambda: rules
"""


def test_a_projector_that_is_killed_is_replaced(new_url: NewUrl, tmp_path: Path) -> None:
    """Killed at random and started again on the same home, under load: as a static member it has
    its partitions back at once, and nothing is lost."""
    url = new_url()
    create_log(url, 2)
    with projecting(url, tmp_path / "home", settings=SOON) as projector:
        projector.await_turning(0, 1)
        with proposing(url, tmp_path / "worker", spread(4, 2)) as made:
            for _ in range(5):
                before = len(made.told)
                until(lambda before=before: len(made.told) > before + 10)
                projector.kill()
                projector.restart()
                projector.await_turning(0, 1)
            before = len(made.told)
            until(lambda: len(made.told) > before + 10)
        settle(url, tmp_path / "worker")
        assert check(url, tmp_path / "auditor", made.told) == 0


def test_a_supervisor_keeps_its_workers(new_url: NewUrl, tmp_path: Path) -> None:
    """`--workers 2` runs two processes that share the partitions of one home; one that is killed
    is started again, and SIGTERM ends all of them cleanly."""
    url = new_url()
    create_log(url, 2)
    home = tmp_path / "home"
    [port] = free_ports(1)
    options = ("--workers", "2", "--metrics", f"127.0.0.1:{port}")
    with projecting(url, home, *options, settings=SOON) as supervisor:
        until(lambda: len(supervisor.lines("worker_started")) == 2)
        supervisor.await_turning(0, 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            scraped = answer.read().decode()
        for line in ("foldlog_up 1", "foldlog_healthy 1", "foldlog_workers 2", "foldlog_lag 0"):
            assert line in scraped.splitlines()
        log = open_log(url)
        until(lambda: len(set(owners(log.handles).values())) == 2, 60, 0.2)
        with Engine.connect(url, home=tmp_path / "worker") as engine:
            for run_id in spread(2, 2):
                started = engine.start(run_id, goal="x", timeout=60).started
                assert started is not None
                assert started.outcome == "accepted"
            pids = [line["pid"] for line in supervisor.lines("worker_started")]
            os.kill(pids[0], signal.SIGKILL)
            until(lambda: len(supervisor.lines("worker_started")) == 3)
            [ended] = supervisor.lines("worker_ended")
            assert ended["exit"] == -signal.SIGKILL
            for run_id in spread(2, 2):
                assert engine.run(run_id).propose([fact("a")], timeout=90).outcome == "accepted"
        supervisor.send(signal.SIGTERM)
        assert supervisor.process.wait(90) == 0
        assert supervisor.lines("stopped")
        assert not any(alive(line["pid"]) for line in supervisor.lines("worker_started"))
        log.close()
    with Engine.connect(url, home=tmp_path / "auditor") as auditor:
        assert auditor.verify().ok


def test_once_says_what_it_waits_for(new_url: NewUrl, tmp_path: Path) -> None:
    """Where who has a partition stands still, `--once` ends after a while and says why; when he
    goes on, what waited is decided."""
    url = new_url()
    create_log(url, 1)
    plan = {"url": url, "home": tmp_path / "once"}
    with (
        projecting(url, tmp_path / "home") as other,
        Engine.connect(url, home=tmp_path / "worker") as engine,
    ):
        other.await_turning(0)
        other.send(signal.SIGSTOP)
        with pytest.raises(errors.OutcomeUnknown):
            engine.start("run_1", goal="x", timeout=0.5)
        with pytest.raises(errors.ProjectorStalled, match=r"in 1 partitions .* partition 0: "):
            run_once(plan, stuck_us=2_000_000)
        other.send(signal.SIGCONT)
        settle(url, tmp_path / "worker")
        assert engine.run("run_1").state() is not None


HASTY = """
import sys, time
from foldlog.log.kafka.groups import Membership
from foldlog.reaching import open_log
log = open_log(sys.argv[1])
for number in range(10):
    told = []
    each = Membership(log.handles, "hasty", "classic", told.append, told.append, told.append)
    time.sleep(number * 0.1)  # not one poll: what the group gives is on its way, or waits here
    each.close()
    assert told == [], told  # who has left hears of nothing any more
    print(number, flush=True)
log.close()
"""


def test_a_membership_ends_while_partitions_come(new_url: NewUrl) -> None:
    """A member that leaves before it has heard of its partitions has left; a client that is closed
    just then waits for ever, and so would the whole process."""
    url = new_url()
    create_log(url, 1)
    done = subprocess.run(
        [sys.executable, "-c", HASTY, url],
        capture_output=True, text=True, timeout=120, check=False, env=environment(),
    )  # fmt: skip
    assert done.stdout.split() == [str(number) for number in range(10)], done.stderr


def alive(pid: int) -> bool:
    """Whether a process is there."""
    return Path(f"/proc/{pid}").exists()


def test_one_of_a_number_at_a_home(new_url: NewUrl, tmp_path: Path) -> None:
    """A second projector of the same number at the same home is refused, and the first goes on."""
    url = new_url()
    create_log(url, 1)
    with projecting(url, tmp_path / "home") as first:
        first.await_turning(0)
        second = Projector(url, tmp_path / "home")
        assert second.process.wait(90) == 6
        assert first.process.poll() is None


def test_what_does_not_read_is_recorded_at_its_position(new_url: NewUrl, tmp_path: Path) -> None:
    """Foreign bytes, no key, another partition's run: each is rejected in its place, and what comes
    after it is decided."""
    url = new_url()
    create_log(url, 2)
    log = open_log(url)
    run_id = spread(1, 2)[0]
    number = partition_of(run_id, 2)
    elsewhere = next(id for id in spread(4, 2) if partition_of(id, 2) != number)
    with projecting(url, tmp_path / "home") as projector:
        projector.await_turning(0, 1)
        poison = [(b"", b""), (run_id.encode(), b"no avro"), (elsewhere.encode(), b"x"),
                  (b"\xff\x00", bytes(300_000))]  # fmt: skip
        positions = log.propose(number, poison)
        with Engine.connect(url, home=tmp_path / "worker") as engine:
            started = engine.start(run_id, goal="x", timeout=60).started
            assert started is not None
            assert started.outcome == "accepted"
        records = [decode_record(row.value) for row in counted(log, number)]
        assert [record.position for record in records[: len(poison)]] == positions
        assert {(r.outcome, r.code) for r in records[: len(poison)]} == {("rejected", "MALFORMED")}
        assert projector.lines("halted") == []
    log.close()


BROKEN = """
import os
from foldlog.log.base import LogDamaged
from foldlog.log.kafka.owned import OwnedLog
wait = OwnedLog.wait

def broken(self, seconds):
    if 0 in self._ahead and os.path.exists({sign!r}):
        error = LogDamaged("t.proposals/0", "a message does not read (CRC)", "restore the topic")
        error.partition = 0
        raise error
    wait(self, seconds)

OwnedLog.wait = broken
"""


def test_what_is_wrong_with_one_partition_is_its_own(new_url: NewUrl, tmp_path: Path) -> None:
    """A partition whose log does not read waits, says why and tries again; the others are decided
    as ever, and so is it once it reads."""
    url, sign = new_url(), tmp_path / "broken"
    create_log(url, 2)
    broken, whole = spread(2, 2)
    with (
        projecting(url, tmp_path / "home", before=BROKEN.format(sign=str(sign))) as projector,
        Engine.connect(url, home=tmp_path / "worker") as engine,
    ):
        projector.await_turning(0, 1)
        sign.touch()
        until(lambda: projector.lines("outage"))
        engine.start(whole, goal="x")
        for number in range(20):
            assert engine.run(whole).propose([fact(str(number))]).accepted
        with pytest.raises(errors.OutcomeUnknown):
            engine.start(broken, goal="x", timeout=1)
        until(lambda: health(url, projector.home)[0] == 6, 60, 0.5)
        assert "does not read (CRC)" in str(health(url, projector.home)[1])
        [told] = projector.lines("outage")
        assert told["partition"] == 0
        sign.unlink()
        until(lambda: projector.lines("went_on"))
        assert engine.run(broken).propose([fact("a")]).accepted
        until(lambda: health(url, projector.home)[0] == 0, 60, 0.5)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_who_gets_no_partition_is_in_the_group(
    new_url: NewUrl, tmp_path: Path, protocol: str
) -> None:
    """A member for which no partition is left is idle, which is healthy."""
    url = new_url()
    create_log(url, 1)
    options = ("--group-protocol", protocol)
    with projecting(url, tmp_path / "first", *options) as first:
        first.await_turning(0)
        with projecting(url, tmp_path / "second", *options):
            until(lambda: health(url, tmp_path / "second")[1]["phase"] == "idle", 30, 0.2)
            assert health(url, tmp_path / "second")[0] == 0


def test_what_nobody_has_is_ill_health(new_url: NewUrl, tmp_path: Path) -> None:
    """Members in good health answer for late proposals of a partition that nobody decides."""
    url = new_url()
    create_log(url, 1)
    home = tmp_path / "home"
    with (
        projecting(url, home, before=DEAF) as projector,
        Engine.connect(url, home=tmp_path / "worker") as engine,
    ):
        projector.await_turning(0)
        with pytest.raises(errors.OutcomeUnknown):
            engine.start("run_1", goal="x", timeout=0.5)
        until(lambda: health(url, home)[0] == 6, 60, 0.5)
        found = health(url, home)[1]
        assert found["phase"] == "turning"
        assert "nothing of what waits is decided in partitions [0]" in found["message"]


DEAF = """
from foldlog.log.kafka.owned import OwnedLog
OwnedLog.wait = lambda self, seconds: __import__("time").sleep(seconds)
"""


def test_health_follows_progress(new_url: NewUrl, tmp_path: Path) -> None:
    """Health is 0 while what waits is decided; a member that stands still with work is 6."""
    url = new_url()
    create_log(url, 1)
    home = tmp_path / "home"
    with projecting(url, home) as projector:
        projector.await_turning(0)
        # What it says of itself it writes twice a second.
        until(lambda: health(url, home)[1]["phase"] == "turning", 60, 0.2)
        code, found = health(url, home)
        assert (code, found["healthy"], found["phase"]) == (0, True, "turning")
        command = [*FOLDLOG, "project", "--health", "--log", url, "--home", str(home)]
        said = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=60
        )
        assert said.stdout.startswith("healthy: process "), said.stderr
        projector.send(signal.SIGSTOP)
        with (
            Engine.connect(url, home=tmp_path / "worker") as engine,
            pytest.raises(errors.OutcomeUnknown),
        ):
            engine.start("run_1", goal="x", timeout=0.5)
        until(lambda: health(url, home)[0] == 6, 90, 0.5)
        projector.send(signal.SIGCONT)
        until(lambda: health(url, home)[0] == 0, 90, 0.5)
