"""Runs on their way from one log to another: exports, files of them, and forgeries.

Invariants:
- Everything goes through what users have, but for ``forged``, which makes what no client would.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from foldlog import client
from foldlog.core.values import Author
from foldlog.importers.exported import exported_lines, import_exported
from foldlog.importers.runner import RunImport
from foldlog.wire.records import decode_record, encode_record
from tests.client_runs import accepted, fact, running

Json = dict[str, Any]
USER = Author("user", "ada")
RUN = "run_1"


def export(engine: client.Engine, run_id: str = RUN) -> list[bytes]:
    """The bytes of a run's records; it must exist."""
    found = engine.run(run_id).export()
    assert found is not None
    return found


def file_of(*exports: list[bytes]) -> list[bytes]:
    """Exports as the lines of one file."""
    return [json.dumps(line).encode() + b"\n" for data in exports for line in exported_lines(data)]


def read(engine: client.Engine, lines: Sequence[bytes]) -> list[RunImport]:
    """What importing a file of these lines comes to."""
    return import_exported(engine, io.BytesIO(b"".join(lines)))


def take(engine: client.Engine, run_id: str, data: list[bytes]) -> None:
    """Import a run; it must be taken over."""
    outcome, _ = engine.import_records(run_id, data)
    assert outcome.outcome != "rejected", outcome


def assert_proven(engine: client.Engine) -> None:
    """The home verifies, whole and run by run, also when it decides again."""
    report = engine.verify(redecide=True)
    assert report.ok, report
    for row in engine.runs():
        assert engine.verify(row.run_id).ok


def batch(number: int) -> str:
    """A batch id made of a number."""
    return f"00000000-0000-4000-8000-{number:012}"


def make_run(engine: client.Engine, run_id: str, count: int) -> list[bytes]:
    """A run of three records more than this."""
    run = running(engine, run_id)
    for number in range(count):
        accepted(run.propose(fact(f"f{number}"), batch_id=batch(number)))
    return export(engine, run_id)


def forged(data: bytes, **fields: Any) -> bytes:
    """A record's bytes with other fields, and nothing else made to fit."""
    return encode_record(decode_record(data)._replace(**fields))


FORGERIES: list[tuple[Json, str]] = [
    ({"chain": bytes(32)}, "run chain"),
    ({"outcome": "rejected"}, "run chain"),
    ({"revision_after": 7}, "run chain"),
    ({"state_hash": bytes(32)}, "state hash"),
    ({"batch_id": batch(1)}, "batch id of the proposal"),
    ({"log_time": 0}, "run chain"),
]
"""What may be changed in a record, and what then does not fit."""
