"""Decided records to bytes and back, and their golden bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog.wire import avro, envelope, records
from foldlog.wire.avro import WireError
from foldlog.wire.envelope import PROPOSAL_BYTES_MAX
from foldlog.wire.records import OUTCOMES, RECORD_BYTES_MAX, Record
from tests import wire_examples, wire_golden
from tests.wire_examples import BATCH_ID, ID, TEXT, record
from tests.wire_golden import GOLDEN_RECORDS

HASH = st.binary(min_size=32, max_size=32)
WHOLE = st.integers(0, 2**53 - 1)
CONFLICT = st.fixed_dictionaries(
    {
        "entity": ID,
        "expected_revision": st.none() | WHOLE,
        "changed_at": WHOLE,
        "changed_by": st.fixed_dictionaries({"kind": ID, "id": ID}),
    }
)
CARRIED = st.fixed_dictionaries({"proposal": st.binary(max_size=99)}) | st.fixed_dictionaries(
    {"proposal": st.none(), "unreadable": st.fixed_dictionaries({"sha256": HASH, "size": WHOLE})}
)
OTHERS = st.fixed_dictionaries(
    {"outcome": st.sampled_from(OUTCOMES), "rebased": st.booleans(), "previous": HASH},
    optional={
        "batch_id": st.none() | st.uuids().map(str),
        "code": st.none() | TEXT,
        "message": st.none() | TEXT,
        "event_index": st.none() | st.integers(0, 99),
        "field": st.none() | TEXT,
        "conflicts": st.lists(CONFLICT, max_size=3).map(tuple),
        "log_time": st.integers(-(2**62), 2**62),
        "duplicate_of": st.none() | WHOLE,
        "error": st.none() | TEXT,
        "state_hash": st.none() | HASH,
    },
)


@given(carried=CARRIED, others=OTHERS)
def test_a_record_comes_back_as_it_was(carried: dict[str, Any], others: dict[str, Any]) -> None:
    """decode_record gives back exactly what was encoded."""
    made: Record = record(**others | carried)
    assert records.decode_record(records.encode_record(made)) == made


def test_a_record_carries_the_proposals_own_bytes() -> None:
    """The proposal's bytes stand in the record unchanged."""
    data = envelope.encode_proposal(wire_examples.proposal())
    assert data in records.encode_record(record(proposal=data))


@pytest.mark.parametrize("name", GOLDEN_RECORDS)
def test_the_golden_records(name: str) -> None:
    """The bytes of some records, written down once."""
    made, data = GOLDEN_RECORDS[name], bytes.fromhex(wire_golden.load("records.json")[name])
    assert records.encode_record(made) == data
    assert records.decode_record(data) == made


def conflicts(count: int, letter: str = "a") -> tuple[dict[str, Any], ...]:
    """Conflicts with the longest names that there are."""
    author = {"kind": "operator", "id": letter * 2_048}
    one = {"entity": "task/" + letter * 2_048, "expected_revision": 2**53, "changed_at": 2**53}
    return tuple(one | {"changed_by": author} for _ in range(count))


def test_a_trimmed_record_can_always_be_written() -> None:
    """Fault 12: however much there is to explain, a record stays below what a log takes."""
    most = record(
        proposal=bytes(PROPOSAL_BYTES_MAX),
        conflicts=conflicts(30_000, "\N{GRINNING FACE}"),
        message="é" * 9_000,
        field="\N{GRINNING FACE}" * 9_000,
        error="x" * 9_000,
    )
    data = records.encode_record(records.trimmed(most))
    assert len(data) <= RECORD_BYTES_MAX
    assert records.decode_record(data) == records.trimmed(most)
    assert records.trimmed(most).message == "é" * 4_096
    assert records.trimmed(most).error == "x" * 8_192


def test_what_fits_is_not_trimmed() -> None:
    """An ordinary record is the same after trimming; so is one with some hundred conflicts."""
    made = record(message="m" * 3_000, error="", conflicts=conflicts(90))
    assert records.trimmed(made) == made
    assert records.trimmed(record()) == record()


def _raw(**changes: Any) -> bytes:
    made = record()
    fields = {name: getattr(made, name) for name in Record._fields}
    fields["batch_id"] = envelope.batch_id_bytes(BATCH_ID)
    version = changes.pop("version", 1)
    if version == 1:
        del fields["imported"]
    return avro.encode("Record", version, fields | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": "perhaps"}, "unknown outcome 'perhaps'"),
        ({"proposal": None}, "either"),
        ({"unreadable": {"sha256": bytes(32), "size": 1}}, "either"),
        ({"version": 2}, "version 2"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, Any], reason: str) -> None:
    """An outcome nobody knows, or both or neither of bytes and their hash, is no record."""
    with pytest.raises(WireError, match=reason):
        records.decode_record(_raw(**changes))


def test_a_proposal_is_no_record() -> None:
    """Bytes of another kind are refused where a record is wanted."""
    with pytest.raises(WireError, match="Envelope is not a record"):
        records.decode_record(envelope.encode_proposal(wire_examples.proposal()))
