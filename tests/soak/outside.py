"""The outside world of the soak: it does what it is told, as often as it is told, and keeps count.

    python -m tests.soak.outside FOLDER SEED

POST /do {key, kind}, GET /found?key=KEY, and POST /void {key}: from then on that key is refused.
Now and then it answers late, or does what it is told and hangs up without a word. Its ledger is
FOLDER/ledger.jsonl: a line for each time that something was done, and for each key given up.

Invariants:
- One caller at a time: once a key is given up, nothing of it is on its way to be done.
- A line is on disk before its answer leaves.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class World(ThreadingHTTPServer):
    """The world: a ledger, and what may be asked of it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), Caller)
        self.ledger = (folder / "ledger.jsonl").open("a", encoding="utf-8")
        self.dice = random.Random(seed)
        self.alone = threading.Lock()
        self.done: Counter[str] = Counter()
        self.void: set[str] = set()
        ready = folder / "port.new"
        ready.write_text(str(self.server_port))
        ready.rename(folder / "port")

    def write(self, **line: Any) -> None:
        """A line of the ledger, durable."""
        self.ledger.write(json.dumps(line) + "\n")
        self.ledger.flush()
        os.fsync(self.ledger.fileno())

    def do(self, body: dict[str, str]) -> bool:
        """Do what is asked; whether it was done."""
        if body["key"] in self.void:
            return False
        self.done[body["key"]] += 1
        self.write(did=body["key"], kind=body["kind"])
        return True

    def give_up(self, key: str) -> int:
        """Refuse a key from now on; how often it was done."""
        self.void.add(key)
        self.write(void=key)
        return self.done[key]


class Caller(BaseHTTPRequestHandler):
    """One call."""

    server: World

    def do_GET(self) -> None:
        """How often a key was done."""
        [key] = parse_qs(urlsplit(self.path).query)["key"]
        with self.server.alone:
            self.answer(200, self.server.done[key])

    def do_POST(self) -> None:
        """Do something, or give a key up."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.alone:
            luck = self.server.dice.random()
            if self.path == "/void":
                self.answer(200, self.server.give_up(body["key"]))
                return
            done = self.server.do(body)
        if luck < 0.1:
            time.sleep(luck * 5)
        if luck < 0.05:
            self.close_connection = True
            return  # hangs up
        self.answer(200 if done else 409, done)

    def answer(self, status: int, body: Any) -> None:
        """Send JSON; who has died meanwhile does not hear it."""
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    World(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
