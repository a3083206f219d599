"""The worker kit: claiming, leases, the lifecycle of a run, failures, hand-over.

Invariants:
- Every test runs on the blocking worker and on its async twin, through what authors call.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from foldlog import client, errors, testing
from foldlog.worker import Agent, GiveUp, LeaseLost, Overtaken, Retries, Worker
from tests import kit
from tests.client_runs import NOW, OPERATOR, act, event, fact, opened, started, task
from tests.kit import OTHER, Kit, state_of, steps, types_of
from tests.kit import engine as engine
from tests.kit import made as made

AUTHOR = {"kind": "agent", "id": kit.WORKER}
SOON = Retries(first_seconds=0.5, max_seconds=0.5)


def ids(worker: Any) -> list[str]:
    """The runs that a worker gets when it claims until there is none; it keeps them."""
    return [claim.run_id for claim in iter(worker.claim, None)]


# From start to end


@pytest.mark.parametrize("place", ["memory", "home"])
def test_a_run_from_start_to_end(made: Kit, place: str, tmp_path: Path) -> None:
    """The worker moves a run through its lifecycle, one batch for each move, and ends it."""
    calls: list[str] = []
    with opened(place, tmp_path) as engine:
        run = started(engine)
        assert (
            made.worker(engine, agent=steps("read", "mend", calls=calls)).work(until_idle=True) == 1
        )
        assert calls == ["read", "mend"]
        state = state_of(run)
        assert (state.status, state.result, state.lease) == ("finish", "completed", None)
        assert types_of(run) == [
            ["LeaseAcquired"],
            ["RunTransitioned"],
            ["PlanAdopted", "RunTransitioned"],
            ["TaskStarted"],
            ["TaskCompleted", "CheckpointTaken"],
            ["TaskStarted"],
            ["TaskCompleted", "CheckpointTaken"],
            ["RunFinished"],
        ]
        assert len(run.history(rejected=True)) == len(run.history())
        assert engine.verify(redecide=True).ok


def test_the_steps_are_the_plan(made: Kit, engine: testing.Engine) -> None:
    """Without a plan of its own an agent's steps are its tasks, each after the one before."""
    agent = Agent()

    @agent.step
    def read(run: Any) -> None:
        """Read the report.

        All of it."""

    @agent.step("mend/*")
    def mend(run: Any) -> None:
        """Never planned by itself."""

    @agent.step
    def tell(run: Any) -> str:
        return "file:told"

    run = started(engine)
    made.worker(engine, agent=agent).work(until_idle=True)
    found = [(t.id, t.title, t.depends_on) for t in state_of(run).tasks]
    assert found == [("read", "Read the report.", []), ("tell", "tell", ["read"])]
    assert [t.evidence for t in state_of(run).tasks][1] == "file:told"
    assert state_of(run).last_transition.to == "finish"


def test_an_agents_own_plan(made: Kit, engine: testing.Engine) -> None:
    """A plan may name any tasks; a step whose name ends in * does all that begin so."""
    agent, calls = Agent(), []

    @agent.plan
    def plan(run: Any) -> list[dict[str, Any]]:
        files = run.state().goal.scope.include
        return [{"id": f"mend/{name}", "title": f"mend {name}"} for name in files]

    @agent.step("mend/*")
    def mend(run: Any) -> None:
        calls.append(run.state().active_task_id)

    goal = {"statement": "mend them", "scope": {"include": ["a", "b"]}}
    run = started(engine, goal=goal)
    made.worker(engine, agent=agent).work(until_idle=True)
    assert calls == ["mend/a", "mend/b"]
    assert state_of(run).result == "completed"


def test_two_steps_of_one_name_are_refused() -> None:
    """A task has one step, an effect of a kind one function."""
    agent = steps("read")
    with pytest.raises(errors.Usage, match="'read' already"):
        agent.step("read")(print)
    agent.effect("mail")(print)
    with pytest.raises(errors.Usage, match="'mail' already"):
        agent.effect("mail")(print)


def test_a_step_may_propose(made: Kit, engine: testing.Engine) -> None:
    """A step's own events carry the lease; a refusal is a value; it may end its task itself."""
    agent, seen = Agent(), []

    @agent.step
    def find(run: Any) -> None:
        run.propose(fact("f"))
        refused = run.propose(event("QuestionAnswered", question_id="q", answer="yes"))
        seen.append((refused.outcome, refused.code))
        run.propose([event("TaskCompleted", task_id="find", evidence="test://1")])

    run = started(engine)
    made.worker(engine, agent=agent).work(until_idle=True)
    assert seen == [("rejected", "INVALID_TRANSITION")]
    assert state_of(run).result == "completed"
    assert [row.lease_epoch for row in run.history() if row.author == AUTHOR][1:] == [1] * 6


# Claiming


def test_claim_gives_what_is_runnable(made: Kit, engine: testing.Engine) -> None:
    """Runs that wait, are finished, are another's or have nothing to spend are passed over."""
    started(engine, "free")
    act(started(engine, "finished"), event("RunFinished", result="failed"))
    started(engine, "spent", budgets={"tokens_remaining": 0})
    started(engine, "late", budgets={"deadline": NOW})
    held = started(engine, "held")
    act(held, event("LeaseAcquired", worker="somebody", ttl_seconds=60))
    waits = started(engine, "waits")
    act(waits, event("RunTransitioned", to="planning"))
    act(waits, event("WaitStarted", kind="user", key="k", reason="what now?"))
    worker = made.worker(engine)
    assert ids(worker) == ["free"]
    waits.signal("k", author="user:ada")
    act(engine.run("spent"), event("BudgetSet", tokens_remaining=9))
    engine.clock.advance(61)
    assert sorted(ids(worker)) == ["held", "spent", "waits"]


def test_a_quarantined_run_is_passed_over(made: Kit) -> None:
    """A run whose rule raised is not claimed; once released, it is."""
    with testing.Engine(now=NOW, raise_in="PhaseChanged") as engine:
        run = started(engine)
        run.propose(event("PhaseChanged", phase="x"), expected_revision=1, author="user:ada")
        worker = made.worker(engine)
        assert ids(worker) == []
        run.release("mended", author=OPERATOR)
        assert ids(worker) == ["run_1"]


def test_labels_choose_runs(made: Kit, engine: testing.Engine) -> None:
    """A worker with labels claims only runs that have all of them."""
    started(engine, "a", labels={"team": "red", "size": "s"})
    started(engine, "b", labels={"team": "blue"})
    assert ids(made.worker(engine, labels={"team": "red"})) == ["a"]


def test_many_workers_share_the_runs(made: Kit, engine: testing.Engine) -> None:
    """Each run is held by one worker; together they hold all of them."""
    names = [f"run_{number}" for number in range(20)]
    for name in names:
        started(engine, name)
    workers = [made.worker(engine, f"w{number}") for number in range(4)]
    found = [claim.run_id for _ in range(5) for worker in workers if (claim := worker.claim())]
    assert sorted(found) == sorted(names)
    assert all(worker.claim() is None for worker in workers)


def test_claims_are_fair(made: Kit, engine: testing.Engine) -> None:
    """No run is claimed while sixteen others were touched longer ago."""
    for number in range(30):
        started(engine, f"run_{number}")
        engine.clock.advance(1)
    worker, left = made.worker(engine), [f"run_{number}" for number in range(30)]
    for claim in iter(worker.claim, None):
        assert claim.run_id in left[:16]
        left.remove(claim.run_id)
    assert left == []


def test_a_claim_is_left_with_its_block(made: Kit, engine: testing.Engine) -> None:
    """Leaving the block of a claim lets the run go; what ends a step ends the block, no more."""
    run, worker = started(engine), made.worker(engine)
    went_on: list[bool] = []
    with worker.claim() as claim:
        assert claim.state().lease.worker == kit.WORKER
    assert state_of(run).lease is None
    assert state_of(run).checkpoint.boundary == "lease_release"
    with worker.claim() as claim:
        claim.propose(event("RunTransitioned", to="planning"))
        claim.wait_for_user("who", "who asks?")
        went_on.append(True)
    assert (went_on, state_of(run).status, state_of(run).lease) == ([], "waiting", None)
    with pytest.raises(LeaseLost):
        claim.propose(fact("late"))


def test_an_error_in_the_block_goes_through(made: Kit, engine: testing.Engine) -> None:
    """An error of the author's leaves the block as it is, and the run is let go."""
    run = started(engine)
    with pytest.raises(ZeroDivisionError), made.worker(engine).claim():
        raise ZeroDivisionError
    assert state_of(run).lease is None


def test_waiting_for_a_run(made: Kit, engine: testing.Engine) -> None:
    """A claim with a time-out ends without a run when it is over, or when the worker is stopped."""
    worker = made.worker(engine)
    assert worker.claim(0.02) is None
    worker.stop()
    assert worker.claim(None) is None


@pytest.mark.parametrize("given", ["", 7, None, "w" * 2_049, "w\udc80"])
def test_a_worker_id_that_the_log_would_refuse(
    made: Kit, engine: testing.Engine, given: Any
) -> None:
    """It is told at once: such a worker would find no run to be had, and say nothing."""
    with pytest.raises(errors.Usage, match="worker_id is a text of 1 to 2048 characters"):
        made.worker(engine, given)
    started(engine)
    assert made.worker(engine, "é" * 2_048).claim() is not None


@pytest.mark.parametrize("given", [0, 86_401, 2.5, True, "60", float("inf"), float("nan"), None])
def test_a_lease_that_the_log_would_refuse(made: Kit, engine: testing.Engine, given: Any) -> None:
    """It is told at once, as a worker id is."""
    with pytest.raises(errors.Usage, match="lease_seconds is a whole number of 1 to 86400"):
        made.worker(engine, lease_seconds=given)


def test_a_lease_that_the_log_refuses(engine: testing.Engine) -> None:
    """What the log does not understand is told: no run would ever be had."""
    worker = Worker(engine, kit.WORKER)
    worker.lease_seconds = 86_401
    started(engine)
    with pytest.raises(errors.Usage, match="ttl_seconds"):
        worker.work(until_idle=True)


# What a step leaves, and what goes wrong


def test_a_step_goes_on_after_a_crash(made: Kit, engine: testing.Engine) -> None:
    """A call with a step id is done once in the run's life and gives its result again; the call
    that was under way is ended, and done again."""
    agent, calls = Agent(), []

    class Crash(BaseException):
        pass

    def build(name: str) -> dict[str, str]:
        calls.append(name)
        return {"built": name}

    def crash() -> None:
        calls.append("crash")
        if calls.count("crash") == 1:
            raise Crash

    @agent.step
    def work(run: Any) -> None:
        assert run.tool("build", build, "shop", step_id="build-shop") == {"built": "shop"}
        run.tool("crash", crash)

    run = started(engine)
    with pytest.raises(Crash):
        made.worker(engine, OTHER, agent).work(until_idle=True)
    made.worker(engine, agent=agent).work(until_idle=True)
    assert calls == ["shop", "crash", "crash"]
    assert state_of(run).result == "completed"
    ended = [e for row in run.history() for e in row.events or [] if e.type == "ToolFailed"]
    assert [e.recoverable for e in ended] == [False]


def test_a_failure_is_retried_after_a_pause(made: Kit, engine: testing.Engine) -> None:
    """What a step raises brings the run to retry; later it is running again, and no process waits
    meanwhile."""
    agent, calls = Agent(), []

    @agent.step
    def work(run: Any) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("the disk is away")

    run, worker = started(engine), made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    state = state_of(run)
    assert (state.status, state.waiting.kind, state.lease) == ("waiting", "timer", None)
    assert "the disk is away" in state.waiting.reason
    engine.clock.advance(0.9)
    assert worker.work(until_idle=True) == 0
    engine.clock.advance(0.2)
    worker.work(until_idle=True)
    assert (len(calls), state_of(run).retry_count) == (2, 2)
    engine.clock.advance(2.1)
    worker.work(until_idle=True)
    assert (len(calls), state_of(run).result) == (3, "completed")


def test_a_run_that_always_fails_ends(made: Kit, engine: testing.Engine) -> None:
    """After its retries a fresh start, after that the end: nothing fails for ever."""
    agent = Agent()

    @agent.step
    def work(run: Any) -> None:
        raise OSError("never")

    run, worker = started(engine), made.worker(engine, agent=agent, retries=SOON)
    for _ in range(20):
        worker.work(until_idle=True)
        engine.clock.advance(1)
    assert state_of(run).result == "failed"
    assert "retries are spent: 3 of 3" in state_of(run).last_transition.reason
    moves = [(move["from"], move.to) for move in run.transitions()]
    assert (moves.count(("retry", "start")), moves.count(("running", "retry"))) == (1, 6)


def test_a_plan_that_fails_is_made_again_later(made: Kit, engine: testing.Engine) -> None:
    """Planning that raises waits for its time where it is."""
    agent, calls = Agent(), []

    @agent.plan
    def plan(run: Any) -> list[dict[str, str]]:
        calls.append(1)
        if len(calls) < 2:
            raise OSError("no model")
        return []

    run, worker = started(engine), made.worker(engine, agent=agent, retries=SOON)
    worker.work(until_idle=True)
    assert state_of(run).waiting["from"] == "planning"
    engine.clock.advance(1)
    worker.work(until_idle=True)
    assert (len(calls), state_of(run).result) == (2, "completed")


@pytest.mark.parametrize("fault", [OSError("no model"), [{"title": "it has no id"}]])
def test_a_plan_that_always_fails_ends(made: Kit, engine: testing.Engine, fault: Any) -> None:
    """Planning is tried as often as a step, after pauses that grow, whatever it has done before it
    fails; then the run is finished as failed."""
    agent, at = Agent(), list[int]()

    @agent.plan
    def plan(run: Any) -> Any:
        at.append(engine.clock() // 1_000_000)
        run.checkpoint("begun")
        run.wait_for_timer("warm", "2026-01-01T00:00:00Z")
        if isinstance(fault, Exception):
            raise fault
        return fault

    run = started(engine, retry_limit=2)
    for _ in range(60):
        made.worker(engine, agent=agent).work(until_idle=True)
        engine.clock.advance(1)
    times = sorted(set(at))
    assert [second - first for first, second in pairwise(times)] == [1, 2, 4]
    state = state_of(run)
    assert (state.result, state.effects) == ("failed", [])
    assert "no plan after 4 tries" in state.last_transition.reason


def test_giving_a_plan_up(made: Kit, engine: testing.Engine) -> None:
    """A plan that says that there is none ends the run at once."""
    agent, run = Agent(), started(engine)

    @agent.plan
    def plan(claim: Any) -> None:
        raise GiveUp("nothing is broken")

    made.worker(engine, agent=agent).work(until_idle=True)
    state = state_of(run)
    assert (state.result, state.last_transition.reason) == ("failed", "no plan: nothing is broken")


def test_giving_a_task_up(made: Kit, engine: testing.Engine) -> None:
    """A task that is given up has failed; what does not need it is still done; the run fails."""
    agent, calls = Agent(), []

    @agent.plan
    def plan(run: Any) -> list[dict[str, Any]]:
        after = {"id": "after", "title": "needs it", "depends_on": ["lost"]}
        return [{"id": "lost", "title": "x"}, after, {"id": "other", "title": "does not"}]

    @agent.step("*")
    def work(run: Any) -> None:
        calls.append(run.state().active_task_id)
        if calls[-1] == "lost":
            raise GiveUp("there is no such file")

    run = started(engine)
    made.worker(engine, agent=agent).work(until_idle=True)
    state = state_of(run)
    assert (calls, state.result) == (["lost", "other"], "failed")
    assert state.last_transition.reason == "not done: lost, after"


def test_a_refusal_is_shown_to_a_person(made: Kit, engine: testing.Engine) -> None:
    """What looking again does not change waits for somebody, who sees why; then it goes on."""
    agent = Agent()

    @agent.step
    def work(run: Any) -> None:
        run.tool("shell", print)

    run, worker = started(engine), made.worker(engine, agent=agent)
    act(run, event("PermissionRevoked", permission="tool:shell", reason="no"))
    worker.work(until_idle=True)
    waiting = state_of(run).waiting
    assert (waiting.kind, waiting.key[:8]) == ("user", "refused/")
    assert waiting.reason.startswith("PERMISSION_REVOKED")
    act(run, event("PermissionRestored", permission="tool:shell", reason="yes"))
    run.signal(waiting.key, author="user:ada")
    worker.work(until_idle=True)
    assert state_of(run).result == "completed"


def test_a_spent_budget_stops_the_run_until_there_is_more(
    made: Kit, engine: testing.Engine
) -> None:
    """A run without tokens is let go and left alone; with more it goes on by itself."""
    agent = Agent()

    @agent.step
    def work(run: Any) -> None:
        if run.state().budgets.tokens_remaining == 5:
            run.propose(event("BudgetSpent", tokens=5))
        run.tool("shell", int)

    run, worker = started(engine, budgets={"tokens_remaining": 5}), made.worker(engine, agent=agent)
    assert worker.work(until_idle=True) == 1
    assert (state_of(run).status, state_of(run).lease) == ("running", None)
    act(run, event("BudgetSet", tokens_remaining=7))
    worker.work(until_idle=True)
    assert state_of(run).result == "completed"


def test_blocked_tasks_are_waited_for(made: Kit, engine: testing.Engine) -> None:
    """A run whose tasks are all blocked waits, and goes on once one is unblocked."""
    calls: list[str] = []
    agent = steps("work", calls=calls)
    agent.plan(lambda run: [])
    run, worker = started(engine), made.worker(engine, agent=agent)
    act(run, task("work"))
    act(run, event("TaskBlocked", task_id="work", reason="no key to the store"))
    worker.work(until_idle=True)
    assert "no key to the store" in state_of(run).waiting.reason
    act(run, event("TaskUnblocked", task_id="work"))
    worker.work(until_idle=True)
    assert (calls, state_of(run).result) == (["work"], "completed")


def test_a_task_without_a_step_waits_for_a_person(made: Kit, engine: testing.Engine) -> None:
    """A task that this agent has no step for is not failed: somebody is told."""
    run = started(engine)
    act(run, task("strange"))
    made.worker(engine).work(until_idle=True)
    assert "no step for task 'strange'" in state_of(run).waiting.reason


def test_a_step_whose_ground_has_changed_begins_again(made: Kit, engine: testing.Engine) -> None:
    """After a change of goal the step is overtaken, and begins again on what is."""
    agent, goals = Agent(), []
    run = started(engine)

    @agent.step
    def work(claim: Any) -> None:
        goals.append(claim.state().goal.statement)
        if len(goals) == 1:
            act(run, event("GoalChanged", goal={"statement": "another"}, reason="so"))

    made.worker(engine, agent=agent).work(until_idle=True)
    assert goals == ["Fix the login failure", "another"]
    assert state_of(run).result == "completed"


def test_a_cancelled_run_is_left(made: Kit, engine: testing.Engine) -> None:
    """A run that is cancelled under a step is let go, and the worker goes on to the next."""
    calls: list[str] = []
    run = started(engine)
    agent = steps("other", calls=calls)

    @agent.step
    def work(claim: Any) -> None:
        run.cancel("no need", author=OPERATOR)
        claim.tool("shell", calls.append, "never")

    agent.plan(lambda claim: [{"id": claim.run_id.replace("run_1", "work"), "title": "x"}])
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    started(engine, "other")
    worker.work(until_idle=True)
    assert calls == ["other"]
    assert state_of(run).result == "cancelled"


def test_a_stopped_worker_hands_over(made: Kit, engine: testing.Engine) -> None:
    """Told to stop, a worker lets its run go at the next safe point, with a checkpoint; another
    goes on at once, and no tool is begun in between."""
    agent, calls = Agent(), []

    @agent.step
    def work(run: Any) -> None:
        calls.append(run.worker_id)
        if len(calls) == 1:
            first.stop()
        run.tool("shell", calls.append, "tool")

    run = started(engine)
    first = made.worker(engine, OTHER, agent)
    first.work()
    state = state_of(run)
    assert (state.lease, state.checkpoint.boundary) == (None, "lease_release")
    assert made.worker(engine, agent=agent).work(until_idle=True) == 1
    assert calls == [OTHER, kit.WORKER, "tool"]
    assert state_of(run).result == "completed"


def test_an_outage_is_no_failure(
    made: Kit, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proposal without an outcome is handed in again under its own id, and counts once."""
    real = client.Run.propose
    lost: list[Any] = []

    def propose(self: client.Run, *args: Any, **options: Any) -> Any:
        outcome = real(self, *args, **options)
        if len(lost) < 3:
            lost.append(outcome)
            raise errors.OutcomeUnknown(self.run_id, outcome.batch_id, "10")
        return outcome

    run = started(engine)
    monkeypatch.setattr(client.Run, "propose", propose)
    monkeypatch.setattr("foldlog.worker.holding.OUTAGE_PAUSE_US", 10)
    made.worker(engine, agent=steps("work")).work(until_idle=True)
    assert state_of(run).result == "completed"
    assert [len(batch) for batch in types_of(run)] == [1, 1, 2, 1, 2, 1]


def test_overtaken_says_by_what() -> None:
    """What ends a step says why: its outcome names what has changed and who changed it."""
    with testing.Engine(now=NOW) as engine, kit.of_kind("blocking") as made:
        run = started(engine)
        claim = made.worker(engine).claim()
        act(run, event("GoalChanged", goal={"statement": "another"}, reason="so"))
        with pytest.raises(Overtaken, match="SUPERSEDED") as caught:
            claim.go_on()
        assert caught.value.outcome.code == "SUPERSEDED"
