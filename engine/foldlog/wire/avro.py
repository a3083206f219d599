"""Avro single-object encoding, as far as foldlog uses Avro: C3 01, fingerprint, body.

Schemas are compiled once, on first use, into one writing and one reading function each; the
reader checks and builds in the same pass. A field that is null in Avro is absent in Python.
Why not a library: none has a bounded reader, and this is faster than walking the bytes first
and decoding them after (FORMAT.md has the figures). The tests hold it against fastavro.

Invariants:
- decode takes at most about a hundred times the memory of the bytes it was given: every length
  and count is compared with the bytes left, and with the limits, before anything is made.
- decode raises WireError and nothing else, whatever the bytes.
- One value has one encoding: decode(encode(x)) == x, and what decode takes, encode gives back,
  byte for byte. So decode refuses long varints, split array blocks, unsorted or repeated map
  keys, JSON text that is not canonical, and bytes after the end.
- Depth is the schema's: no schema is recursive, and JSON text stays within its own limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import foldlog_schemas
from foldlog.core.values import canonical_json, strict_json

__all__ = ["HEADER_SIZE", "MARKER", "Limits", "WireError", "decode", "encode", "identify"]

MARKER = b"\xc3\x01"
HEADER_SIZE = 10  # the marker and eight bytes of fingerprint
LONG_BYTES_MAX = 10  # 64 bits, seven at a time

Write = Callable[[bytearray, Any], None]
Read = Callable[[bytes, int], tuple[Any, int]]


class WireError(Exception):
    """Bytes that cannot be read; `reason` says why, with the schema and the place."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Refused(Exception):
    """The reason and the place of a refusal, on their way from a reader to `decode`."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.place = place


@dataclass(frozen=True, slots=True)
class Limits:
    """How much `decode` takes: the size of the whole encoding in bytes."""

    size_max: int = 256 * 1024


DEFAULT_LIMITS = Limits()


def encode(name: str, version: int, value: Mapping[str, Any]) -> bytes:
    """The single-object encoding of a value; None and absent are the same in an optional field.

    A value that does not fit its schema, or has a field that the schema lacks, is our own
    mistake: it was checked before it came here. It raises what Python raises.
    """
    prefix, write = _writer(name, version)
    out = bytearray(prefix)
    write(out, value)
    return bytes(out)


def identify(data: bytes) -> tuple[str, int]:
    """(name, version) of an encoding, from its first ten bytes; WireError if unknown."""
    if data[:2] != MARKER:
        raise WireError("not Avro single-object encoding: it does not begin with c301")
    fingerprint = data[2:HEADER_SIZE]
    known = foldlog_schemas.fingerprints().get(fingerprint)
    if known is None:
        raise WireError(f"unknown schema fingerprint {fingerprint.hex()}")
    return known


def decode(data: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[str, int, dict[str, Any]]:
    """(name, version, value) of an encoding; WireError for anything but a whole canonical one."""
    if len(data) > limits.size_max:
        raise WireError(f"{len(data)} bytes, more than the {limits.size_max} allowed here")
    name, version = identify(data)
    try:
        value, place = _reader(name, version)(data, HEADER_SIZE)
    except _Refused as refused:
        reason, place = refused.reason, refused.place
        raise WireError(f"{name} v{version}, byte {place}: {reason}") from None
    except IndexError:  # a reader asked for a byte beyond the last one
        raise WireError(f"{name} v{version}: ends in the middle of a value") from None
    if place != len(data):
        raise WireError(f"{name} v{version}: {len(data) - place} bytes after the end")
    return name, version, value


# --- compiling: one schema into one writer and one reader ------------------------------------


@cache
def _writer(name: str, version: int) -> tuple[bytes, Write]:
    """The ten bytes that begin an encoding, and what writes the body."""
    schema = foldlog_schemas.load(name, version)
    known = foldlog_schemas.fingerprints().items()
    fingerprint = next(key for key, value in known if value == (name, version))
    return MARKER + fingerprint, _compile(schema, {})[0]


@cache
def _reader(name: str, version: int) -> Read:
    """What reads the body."""
    return _compile(foldlog_schemas.load(name, version), {})[1]


def _compile(schema: Any, known: dict[str, tuple[Write, Read]]) -> tuple[Write, Read]:
    """Writer and reader of any schema but a union, which only a field may have."""
    if isinstance(schema, str):
        return known[schema] if schema in known else SCALARS[schema]
    kind = schema["type"]
    if schema.get("foldlog") == "json":
        return _write_json, _read_json
    if kind == "array":
        return _array(*_compile(schema["items"], known))
    if kind == "map":
        return _map(*_compile(schema["values"], known))
    if kind == "fixed":
        made = _fixed(schema["size"])
    elif kind == "record":
        made = _record(schema, known)
        if schema.get("foldlog") == "nullable":
            made = _unwrapping(*made)
    else:
        return _compile(kind, known)
    known[schema["name"]] = made
    return made


# --- scalars -----------------------------------------------------------------------------------


def _write_long(out: bytearray, value: int) -> None:
    """A zig-zag varint, seven bits a byte, the lowest first."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    assert not rest >> 64
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _read_long(data: bytes, place: int) -> tuple[int, int]:
    first = data[place]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), place + 1
    return _read_long_slowly(data, place)


def _read_long_slowly(data: bytes, start: int) -> tuple[int, int]:
    """A varint of more than one byte."""
    rest = data[start] & 0x7F
    for count in range(1, LONG_BYTES_MAX):
        byte = data[start + count]
        rest |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0 or rest >> 64:
                break
            return (rest >> 1) ^ -(rest & 1), start + count + 1
    raise _Refused("a number that is longer than it need be, or than 64 bits", start)


def _read_length(data: bytes, start: int) -> tuple[int, int]:
    """Where the bytes that a length announces begin and end; they are all there."""
    length, begin = _read_long(data, start)
    end = begin + length
    if length < 0 or end > len(data):
        _refuse_length(length, len(data) - begin, start)
    return begin, end


def _refuse_length(length: int, left: int, place: int) -> NoReturn:
    raise _Refused(f"a length of {length} with {left} bytes left", place)


def _write_string(out: bytearray, value: str) -> None:
    data = value.encode()
    _write_long(out, len(data))
    out += data


def _read_string(data: bytes, start: int) -> tuple[str, int]:
    first = data[start]
    if first < 0x80:  # up to 63 bytes: nearly every text; a call saved is a fifth of the time
        begin = start + 1
        end = begin + (first >> 1)
        if first & 1 or end > len(data):
            _refuse_length((first >> 1) ^ -(first & 1), len(data) - begin, start)
    else:
        begin, end = _read_length(data, start)
    try:
        return data[begin:end].decode(), end
    except UnicodeDecodeError:
        raise _Refused("text that is not UTF-8", start) from None


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_long(out, len(value))
    out += value


def _read_bytes(data: bytes, start: int) -> tuple[bytes, int]:
    begin, end = _read_length(data, start)
    return data[begin:end], end


def _write_boolean(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _read_boolean(data: bytes, place: int) -> tuple[bool, int]:
    byte = data[place]
    if byte > 1:
        raise _Refused(f"a boolean of {byte}", place)
    return byte == 1, place + 1


def _write_json(out: bytearray, value: Any) -> None:
    _write_string(out, canonical_json(value))


def _read_json(data: bytes, start: int) -> tuple[Any, int]:
    text, end = _read_string(data, start)
    try:
        value = strict_json(text)
    except ValueError as error:
        raise _Refused(f"JSON text: {error}", start) from None
    if canonical_json(value) != text:
        raise _Refused("JSON text that is not in canonical form", start)
    return value, end


def _read_json_but_null(data: bytes, start: int) -> tuple[Any, int]:
    """JSON in an optional field, where absence is how null is written."""
    value, end = _read_json(data, start)
    if value is None:
        raise _Refused("JSON null in an optional field", start)
    return value, end


SCALARS: dict[str, tuple[Write, Read]] = {
    "string": (_write_string, _read_string),
    "bytes": (_write_bytes, _read_bytes),
    "long": (_write_long, _read_long),
    "boolean": (_write_boolean, _read_boolean),
}


# --- what is made of parts ---------------------------------------------------------------------


def _fixed(size: int) -> tuple[Write, Read]:
    def write(out: bytearray, value: bytes) -> None:
        assert len(value) == size
        out += value

    def read(data: bytes, begin: int) -> tuple[bytes, int]:
        end = begin + size
        if end > len(data):
            _refuse_length(size, len(data) - begin, begin)
        return data[begin:end], end

    return write, read


def _read_count(data: bytes, start: int) -> tuple[int, int]:
    """The number of items of an array or map, which is one block; each item takes a byte or more.

    Avro also allows several blocks, and negative counts with a size in bytes. No writer needs
    them, and with them one value would have many encodings.
    """
    count, place = _read_long(data, start)
    if count < 0 or count > len(data) - place:
        raise _Refused(f"a count of {count} with {len(data) - place} bytes left", start)
    return count, place


def _read_end(data: bytes, place: int) -> int:
    """Skips the zero that ends an array or map."""
    if data[place] != 0:
        raise _Refused("a second block of items", place)
    return place + 1


def _array(write_item: Write, read_item: Read) -> tuple[Write, Read]:
    def write(out: bytearray, value: Any) -> None:
        if value:
            _write_long(out, len(value))
            for item in value:
                write_item(out, item)
        out.append(0)

    def read(data: bytes, start: int) -> tuple[list[Any], int]:
        count, place = _read_count(data, start)
        items: list[Any] = []
        if not count:
            return items, place
        for _ in range(count):
            item, place = read_item(data, place)
            items.append(item)
        return items, _read_end(data, place)

    return write, read


def _map(write_item: Write, read_item: Read) -> tuple[Write, Read]:
    """Keys in ascending order of code points, which is also that of their UTF-8 bytes."""

    def write(out: bytearray, value: Mapping[str, Any]) -> None:
        if value:
            _write_long(out, len(value))
            for key in sorted(value):
                _write_string(out, key)
                write_item(out, value[key])
        out.append(0)

    def read(data: bytes, start: int) -> tuple[dict[str, Any], int]:
        count, place = _read_count(data, start)
        items: dict[str, Any] = {}
        if not count:
            return items, place
        last = None
        for _ in range(count):
            key, after = _read_string(data, place)
            if last is not None and key <= last:
                raise _Refused("map keys that do not ascend", place)
            items[key], place = read_item(data, after)
            last = key
        return items, _read_end(data, place)

    return write, read


def _record(schema: dict[str, Any], known: dict[str, tuple[Write, Read]]) -> tuple[Write, Read]:
    names = frozenset(field["name"] for field in schema["fields"])
    writers: list[tuple[str, bool, bool, Write]] = []
    readers: list[tuple[str, bool, Read]] = []
    for field in schema["fields"]:
        optional = isinstance(field["type"], list)
        inner = field["type"][1] if optional else field["type"]
        write_field, read_field = _compile(inner, known)
        if optional and read_field is _read_json:
            read_field = _read_json_but_null
        # Only in a nullable one does None say something else than absence.
        nullable = isinstance(inner, dict) and inner.get("foldlog") == "nullable"
        writers.append((field["name"], optional, nullable, write_field))
        readers.append((field["name"], optional, read_field))

    def write(out: bytearray, value: Mapping[str, Any]) -> None:
        if not names.issuperset(value):
            raise ValueError(f"{schema['name']} has no field {sorted(set(value) - names)}")
        for name, optional, nullable, write_field in writers:
            if not optional:
                write_field(out, value[name])
            elif (item := value.get(name)) is not None or (nullable and name in value):
                out.append(2)  # the union's second branch, as a zig-zag varint
                write_field(out, item)
            else:
                out.append(0)

    def read(data: bytes, place: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        for name, optional, read_field in readers:
            if optional:
                branch = data[place]
                if branch == 2:
                    found[name], place = read_field(data, place + 1)
                elif branch == 0:
                    place += 1
                else:
                    raise _Refused(f"branch {branch} of a union of null and another", place)
            else:
                found[name], place = read_field(data, place)
        return found, place

    return write, read


def _unwrapping(write_record: Write, read_record: Read) -> tuple[Write, Read]:
    """A record {limit} that stands for its limit, or for None."""

    def write(out: bytearray, value: Any) -> None:
        write_record(out, {"limit": value})

    def read(data: bytes, place: int) -> tuple[Any, int]:
        found, place = read_record(data, place)
        return found.get("limit"), place

    return write, read
