"""Real projectors of a log on Kafka, each a process of its own, and what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.workers import FOLDLOG, environment, log_lines, until

TOLD_SECONDS = 60.0


class Projector:
    """One `foldlog project --log`, and its log."""

    def __init__(
        self,
        url: str,
        home: Path,
        *options: str,
        settings: Mapping[str, str] | None = None,
        before: str = "",
    ) -> None:
        home.mkdir(exist_ok=True)
        self.home, self.log = home, home / "projector.log"
        program = [*FOLDLOG[:-1], f"{before}\n{FOLDLOG[-1]}"]
        self.command = [*program, "project", "--log", url, "--home", str(home), *options]
        self.environment = environment()
        if settings is not None:
            file = home / "client.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            self.environment["FOLDLOG_KAFKA_SETTINGS"] = str(file)
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as out:
            return subprocess.Popen(self.command, stderr=out, env=self.environment)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The lines of one kind in its log so far."""
        return [line for line in log_lines(self.log) if line.get("event") == event]

    def await_turning(self, *partitions: int) -> None:
        """Wait until it has caught up with partitions."""
        wanted = set(partitions)
        until(lambda: wanted <= {line["partition"] for line in self.lines("folded")}, TOLD_SECONDS)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; returns once a stop has taken effect."""
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            self.await_stopped()

    def await_stopped(self) -> None:
        """Wait until it has stopped itself."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again after it has ended."""
        self.log.unlink()
        self.process = self._started()


@contextmanager
def projecting(
    url: str,
    home: Path,
    *options: str,
    settings: Mapping[str, str] | None = None,
    before: str = "",
) -> Iterator[Projector]:
    """A projector that runs ``before`` first; killed at the end if it is still there."""
    projector = Projector(url, home, *options, settings=settings, before=before)
    try:
        yield projector
    finally:
        if projector.process.poll() is None:
            projector.kill()


def health(url: str, home: Path) -> tuple[int, dict[str, Any]]:
    """What `foldlog project --health` ends with, and what it says, if the log could be asked."""
    done = subprocess.run(
        [*FOLDLOG, "project", "--health", "--log", url, "--home", str(home), "--json"],
        stdout=subprocess.PIPE,
        env=environment(),
        timeout=60,
    )
    return done.returncode, json.loads(done.stdout or "{}")
