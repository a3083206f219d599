"""The worker kit: an agent author writes steps, the kit does the rest.

    from foldlog import Engine
    from foldlog.worker import Agent, Worker

    agent = Agent()

    @agent.step
    def mend(run):
        "mend the fault, and see the tests pass"
        run.tool("edit", edit, "src/auth/config.ts")
        return "file:evidence/tests.txt"

    @agent.step
    def publish(run):
        "publish it, if somebody approves"
        if run.wait_for_approval("publish", "may 1.4.1 be published?").granted:
            return run.perform("publish", publish_release, "desk:releases/1.4.1")

    with Engine.open(".foldlog") as engine:
        Worker(engine, "worker-1", agent).work()

The worker claims one run after the other, holds and renews its lease, moves it through its
lifecycle, records tool calls, effects and checkpoints, and lets it go when it waits.
``foldlog.worker.aio`` has the async twins.

Invariants:
- What this module exports is the public API of the kit; everything else in the package may move.
"""

from foldlog.worker.agent import (
    Agent,
    CannotTell,
    EffectCall,
    EffectKind,
    Failed,
    Succeeded,
)
from foldlog.worker.blocking import Claim, Worker
from foldlog.worker.endings import (
    GiveUp,
    HandOver,
    LeaseLost,
    NotDone,
    Overtaken,
    Refused,
    RunStopped,
    RunWaits,
    Stale,
    StepEnded,
)
from foldlog.worker.retries import Retries
from foldlog.worker.tools import Observed
from foldlog.worker.waits import Answer

__all__ = [
    "Agent", "Answer", "CannotTell", "Claim", "EffectCall", "EffectKind", "Failed", "GiveUp",
    "HandOver", "LeaseLost", "NotDone", "Observed", "Overtaken", "Refused", "Retries",
    "RunStopped", "RunWaits", "Stale", "StepEnded", "Succeeded", "Worker",
]  # fmt: skip
