"""The daemon: holds a home's projection, turns the log and says what it does, until told to stop.

Invariants:
- It holds ``daemon.lock`` from before it holds the projection until it ends; a worker that holds
  the projection gives it up meanwhile, and none takes it from the daemon.
- SIGTERM and SIGINT end it between two turns: nothing is half done.
- An outage is logged and waited out; a halted partition is logged and left halted.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from foldlog.client import wall_clock
from foldlog.core.values import format_instant
from foldlog.errors import HomeBusy
from foldlog.home import Home, open_home
from foldlog.plugins import installed
from foldlog.runtime import SECOND
from foldlog.seat import Seat
from foldlog.snapshots.settings import SnapshotSettings
from foldlog_projector.signals import stopping_on_signals

WAIT_US = SECOND // 20
"""Between two tries to take the projection over from a worker."""

LOCK_TRIES = 4

logger = logging.getLogger("foldlog")

STANDARD = frozenset(vars(logging.makeLogRecord({})))


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, event, message, and the facts of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; control characters are escaped, as JSON does it."""
        line: dict[str, Any] = {
            "time": format_instant(time.time_ns() // 1000),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        facts = {name: value for name, value in vars(record).items() if name not in STANDARD}
        return json.dumps({**line, **facts}, default=str)


def log_to(stream: Any = None) -> None:
    """Send what foldlog logs to a stream (stderr) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


class Daemon:
    """A home's projector. HomeBusy if another daemon is there."""

    def __init__(self, path: Path, snapshots: SnapshotSettings | None = None) -> None:
        rules = installed()
        self._home: Home = open_home(path, wall_clock, snapshots, rules)
        if not self._lock():
            note = self._home.holder()
            self._home.close()
            pid = None if note is None or note.role != "daemon" else note.pid
            who = "another process" if pid is None else f"process {pid}"
            raise HomeBusy(f"{who} is the daemon of {path} already", pid)
        self._home.listen()
        self._stopping = False
        self.seat = Seat(self._home, wall_clock, daemon=True, rules=rules)

    def _lock(self) -> bool:
        # Who asks whether a daemon is there holds the lock for a moment: try for longer than that.
        for _ in range(LOCK_TRIES):
            if self._home.daemon_lock.try_acquire():
                return True
            time.sleep(WAIT_US / SECOND)
        return False

    def stop(self) -> None:
        """End after the turn that runs; safe to call from a signal handler."""
        self._stopping = True
        self._home.ring()

    def run(self) -> None:
        """Turn the log until ``stop``."""
        logger.info("starts", extra={"event": "started", "home": str(self._home.path)})
        try:
            self._take()
            while not self._stopping:
                self._home.rest(self.seat.tick())
        finally:
            self.seat.close()
            logger.info("stopped", extra={"event": "stopped"})

    def _take(self) -> None:
        """Take the projection; a worker that holds it is told by the lock and the ring."""
        said = False
        while not self._stopping and not self.seat.take_if_it_can():
            if not said:
                said = True
                note = self._home.holder()
                pid = None if note is None else note.pid
                facts = {"event": "waiting", "pid": pid}
                logger.info("waits for process %s to give the projection up", pid, extra=facts)
            self._home.ring()
            time.sleep(WAIT_US / SECOND)


def run_daemon(path: Path, snapshots: SnapshotSettings | None = None) -> None:
    """Run a daemon in this process until SIGTERM or SIGINT."""
    daemon = Daemon(path, snapshots)
    with stopping_on_signals(daemon.stop):
        daemon.run()
