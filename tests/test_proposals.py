"""Proposals: which are refused as malformed, at which place, and what becomes of the others."""

from __future__ import annotations

import copy
import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog.core.proposals import Malformed, Proposal, parse_proposal
from foldlog.core.shapes import CONTROL_TYPES, FIELDS
from foldlog.core.values import Author, canonical_json, strict_json
from tests import samples
from tests.samples import maximal, minimal, proposal


def parse(value: Any) -> Proposal:
    """The proposal, for the sample run."""
    return parse_proposal(samples.RUN_ID, value)


def place(value: Any) -> tuple[int | None, str | None]:
    """Which event and which field of a malformed proposal is named."""
    with pytest.raises(Malformed) as caught:
        parse(value)
    assert caught.value.message == str(caught.value)
    assert caught.value.message
    return caught.value.event_index, caught.value.field


NOTE = minimal("Recorded")


def test_smallest_proposal_is_filled_with_defaults() -> None:
    """Without optional fields a batch is refused on conflict, reads nothing and expects nothing."""
    parsed = parse(proposal(NOTE))
    assert parsed == Proposal(
        run_id=samples.RUN_ID,
        batch_id=samples.BATCH_ID,
        author=Author("user", "ada"),
        events=(NOTE,),
        on_conflict="reject",
        reads=(),
    )


def test_every_field_of_a_proposal_is_kept() -> None:
    """What is given around the events is kept as given, batch ids in lower case."""
    fields: dict[str, Any] = {
        "expected_revision": 18,
        "lease_epoch": 3,
        "on_conflict": "arbitrate",
        "reads": ["task/b", "goal", "task/b"],
        "occurred_at": "2026-01-01T00:00:00.10+01:00",
        "correlation_id": "c1",
        "causation_id": "c2",
        "traceparent": samples.TRACEPARENT,
    }
    parsed = parse(proposal(NOTE, **fields) | {"batch_id": samples.BATCH_ID.upper()})
    shown = parsed.to_dict()
    assert shown == {**proposal(NOTE), **fields}
    assert parsed.reads == ("task/b", "goal", "task/b")


def test_null_in_optional_fields_is_absence() -> None:
    """null around the events means absent, the defaults of on_conflict and reads included."""
    names = (
        "expected_revision lease_epoch on_conflict reads occurred_at correlation_id causation_id"
    )
    nulls = dict.fromkeys([*names.split(), "traceparent"])
    assert parse(proposal(NOTE, **nulls)) == parse(proposal(NOTE))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"batch_id": None}, "batch_id"),
        ({"batch_id": samples.BATCH_ID.replace("-", "")}, "batch_id"),
        ({"batch_id": "{" + samples.BATCH_ID + "}"}, "batch_id"),
        ({"batch_id": 1}, "batch_id"),
        ({"author": None}, "author"),
        ({"author": "user:ada"}, "author"),
        ({"author": {}}, "author.kind"),
        ({"author": {"kind": "agent"}}, "author.id"),
        ({"author": {"kind": "robot", "id": "r"}}, "author.kind"),
        ({"author": {"kind": "agent", "id": ""}}, "author.id"),
        ({"author": {"kind": "agent", "id": "x" * 2_049}}, "author.id"),
        ({"author": {"kind": "agent", "id": "x", "name": "y"}}, "author.name"),
        ({"expected_revision": "1"}, "expected_revision"),
        ({"expected_revision": 1.0}, "expected_revision"),
        ({"expected_revision": True}, "expected_revision"),
        ({"expected_revision": -1}, "expected_revision"),
        ({"lease_epoch": -1}, "lease_epoch"),
        ({"lease_epoch": 1.0}, "lease_epoch"),
        ({"on_conflict": "ask"}, "on_conflict"),
        ({"on_conflict": ""}, "on_conflict"),
        ({"reads": "goal"}, "reads"),
        ({"reads": {}}, "reads"),
        ({"reads": ["goal", "goal/x"]}, "reads[1]"),
        ({"reads": ["goal", "task/"]}, "reads[1]"),
        ({"reads": [None]}, "reads[0]"),
        ({"reads": ["permission/x"]}, "reads[0]"),
        ({"occurred_at": "now"}, "occurred_at"),
        ({"occurred_at": "2026-02-30T00:00:00Z"}, "occurred_at"),
        ({"correlation_id": ""}, "correlation_id"),
        ({"causation_id": "x" * 2_049}, "causation_id"),
        ({"traceparent": samples.TRACEPARENT.upper()}, "traceparent"),
        ({"traceparent": samples.TRACEPARENT + "-00"}, "traceparent"),
        ({"surprise": 1}, "surprise"),
        ({"run_id": "run_128"}, "run_id"),
        ({"events": None}, "events"),
        ({"events": {}}, "events"),
        ({"events": []}, "events"),
        ({"events": [NOTE] * 101}, "events"),
    ],
)
def test_faults_around_the_events_name_their_field(fields: dict[str, Any], field: str) -> None:
    """A fault in the proposal itself has no event index and names the field's path."""
    assert place({**proposal(NOTE), **fields}) == (None, field)


@pytest.mark.parametrize("name", ["batch_id", "author", "events"])
def test_required_fields_of_a_proposal_are_named(name: str) -> None:
    """Without batch id, author or events a proposal is malformed at that field."""
    value = proposal(NOTE)
    del value[name]
    assert place(value) == (None, name)


def test_batch_has_one_to_a_hundred_events() -> None:
    """A hundred events are a batch."""
    assert len(parse(proposal(*[NOTE] * 100)).events) == 100


@pytest.mark.parametrize("field", ["expected_revision", "lease_epoch"])
def test_revisions_and_epochs_reach_to_the_largest_integer(field: str) -> None:
    """0 and 2^53-1 are revisions; 2^53 is no integer that JSON carries here, and names no field."""
    for value in (0, 2**53 - 1):
        assert getattr(parse(proposal(NOTE, **{field: value})), field) == value
    assert place(proposal(NOTE, **{field: 2**53})) == (None, None)


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "x", [], [proposal(NOTE)]])
def test_proposal_is_an_object(value: Any) -> None:
    """Anything but an object is malformed, and no field is named."""
    assert place(value) == (None, None)


@pytest.mark.parametrize("run_id", ["", ".", "a/b", "../x", "x" * 129, "a\n", "ä", None, 1])
def test_run_id_is_checked(run_id: Any) -> None:
    """A run id outside its grammar is malformed."""
    with pytest.raises(Malformed) as caught:
        parse_proposal(run_id, proposal(NOTE))
    assert (caught.value.event_index, caught.value.field) == (None, "run_id")


# --- events -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        None,
        True,
        1,
        "Recorded",
        [],
        {},
        {"name": "n"},
        {"type": None},
        {"type": 1},
        {"type": []},
        {"type": ""},
        {"type": "FactInvented"},
        {"type": "recorded"},
        {"type": "x" * 100000},
    ],
)
def test_event_has_a_known_type(event: Any) -> None:
    """What is no object, has no type, or an unknown one, is malformed at `type`."""
    assert place(proposal(NOTE, event)) == (1, "type")


def test_first_fault_is_told() -> None:
    """The proposal's fields come before its events, events in order, then the whole batch."""
    bad_note = {"type": "Recorded", "name": "", "payload": 1}
    control = minimal("RunCancelled")
    assert place(proposal(bad_note, on_conflict="x")) == (None, "on_conflict")
    assert place(proposal(NOTE, bad_note, {})) == (1, "name")
    assert place(proposal(control, bad_note)) == (1, "name")
    assert place(proposal({"type": "Recorded", "name": "", "x": 1})) == (0, "x")
    assert place(proposal({"type": "TaskFailed", "reason": 1})) == (0, "task_id")


def test_json_as_such_comes_first_and_names_nothing() -> None:
    """What could not be JSON text is told before all else, and neither event nor field is named."""
    for payload in (float("nan"), float("-inf"), 2**53, -(2**53), "\ud800", {"\udfff": 1}):
        event = {"type": "Recorded", "name": "", "payload": payload}
        assert place(proposal(event, surprise=1)) == (None, None)
    assert place(proposal(NOTE, correlation_id="\ud800")) == (None, None)


def test_python_values_that_are_no_json_name_their_field() -> None:
    """A Python value that JSON has not is refused where it stands, inside payloads too."""
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    event = maximal("EnvironmentObserved")
    event["observed_at"] = when
    assert place(proposal(NOTE, event)) == (1, "observed_at")
    note = {"type": "Recorded", "name": "n", "payload": {"a": [(1, 2)]}}
    assert place(proposal(note)) == (0, "payload.a[0]")
    assert place(proposal(NOTE, reads=("goal",))) == (None, "reads")
    assert place(proposal(when)) == (0, "type")  # type: ignore[arg-type]
    assert place(when) == (None, None)


def nested(levels: int) -> Any:
    """Lists inside each other."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_is_counted_over_the_whole_proposal() -> None:
    """The proposal, its list of events and the event are three levels of the 64."""
    parse(proposal({"type": "Recorded", "name": "n", "payload": nested(61)}))
    assert place(proposal({"type": "Recorded", "name": "n", "payload": nested(62)})) == (None, None)


def test_timer_needs_a_deadline() -> None:
    """A wait for a timer without a deadline, or with null, is malformed at `deadline`."""
    timer = {"type": "WaitStarted", "kind": "timer", "key": "k", "reason": "pause"}
    assert place(proposal(NOTE, timer)) == (1, "deadline")
    assert place(proposal(timer | {"deadline": None})) == (0, "deadline")
    parse(proposal(timer | {"deadline": samples.TIME}))
    for kind in ("user", "approval", "external"):
        parse(proposal(timer | {"kind": kind}))


def test_confidence_is_normalised() -> None:
    """A confidence given as a number is kept as the text that is shown, a text as it is."""
    for given_value, shown in [(0.66, "0.66"), (1.0, "1"), (1e-7, "0.0000001"), ("10e-1", "10e-1")]:
        event = maximal("HypothesisRevised") | {"confidence": given_value}
        assert parse(proposal(event)).events[0]["confidence"] == shown


def test_budget_set_keeps_null() -> None:
    """In BudgetSet null is a value (unlimited), absence is none, and neither field is needed."""
    event: dict[str, Any]
    for event in (
        {"type": "BudgetSet"},
        {"type": "BudgetSet", "tokens_remaining": None},
        {"type": "BudgetSet", "deadline": None},
        {"type": "BudgetSet", "tokens_remaining": None, "deadline": samples.TIME},
    ):
        assert parse(proposal(event)).events[0] == event


def test_recorded_keeps_a_null_payload() -> None:
    """The payload of Recorded is required, and may be any JSON: null too."""
    event = {"type": "Recorded", "name": "n", "payload": None}
    assert parse(proposal(event)).events[0] == event
    assert place(proposal({"type": "Recorded", "name": "n"})) == (0, "payload")


def test_lists_and_objects_stay_as_given() -> None:
    """Lists are not sorted, empty ones and empty objects not filled in or dropped."""
    event = minimal("RunStarted")
    event["goal"] |= {"scope": {}, "acceptance": [], "constraints": ["b", "a", "b"]}
    event["labels"] = {}
    assert parse(proposal(event)).events[0] == event
    plan = {"type": "PlanAdopted", "tasks": []}
    assert parse(proposal(plan)).events[0] == plan


def test_what_the_caller_does_later_reaches_nothing() -> None:
    """A proposal holds its own copies of objects and lists."""
    value = proposal(maximal("RunStarted"), maximal("ToolStarted"))
    parsed = parse(value)
    before = copy.deepcopy(parsed.events)
    value["events"][0]["goal"]["acceptance"].append("more")
    value["events"][1]["arguments"]["flags"].append("-v")
    value["author"]["id"] = "eve"
    assert parsed.events == before
    assert parsed.author.id == "ada"


# --- batches ------------------------------------------------------------------------------------


def test_control_events_stand_by_themselves() -> None:
    """A batch of control events passes; one with any other event names neither event nor field."""
    controls = [minimal(name) for name in sorted(CONTROL_TYPES - {"RunReleased"})]
    parse(proposal(*controls))
    for event in controls:
        assert place(proposal(event, NOTE)) == (None, None)
        assert place(proposal(NOTE, event)) == (None, None)
        assert place(proposal(minimal("RunStarted"), event)) == (None, None)


def test_conflict_resolved_is_no_control_event() -> None:
    """ConflictResolved and WaitTimedOut, though reserved to some authors, stand beside others."""
    parse(proposal(NOTE, minimal("ConflictResolved"), minimal("WaitTimedOut")))


def test_run_released_stands_alone() -> None:
    """RunReleased shares its batch with nothing, not even with control events or itself."""
    released = minimal("RunReleased")
    parse(proposal(released))
    for other in (NOTE, released, minimal("BudgetSet")):
        assert place(proposal(released, other)) == (None, None)
        assert place(proposal(other, released)) == (None, None)


def test_run_started_stands_first_and_once() -> None:
    """RunStarted may be followed by other events, and stands nowhere else."""
    started = minimal("RunStarted")
    parse(proposal(started, NOTE))
    assert place(proposal(NOTE, started)) == (None, None)
    assert place(proposal(started, started)) == (None, None)


def test_run_started_expects_nothing_or_zero() -> None:
    """An expectation other than 0 beside RunStarted is malformed at expected_revision."""
    started = minimal("RunStarted")
    for expected in (None, 0):
        parse(proposal(started, expected_revision=expected))
    assert place(proposal(started, expected_revision=1)) == (None, "expected_revision")


# --- content ------------------------------------------------------------------------------------


def test_content_is_what_a_batch_id_stands_for() -> None:
    """Key order, null and absence make no other content; the words around the decision neither."""
    event = maximal("FactConfirmed")
    turned = dict(reversed(event.items())) | {"fact": dict(reversed(event["fact"].items()))}
    first = parse(proposal(event))
    same = [
        proposal(turned),
        proposal(event, lease_epoch=None, reads=[], on_conflict="reject"),
        proposal(event, occurred_at=samples.TIME, correlation_id="c", traceparent=None),
        proposal(event) | {"batch_id": samples.BATCH_ID.upper()},
    ]
    for value in same:
        assert parse(value).content() == first.content()


def test_content_differs_where_the_proposal_does() -> None:
    """Author, expectation, epoch, on_conflict, reads and events each make another content."""
    others: list[dict[str, Any]] = [
        {"author": {"kind": "agent", "id": "ada"}},
        {"expected_revision": 0},
        {"lease_epoch": 0},
        {"on_conflict": "arbitrate"},
        {"reads": ["goal"]},
        {"reads": ["goal", "plan"]},
        {"reads": ["plan", "goal"]},
        {"events": [NOTE, NOTE]},
    ]
    contents = {parse({**proposal(NOTE), **fields}).content() for fields in others}
    assert len(contents | {parse(proposal(NOTE)).content()}) == len(others) + 1


def test_content_is_canonical_json() -> None:
    """The content's bytes are canonical JSON of what is compared."""
    assert json.loads(parse(proposal(NOTE)).content()) == {
        "author": samples.AUTHOR,
        "expected_revision": None,
        "lease_epoch": None,
        "on_conflict": "reject",
        "reads": [],
        "events": [NOTE],
    }


@given(st.data())
def test_parsing_again_changes_nothing(data: st.DataObject) -> None:
    """A parsed proposal, written as JSON and parsed again, is the same, and so is its content."""
    names = st.sampled_from(sorted(set(FIELDS) - CONTROL_TYPES - {"RunStarted"}))
    kinds = st.sampled_from([minimal, maximal])
    events = data.draw(st.lists(st.builds(lambda make, name: make(name), kinds, names), min_size=1))
    parsed = parse(proposal(*events, reads=["goal"], expected_revision=1))
    again = parse(strict_json(canonical_json(parsed.to_dict())))
    assert again == parsed
    assert again.content() == parsed.content()
