"""Deadlines, the clock, and quarantine, through the client.

Invariants:
- Time moves only when a test moves it; a wait of the wall clock is only for a thread to notice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import client, errors, testing
from foldlog.home import open_home
from foldlog.log.memory import MemoryLog
from foldlog.runtime import SECOND
from foldlog.seat import Seat
from foldlog.store.memory import MemoryStore
from foldlog.timekeeper import Timekeeper
from tests.client_runs import (
    AGENT,
    BATCH,
    NOW,
    OPERATOR,
    Json,
    accepted,
    act,
    at_home,
    document,
    event,
    fact,
    refused,
    revision,
    rewrite_header,
    running,
    started,
    store_of,
    wait,
)
from tests.seats import engine_on, holder_of

DEADLINE = "2026-01-01T00:01:00Z"
SPENT = event("BudgetSpent", tokens=1)
PHASE = event("PhaseChanged", phase="p")
RELEASED = event("RunReleased", reason="fixed")


@pytest.fixture
def engine() -> Iterator[testing.Engine]:
    """An engine in memory with a timekeeper."""
    with testing.Engine(now=NOW) as engine:
        yield engine


def codes(run: client.Run) -> list[str | None]:
    """The outcome or code of every record of a run."""
    return [row.code or row.outcome for row in run.history(rejected=True)]


# The clock


def test_the_clock_shows_what_it_is_told(engine: testing.Engine) -> None:
    """`set` and `advance` move it; the log takes a proposal at its time."""
    assert engine.clock.now == NOW
    engine.clock.set("2026-08-11T16:22:10.5+08:00")
    assert engine.clock.now == "2026-08-11T08:22:10.500000Z"
    engine.clock.advance(0.5)
    run = started(engine)
    assert run.history()[0].log_time == "2026-08-11T08:22:11.000000Z"
    assert document(run)["last_transition"]["at"] == "2026-08-11T08:22:11.000000Z"


def test_log_time_never_goes_back(engine: testing.Engine) -> None:
    """A clock set back leaves log time where it was, per partition, for every run on it."""
    run = started(engine)
    engine.clock.advance(100)
    act(run, fact("f"))
    engine.clock.set("2025-06-01T00:00:00Z")
    act(run, fact("g"))
    other = started(engine, "run_2")
    assert [row.log_time[14:19] for row in run.history()] == ["00:00", "01:40", "01:40"]
    assert other.history()[0].log_time[14:19] == "01:40"
    engine.clock.set("2026-01-01T00:01:41Z")
    act(run, fact("h"))
    assert run.history()[-1].log_time[14:19] == "01:41"
    assert engine.verify().ok


# The timekeeper


@pytest.mark.parametrize("kind", ["user", "approval", "external"])
def test_a_deadline_that_passes_leads_to_retry(engine: testing.Engine, kind: str) -> None:
    """At the deadline the timekeeper's WaitTimedOut moves the run to retry, and it counts."""
    run = running(engine)
    act(run, wait(kind=kind, deadline=DEADLINE))
    engine.clock.advance(59.999999)
    assert document(run)["status"] == "waiting"
    engine.clock.advance(0.000001)
    shown = document(run)
    assert (shown["status"], shown["retry_count"], shown["waiting"]) == ("retry", 1, None)
    assert shown["last_transition"]["reason"] == "WaitTimedOut"
    assert run.history()[-1].author == {"kind": "system", "id": "timekeeper"}


@pytest.mark.parametrize("back_to", ["planning", "running", "retry"])
def test_a_timer_leads_back_to_where_the_run_was(engine: testing.Engine, back_to: str) -> None:
    """A timer that goes off is no failure: the run is where it was, and nothing is counted."""
    run = running(engine)
    if back_to == "planning":
        act(run, event("RunTransitioned", to="planning"))
    elif back_to == "retry":
        act(run, event("ToolStarted", step_id="s", tool="t"))
        act(run, event("ToolFailed", step_id="s", error="e", recoverable=True))
    before = document(run)["retry_count"]
    act(run, wait(kind="timer", deadline=DEADLINE))
    assert document(run)["waiting"]["from"] == back_to
    engine.clock.set(DEADLINE)
    shown = document(run)
    assert (shown["status"], shown["retry_count"], shown["waiting"]) == (back_to, before, None)


def test_a_signal_logged_before_wins(engine: testing.Engine) -> None:
    """A signal that the log took before the time-out ends the wait, even after the deadline."""
    run = running(engine)
    act(run, wait(deadline=DEADLINE))
    engine.clock._now += 61 * 1_000_000  # the deadline passes, and nobody has turned yet
    with pytest.raises(errors.OutcomeUnknown):
        run.signal("approval", signal_id="s", timeout=0)
    engine.project()
    shown = document(run)
    assert (shown["status"], shown["retry_count"]) == ("running", 0)
    assert shown["last_signal"]["signal_id"] == "s"
    assert codes(run)[-2:] == ["accepted", "INVALID_TRANSITION"]


def test_a_deadline_in_the_past_passes_at_once(engine: testing.Engine) -> None:
    """A wait whose deadline is over when it begins is ended by the next turn."""
    run = running(engine)
    act(run, wait(deadline="2020-01-01T00:00:00Z"))
    engine.project()
    assert document(run)["status"] == "retry"


def test_a_clock_that_was_ahead_delays_no_deadline(engine: testing.Engine) -> None:
    """What was refused while the timekeeper's clock was ahead keeps nothing waiting once it is
    right again: at the deadline comes a batch that was not refused before."""
    act(running(engine), wait(deadline=DEADLINE))
    begins, keeper, refused = engine.clock(), Timekeeper(), set[str]()
    with engine._reading_partition(0) as view:
        for second in range(30):
            early = keeper.due(view.reader, begins + (3_600 + second) * SECOND)
            refused |= {proposal.batch_id for proposal in early}
        assert len(refused) == 5  # at once, then after 1, 2, 4 and 8 s
        assert keeper.due(view.reader, begins + 59 * SECOND) == []
        [proposal] = keeper.due(view.reader, begins + 60 * SECOND)
        assert proposal.batch_id not in refused
        assert keeper.due(view.reader, begins + 61 * SECOND) == []
    engine.clock.advance(60)
    engine.project()
    with engine._reading_partition(0) as view:
        keeper.due(view.reader, begins + 62 * SECOND)
    assert keeper.attempts == {}


def test_without_a_timekeeper_nothing_passes() -> None:
    """`timekeeper=False` leaves waits alone; whoever may can still propose the time-out."""
    with testing.Engine(now=NOW, timekeeper=False) as engine:
        run = running(engine)
        act(run, wait(deadline=DEADLINE))
        late = [event("WaitTimedOut", key="approval")]
        refused(run.propose(late, author="system:cron"), "INVALID_TRANSITION")
        engine.clock.advance(3600)
        assert document(run)["status"] == "waiting"
        refused(run.propose(late, author=AGENT), "NOT_AUTHORIZED")
        accepted(run.propose(late, author="system:cron"))
        assert document(run)["status"] == "retry"


def test_every_wait_of_every_run_passes(engine: testing.Engine) -> None:
    """Waits of many runs pass each at its own deadline, whatever the order they began in."""
    runs = [running(engine, f"run_{number}") for number in range(5)]
    for number, run in enumerate(runs):
        seconds = (number * 7) % 5 + 1
        act(run, wait(deadline=f"2026-01-01T00:00:0{seconds}+00:00"))
    for second in range(1, 6):
        engine.clock.advance(1)
        assert sum(document(run)["status"] == "retry" for run in runs) == second


def test_a_clock_set_back_delays_a_deadline_and_loses_none(engine: testing.Engine) -> None:
    """The timekeeper asks its clock, the rule asks log time: the wait ends once, later."""
    run = running(engine)
    engine.clock.advance(3600)
    act(run, fact("f"))
    engine.clock.set(NOW)
    act(run, wait(deadline=DEADLINE))
    engine.project()
    assert document(run)["status"] == "waiting"
    engine.clock.advance(60)
    assert document(run)["status"] == "retry"
    engine.clock.set(NOW)
    engine.clock.advance(7200)
    assert codes(run).count("INVALID_TRANSITION") == 0


def test_a_wait_after_a_wait_has_a_deadline_of_its_own(engine: testing.Engine) -> None:
    """A wait that was ended in time leaves no deadline behind for the next one."""
    run = running(engine)
    act(run, wait(deadline=DEADLINE))
    act(run, event("SignalReceived", key="approval", signal_id="s"))
    act(run, wait())
    engine.clock.advance(3600)
    assert document(run)["status"] == "waiting"
    assert len(run.history(rejected=True)) == 6


def test_a_time_out_that_comes_too_early_is_tried_again() -> None:
    """Where the log's clock is behind, it is tried later and later, and ends the wait in time."""
    clock, behind = testing.Clock(NOW), testing.Clock(NOW)
    with engine_on(MemoryLog(1, behind), [MemoryStore()], clock) as engine:
        run = running(engine)
        act(run, wait(deadline=DEADLINE))
        clock.set(DEADLINE)
        for _ in range(1_000):
            clock.advance(1)
            engine.project()
        early = codes(run)[4:]
        assert set(early) == {"INVALID_TRANSITION"}
        assert 8 <= len(early) <= 14
        behind.set(DEADLINE)
        clock.advance(300)
        engine.project()
        assert document(run)["status"] == "retry"


def test_the_timekeeper_forgets_what_has_ended(engine: testing.Engine) -> None:
    """A holder that lives for long keeps nothing of waits that are over."""
    run = running(engine, retry_limit=1_000)
    for _ in range(20):
        act(run, wait(deadline="2020-01-01T00:00:00Z"))
        engine.project()
    assert document(run)["retry_count"] == 20
    assert holder_of(engine).held[0].timekeeper.attempts == {}


def test_the_timekeeper_leaves_a_run_in_another_schema_alone(engine: testing.Engine) -> None:
    """What waits for a migration is not proposed for; once it is done, the deadline counts."""
    run = running(engine)
    act(run, wait(deadline=DEADLINE))
    rewrite_header(store_of(engine), "run_1", schema_version=3)
    for _ in range(20):
        engine.clock.advance(600)
    assert len(run.history(rejected=True)) == 4
    rewrite_header(store_of(engine), "run_1", schema_version=2)
    engine.project()
    assert document(run)["status"] == "retry"


def test_a_home_turns_by_itself(tmp_path: Path) -> None:
    """The thread of an open home ends a wait without anybody proposing or reading."""
    clock = testing.Clock(NOW)
    with at_home(tmp_path, clock) as engine:
        run = running(engine)
        act(run, wait(deadline=DEADLINE))
        clock.set(DEADLINE)
        end = time.monotonic() + 10
        while document(run)["status"] == "waiting" and time.monotonic() < end:
            time.sleep(0.02)
        assert document(run)["status"] == "retry"


def test_a_deadline_that_passed_while_closed_passes_on_opening(tmp_path: Path) -> None:
    """What was due while no process had the home open is done when one has."""
    with at_home(tmp_path) as engine:
        act(running(engine), wait(deadline=DEADLINE))
    with at_home(tmp_path, testing.Clock("2026-02-01T00:00:00Z")) as engine:
        engine.project()
        assert document(engine.run("run_1"))["status"] == "retry"


# Quarantine


def test_a_rule_that_raises_quarantines_the_run() -> None:
    """The whole story: outcome, document, list, history, refusals, duplicates, release."""
    with testing.Engine(now=NOW, raise_in="PhaseChanged") as engine:
        run = running(engine)
        before = document(run)
        options: Json = {"expected_revision": 3, "batch_id": BATCH, "author": AGENT}
        outcome = run.propose([fact("f"), PHASE], **options)
        assert (outcome.outcome, outcome.code, outcome.revision) == ("quarantined", None, 3)
        assert (outcome.recorded, outcome.duplicate, outcome.state_hash) == (True, False, None)
        assert "PhaseChanged" in (outcome.message or "")
        assert document(run) == {**before, "condition": "quarantined"}
        [listed] = engine.runs()
        assert listed.condition == "quarantined"
        assert [alarm.code for alarm in listed.alarms] == ["QUARANTINED"]
        assert listed.alarms[0].since == NOW
        row = run.history()[-1]
        assert (row.outcome, row.sequence, row.revision_before) == ("quarantined", 4, 3)
        assert "RuleRaised" in row.error
        assert row.build

        for events in ([fact("g")], [SPENT], [event("SignalReceived", key="k", signal_id="s")]):
            assert "release" in (refused(run.propose(events), "RUN_QUARANTINED").message or "")
        refused(run.cancel("enough"), "RUN_QUARANTINED")
        again = run.propose([fact("f"), PHASE], **options)
        assert again == {**outcome.to_dict(), "duplicate": True}
        assert run.outcome(BATCH) == outcome
        assert run.history(rejected=True)[-1].outcome == "duplicate"
        accepted(engine.start("run_2", goal="g").started)

        refused(run.propose([RELEASED], author=AGENT), "NOT_AUTHORIZED")
        released = accepted(run.propose([RELEASED], author=OPERATOR))
        assert released.revision == 4
        assert document(run)["condition"] == "ok"
        accepted(run.propose([fact("f")]))
        refused(run.propose([RELEASED], author=OPERATOR), "INVALID_TRANSITION")
        assert run.propose([fact("f"), PHASE], **options).outcome == "quarantined"
        assert document(run)["condition"] == "ok"
        assert run.propose([PHASE], expected_revision=5).outcome == "quarantined"
        assert engine.verify().ok
        assert engine.verify("run_1").ok


def test_a_run_whose_start_raises_has_not_begun() -> None:
    """It is quarantined by nothing: a new RunStarted may follow, and the history shows the row."""
    with testing.Engine(now=NOW, raise_in="FactConfirmed") as engine:
        start = event("RunStarted", goal={"statement": "g"})
        run = engine.run("run_1")
        outcome = run.propose([start, fact("f")], batch_id=BATCH)
        assert (outcome.outcome, outcome.revision) == ("quarantined", 0)
        assert (run.state(), engine.runs()) == (None, [])
        assert [row.outcome for row in run.history()] == ["quarantined"]
        refused(run.propose([PHASE], expected_revision=0), "RUN_NOT_FOUND")
        refused(run.propose([RELEASED]), "RUN_NOT_FOUND")
        assert accepted(engine.start("run_1", goal="g").started).revision == 1
        assert document(run)["condition"] == "ok"
        assert run.propose([start, fact("f")], batch_id=BATCH).outcome == "quarantined"
        assert [row.outcome for row in run.history()] == ["quarantined", "accepted"]
        assert engine.verify().ok
    with testing.Engine(raise_in="RunStarted") as engine:
        run = engine.start("run_1", goal="g")
        assert run.started is not None
        assert run.started.outcome == "quarantined"
        assert run.state() is None


def test_a_finished_run_can_be_quarantined_and_released() -> None:
    """A report after the end may raise; RunReleased is not refused for the run being finished."""
    with testing.Engine(now=NOW, raise_in="BudgetSpent") as engine:
        run = started(engine)
        accepted(run.cancel("enough"))
        assert run.propose([SPENT]).outcome == "quarantined"
        refused(run.propose([event("EffectSucceeded", effect_id="e")]), "RUN_QUARANTINED")
        refused(run.propose([fact("f")]), "RUN_FINISHED")
        accepted(run.propose([RELEASED], author=OPERATOR))
        shown = document(run)
        assert (shown["condition"], shown["status"], shown["revision"]) == ("ok", "finish", 3)
        refused(run.propose([fact("f")]), "RUN_FINISHED")
        refused(run.propose([RELEASED], author=OPERATOR), "INVALID_TRANSITION")


def test_the_timekeeper_leaves_a_quarantined_run_alone() -> None:
    """No time-outs pile up while it is quarantined; after the release the deadline is acted on."""
    with testing.Engine(now=NOW, raise_in="PhaseChanged") as engine:
        run = running(engine)
        act(run, wait(deadline=DEADLINE))
        assert run.propose([PHASE], expected_revision=4).outcome == "quarantined"
        for _ in range(50):
            engine.clock.advance(3600)
        assert len(run.history(rejected=True)) == 5
        accepted(run.propose([RELEASED], author=OPERATOR))
        engine.clock.advance(1)
        assert document(run)["status"] == "retry"
        assert len(run.history(rejected=True)) == 7


def test_time_outs_that_are_refused_do_not_pile_up() -> None:
    """A rule that raises on the time-out itself costs one record, not one a turn."""
    with testing.Engine(now=NOW, raise_in="WaitTimedOut") as engine:
        run = running(engine)
        act(run, wait(deadline=DEADLINE))
        for _ in range(50):
            engine.clock.advance(60)
        assert [row.outcome for row in run.history(rejected=True)][4:] == ["quarantined"]


def test_a_quarantine_outlives_the_process(tmp_path: Path) -> None:
    """A home opened by a healthy build still has the run quarantined, until it is released."""
    clock = testing.Clock(NOW)
    at_home(tmp_path, clock).close()
    rules = testing.raising_rules("PhaseChanged")
    seat = Seat(open_home(tmp_path, clock), clock, rules=rules)
    assert seat.take()
    with client.Engine(seat, clock) as engine:
        outcome = running(engine).propose([PHASE], expected_revision=3, batch_id=BATCH)
        assert outcome.outcome == "quarantined"
    with at_home(tmp_path, clock) as engine:
        run = engine.run("run_1")
        assert document(run)["condition"] == "quarantined"
        refused(run.propose([PHASE], expected_revision=3), "RUN_QUARANTINED")
        act(run, RELEASED)
        act(run, PHASE)
        assert revision(run) == 5
        assert engine.verify().ok


def test_an_event_type_that_is_none_cannot_be_made_to_raise() -> None:
    """`raise_in` with a misspelt type is told at once."""
    with pytest.raises(ValueError, match="FactGuessed"):
        testing.Engine(raise_in="FactGuessed")
