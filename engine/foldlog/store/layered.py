"""A store in memory on top of a reader: what was written here covers what is below.

For who reads beside the process that has a store open: what that one has not folded yet is folded
in memory, on top of what it has.

Invariants:
- The reader below is never written to. It may move on: what both have folded is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from foldlog.store.base import Reader


class LayeredStore:
    """A Store whose writes live as long as the object; of one thread at a time."""

    def __init__(self, below: Reader, changes: Mapping[bytes, bytes | None] | None = None) -> None:
        self._below = below
        self._changes: dict[bytes, bytes | None] = dict(changes or {})

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        return self._changes[key] if key in self._changes else self._below.get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan."""
        covering = {k: v for k, v in self._changes.items() if k.startswith(prefix)}
        below = self._below.scan(prefix, reverse)
        return _merged(below, sorted(covering.items(), reverse=reverse), reverse)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """See Store.write."""
        self._changes.update(changes)

    def snapshot(self) -> LayeredStore:
        """See Store.snapshot; the reader below must not move on while it is used."""
        return LayeredStore(self._below, self._changes)

    def close(self) -> None:
        """Forget what was written; whoever gave the reader closes it."""
        self._changes = {}


def _merged(
    below: Iterator[tuple[bytes, bytes]],
    covering: list[tuple[bytes, bytes | None]],
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """Both in one order; where a key is in both, what covers counts (None: it is gone)."""
    above = iter(covering)
    low, high = next(below, None), next(above, None)
    while low is not None or high is not None:
        if high is None or (
            low is not None and low[0] != high[0] and (low[0] < high[0]) != reverse
        ):
            assert low is not None
            yield low
            low = next(below, None)
            continue
        if low is not None and low[0] == high[0]:
            low = next(below, None)
        if high[1] is not None:
            yield high[0], high[1]
        high = next(above, None)
