"""The demo's story: an agent killed anywhere goes on from its Run State, and repeats no effect.

Invariants:
- The agent under test is the one in `examples/story`, unchanged: it is killed from outside, or by
  what the tests put around the two calls that leave its process.
- The desk does what it is asked as often as it is asked; that nothing is there twice is the
  agent's doing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foldlog.client import Engine
from tests.processes import line
from tests.test_readme import environment as environment  # the `foldlog` under test, on PATH

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
STORY = EXAMPLES / "story"
RUN, APPROVAL = "release-1", "publish-1.4.1"
STARTS_MAX = 30

# Runs the agent and ends it, without a word, at the Nth of its calls of one kind: proposals, or
# requests to the desk; before the call, or after it.
KILLER = """
import http.client, os, runpy, signal, sys
from foldlog.client import Run
agent, kind, moment, number, run_id = sys.argv[1:]
owner, name = {"propose": (Run, "propose"), "desk": (http.client.HTTPConnection, "request")}[kind]
call, calls = getattr(owner, name), []
def counted(*args, **options):
    calls.append(1)
    mine = len(calls) == int(number)
    if mine and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = call(*args, **options)
    if mine:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
setattr(owner, name, counted)
sys.argv = [agent, run_id]
runpy.run_path(agent, run_name="__main__")
"""


def _environment() -> dict[str, str]:
    """The sources under test also for a process in another folder."""
    kept = dict(os.environ)
    if "PYTHONPATH" in kept:
        folders = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(folder).resolve()) for folder in folders)
    return kept


class Job:
    """A folder with a home, a workspace and a desk, and an agent that is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starts = 0

    def agent(self, *killer: str) -> subprocess.Popen[str]:
        """Start the agent once."""
        self.starts += 1
        assert self.starts < STARTS_MAX, "the agent does not come on"
        agent = str(STORY / "agent.py")
        command = ["-c", KILLER, agent, *killer, RUN] if killer else [agent, RUN]
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.folder, env=_environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run_agent(self, *killer: str) -> int:
        """Start it once and return its exit code, negative if it was killed."""
        with self.agent(*killer) as process:
            said, _ = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), said
        return process.returncode

    def approve(self, granted: bool = True) -> None:
        """What a person says when the run waits for them."""
        with Engine.open(self.folder / ".foldlog", author="user:eva") as engine:
            state = engine.run(RUN).state()
            assert state is not None
            assert state.waiting is not None, state.status
            engine.run(RUN).signal(APPROVAL, {"granted": granted}, signal_id="answer")

    def finish(self) -> None:
        """Let the agent work on undisturbed, to the end."""
        assert self.run_agent() == 0
        if self.is_waiting():
            self.approve()
            assert self.run_agent() == 0

    def is_waiting(self) -> bool:
        """Whether the run waits for somebody."""
        with Engine.open(self.folder / ".foldlog") as engine:
            state = engine.run(RUN).state()
            return state is not None and state.waiting is not None

    def ledger(self) -> list[Any]:
        """What the outside world was asked to do."""
        text = (self.folder / "desk" / "ledger.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def check(self) -> None:
        """The run is completed, each effect happened once, and the log verifies."""
        assert [entry["action"] for entry in self.ledger()] == ["submit", "publish"]
        with Engine.open(self.folder / ".foldlog") as engine:
            state = engine.run(RUN).state()
            assert state is not None
            assert (state.status, state.result) == ("finish", "completed")
            assert {task.status for task in state.tasks} == {"completed"}
            done = [e.idempotency_key for e in state.effects if e.outcome == "succeeded"]
            assert sorted(done) == [f"{RUN}/publish", f"{RUN}/submit"]
            assert state.pending_tool_calls == []
            for fact in state.confirmed_facts:
                assert (self.folder / fact.evidence.removeprefix("file:")).exists()
            assert engine.verify(redecide=True).ok


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that was just given, and a desk that answers."""
    shutil.copytree(STORY / "shop", tmp_path / "shop")
    (tmp_path / "desk").mkdir()
    desk = [sys.executable, str(STORY / "outside.py"), "desk", "--first-answer-after", "0.2"]
    with subprocess.Popen(desk, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert "open" in line(process)
            with Engine.open(tmp_path / ".foldlog", create=True, author="user:ada") as engine:
                engine.start(RUN, goal="Mend the rounding of prices, and release 1.4.1")
            yield Job(tmp_path)
        finally:
            process.kill()


def test_the_story_without_a_crash(job: Job) -> None:
    """The agent waits for its approval, is started again, and finishes; nothing is left to do."""
    assert job.run_agent() == 0
    assert job.is_waiting()
    assert job.run_agent() == 0, "it may look again meanwhile"
    job.approve()
    assert job.run_agent() == 0
    job.check()
    assert job.run_agent() == 0
    job.check()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_again_and_again(job: Job, moment: str) -> None:
    """No process lives for more than four or five proposals, and the job is done all the same.

    Four are the lease, the end of a call that was interrupted, a call, and its report: with fewer
    it could not come on. Killed before one, the process never reports what it has just done.
    """
    least = 5 if moment == "before" else 4
    while job.run_agent("propose", moment, str(least + job.starts % 2)) != 0 or job.is_waiting():
        if job.is_waiting():
            job.approve()
    job.check()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", ["1", "2"])
def test_killed_at_a_request_to_the_desk(job: Job, moment: str, number: str) -> None:
    """Killed before a request left or with its answer under way: the desk does it once."""
    while job.run_agent("desk", moment, number) != 0 and job.starts < 3:
        pass
    job.finish()
    job.check()


def test_killed_while_the_desk_has_done_it(job: Job) -> None:
    """The worst moment, as the demo shows it: the ledger has it, the run does not know."""
    with job.agent() as process:
        while not job.ledger():
            assert process.poll() is None
        process.kill()
    with Engine.open(job.folder / ".foldlog") as engine:
        state = engine.run(RUN).state()
        assert state is not None
        assert [effect.status for effect in state.effects] in ([], ["intended"], ["succeeded"])
    job.finish()
    job.check()


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments(job: Job, seed: int) -> None:
    """Killed again and again, at any moment: each effect happens once, and the run completes."""
    chance = random.Random(seed)
    for _ in range(8):
        with job.agent() as process:
            try:
                process.wait(chance.uniform(0.1, 1.5))
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()
        if job.is_waiting():
            job.approve()
    job.finish()
    job.check()


def test_a_refusal_is_an_answer_too(job: Job) -> None:
    """Without the approval nothing is published, and the run finishes as failed."""
    assert job.run_agent() == 0
    job.approve(granted=False)
    assert job.run_agent() == 0
    assert [entry["action"] for entry in job.ledger()] == ["submit"]
    with Engine.open(job.folder / ".foldlog") as engine:
        state = engine.run(RUN).state()
        assert state is not None
        assert (state.status, state.result) == ("finish", "failed")


def test_the_script(environment: dict[str, str]) -> None:
    """`make demo` ends well, shows the doubt and how it was settled, and finds the forger out."""
    environment["PYTHON"] = sys.executable
    done = subprocess.run(
        [str(EXAMPLES / "demo.sh")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for shown in (
        "in doubt    effect submit-1: submit desk:releases/1.4.1 is intended",
        "the desk has 1 such entry: submit-1 has succeeded",
        "the run is finished: completed",
        "ok: the log verifies; 25 records in 4 partitions",
        "  run release-1, sequence 20",
        "exit code 5",
    ):
        assert shown in done.stdout
    [*_, before, after] = done.stdout.split("$ cat desk/ledger.jsonl\n")
    assert (before.count('{"number"'), after.count('{"number"')) == (1, 2)
