"""The locks of a home: who holds one, and what it says of itself.

Invariants:
- A lock ends with its process, however that ends.
- A forked child lets go of nothing that its parent holds.
"""

import contextlib
import fcntl
import json
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

from foldlog.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Note:
    """What a holder says of itself: process, role, phase, and its last turn (monotonic us).

    ``why`` says what keeps it from going on, where something does.
    """

    pid: int
    role: str
    phase: str
    turned_at: int
    why: str = ""


NOTE_BYTES = 256


class FileLock:
    """An exclusive lock on a file, held by this process until it lets go or ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        _locks.add(self)

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor >= 0

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        assert not self.held, self.path
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be locked: {error.strerror}") from error
        if not _flock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let it go; nothing if it is not held."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def is_taken(self) -> bool:
        """Whether anybody holds it."""
        if self.held:
            return True
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def write(self, note: Note) -> None:
        """Say who holds the lock; readable without it."""
        text = _note_text(note, note.why)
        if len(text) >= NOTE_BYTES:
            # A character has a byte at least: what is left out makes room for itself.
            text = _note_text(note, note.why[: NOTE_BYTES - 1 - len(text)])
        with contextlib.suppress(OSError):  # a note that cannot be written loses nothing else
            os.pwrite(self._descriptor, text.ljust(NOTE_BYTES - 1).encode() + b"\n", 0)

    def read(self) -> Note | None:
        """What the last holder said; None if nothing can be read."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Note(*json.loads(self.path.read_bytes()[:NOTE_BYTES]))
        return None


def _note_text(note: Note, why: str) -> str:
    told = [note.pid, note.role, note.phase, note.turned_at]
    return json.dumps([*told, why] if why else told)


_locks: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _let_go_in_child() -> None:
    # A forked child shares the parent's locks; closing its copies leaves them to the parent.
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
