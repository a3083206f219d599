"""What all tests on a real broker share."""

from __future__ import annotations

import pytest

from foldlog import Engine
from foldlog.client import Run


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given no time of its own here has 60 s: beside brokers a machine may be loaded."""
    for function in (Engine.start, Run.propose, Run.propose_json, Run.state):
        monkeypatch.setitem(function.__kwdefaults__, "timeout", 60.0)  # type: ignore[arg-type]
