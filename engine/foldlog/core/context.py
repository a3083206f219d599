"""What an event's check and apply are given besides the draft, and how a check refuses.

Invariants:
- Everything here comes from the proposal, the state before it, or the log; nothing is read from
  the process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foldlog.core.values import Author

Event = Mapping[str, Any]
"""A normalised event: its ``type`` and the fields of CONTRACT's table, null ones left out."""


@dataclass(frozen=True, slots=True)
class Context:
    """The circumstances of one event of a batch.

    ``log_time`` is in microseconds since the Unix epoch. ``author`` is whose rights count: the
    proposer, or the proposer of a conflict's kept events.
    ``place`` counts the batch's applied events from 0. ``takes_over`` says that the batch carries
    the live lease's epoch, or settles a conflict, and so may take a running task from another
    worker. ``late`` marks reports that a lease rule would have refused: they change the ledger,
    pending calls and budget, never the status.
    """

    log_time: int
    batch_id: str
    author: Author
    rules_version: int
    place: int = 0
    takes_over: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a proposal is refused: a code of CONTRACT section 3 and where in the proposal."""

    code: str
    message: str
    event_index: int | None = None
    field: str | None = None


def recordable(text: str) -> str:
    """A text as a record can hold it: what is no character of UTF-8 is a question mark."""
    return text.encode(errors="replace").decode()


def words_of(error: BaseException) -> str:
    """What an exception says, with its type; its type alone where it cannot say anything."""
    name = type(error).__name__
    try:
        return recordable(f"{name}: {error}")
    except Exception:
        return name


def invalid(message: str, field: str | None = None) -> Refusal:
    """The refusal of step 7's last resort: the state does not allow this event."""
    return Refusal("INVALID_TRANSITION", message, field=field)
