"""The typed events: the same names as the table of shapes, and the same JSON."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from foldlog import events
from foldlog.core.proposals import parse_proposal
from foldlog.core.shapes import FIELDS, Kind, ListOf, Record
from tests import samples


def part_of(annotation: Any) -> type[events.Part] | None:
    """The class of inner objects that an annotation admits, if any."""
    if isinstance(annotation, type) and issubclass(annotation, events.Part):
        return annotation
    for inner in typing.get_args(annotation):
        found = part_of(inner)
        if found is not None:
            return found
    return None


def agree(model: type[BaseModel], record: Record, path: str, also: tuple[str, ...] = ()) -> None:
    """A class has the record's fields, in its order, the same ones required, nested ones too."""
    names = [name for name in model.model_fields if name not in also]
    assert names == list(record.fields), path
    for name, field in record.fields.items():
        shape = model.model_fields[name]
        assert shape.is_required() == field.required, f"{path}.{name}"
        inner: Kind = field.kind.item if isinstance(field.kind, ListOf) else field.kind
        part = part_of(shape.annotation)
        assert (part is not None) == isinstance(inner, Record), f"{path}.{name}"
        if part is not None and isinstance(inner, Record):
            agree(part, inner, f"{path}.{name}")


def built(model: type[BaseModel], value: dict[str, Any]) -> Any:
    """An object of a class whose inner objects are of classes too."""
    given = {}
    for name, item in value.items():
        part = part_of(model.model_fields[name].annotation)
        if part is None:
            given[name] = item
        elif isinstance(item, list):
            given[name] = [built(part, one) for one in item]
        else:
            given[name] = built(part, item)
    return model(**given)


def test_one_class_per_event_type() -> None:
    """The classes are those of the catalogue, and a class's `type` is its name."""
    assert list(events.EVENTS) == list(FIELDS)
    for name, event in events.EVENTS.items():
        assert event.model_fields["type"].default == name


@pytest.mark.parametrize("event_type", FIELDS)
def test_fields_are_those_of_the_table(event_type: str) -> None:
    """A class has exactly its type's fields, the same ones required, inner objects too."""
    agree(events.EVENTS[event_type], FIELDS[event_type], event_type, also=("type",))


@pytest.mark.parametrize("event_type", FIELDS)
@pytest.mark.parametrize("sample", [samples.minimal, samples.maximal])
def test_json_is_that_of_a_proposal(event_type: str, sample: Any) -> None:
    """Built from keywords, with inner dicts or inner classes, an event's JSON is the sample's."""
    event = sample(event_type)
    model = events.EVENTS[event_type]
    assert model(**event).to_dict() == event
    assert built(model, event).to_dict() == event
    assert next(iter(model(**event).to_dict())) == "type"


@pytest.mark.parametrize("event_type", FIELDS)
def test_unknown_keywords_raise(event_type: str) -> None:
    """A keyword that the type does not have raises an error that names it."""
    with pytest.raises(ValidationError, match="surprise"):
        events.EVENTS[event_type](**{**samples.minimal(event_type), "surprise": 1})


def test_unknown_keywords_of_inner_classes_raise() -> None:
    """Inner classes are as strict as events."""
    with pytest.raises(ValidationError, match="wroker"):
        events.Task(id="t", title="t", wroker="w")  # type: ignore[call-arg]


def test_missing_keywords_raise() -> None:
    """A required keyword that is missing raises an error that names it."""
    with pytest.raises(ValidationError, match="evidence"):
        events.TaskCompleted(task_id="t")  # type: ignore[call-arg]


def test_type_is_fixed() -> None:
    """An event does not take another type's name."""
    with pytest.raises(ValidationError, match="type"):
        events.TaskUnblocked(type="TaskFailed", task_id="t")  # type: ignore[arg-type]


def test_values_are_not_judged() -> None:
    """A bad value raises nothing here and stands in the JSON as given, for the one judge of it."""
    event = events.FactConfirmed(fact={"id": "", "colour": 1.5})
    assert event.to_dict() == {"type": "FactConfirmed", "fact": {"id": "", "colour": 1.5}}
    spent = events.BudgetSpent(tokens="5")  # type: ignore[arg-type]
    assert spent.to_dict() == {"type": "BudgetSpent", "tokens": "5"}


def test_budget_set_keeps_a_given_none() -> None:
    """In BudgetSet None is unlimited and stands in the JSON; what was not given does not."""
    assert events.BudgetSet().to_dict() == {"type": "BudgetSet"}
    assert events.BudgetSet(deadline=None).to_dict() == {"type": "BudgetSet", "deadline": None}
    both = events.BudgetSet(tokens_remaining=None, deadline=samples.TIME)
    assert both.to_dict()["tokens_remaining"] is None


def test_other_optional_nones_are_left_out() -> None:
    """None in another optional field is absence, in inner classes too."""
    goal = events.Goal(statement="g", scope=events.Scope(include=None, exclude=["a"]))
    started = events.RunStarted(goal=goal, labels=None)
    assert started.to_dict() == {
        "type": "RunStarted",
        "goal": {"statement": "g", "scope": {"exclude": ["a"]}},
    }


def test_tuples_become_lists() -> None:
    """Python's sequences and mappings become JSON's, wherever they stand."""
    event = events.TaskAdded(task={"id": "t", "title": "t", "scope": ("a", "b")})
    assert event.to_dict()["task"]["scope"] == ["a", "b"]
    note = events.Recorded(name="n", payload={"a": (1, (2,))})
    parsed = parse_proposal(samples.RUN_ID, samples.proposal(note.to_dict()))
    assert parsed.events[0]["payload"] == {"a": [1, [2]]}


def test_events_are_values() -> None:
    """Events with equal fields are equal, and a field cannot be set."""
    event = events.TaskUnblocked(task_id="t")
    assert event == events.TaskUnblocked(task_id="t")
    with pytest.raises(ValidationError, match="frozen"):
        event.task_id = "u"


def test_export_list_is_complete() -> None:
    """`__all__` names every event, every inner class, and the tables of both."""
    names = {part.__name__ for part in events.PARTS} | set(events.EVENTS)
    assert set(events.__all__) == names | {"EVENTS", "PARTS", "Event", "Part"}
    assert len(events.__all__) == len(set(events.__all__))
    assert all(hasattr(events, name) for name in events.__all__)
