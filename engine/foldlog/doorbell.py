"""The doorbell of a home: how whoever hands in a proposal wakes the holder.

A ring that is lost costs time and nothing else: the holder looks by itself, too.
"""

import contextlib
import select
import socket
import time
from pathlib import Path

from foldlog.runtime import SECOND

DEAF_US = 10_000
"""How long a holder without a doorbell rests at most."""


class Doorbell:
    """Wakes the holder when a proposal was handed in.

    A datagram to a socket that has a name and no file, so that a home may be copied like any
    folder. Where there is no such socket (not Linux, another network namespace, a name that is
    taken) the holder looks more often instead.
    """

    def __init__(self, home: Path) -> None:
        place = home.stat()
        self._name = f"\0foldlog/{place.st_dev}/{place.st_ino}"
        self._socket: socket.socket | None = None

    def listen(self) -> None:
        """Begin to hear; ``wait`` returns at once when somebody rings."""
        if self._socket is not None:
            return
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bell.bind(self._name)
        except OSError:
            bell.close()
            return
        bell.setblocking(False)
        self._socket = bell

    def wait(self, microseconds: int) -> None:
        """Wait for a ring, or that long; who hears nothing looks more often."""
        bell = self._socket
        if bell is None:
            time.sleep(min(microseconds, DEAF_US) / SECOND)
            return
        # Another thread may close it meanwhile: then there is nothing to hear any more.
        with contextlib.suppress(OSError, ValueError):
            ready, _, _ = select.select([bell], [], [], microseconds / SECOND)
            while ready:
                bell.recv(1)

    def ring(self) -> None:
        """Wake whoever listens; nothing if nobody does, or too many rings wait already."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            with contextlib.suppress(OSError):
                bell.sendto(b"!", self._name)

    def close(self) -> None:
        """Stop hearing."""
        bell, self._socket = self._socket, None
        if bell is not None:
            bell.close()
