"""Tools from a step: what is recorded of a call, what cannot be, and ids that nobody shares."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest

from foldlog import errors, testing
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


def test_an_option_may_have_any_name(made: Kit, engine: testing.Engine) -> None:
    """What the kit calls its own arguments takes no name away from the author's."""
    agent, given = Agent(), []

    @agent.step
    def work(run: Any) -> None:
        run.tool("build", lambda **options: given.append(options), function="f", work="w")

    run = started(engine)
    made.worker(engine, agent=agent).work(until_idle=True)
    assert (given, state_of(run).result) == ([{"function": "f", "work": "w"}], "completed")


def nested(levels: int) -> list[Any]:
    """So many lists, each in the next."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


class NoRepr:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise AttributeError("no repr")


NOT_KEPT = [
    2**53, "a\udc80", {"a\udc80": 1}, nested(62), (1, 2), {1, 2}, {1: "a"}, "x" * 70_000, nan,
]  # fmt: skip
KEPT = [None, 2**53 - 1, nested(61), {"a": [1, 1.5, True, None, "é"]}, "x" * 65_534]


@pytest.mark.parametrize("result", KEPT, ids=lambda value: repr(value)[:9])
def test_a_result_is_given_again(made: Kit, engine: testing.Engine, result: Any) -> None:
    """Under a step id each pass gets what the first one got, whatever an event can hold."""
    agent, calls, given = Agent(), [], []

    def look() -> Any:
        calls.append(1)
        return result

    @agent.step
    def work(claim: Any) -> None:
        given.append(claim.tool("look", look, step_id="look-1"))
        if len(given) < 2:
            raise OSError("later")

    run, worker = started(engine), made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    engine.clock.advance(2)
    worker.work(until_idle=True)
    assert (given, len(calls), state_of(run).result) == ([result, result], 1, "completed")


@pytest.mark.parametrize("result", NOT_KEPT, ids=lambda value: ascii(value)[:9])
def test_a_result_that_cannot_be_kept(made: Kit, engine: testing.Engine, result: Any) -> None:
    """The call has ended and is not made again; under its step id each pass is told why, and none
    is given nothing for it. Without one the step gets it as it is."""
    agent, calls, told = Agent(), [], []

    def look() -> Any:
        calls.append(1)
        return result

    @agent.step
    def work(claim: Any) -> None:
        try:
            claim.tool("look", look, step_id="look-1")
        except errors.Usage as error:
            told.append(str(error))
        if len(told) < 3:
            raise OSError("later")
        assert claim.tool("look", look) is result

    run, worker = started(engine), made.worker(engine, agent=agent)
    for _ in range(3):
        worker.work(until_idle=True)
        assert state_of(run).pending_tool_calls == []
        engine.clock.advance(10)
    assert (len(calls), state_of(run).result) == (2, "completed")
    assert told == ["look-1: a result that is returned again is JSON of at most 64 KiB"] * 3


@pytest.mark.parametrize("given", [*NOT_KEPT, {(1, 2): 3}, NoRepr()], ids=lambda v: str(type(v)))
def test_arguments_that_cannot_be_recorded(made: Kit, engine: testing.Engine, given: Any) -> None:
    """A tool gets its arguments as they are; recorded is what can be, or that it was left out."""
    got: list[Any] = []
    agent = Agent()
    agent.step("work")(lambda claim: claim.tool("look", got.append, given))
    run = started(engine)
    made.worker(engine, agent=agent).work(until_idle=True)
    assert got[0] is given
    assert state_of(run).result == "completed"


def test_no_call_is_taken_for_another(made: Kit, engine: testing.Engine) -> None:
    """A call without a step id has one that no author can give: each named call is its own."""
    agent, got, run = Agent(), [], started(engine)

    @agent.step
    def work(claim: Any) -> None:
        claim.tool("fetch", lambda: "unnamed")
        for revision in range(12):
            step_id = f"fetch-{revision}"
            got.append(claim.tool("fetch", lambda name=step_id: name, step_id=step_id))

    made.worker(engine, agent=agent).work(until_idle=True)
    assert got == [f"fetch-{revision}" for revision in range(12)]
    assert state_of(run).result == "completed"


def test_a_step_id_without_the_kits_mark(made: Kit, engine: testing.Engine) -> None:
    """A step id may not look like a later attempt of another."""
    agent, run = Agent(), started(engine)
    agent.step("work")(lambda claim: claim.tool("open", print, step_id="issue#2"))
    made.worker(engine, agent=agent).work(until_idle=True)
    assert "a step id has no #: 'issue#2'" in state_of(run).waiting.reason


def test_an_error_that_cannot_be_shown(made: Kit, engine: testing.Engine) -> None:
    """A step's failure is recorded by its type where it has no text; the worker goes on."""

    class Shy(Exception):
        def __repr__(self) -> str:
            raise AttributeError("no repr")

    agent, run = Agent(), started(engine)

    @agent.step
    def work(claim: Any) -> None:
        raise Shy

    assert made.worker(engine, agent=agent).work(until_idle=True) == 1
    assert state_of(run).waiting.reason == "Shy"
