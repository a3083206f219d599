"""A reader that asks a store for each key once: the fold of a turn looks up what deciding just did.

Invariants:
- It shows one moment of the store: it is dropped once something was written.
"""

from collections.abc import Iterator

from foldlog.store.base import Reader


class Once:
    """A Reader on top of another; of one thread. It keeps what it was asked."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._found: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        try:
            return self._found[key]
        except KeyError:
            value = self._found[key] = self._reader.get(key)
            return value

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan."""
        return self._reader.scan(prefix, reverse)
