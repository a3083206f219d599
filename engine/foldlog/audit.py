"""Proof: the log folded again from its start, compared with the projection and with itself.

Invariants:
- Everything is folded into a store of its own in memory; the projection is only read.
- The comparison is byte for byte and both ways: a key too many is a difference too.
- The first difference in the order of the log is the one that is named.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import rfc8785

from foldlog.core.document import digest_form, document
from foldlog.core.state import RunState
from foldlog.errors import Damaged, SnapshotDamaged, SnapshotMissing
from foldlog.fold import READ_BYTES_MAX, TURN_RECORDS_MAX, Fold, after, seen_in
from foldlog.log.base import Stored
from foldlog.snapshots.kept import Kept
from foldlog.store.base import Reader, Store
from foldlog.store.memory import MemoryStore
from foldlog.turn import check_projection
from foldlog.views import View, fold_run
from foldlog.wire import keys
from foldlog.wire.chain import partition_hash
from foldlog.wire.envelope import batch_id_text
from foldlog.wire.records import Record
from foldlog.wire.slots import Meta, decode_head, encode_head
from foldlog.working import Working, folded_to, open_run, why_stuck

Progress = Callable[[int], None]
"""Told how many more records were read."""


def no_progress(records: int) -> None:
    """For those who do not watch."""


def run_digest(state: RunState) -> bytes:
    """BLAKE2b-256 over a run's document in RFC 8785 form, less what depends on the build."""
    return document_digest(document(state))


def document_digest(shown: dict[str, Any]) -> bytes:
    """The digest of a document as ``show --json`` prints it."""
    return hashlib.blake2b(rfc8785.dumps(digest_form(shown)), digest_size=32).digest()


def digest_of(digests: dict[str, bytes]) -> str:
    """The digest of everything: over the run digests in the order of run ids."""
    whole = hashlib.blake2b(digest_size=32)
    for run_id in sorted(digests):
        whole.update(digests[run_id])
    return whole.hexdigest()


class Replaying:
    """Runs folded again, each up to a revision or an instant (nanoseconds), and their digests.

    ``snapshots`` names those it began at; ``records`` counts what was folded.
    """

    def __init__(self, revision: int | None, instant: int | None, progress: Progress) -> None:
        self._revision, self._instant, self._progress = revision, instant, progress
        self._digests: dict[str, bytes] = {}
        self.records = 0
        self.snapshots: list[str] = []

    @contextlib.contextmanager
    def based(self, kept: Kept, number: int) -> Iterator[Reader | None]:
        """A partition's newest snapshot, open to begin at; None if there is none.

        To be entered before the view of the projection, which is then not behind it.
        """
        with contextlib.ExitStack() as stack:
            names = kept.names(number)[:1]
            stores = [stack.enter_context(kept.opened(number, name)) for name in names]
            self.snapshots += names
            yield stores[0] if stores else None

    def fold(self, view: View, base: Reader | None, run_ids: Iterable[str]) -> None:
        """Fold runs of one partition, from the state that a base has of them if there is one."""
        for run_id in run_ids:
            working, count = fold_run(
                view,
                run_id,
                revision=self._revision,
                instant=self._instant,
                base=base,
                progress=self._progress,
            )
            state = working.run(run_id).state()
            self.records += count
            if state.exists:
                self._digests[run_id] = run_digest(state)

    def result(self, run_id: str | None) -> dict[str, Any] | None:
        """The digest of one run or of everything; None if that run did not exist."""
        if run_id is not None and run_id not in self._digests:
            return None
        whole = digest_of(self._digests) if run_id is None else self._digests[run_id].hex()
        counts = {"records": self.records, "runs": len(self._digests)}
        return {"digest": whole, **counts, "snapshots": self.snapshots}


class Proof:
    """One partition folded from the start of its log into memory, a turn's worth at a time.

    ``heads`` are those that were once said to stand after a sequence. With ``store`` it begins
    where that store ends, and is folded into it.
    """

    def __init__(
        self,
        view: View,
        *,
        redecide: bool = False,
        heads: Mapping[int, Sequence[bytes]] = MappingProxyType({}),
        store: Store | None = None,
    ) -> None:
        self.view = view
        self.redecide = redecide
        self.heads = heads
        self.store = store or MemoryStore()
        self.meta = folded_to(self.store, view.log.identity, view.partition)
        self.records = 0
        self.seen = seen_in(view.log, view.partition, lambda: self.meta.offset)
        self.seen.heads.append(self.meta.head)

    def fold(self, progress: Progress = no_progress) -> None:
        """Fold up to the projection's position; Damaged at the first record that does not fit.

        The log may have grown meanwhile: what came later is not read. A log that ends before the
        projection does is damage too.
        """
        target = self.view.meta()
        self._check_head(self.meta)
        while self.meta.offset < target.offset:
            rows = self._read(target)
            if not rows:
                what = "the projection is ahead of its log"
                expected = f"records up to sequence {target.sequence}"
                raise Damaged(
                    self.view.partition, None, self.meta.sequence + 1, what, expected, "none"
                )
            self._fold(rows)
            progress(len(rows))
        said = max(self.heads, default=0)
        if said > self.meta.sequence:
            what = "the log is cut: heads once said more"
            expected = f"records up to sequence {said}"
            raise Damaged(self.view.partition, None, self.meta.sequence + 1, what, expected, "none")

    def _check_head(self, meta: Meta) -> None:
        for head in self.heads.get(meta.sequence, ()):
            if head != meta.head:
                what, found = "the log is not the one of which heads once spoke", meta.head.hex()
                raise Damaged(self.view.partition, None, meta.sequence, what, head.hex(), found)

    def _read(self, target: Meta) -> list[Stored]:
        rows = self.view.log.events(
            self.view.partition, self.meta.offset, TURN_RECORDS_MAX, READ_BYTES_MAX
        )
        return [stored for stored in rows if stored.offset < target.offset]

    def _fold(self, rows: list[Stored]) -> None:
        working = Working(self.store, self.meta)
        view = self.view
        fold = Fold(working, view.partition, self.seen, view.rules, redecide=self.redecide)
        for stored in rows:
            if fold.fold(stored) is not None:
                self.records += 1
                self._check_head(working.meta)
        self.store.write(working.written())
        self.meta = working.meta

    def follow(self) -> int:
        """Fold the next records, however far the projection is; how many rows of the log it was."""
        rows = self.view.log.events(
            self.view.partition, self.meta.offset, TURN_RECORDS_MAX, READ_BYTES_MAX
        )
        self._fold(rows)
        return len(rows)

    def compare(self) -> None:
        """Compare every key of the projection with the fold; Damaged at the first difference."""
        mine, theirs = self.store.scan(b""), self.view.reader.scan(b"")
        for (key, expected), (_, found) in _pairs(mine, theirs):
            if expected != found and not _same_head(key, expected, found):
                self._differs(key, expected, found)

    def _differs(self, key: bytes, expected: bytes | None, found: bytes | None) -> None:
        run_id, what = describe(key)
        run = open_run(self.store, run_id) if run_id is not None else None
        sequence = run.head.sequence if run is not None else self.meta.sequence
        if run_id is not None and why_stuck(self.view.reader, run_id) is not None:
            what += " (the run needs a migration: foldlog doctor)"
        raise Damaged(self.view.partition, run_id, sequence, what, _text(expected), _text(found))


def _pairs(
    mine: Iterator[tuple[bytes, bytes]], theirs: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[tuple[bytes, bytes | None], tuple[bytes, bytes | None]]]:
    """Two sorted scans side by side; a key that one of them lacks stands against nothing."""
    a, b = next(mine, None), next(theirs, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a, (a[0], None)
            a = next(mine, None)
        elif a is None or b[0] < a[0]:
            yield (b[0], None), b
            b = next(theirs, None)
        else:
            yield a, b
            a, b = next(mine, None), next(theirs, None)


def _same_head(key: bytes, expected: bytes | None, found: bytes | None) -> bool:
    """Whether two heads of a run differ in nothing but where the run was migrated from, which a
    fold does not know."""
    if not key.startswith(keys.head_keys("")) or expected is None or found is None:
        return False
    try:
        theirs = decode_head(found)._replace(migrated_from=())
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return encode_head(theirs) == expected


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def describe(key: bytes) -> tuple[str | None, str]:
    """The run a key of the projection belongs to, and what stands there."""
    family, _, rest = key.partition(b"\0")
    name = _KINDS.get(family, "key")
    if family == b"t":
        deadline_bytes = keys.DEADLINE_BYTES
        return rest[deadline_bytes:].decode(errors="replace"), f"projection: {name}"
    if family not in (b"h", b"a", b"e", b"b", b"r"):
        return None, f"projection: {name}"
    run_id, _, place = rest.partition(b"\0")
    if family == b"e":
        kind, _, id = place.partition(b"\0")
        name = f"{kind.decode(errors='replace')}/{id.decode(errors='replace')}".rstrip("/")
    elif family == b"b":
        name = f"{name} {batch_id_text(place)}"
    elif family == b"r":
        name = f"{name} {int.from_bytes(place, 'big')}"
    return run_id.decode(errors="replace"), f"projection: {name}"


_KINDS = {
    b"m": "position of the fold",
    b"h": "head of the run",
    b"a": "head of the archived run",
    b"b": "batch id",
    b"r": "place of record",
    b"t": "timer",
    b"u": "runs under rules of plug-ins",
}


def verify_partition(
    view: View,
    *,
    redecide: bool,
    progress: Progress,
    heads: Mapping[int, Sequence[bytes]] = MappingProxyType({}),
) -> Proof:
    """Fold a partition again and compare; Damaged at the first difference."""
    proof = Proof(view, redecide=redecide, heads=heads)
    proof.fold(progress)
    proof.compare()
    return proof


def verify_snapshots(view: View, kept: Kept, names: Sequence[str], progress: Progress) -> int:
    """Prove these snapshots of a partition; returns how many of them are there still."""
    return sum(_verify_snapshot(view, kept, name, progress) for name in names)


def _verify_snapshot(view: View, kept: Kept, name: str, progress: Progress) -> bool:
    """Restore a snapshot, fold the log's tail onto it and compare; Damaged at the first
    difference from the projection. False if it was pruned since its name was read."""
    try:
        with kept.opened(view.partition, name) as store:
            proof = Proof(view, store=store)
            check_projection(view.log, view.partition, proof.meta)
            proof.fold(progress)
            proof.compare()
    except SnapshotMissing:
        return False
    except SnapshotDamaged as error:
        sequence, what = int(name.partition("-")[0]), "a snapshot is not what its manifest says"
        raise Damaged(view.partition, None, sequence, what, "whole", error.message) from error
    except Damaged as error:
        what, where = f"snapshot {name}: {error.what}", (view.partition, error.run_id)
        raise Damaged(*where, error.sequence, what, error.expected, error.found) from error
    return True


def verify_run(view: View, run_id: str, *, redecide: bool, progress: Progress) -> int:
    """Fold one run's records again and compare its projection; returns the number of records.

    The records are looked for in the whole partition, since the projection may have lost them.
    """
    fold, count = view.fold_of_a_run(redecide), 0
    for stored, record in _counted(view):
        if record.run_id == run_id:
            fold.apply(record, stored.offset)
            count += 1
            progress(1)
    _compare_run(view, run_id, fold.working)
    return count


def _counted(view: View) -> Iterator[tuple[Stored, Record]]:
    """The records that count, as far as the projection is folded: each extends the one before."""
    fold = view.fold_of_a_run()
    start, end = 1, view.meta().offset
    while rows := view.log.events(view.partition, start, TURN_RECORDS_MAX, READ_BYTES_MAX):
        for stored in rows:
            if stored.offset >= end:
                return
            record = fold.read(stored)
            head = fold.working.meta.head
            if record.previous == head:
                head = partition_hash(head, record.chain, stored.value)
                fold.check_columns(stored, record, head)
                fold.working.meta = after(fold.working.meta, record, stored.offset, head)
                yield stored, record
            elif view.log.conditional:
                run_id, what = record.run_id, "hole: a record must extend the head"
                raise Damaged(
                    view.partition, run_id, stored.sequence, what, head.hex(), record.previous.hex()
                )
        start = rows[-1].offset + 1


def _compare_run(view: View, run_id: str, working: Working) -> None:
    """Compare everything the projection keeps of a run with what was folded."""
    scratch = MemoryStore()
    scratch.write(working.written())
    sequence = working.run(run_id).head.sequence
    for key, expected, found in _run_pairs(run_id, scratch, view.reader):
        if expected != found and not _same_head(key, expected, found):
            what = describe(key)[1]
            raise Damaged(view.partition, run_id, sequence, what, _text(expected), _text(found))


def _run_pairs(
    run_id: str, mine: Reader, theirs: Reader
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Every key of a run with what stands under it in two stores."""
    for head in keys.head_keys(run_id):
        yield head, mine.get(head), theirs.get(head)
    for prefix in keys.prefixes_of(run_id):
        for (key, a), (_, b) in _pairs(mine.scan(prefix), theirs.scan(prefix)):
            yield key, a, b
