"""A proposal: JSON of the caller's made into a checked, normalised value, or refused as malformed.

Invariants:
- What `parse_proposal` returns obeys every rule about shape; nobody after it checks shapes again.
- The first fault is the one that is told: JSON as such, the proposal's fields, the events in order,
  then what the batch as a whole must be.
- Parsing the `to_dict()` of a proposal gives an equal proposal.
- The client and the decider use this same function, so they refuse the same proposals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from foldlog.core import values
from foldlog.core.checks import Check, record_checker
from foldlog.core.shapes import (
    ARCHIVED,
    CONTROL_TYPES,
    FIELDS,
    JSON_BYTES_MAX,
    PROPOSAL,
    REPORT_TYPES,
)
from foldlog.core.values import Author, Fault


class Malformed(Exception):
    """A proposal that is malformed in shape: which event, which field, why.

    `event_index` counts from 0. `field` is a dotted path inside that event, or inside the proposal
    if `event_index` is None. Both are None where no single field is at fault.
    """

    def __init__(
        self, message: str, event_index: int | None = None, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.event_index = event_index
        self.field = field


@dataclass(frozen=True, slots=True)
class Proposal:
    """A batch of events that somebody wants applied to a run; `events` are normalised JSON."""

    run_id: str
    batch_id: str
    author: Author
    events: tuple[dict[str, Any], ...]
    expected_revision: int | None = None
    lease_epoch: int | None = None
    on_conflict: str = "reject"
    reads: tuple[str, ...] = ()
    occurred_at: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None

    def content(self) -> bytes:
        """The bytes by which two proposals under one batch id are told apart."""
        return values.canonical_json(
            {
                "author": self.author.to_dict(),
                "expected_revision": self.expected_revision,
                "lease_epoch": self.lease_epoch,
                "on_conflict": self.on_conflict,
                "reads": list(self.reads),
                "events": list(self.events),
            }
        ).encode()

    def to_dict(self) -> dict[str, Any]:
        """The proposal as JSON, absent fields left out; the run is not part of it."""
        shown: dict[str, Any] = {"batch_id": self.batch_id, "author": self.author.to_dict()}
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                shown[name] = value
        shown["reads"] = list(self.reads)
        shown["events"] = list(self.events)
        return shown


_OPTIONAL: Final = (
    "expected_revision",
    "lease_epoch",
    "on_conflict",
    "occurred_at",
    "correlation_id",
    "causation_id",
    "traceparent",
)

MESSAGE_BYTES_MAX: Final = 8 * 1024
"""As much of a message as a record keeps."""

ALONE: Final = "; the reports in this batch can be proposed alone"

RUN_ARCHIVED: Final = "RunArchived"
"""foldlog's own event beside the contract's: what ``archive`` proposes (``core.archiving``)."""

_check_proposal: Final = record_checker(PROPOSAL)
_EVENT_CHECKS: Final[dict[str, Check]] = {
    name: record_checker(record, also=frozenset({"type"}))
    for name, record in {**FIELDS, RUN_ARCHIVED: ARCHIVED}.items()
}


def parse_proposal(run_id: str, value: Any) -> Proposal:
    """The proposal that a JSON value is, normalised; raises Malformed.

    `batch_id` and `author` must be there: the client fills them in before. The encoded size is not
    known here; whoever encodes checks it.
    """
    if type(run_id) is not str or not values.is_run_id(run_id):
        raise Malformed(
            "run_id: needs a letter or digit and up to 127 letters, digits, `.`, `_`, `:` or `-`",
            None,
            "run_id",
        )
    _check_json(value)
    if type(value) is not dict:
        raise Malformed(f"a proposal is a JSON object, got {values.json_type(value)}")
    try:
        fields = _check_proposal(value)
    except Fault as fault:
        raise _malformed(fault, list(reversed(fault.steps))) from None
    author = Author(**fields.pop("author"))
    reads = tuple(fields.pop("reads", ()))
    events = tuple(_event(index, event) for index, event in enumerate(fields.pop("events")))
    _check_batch([event["type"] for event in events], fields.get("expected_revision"))
    return Proposal(run_id=run_id, author=author, reads=reads, events=events, **fields)


def hinted(message: str, events: Any) -> str:
    """Why a batch is refused, and that its reports can go alone where it mixes them with others.

    ``events`` may be anything: what is no list of objects with types mixes nothing.
    """
    rows = events if isinstance(events, list | tuple) else ()
    types = [event.get("type") for event in rows if isinstance(event, dict)]
    reports = sum(isinstance(each, str) and each in REPORT_TYPES for each in types)
    if not 0 < reports < len(rows):
        return message
    # Kept of a message are its first bytes: long names in it must not push the hint out.
    said = message.encode(errors="replace")[: MESSAGE_BYTES_MAX - len(ALONE)]
    return said.decode(errors="ignore") + ALONE


def _check_json(value: Any) -> None:
    try:
        values.check_json(value)
    except Fault as fault:
        steps = list(reversed(fault.steps))
        if fault.names_field:
            raise _malformed(fault, steps) from None
        place = f" at {values.dotted(steps)}" if steps else ""
        raise Malformed(f"malformed JSON: {fault.reason}{place}") from None


def _malformed(fault: Fault, steps: list[values.Step]) -> Malformed:
    """A fault at a place of the proposal, told in the terms of the event if it lies in one."""
    if len(steps) > 1 and steps[0] == "events" and isinstance(steps[1], int):
        return malformed_event(steps[1], "", fault, steps[2:])
    field = values.dotted(steps)
    message = f"{field}: {fault.reason}" if field else fault.reason
    return Malformed(message, None, field or None)


def malformed_event(
    index: int, event_type: str, fault: Fault, steps: list[values.Step]
) -> Malformed:
    """A fault inside one event; `steps` lead to it, outermost first."""
    field = values.dotted(steps) or "type"
    shown_type = f" ({event_type})" if event_type else ""
    return Malformed(f"event {index}{shown_type}: {field}: {fault.reason}", index, field)


def _event(index: int, event: Any) -> dict[str, Any]:
    if type(event) is not dict:
        fault = Fault(f"an event is an object with a type, got {values.json_type(event)}")
        raise malformed_event(index, "", fault, ["type"])
    event_type = event.get("type")
    if isinstance(event_type, str) and values.is_plugin_type(event_type):
        return _plugin_event(index, event_type, event)
    if not isinstance(event_type, str) or event_type not in _EVENT_CHECKS:
        raise malformed_event(index, "", _type_fault(event_type), ["type"])
    try:
        checked: dict[str, Any] = {"type": event_type, **_EVENT_CHECKS[event_type](event)}
        rule = _RULES.get(event_type)
        if rule is not None:
            rule(checked)
    except Fault as fault:
        raise malformed_event(index, event_type, fault, list(reversed(fault.steps))) from None
    return checked


def _plugin_event(index: int, event_type: str, event: dict[str, Any]) -> dict[str, Any]:
    """An event whose fields only the rules of its run know: `core.plugins` looks at them."""
    normal = {name: value for name, value in event.items() if value is not None}
    if not values.fits(values.canonical_json(normal), JSON_BYTES_MAX):
        fault = Fault(f"the event has more than {JSON_BYTES_MAX:,} bytes as compact JSON")
        raise malformed_event(index, event_type, fault, [])
    return normal


def _type_fault(event_type: Any) -> Fault:
    if event_type is None:
        return Fault("is required")
    if type(event_type) is not str:
        return Fault(f"needs the name of an event type, got {values.json_type(event_type)}")
    return Fault(f"{values.dotted([event_type])!r} is no known event type")


def _timer_needs_deadline(event: dict[str, Any]) -> None:
    if event["kind"] == "timer" and "deadline" not in event:
        fault = Fault("is required for a timer")
        fault.steps.append("deadline")
        raise fault


# What the table of fields cannot say: rules between the fields of one event.
_RULES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {"WaitStarted": _timer_needs_deadline}


def _check_batch(types: list[str], expected_revision: int | None) -> None:
    """Which events may stand together, and where."""
    control = sum(event_type in CONTROL_TYPES for event_type in types)
    if 0 < control < len(types):
        raise Malformed("control events and other events do not stand in one batch")
    for alone in ("RunReleased", RUN_ARCHIVED):
        if alone in types and len(types) > 1:
            raise Malformed(f"{alone} stands alone in its batch")
    if "RunStarted" not in types:
        return
    if types.index("RunStarted") != 0 or types.count("RunStarted") > 1:
        raise Malformed("RunStarted stands first in its batch, and only once")
    if expected_revision not in (None, 0):
        raise Malformed(
            "expected_revision: a batch that starts a run expects revision 0, or says nothing",
            None,
            "expected_revision",
        )
