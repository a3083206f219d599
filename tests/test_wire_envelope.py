"""Proposals to bytes and back: shape checked again, the envelope read where the events do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog.core.proposals import Malformed, Proposal, parse_proposal
from foldlog.core.values import Author
from foldlog.wire import avro, envelope, events, records
from foldlog.wire.avro import WireError
from foldlog.wire.envelope import PROPOSAL_BYTES_MAX
from tests import wire_examples, wire_golden
from tests.wire_examples import BATCH_ID, TIME, proposal


def raw(**changes: Any) -> bytes:
    """The bytes of an envelope that a careless producer might write."""
    fields: dict[str, Any] = {
        "run_id": "run_128",
        "batch_id": bytes(16),
        "author": {"kind": "agent", "id": "worker-1"},
        "on_conflict": "reject",
        "reads": [],
        "events": [avro.encode("PhaseChanged", 1, {"phase": "p"})],
    }
    return avro.encode("Envelope", 1, fields | changes)


def is_well_shaped(event: dict[str, Any]) -> bool:
    """Whether an event may stand alone in a proposal."""
    value = {"batch_id": BATCH_ID, "author": {"kind": "user", "id": "u"}, "events": [event]}
    try:
        parse_proposal("run_128", value)
    except Malformed:
        return False
    return True


@given(
    event=wire_examples.events.filter(is_well_shaped),
    optional=st.fixed_dictionaries(
        {},
        optional={
            "lease_epoch": st.integers(0, 2**53 - 1),
            "on_conflict": st.sampled_from(["reject", "arbitrate"]),
            "reads": st.just(("fact/a", "task/é")),
            "occurred_at": st.just(TIME),
            "correlation_id": st.just("c"),
            "causation_id": st.just("é" * 2_048),
            "traceparent": st.just("00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        },
    ),
)
def test_a_proposal_comes_back_as_it_was(event: dict[str, Any], optional: dict[str, Any]) -> None:
    """decode_proposal and decode_decided give back exactly what was encoded."""
    fields = {"expected_revision": None, "reads": (), "occurred_at": None, "events": (event,)}
    made: Proposal = proposal(**fields | optional)
    data = envelope.encode_proposal(made)
    assert envelope.decode_proposal(data) == made
    assert envelope.decode_decided(data) == made


def test_the_envelope_reads_without_its_events() -> None:
    """read_envelope gives all that stands around the events, and their bytes."""
    made = proposal()
    found = envelope.read_envelope(envelope.encode_proposal(made))
    assert (found.run_id, found.batch_id, found.author) == ("run_128", BATCH_ID, made.author)
    assert (found.expected_revision, found.lease_epoch, found.on_conflict) == (18, None, "reject")
    assert (found.reads, found.occurred_at, found.traceparent) == (made.reads, TIME, None)
    assert [avro.identify(event)[0] for event in found.events] == ["FactConfirmed", "TaskCompleted"]


def test_the_golden_proposal() -> None:
    """The bytes of the typical proposal are those of the format's worked example."""
    data = bytes.fromhex(wire_golden.load("proposals.json")["typical"])
    assert envelope.encode_proposal(proposal()) == data
    assert envelope.decode_proposal(data) == proposal()


@pytest.mark.parametrize(
    ("changes", "event_index", "field"),
    [
        ({"author": {"kind": "robot", "id": "r"}}, None, "author.kind"),
        ({"author": {"kind": "agent", "id": ""}}, None, "author.id"),
        ({"on_conflict": "shout"}, None, "on_conflict"),
        ({"reads": ["nonsense"]}, None, "reads[0]"),
        ({"expected_revision": -1}, None, "expected_revision"),
        ({"occurred_at": "yesterday"}, None, "occurred_at"),
        ({"events": []}, None, "events"),
        ({"events": [avro.encode("TaskUnblocked", 1, {"task_id": ""})]}, 0, "task_id"),
    ],
)
def test_a_foreign_fault_of_shape_is_malformed(
    changes: dict[str, Any], event_index: int | None, field: str
) -> None:
    """What a foreign producer got wrong is told as if a client had proposed it."""
    data = raw(**changes)
    with pytest.raises(Malformed) as caught:
        envelope.decode_proposal(data)
    assert (caught.value.event_index, caught.value.field) == (event_index, field)
    assert envelope.read_envelope(data).run_id == "run_128"


@pytest.mark.parametrize("event", [b"", b"\xc3\x01unknown!", raw()])
def test_an_event_that_does_not_read_is_malformed_at_its_place(event: bytes) -> None:
    """The envelope reads, so its batch id is used up; the event is named by its index."""
    good = avro.encode("PhaseChanged", 1, {"phase": "p"})
    data = raw(events=[good, event])
    with pytest.raises(Malformed, match="cannot be read") as caught:
        envelope.decode_proposal(data)
    assert (caught.value.event_index, caught.value.field) == (1, None)
    assert envelope.read_envelope(data).events == (good, event)


@pytest.mark.parametrize("run_id", ["", "../etc", "a" * 129, "run\x00"])
def test_an_envelope_without_a_run_id_does_not_read(run_id: str) -> None:
    """A run id that could not be a run's makes the whole proposal unreadable."""
    for read in (envelope.read_envelope, envelope.decode_proposal, envelope.decode_decided):
        with pytest.raises(WireError, match="run_id"):
            read(raw(run_id=run_id))


def test_a_record_is_no_proposal() -> None:
    """Bytes of another kind are refused where a proposal is wanted."""
    with pytest.raises(WireError, match="Record is not a proposal"):
        envelope.decode_proposal(records.encode_record(wire_examples.record()))


def of_size(size: int) -> Proposal:
    """A proposal of about `size` bytes in texts of 8 KiB."""
    full = {"type": "PhaseChanged", "phase": "x" * 8_192}
    each = len(events.encode_event(full)) + 3
    rest = size % each - len(envelope.encode_proposal(proposal(events=()))) - 20
    last = {"type": "PhaseChanged", "phase": "x" * rest}
    return proposal(events=(full,) * (size // each) + (last,))


def test_a_batch_has_at_most_256_kib() -> None:
    """Encoding more raises Malformed with neither event nor field; decoding it WireError."""
    most = of_size(PROPOSAL_BYTES_MAX)
    data = envelope.encode_proposal(most)
    assert PROPOSAL_BYTES_MAX - 50 < len(data) <= PROPOSAL_BYTES_MAX
    assert envelope.decode_proposal(data) == most
    with pytest.raises(Malformed) as caught:
        envelope.encode_proposal(of_size(PROPOSAL_BYTES_MAX + 100))
    assert (caught.value.event_index, caught.value.field) == (None, None)
    phase = {"phase": "x" * PROPOSAL_BYTES_MAX}
    with pytest.raises(WireError, match="more than the 262144"):
        envelope.decode_proposal(raw(events=[avro.encode("PhaseChanged", 1, phase)]))


def test_a_batch_id_is_its_sixteen_bytes() -> None:
    """A batch id of either case comes back in lower case."""
    data = envelope.batch_id_bytes(BATCH_ID.upper())
    assert (len(data), envelope.batch_id_text(data)) == (16, BATCH_ID)


def test_an_author_comes_back_as_an_author() -> None:
    """The author that is read is the core's own value."""
    assert envelope.read_envelope(raw()).author == Author("agent", "worker-1")
