"""Faults of a real broker: killed and restarted in mid-turn, without its topics, and back again.

Invariants:
- Each test has a cluster of its own, so that no other test meets its faults.
- After each fault: nothing acknowledged is lost, nothing is applied twice, there is no hole.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from foldlog import Engine, errors
from foldlog.client import Run
from foldlog.log.base import ZERO_HEAD, Entry, LogError
from foldlog.log.kafka import log as kafka_log
from foldlog.reaching import create_log, open_log
from foldlog.wire.partitioner import partition_of
from tests.kafka.broker import Cluster
from tests.kafka.fixtures import check_programs
from tests.kafka.projectors import Projector, health, projecting
from tests.kafka.test_members import SOON, check, fact, proposing, settle, spread
from tests.workers import until

KILLS = int(os.environ.get("FOLDLOG_KAFKA_KILLS", "20"))
LONG = bool(os.environ.get("FOLDLOG_KAFKA_LONG"))


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    """Starts clusters of the test's own; they end with it."""
    check_programs()
    with ExitStack() as stack:

        def start(brokers: int) -> Cluster:
            cluster = Cluster(tmp_path / "cluster")
            cluster.create(brokers)
            stack.callback(cluster.stop)
            cluster.start()
            return cluster

        yield start


def test_a_broker_killed_and_restarted_in_mid_turn(
    new_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """Killed or ended at random moments under load, and started again: workers and projector wait
    and go on by themselves; every outcome that was told stands."""
    cluster, dice = new_cluster(1), random.Random(7)
    url = f"kafka://{cluster.bootstrap}/killed"
    create_log(url, 2)
    with projecting(url, tmp_path / "home", settings=SOON) as projector:
        projector.await_turning(0, 1)
        with proposing(url, tmp_path / "worker", spread(4, 2)) as made:
            for number in range(KILLS):
                before = len(made.told)
                until(lambda before=before: len(made.told) > before + 5, 90)
                time.sleep(dice.random() / 20)  # somewhere inside a turn
                (cluster.kill if number % 4 else cluster.stop)(1)
                cluster.start(1)
            before = len(made.told)
            until(lambda: len(made.told) > before + 20, 90)
        settle(url, tmp_path / "worker")
        check(url, tmp_path / "auditor", made.told)
        assert projector.lines("halted") == []
        assert projector.process.poll() is None
    print(f"{KILLS} ends of a broker, {len(made.told)} outcomes, {made.unknown} unknown")  # noqa: T201


def test_an_outage_is_told_and_waited_out(
    new_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """While no broker answers, health and log say so and commands end with 6 within their time;
    what was proposed meanwhile is decided once it is back."""
    cluster = new_cluster(1)
    url = f"kafka://{cluster.bootstrap}/outage"
    create_log(url, 1)
    with (
        projecting(url, tmp_path / "home", settings=SOON) as projector,
        Engine.connect(url, home=tmp_path / "worker") as engine,
    ):
        projector.await_turning(0)
        run = engine.start("run_1", goal="x", timeout=60)
        cluster.kill(1)
        began = time.monotonic()
        with pytest.raises(errors.OutcomeUnknown) as unknown:
            run.propose([fact("a")], timeout=3)
        assert time.monotonic() - began < 30
        with pytest.raises(errors.Unavailable):
            run.state()
        with pytest.raises(errors.Unavailable):
            Engine.connect(url, home=tmp_path / "another")
        cluster.start(1)
        until(lambda: is_decided(run, unknown.value.batch_id), 90, 0.2)
        assert run.propose([fact("b")]).outcome == "accepted"
        until(lambda: health(url, tmp_path / "home")[0] == 0, 60, 0.5)
        assert projector.lines("halted") == []


def is_decided(run: Run, batch_id: str) -> bool:
    """Whether a batch has its outcome; not yet where the brokers are not quite back."""
    with suppress(errors.Unavailable):
        return run.outcome(batch_id) is not None
    return False


def test_a_topic_deleted_under_a_projector(
    new_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """A deleted log of record stops every decision and says what is missing; made anew it is
    refused by everybody who knew it."""
    cluster = new_cluster(1)
    url = f"kafka://{cluster.bootstrap}/deleted"
    create_log(url, 1)
    with projecting(url, tmp_path / "home", settings=SOON) as projector:
        projector.await_turning(0)
        with Engine.connect(url, home=tmp_path / "worker") as engine:
            engine.start("run_1", goal="x", timeout=60)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
            admin.delete_topics(["deleted.events"])["deleted.events"].result()
            with pytest.raises((errors.OutcomeUnknown, errors.Unavailable, errors.Damaged)):
                engine.run("run_1").propose([fact("a")], timeout=2)
            with pytest.raises((errors.Unavailable, errors.Damaged)):
                engine.run("run_1").state()
        until(lambda: projector.lines("outage") or projector.lines("halted"), 90)
        said = [line["message"] for line in projector.lines("outage") + projector.lines("halted")]
        assert any("deleted.events" in text for text in said), said
        until(lambda: health(url, tmp_path / "home")[0] == 6, 60, 0.5)
    with pytest.raises(errors.LogRefused, match=r"deleted\.events is missing"):
        Engine.connect(url, home=tmp_path / "worker")
    refused = Projector(url, tmp_path / "home")
    assert refused.process.wait(90) == 6


def test_a_delivery_that_fails_is_an_error_and_leaves_no_gap(
    new_cluster: Callable[[int], Cluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An append that the broker does not confirm in time is unknown; what of it arrives later is
    its beginning, and the next append of the same log object works."""
    cluster = new_cluster(1)
    url = f"kafka://{cluster.bootstrap}/unconfirmed"
    create_log(url, 1)
    log = open_log(url)
    entries = [Entry(b"run", bytes([n]) * 200_000, n, n, bytes([n]) * 32) for n in range(1, 11)]
    log.append(0, ZERO_HEAD, entries[:1])
    monkeypatch.setattr(kafka_log, "WRITE_SECONDS", 1.0)
    cluster.kill(1)
    with pytest.raises(LogError, match="did not confirm"):
        log.append(0, entries[0].head, entries[1:])
    with pytest.raises(LogError):
        log.propose(0, [(b"run", b"value")])
    cluster.start(1)
    monkeypatch.undo()
    log.append(0, entries[0].head, entries[1:])
    found = [row.sequence for row in log.events(0, 0, 100, 1 << 30)]
    first = found[: len(found) - 9]
    assert found[-9:] == list(range(2, 11))
    assert first == list(range(1, len(first) + 1))
    log.close()


def test_a_java_client_finds_a_run(new_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    """The console consumer reads a run's records in the partition that foldlog expects, and what
    the console producer sends under a run's id comes to the same one."""
    cluster = new_cluster(1)
    url = f"kafka://{cluster.bootstrap}/java"
    create_log(url, 4)
    log = open_log(url)
    run_ids = [f"run_{n}" for n in range(20)] + ["run-é", "r"]
    with projecting(url, tmp_path / "home") as projector:
        projector.await_turning(0, 1, 2, 3)
        with Engine.connect(url, home=tmp_path / "worker") as engine:
            for run_id in run_ids[:3]:
                started: Any = engine.start(run_id, goal="x", timeout=60).started
                count = len(log.events(started.partition, 0, 1_000, 1 << 30))
                printed = cluster.tool(
                    "org.apache.kafka.tools.consumer.ConsoleConsumer",
                    "--topic", log.address.events, "--partition", started.partition,
                    "--offset", "earliest", "--max-messages", count, "--timeout-ms", 60_000,
                    "--formatter-property", "print.key=true",
                    "--formatter-property", "print.value=false",
                )  # fmt: skip
                assert run_id in printed.split()
    cluster.tool(
        "org.apache.kafka.tools.ConsoleProducer", "--topic", log.address.proposals,
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=|",
        given="".join(f"{run_id}|from java\n" for run_id in run_ids),
    )  # fmt: skip
    for run_id in run_ids:
        rows = log.proposals(partition_of(run_id, 4), 0, 1_000, 1 << 30)
        assert (run_id.encode(), b"from java") in [(row.key, row.value) for row in rows]
    log.close()


def in_sync(admin: AdminClient) -> int:
    """How many copies are in sync of the partition that has fewest."""
    topics = admin.list_topics(timeout=10).topics.values()
    return min(len(place.isrs) for topic in topics for place in topic.partitions.values())


@pytest.mark.skipif(not LONG, reason="three brokers: make kafka-long")
def test_a_cluster_that_loses_its_leader(
    new_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """Of three brokers one after the other is killed under load, the partitions' leader and the
    group's coordinator among them: work goes on, and nothing is lost."""
    cluster = new_cluster(3)
    url = f"kafka://{cluster.bootstrap}/three"
    create_log(url, 3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    with projecting(url, tmp_path / "home", settings=SOON) as projector:
        projector.await_turning(0, 1, 2)
        with proposing(url, tmp_path / "worker", spread(6, 3)) as made:
            for id in (1, 2, 3, 1):
                # With one that has not caught up, two would be missing: fewer than min.insync.
                until(lambda: in_sync(admin) == 3, 180, 0.5)
                cluster.kill(id)
                before = len(made.told)
                until(lambda before=before: len(made.told) > before + 10, 180)
                cluster.start(id)
                before = len(made.told)
                until(lambda before=before: len(made.told) > before + 10, 180)
        settle(url, tmp_path / "worker")
        check(url, tmp_path / "auditor", made.told)
        assert projector.lines("halted") == []
