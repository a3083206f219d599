"""What all tests on a real broker share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foldlog import Engine
from foldlog.client import Run
from tests.kafka.projectors import Projector


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given no time of its own here has 60 s: beside brokers a machine may be loaded."""
    for function in (Engine.start, Run.propose, Run.propose_json, Run.state):
        monkeypatch.setitem(function.__kwdefaults__, "timeout", 60.0)  # type: ignore[arg-type]


@pytest.fixture
def url(world: Projector) -> str:
    """Where the log is that a module's projector decides."""
    return world.command[world.command.index("--log") + 1]


@pytest.fixture
def engine(url: str, tmp_path: Path) -> Iterator[Engine]:
    """An engine that is connected to it."""
    with Engine.connect(url, home=tmp_path / "home", author="user:ada") as engine:
        yield engine
