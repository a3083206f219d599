"""Events to bytes and back, and their golden bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

import foldlog_schemas
from foldlog.wire import avro, envelope, events
from foldlog.wire.avro import WireError
from tests import wire_examples, wire_golden

GOLDEN = wire_golden.load("events.json")


@given(event=wire_examples.events)
def test_an_event_comes_back_as_it_was(event: dict[str, Any]) -> None:
    """Absent and null, empty lists and objects, and JSON of any shape survive the wire."""
    assert events.decode_event(events.encode_event(event)) == event


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_events_still_read(name: str) -> None:
    """What was written once is read the same for ever, and written the same in its version."""
    event, data = GOLDEN[name]["event"], bytes.fromhex(GOLDEN[name]["hex"])
    assert events.decode_event(data) == event
    if name.split()[1] == f"v{events.WRITTEN.get(event['type'], 1)}":
        assert events.encode_event(event) == data


def test_a_plugins_golden_event_still_reads() -> None:
    """An event of a plug-in is written and read in one way, by builds that lack it too."""
    for entry in wire_golden.load("plugin_events.json").values():
        data = bytes.fromhex(entry["hex"])
        assert events.decode_event(data) == entry["event"]
        assert events.encode_event(entry["event"]) == data


@pytest.mark.parametrize("name", ["RunArchived v1", "RunForked v1"])
def test_the_golden_bytes_of_foldlogs_own_events_still_read(name: str) -> None:
    """The events beside the catalogue's are written and read in one way."""
    entry = wire_golden.load("own_events.json")[name]
    assert events.decode_event(bytes.fromhex(entry["hex"])) == entry["event"]
    assert events.encode_event(entry["event"]).hex() == entry["hex"]


@pytest.mark.parametrize(
    ("event_type", "fields"),
    [("BallotCast", {}), ("votes:ballot", {}), ("votes:BallotCast", []),
     ("votes:BallotCast", {"type": "RunCancelled"}), ("", {})],
)  # fmt: skip
def test_a_plugins_event_that_is_none(event_type: str, fields: Any) -> None:
    """A type that is no plug-in's, and fields that would change the type, are refused."""
    data = avro.encode("PluginEvent", 1, {"event_type": event_type, "fields": fields})
    with pytest.raises(WireError):
        events.decode_event(data)


def test_every_event_type_has_golden_bytes() -> None:
    """Each released version of each type stands in the golden file."""
    golden = {tuple(name.split()[:2]) for name in GOLDEN}
    types = foldlog_schemas.names(events=True)
    assert golden == {(n, f"v{v}") for n in types for v in foldlog_schemas.versions(n)}


@pytest.mark.parametrize("fields", [{}, {"tokens_remaining": None}, {"tokens_remaining": 0}])
def test_a_budget_tells_absent_from_unlimited(fields: dict[str, Any]) -> None:
    """BudgetSet keeps apart what is left unchanged, what is unlimited and what is nothing."""
    event = {"type": "BudgetSet", **fields}
    assert events.decode_event(events.encode_event(event)) == event


def test_an_envelope_is_no_event() -> None:
    """Bytes of another kind are refused where an event is wanted."""
    with pytest.raises(WireError, match="Envelope is not an event"):
        events.decode_event(envelope.encode_proposal(wire_examples.proposal()))
