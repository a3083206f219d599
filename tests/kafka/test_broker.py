"""The broker that the tests start by themselves."""

from __future__ import annotations

import socket


def test_a_broker_answers(bootstrap: str) -> None:
    """Every address of the broker takes a connection."""
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            assert connection.getpeername()[1] == int(port)
