"""Tools from a step: what is recorded of a call, what cannot be, and ids that nobody shares."""

from __future__ import annotations

from typing import Any

from foldlog import testing
from foldlog.worker import Agent
from tests.client_runs import NOW, started
from tests.kit import Kit, state_of
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
