"""How long the wire takes for a typical proposal of two events, and for its record.

Run it with `python bench/wire.py`; it prints the best of several rounds, in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from foldlog.core.proposals import parse_proposal
from foldlog.wire import chain, envelope, partitioner, records
from foldlog.wire.chain import ZERO

EVIDENCE = "artifact://test-output/48"
VALUE = {
    "batch_id": "7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11",
    "expected_revision": 18,
    "author": {"kind": "agent", "id": "worker-1"},
    "reads": ["fact/fact_12"],
    "occurred_at": "2026-08-11T16:22:10+08:00",
    "events": [
        {
            "type": "FactConfirmed",
            "fact": {"id": "fact_13", "statement": "it pins HS256", "evidence": EVIDENCE},
        },
        {"type": "TaskCompleted", "task_id": "task_3", "evidence": EVIDENCE},
    ],
}
ROUNDS, CALLS = 7, 5_000


def report(name: str, call: Callable[[], object]) -> None:
    """Times one call and prints the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - begin) / CALLS)
    print(f"{name:36s} {best * 1e6:6.1f} us")


def main() -> None:
    """Times everything that happens to a proposal's bytes."""
    proposal = parse_proposal("run_128", VALUE)
    data = envelope.encode_proposal(proposal)
    record = records.Record(
        sequence=1042,
        run_id="run_128",
        position=1043,
        batch_id=proposal.batch_id,
        outcome="accepted",
        revision_before=18,
        revision_after=19,
        rules_version=1,
        appended_at=1_786_436_530_123_456,
        log_time=1_786_436_530_123_456,
        build="0.1.0",
        decider="host:4242:1786436000000000",
        state_format=1,
        state_hash=ZERO,
        previous=ZERO,
        chain=ZERO,
        proposal=data,
    )
    written = records.encode_record(record)
    print(f"proposal {len(data)} bytes, record {len(written)} bytes")
    report("parse_proposal", lambda: parse_proposal("run_128", VALUE))
    report("encode_proposal", lambda: envelope.encode_proposal(proposal))
    report("decode_proposal, shape checked", lambda: envelope.decode_proposal(data))
    report("decode_decided", lambda: envelope.decode_decided(data))
    report("read_envelope", lambda: envelope.read_envelope(data))
    report("encode_record", lambda: records.encode_record(record))
    report("decode_record", lambda: records.decode_record(written))
    report("run_hash", lambda: chain.run_hash(ZERO, record))
    report("partition_hash", lambda: chain.partition_hash(ZERO, ZERO, written))
    report("entity_hash of 200 bytes", lambda: chain.entity_hash(bytes(30), bytes(200)))
    report("partition_of", lambda: partitioner.partition_of("run_128", 4))


if __name__ == "__main__":
    main()
