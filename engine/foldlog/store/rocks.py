"""The projection's store on RocksDB, one database per partition.

The files are described in FORMAT.md under "Projection (RocksDB)".

Invariants:
- `write` is one WriteBatch, through RocksDB's own log, without fsync: the event log is the truth.
- Iteration goes through `iter()` and ends with `status()`: `items()` and `keys()` stop at a broken
  block as if there were no more keys.
- Every iterator and snapshot made is known here and dropped by `close`, since RocksDB keeps
  its LOCK until the last of them is gone.
- No exception of the binding leaves this module but as a StoreError.
- Nothing here can tell a database that lost its MANIFEST's tail (it opens empty, without a word)
  from a new one: whoever keeps positions and key counts in it compares them.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import rocksdict

from foldlog.store.base import (
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
    prefix_end,
)

MEMTABLE_BYTES = 16 << 20
"""A flush holds the interpreter's lock for as long as it writes one of these (about 50 ms)."""

CACHE_BYTES = 64 << 20
"""Blocks and memtables of all stores that share a cache: 32 stores with their own took 1 GB."""

BLOOM_BITS = 10
"""One look-up in a hundred for a key that is not there reads a block."""

RUNS_MAX, EXCESS_PERCENT_MAX = 8, 200
"""Tables are merged by size: small ones with small ones once there are so many runs of them, and
all of them only when those beside the largest run are this much of it. So a snapshot copies about
what was written since the last one (decision 34)."""

_REBUILD = "it is put aside when the home is closed, and recovered when it is opened again"


class SharedCache:
    """Memory that several stores share: a block cache, whose size also bounds the memtables."""

    def __init__(self, capacity_bytes: int = CACHE_BYTES) -> None:
        self.blocks = rocksdict.Cache(capacity_bytes)
        self.memtables = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            capacity_bytes // 2, False, self.blocks
        )


class RocksStore:
    """A Store in the folder `path`, made if it is missing (its parent must exist).

    StoreBusy if anybody has it open, StoreDamaged if it cannot be opened. Stores of one process
    should be given one `cache`.
    """

    def __init__(self, path: str | os.PathLike[str], cache: SharedCache | None = None) -> None:
        self._path = os.fspath(path)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._copying = threading.Lock()  # the binding closes nothing that another thread flushes
        self._failed: str | None = None
        self.damaged: str | None = None
        """What was found broken since it was opened."""
        self.bytes_written = 0
        """Keys and values given to ``write`` since it was opened."""
        self.on_closed: Callable[[], object] = lambda: None
        """Called once it is closed, however that ended: whoever opened it lets its place go."""
        self._views: weakref.WeakSet[Cursor | _Snapshot] = weakref.WeakSet()
        self._cache = cache or SharedCache()
        with translated(self._path):
            self._db: rocksdict.Rdict | None = rocksdict.Rdict(
                self._path, _options(self._cache), access_type=rocksdict.AccessType.read_write()
            )
        _open_stores.add(self)

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        db = self._open()
        try:  # a context manager would take longer than the look-up
            value: bytes | None = db.get(key)
        except Exception as error:
            raise self._told(error) from error
        return value

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan."""
        with self._lock, self._translated():
            cursor = Cursor(self._path, self._open().iter(), self._translated)
            self._views.add(cursor)
        return Scan(cursor, prefix, reverse, shared=False)

    def tally(self, each: Callable[[int], None]) -> dict[bytes, int]:
        """How many keys begin with each byte; reads all of them, with their blocks' checksums.

        ``each`` is told of some thousands of them at a time; what it raises ends the reading.
        """
        with self._translated():
            rows = self._open().iter()
        return tally(rows, self._translated, each)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """See Store.write. After a failed write RocksDB may take none until it is opened again:
        the first error says what happened, StoreFailed says so of every later one."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
                self.bytes_written += len(key) + len(value)
        with self._lock:
            db = self._open()
            if self._failed is not None:
                what = f"takes no writes since one failed: {self._failed}"
                raise StoreFailed(self._path, what, "close it and open it again")
            try:
                with self._translated():
                    db.write(batch)
            except StoreError as error:
                self._failed = error.what
                raise

    def snapshot(self) -> _Snapshot:
        """See Store.snapshot; costs nothing to take, and keeps what is overwritten since."""
        # Under the lock, since look-ups and scans must show the same moment.
        with self._lock, self._translated():
            db = self._open()
            cursor = Cursor(self._path, db.iter(), self._translated)
            view = _Snapshot(self, db.snapshot(), cursor)
            self._views.update((cursor, view))
        return view

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of this moment as a store of its own into the new folder `path`.

        Its files are hard links where they can be, so a broken block here is broken there too.
        Flushes first, since the copying holds the interpreter's lock.
        """
        with self._copying, self._translated():
            db = self._open()
            db.flush()
            rocksdict.Checkpoint(db).create_checkpoint(os.fspath(path))

    def close(self) -> None:
        """Let go of everything, LOCK included; what was written is flushed."""
        if self._pid != os.getpid():
            return
        with self._copying, self._lock:
            db, self._db = self._db, None
            if db is None:
                return
            _open_stores.discard(self)
            for view in list(self._views):
                view.close()
            try:
                with translated(self._path):
                    db.close()
            except StoreError:
                # After a failed write the last flush fails too, which is no news by now.
                if self._failed is None:
                    raise
            finally:
                self.on_closed()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> StoreError:
        """An error of the binding as a StoreError; what is damaged is remembered."""
        told = _from_rocks(self._path, error)
        if isinstance(told, StoreDamaged):
            self.damaged = told.what
        return told

    def _open(self) -> rocksdict.Rdict:
        if self._pid != os.getpid():
            raise StoreClosed(
                self._path,
                f"opened by process {self._pid} and used in its fork {os.getpid()}",
                "open the store after the fork, in the process that uses it",
            )
        if self._db is None:
            raise StoreClosed(self._path, "the store is closed", "open it again")
        return self._db


class Secondary:
    """A database of somebody else, opened beside him for reading only.

    `folder` must hold the primary's files and is written to (the binding's own file of options),
    so it is not the primary's own; `scratch` takes RocksDB's messages. Every SST file is kept open,
    for the primary removes them as he goes on.
    """

    def __init__(self, where: str, folder: str, scratch: str, cache: SharedCache) -> None:
        self._where = where
        self.folder = folder
        options = _options(cache)
        options.create_if_missing(False)
        options.set_max_open_files(-1)
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._looker: rocksdict.RdictIter | None = None
        with translated(where):
            self._db: rocksdict.Rdict | None = rocksdict.Rdict(
                folder, options, access_type=rocksdict.AccessType.secondary(scratch)
            )
        _open_secondaries.add(self)

    def catch_up(self) -> None:
        """Read what the primary has written since; no scan may be under way (see `busy`)."""
        self._looker = None
        with translated(self._where):
            self._open().try_catch_up_with_primary()

    def busy(self) -> bool:
        """Whether a scan is under way. RocksDB does not keep a scan to its moment here: it would
        go on with what a catch-up adds."""
        return any(cursor.rows is not None for cursor in self._cursors)

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get; one thread at a time.

        Through an iterator: a look-up of RocksDB's stops at the newest write it has *heard of*,
        which lags behind those in the files, so it can show an earlier moment than a scan.
        """
        db = self._open()
        with translated(self._where):
            rows = self._looker = self._looker or db.iter()
            rows.seek(key)
            if rows.valid() and rows.key() == key:
                value: bytes = rows.value()
                return value
            rows.status()
        return None

    def scan(self, prefix: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan."""
        db = self._open()
        with translated(self._where):
            cursor = Cursor(self._where, db.iter(), self._translated)
            self._cursors.add(cursor)
        return Scan(cursor, prefix, reverse, shared=False)

    def tally(self, each: Callable[[int], None]) -> dict[bytes, int]:
        """See RocksStore.tally."""
        with self._translated():
            rows = self._open().iter()
        return tally(rows, self._translated, each)

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._where)

    def close(self) -> None:
        """Let go of everything, scans included."""
        db, self._db, self._looker = self._db, None, None
        _open_secondaries.discard(self)
        if db is not None:
            for cursor in list(self._cursors):
                cursor.close()
            with translated(self._where):
                db.close()

    def _open(self) -> rocksdict.Rdict:
        if self._db is None:
            raise StoreClosed(self._where, "the follower is closed", "open it again")
        return self._db


class Cursor:
    """An iterator of the binding: what it shows stays as of its making, until it is closed."""

    def __init__(
        self,
        path: str,
        rows: rocksdict.RdictIter,
        translated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.path = path
        self.translated = translated
        self.lock = threading.Lock()
        self.rows: rocksdict.RdictIter | None = rows
        self.user: object = None

    def close(self) -> None:
        # Waits for a step under way in another thread, which holds the iterator.
        with self.lock:
            self.rows = None


class Scan(Iterator[tuple[bytes, bytes]]):
    """One scan under way, on a cursor of its own or on one that several scans take turns on."""

    def __init__(self, cursor: Cursor, prefix: bytes, reverse: bool, shared: bool) -> None:
        self._cursor = cursor
        self._prefix = prefix
        self._reverse = reverse
        self._shared = shared
        self._last: bytes | None = None
        self._done = False
        # Not the scan itself, which would be a cycle and keep the cursor until a collection.
        self._token = object()

    def __next__(self) -> tuple[bytes, bytes]:
        cursor = self._cursor
        if self._done:
            raise StopIteration
        with cursor.lock, cursor.translated():
            if cursor.rows is None:
                raise StoreClosed(cursor.path, "the store or snapshot is closed", "open it again")
            row = self._row(cursor.rows)
            if row is not None:
                return row
            self._done = True
            if not self._shared:
                cursor.rows = None
        raise StopIteration

    def _row(self, rows: rocksdict.RdictIter) -> tuple[bytes, bytes] | None:
        if self._last is None:
            self._seek_first(rows)
        else:
            if self._cursor.user is not self._token:
                rows.seek(self._last)
            self._step(rows)
        self._cursor.user = self._token
        if rows.valid():
            key: bytes = rows.key()
            if key.startswith(self._prefix):
                self._last = key
                return key, rows.value()
        rows.status()
        return None

    def _seek_first(self, rows: rocksdict.RdictIter) -> None:
        # The bounds of ReadOptions would do this, but in the binding setting the lower one sets
        # the upper one, and an iterator reads freed memory once its ReadOptions are gone.
        end = prefix_end(self._prefix)
        if not self._reverse:
            rows.seek(self._prefix)
        elif end is None:
            rows.seek_to_last()
        else:
            rows.seek_for_prev(end)
            if rows.valid() and rows.key() == end:
                rows.prev()

    def _step(self, rows: rocksdict.RdictIter) -> None:
        if self._reverse:
            rows.prev()
        else:
            rows.next()


class _Snapshot:
    """A Snapshot of one RocksStore.

    The binding's own snapshot serves look-ups only: its iterators show the present. So scans
    take turns on one iterator that was made at the same moment.
    """

    def __init__(self, store: RocksStore, view: rocksdict.Snapshot, cursor: Cursor) -> None:
        self._store = store
        self._view: rocksdict.Snapshot | None = view
        self._cursor = cursor

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        view = self._open()
        with self._store._translated():
            try:
                value: bytes = view[key]
            except Exception as error:
                # The binding has no other way to say so. Should its words change, a missing key
                # becomes an error, never the other way round.
                if str(error) == "key not found":
                    return None
                raise
        return value

    def scan(self, prefix: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See Reader.scan."""
        self._open()
        return Scan(self._cursor, prefix, reverse, shared=True)

    def close(self) -> None:
        """See Snapshot.close."""
        self._view = None
        self._cursor.close()

    def _open(self) -> rocksdict.Snapshot:
        self._store._open()
        if self._view is None:
            raise StoreClosed(self._store._path, "the snapshot is closed", "take a new one")
        return self._view


def _options(cache: SharedCache) -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache.blocks)
    table.set_bloom_filter(BLOOM_BITS, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # In parts of a block's size: the filter of a large table, MBs in one piece, fits in no shard of
    # the cache, so that each look-up read and checked all of it (decision 39).
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4 << 10)
    table.set_pin_top_level_index_and_filter(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(cache.memtables)
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    merging = rocksdict.UniversalCompactOptions()
    merging.max_size_amplification_percent = EXCESS_PERCENT_MAX
    options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
    options.set_universal_compaction_options(merging)
    options.set_level_zero_file_num_compaction_trigger(RUNS_MAX)
    options.set_paranoid_checks(True)
    # Opening should not cost a read of every file.
    options.set_skip_stats_update_on_db_open(True)
    # RocksDB's own messages: a few files of a bounded size, not one more with every opening.
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    return options


TALLY_KEYS = 4096


def tally(
    rows: rocksdict.RdictIter,
    translated: Callable[[], AbstractContextManager[None]],
    each: Callable[[int], None],
) -> dict[bytes, int]:
    """How many keys an iterator has for each first byte."""
    found: dict[bytes, int] = {}
    with translated():
        rows.seek_to_first()
    more = True
    while more:
        with translated():
            for _ in range(TALLY_KEYS):
                if not (more := rows.valid()):
                    rows.status()
                    break
                first = rows.key()[:1]
                found[first] = found.get(first, 0) + 1
                rows.next()
        each(TALLY_KEYS)
    return found


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn the binding's errors into StoreErrors about `path`."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise _from_rocks(path, error) from error


def _from_rocks(path: str, error: Exception) -> StoreError:
    # The binding raises plain Exceptions whose text begins with RocksDB's status.
    text = str(error)
    if "lock hold by current process" in text or "While lock file" in text:
        what = f"open already, here or in another process ({text})"
        return StoreBusy(path, what, "let its holder go on or end it; see: foldlog status")
    if "No space left" in text or "Disk quota exceeded" in text:
        return StoreFull(path, f"the disk is full ({text})", "make room, close it, open it again")
    if text.startswith(("Corruption", "Invalid argument")):
        return StoreDamaged(path, f"its bytes are broken ({text})", _REBUILD)
    if isinstance(error, rocksdict.DbClosedError):
        return StoreClosed(path, "the store is closed", "open it again")
    return StoreError(path, f"RocksDB failed ({text})", "if this lasts, run: foldlog doctor")


_open_stores: weakref.WeakSet[RocksStore] = weakref.WeakSet()
_open_secondaries: weakref.WeakSet[Secondary] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # RocksDB's threads do not exist in the child, so freeing anything of it there would wait for
    # them for ever, and flush into the parent's files. One reference too many prevents both.
    held: list[object] = []
    for store in list(_open_stores):
        held.append(store._db)
        for view in store._views:
            held.append(view.rows if isinstance(view, Cursor) else view._view)
    for secondary in list(_open_secondaries):
        held += [secondary._db, secondary._looker]
        held += [cursor.rows for cursor in secondary._cursors]
    for handle in held:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    _open_stores.clear()
    _open_secondaries.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
