"""The Avro codec: bounded before it allocates, one encoding for a value, WireError or nothing."""

from __future__ import annotations

import io
import tracemalloc
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import foldlog_schemas
from foldlog.core.values import canonical_json
from foldlog.wire import avro, envelope, events, imports, records
from foldlog.wire.avro import Limits, WireError
from tests import wire_examples, wire_golden
from tests.wire_examples import example_event

NAMES = foldlog_schemas.names()
MILLIONS = b"\x80\x84\xaf\x5f"  # 100,000,000 as a varint: a count of 50 million


def header(name: str) -> bytes:
    """The ten bytes that begin an encoding of the first version of a schema."""
    fingerprints = foldlog_schemas.fingerprints().items()
    return avro.MARKER + next(key for key, known in fingerprints if known == (name, 1))


def fields_of(event: dict[str, Any]) -> dict[str, Any]:
    """An event as its schema has it, without its type."""
    return {name: value for name, value in event.items() if name != "type"}


def encoded(name: str) -> bytes:
    """A valid encoding of the first version of any schema, all optional fields there."""
    if name == "Envelope":
        return envelope.encode_proposal(wire_examples.proposal())
    if name == "Record":
        return records.encode_record(wire_examples.record())
    if name == "ImportPart":
        return imports.encode_part(wire_golden.GOLDEN_PART)
    if name == "RunArchived":
        return events.encode_event(wire_golden.GOLDEN_ARCHIVE)
    if name == "RunForked":
        return events.encode_event(wire_golden.GOLDEN_FORK)
    if name == "PluginEvent":
        return events.encode_event(wire_golden.GOLDEN_PLUGIN_EVENT)
    return avro.encode(name, 1, fields_of(example_event(name, full=True)))


def datum(schema: Any, value: Any) -> Any:
    """Our value as an ordinary Avro library takes and gives it."""
    if isinstance(schema, dict) and schema.get("foldlog") == "json":
        return canonical_json(value)
    if isinstance(schema, dict) and schema.get("foldlog") == "nullable":
        return {"limit": value}
    if not isinstance(schema, dict) or schema["type"] == "fixed":
        return value
    if schema["type"] == "array":
        return [datum(schema["items"], item) for item in value]
    if schema["type"] == "map":
        return {key: value[key] for key in sorted(value)}
    made = {}
    for field in schema["fields"]:
        name, kind = field["name"], field["type"]
        optional = isinstance(kind, list)
        absent = optional and name not in value
        made[name] = None if absent else datum(kind[1] if optional else kind, value[name])
    return made


@given(event=wire_examples.events)
def test_our_bytes_are_those_of_an_ordinary_avro_library(event: dict[str, Any]) -> None:
    """fastavro writes the same body, and reads ours, for any event."""
    schema = foldlog_schemas.load(event["type"], 1)
    parsed = fastavro.parse_schema(schema)
    ours = avro.encode(event["type"], 1, fields_of(event))[avro.HEADER_SIZE :]
    wanted = datum(schema, fields_of(event))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, wanted, strict=True)
    assert out.getvalue() == ours
    assert fastavro.schemaless_reader(io.BytesIO(ours), parsed, None) == wanted


@pytest.mark.parametrize("name", ["Envelope", "Record"])
def test_envelopes_and_records_are_avro_too(name: str) -> None:
    """fastavro reads an envelope and a record, and writes the same bytes again."""
    data = encoded(name)[avro.HEADER_SIZE :]
    parsed = fastavro.parse_schema(foldlog_schemas.load(name, 1))
    out = io.BytesIO()
    value: Any = fastavro.schemaless_reader(io.BytesIO(data), parsed, None)
    fastavro.schemaless_writer(out, parsed, value, strict=True)
    assert out.getvalue() == data


def check_refused_or_canonical(data: bytes) -> None:
    """Decoding either raises WireError or gives what encodes to the same bytes."""
    try:
        name, version, value = avro.decode(data)
    except WireError:
        return
    assert avro.encode(name, version, value) == data


@given(data=st.binary(max_size=300))
@example(data=b"")
@example(data=avro.MARKER)
def test_any_bytes_are_refused(data: bytes) -> None:
    """Bytes from nowhere raise WireError and nothing else."""
    with pytest.raises(WireError):
        avro.decode(data)


@given(name=st.sampled_from(NAMES), body=st.binary(max_size=300))
def test_any_body_is_refused_or_canonical(name: str, body: bytes) -> None:
    """Any bytes after a known fingerprint raise WireError, or are the one encoding of a value."""
    check_refused_or_canonical(header(name) + body)


@given(
    name=st.sampled_from(NAMES),
    changes=st.lists(
        st.tuples(st.integers(0, 2**16), st.binary(max_size=4), st.integers(0, 4)),
        min_size=1,
        max_size=3,
    ),
)
def test_mutated_bytes_are_refused_or_canonical(
    name: str, changes: list[tuple[int, bytes, int]]
) -> None:
    """Valid bytes with parts replaced, cut out or put in do no other harm."""
    data = encoded(name)
    for where, new, cut in changes:
        place = where % (len(data) + 1)
        data = data[:place] + new + data[place + cut :]
    check_refused_or_canonical(data)


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_is_refused(name: str) -> None:
    """Each proper prefix of an encoding raises WireError; so do bytes after the end."""
    data = encoded(name)
    for size in range(len(data)):
        with pytest.raises(WireError):
            avro.decode(data[:size])
    with pytest.raises(WireError, match="after the end"):
        avro.decode(data + b"\x00")


BOMBS = {
    "a count of 50 million in a 5-byte array": header("PlanAdopted") + MILLIONS + b"\x00",
    "a count of -50 million with a size": header("PlanAdopted") + b"\xff\x83\xaf\x5f" + MILLIONS,
    "a map of 50 million": header("AgentVersionChanged") + MILLIONS + b"\x00",
    "a text of 50 million bytes": header("WaitTimedOut") + MILLIONS + b"x",
    "a text of negative length": header("WaitTimedOut") + b"\x01",
    "a text of 2^63 - 1 bytes": header("WaitTimedOut") + b"\xfe" + b"\xff" * 8 + b"\x01",
    "a varint without end": header("LeaseRenewed") + b"\xff" * 100,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(name: str) -> None:
    """Fault 38: a few bytes that announce millions cost no memory."""
    for schema in NAMES:
        avro.decode(encoded(schema))  # compiles it, which is not to be measured
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            avro.decode(BOMBS[name])
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "texts": (
        "GoalChanged",
        {"goal": {"statement": "", "acceptance": [""] * 250_000}, "reason": ""},
    ),
    "records": (
        "EffectIntended",
        {
            "effect": {"id": "", "kind": "", "target": "", "idempotency_key": ""},
            "requires": [{"subject": "", "observed_version": ""}] * 125_000,
        },
    ),
    "JSON": ("Recorded", {"name": "", "payload": [{}] * 80_000}),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_smallest_items_take_memory_in_proportion(name: str) -> None:
    """256 KiB of the smallest items there are take tens of megabytes, never more."""
    data = avro.encode(SMALL[name][0], 1, SMALL[name][1])
    tracemalloc.start()
    try:
        avro.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 130 * len(data)
    finally:
        tracemalloc.stop()


def json_event(text: bytes) -> bytes:
    """A Recorded whose payload is some text, whatever it is."""
    out = bytearray(header("Recorded") + b"\x02n")
    avro._write_bytes(out, text)
    return bytes(out)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"[" * 65 + b"]" * 65,
        b'{"a":1,"a":1}',
        b'{"b":1,"a":1}',
        b'{"a": 1}',
        b"1e999",
        b"NaN",
        b"9007199254740993",
        b'"\\ud800"',
        b"1E2",
        b'"\\u0041"',
        b"",
        b"\xff",
    ],
)
def test_json_text_that_is_not_strict_or_not_canonical_is_refused(text: bytes) -> None:
    """Deep nesting, repeated keys, numbers JSON has not, and any other way to write a value."""
    with pytest.raises(WireError):
        avro.decode(json_event(text))


def test_json_null_has_one_encoding() -> None:
    """A required payload may be null; in an optional field null is absence, never text."""
    assert avro.decode(json_event(b"null"))[2] == {"name": "n", "payload": None}
    absent = avro.encode("SignalReceived", 1, {"key": "k", "signal_id": "s"})
    assert absent.endswith(b"\x00")
    with pytest.raises(WireError, match="JSON null"):
        avro.decode(absent[:-1] + b"\x02\x08null")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header("LeaseRenewed") + b"\x80\x00", "longer than it need be"),
        (header("LeaseRenewed") + b"\xff" * 9 + b"\x03", "longer than it need be"),
        (header("ToolFailed") + b"\x02s\x02e\x02", "a boolean of 2"),
        (header("PhaseChanged") + b"\x02\xff", "not UTF-8"),
        (header("PhaseChanged") + b"\x06\xed\xa0\x80", "not UTF-8"),
        (header("RunFinished") + b"\x02r\x04\x00", "branch 4"),
        (header("AgentVersionChanged") + b"\x04\x02b\x00\x02a\x00\x00", "do not ascend"),
        (header("AgentVersionChanged") + b"\x04\x02a\x00\x02a\x00\x00", "do not ascend"),
        (header("AgentVersionChanged") + b"\x02\x02a\x00\x02\x02b\x00\x00", "second block"),
        (header("AgentVersionChanged") + b"\x01\x06\x02a\x00\x00", "a count of -1"),
        (b"\xc3\x02" + bytes(8), "does not begin with c301"),
        (avro.MARKER + b"\x01\x02\x03\x04\x05\x06\x07\x08", "0102030405060708"),
    ],
)
def test_what_is_refused_is_named(data: bytes, reason: str) -> None:
    """Each other way to write a value, and each thing that is none, says what is wrong."""
    with pytest.raises(WireError, match=reason):
        avro.decode(data)


def test_a_limit_is_checked_before_anything_else() -> None:
    """More bytes than the limit are refused whatever they are."""
    data = encoded("PlanAdopted")
    assert avro.decode(data, Limits(size_max=len(data)))[0] == "PlanAdopted"
    with pytest.raises(WireError, match="more than"):
        avro.decode(data, Limits(size_max=len(data) - 1))


def test_an_unknown_field_does_not_vanish() -> None:
    """Encoding a field that the schema lacks is an error, inside a record too."""
    with pytest.raises(ValueError, match="colour"):
        avro.encode("PhaseChanged", 1, {"phase": "p", "colour": "red"})
    with pytest.raises(ValueError, match="colour"):
        avro.encode("QuestionOpened", 1, {"question": {"id": "q", "text": "", "colour": "red"}})


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_every_64_bit_number_comes_back(number: int) -> None:
    """A long is 64 bits, signed."""
    data = avro.encode("LeaseRenewed", 1, {"ttl_seconds": number})
    assert avro.decode(data) == ("LeaseRenewed", 1, {"ttl_seconds": number})
