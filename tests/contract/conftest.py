"""The backends that the contract suites run on, each behind a factory.

A new backend joins by one line in LOGS or STORES, in DURABLE_* if it keeps what it is given, in
CONDITIONAL_LOGS if its append looks at the head, and in EXCHANGE_LOGS if it can do that.
Whatever a test opens is closed after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from foldlog.log import sqlite
from foldlog.log.base import ExchangeLog, Log
from foldlog.log.memory import MemoryLog
from foldlog.store.base import Store
from foldlog.store.memory import MemoryStore
from foldlog.store.rocks import RocksStore

PARTITIONS = 3

OpenLog = Callable[[], Log]
OpenStore = Callable[[], Store]


class Clock:
    """A clock that shows what a test sets it to, in microseconds."""

    def __init__(self) -> None:
        self.now = 1_767_225_600_000_000

    def __call__(self) -> int:
        return self.now


def _sqlite(home: Path, clock: Clock) -> sqlite.SqliteLog:
    path = home / "log.sqlite"
    if not path.exists():
        sqlite.create(path, PARTITIONS)
    return sqlite.SqliteLog(path, clock)


def _as_a_broker(home: Path, clock: Clock) -> Log:
    return MemoryLog(PARTITIONS, clock, conditional=False, gaps=True)


LOGS: dict[str, Callable[[Path, Clock], Log]] = {
    "memory": lambda home, clock: MemoryLog(PARTITIONS, clock),
    "memory-with-gaps": lambda home, clock: MemoryLog(PARTITIONS, clock, gaps=True),
    "memory-as-a-broker": _as_a_broker,
    "sqlite": _sqlite,
}
CONDITIONAL_LOGS = ["memory", "memory-with-gaps", "sqlite"]
DURABLE_LOGS = ["sqlite", "kafka"]
EXCHANGE_LOGS: dict[str, Callable[[Path, Clock], ExchangeLog]] = {
    "memory": lambda home, clock: MemoryLog(PARTITIONS, clock),
    "memory-with-gaps": lambda home, clock: MemoryLog(PARTITIONS, clock, gaps=True),
    "sqlite": _sqlite,
}

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda home: MemoryStore(),
    "rocks": lambda home: RocksStore(home / "store"),
}
DURABLE_STORES = ["rocks"]


@pytest.fixture
def clock() -> Clock:
    """The clock of every log that the test opens."""
    return Clock()


@pytest.fixture
def closer() -> Iterator[ExitStack]:
    """What it is given is closed after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def make_log(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, closer: ExitStack
) -> Callable[[str], Log]:
    """Opens a log of a backend, the same one each time if the backend is durable."""

    def kafka(home: Path, clock: Clock) -> Log:
        return request.getfixturevalue("kafka_log")(home.name, PARTITIONS, clock)

    def make(backend: str) -> Log:
        build = kafka if backend == "kafka" else LOGS[backend]
        return closer.enter_context(closing(build(tmp_path, clock)))

    return make


@pytest.fixture(params=[*LOGS, "kafka"])
def log(request: pytest.FixtureRequest, make_log: Callable[[str], Log]) -> Log:
    """An empty log of each backend in turn."""
    return make_log(request.param)


@pytest.fixture(params=CONDITIONAL_LOGS)
def conditional_log(request: pytest.FixtureRequest, make_log: Callable[[str], Log]) -> Log:
    """An empty log of each backend whose append looks at the head, in turn."""
    return make_log(request.param)


@pytest.fixture(params=EXCHANGE_LOGS)
def exchange_log(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, closer: ExitStack
) -> ExchangeLog:
    """An empty log of each backend that can exchange, in turn."""
    return closer.enter_context(closing(EXCHANGE_LOGS[request.param](tmp_path, clock)))


@pytest.fixture(params=DURABLE_LOGS)
def open_log(request: pytest.FixtureRequest, make_log: Callable[[str], Log]) -> OpenLog:
    """Opens the same log again and again, for each backend that outlives its object."""
    return lambda: make_log(request.param)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, closer: ExitStack) -> Store:
    """An empty store of each backend in turn."""
    return closer.enter_context(closing(STORES[request.param](tmp_path)))


@pytest.fixture(params=DURABLE_STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path, closer: ExitStack) -> OpenStore:
    """Opens the same store again and again, for each backend that outlives its object."""
    return lambda: closer.enter_context(closing(STORES[request.param](tmp_path)))
