"""The keys of a partition's projection (FORMAT.md, "Projection").

======================================  =============================================
``m``                                   position, offset, sequence and head of the fold
``h 00 RUN``                            a run's chain, state hash, last record, quarantine
``a 00 RUN``                            the same of an archived run, out of the way of lists
``e 00 RUN 00 KIND 00 ID``              one slot: an entity, a tombstone, an index entry
``b 00 RUN 00 BATCH(16)``               a batch id: its first record and content
``r 00 RUN 00 SEQUENCE(8)``             where in the log a record of this run lies
``t 00 DEADLINE(12) RUN``               an open wait's deadline, for the timekeeper
``u 00 RULES(8)``                       how many runs use these rules of plug-ins
======================================  =============================================

Invariants:
- The order of keys is the order of what they hold: ids by code points, sequences and deadlines
  by number. A run id holds no zero byte, a kind neither; only the last part is free.
"""

from foldlog.wire.envelope import batch_id_bytes

META = b"m"
SEQUENCE_BYTES = 8
RULES_BYTES = 8
DEADLINE_BYTES = 12
# Deadlines are nanoseconds since 1970 and negative before it; this makes every one positive.
DEADLINE_ZERO = 1 << 94


def head_key(run_id: str) -> bytes:
    """The key of a run's head; ``head_key("")`` is the prefix of all heads."""
    return b"h\0" + run_id.encode()


def archived_head_key(run_id: str) -> bytes:
    """The key of an archived run's head; ``archived_head_key("")`` is the prefix of all of them."""
    return b"a\0" + run_id.encode()


def head_keys(run_id: str) -> tuple[bytes, bytes]:
    """Where a run's head may be: under one of these, and never under both."""
    return head_key(run_id), archived_head_key(run_id)


def kind_prefix(run_id: str, kind: str) -> bytes:
    """The prefix of every slot of one kind."""
    return slot_key(run_id, kind, "")


def slot_key(run_id: str, kind: str, id: str) -> bytes:
    """The key of one slot."""
    return f"e\0{run_id}\0{kind}\0{id}".encode()


def run_prefix(run_id: str) -> bytes:
    """The prefix of every slot of a run."""
    return b"e\0" + run_id.encode() + b"\0"


def batch_key(run_id: str, batch_id: str) -> bytes:
    """The key under which a batch id of a run is remembered."""
    return b"b\0" + run_id.encode() + b"\0" + batch_id_bytes(batch_id)


def record_prefix(run_id: str) -> bytes:
    """The prefix of a run's records, in the order of their sequences."""
    return b"r\0" + run_id.encode() + b"\0"


def record_key(run_id: str, sequence: int) -> bytes:
    """The key that says where a record lies in the log."""
    return record_prefix(run_id) + sequence.to_bytes(SEQUENCE_BYTES, "big")


def prefixes_of(run_id: str) -> tuple[bytes, ...]:
    """Prefixes of everything that is kept of a run but its head."""
    batches = b"b\0" + run_id.encode() + b"\0"
    return (run_prefix(run_id), batches, record_prefix(run_id))


USED_PREFIX = b"u\0"


def used_key(rules: int) -> bytes:
    """The key under which the runs are counted that use these rules of plug-ins."""
    return USED_PREFIX + rules.to_bytes(RULES_BYTES, "big")


def rules_of(key: bytes) -> int:
    """The number of the rules in such a key."""
    return int.from_bytes(key[len(USED_PREFIX) :], "big")


TIMER_PREFIX = b"t\0"


def timer_key(deadline: int, run_id: str) -> bytes:
    """The key of an open wait's deadline (nanoseconds)."""
    return (
        TIMER_PREFIX + (deadline + DEADLINE_ZERO).to_bytes(DEADLINE_BYTES, "big") + run_id.encode()
    )


def timer_of(key: bytes) -> tuple[int, str]:
    """The deadline and run of a timer key."""
    end = len(TIMER_PREFIX) + DEADLINE_BYTES
    deadline = int.from_bytes(key[len(TIMER_PREFIX) : end], "big") - DEADLINE_ZERO
    return deadline, key[end:].decode()
