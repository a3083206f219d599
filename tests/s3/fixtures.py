"""Fixtures of a real S3 server.

Invariants:
- A process of a test run has one server; each test has a prefix of its own in its bucket.
"""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator

import pytest

from tests.needs import cannot
from tests.s3.server import BUCKET, Server, get_jars, missing_programs


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that answers; a test that kills it starts it again."""
    if missing := missing_programs():
        cannot(
            f"nothing was tested on a real S3 server: {' and '.join(missing)} missing"
            " (apt-get install openjdk-17-jre-headless maven)"
        )
    if importlib.util.find_spec("obstore") is None:
        cannot("nothing was tested on a real S3 server: obstore missing (pip install obstore)")
    get_jars()
    server = Server(tmp_path_factory.mktemp("s3"))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def place_url(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place for snapshots that nobody has used, which this process and its children reach."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/t{uuid.uuid4().hex[:12]}"
