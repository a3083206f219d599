"""The store in memory: for tests, for simulation, and for users' own tests.

Invariants:
- A `_Moment` that a scan or snapshot looks at is never changed: the next write copies it first.
- The sorted key list is either exactly the sorted keys of the dict, or None.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping

from foldlog.store.base import StoreClosed, prefix_end

_RESORT_AT = 64
"""Batches with more new keys than this are sorted in with the next scan, not one by one."""


class _Moment:
    """Keys and values, and the keys in order once somebody asked for them."""

    def __init__(self, values: dict[bytes, bytes], keys: list[bytes] | None) -> None:
        self.values = values
        self.keys = keys

    def copy(self) -> _Moment:
        return _Moment(dict(self.values), None if self.keys is None else list(self.keys))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        new = [k for k, v in changes.items() if v is not None and k not in self.values]
        gone = [k for k, v in changes.items() if v is None and k in self.values]
        for key in gone:
            del self.values[key]
        self.values.update((k, v) for k, v in changes.items() if v is not None)
        if self.keys is None:
            return
        if len(new) + len(gone) > _RESORT_AT:
            self.keys = None
            return
        for key in gone:
            del self.keys[bisect_left(self.keys, key)]
        for key in new:
            insort(self.keys, key)

    def range(self, prefix: bytes) -> tuple[list[bytes], int, int]:
        if self.keys is None:
            self.keys = sorted(self.values)
        end = prefix_end(prefix)
        stop = len(self.keys) if end is None else bisect_left(self.keys, end)
        return self.keys, bisect_left(self.keys, prefix), stop


class _Scan(Iterator[tuple[bytes, bytes]]):
    """One scan under way; it holds its moment until it is exhausted or dropped."""

    def __init__(
        self, moment: _Moment, prefix: bytes, reverse: bool, check_open: Callable[[], None]
    ) -> None:
        self._keys, start, stop = moment.range(prefix)
        self._moment = moment
        self._check_open = check_open
        self._order = iter(range(stop - 1, start - 1, -1) if reverse else range(start, stop))

    def __next__(self) -> tuple[bytes, bytes]:
        self._check_open()
        key = self._keys[next(self._order)]
        return key, self._moment.values[key]


class _Snapshot:
    def __init__(self, store: MemoryStore, moment: _Moment) -> None:
        self._store = store
        self._moment: _Moment | None = moment

    def get(self, key: bytes) -> bytes | None:
        return self._open().values.get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._store._scan(self._open(), prefix, reverse)

    def close(self) -> None:
        self._moment = None

    def _open(self) -> _Moment:
        self._store._check_open()
        if self._moment is None:
            raise StoreClosed("memory", "the snapshot is closed", "take a new one")
        return self._moment


class MemoryStore:
    """A Store that lives as long as the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moment = _Moment({}, None)
        self._readers: weakref.WeakSet[_Scan | _Snapshot] = weakref.WeakSet()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        self._check_open()
        return self._moment.values.get(key)

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan."""
        self._check_open()
        return self._scan(None, prefix, reverse)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """See Store.write."""
        with self._lock:
            self._check_open()
            if len(self._readers):
                self._moment = self._moment.copy()
                self._readers = weakref.WeakSet()
            self._moment.write(changes)

    def snapshot(self) -> _Snapshot:
        """See Store.snapshot; it costs a copy of the keys at the next write, nothing before."""
        with self._lock:
            self._check_open()
            view = _Snapshot(self, self._moment)
            self._readers.add(view)
            return view

    def close(self) -> None:
        """Forget everything."""
        self._closed = True
        self._moment = _Moment({}, None)

    def _scan(self, moment: _Moment | None, prefix: bytes, reverse: bool) -> _Scan:
        with self._lock:
            scan = _Scan(moment or self._moment, prefix, reverse, self._check_open)
            self._readers.add(scan)
            return scan

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("memory", "the store is closed", "open a new one")
