"""What a store is: ordered bytes to bytes, written in atomic batches, read as of one moment.

The projection lives in a store. It is derived, so a store need not survive a power cut whole: it
must come back as some earlier moment of itself, and the fold of the log's tail does the rest.

Invariants:
- Nothing in this ring knows what a key means.
- A batch is seen whole or not at all, by readers now and after a crash.
- A scan or snapshot never mixes two moments, and a read that fails raises: no error looks like
  "no such key" or "no more keys".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol


class StoreError(Exception):
    """Something about the store went wrong; `where`, `what` and `remedy` say it in parts.

    StoreError
     +-- StoreMissing    there is no store to follow (yet)
     +-- StoreBusy       another process or object has it open
     +-- StoreDamaged    its bytes are broken: to be rebuilt from a snapshot or the log
     +-- StoreFull       no room left; needs room and opening again
     +-- StoreFailed     an earlier write failed; takes no more until it is opened again
     +-- StoreClosed     used after close, or in a process forked after it was opened
    """

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(f"{where}: {what}; {remedy}")
        self.where = where
        self.what = what
        self.remedy = remedy


class StoreMissing(StoreError):
    """There is no store at this place, or it is only just being made."""


class StoreBusy(StoreError):
    """Another process, or another object in this one, has the store open."""


class StoreDamaged(StoreError):
    """Some bytes of the store are broken, or it is no store of ours."""


class StoreFull(StoreError):
    """There is no room left; the batch was not written."""


class StoreFailed(StoreError):
    """A write failed earlier, and the store takes no more until it is closed and opened again."""


class StoreClosed(StoreError):
    """The store was used after close, or in a child process forked after it was opened."""


class Reader(Protocol):
    """What can be read, of a store or of a snapshot of one."""

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, or None if there is none."""

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with `prefix`, and their values, in byte order or against it.

        Shows the moment of the call, whatever is written while it runs. StoreError where the
        iteration could not go on. Cheap to abandon.
        """


class Snapshot(Reader, Protocol):
    """A view as of one moment. Closing the store closes its snapshots."""

    def close(self) -> None:
        """Let go of the moment, so that what was overwritten since can be freed."""


class Store(Reader, Protocol):
    """A store open for reading and writing by one process. Any thread may call any method."""

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Put every key to its value, or delete it where the value is None: all or none.

        Survives the process; a power cut may take the last batches back, newest first.
        """

    def snapshot(self) -> Snapshot:
        """A view that later writes do not change."""

    def close(self) -> None:
        """Let go of everything, scans and snapshots included, so that another may open it.

        May be called twice; any other call then is StoreClosed.
        """


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after every key that begins with `prefix`; None if there is no such key."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
