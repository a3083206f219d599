"""The same proposals give the same bytes in every process, however it orders its sets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import hashlib, sys
from pathlib import Path
from tests.turn_world import Place, dump, play, start, stored, value

place = Place("memory", Path())
play(place, int(sys.argv[1]))
plan = [{"id": f"task_{number}", "title": "t"} for number in range(12)]
new = {"id": "new", "title": "t"}
status = {"type": "RunTransitioned", "to": "planning"}
found = place.decide(
    "run_p",
    start(9_000),
    value(status, id=9_001, expected_revision=1),
    value({"type": "PlanAdopted", "tasks": plan}, id=9_002, expected_revision=2),
    value({"type": "PlanAdopted", "tasks": plan[8:]}, id=9_003, expected_revision=3),
    value({"type": "PlanAdopted", "tasks": [plan[9], new]}, id=9_004, expected_revision=4),
)
assert {record.outcome for record in found} == {"accepted"}
digest = hashlib.sha256()
for row in stored(place.log):
    digest.update(row.value)
for key, data in sorted(dump(place.store).items()):
    digest.update(key + data)
print(digest.hexdigest())
"""


def digest_of(seed: int, hash_seed: int) -> str:
    """Of the log and the projection that a walk and a plan adopted anew make in a process."""
    path = os.pathsep.join(["", *sys.path])
    return subprocess.run(
        [sys.executable, "-c", CODE, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.parametrize("seed", range(3))
def test_no_byte_depends_on_the_order_of_a_set(seed: int) -> None:
    """Three processes with hashes of their own agree on every byte of log and projection."""
    assert len({digest_of(seed, hash_seed) for hash_seed in (1, 2, 3)}) == 1
