"""The last checks: every store, wherever it stands, and a proof of every partition.

Invariants:
- The faults have stopped; nothing here is a step of any process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foldlog.audit import Proof, digest_of, run_digest
from foldlog.errors import Damaged
from foldlog.fold import Fold
from foldlog.log.base import Stored
from foldlog.store.memory import MemoryStore
from foldlog.turn import Partition
from foldlog.views import View
from foldlog.wire.records import decode_record
from foldlog.working import Working, open_run
from tests.sim import invariants
from tests.sim.history import History, Tables
from tests.sim.invariants import Violated
from tests.sim.older import without_origin

if TYPE_CHECKING:
    from tests.sim.world import World


class SimProof(Proof):
    """``verify --redecide``, each record under the rules of the build that decided it."""

    rules_of: Tables

    def _fold(self, rows: list[Stored]) -> None:
        working = Working(self.store, self.meta)
        for stored in rows:
            rules = self.rules_of(decode_record(stored.value).decider)
            fold = Fold(working, self.view.partition, self.seen, rules, self.redecide)
            if fold.fold(stored) is not None:
                self.records += 1
        self.store.write(working.written())
        self.meta = working.meta


def check_stores(world: World) -> None:
    """Every store, folded to its end, and a new one are the same bytes; the proof holds."""
    for history in world.histories:
        expected = dict(history.store.scan(b""))
        stores: list[MemoryStore] = [MemoryStore()]
        for machine in world.machines:
            stores.append(_copy(machine.disks[history.partition].rows))
        for store in stores:
            _catch_up(world, history, store)
            found = {key: without_origin(key, value) for key, value in store.scan(b"")}
            what = f"partition {history.partition}"
            invariants.check_same("followers_agree", what, expected, found)
        digests = {_digest(history, store) for store in (history.store, stores[-1])}
        if len(digests) != 1:
            raise Violated("followers_agree", f"partition {history.partition}: {digests}")
        _prove(world, history, stores[-1])


def _copy(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    copy.write(dict(store.scan(b"")))
    return copy


def _catch_up(world: World, history: History, store: MemoryStore) -> None:
    try:
        Partition(history.log, store, history.partition, rules=world.lives[0].rules).recover()
    except Damaged as error:
        raise Violated("followers_agree", f"a follower halts: {error}") from error


def _digest(history: History, store: MemoryStore) -> str:
    view = View(history.log, store, history.partition)
    states = {run_id: open_run(store, run_id).state() for run_id in view.run_ids()}
    return digest_of({run_id: run_digest(state) for run_id, state in states.items()})


def _prove(world: World, history: History, store: MemoryStore) -> None:
    # `check_again` has decided everything again, run by run; the whole proof is for some seeds.
    redecide = world.config.seed % 4 == 0 and not world.workload.full
    proof = SimProof(View(history.log, store, history.partition), redecide=redecide)
    proof.rules_of = history.rules_of
    try:
        proof.fold()
        proof.compare()
    except Damaged as error:
        name = "decided_again" if error.what.startswith("decision") else "the_log_folds"
        raise Violated(name, f"the proof fails: {error}") from error
