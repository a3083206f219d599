"""How the rows of a log stand in Kafka's messages; described in FORMAT.md under "Log (Kafka)".

Invariants:
- A position is Kafka's offset plus one, so that the first row stands at 1 in every log.
- What a log adds to a record stands in one header; a message without it is no record of ours, and
  whoever decodes it says so.
"""

from __future__ import annotations

import struct
from typing import Any

from confluent_kafka import Message

from foldlog.log.base import Entry, Proposed, Stored

HEADER = "foldlog"
_COLUMNS = struct.Struct(">qq32s")
"""sequence, log time in microseconds, head."""


def offset_of(position: int) -> int:
    """The offset of a position; reading from before the first begins at the first."""
    return max(position, 1) - 1


def headers_of(entry: Entry) -> list[tuple[str, str | bytes]]:
    """The headers of a record's message."""
    return [(HEADER, _COLUMNS.pack(entry.sequence, entry.log_time, entry.head))]


def position_of(message: Message) -> int:
    """Where a message stands."""
    offset = message.offset()
    assert offset is not None
    return offset + 1


def proposed(message: Message) -> Proposed:
    """A message of the inbox."""
    _, milliseconds = message.timestamp()
    key, value = message.key(), message.value()
    return Proposed(position_of(message), _bytes(key), _bytes(value), milliseconds * 1_000)


def stored(message: Message) -> Stored:
    """A message of the truth."""
    sequence, log_time, head = 0, 0, b""
    for name, data in _headers(message):
        if name == HEADER and len(_bytes(data)) == _COLUMNS.size:
            sequence, log_time, head = _COLUMNS.unpack(_bytes(data))
    key, value = _bytes(message.key()), _bytes(message.value())
    return Stored(position_of(message), key, value, sequence, log_time, head)


def _headers(message: Message) -> list[tuple[str, Any]]:
    """The headers of a message; none where the client cannot give them.

    A name that is no UTF-8 (others may write what they like) is a SystemError inside the client.
    Whoever asks that message once more gets a broken list, and the process ends.
    """
    try:
        return message.headers() or []
    except Exception:
        return []


def _bytes(data: Any) -> bytes:
    """Nothing is as good as no bytes."""
    return data if isinstance(data, bytes) else b"" if data is None else str(data).encode()
