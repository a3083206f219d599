"""Old events as the newest version of their type has them: one pure step for each version.

The codec reads every released version; fields that a newer one adds are absent then. What that
cannot say, a step says: a field that is derived, split or renamed. There is none so far; what a new
one needs stands in schemas/EVOLUTION.md.

Invariants:
- An event type without steps reads as it was written; the log is never rewritten.
- A step takes the fields and gives the fields; it looks at nothing else.
"""

from collections.abc import Mapping
from typing import Any

from foldlog.core.lifting import Chain, Unsafe

Fields = Mapping[str, Any]

UPCASTERS: Mapping[str, Chain[Fields]] = {}
"""Event type -> the steps from each of its older versions."""


def upcast(
    event_type: str,
    version: int,
    fields: Fields,
    upcasters: Mapping[str, Chain[Fields]] = UPCASTERS,
) -> Fields | Unsafe:
    """An event's fields, read in some version, as the newest version has them."""
    chain = upcasters.get(event_type)
    return fields if chain is None else chain.lifted(fields, version)
