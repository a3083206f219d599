"""The supervisor: keeps a number of projectors running, each in a process of its own.

Invariants:
- A worker that ended is started again: at once the first time, later each further time it ends
  soon after its start.
- SIGTERM and SIGINT end every worker as they would end one alone; the supervisor ends last.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from foldlog_projector.signals import stopping_on_signals

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.2, 30.0
"""Before a worker is started again; twice as long each time it did not last."""

LASTED_SECONDS = 60.0
"""A worker that ran for so long begins with the short pause again."""

LOOK_SECONDS = 0.1
STOP_SECONDS = 30.0
"""How long workers have to end before they are killed; their records are safe either way."""

logger = logging.getLogger("foldlog")


@dataclass(slots=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = PAUSE_SECONDS_MIN
    starts_at: float = 0.0


class Supervisor:
    """Runs ``foldlog ARGUMENTS --worker K`` for each K."""

    def __init__(self, arguments: list[str], count: int) -> None:
        self._arguments = arguments
        self._starts = 0
        self._workers = [_Worker(number + 1) for number in range(count)]
        self._stopping = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        with stopping_on_signals(self.stop):
            try:
                while not self._stopping:
                    for worker in self._workers:
                        self._look(worker)
                    time.sleep(LOOK_SECONDS)
            finally:
                self._end_all()

    def numbers(self) -> dict[str, float]:
        """How many workers are there, and how often one was started, for a monitor."""
        there = sum(worker.process is not None for worker in self._workers)
        return {"foldlog_workers": there, "foldlog_worker_starts_total": self._starts}

    def stop(self) -> None:
        """End; safe to call from a signal handler."""
        self._stopping = True

    def _look(self, worker: _Worker) -> None:
        now = time.monotonic()
        if worker.process is None:
            if now >= worker.starts_at:
                self._start(worker, now)
        elif (code := worker.process.poll()) is not None:
            lasted = now - worker.began
            if lasted >= LASTED_SECONDS:
                worker.pause = PAUSE_SECONDS_MIN
            facts = {"event": "worker_ended", "worker": worker.number, "exit": code}
            text = "worker %d ended with %d after %.1f s; starts again in %.1f s"
            logger.warning(text, worker.number, code, lasted, worker.pause, extra=facts)
            self._rest(worker, now)

    def _rest(self, worker: _Worker, now: float) -> None:
        worker.process, worker.starts_at = None, now + worker.pause
        worker.pause = min(worker.pause * 2, PAUSE_SECONDS_MAX)

    def _start(self, worker: _Worker, now: float) -> None:
        main = "from foldlog.cli.main import main; main()"
        command = [sys.executable, "-c", main, *self._arguments, "--worker", str(worker.number)]
        try:
            worker.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            # No process or memory to be had just now: the other workers go on.
            facts = {"event": "worker_not_started", "worker": worker.number}
            text = "worker %d does not start: %s; again in %.1f s"
            logger.warning(text, worker.number, error, worker.pause, extra=facts)
            self._rest(worker, now)
            return
        worker.began = now
        self._starts += 1
        facts = {"event": "worker_started", "worker": worker.number, "pid": worker.process.pid}
        logger.info("worker %d is process %d", worker.number, worker.process.pid, extra=facts)

    def _end_all(self) -> None:
        running = [worker.process for worker in self._workers if worker.process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.warning("process %d does not end", process.pid, extra={"event": "killed"})
                process.kill()
                process.wait()
        logger.info("stopped", extra={"event": "stopped", "pid": os.getpid()})
