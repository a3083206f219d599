"""Lists of runs through the client, and the alarms they carry: CONTRACT section 4, by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import client, errors, testing
from foldlog.results import RunSummary
from tests.client_runs import (
    BATCH,
    KINDS,
    NOW,
    OPERATOR,
    Json,
    accepted,
    act,
    document,
    effect,
    event,
    fact,
    opened,
    refused,
    running,
    started,
    task,
    wait,
)

RUNS_KEYS = set(
    "run_id status result phase revision active_task_id waiting condition alarms labels "
    "changed_at archived".split()
)
DAY = 86_400


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[client.Engine]:
    """An engine of each kind in turn."""
    with opened(request.param, tmp_path) as engine:
        yield engine


def ids(rows: list[RunSummary]) -> list[str]:
    """The runs in a list, in its order."""
    return [row.run_id for row in rows]


# Lists


def test_a_run_is_listed_with_the_contracts_keys(engine: client.Engine) -> None:
    """A row of a list has exactly the keys of the contract, and nothing is listed without runs."""
    assert engine.runs() == []
    run = running(engine, labels={"team": "a"})
    act(run, task("t"), event("TaskStarted", task_id="t"), event("PhaseChanged", phase="fix"))
    act(run, wait(deadline="2026-01-02T00:00:00Z"))
    [row] = engine.runs()
    shown = document(run)
    assert set(row) == set(RunSummary.__annotations__) == RUNS_KEYS
    assert row == {
        "run_id": "run_1",
        "status": "waiting",
        "result": None,
        "phase": "fix",
        "revision": 5,
        "active_task_id": "t",
        "waiting": shown["waiting"],
        "condition": "ok",
        "alarms": [],
        "labels": {"team": "a"},
        "changed_at": NOW,
        "archived": False,
    }


def test_the_newest_change_comes_first() -> None:
    """The list is ordered by the time of the last change; a refusal is none, arbitration is one."""
    with testing.Engine(now=NOW, partitions=3) as engine:
        runs = {}
        for name in "bca":
            runs[name] = started(engine, name)
            engine.clock.advance(1)
        assert ids(engine.runs()) == ["a", "c", "b"]
        act(runs["b"], event("PhaseChanged", phase="x"))
        engine.clock.advance(1)
        assert ids(engine.runs()) == ["b", "a", "c"]
        stale = [event("PhaseChanged", phase="y")]
        refused(runs["c"].propose([event("RunReleased", reason="r")]), "INVALID_TRANSITION")
        assert ids(engine.runs()) == ["b", "a", "c"]
        act(runs["c"], event("PhaseChanged", phase="x"))
        engine.clock.advance(1)
        outcome = runs["b"].propose(stale, expected_revision=1, on_conflict="arbitrate")
        assert outcome.outcome == "arbitration"
        assert ids(engine.runs()) == ["b", "c", "a"]
        assert [row.changed_at[17:19] for row in engine.runs()] == ["05", "04", "02"]


def test_a_list_is_filtered_and_cut(engine: client.Engine) -> None:
    """By status, by all of the labels given, at most so many; a negative limit makes no sense."""
    running(engine, "a", labels={"team": "x", "env": "p"})
    started(engine, "b", labels={"team": "x"})
    started(engine, "c")
    assert ids(engine.runs(status="start")) == ["b", "c"]
    assert ids(engine.runs("running")) == ["a"]
    assert ids(engine.runs(labels={"team": "x"})) == ["a", "b"]
    assert ids(engine.runs(labels={"team": "x", "env": "p"})) == ["a"]
    assert ids(engine.runs(status="start", labels={"team": "x"}, limit=5)) == ["b"]
    assert ids(engine.runs(labels={"team": "y"})) == ids(engine.runs("nonsense")) == []
    assert ids(engine.runs(limit=2)) == ["a", "b"]
    assert engine.runs(limit=0) == []
    with pytest.raises(errors.Usage):
        engine.runs(limit=-1)


def test_the_list_covers_every_partition() -> None:
    """Runs of all partitions stand in one list, and a run that never began in none."""
    with testing.Engine(partitions=7) as engine:
        names = [f"run_{number}" for number in range(40)]
        for name in names:
            started(engine, name)
        refused(engine.run("nobody").propose([fact("f")]), "RUN_NOT_FOUND")
        assert sorted(ids(engine.runs())) == sorted(names)
        assert engine.verify().partitions == 7


def test_list_and_get_agree(engine: client.Engine) -> None:
    """After every step each row of the list says what the run's document says."""
    steps: list[Json] = [
        event("RunTransitioned", to="planning"),
        task("t1"),
        event("RunTransitioned", to="running"),
        event("TaskStarted", task_id="t1"),
        event("PhaseChanged", phase="fix"),
        wait(),
        event("SignalReceived", key="approval", signal_id="s"),
        event("TaskCompleted", task_id="t1", evidence="test:1"),
        event("RunFinished", result="completed"),
    ]
    runs = [started(engine, name, labels={"n": name}) for name in ("run_1", "run_2")]
    for step in steps:
        for run in runs:
            act(run, step)
            for row in engine.runs():
                shown = document(engine.run(row.run_id))
                for key in RUNS_KEYS - {"alarms", "changed_at", "archived"}:
                    assert row.to_dict()[key] == shown[key], (step, key)
                times = [each.log_time for each in engine.run(row.run_id).history()]
                assert row.changed_at == times[-1]


# Alarms


def alarm_codes(engine: client.Engine) -> list[str]:
    """The codes of the alarms of the engine's only run."""
    [row] = engine.runs()
    return [alarm.code for alarm in row.alarms]


def alarms_over(engine: testing.Engine, seconds: float) -> tuple[list[str], list[str]]:
    """The codes just before so many seconds have passed, and just then."""
    engine.clock.advance(seconds - 0.000001)
    before = alarm_codes(engine)
    engine.clock.advance(0.000001)
    return before, alarm_codes(engine)


def test_a_wait_without_a_deadline_is_an_alarm_after_a_day() -> None:
    """NO_DEADLINE counts from when the wait began."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        engine.clock.advance(60)
        act(run, wait())
        engine.clock.advance(3600)
        act(run, fact("f"))
        assert alarms_over(engine, DAY - 3600) == ([], ["NO_DEADLINE"])
        [alarm] = engine.runs()[0].alarms
        assert alarm.since == "2026-01-01T00:01:00.000000Z"
        assert "approval" in alarm.message
        assert set(alarm) == {"code", "since", "message"}


def test_a_deadline_that_passed_is_an_alarm_until_it_is_acted_on() -> None:
    """DEADLINE_PASSED stands while no timekeeper has ended the wait."""
    with testing.Engine(now=NOW, timekeeper=False) as engine:
        run = running(engine)
        act(run, wait(deadline="2026-01-01T00:01:00+00:00"))
        assert alarms_over(engine, 60) == ([], ["DEADLINE_PASSED"])
        assert engine.runs()[0].alarms[0].since == "2026-01-01T00:01:00.000000Z"
        timer = event("WaitTimedOut", key="approval")
        accepted(run.propose([timer], author="system:timekeeper"))
        assert alarm_codes(engine) == []


def test_a_lease_that_ran_out_is_an_alarm_unless_waiting_or_finished() -> None:
    """LEASE_EXPIRED says whose lease it was; nobody misses it while the run waits or is over."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        act(run, event("LeaseAcquired", worker="worker-7", ttl_seconds=60))
        assert alarms_over(engine, 60) == ([], ["LEASE_EXPIRED"])
        [alarm] = engine.runs()[0].alarms
        assert alarm.since == "2026-01-01T00:01:00.000000Z"
        assert "worker-7" in alarm.message
        act(run, wait())
        assert alarm_codes(engine) == []
        act(run, event("SignalReceived", key="approval", signal_id="s"))
        assert alarm_codes(engine) == ["LEASE_EXPIRED"]
        act(run, event("RunFinished", result="completed"))
        assert alarm_codes(engine) == []


def test_a_busy_run_without_a_record_for_a_day_is_silent() -> None:
    """SILENT counts from the last record, a refused one too, in running, planning and retry."""
    with testing.Engine(now=NOW) as engine:
        run = started(engine)
        engine.clock.advance(2 * DAY)
        assert alarm_codes(engine) == []
        act(run, event("RunTransitioned", to="planning"))
        assert alarms_over(engine, DAY) == ([], ["SILENT"])
        refused(run.propose([event("RunReleased", reason="r")]), "INVALID_TRANSITION")
        assert alarms_over(engine, DAY) == ([], ["SILENT"])
        act(run, event("RunTransitioned", to="running"))
        act(run, event("ToolStarted", step_id="s", tool="t"))
        act(run, event("ToolFailed", step_id="s", error="e", recoverable=True))
        assert alarms_over(engine, DAY) == ([], ["SILENT"])
        act(run, event("RunFinished", result="failed"))
        assert alarms_over(engine, DAY) == ([], [])


def test_an_effect_in_doubt_is_an_alarm() -> None:
    """Intended counts as in doubt once no lease is live, unknown always; settled never."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        act(run, effect("e0"))
        assert alarm_codes(engine) == ["EFFECT_IN_DOUBT"]
        act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=60))
        assert alarm_codes(engine) == []
        engine.clock.advance(59)
        act(run, event("EffectUnknown", effect_id="e0", reason="r"), lease_epoch=1)
        assert alarm_codes(engine) == ["EFFECT_IN_DOUBT"]
        reconciled = event("EffectReconciled", effect_id="e0", outcome="failed", evidence="x:1")
        act(run, reconciled, lease_epoch=1)
        act(run, effect("e1"), lease_epoch=1)
        assert alarms_over(engine, 1) == ([], ["LEASE_EXPIRED", "EFFECT_IN_DOUBT"])
        assert "e1" in engine.runs()[0].alarms[1].message
        act(run, event("RunFinished", result="failed"))
        assert alarm_codes(engine) == ["EFFECT_IN_DOUBT"]
        act(run, event("EffectSucceeded", effect_id="e1"))
        assert alarm_codes(engine) == []


def test_an_open_conflict_is_an_alarm() -> None:
    """CONFLICT_OPEN stands from arbitration until somebody settles it."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine)
        engine.clock.advance(5)
        stale = [event("RunTransitioned", to="planning")]
        run.propose(stale, expected_revision=1, on_conflict="arbitrate", batch_id=BATCH)
        assert alarm_codes(engine) == ["CONFLICT_OPEN"]
        assert engine.runs()[0].alarms[0].since == "2026-01-01T00:00:05.000000Z"
        settled = event(
            "ConflictResolved", conflict_id=BATCH, resolution="keep_current", reason="r"
        )
        act(run, settled, author=OPERATOR)
        assert alarm_codes(engine) == []


def test_a_spent_budget_is_an_alarm() -> None:
    """BUDGET_EXHAUSTED: no tokens left, or the budget's deadline has come."""
    with testing.Engine(now=NOW) as engine:
        run = running(engine, budgets={"tokens_remaining": 5, "deadline": "2026-01-01T00:01:00Z"})
        act(run, event("BudgetSpent", tokens=4))
        assert alarm_codes(engine) == []
        act(run, event("BudgetSpent", tokens=1))
        assert alarm_codes(engine) == ["BUDGET_EXHAUSTED"]
        act(run, event("BudgetSet", tokens_remaining=5))
        assert alarms_over(engine, 60) == ([], ["BUDGET_EXHAUSTED"])
        assert engine.runs()[0].alarms[0].since == "2026-01-01T00:01:00.000000Z"


def test_alarms_are_computed_when_read_and_never_stored() -> None:
    """Reading raises no revision and leaves no record, whatever the clock says."""
    with testing.Engine(now=NOW, timekeeper=False) as engine:
        run = running(engine)
        act(run, wait(deadline="2026-01-01T00:01:00Z"))
        before = (document(run), run.history(rejected=True))
        engine.clock.advance(60)
        assert alarm_codes(engine) == ["DEADLINE_PASSED"]
        assert (document(run), run.history(rejected=True)) == before


def test_alarms_use_the_later_of_clock_and_log_time() -> None:
    """A reader's clock that is behind the partition's last log time does not hide an alarm."""
    with testing.Engine(now=NOW) as engine:
        act(running(engine), event("LeaseAcquired", worker="w", ttl_seconds=60))
        engine.clock.advance(61)
        refused(engine.run("other").propose([fact("f")]), "RUN_NOT_FOUND")
        engine.clock.set(NOW)
        assert alarm_codes(engine) == ["LEASE_EXPIRED"]
