"""The outside world of the order agent: a warehouse that ships what it is told, each time.

    python warehouse.py FOLDER

It keeps its own ledger, FOLDER/ledger.jsonl, and writes its port to FOLDER/port. It answers
POST /orders {key, item}, GET /orders?key=KEY, and POST /void {key}: from then on an order of that
key is refused, also one that was on its way.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

folder = Path(sys.argv[1])
ledger = folder / "ledger.jsonl"
voided: set[str] = set()


def orders(key: str) -> list[dict[str, Any]]:
    """What was ordered under a key."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [order for order in map(json.loads, lines) if order["key"] == key]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    def do_GET(self) -> None:
        [key] = parse_qs(urlparse(self.path).query)["key"]
        self.answer(200, orders(key))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/void":
            voided.add(body["key"])
            self.answer(200, orders(body["key"]))
        elif body["key"] in voided:
            self.answer(409, {"error": "this key was given up"})
        else:
            with ledger.open("a") as file:
                file.write(json.dumps(body) + "\n")
            self.answer(200, {"order": len(ledger.read_text().splitlines())})

    def answer(self, status: int, body: Any) -> None:
        """Send JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


server = HTTPServer(("127.0.0.1", 0), Handler)
(folder / "port").write_text(str(server.server_port))
print("open", flush=True)
server.serve_forever()
