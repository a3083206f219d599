"""The clients in a process: they propose, learn outcomes, read, and try again what stayed unknown.

Invariants:
- A client calls the library only, and holds it to what it promises: errors of its own, answers
  that stand in the log, reads that are at least as new as what was told.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foldlog.client import Engine
from foldlog.core.proposals import parse_proposal
from foldlog.errors import FoldlogError, Unavailable
from foldlog.holder import OUTAGES
from foldlog.results import RunState
from foldlog.wire.envelope import encode_proposal
from foldlog.wire.partitioner import partition_of
from tests.sim import invariants
from tests.sim.invariants import Violated, demand
from tests.sim.place import SimProcess
from tests.sim.scheduler import Killed, SimRuntime
from tests.sim.workload import Value, Workload

if TYPE_CHECKING:
    from tests.sim.world import World


class Clients:
    """All clients of a simulation, and what they were told."""

    def __init__(self, world: World, workload: Workload) -> None:
        self.world, self.workload = world, workload
        self.told: list[tuple[str, Value, dict[str, Any]]] = []
        self.floors: Counter[tuple[SimProcess, str]] = Counter()
        self._sent: set[bytes] = set()

    def tolerant(self, process: SimProcess, work: Callable[[], Any]) -> bool:
        """Do something that storage and the library may fail at; whether it came to its end."""
        try:
            work()
            return True
        except FoldlogError as error:
            self._met(process, error)
        except OUTAGES as error:
            self.world.note(f"{process.name} meets {type(error).__name__}: {error}")
            self.world.counts["storage errors"] += 1
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-6:])
            raise Violated("errors_are_ours", f"{process.name} met {error!r}\n{text}") from error
        return False

    def _met(self, process: SimProcess, error: FoldlogError) -> None:
        self.world.note(f"{process.name} meets {error.code}: {error.message[:160]}")
        self.world.counts[f"met {error.code}"] += 1
        if error.code == "DAMAGED":
            raise Violated("the_log_folds", f"{process.name}: {error.message}") from error

    def work(self, process: SimProcess, engine: Engine) -> None:
        runtime = SimRuntime(self.world.scheduler, process)
        while not self.workload.done and process in self.world.engines:
            if self.workload.made >= self.workload.total and not self.workload.opening:
                self._again(process, engine)
            else:
                self._propose(process, engine)
            runtime.sleep(self.workload.rng.choice((1, 1_000, 30_000)))

    def _propose(self, process: SimProcess, engine: Engine) -> None:
        workload, rng = self.workload, self.workload.rng
        if workload.opening:
            if self._send(process, engine, *workload.opening[0], again=False):
                workload.opening.pop(0)
            return
        if workload.retries and rng.random() < 0.3:
            self._again(process, engine)
            return
        workload.made += 1
        if rng.random() < 0.6:
            self.world.leap(rng.choice((1, 1, 2, 5, 5, 20, 200)))
        if rng.random() < 0.06:
            self._send_raw(process, engine)
            return
        run_id, doc = workload.run_id(), {}

        def look() -> None:
            floor = self.floors[process, run_id]
            state = engine.run(run_id).state()
            doc.update({} if state is None else state.to_dict())
            self._check_fresh(run_id, floor, state)

        self.call(process, look)
        value = workload.proposal(run_id, doc, engine._clock())
        workload.note(value)
        self._send(process, engine, run_id, value)

    def _again(self, process: SimProcess, engine: Engine) -> None:
        if self.workload.retries:
            self._send(process, engine, *self.workload.retries.pop(0))

    def _send_raw(self, process: SimProcess, engine: Engine) -> None:
        """A foreign producer: bytes in the inbox, past the client."""
        log = engine._seat.place.log
        partition, key, value = self.workload.foreign(log.partitions)
        if partition is None:
            partition = partition_of(key.decode(), log.partitions)
        self.tolerant(process, lambda: log.propose(partition, [(key, value)]))

    def _send(
        self, process: SimProcess, engine: Engine, run_id: str, value: Value, again: bool = True
    ) -> bool:
        """Propose; whether an outcome came. If not, it mostly is proposed ``again`` later."""
        workload, rng = self.workload, self.workload.rng
        timeout = rng.choice((0.05, 1.0, 10.0, 15.0))
        if self.world.calm:
            timeout = 10.0
        settled = [False]
        encoded = encode_proposal(parse_proposal(run_id, value))
        # A row of these bytes may be another's, sent before and delivered late.
        is_first = encoded not in self._sent
        self._sent.add(encoded)

        def propose() -> None:
            before = self._times_in_inbox(run_id, encoded)
            try:
                outcome = engine.run(run_id).propose_json(value, timeout=timeout).to_dict()
            except Unavailable as error:
                untold = is_first and self._times_in_inbox(run_id, encoded) != before
                demand(
                    "closed" in error.message or not untold,
                    "errors_are_ours",
                    f"it was handed in, and the proposer is not told its batch id: {error}",
                )
                raise
            settled[0] = True
            self._acknowledged(run_id, value, outcome)
            floor = self.floors[process, run_id]
            self.floors[process, run_id] = max(floor, outcome["revision"])
            # A thousand signals are slow to show after each batch of them.
            if rng.random() < (0.6 if again else 0.1):
                self._look_back(engine, run_id, outcome)

        try:
            self.call(process, propose)
        except Killed:
            if again:
                workload.retries.append((run_id, value))
            raise
        if again and not settled[0] and rng.random() < 0.8:
            workload.retries.append((run_id, value))
        return settled[0]

    def probe(self, process: SimProcess, engine: Engine) -> bool:
        """Propose to a run; whether that was answered."""
        run_id, signal_id = "run_1", f"probe of {process.decider}"
        event = {"type": "SignalReceived", "key": "probe", "signal_id": signal_id}
        user = {"kind": "user", "id": "probe"}
        value = {"batch_id": self.workload.batch_id(), "author": user, "events": [event]}
        return self._send(process, engine, run_id, value, again=False)

    def _times_in_inbox(self, run_id: str, encoded: bytes) -> int:
        history = self.world.histories[partition_of(run_id, self.world.disk.partitions)]
        return sum(row.value == encoded for row in history.inbox)

    def call(self, process: SimProcess, work: Callable[[], None]) -> bool:
        """A client's call, which may fail by an error of the library and by no other."""
        try:
            work()
            return True
        except FoldlogError as error:
            self._met(process, error)
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-6:])
            raise Violated("errors_are_ours", f"a client met {error!r}\n{text}") from error
        return False

    def _acknowledged(self, run_id: str, value: Value, outcome: dict[str, Any]) -> None:
        """A client was told an outcome: it stands in the log, and is the same as told before."""
        self.world.note(
            f"told {run_id}: {outcome['outcome']} {outcome['code']} @{outcome['revision']}"
        )
        if not outcome["recorded"]:
            return
        self.told.append((run_id, value, outcome))
        self.check_told(run_id, value, outcome)

    def check_told(self, run_id: str, value: Value, outcome: dict[str, Any]) -> None:
        history = self.world.histories[outcome["partition"]]
        sequence = outcome["sequence"]
        demand(
            sequence <= len(history.counted),
            "acknowledged_is_logged",
            f"record {sequence} was told, the log has {len(history.counted)}",
        )
        stored, record = history.counted[sequence - 1]
        demand(
            any(row is stored for row in self.world.disk.events[outcome["partition"]][-200:])
            or stored in self.world.disk.events[outcome["partition"]],
            "acknowledged_is_logged",
            f"record {sequence} was told and is not in the log",
        )
        expected = history.outcome_of(record)
        invariants.check_answer({**outcome, "duplicate": False}, expected)
        proposal = parse_proposal(run_id, value)
        demand(
            (record.run_id, record.batch_id) == (run_id, proposal.batch_id),
            "one_answer",
            f"batch {proposal.batch_id} was told of {record.batch_id}",
        )

    def _look_back(self, engine: Engine, run_id: str, outcome: dict[str, Any]) -> None:
        """A client's own read is at least as new as what it was told, and true."""
        self._check_fresh(run_id, outcome["revision"], engine.run(run_id).state())
        if outcome["recorded"] and outcome["code"] != "BATCH_ID_REUSED":
            again = engine.run(run_id).outcome(outcome["batch_id"])
            demand(
                again is not None and again.sequence == outcome["sequence"],
                "one_answer",
                f"batch {outcome['batch_id']} is {again and again.to_dict()}, was told {outcome}",
            )

    def _check_fresh(self, run_id: str, floor: int, state: RunState | None) -> None:
        """What a client reads is at least as new as ``floor``, and once was true."""
        history = self.world.histories[partition_of(run_id, self.world.disk.partitions)]
        revision = 0 if state is None else state.revision
        demand(
            revision >= floor,
            "reads_are_fresh",
            f"{run_id} was told revision {floor} and reads {revision}",
        )
        if state is not None:
            demand(
                history.chains.get((run_id, revision)) == state.chain,
                "reads_are_fresh",
                f"{run_id} at revision {revision} is read with another chain",
            )
