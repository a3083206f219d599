"""Shapes made into functions: one call checks a value and gives its normalised form.

Invariants:
- A check never changes what it is given; objects and lists in its answer are new ones.
- The first fault wins: unknown fields of a record, then its fields in the table's order.
- The answer of a check passes that check again, unchanged.
- Values have passed `values.check_json` before: no surrogates, no foreign types, bounded depth.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from foldlog.core import shapes, values
from foldlog.core.values import Fault

Check = Callable[[Any], Any]


def checker(kind: shapes.Kind) -> Check:
    """The function that returns a value of this kind, normalised, or raises Fault."""
    return _CHECKERS[type(kind)](kind)


def _is_time(text: str) -> bool:
    try:
        values.parse_instant(text)
    except ValueError:
        return False
    return True


def _text_of(test: Callable[[str], bool], wanted: str) -> Callable[[Any], Check]:
    """Checks of the kinds that are texts of some grammar, and are kept as given."""

    def check(value: Any) -> Any:
        if type(value) is not str:
            raise _mistyped(wanted, value)
        if not test(value):
            raise Fault(f"needs {wanted}")
        return value

    return lambda kind: check


def _mistyped(wanted: str, value: Any) -> Fault:
    return Fault(f"needs {wanted}, got {values.json_type(value)}")


def _text(kind: shapes.Text) -> Check:
    bytes_max = kind.bytes_max

    def check(value: Any) -> Any:
        if type(value) is not str:
            raise _mistyped("a text", value)
        if not values.fits(value, bytes_max):
            raise Fault(f"has more than {bytes_max:,} bytes of UTF-8")
        return value

    return check


def _whole(kind: shapes.Whole) -> Check:
    minimum, maximum = kind.minimum, kind.maximum
    wanted = f"an integer from {minimum:,} to {maximum:,}"

    def check(value: Any) -> Any:
        if type(value) is not int:  # Neither true nor 1.0 is an integer.
            raise _mistyped(wanted, value)
        if not minimum <= value <= maximum:
            raise Fault(f"needs {wanted}")
        return value

    return check


def _json(kind: shapes.Json) -> Check:
    bytes_max = kind.bytes_max

    def check(value: Any) -> Any:
        if kind.is_object and type(value) is not dict:
            raise _mistyped("an object", value)
        text = values.canonical_json(value)
        if not values.fits(text, bytes_max):
            raise Fault(f"has more than {bytes_max:,} bytes as compact JSON")
        # A copy of its own, so that nothing the caller does later reaches it.
        return json.loads(text) if type(value) in (dict, list) else value

    return check


def _one_of(kind: shapes.OneOf) -> Check:
    wanted = "one of " + ", ".join(kind.values)
    admitted = frozenset(kind.values)

    def check(value: Any) -> Any:
        if type(value) is not str:
            raise _mistyped(wanted, value)
        if value not in admitted:
            raise Fault(f"needs {wanted}")
        return value

    return check


def _confidence(kind: shapes.Confidence) -> Check:
    def check(value: Any) -> Any:
        try:
            return values.confidence_text(value)
        except ValueError as error:
            raise Fault(str(error)) from None

    return check


def _flag(kind: shapes.Flag) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not bool:
            raise _mistyped("true or false", value)
        return value

    return check


def _batch_id(kind: shapes.BatchId) -> Check:
    inner = _text_of(values.is_batch_id, "a UUID as 8-4-4-4-12 hex digits")(kind)
    return lambda value: inner(value).lower()


def _events(kind: shapes.Events) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise _mistyped("a list of events", value)
        if not 0 < len(value) <= kind.maximum:
            raise Fault(f"needs 1 to {kind.maximum} events, got {len(value):,}")
        return value

    return check


def _list_of(kind: shapes.ListOf) -> Check:
    inner = checker(kind.item)

    def check(value: Any) -> Any:
        if type(value) is not list:
            raise _mistyped("a list", value)
        checked: list[Any] = []
        try:
            for item in value:
                checked.append(inner(item))
        except Fault as fault:
            fault.steps.append(len(checked))
            raise
        return checked

    return check


def _map_of(kind: shapes.MapOf) -> Check:
    inner = checker(kind.item)
    check_key = checker(shapes.Text())

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _mistyped("an object", value)
        checked: dict[str, Any] = {}
        key = ""
        try:
            for key, item in value.items():
                check_key(key)
                checked[key] = inner(item)
        except Fault as fault:
            fault.steps.append(key)
            raise
        return checked

    return check


def record_checker(record: shapes.Record, also: frozenset[str] = frozenset()) -> Check:
    """The check of a record; fields named in `also` are let through and left out of the answer."""
    names = frozenset(record.fields) | also
    rows = tuple((name, checker(field.kind), field) for name, field in record.fields.items())

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _mistyped("an object", value)
        if not value.keys() <= names:
            raise _unknown(value, names)
        checked: dict[str, Any] = {}
        name = ""
        try:
            for name, inner, field in rows:
                item = value.get(name)
                if item is not None:
                    checked[name] = inner(item)
                elif field.keeps_null and name in value:
                    checked[name] = None
                elif field.required:
                    raise Fault("is required")
        except Fault as fault:
            fault.steps.append(name)
            raise
        return checked

    return check


def _unknown(value: dict[str, Any], names: frozenset[str]) -> Fault:
    fault = Fault("is no known field")
    fault.steps.append(next(name for name in value if name not in names))
    return fault


_CHECKERS: dict[type, Callable[[Any], Check]] = {
    shapes.Text: _text,
    shapes.Id: _text_of(values.is_id, "an id of 1 to 2,048 characters"),
    shapes.Reference: _text_of(
        values.is_reference, "a reference (a URI of at most 2,048 characters, without white space)"
    ),
    shapes.Time: _text_of(
        _is_time, "a time YYYY-MM-DDThh:mm:ss[.digits](Z or ±hh:mm) within the years 0001 to 9999"
    ),
    shapes.Whole: _whole,
    shapes.Json: _json,
    shapes.OneOf: _one_of,
    shapes.Confidence: _confidence,
    shapes.Permission: _text_of(values.is_permission, "a permission (tool:NAME or effect:KIND)"),
    shapes.Flag: _flag,
    shapes.Sha256: _text_of(values.is_sha256, "64 lower-case hex digits"),
    shapes.RunId: _text_of(values.is_run_id, "the id of a run"),
    shapes.BatchId: _batch_id,
    shapes.Traceparent: _text_of(values.is_traceparent, "a W3C traceparent"),
    shapes.Entity: _text_of(values.is_entity, "the name of an entity, as `diff` names them"),
    shapes.Events: _events,
    shapes.ListOf: _list_of,
    shapes.MapOf: _map_of,
    shapes.Record: record_checker,
}
