"""Tools from a step: what is recorded of a call, what cannot be, and ids that nobody shares."""

from __future__ import annotations

from typing import Any

import pytest

from foldlog import errors, testing
from foldlog.worker import Agent, Worker
from tests.client_runs import NOW, started
from tests.kit import WORKER, Kit, state_of, types_of
from tests.kit import engine as engine
from tests.kit import made as made


def test_a_quarantined_start_is_no_start(made: Kit) -> None:
    """A rule that raises at a call's start quarantines the run; the tool is not called."""
    agent, calls = Agent(), []

    @agent.step
    def work(run: Any) -> None:
        run.tool("build", lambda: calls.append(1))

    with testing.Engine(now=NOW, raise_in="ToolStarted") as engine:
        run = started(engine)
        made.worker(engine, agent=agent).work(until_idle=True)
        assert (calls, state_of(run).condition) == ([], "quarantined")


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
