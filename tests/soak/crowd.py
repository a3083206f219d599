"""The soak itself: a daemon, workers, people who answer, and somebody who kills and stops them.

Invariants:
- Whoever is killed is started again; nobody repairs anything.
- At the end every run is finished, nothing was done more often than a reconciler allowed, and the
  log verifies. In between no run that a worker could take stands still (standstill.py).
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.errors import FoldlogError
from foldlog.home import LOG_FILE
from foldlog.results import RunSummary
from tests.soak.agent import Outside
from tests.soak.standstill import Standstill
from tests.workers import environment, start_daemon, until

STOPPED_SECONDS = 8.0
"""A daemon is stopped for less than the 10 s after which everybody is told of it, mostly."""

CALM_SECONDS = 300.0
"""After the last blow a run ends within so long of the one before it, until all have ended."""


@dataclass
class Soak:
    """One soak in a folder: ``workers`` at ``runs``, for at least ``seconds``."""

    folder: Path
    seconds: float
    workers: int
    runs: int
    seed: int = 0
    pause: float = 1.5
    lease: int = 15
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.home = self.folder / "home"
        self.crowd: list[subprocess.Popen[bytes]] = []
        self.stopped: dict[subprocess.Popen[bytes], float] = {}
        self.over = threading.Event()
        self.trouble: list[str] = []
        self.stuck: set[str] = set()
        self.standstill = Standstill(self.home / LOG_FILE)
        self.begun = 0

    def run(self) -> None:
        """All of it, checks included."""
        Engine.open(self.home, create=True, partitions=2, author="user:ada").close()
        with self._world(), self._everybody():
            self.outside = Outside(self.folder)
            people = threading.Thread(target=self._people)
            people.start()
            try:
                self._disturb()
                self._calm()
            finally:
                self.over.set()
                people.join()
        self._check()

    # Who takes part

    @contextlib.contextmanager
    def _world(self) -> Iterator[None]:
        command = [sys.executable, "-m", "tests.soak.outside", str(self.folder), str(self.seed)]
        with subprocess.Popen(command, env=environment()) as world:
            try:
                until(lambda: (self.folder / "port").exists())
                yield
            finally:
                world.kill()

    @contextlib.contextmanager
    def _everybody(self) -> Iterator[None]:
        self.daemon = start_daemon(self.home, self.folder / "daemon.log")
        try:
            self.crowd = [self._worker(number) for number in range(self.workers)]
            yield
        finally:
            for process in (self.daemon, *self.crowd):
                process.kill()
                process.communicate()

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        self.counts["workers"] += 1
        name = f"w{number}-{self.counts['workers']}"
        options = map(str, (self.home, self.folder, name, self.counts["workers"], self.lease))
        with (self.folder / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.soak.agent", *options],
                stdout=subprocess.DEVNULL, stderr=log, env=environment(),
            )  # fmt: skip

    def _people(self) -> None:
        """Start runs bit by bit, answer what is asked, and look whether anything stands still."""
        began = time.monotonic()
        with Engine.open(self.home, author="user:ada") as engine:
            while not self.over.wait(min(1.0, self.pause)):
                try:
                    share = (time.monotonic() - began) / (self.seconds * 0.7)
                    while self.begun < min(self.runs, round(self.runs * share) + 1):
                        engine.start(f"run_{self.begun}", goal="soak", timeout=60)
                        self.begun += 1
                    rows = engine.runs()
                    for row in rows:
                        self._answer(engine, row)
                    self._look(rows)
                except (FoldlogError, OSError) as error:
                    self.counts[f"people met {type(error).__name__}"] += 1

    def _answer(self, engine: Engine, row: RunSummary) -> None:
        if row.waiting is None or row.waiting.kind == "timer":
            return
        key = row.waiting.key
        payload: Any = {"granted": True}
        if key.startswith("effect/"):
            payload = self._told(engine, row.run_id, key.removeprefix("effect/"))
        elif key != "go":
            self.trouble.append(f"{row.run_id} waits for {key}: {row.waiting.reason}")
        engine.run(row.run_id).signal(key, payload, timeout=60)
        self.counts[f"answered {key.split('/')[0]}"] += 1

    def _told(self, engine: Engine, run_id: str, effect_id: str) -> Any:
        """What a person finds out about an effect: the key is given up first."""
        state = engine.run(run_id).state()
        assert state is not None
        effect = next(each for each in state.effects if each.id == effect_id)
        done = self.outside.void(effect.idempotency_key)
        told = {"outcome": "succeeded" if done else "failed", "evidence": "world:asked"}
        return {**told, "key_given_up": True}

    def _look(self, rows: Sequence[RunSummary]) -> None:
        """No run that a worker should take is passed over, and the log goes on."""
        self.standstill.read()
        runs = {row.run_id for row in rows if row.status not in ("finish", "waiting")}
        for run_id in sorted(runs - self.stuck):
            if self.standstill.is_stuck(run_id):
                self.stuck.add(run_id)
                self.trouble.append(f"{run_id} stands still while others go on")
        if runs and self.standstill.is_silent():
            self.trouble.append("nothing goes on at all")

    # Who disturbs

    def _disturb(self) -> None:
        end = time.monotonic() + self.seconds
        while (now := time.monotonic()) < end:
            for process, until_ in list(self.stopped.items()):
                if now >= until_:
                    self._wake(process)
            self._strike(now)
            time.sleep(self.dice.uniform(0, 2 * self.pause))

    def _strike(self, now: float) -> None:
        luck, victim = self.dice.random(), self.dice.randrange(len(self.crowd))
        if luck < 0.6:
            self.counts["killed workers"] += 1
            self._replace(victim)
        elif luck < 0.85:
            self._stop(self.crowd[victim], now + self.dice.uniform(0, 1.5 * self.lease), "workers")
        elif luck < 0.93:
            self.counts["killed daemons"] += 1
            self._wake(self.daemon)
            self.daemon.kill()
            self.daemon.communicate()
            self.daemon = start_daemon(self.home, self.folder / "daemon.log")
        else:
            self._stop(self.daemon, now + self.dice.uniform(0, STOPPED_SECONDS), "daemons")

    def _replace(self, number: int) -> None:
        self._wake(self.crowd[number])
        self.crowd[number].kill()
        self.crowd[number].communicate()
        self.crowd[number] = self._worker(number)

    def _stop(self, process: subprocess.Popen[bytes], until_: float, what: str) -> None:
        if process not in self.stopped and process.poll() is None:
            self.counts[f"stopped {what}"] += 1
            self.stopped[process] = until_
            process.send_signal(signal.SIGSTOP)

    def _wake(self, process: subprocess.Popen[bytes]) -> None:
        if self.stopped.pop(process, None) is not None:
            process.send_signal(signal.SIGCONT)

    def _calm(self) -> None:
        """Nobody disturbs any more: whatever is left ends."""
        for process in list(self.stopped):
            self._wake(process)
        for number, process in enumerate(self.crowd):
            if process.poll() is not None:
                self.trouble.append(f"worker {number} ended by itself with {process.returncode}")
                self.crowd[number] = self._worker(number)
        with Engine.open(self.home) as engine:
            finished = 0
            while finished < self.runs:
                until(partial(self._have_finished, engine, finished + 1), CALM_SECONDS, pause=1.0)
                finished = max(finished, self._finished(engine))

    def _have_finished(self, engine: Engine, count: int) -> bool:
        return self._finished(engine) >= count

    def _finished(self, engine: Engine) -> int:
        try:
            return len(engine.runs(status="finish"))
        except FoldlogError:
            return 0

    # What then holds

    def _check(self) -> None:
        ledger = (self.folder / "ledger.jsonl").read_text().splitlines()
        lines = [json.loads(line) for line in ledger]
        done = Counter(line["did"] for line in lines if "did" in line)
        allowed, settled = Counter[str](), Counter[str]()
        with Engine.open(self.home) as engine:
            for number in range(self.runs):
                state = engine.run(f"run_{number}").state()
                assert state is not None
                assert (state.status, state.result) == ("finish", "completed"), state
                for effect in state.effects:
                    self.counts[f"effects {effect.status} {effect.outcome}"] += 1
                    settled[effect.idempotency_key] += effect.outcome == "succeeded"
                    allowed[effect.idempotency_key] += 1
                    assert effect.outcome is not None, (number, effect)
            report = engine.verify(redecide=True)
            assert report.ok, report.first_difference
            self.counts["records"] = report.records
        # Nothing without an intent; each at most once for each attempt that a reconciler let go.
        assert set(done) <= set(allowed), sorted(set(done) - set(allowed))
        often = {key: count for key, count in done.items() if count > allowed[key]}
        assert not often, often
        lost = [key for key, count in settled.items() if count and not done[key]]
        assert not lost, lost
        self.counts["done outside"] = sum(done.values())
        self.counts["done twice, the first said to have failed"] = sum(
            count - 1 for count in done.values()
        )
        assert not self.trouble, self.trouble[:5]
