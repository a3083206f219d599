"""A worker that mends a fault in a shop's code and has the mended version released.

    python agent.py RUN

Run it in a folder with a home (.foldlog), a workspace (shop) and the address of the release desk
(desk/port). It does one step after another and ends when the run is finished, or waits for
somebody. It may be killed at any moment: start it again, and it goes on.

It has no model: where one would think, it follows a recipe. The rest is as in any agent: it edits
files, runs a test suite, acts on the outside world, and asks a person before what matters.

Invariants:
- Whatever it knows at its start it knows from `run.state()`: no file of its own, no memory.
- What acts on the outside world is recorded as intended before it is done. When the answer is
  lost, the other side is asked what became of it; the request is never sent again on a guess.
- What it does in its workspace may be done twice: done again, it gives the same.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from foldlog import (
    ArtifactAdded,
    CheckpointTaken,
    EffectFailed,
    EffectIntended,
    EffectReconciled,
    EffectSucceeded,
    EffectUnknown,
    Engine,
    Event,
    FactConfirmed,
    LeaseAcquired,
    LeaseReleased,
    PlanAdopted,
    RunFinished,
    RunTransitioned,
    TaskCompleted,
    TaskFailed,
    TaskStarted,
    ToolFailed,
    ToolStarted,
    ToolSucceeded,
    WaitStarted,
    WorkspaceMoved,
)
from foldlog.client import Run
from foldlog.errors import FoldlogError

WORKER = "worker-1"
LEASE_SECONDS = 60
VERSION = "1.4.1"
APPROVAL = f"publish-{VERSION}"
SHOP, EVIDENCE, DESK = Path("shop"), Path("evidence"), Path("desk")

FAULTY = "return int(net_cents * (1 + tax_percent / 100))"
MENDED = "return (net_cents * (100 + tax_percent) + 50) // 100"
NOTE = f"# {VERSION}\n\nPrices with tax are rounded to the nearest cent, no longer down.\n"

PLAN = [
    {"id": "reproduce", "title": "see the fault in the tests"},
    {"id": "mend", "title": "mend it, and see the tests pass", "depends_on": ["reproduce"]},
    {"id": "submit", "title": "submit the release note to the desk", "depends_on": ["mend"]},
    {"id": "publish", "title": "publish it, if somebody approves", "depends_on": ["submit"]},
]


def say(text: str) -> None:
    """Tell whoever watches."""
    print(f"  [agent {os.getpid()}] {text}", flush=True)


class Refused(Exception):
    """The release desk says no."""


def call_desk(method: str, path: str, body: Any = None) -> Any:
    """Ask the release desk; OSError or HTTPException when there is no answer."""
    port = int((DESK / "port").read_text())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body else None)
        answer = connection.getresponse()
        value = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status >= 400:
        raise Refused(value)
    return value


def workspace() -> dict[str, str]:
    """The workspace by the hash of its files, as a commit would name it."""
    files = sorted(path for path in SHOP.iterdir() if path.is_file())
    content = b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)
    return {
        "workspace_id": str(SHOP),
        "current_commit": f"sha256:{hashlib.sha256(content).hexdigest()[:12]}",
    }


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


class Worker:
    """One process at work on one run, from wherever the run is."""

    def __init__(self, run: Run) -> None:
        state = run.state()
        if state is None:
            sys.exit(f"there is no run {run.run_id}: foldlog start {run.run_id} --goal ...")
        self.run, self.state = run, state
        self.epoch: int | None = None

    def propose(self, *events: Event) -> None:
        """Have a batch decided. What it was decided on is the state that this worker has seen."""
        revision, epoch = self.state.revision, self.epoch
        outcome = self.run.propose(events, expected_revision=revision, lease_epoch=epoch)
        if not outcome.accepted:
            # Another worker took the lease, a person cancelled the run, ...: not for us to force.
            sys.exit(f"{outcome.code}: {outcome.message}")
        self.look()

    def look(self) -> None:
        """Read where the run is."""
        state = self.run.state()
        assert state is not None
        self.state = state

    def work(self) -> None:
        """Go on from wherever the run is, until it is finished or waits."""
        self.tell_where_it_is()
        if self.is_open():
            self.take_lease()
        self.settle_what_is_open()
        while self.is_open():
            self.step()
        self.tell_where_it_ends()

    def is_open(self) -> bool:
        """Whether there is something to do now."""
        return self.state.status not in ("finish", "waiting")

    def step(self) -> None:
        """One step, chosen by the state alone."""
        recipe = {
            "reproduce": self.reproduce,
            "mend": self.mend,
            "submit": self.submit,
            "publish": self.publish,
        }
        if self.state.status == "start":
            self.plan()
        elif self.state.status == "retry":
            self.propose(RunTransitioned(to="running", reason="try again"))
        elif self.state.active_task_id:
            recipe[self.state.active_task_id](self.state.active_task_id)
        elif self.state.next_task_ids:
            self.propose(TaskStarted(task_id=self.state.next_task_ids[0]))
        else:
            self.finish()

    # Beginning, whether for the first time or after a crash

    def take_lease(self) -> None:
        """Hold the run for a while. Taking it again gives a new epoch: an older self is fenced."""
        self.propose(LeaseAcquired(worker=WORKER, ttl_seconds=LEASE_SECONDS))
        assert self.state.lease is not None
        self.epoch = self.state.lease.epoch

    def settle_what_is_open(self) -> None:
        """Close what an earlier process began and did not report; of a finished run, too."""
        for tool_call in self.state.pending_tool_calls:
            say(f"{tool_call.step_id} was interrupted: it will be done again")
            error = "the worker ended before the tool did"
            self.propose(ToolFailed(step_id=tool_call.step_id, error=error, recoverable=False))
        for effect in self.state.effects:
            if effect.status in ("intended", "unknown"):
                self.reconcile(effect.id, effect.idempotency_key)

    def reconcile(self, effect_id: str, key: str) -> None:
        """An effect whose outcome nobody knows: ask the other side, do not try again."""
        say(f"nobody knows what became of {effect_id}: asks the desk about {key}")
        found = call_desk("GET", f"/entries?key={key}")
        outcome = "succeeded" if found else "failed"
        evidence = f"desk:entries/{found[0]['number']}" if found else f"desk:entries?key={key}"
        say(f"the desk has {len(found)} such entry: {effect_id} has {outcome}")
        self.propose(EffectReconciled(effect_id=effect_id, outcome=outcome, evidence=evidence))

    # The recipe: where a model would think

    def plan(self) -> None:
        """Begin: a plan, and the workspace as it was found."""
        say(f"plans {len(PLAN)} tasks")
        found = workspace()
        self.propose(
            RunTransitioned(to="planning"),
            PlanAdopted(tasks=PLAN),
            WorkspaceMoved(workspace={**found, "base_commit": found["current_commit"]}),
            RunTransitioned(to="running"),
        )

    def reproduce(self, task_id: str) -> None:
        """Run the tests and keep what they say about the fault."""
        report, passed, evidence = self.run_tests(task_id)
        assert not passed, "there is nothing to mend"
        fact = {
            "id": "fault",
            "statement": "gross_cents(999, 19) is 1188, and should be 1189",
            "evidence": evidence,
        }
        done = TaskCompleted(task_id=task_id, evidence=evidence)
        self.propose(report, FactConfirmed(fact=fact), done)

    def mend(self, task_id: str) -> None:
        """Edit the file, then run the tests again."""
        base = self.state.workspace
        assert base is not None
        if base.current_commit == base.base_commit:
            self.edit(task_id, base.base_commit)
        report, passed, evidence = self.run_tests(task_id)
        if not passed:
            self.propose(report, TaskFailed(task_id=task_id, reason="the tests still fail"))
            return
        statement = "prices are rounded to the nearest cent: all tests pass"
        fact = {"id": "mended", "statement": statement, "evidence": evidence}
        self.propose(
            report,
            FactConfirmed(fact=fact, supersedes_fact_id="fault"),
            TaskCompleted(task_id=task_id, evidence=evidence),
        )

    def submit(self, task_id: str) -> None:
        """Write the release note and hand it in: an effect on the outside world."""
        note = EVIDENCE / f"note-{VERSION}.md"
        write(note, NOTE)
        if not self.state.artifacts:
            digest = hashlib.sha256(note.read_bytes()).hexdigest()
            artifact = {"id": "note", "uri": f"file:{note}", "sha256": digest}
            self.propose(ArtifactAdded(artifact=artifact))
        self.act(task_id, "submit", {"version": VERSION, "note": note.name})

    def publish(self, task_id: str) -> None:
        """Ask a person; with their consent, publish: a second effect."""
        answer = self.state.last_signal
        if answer is None:
            self.ask()
        elif answer.payload is not None and answer.payload.granted:
            self.act(task_id, "publish", {"version": VERSION})
        else:
            self.propose(TaskFailed(task_id=task_id, reason="not approved"))

    def finish(self) -> None:
        """Nothing is left to do: all went well, or something failed."""
        failed = [task.id for task in self.state.tasks if task.status != "completed"]
        if failed:
            self.propose(RunFinished(result="failed", reason=f"not done: {', '.join(failed)}"))
        else:
            self.propose(RunFinished(result="completed", result_ref=f"desk:releases/{VERSION}"))

    # Tools

    def begin_tool(self, task_id: str, tool: str, **arguments: Any) -> str:
        """Record that a tool is called, before it is; returns the step's id.

        Revisions only grow, so an id made of one was never used before.
        """
        step_id = f"{tool}-{self.state.revision}"
        call = {"step_id": step_id, "tool": tool, "task_id": task_id, "arguments": arguments}
        self.propose(ToolStarted(**call))
        return step_id

    def run_tests(self, task_id: str) -> tuple[Event, bool, str]:
        """Run the workspace's tests: the report to be proposed, whether they pass, the output."""
        command = ["python", "-m", "unittest"]
        step_id = self.begin_tool(task_id, "run_tests", command=command, folder=str(SHOP))
        done = subprocess.run(
            [sys.executable, "-B", *command[1:]], cwd=SHOP, capture_output=True, text=True
        )
        write(EVIDENCE / f"{step_id}.txt", done.stdout + done.stderr)
        evidence = f"file:{EVIDENCE}/{step_id}.txt"
        summary = done.stderr.splitlines()[-1]
        say(f"ran the tests: {summary}")
        if done.returncode == 0:
            return ToolSucceeded(step_id=step_id, result_ref=evidence), True, evidence
        return ToolFailed(step_id=step_id, error=summary, recoverable=False), False, evidence

    def edit(self, task_id: str, base_commit: str) -> None:
        """Replace the faulty line."""
        path = SHOP / "invoice.py"
        step_id = self.begin_tool(task_id, "edit_file", path=str(path))
        write(path, path.read_text().replace(FAULTY, MENDED))
        moved = {**workspace(), "base_commit": base_commit}
        say(f"edited {path}")
        kept = {"id": f"after-{step_id}", "boundary": "workspace_version", "task_id": task_id}
        self.propose(
            ToolSucceeded(step_id=step_id, result_ref=f"file:{path}"),
            WorkspaceMoved(workspace=moved),
            CheckpointTaken(checkpoint=kept),
        )

    # The outside world, and people

    def act(self, task_id: str, action: str, body: dict[str, str]) -> None:
        """Make an effect once and complete its task, wherever an earlier process left off."""
        key = f"{self.run.run_id}/{action}"
        tried = [effect for effect in self.state.effects if effect.idempotency_key == key]
        if not any(effect.outcome == "succeeded" for effect in tried):
            if not self.request(task_id, f"{action}-{len(tried) + 1}", action, key, body):
                return
        self.propose(TaskCompleted(task_id=task_id, evidence=f"desk:entries?key={key}"))

    def request(
        self, task_id: str, effect_id: str, action: str, key: str, body: dict[str, str]
    ) -> bool:
        """Record the intent, ask the desk, record what it says; whether it was done."""
        target = f"desk:releases/{VERSION}"
        effect = {"id": effect_id, "kind": action, "target": target, "idempotency_key": key}
        safe = {"id": f"before-{effect_id}", "boundary": "before_effect", "task_id": task_id}
        self.propose(CheckpointTaken(checkpoint=safe), EffectIntended(effect=effect))
        say(f"asks the desk to {action} {VERSION}")
        try:
            entry = call_desk("POST", f"/{action}", {"key": key, **body})
        except Refused as error:
            self.propose(
                EffectFailed(effect_id=effect_id, error=str(error)),
                TaskFailed(task_id=task_id, reason="the desk refused"),
            )
            return False
        except (OSError, http.client.HTTPException) as error:
            self.propose(EffectUnknown(effect_id=effect_id, reason=repr(error)))
            sys.exit(f"no answer from the desk ({error!r}): start again when it is there")
        entry_ref = f"desk:entries/{entry['number']}"
        say(f"the desk has done it: {entry_ref}")
        self.propose(EffectSucceeded(effect_id=effect_id, result_ref=entry_ref))
        return True

    def ask(self) -> None:
        """Wait for a person. No process has to sit and wait: this one lets go and ends."""
        deadline = (datetime.now(UTC) + timedelta(hours=2)).isoformat(timespec="seconds")
        safe = {"id": f"before-wait-{self.state.revision}", "boundary": "before_wait"}
        reason = f"may {VERSION} be published?"
        wait = {"kind": "approval", "key": APPROVAL, "reason": reason, "deadline": deadline}
        self.propose(CheckpointTaken(checkpoint=safe), WaitStarted(**wait), LeaseReleased())
        self.epoch = None
        if self.is_open():  # the answer was there before the question
            self.take_lease()

    # Telling

    def tell_where_it_is(self) -> None:
        """What this process knows as it starts."""
        state = self.state
        doing = f", at task {state.active_task_id}" if state.active_task_id else ""
        say(f"{state.run_id} is at revision {state.revision}: {state.status}{doing}")

    def tell_where_it_ends(self) -> None:
        """Why this process ends."""
        state = self.state
        if state.waiting is not None:
            say(f"waits for {state.waiting.kind} {state.waiting.key}, and ends meanwhile")
        else:
            say(f"the run is finished: {state.result}")


def main() -> None:
    """Work on the run that is named."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        with Engine.open(".foldlog", author=f"agent:{WORKER}") as engine:
            Worker(engine.run(sys.argv[1])).work()
    except FoldlogError as error:  # no home, no outcome in time, ...: start again once it is mended
        sys.exit(f"{error.code}: {error}")


if __name__ == "__main__":
    main()
