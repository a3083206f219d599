"""The hashes: golden values, what they cover, and that no two inputs run together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog.wire import chain
from foldlog.wire.chain import ZERO
from tests import wire_golden
from tests.wire_examples import record

UNREADABLE = {"proposal": None, "unreadable": {"sha256": bytes(32), "size": 8}}


def test_the_golden_hashes() -> None:
    """The hashes of the format's worked example, written down once."""
    assert wire_golden.hashes() == wire_golden.load("hashes.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"proposal": b"proposam"},
        UNREADABLE,
        {"outcome": "arbitration"},
        {"code": ""},
        {"code": "CONFLICT"},
        {"revision_before": 17},
        {"revision_after": 20},
        {"rules_version": 2},
        {"log_time": 0},
    ],
)
def test_a_run_hash_covers_what_was_decided(changes: dict[str, Any]) -> None:
    """Another proposal, outcome, code, revision, rules version or log time gives another hash."""
    assert chain.run_hash(ZERO, record(**changes)) != chain.run_hash(ZERO, record())


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": 1},
        {"position": 1},
        {"previous": ZERO},
        {"chain": ZERO},
        {"appended_at": 0},
        {"build": "9"},
        {"decider": "elsewhere"},
    ],
)
def test_a_run_hash_does_not_say_where(changes: dict[str, Any]) -> None:
    """A record put into another partition by an import keeps its run hash."""
    assert chain.run_hash(ZERO, record(**changes)) == chain.run_hash(ZERO, record())


def test_a_hash_extends_the_one_before() -> None:
    """Another previous hash gives another one, in both chains."""
    other = bytes(31) + b"\x01"
    assert chain.run_hash(other, record()) != chain.run_hash(ZERO, record())
    heads = {chain.partition_hash(a, b, b"") for a in (ZERO, other) for b in (ZERO, other)}
    assert len(heads) == 4


HEADERS = st.lists(st.tuples(st.text("ab", max_size=2), st.none() | st.binary(max_size=2)))
INPUT = st.tuples(st.binary(max_size=3), HEADERS)


@given(one=INPUT, other=INPUT)
def test_no_two_records_with_headers_run_together(one: Any, other: Any) -> None:
    """Every byte of the record and of its headers counts, and where each of them ends."""
    same = chain.partition_hash(ZERO, ZERO, *one) == chain.partition_hash(ZERO, ZERO, *other)
    assert same == (one == other)


def test_an_entity_hash_tells_key_from_value() -> None:
    """Bytes moved from the value to the key give another hash; it fits 256 bits."""
    assert chain.entity_hash(b"ab", b"c") != chain.entity_hash(b"a", b"bc")
    assert 0 <= chain.entity_hash(b"", b"") < 2**256


def test_each_purpose_has_hashes_of_its_own() -> None:
    """The same bytes hashed for another purpose give another hash."""
    made = {chain._hash(person, [b"x"]) for person in (chain.RUN, chain.PARTITION, chain.ENTITY)}
    assert len(made) == 3
