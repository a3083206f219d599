"""Real processes for tests: a child that runs some code, and what a folder's files look like."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def child(start: str, code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code` after the one line `start`; killed at the end."""
    command = [sys.executable, "-c", f"{start}\n{textwrap.dedent(code)}", *map(str, args)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str) -> str:
    """Give a child one line, and return the next that it prints."""
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()
    return line(process)


def files(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Every file below `folder`: hash, size and time of modification; and the folders' times."""
    found = {".": ("", 0, folder.stat().st_mtime_ns)}
    for path in sorted(folder.rglob("*")):
        # A FIFO would wait for somebody to write.
        content = path.read_bytes() if path.is_file() else b""
        about = path.stat()
        digest = hashlib.sha256(content).hexdigest()
        found[str(path.relative_to(folder))] = (digest, about.st_size, about.st_mtime_ns)
    return found


def settled(folder: Path) -> dict[str, tuple[str, int, int]]:
    """The files once nobody has written for half a second: an outcome is told when it is in the
    log, and the projection is written after that."""
    seen, quiet = files(folder), 0
    while quiet < 5:
        time.sleep(0.1)
        now = files(folder)
        seen, quiet = now, quiet + 1 if now == seen else 0
    return seen
