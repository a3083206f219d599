"""What a monitor scrapes of a projector's home: a page of numbers, in the text form of Prometheus.

Invariants:
- It is served by the supervisor, never by a process that turns a partition.
- The log is asked when the page is asked for, and not more often than every few seconds.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from foldlog.core.alarms import CODES
from foldlog.errors import FoldlogError

FRESH_SECONDS = 5.0

logger = logging.getLogger("foldlog")

HELP = {
    "foldlog_up": "Whether the log answered.",
    "foldlog_healthy": "Whether the members of this home go on, and what waits is being decided.",
    "foldlog_lag": "Proposals that wait, by what the group's members report.",
    "foldlog_oldest_waiting_seconds": "How long ago the log took the first of them.",
    "foldlog_turned_seconds": "How long ago the member of this home that is worst off worked.",
    "foldlog_alarms": "Runs of the partitions turned here that have an alarm of this code.",
    "foldlog_workers": "Worker processes of this supervisor that are there.",
    "foldlog_worker_starts_total": "How often it started one.",
}


def page(found: Mapping[str, float]) -> str:
    """The numbers as text; names that are not there have no number at the moment."""
    lines = []
    for name, words in HELP.items():
        series = [each for each in found if each.partition("{")[0] == name]
        if series:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
            lines += [f"{each} {found[each]:g}" for each in series]
    return "\n".join(lines) + "\n"


class Metrics:
    """Answers ``GET /metrics`` on an address (port 0: any) until it is closed.

    ``health`` is what `project --health` says; ``own`` are numbers of the process itself.
    """

    def __init__(
        self,
        address: tuple[str, int],
        health: Callable[[], dict[str, Any]],
        own: Callable[[], Mapping[str, float]],
    ) -> None:
        self._health, self._own = health, own
        self._lock = threading.Lock()
        self._found: dict[str, float] = {}
        self._fresh_until = 0.0
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            """Knows one page."""

            def do_GET(self) -> None:
                """Answer."""
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                text = page(metrics.numbers()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(text)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing: a scrape is no event."""

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def numbers(self) -> dict[str, float]:
        """All numbers, as of a few seconds ago at most."""
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._found = self._asked()
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            return {**self._found, **self._own()}

    def _asked(self) -> dict[str, float]:
        try:
            found = self._health()
        except FoldlogError as error:
            logger.debug("the log does not answer: %s", error)
            return {"foldlog_up": 0, "foldlog_healthy": 0}
        numbers = {
            "foldlog_up": 1,
            "foldlog_healthy": found["healthy"],
            "foldlog_lag": found["lag"],
        }
        for name, value in (
            ("foldlog_oldest_waiting_seconds", found["waiting_seconds"]),
            ("foldlog_turned_seconds", found["turned_ago"]),
        ):
            if value is not None:
                numbers[name] = value
        if (alarms := found["alarms"]) is not None:  # each code, so that one is seen to go away
            numbers |= {f'foldlog_alarms{{code="{code}"}}': alarms.get(code, 0) for code in CODES}
        return numbers

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
