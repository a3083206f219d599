"""Snapshots of a log on Kafka: taken by projectors, recovered from, and what is done by hand.

Invariants:
- Projectors are processes of their own, ended with SIGKILL; nobody repairs anything after it.
- What a projector has folded is read beside it, and compared with what a follower folds anew.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from foldlog import Engine
from foldlog.audit import digest_of, run_digest
from foldlog.log.kafka.log import KafkaLog
from foldlog.reaching import create_log, open_log, stores_of
from foldlog.store.follower import RocksFollower
from foldlog.views import View
from tests.kafka.projectors import Projector, projecting
from tests.kafka.test_members import SOON, fact, settle, spread
from tests.snapshot_homes import cut
from tests.workers import FOLDLOG, environment, until

NewUrl = Callable[[], str]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Projectors take a snapshot after every 20 records."""
    monkeypatch.setenv("FOLDLOG_SNAPSHOT_RECORDS", "20")


@contextmanager
def deciding(url: str, home: Path, *args: str, **options: Any) -> Iterator[Projector]:
    """A projector, whose log begins anew."""
    (home / "projector.log").unlink(missing_ok=True)
    with projecting(url, home, *args, **{"settings": SOON, **options}) as projector:
        yield projector


def propose(url: str, home: Path, runs: list[str], each: int) -> None:
    """Some facts more for each of these runs, which are started where they are missing."""
    with Engine.connect(url, home=home) as engine:
        for run_id in runs:
            run = engine.run(run_id)
            if run.state() is None:
                run = engine.start(run_id, goal="x", timeout=60)
            for _ in range(each):
                outcome = run.propose([fact(f"f{time.monotonic_ns()}")], timeout=60)
                assert outcome.outcome == "accepted"


def folded(log: KafkaLog, home: Path, number: int, stores: str = "projection") -> View:
    """A partition as a projector has it in its store."""
    return View(log, RocksFollower(home / stores / str(number)), number)


def stored_digest(url: str, home: Path) -> str:
    """The digest of everything as the stores of a projector have it."""
    log = open_log(url)
    try:
        views = [folded(log, home, number) for number in range(log.partitions)]
        return digest_of(
            {id: run_digest(view.run(id).state()) for view in views for id in view.run_ids()}
        )
    finally:
        log.close()


def await_folded(url: str, home: Path) -> None:
    """Wait until a projector's stores hold the whole log."""
    log = open_log(url)
    try:
        for number in range(log.partitions):
            end = log.end(number)
            until(lambda n=number, end=end: folded(log, home, n).meta().offset >= end)
    finally:
        log.close()


def await_snapshots(projector: Projector, partitions: int) -> None:
    """Wait until a projector has taken a snapshot of each partition."""
    until(
        lambda: len({row["partition"] for row in projector.lines("took_snapshot")}) == partitions,
        60,
    )


def command(url: str, home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `foldlog` on the log, as from a shell."""
    return subprocess.run(
        [*FOLDLOG, *args, "--log", url, "--home", str(home)],
        capture_output=True, text=True, env=environment(), timeout=120,
    )  # fmt: skip


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What a command printed as JSON lines, if it ended well."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_fault_25_a_killed_projector_recovers_from_what_it_has(
    new_url: NewUrl, tmp_path: Path
) -> None:
    """Killed and started again with a warm store, with a cold one and snapshots, with a broken one,
    and with neither, a projector ends with the digest that a follower has, each time."""
    url, home, worker = new_url(), tmp_path / "home", tmp_path / "worker"
    create_log(url, 2)
    runs = spread(4, 2)
    with deciding(url, home) as projector:
        propose(url, worker, runs, 12)
        await_snapshots(projector, 2)
        propose(url, worker, runs, 1)
        for case in ("warm", "cold", "broken", "nothing"):
            projector.kill()
            if case == "cold":
                shutil.rmtree(home / "projection")
            elif case == "broken":
                [manifest] = (home / "projection" / "0").glob("MANIFEST-*")
                cut(manifest)
            elif case == "nothing":
                shutil.rmtree(home / "projection")
                shutil.rmtree(home / "snapshots")
            projector.restart()
            projector.await_turning(0, 1)
            await_folded(url, home)
            with Engine.connect(url, home=worker) as follower:
                assert stored_digest(url, home) == follower.digest(), case
                assert follower.verify().ok
            restored = {row["partition"] for row in projector.lines("restored")}
            assert (
                restored == {"warm": set(), "cold": {0, 1}, "broken": {0}, "nothing": set()}[case]
            )
            whole = {row["partition"]: row["records"] for row in projector.lines("folded")}
            if case == "cold":
                assert all(count < 20 for count in whole.values()), whole
            if case == "nothing":
                assert sum(whole.values()) >= 4 * 14
            propose(url, worker, runs, 1)


def test_a_snapshot_names_cluster_and_topics(new_url: NewUrl, tmp_path: Path) -> None:
    """A manifest says of which cluster and topics it is; one of other topics is not used, and is
    put aside with the reason."""
    first, second, homes = new_url(), new_url(), [tmp_path / "one", tmp_path / "two"]
    for url, home in ((first, homes[0]), (second, homes[1])):
        create_log(url, 1)
        with deciding(url, home) as projector:
            propose(url, tmp_path / f"worker-{home.name}", spread(1, 1), 25)
            await_snapshots(projector, 1)
    [found] = rows(command(first, homes[0], "snapshot", "list", "--json"))[:1]
    log = open_log(first)
    assert found["origin"] == log.origin
    assert set(log.origin) == {"cluster", "events", "proposals"}
    log.close()
    shutil.rmtree(homes[1] / "projection")
    shutil.rmtree(homes[1] / "snapshots")
    shutil.copytree(homes[0] / "snapshots", homes[1] / "snapshots")
    with deciding(second, homes[1]) as projector:
        projector.await_turning(0)
        await_folded(second, homes[1])
    listed = rows(command(second, homes[1], "snapshot", "list", "--json"))
    bad = {row["name"]: row["reason"] for row in listed if row["state"] == "quarantined"}
    assert f"of log {found['log']}" in bad[found["name"]]
    with Engine.connect(second, home=tmp_path / "worker-two") as follower:
        assert stored_digest(second, homes[1]) == follower.digest()


def test_fault_27_a_log_that_was_cut_needs_a_snapshot(
    new_url: NewUrl, bootstrap: str, tmp_path: Path
) -> None:
    """Where the beginning of `events` is gone, a projector on an empty disk goes on from a snapshot
    that covers it; without one it halts, and says which records are missing."""
    url, home, worker = new_url(), tmp_path / "home", tmp_path / "worker"
    create_log(url, 1)
    with deciding(url, home) as projector:
        propose(url, worker, ["run_1"], 25)
        await_snapshots(projector, 1)
        propose(url, worker, ["run_1"], 2)
        await_folded(url, home)
    digest = stored_digest(url, home)
    [newest, *_] = rows(command(url, home, "snapshot", "list", "--json"))
    prefix = url.rpartition("/")[2]
    place = TopicPartition(f"{prefix}.events", 0, newest["offset"] - 1)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([place])[place].result()
    shutil.rmtree(home / "projection")
    with deciding(url, home) as projector:
        projector.await_turning(0)
        await_folded(url, home)
        assert stored_digest(url, home) == digest
        assert projector.lines("restored")[0]["snapshot"] == newest["name"]
        assert projector.lines("halted") == []
    with deciding(url, tmp_path / "other") as projector:
        until(lambda: bool(projector.lines("halted")), 60)
        message = projector.lines("halted")[0]["message"]
        assert f"records 1 to {newest['sequence']} are gone" in message
        assert "snapshot" in message


SLOW = """
import time, foldlog.recovery
restored = foldlog.recovery.restored
def slow(*args, stop, **options):
    for _ in range(90):
        time.sleep(0.1)
        stop()
    return restored(*args, stop=stop, **options)
foldlog.recovery.restored = slow
"""


def test_fault_20_a_long_restore_keeps_its_place_in_the_group(
    new_url: NewUrl, tmp_path: Path
) -> None:
    """While one partition is restored for longer than a member may be silent, the group hears from
    the projector, the partition stays its own, and the other one is decided meanwhile."""
    url, home, worker = new_url(), tmp_path / "home", tmp_path / "worker"
    create_log(url, 2)
    runs = spread(2, 2)
    with deciding(url, home) as projector:
        propose(url, worker, runs, 25)
        await_snapshots(projector, 2)
    shutil.rmtree(home / "projection" / "0")
    hasty = {**SOON, "max.poll.interval.ms": "6000"}
    with deciding(url, home, settings=hasty, before=SLOW) as projector:
        projector.await_turning(1)
        assert {row["partition"] for row in projector.lines("folded")} == {1}
        propose(url, worker, runs[1:], 3)
        assert {row["partition"] for row in projector.lines("folded")} == {1}
        projector.await_turning(0)
        propose(url, worker, runs, 1)
        assert [row["partition"] for row in projector.lines("restored")] == [0]
        assert len(projector.lines("assigned")) == 1
        for event in ("lost", "revoked", "membership_ended"):
            assert projector.lines(event) == []


def test_a_projector_that_ends_while_it_restores(new_url: NewUrl, tmp_path: Path) -> None:
    """Told to end in the middle of a restore it ends at once, and leaves nothing half restored."""
    url, home, worker = new_url(), tmp_path / "home", tmp_path / "worker"
    create_log(url, 1)
    with deciding(url, home) as projector:
        propose(url, worker, ["run_1"], 25)
        await_snapshots(projector, 1)
    shutil.rmtree(home / "projection")
    with deciding(url, home, before=SLOW) as projector:
        until(lambda: bool(projector.lines("assigned")), 60)
        time.sleep(0.5)
        projector.send(signal.SIGTERM)
        assert projector.process.wait(30) == 0
    assert [path.name for path in (home / "projection").iterdir()] == ["0.lock"]
    with deciding(url, home) as projector:
        projector.await_turning(0)
        assert len(projector.lines("restored")) == 1


def test_another_machine_takes_over_from_the_place(
    new_url: NewUrl, place_url: str, tmp_path: Path
) -> None:
    """When a projector is killed, another one with an empty disk goes on from what the first has
    uploaded and the tail of the log, and ends with the digest that a follower has."""
    url, worker, place = new_url(), tmp_path / "worker", ("--snapshots", place_url)
    create_log(url, 2)
    runs = spread(4, 2)
    with deciding(url, tmp_path / "one", *place) as projector:
        propose(url, worker, runs, 12)
        until(lambda: len({row["partition"] for row in projector.lines("uploaded")}) == 2, 60)
        projector.kill()
    with deciding(url, tmp_path / "two", *place) as heir:
        heir.await_turning(0, 1)
        await_folded(url, tmp_path / "two")
        assert {row["partition"] for row in heir.lines("restored")} == {0, 1}
        assert all(row["records"] < 20 for row in heir.lines("folded"))
        propose(url, worker, runs, 1)
        await_folded(url, tmp_path / "two")
        with Engine.connect(url, home=worker) as follower:
            assert stored_digest(url, tmp_path / "two") == follower.digest()
            assert follower.verify().ok


def test_snapshots_by_hand_beside_a_projector(new_url: NewUrl, tmp_path: Path) -> None:
    """create, list, verify, prune, verify and replay work in a projector's home while it decides;
    a rebuild is taken over by it; only restore needs it to be gone."""
    url, home, worker = new_url(), tmp_path / "home", tmp_path / "worker"
    create_log(url, 2)
    runs = spread(4, 2)
    with deciding(url, home) as projector:
        for _ in range(2):
            propose(url, worker, runs, 3)
            await_folded(url, home)
            taken = rows(command(url, home, "snapshot", "create", "--json"))
            assert [row["partition"] for row in taken] == [0, 1]
        assert all(row["ok"] for row in rows(command(url, home, "snapshot", "verify", "--json")))
        pruned = rows(command(url, home, "snapshot", "prune", "--json"))
        assert [len(row["kept"]) for row in pruned] == [2, 2]
        busy = command(url, home, "snapshot", "restore")
        assert (busy.returncode, "has it open" in busy.stderr) == (6, True)
        rebuilt = rows(command(url, home, "rebuild", "--from", "start", "--json"))
        assert [(row["swapped"], row["compared"], row["differing"]) for row in rebuilt] == [
            (True, 2, []), (True, 2, []),
        ]  # fmt: skip
        propose(url, worker, runs, 1)
        [report] = rows(command(url, home, "verify", "--json"))
        assert (report["ok"], report["snapshots"] >= 4) == (True, True)
        [whole] = rows(command(url, home, "replay", "--json"))
        from_snapshot = command(
            url, home, "replay", "--from", "snapshot", "--expect-digest", whole["digest"], "--json"
        )
        assert rows(from_snapshot)[0]["records"] < whole["records"]
        assert command(url, home, "replay", "--expect-digest", "0" * 64).returncode == 5
        await_folded(url, home)
        assert stored_digest(url, home) == whole["digest"]
        assert projector.lines("halted") == []
    restored = rows(command(url, home, "snapshot", "restore", "--json"))
    newest = [row["name"] for row in rows(command(url, home, "snapshot", "list", "--json"))]
    assert {row["name"] for row in restored} < set(newest)
    with deciding(url, home) as projector:
        projector.await_turning(0, 1)
        await_folded(url, home)
        assert stored_digest(url, home) == whole["digest"]


def test_snapshots_of_what_an_auditor_has_folded(new_url: NewUrl, tmp_path: Path) -> None:
    """In a home where no projector works they are taken of what its followers folded, and that is
    what is restored and rebuilt."""
    url, home = new_url(), tmp_path / "auditor"
    create_log(url, 1)
    with deciding(url, tmp_path / "home"):
        propose(url, tmp_path / "worker", ["run_1"], 5)
        settle(url, tmp_path / "worker")
        [taken] = rows(command(url, home, "snapshot", "create", "--json"))
        assert taken["sequence"] == 6
        propose(url, tmp_path / "worker", ["run_1"], 1)
        [restored] = rows(command(url, home, "snapshot", "restore", "--json"))
        assert restored["name"] == taken["name"]
        [whole] = rows(command(url, home, "replay", "--json"))
        [tail] = rows(command(url, home, "replay", "--from", "snapshot", "--json"))
        assert (whole["digest"], whole["records"], tail["records"]) == (tail["digest"], 7, 1)
        with Engine.connect(url, home=home) as engine:
            assert engine.digest() == whole["digest"]
            [rebuilt] = rows(command(url, home, "rebuild", "--json"))
            assert rebuilt["from"] == f"snapshot {taken['name']}"
            propose(url, tmp_path / "worker", ["run_1"], 1)
            assert engine.run("run_1").state().revision == 8  # type: ignore[union-attr]
            assert engine.verify().ok
    assert not (home / "projection").exists()


def test_a_store_is_one_process_s(new_url: NewUrl, tmp_path: Path) -> None:
    """Two that open a partition's store of one home at once: the second is told who is there."""
    from foldlog.store.base import StoreBusy

    url, home = new_url(), tmp_path / "home"
    create_log(url, 1)
    (home / "projection").mkdir(parents=True)
    first, second = stores_of(url, home), stores_of(url, home)
    store = first.open(0)
    with pytest.raises(StoreBusy):
        second.open(0)
    store.close()
    second.open(0).close()
    first.close()
    second.close()
