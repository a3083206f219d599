"""Workers, followers and auditors of a log on Kafka, beside a real projector."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click import Argument, Command, Context
from confluent_kafka import Producer

from foldlog import Engine, aio, errors
from foldlog.cli.completing import run_ids
from foldlog.core.catalogue import CATALOGUE
from foldlog.log.kafka.handles import Handles
from foldlog.log.kafka.log import KafkaLog
from foldlog.reaching import create_log, open_log
from foldlog.store.memory import MemoryStore
from foldlog.turn import Partition
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import decode_record
from tests.client_runs import act, running, wait
from tests.kafka.projectors import Projector, projecting
from tests.kafka.test_log import trim
from tests.kafka.test_members import spread
from tests.turn_world import encoded, start
from tests.workers import FOLDLOG, environment

PARTITIONS = 2
ALL = 1 << 30


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projector]:
    """A log of two partitions and its projector; tests have runs of their own."""
    url = f"kafka://{bootstrap}/t{uuid.uuid4().hex[:12]}"
    create_log(url, PARTITIONS)
    with projecting(url, tmp_path_factory.mktemp("projector")) as projector:
        projector.await_turning(*range(PARTITIONS))
        yield projector


@pytest.fixture
def run_id() -> str:
    """A run that no other test knows."""
    return f"run_{uuid.uuid4().hex[:10]}"


def fact(name: str) -> dict[str, Any]:
    """An event that needs no expectation."""
    return {"type": "FactConfirmed", "fact": {"id": name, "statement": "so"}}


def names(state: Any) -> list[str]:
    """The ids of the facts of a run."""
    return [each["id"] for each in state.confirmed_facts]


def command(url: str, home: Path, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `foldlog` on the log, as from a shell."""
    return subprocess.run(
        [*FOLDLOG, *args, "--log", url, "--home", str(home)],
        input=stdin, capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip


# Workers


def test_a_worker_proposes_and_reads(engine: Engine, run_id: str) -> None:
    """Outcomes, state, history, moments and differences are those of any engine."""
    run = engine.start(run_id, goal="mend the lamp")
    assert run.started is not None
    assert (run.started.outcome, run.started.revision) == ("accepted", 1)
    assert run.propose([fact("a")]).revision == 2
    refused = run.propose([{"type": "PhaseChanged", "phase": "p"}])
    assert (refused.outcome, refused.code) == ("rejected", "EXPECTATION_REQUIRED")
    assert run.propose([fact("b")], expected_revision=2).revision == 3
    state = run.state()
    assert state is not None
    assert (state.revision, names(state)) == (3, ["a", "b"])
    assert [row.outcome for row in run.history(rejected=True)] == [
        "accepted", "accepted", "rejected", "accepted",
    ]  # fmt: skip
    then = run.at(2)
    assert then is not None
    assert names(then) == ["a"]
    assert [row.entity for row in run.diff(2, 3) or []] == ["fact/b"]
    assert run_id in {row.run_id for row in engine.runs()}
    assert engine.verify(run_id).ok


def test_a_batch_counts_once(engine: Engine, run_id: str) -> None:
    """Sent again under its id it is a duplicate with the first outcome, of any engine."""
    run, batch_id = engine.start(run_id, goal="x"), str(uuid.uuid4())
    first = run.propose([fact("a")], batch_id=batch_id)
    again = run.propose([fact("a")], batch_id=batch_id)
    assert (again.outcome, again.duplicate, again.revision) == ("accepted", True, first.revision)
    found = run.outcome(batch_id)
    assert found is not None
    assert found.sequence == first.sequence
    assert run.outcome(str(uuid.uuid4())) is None


def test_outcomes_of_many_threads(engine: Engine, run_id: str) -> None:
    """Threads that wait at once each get the outcome of their own proposal."""
    run = engine.start(run_id, goal="x")
    told: dict[str, Any] = {}

    def work(number: int) -> None:
        for turn in range(8):
            batch_id = str(uuid.uuid4())
            other = engine.run(f"{run_id}-{number}") if turn == 0 else run
            event = {"type": "RunStarted", "goal": {"statement": "y"}}
            events = [event] if turn == 0 else [fact(f"f{number}-{turn}")]
            told[batch_id] = other.propose(events, batch_id=batch_id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 48
    assert all(outcome.batch_id == batch_id for batch_id, outcome in told.items())
    state = run.state()
    assert state is not None
    assert state.revision == 1 + 6 * 7


def test_a_reader_is_as_new_as_the_log(
    engine: Engine, url: str, tmp_path: Path, run_id: str
) -> None:
    """What one engine was told, every other reads at once: with a home of its own, with the same
    home at the same time, and from the command line."""
    run = engine.start(run_id, goal="x")
    with (
        Engine.connect(url, home=tmp_path / "elsewhere") as other,
        Engine.connect(url, home=tmp_path / "home") as same,
    ):
        assert engine.run(run_id).state() is not None
        for number in range(5):
            revision = run.propose([fact(f"f{number}")]).revision
            for reader in (other, same, engine):
                state = reader.run(run_id).state()
                assert state is not None
                assert state.revision == revision
        assert other.digest() == same.digest() == engine.digest()
    shown = json.loads(command(url, tmp_path / "home", "show", run_id, "--json").stdout)
    assert shown["revision"] == 6


def test_ctrl_c_while_proposing(engine: Engine, run_id: str) -> None:
    """Interrupted at any moment, proposing goes on; what was interrupted counts once at most."""
    run, dice, struck = engine.start(run_id, goal="x"), random.Random(1), set()
    armed = False

    def strike(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for number in range(40):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, dice.random() * 0.005)
                run.propose([fact(f"f{number}")])
                armed = False
            except KeyboardInterrupt:
                armed = False
                struck.add(f"f{number}")
            assert run.propose([fact(f"g{number}")], timeout=60).outcome == "accepted"
    finally:
        armed = False
        signal.signal(signal.SIGALRM, before)
    assert struck
    every = {f"{letter}{number}" for letter in "fg" for number in range(40)}
    found = names(run.state())
    assert every - set(found) <= struck
    assert len(found) == len(set(found))


def test_an_async_twin_connects(url: str, tmp_path: Path, run_id: str) -> None:
    """The async engine connects with the same options and gives the same."""

    async def work() -> int:
        async with await aio.Engine.connect(url, home=tmp_path / "home") as engine:
            run = await engine.start(run_id, goal="x")
            outcome = await run.propose([fact("a")])
            return int(outcome.revision)

    assert asyncio.run(work()) == 2


def test_a_producer_that_fell_silent_is_replaced(
    url: str, tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a worker's client reports nothing (as after an outage it may), what it was given is
    sent again by another one: the call gets its outcome, and so do those after it."""
    real, made = Handles.proposer, list[Any]()

    def proposer(self: Handles) -> Any:
        made.append(None)
        if len(made) == 1:  # a client that knows no broker says nothing
            return Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        return real(self)

    monkeypatch.setattr(Handles, "proposer", proposer)
    with Engine.connect(url, home=tmp_path) as engine:
        run = engine.start(run_id, goal="x", timeout=30)
        assert run.propose([fact("a")], timeout=10).accepted
        state = run.state()
    assert names(state) == ["a"]
    assert len(made) == 2


def test_without_a_projector_the_outcome_is_unknown(bootstrap: str, tmp_path: Path) -> None:
    """A proposal that nobody decides in time may be decided later; its id asks for it then."""
    url = f"kafka://{bootstrap}/t{uuid.uuid4().hex[:12]}"
    create_log(url, 1)
    with Engine.connect(url, home=tmp_path / "home") as engine:
        batch_id = str(uuid.uuid4())
        with pytest.raises(errors.OutcomeUnknown, match=batch_id):
            engine.start("run_1", goal="x", batch_id=batch_id, timeout=0.3)
        done = command(url, tmp_path / "projector", "project", "--once", "--json")
        assert json.loads(done.stdout) == {"decided": 1}, done.stderr
        outcome = engine.run("run_1").outcome(batch_id)
        assert outcome is not None
        assert outcome.outcome == "accepted"
        done = command(url, tmp_path / "projector", "project", "--once", "--json")
        assert json.loads(done.stdout) == {"decided": 0}, done.stderr


def test_a_worker_says_what_is_missing_of_a_truncated_log(bootstrap: str, tmp_path: Path) -> None:
    """Who cannot tell any more which records count gets no outcome, and the reason."""
    url = f"kafka://{bootstrap}/t{uuid.uuid4().hex[:12]}"
    create_log(url, 1)
    with projecting(url, tmp_path / "projector"):
        with Engine.connect(url, home=tmp_path / "home") as engine:
            assert engine.start("run_1", goal="x", timeout=60).propose([fact("a")]).accepted
        with contextlib.closing(open_log(url)) as log:
            assert isinstance(log, KafkaLog)
            trim(log, log.address.events, 1)
        with (
            Engine.connect(url, home=tmp_path / "other") as engine,
            pytest.raises(errors.OutcomeUnknown, match="is not there any more"),
        ):
            engine.run("run_1").propose([fact("b")], timeout=3)


def test_signals_waits_and_watching(engine: Engine, run_id: str) -> None:
    """A deadline passes by the projector's timekeeper; a watcher sees each row as it comes."""
    run = running(engine, run_id)
    seen = act(run, wait(deadline="2026-01-01T00:00:00Z"))
    rows = []
    for row in run.watch(after=0, timeout=60):
        rows.append(row)
        if "WaitTimedOut" in [event["type"] for event in row.events or []]:
            break
    assert [row.revision_after for row in rows] == list(range(1, seen.revision + 2))


# Followers and auditors


def test_a_read_says_what_it_covers(engine: Engine, run_id: str) -> None:
    """Status folds each partition to the log's end and names who decides it."""
    engine.start(run_id, goal="x")
    rows = engine.status()
    assert [row.partition for row in rows] == list(range(PARTITIONS))
    assert all(row.lag == 0 and row.void == 0 and row.owner for row in rows)
    assert sum(row.sequence for row in rows) >= 1
    number = partition_of(run_id, PARTITIONS)
    assert engine.heads()[number].to_dict()["sequence"] == rows[number].sequence


def test_an_auditor_folds_from_nothing(
    engine: Engine, url: str, tmp_path: Path, run_id: str
) -> None:
    """From a machine that has never seen the log: verify, replay and history agree with those who
    decided, and heads that were kept prove the log."""
    run = engine.start(run_id, goal="x")
    run.propose([fact("a")])
    heads = [head.to_dict() for head in engine.heads()]
    with Engine.connect(url, home=tmp_path / "auditor") as auditor:
        assert auditor.verify(heads=heads, redecide=True).ok
        replayed, mine = auditor.replay(run_id), engine.replay(run_id)
        assert replayed is not None
        assert mine is not None
        assert replayed.digest == mine.digest
        assert [row.to_dict() for row in auditor.run(run_id).history()] == [
            row.to_dict() for row in run.history()
        ]
    for line in (["verify", "--json"], ["history", run_id], ["runs"], ["status"], ["heads"]):
        done = command(url, tmp_path / "auditor", *line)
        assert done.returncode == 0, done.stderr


def test_one_run_is_read_by_its_index(engine: Engine, run_id: str) -> None:
    """History, a past state, differences and export of one run read its own records and no others,
    once the partition is folded."""
    number = partition_of(run_id, PARTITIONS)
    others = [f"other_{n}" for n in range(400) if partition_of(f"other_{n}", PARTITIONS) == number]
    run = engine.start(run_id, goal="x")
    log = engine._seat.place.log
    assert isinstance(log, KafkaLog)
    fill(log, number, others[:150])
    run.propose([fact("a")])
    assert run.state() is not None
    read: list[int] = []
    cursor = log._cursor("events", number)
    make = cursor._make

    def counting(message: Any) -> Any:
        read.append(1)
        return make(message)

    cursor._make = counting
    assert len(run.history()) == 2
    assert run.at(1) is not None
    assert len(run.diff(1, 2) or []) == 1
    assert len(run.export() or []) == 2
    assert len(read) < 30  # what is read past on the way is not made into rows


def fill(log: KafkaLog, number: int, run_ids: list[str]) -> None:
    """Propose the start of many runs and wait until they are decided."""
    log.propose(number, [encoded(run_id, start(n + 1)) for n, run_id in enumerate(run_ids)])
    end = log.proposals_end(number)
    while True:
        rows = log.events(number, log.end(number) - 1, 1, 1)
        if rows and decode_record(rows[-1].value).position >= end - 1:
            return


def test_a_run_moves_between_logs(engine: Engine, url: str, tmp_path: Path, run_id: str) -> None:
    """What export prints here is taken over by an embedded home, and the other way round, with its
    outcomes, log times and run chain."""
    run = engine.start(run_id, goal="x")
    run.propose([fact("a")])
    file = tmp_path / "run.jsonl"
    file.write_text(command(url, tmp_path / "home", "export", run_id).stdout)
    with Engine.open(tmp_path / "embedded", create=True):
        pass
    done = subprocess.run(
        [*FOLDLOG, "import", str(file), "--format", "foldlog", "--home", tmp_path / "embedded"],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Engine.open(tmp_path / "embedded") as embedded:
        mine, theirs = embedded.replay(run_id), engine.replay(run_id)
        assert mine is not None
        assert theirs is not None
        assert mine.digest == theirs.digest
        other = embedded.start(f"{run_id}-back", goal="y")
        other.propose([fact("b")])
        exported = other.export()
        assert exported is not None
        digest = embedded.replay(other.run_id)
    outcome, _ = engine.import_records(other.run_id, exported)
    assert outcome.outcome == "accepted"
    there = engine.replay(other.run_id)
    assert there is not None
    assert digest is not None
    assert there.digest == digest.digest


def test_an_engine_opened_before_a_fork_says_so(url: str, tmp_path: Path) -> None:
    """In the child it cannot be used, and says so at once."""
    code = """
import os, sys
from foldlog import Engine, errors
engine = Engine.connect(sys.argv[1], home=sys.argv[2])
if (pid := os.fork()) == 0:
    try:
        engine.run("run_1").state()
    except errors.EngineForked:
        os._exit(7)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
engine.close()
"""
    subprocess.run(
        [sys.executable, "-c", code, url, tmp_path / "forked"],
        check=True,
        timeout=60,
        env=environment(),
    )


def test_commands_find_no_log(bootstrap: str, tmp_path: Path) -> None:
    """Where there are no topics a command ends with 4 and says what to type."""
    done = command(f"kafka://{bootstrap}/nothing-here", tmp_path / "home", "runs")
    assert done.returncode == 4
    assert "foldlog init --log kafka://" in done.stderr
    assert done.stdout == ""


def test_a_reader_of_an_older_build_says_so(new_url: Callable[[], str], tmp_path: Path) -> None:
    """What a newer build decided under rules that this one has not is no damage: its partition is
    read no further, with the build to upgrade to; the other partitions are read as ever."""
    url = new_url()
    create_log(url, 2)
    newer, other = spread(2, 2)
    log = open_log(url)
    rules = {1: CATALOGUE, 2: CATALOGUE}
    for number, (name, version) in enumerate([(newer, 2), (other, 1)]):
        log.propose(number, [encoded(name, start(number + 1, rules_version=version))])
        assert Partition(log, MemoryStore(), number, "newer", rules).turn() == 1
    log.close()
    with Engine.connect(url, home=tmp_path / "home") as engine:
        for _ in range(2):
            with pytest.raises(errors.BuildTooOld, match="upgrade foldlog here") as told:
                engine.run(newer).state()
            assert (told.value.run_id, told.value.exit_code) == (newer, 6)
            assert engine.run(other).state() is not None
    done = command(url, tmp_path / "home", "show", newer)
    assert done.returncode == 6
    assert "BUILD_TOO_OLD" in done.stderr


def test_a_shell_completes_what_was_folded(
    engine: Engine, tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of runs are completed from the home, at once, wherever the brokers are; a home that has
    nothing offers none and gets nothing."""
    run = engine.start(run_id, goal="x")
    assert run.state() is not None
    monkeypatch.setenv("FOLDLOG_LOG", "kafka://127.0.0.1:9/nobody")

    def offered(home: Path) -> list[str]:
        ctx = Context(Command("show"))
        monkeypatch.setenv("FOLDLOG_HOME", str(home))
        return run_ids(ctx, Argument(["run_id"]), run_id[:8])

    assert run_id in offered(tmp_path / "home")
    (tmp_path / "empty").mkdir()
    assert offered(tmp_path / "empty") == []
    assert list((tmp_path / "empty").iterdir()) == []


def test_init_makes_a_log_and_a_home(new_url: Callable[[], str], tmp_path: Path) -> None:
    """`init --log` makes topics and folder; again it says that they are there."""
    url = new_url()
    made = command(url, tmp_path / "home", "init", "--partitions", "3", "--json")
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert (found["partitions"], found["created"], found["log"]) == (3, True, url)
    again = command(url, tmp_path / "home", "init")
    assert "there already" in again.stdout
    wrong = command(url, tmp_path / "home", "init", "--partitions", "5")
    assert wrong.returncode == 2
