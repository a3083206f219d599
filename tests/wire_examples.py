"""Events, proposals and records for the tests of the wire, made from the table of shapes.

Invariants:
- `example` is deterministic: golden files were made with it.
- `events` gives whatever parse_proposal lets through, each optional field now there, now not.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from foldlog.core import shapes
from foldlog.core.proposals import Proposal
from foldlog.core.values import Author
from foldlog.wire.records import Record

BATCH_ID = "7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11"
TIME = "2026-08-11T16:22:10+08:00"
JSON = {"b": [1, -2, 0.5, True, None, "é"], "a": {}}

# Kind -> one value for the golden files.
PLAIN: dict[type, Any] = {
    shapes.Reference: "artifact://test-output/47",
    shapes.Time: TIME,
    shapes.Json: JSON,
    shapes.Confidence: "0.66",
    shapes.Permission: "tool:run_test",
    shapes.Flag: True,
    shapes.Sha256: "0123456789abcdef" * 4,
    shapes.RunId: "run_128",
}


def example(kind: shapes.Kind, name: str, *, full: bool) -> Any:
    """One value of a kind; optional fields only if `full`."""
    if isinstance(kind, shapes.Record):
        return {
            field_name: example(field.kind, field_name, full=full)
            for field_name, field in kind.fields.items()
            if field.required or full
        }
    if isinstance(kind, shapes.ListOf):
        return [example(kind.item, name, full=full)] * 2
    if isinstance(kind, shapes.MapOf):
        return {"z": example(kind.item, name, full=full), "é": "", "a": "b"}
    if isinstance(kind, shapes.OneOf):
        return kind.values[0]
    if isinstance(kind, shapes.Whole):
        return kind.maximum if full else kind.minimum
    return PLAIN.get(type(kind), f"{name} é" if full else name)


def example_event(event_type: str, *, full: bool) -> dict[str, Any]:
    """One event of a type."""
    fields = example(shapes.FIELDS[event_type], event_type, full=full)
    return {"type": event_type, **fields}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=90)
ID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)
WHOLE = st.integers(-(2**53) + 1, 2**53 - 1)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
DRAWN: dict[type, st.SearchStrategy[Any]] = {
    shapes.Text: TEXT,
    shapes.Id: ID,
    shapes.Reference: st.sampled_from(["artifact://a/1", "x:é", "effects://" + "r" * 100]),
    shapes.Time: st.sampled_from([TIME, "0001-01-01T00:00:00.123456789Z"]),
    shapes.Confidence: st.sampled_from(["0", "1", "0.66", "1e-7", "0.500"]),
    shapes.Permission: st.sampled_from(["tool:*", "effect:create_order"]),
    shapes.Flag: st.booleans(),
    shapes.Sha256: st.sampled_from(["0" * 64, "0123456789abcdef" * 4]),
    shapes.RunId: st.sampled_from(["run_128", "r" * 128]),
}


def values(kind: shapes.Kind) -> st.SearchStrategy[Any]:
    """Any value of a kind, as it is once normalised."""
    if isinstance(kind, shapes.Record):
        names = {True: {}, False: {}}  # type: dict[bool, dict[str, Any]]
        for name, field in kind.fields.items():
            drawn = values(field.kind)
            if field.keeps_null:
                drawn = st.none() | drawn
            elif not field.required:
                drawn = drawn.filter(lambda value: value is not None)
            names[field.required][name] = drawn
        return st.fixed_dictionaries(names[True], optional=names[False])
    if isinstance(kind, shapes.ListOf):
        return st.lists(values(kind.item), max_size=4)
    if isinstance(kind, shapes.MapOf):
        return st.dictionaries(TEXT, values(kind.item), max_size=4)
    if isinstance(kind, shapes.OneOf):
        return st.sampled_from(kind.values)
    if isinstance(kind, shapes.Whole):
        return st.integers(kind.minimum, kind.maximum)
    if isinstance(kind, shapes.Json):
        return st.dictionaries(TEXT, ANY_JSON, max_size=3) if kind.is_object else ANY_JSON
    return DRAWN[type(kind)]


def _of_type(event_type: str) -> st.SearchStrategy[dict[str, Any]]:
    return values(shapes.FIELDS[event_type]).map(lambda fields: {"type": event_type, **fields})


events = st.sampled_from(sorted(shapes.FIELDS)).flatmap(_of_type)


def proposal(**changes: Any) -> Proposal:
    """A typical proposal of two events."""
    fields: dict[str, Any] = {
        "run_id": "run_128",
        "batch_id": BATCH_ID,
        "author": Author("agent", "worker-1"),
        "expected_revision": 18,
        "reads": ("fact/fact_12",),
        "occurred_at": TIME,
        "events": (
            {
                "type": "FactConfirmed",
                "fact": {
                    "id": "fact_13",
                    "statement": "the fixture pins HS256",
                    "evidence": "artifact://test-output/48",
                },
            },
            {
                "type": "TaskCompleted",
                "task_id": "task_3",
                "evidence": "artifact://test-output/48",
            },
        ),
    }
    return Proposal(**fields | changes)


def record(**changes: Any) -> Record:
    """A record of a proposal whose bytes are b"proposal"."""
    fields: dict[str, Any] = {
        "sequence": 1042,
        "run_id": "run_128",
        "position": 1043,
        "batch_id": BATCH_ID,
        "outcome": "accepted",
        "revision_before": 18,
        "revision_after": 19,
        "rules_version": 1,
        "appended_at": 1_786_436_530_123_456,
        "log_time": 1_786_436_530_123_457,
        "build": "0.1.0",
        "decider": "host:4242:1786436000000000",
        "state_format": 1,
        "state_hash": bytes(range(32)),
        "previous": bytes(range(32, 64)),
        "chain": bytes(range(64, 96)),
        "proposal": b"proposal",
    }
    return Record(**fields | changes)
