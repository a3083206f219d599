"""Which partition a run lives in: murmur2 over its id, exactly as the Java client of Kafka does it.

Invariants:
- partition_of gives what Kafka's DefaultPartitioner gives for the same key, for ever: a run's
  records stay where they are, and producers in other languages find the same partition.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["murmur2", "partition_of"]

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
WORD = 0xFFFFFFFF

RUNS_KEPT = 4_096
"""How many runs' partitions are remembered: a run is asked about at every step of its way."""


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's org.apache.kafka.common.utils.Utils.murmur2, signed as there."""
    whole = len(data) & ~3
    mixed = SEED ^ len(data)
    for place in range(0, whole, 4):
        k = int.from_bytes(data[place : place + 4], "little") * MULTIPLIER & WORD
        k = (k ^ k >> 24) * MULTIPLIER & WORD
        mixed = mixed * MULTIPLIER & WORD ^ k
    if whole < len(data):
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & WORD
    mixed = (mixed ^ mixed >> 13) * MULTIPLIER & WORD
    mixed ^= mixed >> 15
    return mixed - (1 << 32) if mixed >> 31 else mixed


@lru_cache(RUNS_KEPT)
def partition_of(run_id: str, partitions: int) -> int:
    """The partition of a run, 0..partitions-1: the hash without its sign bit, modulo the count."""
    return (murmur2(run_id.encode()) & 0x7FFFFFFF) % partitions
