"""Faults that users of neighbouring systems met, each as a short test through the client.

A fault's number is that of the project's list. Those that stand in no test here:

==  ===========================================================================================
 2  retention and pruning: neither is there yet
18  a snapshot outlives the code that made it: there are no snapshots yet. A projection of another
    state format is refused (test_a_projection_of_another_format_is_refused, below)
20  work in a rebalance callback: there is no Kafka backend yet
21  partitions that stay paused: there is no Kafka backend yet
23  offset reset and truncation: there is no Kafka backend yet. A projection ahead of its log halts:
    test_void_records, test_tampering
26  a corrupt newest snapshot: there are no snapshots yet
27  a log trimmed with no snapshot that covers it: nothing trims a log yet
28  restore into a live or dirty directory: there is no restore yet. A leaked lock:
    test_recovery, test_a_killed_holder_leaves_no_lock
31  health that is not tied to progress: test_daemon, test_fault_31_health_is_progress
32  a full disk: test_log_sqlite, test_a_full_disk_is_told_and_survived; test_store_rocks,
    test_after_a_failed_write_every_other_says_so
34  another partition in another client: test_wire_partitioner, against Java's numbers
35  a client made before a fork: test_fork; test_log_sqlite and test_store_rocks,
    test_a_fork_is_refused_and_disturbs_nothing
36  compaction of the log of record: there is no Kafka backend yet
37  injection through run content: test_cli_hostile, test_cli_safe
38  bombs in decoded input: test_wire_avro, test_a_bomb_is_refused_before_it_takes_memory
==  ===========================================================================================

More of what is here in short: 4 and 25 in test_recovery and test_kills; 12, 16, 17 and 19 in
test_turn; 24 and 33 in test_void_records; 5 in test_laws and test_tampering; 8 in test_wire_records
and test_projection.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from foldlog import client, errors, testing
from foldlog.holder import Holder
from foldlog.log.base import LogUnreachable
from foldlog.log.memory import MemoryLog
from foldlog.store.base import StoreError
from foldlog.store.memory import MemoryStore
from foldlog.store.rocks import RocksStore
from foldlog.wire import keys
from tests.client_runs import (
    AGENT,
    BATCH,
    NOW,
    OPERATOR,
    OTHER,
    Json,
    accepted,
    act,
    at_home,
    document,
    effect,
    event,
    fact,
    hand_in,
    refused,
    revision,
    running,
    started,
    store_of,
    task,
    wait,
)
from tests.seats import engine_on

PHASE = event("PhaseChanged", phase="p")


class WatchedStore(MemoryStore):
    """A store that counts what is asked of it, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.written = 0
        self.calls_until_failure = -1

    def _count(self) -> None:
        self.calls_until_failure -= 1
        if self.calls_until_failure == 0:
            raise StoreError("memory", "out of order", "try again")

    def get(self, key: bytes) -> bytes | None:
        """One key read."""
        self._count()
        self.read += 1
        return super().get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Each key that is really looked at counts."""
        self._count()
        for row in super().scan(prefix, reverse):
            self.read += 1
            yield row

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Bytes of keys and values written."""
        self._count()
        self.written += sum(len(key) + len(value or b"") for key, value in changes.items())
        super().write(changes)


def watched(
    log: MemoryLog | None = None, store: WatchedStore | None = None
) -> tuple[client.Engine, WatchedStore]:
    """An engine over a watched store, on a log of its own unless one is given."""
    clock, store = testing.Clock(NOW), store or WatchedStore()
    return engine_on(log or MemoryLog(1, clock), [store], clock), store


def test_fault_01_cost_does_not_grow_with_the_state() -> None:
    """The two-thousandth fact reads as many keys and writes as many bytes as the twentieth."""
    engine, store = watched()
    with engine:
        run = running(engine)
        costs = []
        for size in (20, 2_000):
            have = 0 if size == 20 else 20
            for first in range(have, size, 90):
                names = [f"f{number:05}" for number in range(first, min(first + 90, size))]
                accepted(run.propose([fact(name) for name in names], author=AGENT))
            store.read = store.written = 0
            accepted(run.propose([fact(f"more{size:05}")], author=AGENT))
            costs.append((store.read, store.written))
        (read, written), (read_later, written_later) = costs
        assert read_later <= read
        assert written_later <= written + 32  # numbers grow by a digit here and there


def test_fault_03_a_stale_writer_is_refused_on_record() -> None:
    """A worker whose lease was taken over is fenced, and the history says so."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=10))
        engine.clock.advance(10)
        act(run, event("LeaseAcquired", worker="worker-2", ttl_seconds=10), author=OTHER)
        refused(run.propose([fact("f")], author=AGENT, lease_epoch=1), "FENCED")
        refused(run.propose([fact("f")], author=AGENT), "LEASE_HELD")
        rows = run.history(rejected=True)[-2:]
        assert [(row.code, row.lease_epoch) for row in rows] == [
            ("FENCED", 1),
            ("LEASE_HELD", None),
        ]
        assert document(run)["confirmed_facts"] == []


def test_fault_04_what_was_acknowledged_stays(tmp_path: Path) -> None:
    """A home that was not closed properly, its projection left behind, has every outcome."""
    with at_home(tmp_path) as engine:
        run = running(engine)
        shutil.copytree(tmp_path / "projection", tmp_path / "older")
        outcomes = [act(run, fact(f"f{number}")) for number in range(50)]
    shutil.rmtree(tmp_path / "projection")
    (tmp_path / "older").rename(tmp_path / "projection")
    for lock in (tmp_path / "projection").rglob("LOCK"):
        lock.unlink()
    with at_home(tmp_path) as engine:
        run = engine.run("run_1")
        assert [run.outcome(outcome.batch_id) for outcome in outcomes] == outcomes
        assert document(run)["chain"] == outcomes[-1].chain


def test_fault_05_live_and_replayed_state_agree() -> None:
    """After each step the digest of the projection is that of the log folded again."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        for step in ([task("t"), fact("f")], [event("TaskStarted", task_id="t")], [wait()]):
            act(run, *step)
            replay = engine.replay()
            assert replay is not None
            assert replay.digest == engine.digest()
            assert engine.verify(redecide=True).ok
            assert run.at(revision(run)) == run.state()


@pytest.mark.parametrize("kind", ["header", "status", "fact"])
def test_fault_06_what_does_not_read_is_an_error(kind: str) -> None:
    """Damage is told with its place, never None or an older state or a quarantine."""
    with testing.Engine() as engine:
        run = running(engine)
        act(run, fact("f"))
        store = store_of(engine)
        key = keys.slot_key("run_1", kind, "f" if kind == "fact" else "")
        good = store.get(key)
        store.write({key: b"{"})
        retracted = event("FactRetracted", fact_id="f", reason="r")
        options: Json = {"expected_revision": 4, "timeout": 0.5}
        for use in (run.state, lambda: run.propose([retracted], **options)):
            with pytest.raises(errors.Damaged) as caught:
                use()
            assert caught.value.run_id == "run_1"
        report = engine.verify()
        assert not report.ok
        assert report.first_difference is not None
        assert kind in report.first_difference.what
        store.write({key: good})
        assert [row.outcome for row in run.history(rejected=True)] == ["accepted"] * 4


def test_fault_06_a_position_that_does_not_read_is_an_error() -> None:
    """The same for the projection's own position, in a list too."""
    with testing.Engine() as engine:
        running(engine)
        store_of(engine).write({keys.META: b"{"})
        with pytest.raises(errors.Damaged):
            engine.runs()
        assert not engine.verify().ok


STRANGE = '\x00\x1b[2J\u202e\U0010ffff\ufeff\n "\\/'


def test_fault_07_what_is_accepted_can_be_read() -> None:
    """Strange but valid values, and values at every limit, leave run, list and digest readable."""
    with testing.Engine() as engine:
        run = running(engine, labels={STRANGE: STRANGE, "": ""}, agent_version={STRANGE: ""})
        numbers = [2**53 - 1, -(2**53) + 1, 1e308, -0.0, 5e-324, 0.1, True, None, 1.0]
        deep: Json = {}
        for _ in range(50):
            deep = {"x": deep}
        hypothesis = {"id": STRANGE, "statement": "", "confidence": "1e-400", "falsifier": ""}
        for batch in (
            [fact(STRANGE, statement=STRANGE, scope=[STRANGE, ""]), fact("x" * 2_048)],
            [task(STRANGE), task("\U0010ffff" * 2_048, title="", depends_on=[STRANGE])],
            [event("HypothesisProposed", hypothesis=hypothesis)],
            [event("SignalReceived", key=STRANGE, signal_id=STRANGE, payload=numbers)],
            [event("ToolStarted", step_id=STRANGE, tool=STRANGE, arguments={STRANGE: numbers})],
            [event("Recorded", name=STRANGE, payload=deep)],
            [event("BudgetSpent", tokens=2**40, usage={"cost": 1e-7})],
            [event("BudgetSet", tokens_remaining=2**53 - 1, deadline="9999-12-31T23:59:59Z")],
            [event("PermissionRevoked", permission="tool:" + STRANGE, reason=STRANGE)],
            [event("PhaseChanged", phase=STRANGE)],
        ):
            act(run, *batch)
            shown = document(run)
            assert json.loads(json.dumps(shown)) == shown
            assert engine.runs()[0].revision == shown["revision"]
            assert run.history()[-1].to_dict()["events"][0]["type"] == batch[0]["type"]
        assert engine.verify(redecide=True).ok
        replay = engine.replay()
        assert replay is not None
        assert replay.digest == engine.digest()


def test_fault_08_stricter_rules_do_not_change_what_was_decided() -> None:
    """A log is folded, not decided again: what was accepted once stays accepted for ever."""
    clock = testing.Clock(NOW)
    log = MemoryLog(1, clock)
    before = engine_on(log, [MemoryStore()], clock)
    run = running(before)
    act(run, fact("f"), PHASE)
    rules = testing.raising_rules("FactConfirmed")
    with engine_on(log, [MemoryStore()], clock, rules) as after:
        assert after.run("run_1").state() == run.state()
        assert after.run("run_1").propose([fact("g")]).outcome == "quarantined"


UNFINISHED: list[tuple[str, list[Json], str]] = [
    ("planning", [event("RunTransitioned", to="planning")], "SILENT"),
    ("running", [], "SILENT"),
    (
        "retry",
        [
            event("ToolStarted", step_id="s", tool="t"),
            event("ToolFailed", step_id="s", error="e", recoverable=True),
        ],
        "SILENT",
    ),
    ("waiting", [wait()], "NO_DEADLINE"),
]


@pytest.mark.parametrize(("status", "batch", "code"), UNFINISHED)
def test_fault_09_a_run_that_nobody_moves_is_an_alarm(
    status: str, batch: list[Json], code: str
) -> None:
    """A day later whatever stands still is in the list with an alarm; a deadline wakes it up."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        if batch:
            act(run, *batch)
        engine.clock.advance(86_400)
        [row] = engine.runs(status=status)
        assert [alarm.code for alarm in row.alarms] == [code]
        other = running(engine, "run_2")
        act(other, wait(deadline="2026-01-03T00:00:00Z"))
        engine.clock.set("2026-01-03T00:00:00Z")
        assert document(other)["status"] == "retry"


def test_fault_10_a_signal_before_its_wait_counts_once() -> None:
    """It is kept, ends the wait that comes, and ends no second one; sent again it adds nothing."""
    with testing.Engine() as engine:
        run = running(engine)
        for _ in range(3):
            accepted(run.signal("approval", {"ok": True}, signal_id="s"))
        act(run, wait())
        assert (document(run)["status"], document(run)["signals"]) == ("running", [])
        accepted(run.signal("approval", {"ok": True}, signal_id="s"))
        act(run, wait())
        assert document(run)["status"] == "waiting"
        accepted(run.signal("approval", {"ok": True}, signal_id="s"))
        assert document(run)["status"] == "waiting"


def test_fault_11_an_effect_of_unknown_outcome_is_neither_done_nor_repeated() -> None:
    """Unknown blocks completion and its key, raises an alarm, and ends only by evidence."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        act(run, effect("e1", key="k"))
        act(run, event("EffectUnknown", effect_id="e1", reason="time-out"))
        done = [event("RunFinished", result="completed")]
        expected: Json = {"expected_revision": revision(run)}
        refused(run.propose([effect("e2", key="k")], **expected), "INVALID_TRANSITION")
        refused(run.propose(done, **expected), "INVALID_TRANSITION")
        assert [alarm.code for alarm in engine.runs()[0].alarms] == ["EFFECT_IN_DOUBT"]
        again = [event("EffectUnknown", effect_id="e1", reason="still")]
        refused(run.propose(again), "INVALID_TRANSITION")
        settled = event("EffectReconciled", effect_id="e1", outcome="failed", evidence="x:1")
        act(run, settled)
        act(run, effect("e2", key="k"))
        act(run, event("EffectSucceeded", effect_id="e2"))
        act(run, *done)


def test_fault_12_a_size_limit_wedges_no_run() -> None:
    """At each limit the one too many is refused, and the run goes on."""
    with testing.Engine() as engine:
        run = running(engine)
        large = event("Recorded", name="n", payload="x" * 65_534)
        accepted(run.propose([large] * 3))
        refused(run.propose([large] * 4), "MALFORMED")
        hand_in(engine, "run_1", b"\x00" * 1_000_000)
        accepted(run.propose([fact(f"f{number}") for number in range(100)]))
        refused(run.propose([fact(f"g{number}") for number in range(101)]), "MALFORMED")
        for first in range(0, 1_000, 100):
            ids = [f"s{number}" for number in range(first, first + 100)]
            act(run, *(event("SignalReceived", key="k", signal_id=id) for id in ids))
        refused(run.signal("k", signal_id="one too many"), "LIMIT_EXCEEDED")
        act(run, wait("k"))
        assert len(document(run)["signals"]) == 999
        accepted(run.signal("k", signal_id="again"))
        spent = event("BudgetSpent", tokens=2**40)
        act(run, event("BudgetSet", tokens_remaining=0))
        for _ in range(90):
            accepted(run.propose([spent] * 100))
        assert document(run)["budgets"]["tokens_remaining"] == -(2**53 - 1)
        assert engine.verify().ok


def test_fault_13_list_and_get_agree() -> None:
    """Whatever happened to a run, the list's row says what its document says."""
    with testing.Engine(now=NOW, partitions=3, raise_in="Recorded") as engine:
        runs = [running(engine, f"run_{number}", labels={"n": str(number)}) for number in range(5)]
        act(runs[0], wait())
        act(runs[1], task("t"), event("TaskStarted", task_id="t"), PHASE)
        accepted(runs[2].cancel("enough"))
        assert runs[3].propose([event("Recorded", name="n", payload=1)]).outcome == "quarantined"
        rows = {row.run_id: row for row in engine.runs()}
        assert set(rows) == {run.run_id for run in runs}
        for run in runs:
            row, shown = rows[run.run_id].to_dict(), document(run)
            shared = set(row) & set(shown)
            assert len(shared) == 9
            assert {key: row[key] for key in shared} == {key: shown[key] for key in shared}


def test_fault_14_an_error_has_code_run_place_and_next_step(tmp_path: Path) -> None:
    """Refusals and errors carry fields, and their messages name what to type where that helps."""
    with testing.Engine(raise_in="Recorded") as engine:
        run = running(engine)
        outcome = run.propose([fact("f"), task("t", depends_on=["none"])], expected_revision=3)
        assert (outcome.code, outcome.run_id, outcome.revision) == (
            "INVALID_TRANSITION",
            "run_1",
            3,
        )
        assert (outcome.event_index, outcome.field) == (1, "task.depends_on[0]")
        assert "'none'" in (outcome.message or "")
        with pytest.raises(errors.OutcomeUnknown) as unknown:
            run.propose([fact("g")], batch_id=BATCH, timeout=0)
        assert f"foldlog outcome run_1 {BATCH}" in str(unknown.value)
        run.propose([event("Recorded", name="n", payload=1)])
        message = refused(run.propose([fact("h")]), "RUN_QUARANTINED").message or ""
        assert "record 6" in message
        assert "foldlog release run_1 --reason" in message
    with pytest.raises(errors.HomeMissing, match="init"):
        client.Engine.open(tmp_path / "none")


def test_fault_15_opening_again_reads_no_state() -> None:
    """A projection that is up to date is opened without folding a record or reading the runs."""
    clock, counts, progress = testing.Clock(NOW), [], []
    log = MemoryLog(1, clock)
    engine, store = watched(log)
    for size in (10, 300):
        for number in range(size):
            started(engine, f"run_{size}_{number}")
        store.read = store.written = 0
        Holder(log, [store], clock, on_recovered=lambda part, more: progress.append((part, more)))
        counts.append((store.read, store.written))
    assert counts[0] == counts[1]
    assert counts[0][1] == 0
    assert progress == [(0, 0), (0, 0)]


def test_fault_16_identity_comes_before_revision() -> None:
    """A retry with a revision that is stale by now gets its first answer, not a conflict."""
    with testing.Engine() as engine:
        run = running(engine)
        stale: Json = {"expected_revision": 3, "batch_id": BATCH, "author": AGENT}
        first = accepted(run.propose([PHASE], **stale))
        act(run, event("PhaseChanged", phase="q"))
        act(run, event("GoalChanged", goal={"statement": "other"}, reason="r"))
        accepted(run.cancel("enough"))
        assert run.propose([PHASE], **stale) == {**first.to_dict(), "duplicate": True}
        assert revision(run) == 7


def one_record_each(log: MemoryLog) -> None:
    """Every proposal to this log gets one record, in a dense sequence, for every reader."""
    clock = testing.Clock(NOW)
    with engine_on(log, [MemoryStore()], clock) as engine:
        run = started(engine)
        for number in range(40):
            hand_in(engine, "run_1", b"junk")
            act(run, fact(f"f{number}"))
        rows = run.history(rejected=True)
        assert [row.sequence for row in rows] == list(range(1, 82))
        assert engine.project() == 0
        assert engine.verify().records == 81
        fresh = engine_on(log, [MemoryStore()], clock)
        assert fresh.run("run_1").state() == run.state()


def test_fault_17_no_record_is_skipped() -> None:
    """Junk and proposals in turn: all are decided, all are folded, in order."""
    one_record_each(MemoryLog(1, testing.Clock(NOW)))


def test_fault_22_gaps_in_offsets_are_no_backlog() -> None:
    """The same where the log's positions and offsets skip numbers: nothing waits, nothing lacks."""
    one_record_each(MemoryLog(1, testing.Clock(NOW), gaps=True))


def test_fault_19_a_poisoned_record_stops_nobody_else() -> None:
    """Junk and raising rules are recorded at their place; other runs and their order go on."""
    with testing.Engine(raise_in="Recorded") as engine:
        run, other = started(engine), started(engine, "run_2")
        hand_in(engine, "run_1", b"\xc3\x01junk")
        hand_in(engine, "../evil", b"junk")
        assert run.propose([event("Recorded", name="n", payload=1)]).outcome == "quarantined"
        assert accepted(other.propose([fact("f")])).sequence == 6
        assert [row.code or row.outcome for row in run.history(rejected=True)] == [
            "accepted",
            "MALFORMED",
            "quarantined",
        ]
        assert engine.project() == 0
        assert engine.verify().records == 6


def test_fault_24_position_and_state_move_together() -> None:
    """A write that fails after the append is caught up from the log: once, and not decided anew."""
    for call in range(1, 30):
        engine, store = watched()
        with engine:
            run = started(engine)
            store.calls_until_failure = call
            outcome = accepted(run.propose([fact("f")], author=AGENT, batch_id=BATCH))
            store.calls_until_failure = -1
            assert (outcome.sequence, outcome.revision) == (2, 2)
            assert len(run.history(rejected=True)) == 2
            assert engine.verify().ok


def test_fault_25_a_lost_projection_is_folded_again(tmp_path: Path) -> None:
    """Taken away, a projection comes back from the log, and says what it said."""
    with at_home(tmp_path) as engine:
        run = running(engine)
        act(run, fact("f"))
        before = (document(run), engine.digest())
    shutil.rmtree(tmp_path / "projection")
    with at_home(tmp_path) as engine:
        assert (document(engine.run("run_1")), engine.digest()) == before


def test_fault_29_looking_changes_nothing() -> None:
    """State, history, differences, lists, proofs and replays write nothing anywhere."""
    engine, store = watched()
    with engine:
        run = running(engine)
        act(run, wait(deadline="2026-01-01T00:01:00Z"))
        held = dict(store.scan(b""))
        store.written = 0
        looks: list[Callable[[], object]] = [
            run.state, run.history, run.transitions, engine.runs, engine.verify, engine.replay,
            engine.digest, lambda: run.at(2), lambda: run.at(NOW), lambda: run.diff(1, 3),
            lambda: run.outcome(BATCH), lambda: engine.verify("run_1", redecide=True),
        ]  # fmt: skip
        for look in looks:
            look()
        assert store.written == 0
        assert dict(store.scan(b"")) == held
        assert engine._seat.place.log.end(0) == 5


def test_fault_30_an_outage_is_no_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that fails for a while delays an outcome; nothing is skipped or quarantined."""
    engine, store = watched()
    with engine:
        run = started(engine)
        log = engine._seat.place.log
        for name in ("exchange", "proposals", "events"):
            whole, left = getattr(log, name), [2]

            def failing(*args: object, whole: Callable = whole, left: list[int] = left) -> object:
                left[0] -= 1
                if left[0] >= 0:
                    raise LogUnreachable("memory", "unplugged", "plug it in")
                return whole(*args)

            monkeypatch.setattr(log, name, failing)
            store.calls_until_failure = 7
            accepted(run.propose([fact(name)], author=AGENT))
            monkeypatch.undo()
        assert [row.outcome for row in run.history(rejected=True)] == ["accepted"] * 4
        for name in ("exchange", "propose"):
            monkeypatch.setattr(log, name, failing)
        left[0] = 1_000_000
        with pytest.raises(errors.Unavailable, match="unplugged"):
            run.propose([fact("lost")], author=OPERATOR, timeout=0.2)
        assert len(run.history(rejected=True)) == 4


def test_fault_33_two_deciders_write_one_history() -> None:
    """Two engines that both believe they hold a log take turns, and see the same records."""
    clock = testing.Clock(NOW)
    log = MemoryLog(1, clock)
    engines = [engine_on(log, [MemoryStore()], clock) for _ in range(2)]
    runs = [engine.run("run_1") for engine in engines]
    accepted(engines[0].start("run_1", goal="g").started)
    for number in range(20):
        accepted(runs[number % 2].propose([fact(f"f{number}")]))
        outcome = runs[number % 2].propose([PHASE], expected_revision=1, author=AGENT)
        assert outcome.code in (None, "CONFLICT")
    for engine in engines:
        engine.project()
    assert runs[0].state() == runs[1].state()
    assert runs[0].history(rejected=True) == runs[1].history(rejected=True)
    assert [engine.verify().ok for engine in engines] == [True, True]


def test_a_projection_of_another_format_is_refused(tmp_path: Path) -> None:
    """A projection that another build wrote in a form unknown here is told, and left alone."""
    with at_home(tmp_path) as engine:
        running(engine)
    store = RocksStore(tmp_path / "projection" / "0")
    meta = json.loads(store.get(keys.META) or b"{}")
    store.write({keys.META: json.dumps({**meta, "format": 99}).encode()})
    store.close()
    for _ in range(2):
        with pytest.raises(errors.Damaged, match="99"):
            at_home(tmp_path)


def test_every_fault_has_its_place_and_every_place_exists() -> None:
    """The table and the tests of this file name all 38, and tests that are there."""
    table = __doc__ or ""
    tested = {int(name[11:13]) for name in globals() if name.startswith("test_fault_")}
    told = {int(number) for number in re.findall(r"^( ?\d+)  ", table, re.MULTILINE)}
    assert tested | told == set(range(1, 39))
    assert not tested & told
    folder = Path(__file__).parent
    text = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("test_*.py")}
    for name in re.findall(r"test_\w+", table):
        assert name in text or any(f"def {name}(" in source for source in text.values()), name
