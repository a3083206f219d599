"""Writes homes as this build makes them, kept for ever: `python -m tests.golden_homes FORMAT`.

`tests/golden/format-N/NAME.tar.gz`: a whole home (log, projection, snapshots), packed;
`NAME.json`: its digest, and every run's document, as the build of format N showed them.

Invariants:
- A format's homes are written by the build of that format, from the commit before the change,
  and never again: what is there is not touched.
- Clock, authors and batch ids are fixed; identities and hashes are those of the day it was made.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.snapshots.settings import SnapshotSettings
from foldlog.wire import keys
from tests.seats import seat_of

GOLDEN = Path(__file__).parent / "golden"
ASKED = SnapshotSettings(records=0, bytes=0, seconds=0)
BEGAN = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
SECOND = 1_000_000
SPENT = {"type": "BudgetSpent", "tokens": 1}


class Writer:
    """A home that is being written: each proposal comes a second after the one before."""

    def __init__(self, path: Path, partitions: int) -> None:
        self.now = BEGAN
        self.count = 0
        self.engine = Engine.open(
            path,
            create=True,
            partitions=partitions,
            author="user:ada",
            clock=lambda: self.now,
            snapshots=ASKED,
        )

    def propose(self, run_id: str, *events: dict[str, Any], **more: Any) -> None:
        """Propose events on the run's present revision; they have to be accepted."""
        self.count += 1
        self.now += SECOND
        run = self.engine.run(run_id)
        state = run.state()
        given: dict[str, Any] = {"batch_id": str(uuid.UUID(int=self.count)), **more}
        if state is not None:
            given["expected_revision"] = state.revision
        outcome = run.propose(list(events), **given)
        assert outcome.outcome == "accepted", outcome

    def start(self, run_id: str, **fields: Any) -> None:
        """A run in running."""
        goal = {"statement": f"goal of {run_id}"}
        self.propose(run_id, {"type": "RunStarted", "goal": goal, **fields})
        self.move(run_id, "planning", "running")

    def move(self, run_id: str, *statuses: str) -> None:
        """Transitions, each a batch of its own."""
        for status in statuses:
            self.propose(run_id, {"type": "RunTransitioned", "to": status})

    def fail(self, run_id: str, error: str) -> None:
        """A tool fails recoverably: the run goes to retry."""
        step = f"step_{self.count}"
        self.propose(run_id, {"type": "ToolStarted", "step_id": step, "tool": "test"})
        failed = {"type": "ToolFailed", "step_id": step, "error": error, "recoverable": True}
        self.propose(run_id, failed)

    def wait(self, run_id: str, kind: str, seconds: int | None) -> None:
        """A wait that lasts; with a deadline until it has passed."""
        deadline = None
        if seconds is not None:
            at = (self.now - BEGAN) // SECOND + seconds
            deadline = f"2026-01-01T00:{at // 60:02d}:{at % 60:02d}Z"
        wait = {"type": "WaitStarted", "kind": kind, "key": "k", "reason": "later"}
        self.propose(run_id, {**wait, "deadline": deadline} if deadline else wait)
        if seconds is not None:
            self.now += (seconds + 5) * SECOND
            self.engine.project()
            state = self.engine.run(run_id).state()
            assert state is not None
            assert state.status != "waiting"


def all_kinds(writer: Writer) -> None:
    """Runs whose retries came about in every way there is, and one of every entity."""
    writer.start("plain")
    writer.start("failed_once")
    writer.fail("failed_once", "no network")
    writer.start("failed_and_back", retry_limit=5)
    for error in ("no network", "WaitTimedOut", "SignalReceived"):
        writer.fail("failed_and_back", error)
        writer.move("failed_and_back", "running")
    writer.start("began_anew")
    for _ in range(3):
        writer.fail("began_anew", "no network")
        if _ < 2:
            writer.move("began_anew", "running")
    writer.move("began_anew", "start", "planning", "running")
    writer.fail("began_anew", "no disk")
    writer.start("timed_out")
    writer.wait("timed_out", "external", 10)
    writer.start("timer_from_running")
    writer.wait("timer_from_running", "timer", 10)
    writer.start("timer_in_retry")
    writer.fail("timer_in_retry", "no network")
    writer.wait("timer_in_retry", "timer", 10)
    writer.start("waits_in_retry")
    writer.fail("waits_in_retry", "no network")
    writer.wait("waits_in_retry", "external", 10)
    writer.wait("waits_in_retry", "user", 10)
    writer.start("both_in_retry")
    writer.fail("both_in_retry", "no network")
    writer.wait("both_in_retry", "timer", 10)
    writer.wait("both_in_retry", "user", 10)
    writer.start("signal_in_retry")
    writer.fail("signal_in_retry", "no network")
    writer.wait("signal_in_retry", "approval", None)
    writer.propose("signal_in_retry", {"type": "SignalReceived", "key": "k", "signal_id": "s"})
    entities(writer)


def entities(writer: Writer) -> None:
    """A run that has one of every entity, finished; and one that waits."""
    writer.start("entities", labels={"team": "web"}, budgets={"tokens_remaining": 1000},
                 workspace={"workspace_id": "ws"})  # fmt: skip
    fact = {"id": "f", "statement": "so it is", "evidence": "artifact://1"}
    guess = {"id": "h", "statement": "maybe", "confidence": "0.5", "falsifier": "try"}
    seen = {"subject": "file://a", "observed_state": "x", "observed_at": "2026-01-01T00:00:00Z"}
    effect = {"id": "e", "kind": "mail", "target": "mail://ada", "idempotency_key": "k"}
    writer.propose(
        "entities",
        {"type": "FactConfirmed", "fact": fact},
        {"type": "HypothesisProposed", "hypothesis": guess},
        {"type": "QuestionOpened", "question": {"id": "q", "text": "why?"}},
        {"type": "TaskAdded", "task": {"id": "t", "title": "find it"}},
        {"type": "EnvironmentObserved", **seen},
        {"type": "ArtifactAdded", "artifact": {"id": "a", "uri": "artifact://1"}},
        {"type": "EffectIntended", "effect": effect},
        {"type": "SignalReceived", "key": "later", "signal_id": "s"},
    )
    checkpoint = {"id": "c", "boundary": "before_effect", "data": {"n": 1}}
    writer.propose("entities", {"type": "CheckpointTaken", "checkpoint": checkpoint})
    writer.fail("entities", "no network")
    writer.start("waits")
    writer.wait("waits", "approval", None)


def tail(writer: Writer) -> None:
    """What comes after the snapshot."""
    for run_id in ("plain", "failed_once", "both_in_retry", "entities"):
        writer.propose(run_id, SPENT)
    writer.move("failed_once", "running")
    writer.fail("failed_once", "no network again")


def damaged(writer: Writer) -> None:
    """Runs of which one will be changed by hand."""
    for run_id in ("good", "bad"):
        writer.start(run_id)
        writer.fail(run_id, "no network")


def break_by_hand(writer: Writer) -> None:
    """Make the count of a run's retries another one than its transitions say."""
    holder = seat_of(writer.engine)._holder
    assert holder is not None
    store: Any = holder.held[0].partition.store
    key = keys.slot_key("bad", "header", "")
    header = json.loads(store.get(key))
    header["retry_count"] += 4
    store.write({key: json.dumps(header, sort_keys=True, separators=(",", ":")).encode()})


def write(folder: Path, name: str) -> None:
    """Write one home, packed, and what it shows."""
    if (folder / f"{name}.tar.gz").exists():
        return
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch, name)
        writer = Writer(home, 2 if name == "runs" else 1)
        with writer.engine:
            all_kinds(writer) if name == "runs" else damaged(writer)
            if name == "damaged":
                break_by_hand(writer)
            writer.engine.take_snapshots()
            if name == "runs":
                tail(writer)
            shown = {
                "digest": writer.engine.digest(),
                "documents": {
                    row.run_id: writer.engine.run(row.run_id).state().to_dict()  # type: ignore[union-attr]
                    for row in sorted(writer.engine.runs(), key=lambda row: row.run_id)
                },
            }
        for file in home.rglob("LOG*"):
            file.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as packed:
            packed.add(home, name)
    (folder / f"{name}.json").write_text(json.dumps(shown, indent=1, sort_keys=True) + "\n")


def unpacked(folder: Path, name: str, target: Path) -> Path:
    """A golden home, unpacked below a folder."""
    with tarfile.open(folder / f"{name}.tar.gz") as packed:
        packed.extractall(target, filter="data")
    return target / name


def main() -> None:
    """Write the homes of a format that are not there yet."""
    folder = GOLDEN / f"format-{sys.argv[1]}"
    for name in ("runs", "damaged"):
        write(folder, name)


if __name__ == "__main__":
    main()
