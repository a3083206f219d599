"""The partitioner gives what the Java client of Kafka gives."""

from __future__ import annotations

import pytest

from foldlog.wire.partitioner import murmur2, partition_of
from tests import wire_golden

GOLDEN = wire_golden.load("partitions.json")
JAVA = GOLDEN["murmur2"]  # from the tests of Kafka's own client, UtilsTest.testMurmur2


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_is_javas(key: str) -> None:
    """Fault 34: the hash of each of Java's own test vectors is Java's."""
    assert murmur2(key.encode()) == JAVA[key]


@pytest.mark.parametrize("key", JAVA)
def test_a_partition_is_javas(key: str) -> None:
    """The sign bit is dropped, not negated, before the modulo."""
    for partitions in (1, 3, 4, 32):
        assert partition_of(key, partitions) == (JAVA[key] & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("run_id", GOLDEN["of 12"])
def test_a_run_stays_in_its_partition(run_id: str) -> None:
    """The partitions of some runs, written down once."""
    assert partition_of(run_id, 12) == GOLDEN["of 12"][run_id]
