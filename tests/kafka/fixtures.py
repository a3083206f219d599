"""Fixtures of a real broker: the one that is named, else one that starts by itself.

Invariants:
- One broker serves all processes of a test run; it ends with the process that began the run.
- Each test has topics of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from foldlog.log.base import Clock
from foldlog.log.kafka.address import Address
from foldlog.log.kafka.log import KafkaLog, create
from tests.kafka.broker import HERE, START_SECONDS, get_jars, locked, missing_programs
from tests.needs import cannot


def check_programs() -> None:
    """Skip aloud (in CI: fail) where no broker can be started; else see that the jars are there."""
    if missing := missing_programs():
        cannot(
            f"nothing was tested on a real Kafka: {' and '.join(missing)} missing"
            " (apt-get install openjdk-17-jre-headless maven),"
            " and FOLDLOG_TEST_BOOTSTRAP names no broker"
        )
    get_jars()


@pytest.fixture(scope="session")
def bootstrap() -> str:
    """Where a real broker answers."""
    named = os.environ.get("FOLDLOG_TEST_BOOTSTRAP")
    if named:
        return named
    check_programs()
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"foldlog-kafka-{os.getuid()}-{owner}"
    with locked(folder / "lock"):
        if not (folder / "ready").exists():
            _keep(folder, owner)
    return (folder / "ready").read_text()


def _keep(folder: Path, owner: int) -> None:
    """Start a broker that lives as long as the process ``owner``."""
    with (folder / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.kafka", "--folder", folder, "keep", str(owner)],
            cwd=HERE.parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end = time.monotonic() + START_SECONDS
    while not (folder / "ready").exists():
        if keeper.poll() is not None or time.monotonic() > end:
            pytest.fail(f"no broker started:\n{(folder / 'keeper.log').read_text()[-2_000:]}")
        time.sleep(0.1)
    keeper.returncode = 0  # it outlives this object on purpose


@pytest.fixture
def new_url(bootstrap: str) -> Callable[[], str]:
    """Makes the URL of a log that is not there yet."""
    return lambda: f"kafka://{bootstrap}/t{uuid.uuid4().hex[:12]}"


OpenKafkaLog = Callable[[str, int, Clock], KafkaLog]


@pytest.fixture
def kafka_log(bootstrap: str) -> OpenKafkaLog:
    """Opens a log by its name, made where it is not there; its topics take the clock's time."""
    names: dict[str, str] = {}

    def opened(name: str, partitions: int, clock: Clock) -> KafkaLog:
        prefix = names.get(name)
        if prefix is None:
            prefix = names[name] = f"t{uuid.uuid4().hex[:12]}"
            create(Address(bootstrap, prefix), {}, partitions, create_time=True)
        return KafkaLog(Address(bootstrap, prefix), {}, clock=clock)

    return opened
