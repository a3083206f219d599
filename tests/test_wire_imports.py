"""Parts of an import as bytes: there and back, written down once, bounded, nothing else read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foldlog.core.values import Author
from foldlog.wire import envelope, imports
from foldlog.wire.avro import WireError
from foldlog.wire.imports import PART_BYTES, PART_RECORDS_MAX, decode_part, encode_part, parts_of
from tests import wire_examples, wire_golden
from tests.wire_golden import GOLDEN_PART

USER = Author("user", "ada")


def test_the_golden_part() -> None:
    """The bytes of a part and the id of its import, written down once."""
    golden = wire_golden.load("imports.json")
    assert encode_part(GOLDEN_PART).hex() == golden["part"]
    assert decode_part(bytes.fromhex(golden["part"])) == GOLDEN_PART
    assert imports.import_id_of(list(GOLDEN_PART.records)).hex() == golden["import id"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"run_id": "a b"}, "run id"),
        ({"records": ()}, "carries 1 to 100"),
        ({"records": (b"x",) * 101}, "carries 1 to 100"),
        ({"part": 1}, "no part 1 of 1"),
        ({"part": -1}, "no part -1 of 1"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused(fields: dict[str, object], reason: str) -> None:
    """Whatever a client would never make is no part."""
    with pytest.raises(WireError, match=reason):
        decode_part(encode_part(replace(GOLDEN_PART, **fields)))  # type: ignore[arg-type]


def test_a_proposal_is_no_part() -> None:
    """The two kinds of the proposals log are told apart by ten bytes; other bytes are neither."""
    proposal = envelope.encode_proposal(wire_examples.proposal())
    assert imports.is_part(encode_part(GOLDEN_PART))
    assert not imports.is_part(proposal)
    assert not imports.is_part(b"")
    with pytest.raises(WireError, match="Envelope is no part"):
        decode_part(proposal)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([10], [1]),
        ([10] * 100, [100]),
        ([10] * 101, [100, 1]),
        ([10] * 350, [100, 100, 100, 50]),
        ([PART_BYTES, 1], [1, 1]),
        ([PART_BYTES - 1, 1, 1], [2, 1]),
        ([900_000, 900_000], [1, 1]),
    ],
)
def test_records_are_grouped_by_number_and_bytes(sizes: list[int], groups: list[int]) -> None:
    """A part has at most 100 records and 256 KiB, or one record that is larger."""
    records = [bytes(size) for size in sizes]
    parts = parts_of("run_1", records, USER)
    assert [len(part.records) for part in parts] == groups
    assert [record for part in parts for record in part.records] == records
    assert [part.part for part in parts] == list(range(len(groups)))
    assert {part.parts for part in parts} == {len(groups)}
    assert len({part.import_id for part in parts}) == 1
    assert max(groups) <= PART_RECORDS_MAX
    assert [decode_part(encode_part(part)) for part in parts] == parts


def test_an_import_id_tells_what_is_carried() -> None:
    """Other records, in another order or cut elsewhere, make another id; the author does not."""
    ids = [
        parts_of("run_1", records, USER)[0].import_id
        for records in ([b"ab", b"c"], [b"a", b"bc"], [b"c", b"ab"], [b"ab"], [b"abc"])
    ]
    assert len(set(ids)) == 5
    assert parts_of("run_1", [b"ab", b"c"], Author("system", "x"))[0].import_id == ids[0]
