"""An approval that is there before it is asked for: it is kept, and the run does not wait.

python early_approval.py FOLDER
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from foldlog import Engine
from foldlog.worker import Agent, Claim, GiveUp, Worker

agent = Agent()


@agent.step
def write(run: Claim) -> str:
    """write the note"""
    return "file:note.md"


@agent.step
def publish(run: Claim) -> str:
    """publish it, if somebody approves"""
    answer = run.wait_for_approval("publish", "may it be published?", timedelta(hours=8))
    if not answer.granted:
        raise GiveUp("not approved" if not answer.timed_out else "nobody answered in time")
    assert answer.author is not None
    return f"approval:{answer.author.id}"


def main() -> None:
    """Two runs: one is approved while its agent still plans, the other one after it asked."""
    with Engine.open(Path(sys.argv[1]) / ".foldlog", create=True, author="user:ada") as engine:
        early, late = (engine.start(name, goal="Publish a note") for name in ("early", "late"))
        early.signal("publish", {"granted": True})
        worker = Worker(engine, "writer", agent)
        worker.work(until_idle=True)
        for run in (early, late):
            state = run.state()
            assert state is not None
            waits = f"waits for {state.waiting.key}" if state.waiting else "waits for nothing"
            print(f"{run.run_id}: is in {state.status}, {waits}")
        late.signal("publish", {"granted": True})
        worker.work(until_idle=True)
        for run in (early, late):
            moves = [move.to for move in run.transitions()]
            print(f"{run.run_id}: went through {', '.join(moves)}")


if __name__ == "__main__":
    main()
