"""Decisions that rules version 1 once made, kept: `python -m tests.core_golden` writes them anew.

A run goes on under the rules it is pinned to, in every later build. So these decisions stay as they
are: what changes one of them belongs under a new rules version. Only while version 1 is unreleased
may the file be written again.

Invariants:
- A line is a proposal with what was decided of it; at the end of a walk stand its runs' digests.
- Nothing in a line depends on the harness but the order of the lines.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rfc8785

from foldlog.core.decide import Decision
from foldlog.core.document import digest_form, document
from foldlog.core.state import RunState
from tests.core_model import World
from tests.core_walk import walk

DECISIONS = Path(__file__).parent / "golden" / "core" / "decisions.jsonl.gz"
SEEDS = range(12)
WILD_SEEDS = range(1_000, 1_004)


def told(decision: Decision) -> dict[str, Any]:
    """What is kept of a decision: all but its message, which may be put better at any time."""
    return {
        "outcome": decision.outcome,
        "code": decision.code,
        "event_index": decision.event_index,
        "field": decision.field,
        "revision": decision.revision_after,
        "rebased": decision.rebased,
        "duplicate_of": decision.duplicate_of,
        "conflicts": list(decision.conflicts),
    }


def digest(state: RunState) -> str:
    """The digest of a run, as everywhere: BLAKE2b-256 over its document in RFC 8785 form."""
    return hashlib.blake2b(rfc8785.dumps(digest_form(document(state))), digest_size=32).hexdigest()


def lines(number: int, world: World) -> Iterator[dict[str, Any]]:
    """A walk as lines of the file."""
    for record in world.records:
        yield {
            "walk": number,
            "run_id": record.run_id,
            "log_time": record.log_time,
            "proposal": record.value,
            "expect": told(record.decision),
        }
    for run_id, state in sorted(world.states.items()):
        if state.exists:
            yield {"walk": number, "run_id": run_id, "digest": digest(state)}


def main() -> None:
    """Write the file anew."""
    worlds = [walk(seed) for seed in SEEDS] + [walk(seed, ids=6) for seed in WILD_SEEDS]
    shown = [
        json.dumps(line) for number, world in enumerate(worlds) for line in lines(number, world)
    ]
    DECISIONS.write_bytes(gzip.compress("\n".join(shown).encode() + b"\n", mtime=0))


if __name__ == "__main__":
    main()
