"""The worker kit for tests: each test runs on the blocking worker and on its async twin.

Invariants:
- No test is written twice. The twin's claim is given to plain steps, which run in threads; there
  each call is a coroutine that the step waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from foldlog import aio, client, testing
from foldlog import worker as kit
from foldlog.worker import aio as async_kit
from tests.client_runs import NOW
from tests.loops import Loop

KINDS = ("blocking", "async")
WORKER = "worker-1"
OTHER = "worker-2"

CLAIM_NAMES = [name for name in vars(kit.Claim) if not name.startswith("_")]


class Kit:
    """Makes workers of one kind; all are called as the blocking ones are."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop = Loop() if kind == "async" else None
        self._made: list[Any] = []

    def worker(
        self, engine: client.Engine, worker_id: str = WORKER, agent: Any = None, **options: Any
    ) -> Any:
        """A worker of this engine."""
        if self._loop is None:
            return kit.Worker(engine, worker_id, agent, **options)
        twin = aio.Engine(engine)
        worker = async_kit.Worker(twin, worker_id, agent, **options)
        worker.claim_class = _claim_class(self._loop)
        self._made.append(worker)
        return Waiting(worker, self._loop)

    def close(self) -> None:
        """End what was made."""
        for worker in self._made:
            worker.threads.shutdown()
        if self._loop is not None:
            self._loop.close()


class Waiting:
    """The async worker, called like the blocking one: each call is waited for."""

    def __init__(self, worker: async_kit.Worker, loop: Loop) -> None:
        self._worker, self._loop = worker, loop

    def claim(self, timeout: float | None = 0.0) -> Any:
        """The next run."""
        return self._loop.wait(self._worker.claim(timeout))

    def work(self, **options: Any) -> Any:
        """Claim and work."""
        return self._loop.wait(self._worker.work(**options))

    def stop(self) -> None:
        """Claim no more."""
        self._worker.stop()


def _claim_class(loop: Loop) -> type[async_kit.Claim]:
    """The twin's claim, each of whose public calls is waited for."""

    def waited(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *args, **options: loop.wait(method(self, *args, **options))

    names = {name: waited(getattr(async_kit.Claim, name)) for name in CLAIM_NAMES}
    names["__enter__"] = waited(async_kit.Claim.__aenter__)
    names["__exit__"] = waited(async_kit.Claim.__aexit__)
    return type("WaitedClaim", (async_kit.Claim,), names)


@contextmanager
def of_kind(kind: str) -> Iterator[Kit]:
    """A kit, closed at the end."""
    made = Kit(kind)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Makes workers: blocking ones, then async ones."""
    with of_kind(request.param) as found:
        yield found


@pytest.fixture
def engine() -> Iterator[testing.Engine]:
    """An engine in memory, whose clock the test sets."""
    with testing.Engine(now=NOW) as engine:
        yield engine


def steps(*names: str, calls: list[str] | None = None) -> kit.Agent:
    """An agent of steps that do nothing but say that they were called."""
    agent = kit.Agent()
    for name in names:
        agent.step(name)(lambda run, name=name: (calls if calls is not None else []).append(name))
    return agent


def types_of(run: client.Run, author: str = WORKER) -> list[list[str]]:
    """The events of each batch that this author had accepted, by type."""
    return [
        [event.type for event in row.events or []]
        for row in run.history()
        if row.author is not None and row.author.id == author
    ]


def state_of(run: client.Run) -> Any:
    """The run's state; it must exist."""
    state = run.state()
    assert state is not None
    return state
