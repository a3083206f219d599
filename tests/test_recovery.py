"""What is acknowledged survives: a process is killed while it proposes, and the next one opens.

Invariants:
- The process is a real one and SIGKILL ends it; nothing is closed, flushed or told.
- A batch counts as acknowledged once its id was read from the dying process, after its outcome.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from foldlog import Engine

KILLS = 20

CHILD = textwrap.dedent(
    """
    import sys, threading, uuid
    from foldlog import Engine

    def work(engine, run_id):
        run = engine.start(run_id, goal="count")
        while True:
            events = [
                {"type": "FactConfirmed", "fact": {"id": str(uuid.uuid4()), "statement": "so"}},
                {"type": "BudgetSpent", "tokens": 1},
            ]
            outcome = run.propose(events)
            assert outcome.outcome == "accepted", outcome
            # One write for one line: of a killed process the last line may be cut, no other.
            sys.stdout.write(f"{run_id} {outcome.batch_id} {outcome.revision} {outcome.chain}\\n")
            sys.stdout.flush()

    with Engine.open(sys.argv[1], author="user:ada") as engine:
        for run_id in ("run_1", "run_2"):
            threading.Thread(target=work, args=(engine, run_id), daemon=True).start()
        threading.Event().wait()
    """
)


class Acknowledged(dict[tuple[str, str], tuple[int, str]]):
    """Run and batch id of every batch whose outcome was read: its revision and chain."""

    def read(self, text: str) -> int:
        """Take whole lines over; returns how many."""
        lines = text.split("\n")[:-1]
        for line in lines:
            run_id, batch_id, revision, chain = line.split()
            self[(run_id, batch_id)] = (int(revision), chain)
        return len(lines)


def killed_after(home: Path, seconds: float) -> str:
    """What a proposing process printed before it was killed, so long after its first outcome."""
    command = [sys.executable, "-c", CHILD, str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        first = process.stdout.readline()
        assert first, "the process ended by itself"
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    return first + rest


def check(engine: Engine, acknowledged: Acknowledged) -> None:
    """Every acknowledged batch is there with its outcome, and the state is the fold of the log."""
    kept = {
        (run_id, row.batch_id): (row.revision_after, row.chain)
        for run_id in ("run_1", "run_2")
        for row in engine.run(run_id).history()
    }
    lost = {key for key, outcome in acknowledged.items() if kept.get(key) != outcome}
    assert not lost
    report = engine.verify()
    assert report.ok, report.first_difference
    assert report.void == 0


def test_fault_4_nothing_acknowledged_is_lost_when_a_process_is_killed(
    tmp_path: Path,
) -> None:
    """Killed 20 times while two threads propose, the home opens every time with all that was
    acknowledged, proves itself, and gives the same digest without its projection."""
    dice = random.Random(1)
    home = tmp_path / "home"
    acknowledged = Acknowledged()
    with Engine.open(home, create=True, partitions=2):
        pass
    for kill in range(KILLS):
        read = acknowledged.read(killed_after(home, dice.random() * 0.1))
        assert read >= 1
        with Engine.open(home) as engine:
            check(engine, acknowledged)
            digest = engine.digest()
        if kill % 5 == 4:
            shutil.rmtree(home / "projection")
            with Engine.open(home) as engine:
                check(engine, acknowledged)
                assert engine.digest() == digest
    assert len(acknowledged) > 3 * KILLS


def test_fault_25_a_projection_that_is_gone_is_rebuilt(tmp_path: Path) -> None:
    """Without its projection, or with that of one partition only, a home is what it was."""
    home = tmp_path / "home"
    with Engine.open(home, create=True, partitions=3, author="user:ada") as engine:
        for number in range(6):
            run = engine.start(f"run_{number}", goal="count")
            run.propose({"type": "QuestionOpened", "question": {"id": "q", "text": "how many?"}})
        digest, shown = engine.digest(), [row.to_dict() for row in engine.runs()]
    for gone in ("projection", "projection/1"):
        shutil.rmtree(home / gone)
        with Engine.open(home) as engine:
            assert engine.digest() == digest
            assert [row.to_dict() for row in engine.runs()] == shown
            assert engine.verify().ok


def test_a_proposal_handed_in_before_the_kill_is_decided_by_the_next(tmp_path: Path) -> None:
    """What stands in the inbox undecided when a process dies is decided when the home opens."""
    home = tmp_path / "home"
    with Engine.open(home, create=True, partitions=1, author="user:ada"):
        pass
    code = textwrap.dedent(
        """
        import os, sys
        from foldlog.core.proposals import parse_proposal
        from foldlog.home import open_log
        from foldlog.wire.envelope import encode_proposal
        from pathlib import Path
        log = open_log(Path(sys.argv[1]), lambda: 1_767_225_600_000_000)
        event = {"type": "RunStarted", "goal": {"statement": "count"}}
        author = {"kind": "user", "id": "ada"}
        batch_id = "00000000-0000-0000-0000-000000000001"
        value = {"batch_id": batch_id, "author": author, "events": [event]}
        log.propose(0, [(b"run_1", encode_proposal(parse_proposal("run_1", value)))])
        os.kill(os.getpid(), 9)
        """
    )
    done = subprocess.run([sys.executable, "-c", code, str(home)], check=False)
    assert done.returncode == -signal.SIGKILL
    with Engine.open(home) as engine:
        engine.project()
        outcome = engine.run("run_1").outcome("00000000-0000-0000-0000-000000000001")
        assert outcome is not None
        assert (outcome.outcome, outcome.revision) == ("accepted", 1)
        assert outcome.log_time == "2026-01-01T00:00:00.000000Z"


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    """The right to hold a home ends with the process that held it: the next one has it at once."""
    home = tmp_path / "home"
    with Engine.open(home, create=True):
        pass
    code = (
        "import sys; from foldlog import Engine; e = Engine.open(sys.argv[1]);"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with Engine.open(home) as guest:
            assert not guest._seat.is_holder
        process.kill()
    with Engine.open(home) as engine:
        assert engine._seat.is_holder
        assert engine.verify().ok
