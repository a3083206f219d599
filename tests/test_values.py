"""The values: instants, confidences, references, names, JSON."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog.core import values
from foldlog.core.values import (
    Author,
    Fault,
    canonical_json,
    check_json,
    confidence_text,
    dotted,
    format_instant,
    parse_instant,
    strict_json,
)

SECOND = 1_000_000_000


# --- instants -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59Z", -SECOND),
        ("2026-01-01T00:00:00Z", 1_767_225_600 * SECOND),
        ("2026-01-01T08:00:00+08:00", 1_767_225_600 * SECOND),
        ("2025-12-31T19:30:00-04:30", 1_767_225_600 * SECOND),
        ("1970-01-01T00:00:00.1Z", 100_000_000),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-02T00:00:00+23:59", SECOND * 60),
        ("2024-02-29T00:00:00Z", 1_709_164_800 * SECOND),
        ("2000-02-29T00:00:00Z", 951_782_400 * SECOND),
    ],
)
def test_instant_is_counted_in_nanoseconds(text: str, expected: int) -> None:
    """A time is the number of nanoseconds since 1970, whatever its offset and digits."""
    assert parse_instant(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01t00:00:00Z",
        "2026-01-01T00:00:00z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00Z",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00,5Z",
        "2026-01-01T00:00:00.1234567890Z",
        "2026-01-01T00:00:00+0800",
        "2026-01-01T00:00:00+08",
        "2026-01-01T00:00:00Z\n",
        " 2026-01-01T00:00:00Z",
        "26-01-01T00:00:00Z",
        "+2026-01-01T00:00:00Z",
        "20260-01-01T00:00:00Z",
        "\uff12026-01-01T00:00:00Z",
        "2026-1-1T00:00:00Z",
        "2026-W01-1T00:00:00Z",
    ],
)
def test_instant_has_one_form(text: str) -> None:
    """Anything but the one written form is refused, also a trailing line end and other digits."""
    with pytest.raises(ValueError, match="a time is written"):
        parse_instant(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-29T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "2026-01-32T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-12-31T23:59:60Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00-00:60",
    ],
)
def test_instant_is_a_real_one(text: str) -> None:
    """Days that no calendar has, leap seconds, and offsets of a day or more are refused."""
    with pytest.raises(ValueError, match=r"real day|offset"):
        parse_instant(text)


@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        ("0001-01-01T00:00:00Z", True),
        ("0001-01-01T00:00:00+00:01", False),
        ("0000-12-31T23:59:00-00:01", True),
        ("0000-12-31T23:59:59Z", False),
        ("9999-12-31T23:59:59.999999999Z", True),
        ("9999-12-31T23:59:59-00:01", False),
        ("9999-12-31T23:59:59+23:59", True),
    ],
)
def test_instant_lies_within_the_years_in_utc(text: str, admitted: bool) -> None:
    """It is the instant that lies within the years 0001 to 9999 UTC, not what is written."""
    try:
        parse_instant(text)
    except ValueError:
        assert not admitted
    else:
        assert admitted


@given(st.datetimes(timezones=st.just(datetime.UTC)))
def test_instant_agrees_with_the_calendar(moment: datetime.datetime) -> None:
    """Formatting and parsing are each other's inverse and agree with the standard library's."""
    us = (moment - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(
        microseconds=1
    )
    text = format_instant(us)
    assert text == moment.strftime("%Y").rjust(4, "0") + moment.strftime("-%m-%dT%H:%M:%S.%fZ")
    assert parse_instant(text) == us * 1_000


# --- confidence ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1, "1"),
        (1.0, "1"),
        (0.0, "0"),
        (-0.0, "0"),
        (0.66, "0.66"),
        (0.5, "0.5"),
        (1e-4, "0.0001"),
        (1e-7, "0.0000001"),
        (1.25e-7, "0.000000125"),
        (5e-324, "0." + "0" * 323 + "5"),
        (0.9999999999999999, "0.9999999999999999"),
    ],
)
def test_confidence_number_is_its_shortest_decimal(value: Any, shown: str) -> None:
    """A number is shown as its shortest decimal, without exponent and without a sign."""
    assert confidence_text(value) == shown


@given(st.floats(0, 1))
def test_confidence_number_is_read_back(value: float) -> None:
    """What is shown is the same double again, has no exponent, and is a valid confidence."""
    shown = confidence_text(value)
    assert float(shown) == value
    assert set(shown) <= set("0123456789.")
    assert confidence_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "1",
        "-0",
        "-0.0e5",
        "0.66",
        "1.000",
        "10e-1",
        "1E0",
        "0.1e+1",
        "0e99999999999999999999",
        "1e-99999999999999999999",
        "0.00001e5",
        "1e-0005",
        "0.6600",
    ],
)
def test_confidence_text_is_kept(text: str) -> None:
    """A text that is a JSON number from 0 to 1 is shown as it was given."""
    assert confidence_text(text) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "+1",
        "01",
        ".5",
        "1.",
        "1e",
        "0x1",
        "NaN",
        "Infinity",
        "\uff11",
        "0,5",
        "-0.1",
        "-1e-400",
        "1.00000000000000000001",
        "2",
        "1e1",
        "0.1e2",
        "1e99999999999999999999",
        "11e-1",
        "0." + "0" * 8192,
        -1,
        2,
        1.0000000000000002,
        -5e-324,
        True,
        False,
        None,
        [],
        {},
        float("nan"),
        float("inf"),
    ],
)
def test_confidence_outside_is_refused(value: Any) -> None:
    """What is no number from 0 to 1, judged exactly, is refused; so is a boolean."""
    with pytest.raises(ValueError, match="a confidence is"):
        confidence_text(value)


@given(
    st.from_regex(r"(0|[1-9][0-9]{0,3})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)
def test_confidence_text_agrees_with_decimals(text: str) -> None:
    """Whether a text lies in 0..1 is what exact decimal arithmetic says."""
    text = text.translate({ord(c): str(ord(c) % 10) for c in text if c.isdigit() and c > "9"})
    try:
        confidence_text(text)
    except ValueError:
        assert decimal.Decimal(text) > 1
    else:
        assert decimal.Decimal(text) <= 1


# --- names and references -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["a:b", "artifact://test-output/47", "A+.-9:x", "urn:uuid:1", "a::", "x:ü", "a:" + "b" * 2046],
)
def test_reference_is_a_uri(text: str) -> None:
    """A scheme, a colon, and at least one more character make a reference, up to 2,048."""
    assert values.is_reference(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:",
        ":b",
        "1a:b",
        "a b:c",
        "a:b c",
        "a:b\n",
        "a:\t",
        "a:\x00",
        "a:\x7f",
        "a:\x85",
        "a:\xa0",
        "a:\u2028",
        "a:\u3000",
        "ä:b",
        "a_b:c",
        "a:" + "b" * 2047,
    ],
)
def test_reference_has_no_space(text: str) -> None:
    """White space and control characters of any script, and other schemes, make none."""
    assert not values.is_reference(text)


def test_batch_id_is_a_uuid() -> None:
    """A batch id is 8-4-4-4-12 hex digits of either case, and nothing around them."""
    good = "5bfc1d98-7697-48d2-b42d-cddfd75d6180"
    assert values.is_batch_id(good)
    assert values.is_batch_id(good.upper())
    for bad in ["", good.replace("-", ""), "{" + good + "}", "urn:uuid:" + good, good + "\n"]:
        assert not values.is_batch_id(bad), bad
    assert not values.is_batch_id("g" + good[1:])
    assert not values.is_batch_id("5bfc1d987-697-48d2-b42d-cddfd75d6180")


def test_run_id_is_never_a_path() -> None:
    """A run id is 1 to 128 letters, digits, dots, underscores, colons and dashes, no dot first."""
    for good in ["a", "0", "run_128", "a.b:c-d", "a" * 128, "a..b"]:
        assert values.is_run_id(good), good
    for bad in ["", ".", "..", "a/b", "a\\b", "-a", "_a", ":a", "a" * 129, "a\n", "ä", "a b"]:
        assert not values.is_run_id(bad), bad


def test_traceparent_is_w3c() -> None:
    """The version is not ff, no id is all zeros, version 00 is exactly 55 characters."""
    trace, parent = "4bf92f3577b34da64bf92f3577b34da6", "00f067aa0ba902b7"
    good = f"00-{trace}-{parent}-01"
    assert len(good) == 55
    for text in [good, f"01-{trace}-{parent}-01", f"cc-{trace}-{parent}-01-what.ever"]:
        assert values.is_traceparent(text), text
    for text in [
        "",
        good.upper(),
        good[:-3],
        good + "-x",
        good + "x",
        good + "\n",
        f"ff-{trace}-{parent}-01",
        f"cc-{trace}-{parent}-01x",
        f"00-{'0' * 32}-{parent}-01",
        f"00-{trace}-{'0' * 16}-01",
        f"00-{trace[1:]}-{parent}-01",
    ]:
        assert not values.is_traceparent(text), text


def test_permission_names_a_tool_or_an_effect() -> None:
    """`tool:` or `effect:` and at least one character, at most 8 KiB."""
    for good in [
        "tool:x",
        "effect:create_order",
        "tool:*",
        "tool: ",
        "tool::",
        "tool:" + "x" * 8187,
    ]:
        assert values.is_permission(good), good
    for bad in ["", "tool", "tool:", "effect:", "Tool:x", "tools:x", "x", " tool:x"]:
        assert not values.is_permission(bad), bad
    assert not values.is_permission("tool:" + "x" * 8188)


def test_entity_names_are_those_of_diff() -> None:
    """Fixed names stand alone, collections need an id, permissions a permission."""
    fixed = "goal status wait budget/tokens budget/deadline lease workspace checkpoint plan phase"
    for name in [*fixed.split(), "agent_version", "rules"]:
        assert values.is_entity(name), name
        assert not values.is_entity(name + "/x"), name
    collections = "task fact hypothesis question observation effect artifact tool signal conflict"
    for name in collections.split():
        assert not values.is_entity(name)
        assert not values.is_entity(name + "/")
        assert values.is_entity(name + "/x")
        assert values.is_entity(name + "/file://a b/" + "x" * 2037)
        assert not values.is_entity(name + "/file://a b/" + "x" * 2038)
    assert values.is_entity("permission/tool:run_*")
    for bad in ["", "/", "task", "tasks/x", "Task/x", " task/x", "budget", "budget/x", "run/x"]:
        assert not values.is_entity(bad), bad
    assert not values.is_entity("permission/x")
    assert not values.is_entity("permission/")


def test_author_is_shown_as_json() -> None:
    """An author's JSON is its kind and id."""
    assert Author("agent", "worker-1").to_dict() == {"kind": "agent", "id": "worker-1"}


def test_paths_are_dotted_and_bounded() -> None:
    """Keys are joined by dots, indexes stand in brackets, and an endless key is cut."""
    assert dotted([]) == ""
    assert dotted(["task", "depends_on", 1]) == "task.depends_on[1]"
    assert dotted(["events", 0, "fact", "id"]) == "events[0].fact.id"
    assert len(dotted(["x" * 100_000])) == 256


# --- JSON ---------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-values.INTEGER_MAX, values.INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_canonical_json_is_read_back(value: Any) -> None:
    """What is written canonically is read back strictly as an equal value, written alike again."""
    text = canonical_json(value)
    again = strict_json(text)
    assert again == value
    assert canonical_json(again) == text
    assert strict_json(text.encode()) == value
    check_json(value)


def test_canonical_json_has_one_form() -> None:
    """Keys are sorted by code points, nothing stands between tokens, characters are as they are."""
    assert canonical_json({"b": [1, 2.5, None], "a": "ü", "Z": {}}) == (
        '{"Z":{},"a":"ü","b":[1,2.5,null]}'
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":1}',
        '[{"a":{"b":1,"c":2,"b":3}}]',
        '{"a":1,"\\u0061":2}',
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        "[-1e999]",
        "9007199254740992",
        "-9007199254740992",
        "[" + "9" * 5_000 + "]",
        '"\\ud800"',
        '{"\\uDC00":1}',
        '"\\udc00\\ud800"',
        "",
        "{",
        "{} {}",
        "[1,]",
        "{'a':1}",
        "01",
        "+1",
        '"\t"',
        "\ufeff{}",
        "// no\n1",
    ],
)
def test_strict_json_refuses(text: str) -> None:
    """Duplicate keys, NaN, infinities, large integers, lone surrogates and what is no JSON."""
    with pytest.raises(ValueError):  # noqa: PT011 - json's own messages are among them
        strict_json(text)
    with pytest.raises(ValueError):  # noqa: PT011
        strict_json(text.encode())


def test_strict_json_refuses_bad_utf8() -> None:
    """Bytes that are no UTF-8, and texts with raw surrogates, are refused."""
    data: bytes | str
    for data in (b'"\xff"', b'"\xed\xa0\x80"', '"\ud800"', "{}".encode("utf-16")):
        with pytest.raises(ValueError):  # noqa: PT011 - UnicodeDecodeError among them
            strict_json(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740991", 2**53 - 1),
        ("-9007199254740991", -(2**53 - 1)),
        ("9007199254740993.0", 2.0**53),
        ("1e300", 1e300),
        ("1e-999", 0.0),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\\\ud800"', "\\ud800"),
        (' {"a" : [ ] }\n', {"a": []}),
    ],
)
def test_strict_json_admits(text: str, value: Any) -> None:
    """The edges that are JSON are read: 2^53-1, large reals, surrogate pairs, white space."""
    assert strict_json(text) == value


def test_levels_are_counted_before_parsing() -> None:
    """64 levels are read, 65 are refused, brackets inside texts do not count."""
    assert strict_json("[" * 64 + "]" * 64)
    assert strict_json('{"a":' * 63 + "[]" + "}" * 63)
    for text in ["[" * 65 + "]" * 65, '{"a":' * 64 + "[]" + "}" * 64, "[" * 100_000]:
        with pytest.raises(ValueError, match="64 levels"):
            strict_json(text)
    assert strict_json(json.dumps(["[{" * 100, '"\\"[' * 100])) == ["[{" * 100, '"\\"[' * 100]
    assert strict_json("[" + ",".join(["[]"] * 1_000) + "]") == [[]] * 1_000


def test_levels_take_linear_time() -> None:
    """A hostile text without an end is counted in one pass and refused."""
    with pytest.raises(ValueError, match=r"Unterminated"):
        strict_json("[" * 64 + '"' + '\\"[' * 200_000)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [float("nan")]}, "NaN"),
        ([float("inf")], "infinity"),
        ({"a": 2**53}, "2\\^53-1"),
        ({"a": {"\ud800": 1}}, "surrogate"),
        ({"a": ["x\udfff"]}, "surrogate"),
    ],
)
def test_check_json_refuses_what_json_text_cannot_be(value: Any, reason: str) -> None:
    """A Python value is held to the same rules as JSON text; such a fault names no field."""
    with pytest.raises(Fault, match=reason) as caught:
        check_json(value)
    assert not caught.value.names_field


def test_check_json_bounds_the_depth() -> None:
    """64 levels pass, 65 do not, and a list that holds itself ends."""
    deep: Any = []
    for _ in range(63):
        deep = [deep]
    check_json(deep)
    itself: list[Any] = []
    itself.append(itself)
    for value in ([deep], {"a": deep}, itself):
        with pytest.raises(Fault, match="64 levels"):
            check_json(value)


@pytest.mark.parametrize("value", [(1,), {1}, b"x", datetime.date(2026, 1, 1), {1: 2}, object()])
def test_check_json_refuses_other_python_values(value: Any) -> None:
    """What JSON has not, tuples and keys that are no texts too, is refused at its place."""
    with pytest.raises(Fault) as caught:
        check_json({"a": [0, value]})
    assert caught.value.names_field
    assert dotted(caught.value.steps[::-1]) == "a[1]"
