"""The outside world: a release desk, in a process of its own with a ledger of its own.

    python outside.py FOLDER [--first-answer-after SECONDS]

It writes what it does into FOLDER/ledger.jsonl, a JSON line each, and its port into FOLDER/port.
It says when it is open.

    POST /submit  {"key": ..., "version": ..., ...}   -> 201 and the line of the ledger
    POST /publish                                     -> the same; 409 for what was not submitted
    GET  /entries?key=...                             -> 200 and the lines with this key

Invariants:
- What it is asked twice it does twice: it does not look at the key. Whoever asks has to know
  whether they asked before; it only tells them when they want to know.
- One caller at a time, in the order in which they called. So once it says that it has no such
  line, no request from before is still on its way to become one.
- A line is on disk before its answer leaves.
"""

from __future__ import annotations

import argparse
import json
import os
import select
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Entry = dict[str, Any]


class Desk(HTTPServer):
    """The desk: a ledger, and what callers may ask of it."""

    def __init__(self, folder: Path, first_answer_after: float) -> None:
        super().__init__(("127.0.0.1", 0), Caller)
        self.path = folder / "ledger.jsonl"
        self.first_answer_after = first_answer_after
        self.path.touch()
        ready = folder / "port.new"
        ready.write_text(f"{self.server_port}\n")
        ready.rename(folder / "port")

    def entries(self) -> list[Entry]:
        """Everything that was ever done."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def do(self, action: str, body: Entry) -> Entry:
        """Do what is asked: for a desk, write it down."""
        entry = {"number": len(self.entries()) + 1, "action": action, **body}
        with self.path.open("a") as ledger:
            ledger.write(json.dumps(entry) + "\n")
            ledger.flush()
            os.fsync(ledger.fileno())
        return entry

    def submitted(self, version: str) -> bool:
        """Whether a version was handed in, so that it may be published."""
        return ("submit", version) in [(e["action"], e["version"]) for e in self.entries()]


class Caller(BaseHTTPRequestHandler):
    """One call."""

    server: Desk
    timeout = 10

    def do_GET(self) -> None:
        """Tell what was done under a key."""
        key = parse_qs(urlsplit(self.path).query)["key"][0]
        self._answer(200, [entry for entry in self.server.entries() if entry["key"] == key])

    def do_POST(self) -> None:
        """Do something. A request whose end never came is none."""
        size, action = int(self.headers["Content-Length"]), self.path.strip("/")
        text = self.rfile.read(size)
        if len(text) < size:
            return
        body = json.loads(text)
        if action == "publish" and not self.server.submitted(body["version"]):
            self._answer(409, f"version {body['version']} was never submitted")
            return
        entry = self.server.do(action, body)
        if entry["number"] == 1:
            # It takes its time over the answer, or until nobody waits for it any more.
            select.select([self.connection], [], [], self.server.first_answer_after)
        self._answer(201, entry)

    def _answer(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            pass  # whoever asked has hung up; done is done

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the ledger tells it."""


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first-answer-after", type=float, default=0, metavar="SECONDS")
    options = parser.parse_args()
    desk = Desk(options.folder, options.first_answer_after)
    print(f"the desk is open at port {desk.server_port}", flush=True)
    desk.serve_forever()


if __name__ == "__main__":
    main()
