"""Normalised events to bytes and back; each travels alone in Avro single-object encoding.

Invariants:
- decode_event(encode_event(event)) == event, for every event that parse_proposal let through:
  absent and null stay apart in BudgetSet, JSON of any shape comes back as it was.
- The schema's name is the event's type; `type` itself is not in the body. Events of plug-ins share
  one schema that carries their type and their fields as JSON, so that every build can read,
  show and carry them, also one that cannot apply them.
- An event is written in the version that WRITTEN names, read in every released one, and lifted to
  the newest (``core.upcasters``).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import foldlog_schemas
from foldlog.core.forks import RUN_FORKED
from foldlog.core.lifting import Unsafe
from foldlog.core.proposals import RUN_ARCHIVED
from foldlog.core.upcasters import upcast
from foldlog.core.values import is_plugin_type
from foldlog.wire.avro import DEFAULT_LIMITS, WireError, decode, encode

__all__ = ["WRITTEN", "decode_event", "encode_event"]

# Types whose events are written in another version than 1. A version gets here one release after
# it can be read, so that a decider which has not been updated yet still reads its workers.
WRITTEN: dict[str, int] = {}

PLUGIN_EVENT = "PluginEvent"

OWN = frozenset({RUN_ARCHIVED, RUN_FORKED})
"""Events of foldlog's own: their schemas stand beside those of the catalogue."""


def encode_event(event: dict[str, Any]) -> bytes:
    """The bytes of one normalised event (an object with "type")."""
    fields = {name: value for name, value in event.items() if name != "type"}
    name = event["type"]
    if is_plugin_type(name):
        return encode(PLUGIN_EVENT, 1, {"event_type": name, "fields": fields})
    return encode(name, WRITTEN.get(name, 1), fields)


def decode_event(data: bytes) -> dict[str, Any]:
    """The event in some bytes; WireError if they hold no event, or no whole canonical one."""
    name, version, fields = decode(data, DEFAULT_LIMITS)
    if name == PLUGIN_EVENT:
        return _plugin_event(fields["event_type"], fields["fields"])
    if name not in _types() and name not in OWN:
        raise WireError(f"{name} is not an event")
    lifted = upcast(name, version, fields)
    if isinstance(lifted, Unsafe):
        raise WireError(f"{name}: {lifted.reason}")
    return {"type": name, **lifted}


def _plugin_event(event_type: str, fields: Any) -> dict[str, Any]:
    if not is_plugin_type(event_type):
        raise WireError(f"{event_type[:100]!r} is not the type of a plug-in's event")
    if not isinstance(fields, dict) or "type" in fields:
        raise WireError(f"the fields of {event_type} are no JSON object without a type")
    return {"type": event_type, **fields}


@cache
def _types() -> frozenset[str]:
    return frozenset(foldlog_schemas.names(events=True))
