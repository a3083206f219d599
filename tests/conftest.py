"""What holds for every test: which foldlog is tested, and where the repository is.

Invariants:
- Under `make test` (FOLDLOG_TEST_VENV is set) the three packages come from that environment;
  anything else ends the run before the first test.
- Ctrl-C means what it means at a terminal, for the tests and for whatever they start.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from tests.kafka.fixtures import bootstrap, kafka_log, new_url
from tests.s3.fixtures import place_url, s3_server

__all__ = ["bootstrap", "kafka_log", "new_url", "place_url", "s3_server"]

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("foldlog", "foldlog_projector", "foldlog_schemas")


def _location(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test sources where the installed wheel is meant to be tested."""
    # A script's background jobs begin with SIGINT ignored, and hand that down to their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = os.environ.get("FOLDLOG_TEST_VENV")
    if environment is None:
        return
    for package in PACKAGES:
        location = _location(package)
        if location is None or not location.is_relative_to(Path(environment).resolve()):
            raise pytest.UsageError(
                f"{package} is {location}, not what is installed in {environment}"
            )


def pytest_report_header(config: pytest.Config) -> str:
    """Say which foldlog is tested."""
    return f"foldlog: {_location('foldlog')}"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY
