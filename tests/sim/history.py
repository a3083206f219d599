"""The reference: every row of a log folded and decided again as soon as it can be read.

Invariants:
- It is fed by the log's disk, not by any decider, and folds into a store of its own.
- A record is decided again under the rule table of the build that its decider ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from foldlog.core.catalogue import Catalogue
from foldlog.core.proposals import Proposal
from foldlog.core.state import RunState
from foldlog.errors import Damaged
from foldlog.fold import Fold, seen_in
from foldlog.log.base import Proposed, Stored
from foldlog.store.memory import MemoryStore
from foldlog.views import View, first_outcome
from foldlog.wire.chain import ZERO, partition_hash
from foldlog.wire.envelope import decode_decided
from foldlog.wire.keys import META
from foldlog.wire.records import Record, decode_record
from foldlog.wire.slots import Meta
from foldlog.working import Working, open_run
from tests.sim import invariants
from tests.sim.invariants import Violated
from tests.sim.logs import LogDisk, Reader
from tests.sim.storage import SummedStore

Tables = Callable[[str], Mapping[int, Catalogue]]


class History:
    """One partition as everyone must see it. ``rules_of`` gives the table of a decider."""

    def __init__(
        self, disk: LogDisk, partition: int, rules_of: Tables, counts: Counter[str]
    ) -> None:
        self.log = Reader(disk)
        self.partition, self.rules_of, self.counts = partition, rules_of, counts
        self.store = SummedStore()
        self.meta = Meta(disk.identity, partition)
        self.seen = seen_in(self.log, partition, lambda: self.meta.offset)
        self.inbox: list[Proposed] = []
        self.rows: list[Stored] = []
        self.counted: list[tuple[Stored, Record]] = []
        self.sums: dict[int, int] = {1: 0}
        self.revisions: dict[str, int] = {}
        self.chains: dict[tuple[str, int], str] = {}
        self._first: dict[tuple[str, str], tuple[Record, Any]] = {}
        self._head = ZERO

    def take(self, proposals: list[Proposed], rows: list[Stored]) -> None:
        """Rows that can be read from now on."""
        self.inbox.extend(proposals)
        for stored in rows:
            self.rows.append(stored)
            self._take(stored)

    def _take(self, stored: Stored) -> None:
        record = decode_record(stored.value)
        working = Working(self.store, self.meta)
        fold = Fold(working, self.partition, self.seen, self.rules_of(record.decider), True)
        try:
            counts = fold.fold(stored) is not None
        except Damaged as error:
            name = "decided_again" if error.what.startswith("decision") else "the_log_folds"
            raise Violated(name, str(error)) from error
        invariants.check_counted(stored, record.previous, self._head, counts)
        if counts:
            self._head = partition_hash(record.previous, record.chain, stored.value)
            self._check(record)
            invariants.check_keys(record.run_id, working.written())
            self.counted.append((stored, record))
        self._count(record, counts)
        self.store.write(working.written())
        self.meta = working.meta
        self.sums[self.meta.offset] = self.store.sum

    def _check(self, record: Record) -> None:
        before = self.counted[-1][1] if self.counted else None
        number = len(self.counted)
        proposed = self.inbox[number] if number < len(self.inbox) else None
        invariants.check_order(record, before, proposed)
        if record.run_id:
            invariants.check_revision(record, self.revisions.get(record.run_id, 0))
        self.revisions[record.run_id] = record.revision_after
        if record.revision_after > record.revision_before:
            self.chains[record.run_id, record.revision_after] = record.chain.hex()
        if record.batch_id is not None:
            proposal = None if record.proposal is None else decode_decided(record.proposal)
            key = (record.run_id, record.batch_id)
            invariants.check_identity(record, self._first.get(key), proposal)
            self._first.setdefault(key, (record, proposal and proposal.content()))

    def _count(self, record: Record, counts: bool) -> None:
        if not counts:
            self.counts["void"] += 1
            return
        self.counts[record.outcome] += 1
        if record.code is not None and record.outcome == "rejected":
            self.counts[record.code] += 1
        self.counts["rebased"] += record.rebased

    # Questions

    def record_of(self, run_id: str, batch_id: str) -> Record | None:
        """The first record of a batch id."""
        found = self._first.get((run_id, batch_id))
        return None if found is None else found[0]

    def outcome_of(self, record: Record) -> dict[str, Any]:
        """What a client is told of a record."""
        return first_outcome(View(self.log, self.store, self.partition), record)

    def state(self, run_id: str) -> RunState:
        """A run as the log has it now."""
        return open_run(self.store, run_id).state()

    def proposals(self) -> list[Proposal]:
        """The proposals that counted and can be read, in their order."""
        return [decode_decided(r.proposal) for _, r in self.counted if r.proposal is not None]

    # At the end

    def check_again(self) -> None:
        """Fold and decide each run by itself, as if no other had been."""
        runs: dict[str, Working] = {}
        for stored, record in self.counted:
            if not record.run_id:
                continue
            working = runs.setdefault(record.run_id, Working(MemoryStore(), Meta("", 0)))
            rules = self.rules_of(record.decider)
            try:
                Fold(working, self.partition, self.seen, rules, True).apply(record, stored.offset)
            except Damaged as error:
                name = "decided_again" if error.what.startswith("decision") else "runs_are_apart"
                raise Violated(name, f"alone: {error}") from error
        for run_id, working in runs.items():
            for key, value in working.written().items():
                if key == META:  # how far the fold is: of a run alone, no further than its own
                    continue
                if self.store.get(key) != value:
                    raise Violated("runs_are_apart", f"{run_id} alone differs at {key!r}")
