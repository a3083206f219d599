"""Coroutines under the blocking worker, which awaits none: refused before anything is recorded."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from foldlog import errors, testing
from foldlog.worker import Agent, Retries, Succeeded, Worker
from tests.client_runs import started
from tests.kit import WORKER, state_of, types_of
from tests.kit import engine as engine

SOON = Retries(first_seconds=0.5, max_seconds=0.5)


async def pay_later(effect: Any) -> str:
    """An effect that is a coroutine function."""
    return "bank:1"


class PaysLater:
    """One that is an object, whose call is a coroutine function."""

    async def __call__(self, effect: Any) -> str:
        return "bank:1"


@pytest.mark.parametrize("function", [pay_later, partial(pay_later), PaysLater()])
def test_an_effect_that_nobody_awaits_is_not_intended(
    engine: testing.Engine, function: Any
) -> None:
    """A coroutine function is Usage under the blocking worker, and nothing is recorded of it."""
    agent, run = Agent(), started(engine)
    pay = agent.effect("pay")(function)
    agent.step("work")(lambda claim: claim.perform("pay-1", pay, "bank:acct"))
    Worker(engine, WORKER, agent).work(until_idle=True)
    assert "foldlog.worker.aio" in state_of(run).waiting.reason
    assert state_of(run).effects == []


def test_a_reconciler_that_nobody_awaits(engine: testing.Engine) -> None:
    """Whose reconciler could not be asked, that effect is not begun; where one is in doubt
    already, nothing is settled by a coroutine."""
    agent, made, run = Agent(), [], started(engine)

    @agent.effect("pay")
    def pay(effect: Any) -> None:
        made.append(effect.id)
        raise OSError("no answer")

    agent.step("work")(lambda claim: claim.perform("pay-1", pay, "bank:acct"))

    async def ask(effect: Any) -> Succeeded:
        return Succeeded("bank:1")

    pay.reconciler(ask)
    worker = Worker(engine, WORKER, agent, retries=SOON)
    worker.work(until_idle=True)
    assert (made, state_of(run).effects) == ([], [])
    pay.reconcile = lambda effect: ask(effect)
    for _ in range(2):
        engine.clock.advance(1)
        worker.work(until_idle=True)
    assert (made, state_of(run).effects[0].status) == (["pay-1"], "unknown")
    assert "foldlog.worker.aio" in state_of(run).waiting.reason


def test_an_effect_that_gives_a_coroutine_has_not_succeeded(engine: testing.Engine) -> None:
    """What comes back and was never awaited leaves the effect unknown."""
    agent, run = Agent(), started(engine)
    pay = agent.effect("pay")(lambda effect: pay_later(effect))
    agent.step("work")(lambda claim: claim.perform("pay-1", pay, "bank:acct"))
    Worker(engine, WORKER, agent).work(until_idle=True)
    assert state_of(run).effects[0].status == "unknown"


async def look() -> str:
    """A tool that is a coroutine function."""
    return "seen"


def test_a_tool_that_nobody_awaits(engine: testing.Engine) -> None:
    """Under the blocking worker a coroutine function is Usage before its call is recorded, and a
    call that gives a coroutine has failed."""
    agent, run = Agent(), started(engine)

    @agent.step
    def work(claim: Any) -> None:
        with pytest.raises(errors.Usage, match=r"foldlog\.worker\.aio"):
            claim.tool("look", look)
        with pytest.raises(errors.Usage, match=r"foldlog\.worker\.aio"):
            claim.observe("stock", look)
        with pytest.raises(errors.Usage, match=r"foldlog\.worker\.aio"):
            claim.tool("look", lambda: look(), step_id="look-1")

    Worker(engine, WORKER, agent).work(until_idle=True)
    assert state_of(run).result == "completed"
    assert types_of(run)[4:6] == [["ToolStarted"], ["ToolFailed"]]
