"""Says whether two versions of a schema can read each other, and whether a schema is one of ours.

Invariants:
- Compatible means both ways: what either version wrote, the other reads, without loss of a
  required field. So it holds between any two versions, not only neighbours.
- Only the part of Avro that foldlog uses is allowed: unions of null and one type, no enum, no
  float, no recursion.
- Pure: schemas in, lists of sentences out; an empty list means all is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

__all__ = ["problems_between", "problems_of", "problems_of_versions"]

SCALARS = ("string", "long", "boolean", "bytes")
PROPERTIES = ("json", "nullable")


def problems_of_versions(name: str, versions: Mapping[int, Any]) -> list[str]:
    """Everything wrong with one schema's versions: each alone, and each pair in both directions."""
    found = [p for v in sorted(versions) for p in problems_of(name, v, versions[v])]
    for a, b in combinations(sorted(versions), 2):
        for reader, writer in ((a, b), (b, a)):
            where = f"{name}: version {reader} cannot read version {writer}"
            found += [f"{where}: {p}" for p in problems_between(versions[reader], versions[writer])]
    return found


def problems_of(name: str, version: int, schema: Any) -> list[str]:
    """Why a schema is not one that foldlog's codec takes; empty if it is."""
    found = []
    if (schema.get("name"), schema.get("namespace")) != (name, f"foldlog.v{version}"):
        found.append(f"{name} v{version} is not named foldlog.v{version}.{name}")
    return found + [f"{name} v{version}: {p}" for p in _foreign_parts(schema, name, {}, ())]


def _foreign_parts(
    schema: Any, path: str, known: dict[str, Any], open_names: tuple[str, ...]
) -> Iterator[str]:
    """What a schema uses that foldlog's part of Avro does not have."""
    if isinstance(schema, str):
        if schema in open_names:
            yield f"{path} is recursive"
        elif schema not in SCALARS and schema not in known:
            yield f"{path} has the type {schema}, which is not in use here"
        return
    if isinstance(schema, list):
        if len(schema) != 2 or schema[0] != "null":
            yield f"{path} is a union other than [null, X]"
        for branch in schema[1:]:
            yield from _foreign_parts(branch, path, known, open_names)
        return
    yield from _foreign_named_parts(schema, path, known, open_names)


def _foreign_named_parts(
    schema: dict[str, Any], path: str, known: dict[str, Any], open_names: tuple[str, ...]
) -> Iterator[str]:
    """The same, of a schema written as an object."""
    kind = schema["type"]
    if schema.get("foldlog", PROPERTIES[0]) not in PROPERTIES:
        yield f"{path} has an unknown foldlog property"
    if kind == "array":
        yield from _foreign_parts(schema["items"], f"{path}[]", known, open_names)
    elif kind == "map":
        yield from _foreign_parts(schema["values"], f"{path}{{}}", known, open_names)
    elif kind == "fixed":
        known[schema["name"]] = schema
    elif kind == "record":
        inside = (*open_names, schema["name"])
        for field in schema["fields"]:
            where = f"{path}.{field['name']}"
            yield from _foreign_parts(field["type"], where, known, inside)
            if isinstance(field["type"], list) != ("default" in field) or field.get("default"):
                yield f"{where}: an optional field defaults to null, and no other has a default"
        known[schema["name"]] = schema
    else:
        yield from _foreign_parts(kind, path, known, open_names)


def problems_between(reader: Any, writer: Any) -> list[str]:
    """Why `reader` cannot read what `writer` wrote; empty if it can."""
    return list(_mismatches(_resolved(reader, {}), _resolved(writer, {}), reader["name"]))


def _resolved(schema: Any, known: dict[str, Any]) -> Any:
    """The same schema with each reference to a named type replaced by the type."""
    if isinstance(schema, str):
        return known.get(schema, {"type": schema})
    if isinstance(schema, list):
        return [_resolved(branch, known) for branch in schema]
    made = dict(schema)
    for part in ("items", "values"):
        if part in made:
            made[part] = _resolved(made[part], known)
    if "fields" in made:
        made["fields"] = [f | {"type": _resolved(f["type"], known)} for f in made["fields"]]
    if "name" in made:
        known[made["name"]] = made
    return made


def _mismatches(reader: Any, writer: Any, path: str) -> Iterator[str]:
    """Where the two resolved schemas part, walking them together."""
    if isinstance(writer, list):
        if not isinstance(reader, list):
            yield f"{path} may be absent in what was written and must not be in what is read"
        else:
            yield from _mismatches(reader[1], writer[1], path)
        return
    if isinstance(reader, list):
        reader = reader[1]
    if reader["type"] != writer["type"]:
        yield f"{path} was a {writer['type']} and is read as a {reader['type']}"
        return
    yield from _inner_mismatches(reader, writer, path)


def _inner_mismatches(reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
    """Where two schemas of the same kind part."""
    for part in ("name", "size", "foldlog"):
        if part in ("name", "foldlog") or reader["type"] == "fixed":
            if reader.get(part) != writer.get(part):
                yield f"{path} has another {part}"
    for part in ("items", "values"):
        if part in reader:
            yield from _mismatches(reader[part], writer[part], f"{path}[]")
    if reader["type"] == "record":
        yield from _field_mismatches(reader, writer, path)


def _field_mismatches(reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
    """Fields that only the reader has need a default; fields of both must match."""
    written = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        where = f"{path}.{field['name']}"
        if field["name"] in written:
            yield from _mismatches(field["type"], written[field["name"]]["type"], where)
        elif "default" not in field:
            yield f"{where} is missing in what was written and has no default"
