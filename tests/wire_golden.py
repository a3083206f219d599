"""Appends to the golden bytes of the wire what they lack: `python -m tests.wire_golden`.

Invariants:
- What a golden file has is kept as it is; a changed encoding is for the tests to find.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import foldlog_schemas
from foldlog.core.values import Author
from foldlog.wire import chain, envelope, events, imports, records
from foldlog.wire.chain import ZERO
from foldlog.wire.imports import ImportPart
from foldlog.wire.partitioner import murmur2, partition_of
from tests.wire_examples import example_event, proposal, record

GOLDEN_PLUGIN_EVENT = {"type": "votes:BallotCast", "voter": "ada é", "choice": None, "n": [1, {}]}

GOLDEN_ARCHIVE: dict[str, Any] = {"type": "RunArchived", "reason": "billed"}
GOLDEN_FORK: dict[str, Any] = {
    "type": "RunForked",
    "run_id": "run_128",
    "revision": 12,
    "chain": "ab" * 32,
    "effects": [
        {"id": "eff_1", "kind": "refund", "target": "order://9", "idempotency_key": "k1",
         "status": "reconciled", "outcome": "failed"},
        {"id": "eff_2", "kind": "mail", "target": "mail://ada", "idempotency_key": "k2",
         "status": "intended"},
    ],
}  # fmt: skip

FOLDER = Path(__file__).parent / "golden" / "wire"

CONFLICT = {
    "entity": "task/task_3",
    "expected_revision": 18,
    "changed_at": 19,
    "changed_by": {"kind": "agent", "id": "worker-2"},
}
CHANGES: dict[str, dict[str, Any]] = {
    "accepted": {},
    "conflict": {
        "outcome": "rejected",
        "code": "CONFLICT",
        "message": "task/task_3 changed at 19",
        "conflicts": (CONFLICT, CONFLICT | {"expected_revision": None}),
        "revision_after": 18,
        "state_hash": None,
    },
    "duplicate": {"outcome": "duplicate", "duplicate_of": 1040, "state_hash": None},
    "quarantined": {
        "outcome": "quarantined",
        "code": "RUN_QUARANTINED",
        "error": "ZeroDivisionError",
        "event_index": 1,
        "field": "task.depends_on[1]",
        "rebased": True,
    },
    "unreadable": {
        "batch_id": None,
        "outcome": "rejected",
        "code": "MALFORMED",
        "state_hash": None,
        "proposal": None,
        "unreadable": {"sha256": bytes(range(32)), "size": 300_000},
    },
    "imported": {"imported": {"import_id": bytes(range(80, 96)), "part": 3, "place": "more"}},
}
GOLDEN_RECORDS = {name: record(**changes) for name, changes in CHANGES.items()}
GOLDEN_PART = ImportPart(
    run_id="run_128",
    import_id=bytes(range(80, 96)),
    author=Author("user", "ada"),
    part=0,
    parts=1,
    records=(records.encode_record(GOLDEN_RECORDS["accepted"]),),
)
RUN_IDS = ("run_1", "run_2", "run_3", "run_128", "a", "x" * 128, "2026-08-11:job.7")
KEYS = (
    "21",
    "foobar",
    "a-little-bit-long-string",
    "a-little-bit-longer-string",
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
    "abc",
)


def hashes() -> dict[str, str]:
    """One hash of each kind, and of each form of its input."""
    first = chain.run_hash(ZERO, GOLDEN_RECORDS["accepted"])
    headers = [("h", b"v"), ("n", None)]
    return {
        "run": first.hex(),
        "run, the next": chain.run_hash(first, GOLDEN_RECORDS["conflict"]).hex(),
        "run, unreadable": chain.run_hash(ZERO, GOLDEN_RECORDS["unreadable"]).hex(),
        "partition": chain.partition_hash(ZERO, first, b"record").hex(),
        "partition, headers": chain.partition_hash(ZERO, first, b"record", headers).hex(),
        "entity": f"{chain.entity_hash(b'key', b'stored'):064x}",
    }


def load(name: str) -> dict[str, Any]:
    """What a golden file has; nothing if it is not there."""
    path = FOLDER / name
    return json.loads(path.read_bytes()) if path.exists() else {}


def _keep(name: str, found: dict[str, Any]) -> None:
    kept = found | load(name)
    text = json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False)
    (FOLDER / name).write_text(text + "\n", "utf-8")


def _event_entry(event: dict[str, Any]) -> dict[str, Any]:
    return {"event": event, "hex": events.encode_event(event).hex()}


def main() -> None:
    """Adds every event type in the version now written, and every released schema."""
    found = {}
    for name in foldlog_schemas.names(events=True):
        version = events.WRITTEN.get(name, 1)
        for size in ("minimal", "full"):
            event = example_event(name, full=size == "full")
            found[f"{name} v{version} {size}"] = _event_entry(event)
    nothing = {"type": "BudgetSet", "tokens_remaining": None, "deadline": None}
    found["BudgetSet v1 unlimited"] = _event_entry(nothing)
    _keep("events.json", found)
    _keep("plugin_events.json", {"votes:BallotCast": _event_entry(GOLDEN_PLUGIN_EVENT)})
    own = {"RunForked v1": GOLDEN_FORK, "RunArchived v1": GOLDEN_ARCHIVE}
    _keep("own_events.json", {name: _event_entry(event) for name, event in own.items()})
    _keep("released.json", foldlog_schemas.released())
    _keep("proposals.json", {"typical": envelope.encode_proposal(proposal()).hex()})
    encoded = {name: records.encode_record(made).hex() for name, made in GOLDEN_RECORDS.items()}
    _keep("records.json", encoded)
    part_id = imports.import_id_of(list(GOLDEN_PART.records)).hex()
    _keep("imports.json", {"part": imports.encode_part(GOLDEN_PART).hex(), "import id": part_id})
    _keep("hashes.json", hashes())
    java = {key: murmur2(key.encode()) for key in KEYS}
    places = {run_id: partition_of(run_id, 12) for run_id in RUN_IDS}
    _keep("partitions.json", {"murmur2": java, "of 12": places})


if __name__ == "__main__":
    main()
