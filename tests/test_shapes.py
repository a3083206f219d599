"""The table of shapes: that it is the catalogue's, and that every field of it is enforced."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from foldlog.core.proposals import Malformed, parse_proposal
from foldlog.core.shapes import (
    CONTROL_TYPES,
    FIELDS,
    PROPOSAL,
    Confidence,
    Entity,
    Field,
    Flag,
    Id,
    Json,
    Kind,
    ListOf,
    MapOf,
    OneOf,
    Permission,
    Record,
    Reference,
    RunId,
    Sha256,
    Text,
    Time,
    Whole,
)
from tests import samples

Path = tuple[str | int, ...]
WRONG: tuple[Any, ...] = (None, True, 0, 1.5, "x", [], {})


@dataclass(frozen=True)
class Place:
    """One field of one event type: where it stands and what it admits."""

    event_type: str
    path: Path
    kind: Kind
    admits_null: bool

    @property
    def field(self) -> str:
        """The path as a refusal names it."""
        return dotted(self.path)


def dotted(path: Path) -> str:
    """A path as the contract writes it."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def walk(event_type: str, kind: Kind, path: Path, value: Any, null: bool) -> Iterator[Place]:
    """Every place of a maximal event, nested ones too, with the kind that the table gives it."""
    if path:
        yield Place(event_type, path, kind, null)
    if isinstance(kind, Record):
        assert set(value) == set(kind.fields), f"{event_type} {path}: the sample lacks a field"
        for name, field in kind.fields.items():
            yield from walk(event_type, field.kind, (*path, name), value[name], _null(field))
    elif isinstance(kind, ListOf):
        yield from walk(event_type, kind.item, (*path, 0), value[0], False)
    elif isinstance(kind, MapOf):
        key = next(iter(value))
        yield from walk(event_type, kind.item, (*path, key), value[key], False)


def _null(field: Field) -> bool:
    return not field.required or field.keeps_null


def _body(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "type"}


PLACES = [
    place
    for event_type in FIELDS
    for place in walk(event_type, FIELDS[event_type], (), _body(samples.maximal(event_type)), False)
]


def admits(place: Place, value: Any) -> bool:
    """Whether a place admits one of the values of WRONG: written down by kind, not computed."""
    if value is None:
        return place.admits_null
    kind = place.kind
    if isinstance(kind, (Text, Id, RunId)):
        return type(value) is str
    if isinstance(kind, Whole):
        return type(value) is int and kind.minimum == 0
    if isinstance(kind, Confidence):
        return type(value) is int
    if isinstance(kind, Flag):
        return value is True
    if isinstance(kind, Json):
        return value == {} or not kind.is_object
    if isinstance(kind, ListOf):
        return value == [] and type(value) is list
    if isinstance(kind, MapOf):
        return value == {} and type(value) is dict
    if isinstance(kind, Record):
        return type(value) is dict and not any(field.required for field in kind.fields.values())
    assert isinstance(kind, (Reference, Time, OneOf, Permission, Sha256))
    return False


def named(place: Place, value: Any) -> str:
    """The field that a refusal names: an empty object names the first field it lacks."""
    if isinstance(place.kind, Record) and type(value) is dict:
        missing = next(name for name, field in place.kind.fields.items() if field.required)
        return f"{place.field}.{missing}"
    return place.field


def put(event: dict[str, Any], path: Path, value: Any) -> bool:
    """Set a place of an event; False if the event has no such object or list around it."""
    around: Any = event
    for step in path[:-1]:
        if isinstance(around, dict) and step not in around:
            return False
        around = around[step]
    around[path[-1]] = value
    return True


def around(event: dict[str, Any]) -> list[dict[str, Any]]:
    """A batch in which the event stands second, unless it must stand first."""
    if event["type"] == "RunStarted" or event["type"] in CONTROL_TYPES:
        return [event]
    return [samples.minimal("Recorded"), event]


def parse(event: dict[str, Any]) -> dict[str, Any]:
    """The event as a proposal that has it last normalises it."""
    return parse_proposal(samples.RUN_ID, samples.proposal(*around(event))).events[-1]


@pytest.mark.parametrize("event_type", FIELDS)
@pytest.mark.parametrize("sample", [samples.minimal, samples.maximal])
def test_samples_are_valid(event_type: str, sample: Any) -> None:
    """The smallest and the largest sample of each type pass, and are not changed."""
    event = sample(event_type)
    before = copy.deepcopy(event)
    assert parse(event) == before
    assert event == before


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.event_type}.{place.field}")
def test_wrong_json_types_are_refused(place: Place) -> None:
    """Each wrong JSON type in each field, nested ones too, is MALFORMED at that event and field."""
    for sample in (samples.minimal, samples.maximal):
        for value in WRONG:
            event = sample(place.event_type)
            if not put(event, place.path, copy.deepcopy(value)):
                continue
            index = len(around(event)) - 1
            if admits(place, value):
                parse(event)
                continue
            with pytest.raises(Malformed) as caught:
                parse(event)
            found = (caught.value.event_index, caught.value.field)
            assert found == (index, named(place, value)), f"{value!r} in {sample.__name__}"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.event_type}.{place.field}")
def test_missing_fields_are_named(place: Place) -> None:
    """Without a required field an event is MALFORMED at that field; without an optional one not."""
    name = place.path[-1]
    if isinstance(name, int) or isinstance(_parent(place), MapOf):
        return
    event = samples.maximal(place.event_type)
    holder: Any = event
    for step in place.path[:-1]:
        holder = holder[step]
    del holder[name]
    if not _field(place).required:
        parse(event)
        return
    with pytest.raises(Malformed, match="is required") as caught:
        parse(event)
    assert caught.value.event_index == len(around(event)) - 1
    assert caught.value.field == place.field


def _parent(place: Place) -> Kind:
    kind: Kind = FIELDS[place.event_type]
    for step in place.path[:-1]:
        if isinstance(kind, Record):
            kind = kind.fields[str(step)].kind
        else:
            assert isinstance(kind, (ListOf, MapOf))
            kind = kind.item
    return kind


def _field(place: Place) -> Field:
    parent = _parent(place)
    assert isinstance(parent, Record)
    return parent.fields[str(place.path[-1])]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.event_type}.{place.field}")
def test_unknown_fields_are_named(place: Place) -> None:
    """A field that the table does not have is refused in every object, by its path, null too."""
    if not isinstance(place.kind, Record):
        return
    for value in ("x", None):
        event = samples.maximal(place.event_type)
        put(event, (*place.path, "surprise"), value)
        with pytest.raises(Malformed, match="no known field") as caught:
            parse(event)
        assert caught.value.field == f"{place.field}.surprise"


@pytest.mark.parametrize("event_type", FIELDS)
def test_unknown_fields_of_an_event_are_named(event_type: str) -> None:
    """A field that an event type does not have is refused, before any other fault in the event."""
    with pytest.raises(Malformed) as caught:
        parse({"surprise": None, "type": event_type})
    assert caught.value.field == "surprise"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.event_type}.{place.field}")
def test_optional_null_is_absence(place: Place) -> None:
    """null in an optional field is dropped, nested ones too; BudgetSet and Recorded keep it."""
    if not place.admits_null:
        return
    event = samples.maximal(place.event_type)
    put(event, place.path, None)
    absent = copy.deepcopy(event)
    if place.event_type not in ("BudgetSet", "Recorded"):
        holder: Any = absent
        for step in place.path[:-1]:
            holder = holder[step]
        del holder[place.path[-1]]
    assert parse(event) == absent


# --- limits -------------------------------------------------------------------------------------


def edges(kind: Kind) -> tuple[list[Any], list[Any]]:
    """Values at the inner and at the outer edge of what a kind admits."""
    if isinstance(kind, Whole):
        # 2^53 is no integer of the JSON that is admitted at all; see the tests of proposals.
        above = [kind.maximum + 1] if kind.maximum < 2**53 - 1 else []
        return [kind.minimum, kind.maximum], [kind.minimum - 1, *above]
    if isinstance(kind, Text):
        return ["", "x" * 8_192, "ü" * 4_096], ["x" * 8_193, "ü" * 4_096 + "x"]
    if isinstance(kind, Id):
        return ["x", " ", "\x00", "ü" * 2_048, "😀" * 2_048], ["", "x" * 2_049]
    if isinstance(kind, Reference):
        return ["a:" + "ü" * 2_046], ["a:", "a b:c", "a:b c", "a:" + "b" * 2_047]
    if isinstance(kind, Json):
        return _json_edges(kind)
    return _grammar_edges(kind)


def _json_edges(kind: Json) -> tuple[list[Any], list[Any]]:
    # {"a":"..."} is eight bytes around the text.
    inner = [{"a": "x" * 65_528}, {"a": "ü" * 32_764}]
    outer = [{"a": "x" * 65_529}, {"a": "ü" * 32_764 + "x"}]
    if kind.is_object:
        return inner, outer
    return [*inner, "x" * 65_534], [*outer, "x" * 65_535, [0] * 32_768]


def _grammar_edges(kind: Kind) -> tuple[list[Any], list[Any]]:
    if isinstance(kind, Time):
        inner = ["0001-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789-23:59"]
        return inner, ["2026-02-30T00:00:00Z", "0001-01-01T00:00:00+01:00", "2026-01-01T00:00:00z"]
    if isinstance(kind, Confidence):
        return ["10e-1", "-0", 0, 1, 0.25], ["1.1", -0.1, 2, "x", ""]
    if isinstance(kind, OneOf):
        return list(kind.values), ["", "x", kind.values[0].upper(), kind.values[0] + " "]
    if isinstance(kind, Permission):
        return ["tool:x", "effect:*"], ["tool:", "x", "Tool:x"]
    if isinstance(kind, Sha256):
        return ["0" * 64], ["0" * 63, "0" * 65, "A" * 64, "g" * 64]
    if isinstance(kind, RunId):
        return ["a" * 128], ["a" * 129, "", "../x", "a/b"]
    return [], []


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.event_type}.{place.field}")
def test_limits_hold_at_their_edges(place: Place) -> None:
    """The last value within each limit passes, the first one beyond is MALFORMED at that field."""
    inner, outer = edges(place.kind)
    for value in inner:
        event = samples.maximal(place.event_type)
        put(event, place.path, value)
        parse(event)
    for value in outer:
        event = samples.maximal(place.event_type)
        put(event, place.path, value)
        with pytest.raises(Malformed) as caught:
            parse(event)
        assert caught.value.field == place.field, f"{value!r:.60}"
        assert caught.value.event_index == len(around(event)) - 1


@pytest.mark.parametrize(
    ("event_type", "field", "minimum", "maximum"),
    [
        ("RunStarted", "retry_limit", 0, 1_000),
        ("RunStarted", "rules_version", 1, 9_007_199_254_740_991),
        ("RulesActivated", "rules_version", 1, 9_007_199_254_740_991),
        ("BudgetSet", "tokens_remaining", 0, 9_007_199_254_740_991),
        ("BudgetSpent", "tokens", 0, 1_099_511_627_776),
        ("LeaseAcquired", "ttl_seconds", 1, 86_400),
        ("LeaseRenewed", "ttl_seconds", 1, 86_400),
    ],
)
def test_numeric_limits_are_the_contracts(
    event_type: str, field: str, minimum: int, maximum: int
) -> None:
    """The numbers of the table are those of the contract, written down a second time."""
    assert FIELDS[event_type].fields[field].kind == Whole(minimum, maximum)


def test_keys_of_mappings_are_texts() -> None:
    """A key of labels may be empty and has at most 8 KiB; null is no text for a value."""
    event = samples.maximal("RunStarted")
    event["labels"] = {"": "x", "k" * 8_192: ""}
    assert parse(event)["labels"] == event["labels"]
    for labels, field in [
        ({"a": None}, "labels.a"),
        ({"k" * 8_193: "x"}, "labels." + "k" * 255 + "…"),
    ]:
        event["labels"] = labels
        with pytest.raises(Malformed) as caught:
            parse(event)
        assert caught.value.field == field


def test_catalogue_is_complete() -> None:
    """The table has the 48 event types of the catalogue, and the control ones are among them."""
    assert tuple(FIELDS) == samples.EVENT_TYPES
    assert len(FIELDS) == 48
    assert set(FIELDS) > CONTROL_TYPES
    assert len(CONTROL_TYPES) == 8


def test_only_budget_set_and_recorded_keep_null() -> None:
    """null is a value in BudgetSet (unlimited) and in the payload of Recorded, nowhere else."""
    keeping = {
        f"{name}.{field}"
        for name, record in FIELDS.items()
        for field, shape in record.fields.items()
        if shape.keeps_null
    }
    assert keeping == {"BudgetSet.tokens_remaining", "BudgetSet.deadline", "Recorded.payload"}


def test_proposal_is_in_the_table() -> None:
    """What stands around the events is described by the same kinds."""
    assert PROPOSAL.fields["reads"].kind == ListOf(Entity())
    assert [name for name, field in PROPOSAL.fields.items() if field.required] == [
        "batch_id",
        "author",
        "events",
    ]
