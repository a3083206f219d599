"""What Kafka's clients are made with, and what is made of what they say; no broker is asked."""

from __future__ import annotations

from typing import Any

import pytest

from foldlog.log.base import LogError
from foldlog.log.kafka import handles
from foldlog.log.kafka.address import Address
from foldlog.log.kafka.handles import Handles
from foldlog.log.kafka.writing import Delivery, Sender


class Message:
    """A message as a client gives it."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        """Where it stands; None where the client does not know (its -1001)."""
        return self._offset


def test_each_producer_has_one_request_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request of a turn could be taken after the first one was refused."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(handles, "Producer", made.append)
    clients = Handles(Address("localhost:9092", "t"), {})
    clients.appender()
    clients.proposer()
    assert [each["max.in.flight.requests.per.connection"] for each in made] == [1, 1]
    assert made[0]["enable.idempotence"]


def test_a_delivery_without_a_place_is_unknown() -> None:
    """What is called delivered without an offset may not be in the log: it is read back."""
    handle: Any = None
    delivery = Delivery("t.events/0", 2, handle, lambda: None)
    for offset in (None, 7):
        message: Any = Message(offset)
        delivery.report(None, message)
    with pytest.raises(LogError, match="read back"):
        Sender(lambda: handle, "t.events").wait(delivery, 0)
