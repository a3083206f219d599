"""Waiting from a step: the run waits and no process does; the answer is found again for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from foldlog import testing
from foldlog.worker import Agent
from tests.client_runs import act, event, started
from tests.kit import OTHER, Kit, state_of, steps, types_of
from tests.kit import engine as engine
from tests.kit import made as made

LATER = "2026-01-01T00:10:00Z"


def asking(ask: Any, answers: list[Any]) -> Agent:
    """An agent of one step, which asks and keeps what it is answered."""
    agent = Agent()

    @agent.step
    def work(run: Any) -> None:
        answers.append(ask(run).to_dict())

    return agent


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("user", lambda run: run.wait_for_user("k", "what now?")),
        ("approval", lambda run: run.wait_for_approval("k", "may I?")),
        ("external", lambda run: run.wait_for_event("k", "the build")),
        ("timer", lambda run: run.wait_for_timer("k", timedelta(hours=1))),
    ],
)
def test_each_kind_of_wait(made: Kit, engine: testing.Engine, kind: str, call: Any) -> None:
    """The run waits, its lease released; a signal of any author brings the step its payload."""
    answers: list[Any] = []
    run = started(engine)
    worker = made.worker(engine, OTHER, asking(call, answers))
    assert worker.work(until_idle=True) == 1
    state = state_of(run)
    assert (state.status, state.waiting.kind, state.lease) == ("waiting", kind, None)
    assert (state.checkpoint.boundary, state.checkpoint.task_id) == ("before_wait", "work")
    assert (answers, worker.work(until_idle=True)) == ([], 0)
    run.signal("k", {"n": 1}, signal_id="s", author="user:ada")
    assert made.worker(engine, agent=asking(call, answers)).work(until_idle=True) == 1
    author = {"kind": "user", "id": "ada"}
    expected = {"key": "k", "ended": "signal", "signal_id": "s", "payload": {"n": 1}}
    assert answers == [expected | {"author": author}]
    assert state_of(run).result == "completed"


def test_a_timer_ends_by_itself(made: Kit, engine: testing.Engine) -> None:
    """When its time has come the run is claimed again, and the step knows that nobody signalled."""
    answers: list[Any] = []
    run = started(engine)
    until = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    agent = asking(lambda run: run.wait_for_timer("k", until), answers)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    engine.clock.advance(299)
    assert worker.work(until_idle=True) == 0
    engine.clock.advance(2)
    worker.work(until_idle=True)
    assert [(answer["ended"], answer["payload"]) for answer in answers] == [("deadline", None)]
    assert (state_of(run).result, state_of(run).retry_count) == ("completed", 0)


def test_a_deadline_passes(made: Kit, engine: testing.Engine) -> None:
    """Nobody came in time: the run is in retry, goes on, and its step is told so."""
    answers: list[Any] = []
    run = started(engine)
    soon = timedelta(minutes=1)
    agent = asking(lambda run: run.wait_for_approval("k", "may I?", soon), answers)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    engine.clock.advance(61)
    assert state_of(run).status == "retry"
    worker.work(until_idle=True)
    assert [answer["ended"] for answer in answers] == ["deadline"]
    assert (state_of(run).result, state_of(run).retry_count) == ("completed", 1)


def test_deadlines_that_pass_do_not_end_a_run(made: Kit, engine: testing.Engine) -> None:
    """More questions than the run has retries are not answered in time: it goes on to its end."""
    agent, asked = Agent(), list[int]()
    run = started(engine)

    @agent.step
    def work(claim: Any) -> None:
        for day in range(9):
            claim.wait_for_user(f"day-{day}", "anything new?", timedelta(days=1))
            asked.append(day)

    worker = made.worker(engine, agent=agent)
    for _ in range(10):
        worker.work(until_idle=True)
        engine.clock.advance(86_401)
    assert (sorted(set(asked)), state_of(run).result) == (list(range(9)), "completed")


def test_failures_end_a_run_whatever_passes_between(made: Kit, engine: testing.Engine) -> None:
    """A step that fails each time ends its run after as many failures as ever, also where deadlines
    pass in between."""
    agent, failed = Agent(), list[int]()
    run = started(engine)

    @agent.step
    def work(claim: Any) -> None:
        claim.wait_for_user(f"try-{len(failed)}", "is it mended?", timedelta(hours=1))
        failed.append(1)
        raise OSError("it is not")

    worker = made.worker(engine, agent=agent)
    for _ in range(30):
        worker.work(until_idle=True)
        engine.clock.advance(3_601)
    assert (len(failed), state_of(run).result) == (6, "failed")


def test_a_deadline_of_a_plan(made: Kit, engine: testing.Engine) -> None:
    """A plan whose question is not answered in time is made all the same, and the run not finished
    without one."""
    agent, calls = steps("read", "mend", calls=[]), list[str]()
    run = started(engine)

    @agent.plan
    def plan(claim: Any) -> list[dict[str, str]]:
        calls.append(claim.wait_for_user("which", "which one?", timedelta(hours=1)).ended)
        return [{"id": "mend", "title": "mend"}]

    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    engine.clock.advance(3_601)
    worker.work(until_idle=True)
    assert calls == ["deadline"]
    assert [task.status for task in state_of(run).tasks] == ["completed"]
    assert state_of(run).result == "completed"


def test_a_signal_before_the_wait(made: Kit, engine: testing.Engine) -> None:
    """An answer that is there already costs no wait: the same claim goes on."""
    answers: list[Any] = []
    run = started(engine)
    run.signal("k", True, author="user:ada")
    agent = asking(lambda run: run.wait_for_approval("k", "may I?"), answers)
    assert made.worker(engine, agent=agent).work(until_idle=True) == 1
    assert answers[0]["payload"] is True
    assert state_of(run).result == "completed"
    assert types_of(run).count(["LeaseAcquired"]) == 1


def test_the_answers_of_a_step_stay(made: Kit, engine: testing.Engine) -> None:
    """A step that asks twice has its first answer again in each pass, in any worker."""
    agent, passes = Agent(), []

    @agent.step
    def work(run: Any) -> None:
        first = run.wait_for_user("first", "one?").payload
        passes.append(first)
        run.checkpoint("between")
        passes.append(run.wait_for_user("second", "two?").payload)

    run = started(engine)
    for number, key in enumerate(("first", "second")):
        made.worker(engine, f"w{number}", agent).work(until_idle=True)
        run.signal(key, key.upper(), author="user:ada")
    made.worker(engine, "w2", agent).work(until_idle=True)
    assert passes == ["FIRST", "FIRST", "SECOND"]
    assert state_of(run).result == "completed"


def test_an_answer_outlives_a_crash_before_it_was_used(made: Kit, engine: testing.Engine) -> None:
    """The claim that finds the wait ended keeps its answer, before anything else is recorded."""
    answers: list[Any] = []
    agent = asking(lambda run: run.wait_for_user("k", "what now?"), answers)
    run = started(engine)
    made.worker(engine, agent=agent).work(until_idle=True)
    run.signal("k", "go on", author="user:ada")
    assert made.worker(engine, OTHER, agent, renew=False).claim() is not None  # and dies
    engine.clock.advance(61)
    made.worker(engine, agent=agent).work(until_idle=True)
    assert [answer["payload"] for answer in answers] == ["go on"]
    assert types_of(run, OTHER).count(["FactConfirmed"]) == 1
    assert types_of(run).count(["FactConfirmed"]) == 0


def test_a_large_answer(made: Kit, engine: testing.Engine) -> None:
    """A payload too large for a fact is read from the history, whole."""
    answers: list[Any] = []
    agent = asking(lambda run: run.wait_for_user("k", "what now?"), answers)
    run = started(engine)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    run.signal("k", "ä" * 20_000, author="user:ada")
    worker.work(until_idle=True)
    assert answers[0]["payload"] == "ä" * 20_000
    assert state_of(run).result == "completed"


@pytest.mark.parametrize(
    ("payload", "granted"),
    [(True, True), ({"granted": True}, True), (None, False), ("yes", False), ({}, False)],
)
def test_what_counts_as_granted(
    made: Kit, engine: testing.Engine, payload: Any, granted: bool
) -> None:
    """Only true, or an object that says so, is a yes."""
    run, found = started(engine), []
    agent = Agent()

    @agent.step
    def work(claim: Any) -> None:
        answer = claim.wait_for_approval("k", "may I?")
        found.append((answer.granted, answer.timed_out))

    run.signal("k", payload, author="user:ada")
    made.worker(engine, agent=agent).work(until_idle=True)
    assert found == [(granted, False)]


def test_a_wait_that_somebody_else_ended(made: Kit, engine: testing.Engine) -> None:
    """A run that a person brought back to planning goes on there; the question is asked again."""
    agent = asking(lambda run: run.wait_for_user("k", "what now?"), [])
    run = started(engine)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    act(run, event("RunTransitioned", to="planning"), author="user:ada")
    worker.work(until_idle=True)
    assert state_of(run).waiting.key == "k"


REST = event("WaitStarted", kind="timer", key="rest", reason="not now", deadline=LATER)


@pytest.mark.parametrize("payload", [True, "ä" * 20_000])
def test_an_answer_outlives_a_wait_that_somebody_else_begins(
    made: Kit, engine: testing.Engine, payload: Any
) -> None:
    """An operator has the run rest after the answer came and before it was noted: the answer is
    the signal, and not the end of that rest."""
    answers: list[Any] = []
    agent = asking(lambda run: run.wait_for_approval("k", "may I?"), answers)
    run = started(engine)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    run.signal("k", payload, author="user:ada")
    act(run, REST, author="operator:ops")
    engine.clock.advance(700)
    worker.work(until_idle=True)
    assert [(answer["ended"], answer["payload"]) for answer in answers] == [("signal", payload)]
    assert state_of(run).result == "completed"


def test_a_key_gives_its_first_answer_for_ever(made: Kit, engine: testing.Engine) -> None:
    """No wait that somebody else begins, under whatever key, and however it ends, changes what
    later passes of the step are answered."""
    agent, seen = Agent(), []
    run = started(engine)

    @agent.step
    def work(claim: Any) -> None:
        seen.append(claim.wait_for_approval("k", "may I?").granted)
        if len(seen) < 3:
            rest = {"key": "k"} if len(seen) == 2 else {}
            act(run, REST | rest, author="operator:ops")
        claim.tool("publish", int)

    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    run.signal("k", True, author="user:ada")
    worker.work(until_idle=True)
    engine.clock.advance(700)
    worker.work(until_idle=True)
    run.signal("k", False, author="user:ada")
    worker.work(until_idle=True)
    assert (seen, state_of(run).result) == ([True] * 3, "completed")


def test_only_an_end_of_the_question_itself_is_its_answer(
    made: Kit, engine: testing.Engine
) -> None:
    """A wait of the same key that an operator began, and a move that gives a deadline or a signal
    as its reason, answer nothing."""
    answers: list[Any] = []
    agent = asking(lambda run: run.wait_for_approval("k", "may I?"), answers)
    run = started(engine)
    worker = made.worker(engine, agent=agent)
    for reason in ("WaitTimedOut", "SignalReceived"):
        worker.work(until_idle=True)
        act(run, event("RunTransitioned", to="planning", reason=reason), author="user:ada")
        act(run, REST | {"key": "k"}, author="operator:ops")
        run.signal("k", "no answer", author="operator:ops")
    worker.work(until_idle=True)
    assert (answers, state_of(run).waiting.key) == ([], "k")
    run.signal("k", True, signal_id="s", author="user:ada")
    run.signal("k", False, signal_id="s", author="user:ada")
    worker.work(until_idle=True)
    assert [answer["payload"] for answer in answers] == [True]


def test_an_answer_that_is_retracted(made: Kit, engine: testing.Engine) -> None:
    """A person takes an answer back: the step does not find it any more, and asks again."""
    agent, seen = Agent(), []

    @agent.step
    def work(run: Any) -> None:
        seen.append(run.wait_for_user("first", "one?").payload)
        run.wait_for_user("second", "two?")

    run = started(engine)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    run.signal("first", "yes", author="user:ada")
    worker.work(until_idle=True)
    [answer] = state_of(run).confirmed_facts
    act(run, event("FactRetracted", fact_id=answer.id, reason="no!"), author="user:ada")
    run.signal("second", author="user:ada")
    worker.work(until_idle=True)
    assert state_of(run).waiting.key == "first"
    run.signal("first", "no", author="user:ada")
    worker.work(until_idle=True)
    assert (seen, state_of(run).result) == (["yes", "no"], "completed")


def test_an_answer_does_not_become_outdated(made: Kit, engine: testing.Engine) -> None:
    """A workspace that moves after an answer leaves the run as safe to take up as it was."""
    agent = Agent()

    @agent.step
    def work(run: Any) -> None:
        run.wait_for_user("k", "?")
        run.checkpoint(workspace={"workspace_id": "w", "current_commit": "c1"})
        run.wait_for_user("l", "?")

    run = started(engine)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    run.signal("k", author="user:ada")
    worker.work(until_idle=True)
    found = run.resume_check()
    assert found is not None
    assert [reason.code for reason in found.reasons] == ["WAITING"]


def test_a_deadline_needs_a_time_zone(made: Kit, engine: testing.Engine) -> None:
    """A time without a zone is the author's mistake; the run says so and comes to retry."""
    run = started(engine)
    naive = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    agent = asking(lambda run: run.wait_for_user("k", "?", naive), [])
    made.worker(engine, agent=agent).work(until_idle=True)
    assert "needs a time zone" in state_of(run).waiting.reason


def test_a_wait_without_a_deadline_raises_an_alarm(made: Kit, engine: testing.Engine) -> None:
    """After 24 hours somebody is told, with the command that ends the wait."""
    run = started(engine)
    agent = asking(lambda run: run.wait_for_user("k", "what now?"), [])
    made.worker(engine, agent=agent).work(until_idle=True)
    engine.clock.advance(24 * 3600 - 1)
    assert engine.runs()[0].alarms == []
    engine.clock.advance(1)
    assert [alarm.code for alarm in engine.runs()[0].alarms] == ["NO_DEADLINE"]
    why = run.why()
    assert why is not None
    assert why.movers[0].how == "foldlog signal run_1 k"


def test_a_bad_key_is_told(made: Kit, engine: testing.Engine) -> None:
    """A key that is too long is the author's mistake, an empty one is refused by the engine."""
    for number, (key, reason) in enumerate([("k" * 2_001, "at most 2000"), ("", "MALFORMED")]):
        run = started(engine, f"run_{number}")
        agent = asking(lambda run, key=key: run.wait_for_user(key, "?"), [])
        made.worker(engine, agent=agent).work(until_idle=True)
        assert reason in state_of(run).waiting.reason


@pytest.mark.parametrize("key", ["blocked/ci", "effect/mail", "retry/1", "refused/1", "step/1"])
def test_the_kits_own_keys_are_told(made: Kit, engine: testing.Engine, key: str) -> None:
    """A key that begins as one of the kit's own is the author's mistake: the kit would end that
    wait itself, and nobody would have answered."""
    answers: list[Any] = []
    run = started(engine)
    agent = asking(lambda run: run.wait_for_approval(key, "may I?"), answers)
    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    assert "a key does not begin with" in state_of(run).waiting.reason
    assert (answers, state_of(run).waiting.kind) == ([], "timer")
