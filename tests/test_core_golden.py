"""What rules version 1 decided once it decides for ever."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from typing import Any

import pytest

from tests.core_golden import DECISIONS, digest, told
from tests.core_model import World
from tests.core_walk import RULES_OF_WALKS


def walks() -> dict[int, list[dict[str, Any]]]:
    """The lines of the file, walk by walk."""
    found = defaultdict(list)
    for text in gzip.decompress(DECISIONS.read_bytes()).splitlines():
        line = json.loads(text)
        found[line["walk"]].append(line)
    return dict(found)


WALKS = walks()


@pytest.mark.parametrize("number", WALKS)
def test_old_proposals_are_decided_as_they_were(number: int) -> None:
    """Every kept decision comes out again, and every run's digest with it."""
    world = World(rules=RULES_OF_WALKS)
    for line in WALKS[number]:
        if "digest" in line:
            assert digest(world.state(line["run_id"])) == line["digest"], line["run_id"]
            continue
        world.now = line["log_time"]
        decision = world.propose(line["run_id"], line["proposal"])
        assert told(decision) == line["expect"], line["proposal"]
