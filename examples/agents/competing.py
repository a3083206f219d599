"""Two agents that want the same task at the same moment, and a person who settles it.

    python competing.py FOLDER

A run that several agents share is worked on without a lease: each says on which revision it
decided, and asks that a conflict be kept instead of refused. The first to be heard has the task.
The other one's proposal is kept as an open conflict, which blocks nothing; a person looks at both
and decides.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from foldlog import Engine, Outcome, PlanAdopted, Run, RunTransitioned, TaskCompleted, TaskStarted

TASKS = [{"id": "parser", "title": "mend the parser"}, {"id": "docs", "title": "write it down"}]


class Agent:
    """One of the two: it decides on what it has read, and proposes under its own name."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name

    def propose(self, event: Any, revision: int) -> Outcome:
        """A proposal that is kept where it meets somebody else's."""
        return self.run.propose(
            event,
            expected_revision=revision,
            on_conflict="arbitrate",
            author=f"agent:{self.name}",
        )

    def want(self, task_id: str, ready: threading.Barrier) -> Outcome:
        """Read, decide, and propose at the same moment as the other one."""
        revision = self.revision()
        ready.wait()
        return self.propose(TaskStarted(task_id=task_id), revision)

    def revision(self) -> int:
        """Where the run is."""
        state = self.run.state()
        assert state is not None
        return state.revision

    def mine(self) -> list[str]:
        """The tasks that are this agent's now."""
        state = self.run.state()
        assert state is not None
        return [t.id for t in state.tasks if t.status == "running" and t.worker == self.name]

    def finish_mine(self) -> None:
        """Do what is this agent's; where nothing is, take what is left."""
        if not self.mine():
            state = self.run.state()
            assert state is not None
            self.propose(TaskStarted(task_id=state.next_task_ids[0]), state.revision)
        for task_id in self.mine():
            done = TaskCompleted(task_id=task_id, evidence=f"file:{task_id}.txt")
            print(f"{self.name} did {task_id}: {self.propose(done, self.revision()).outcome}")


def main() -> None:
    """Both want the parser; the one who was second knows it better, and a person sees that."""
    with Engine.open(Path(sys.argv[1]) / ".foldlog", create=True, author="user:ada") as engine:
        run = engine.start("shared", goal="Mend the parser and write it down")
        planning = [RunTransitioned(to="planning"), PlanAdopted(tasks=TASKS)]
        run.propose([*planning, RunTransitioned(to="running")], expected_revision=1)
        agents = [Agent(run, name) for name in ("red", "blue")]
        ready, outcomes = threading.Barrier(2), dict[str, Outcome]()

        def compete(agent: Agent) -> None:
            outcomes[agent.name] = agent.want("parser", ready)

        threads = [threading.Thread(target=compete, args=[agent]) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        heard = sorted(outcome.outcome for outcome in outcomes.values())
        print("two asked for the parser, and were told:", ", ".join(heard))

        [conflict] = run.conflicts()
        print("a person has to settle:", *conflict.entities)
        run.resolve(conflict.id, "take_proposed", "knows the parser", author="operator:eva")
        taker = next(agent for agent in agents if agent.name == conflict.author.id)
        print("the person gave it to the second:", taker.mine() == ["parser"])
        for agent in agents:
            agent.finish_mine()
        state = run.state()
        assert state is not None
        print("done:", *sorted(task.id for task in state.tasks if task.status == "completed"))


if __name__ == "__main__":
    main()
