"""Workers of the kit in a simulation: runs with effects on a world with a ledger of its own.

In some seeds each process has a worker beside its clients. All work on the same few runs, whose
steps act on a world outside every process, wait for a timer, and are begun again.

Invariants:
- The kit under test is the one that users have, on the simulation's time and batch ids.
- The world does what it is told as often as it is told, but for a key that was given up.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from foldlog.client import Engine
from foldlog.wire.partitioner import partition_of
from foldlog.worker import Agent, CannotTell, Claim, Failed, NotDone, Retries, Succeeded, Worker
from tests.sim.invariants import demand
from tests.sim.place import SimProcess
from tests.sim.scheduler import SimRuntime

if TYPE_CHECKING:
    from tests.sim.world import World

LABELS = {"for": "workers"}
REST_US = 300_000
SHARE = 0.25
"""Of the seeds that have workers."""

PROPOSALS_MAX = 26
"""Of the clients beside them."""


class Jobs:
    """The runs for workers of one simulation, and the world outside."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.config.seed}/leases")
        there = self.rng.random() < SHARE and not world.workload.full
        self.ids = ["job_1"] if there else []
        if there:  # as long as a seed without workers
            world.workload.total = min(world.workload.total, PROPOSALS_MAX)
        self.done: Counter[str] = Counter()
        self.given_up: set[str] = set()
        self.blind = self.rng.random() < 0.3
        self.ended: set[str] = set()

    # The world outside

    def _do(self, process: SimProcess, effect: Any) -> str:
        key = effect.idempotency_key
        self.world.scheduler.step(process, "act")
        if key in self.given_up:
            raise NotDone("this key was given up")
        self._check_intent(effect)
        self.done[key] += 1
        self.world.counts["effects"] += 1
        self.world.note(f"the world does {key}")
        demand(self.done[key] == 1, "done_once", f"{key} is done again")
        self.world.scheduler.step(process, "acted")
        if self.rng.random() < 0.15:
            raise OSError("the answer is lost")
        return f"world:{effect.id}"

    def _check_intent(self, effect: Any) -> None:
        run_id = effect.idempotency_key.partition("/")[0]
        history = self.world.histories[partition_of(run_id, self.world.disk.partitions)]
        found = history.state(run_id).value("effect", effect.id)
        demand(found is not None, "intent_first", f"{run_id}: {effect.id} is done, not intended")

    def _ask(self, process: SimProcess, effect: Any) -> Any:
        self.world.scheduler.step(process, "ask")
        self.world.counts["asked"] += 1
        return CannotTell("nobody knows") if self.blind else self._found(effect.idempotency_key)

    def _found(self, key: str) -> Succeeded | Failed:
        """What became of a key; given up first, so that nothing of it happens later."""
        self.given_up.add(key)
        if self.done[key]:
            return Succeeded("world:found")
        return Failed("world:none", key_given_up=True)

    # The workers

    def work(self, process: SimProcess, engine: Engine) -> None:
        """A worker in a process, until the process or all its runs end."""
        runtime = SimRuntime(self.world.scheduler, process)
        worker = self._worker(process, engine)
        while process in self.world.engines and not self.all_ended:
            self.world.clients.call(process, partial(self._round, engine, worker))
            runtime.sleep(REST_US)

    def _worker(self, process: SimProcess, engine: Engine) -> Worker:
        agent = Agent()
        act = agent.effect("act")(partial(self._do, process))
        act.reconciler(partial(self._ask, process))

        @agent.step
        def first(run: Any) -> Any:
            return run.perform("first", act, "world:thing")

        @agent.step
        def between(run: Any) -> None:
            run.wait_for_timer("pause", timedelta(seconds=2))

        @agent.step
        def second(run: Any) -> Any:
            return run.perform("second", act, "world:thing")

        options: Any = {"renew": False, "labels": LABELS, "retries": Retries(0.5, 2.0, restarts=99)}
        worker = Worker(engine, process.decider, agent, lease_seconds=20, **options)
        new_id = self._id

        class SimClaim(Claim):
            def new_id(self) -> str:
                return new_id()

        worker.claim_class = SimClaim
        return worker

    def _id(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128)))

    def _round(self, engine: Engine, worker: Worker) -> None:
        for run_id in self.ids:
            state = engine.run(run_id).state()
            if state is None:
                options: Any = {"author": "user:ada", "batch_id": self._id()}
                engine.start(run_id, "act twice", labels=LABELS, **options)
            elif state.status == "finish":
                self.ended.add(run_id)
            elif state.waiting is not None and state.waiting.key.startswith("effect/"):
                self._tell(engine, run_id, state)  # what a person says
        worker.work(until_idle=True)

    def _tell(self, engine: Engine, run_id: str, state: Any) -> None:
        """What a person does who is asked what became of an effect."""
        key = state.waiting.key
        effect = next(each for each in state.effects if f"effect/{each.id}" == key)
        answer: dict[str, Any] = {"outcome": "succeeded"}
        if isinstance(self._found(effect.idempotency_key), Failed):
            answer = {"outcome": "failed", "key_given_up": True}
        options = {"signal_id": self._id(), "batch_id": self._id(), "author": "user:ada"}
        engine.run(run_id).signal(key, answer, **options)

    # What holds at the end

    @property
    def all_ended(self) -> bool:
        """Whether every run was seen finished."""
        return len(self.ended) == len(self.ids)

    def check(self) -> None:
        """Every run has ended well, and its ledger says what the world did."""
        for run_id in self.ids:
            history = self.world.histories[partition_of(run_id, self.world.disk.partitions)]
            state = history.state(run_id)
            result = state.header.result
            demand(result == "completed", "jobs_end", f"{run_id} has ended with {result}")
            for _, slot in state.slots.scan("effect"):
                effect = slot.value
                did = self.done[effect["idempotency_key"]]
                told = f"{run_id}: {effect} was done {did} times"
                demand(did == (effect["outcome"] == "succeeded"), "done_once", told)
            self.world.counts["jobs"] += 1
