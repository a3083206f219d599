"""A lock between processes that serves them in the order they came.

SQLite's own wait for its write lock is a sleep that grows: of two processes writing all the time
one gets in once in three seconds. A plain flock lets the one that just let go take it again (a
quarter of a second at worst). Here a writer first takes the queue file, then the lock file, then
lets the queue go: whoever comes back stands behind the one that waits. The kernel frees both when
a process dies, whatever killed it.

It frees neither when a process is stopped. One stopped with the lock is inside its write, and has
to be waited for. One stopped as the first of the queue holds up everybody behind it, and for
nothing: so whoever waits looks now and then whether the lock is free, and takes it out of turn.

Invariants:
- Held means: an exclusive flock on the lock file by a descriptor of this object. The queue says
  who comes next; nothing else rests on it.
- A free lock is taken by one of those who wait, whoever stands before them in the queue.
- A wait ends after `patience_s` at the latest, and a wait given up keeps nobody from the lock.
- One thread of a lock at most stands in the queue. Left there, it goes once its turn comes.
- A forked child holds nothing: `forget` closes what it inherited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time

LOOK_S_MIN, LOOK_S_MAX = 0.002, 0.05
"""Between two looks whether the lock is free. The long one in a crowd, where a turn takes time to
come and looking takes time from those who write. Shorter ones where the queue seems to stand still:
a place that was left in it has not come to its turn."""


class _Place:
    """A place in the queue: a thread stands there, since flock knows no time limit."""

    def __init__(self) -> None:
        self.wanted = True
        self.turn = threading.Event()
        self.lock = -1
        self.error: OSError | None = None


class FairLock:
    """An exclusive lock on `path` + ".lock", with `path` + ".queue" as its queue.

    One thread at a time may hold one FairLock; the caller sees to that.
    """

    def __init__(self, path: str, patience_s: float) -> None:
        self._lock_path = path + ".lock"
        self._queue_path = path + ".queue"
        self._patience_s = patience_s
        self._descriptors: set[int] = set()
        self._held = -1
        self._place: _Place | None = None
        self._handover = threading.Lock()

    def acquire(self) -> bool:
        """Take the lock; False if it could not be had in time. OSError if the files cannot be."""
        assert self._held < 0, "the lock is held already"
        place, pause = self._place_left(), LOOK_S_MIN
        if place is None:
            queue, lock = self._open_both()
            if _try_flock(queue) and _try_flock(lock):
                self._close(queue)
                return self._hold(lock)
            place, pause = self._stand(queue, lock), LOOK_S_MAX
        return self._wait(place, pause)

    def release(self) -> None:
        """Let the lock go."""
        held, self._held = self._held, -1
        self._close(held)

    def holder(self) -> str:
        """Who took the lock last, as "pid 123", for a message; "another process" if unknown."""
        try:
            with open(self._lock_path, encoding="ascii") as file:
                return f"pid {int(file.read(20))}"
        except (OSError, ValueError):
            return "another process"

    def forget(self) -> None:
        """In a forked child: close what was inherited, without freeing the parent's lock."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = set()

    # The queue

    def _place_left(self) -> _Place | None:
        """The place that an earlier wait left in the queue, wanted again; None if there is none."""
        with self._handover:
            if self._place is not None:
                self._place.wanted = True
            return self._place

    def _stand(self, queue: int, lock: int) -> _Place:
        """Have a thread stand in the queue, and then wait for the lock."""
        place = _Place()
        thread = threading.Thread(
            target=self._queue_up, args=(place, queue, lock), name="foldlog-log-lock", daemon=True
        )
        with self._handover:
            try:
                thread.start()
            except BaseException:
                self._close(queue)
                self._close(lock)
                raise
            self._place = place
        return place

    def _queue_up(self, place: _Place, queue: int, lock: int) -> None:
        try:
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            place.error = error
        self._close(queue)
        with self._handover:
            self._place = None
            if place.wanted and place.error is None:
                place.lock = lock
            else:
                self._close(lock)
            place.turn.set()

    def _leave(self, place: _Place) -> int:
        """Want the place no longer; what has the lock, or -1 if the place's turn has not come."""
        with self._handover:
            place.wanted = False
            return place.lock

    def _wait(self, place: _Place, pause: float) -> bool:
        spare = self._open(self._lock_path)
        try:
            was_free = self._await(place, spare, pause)
        except BaseException:
            # Also where a signal's handler raised: nobody else would let go of the lock.
            self._close(spare)
            if (lock := self._leave(place)) >= 0:
                self._close(lock)
            raise
        lock = self._leave(place)
        if was_free:
            return self._hold(spare)
        self._close(spare)
        if lock >= 0:
            return self._hold(lock)
        if place.error is not None:
            raise place.error
        return False

    def _await(self, place: _Place, spare: int, pause: float) -> bool:
        """Wait until the place's turn has come or the time is up; True as soon as the lock was
        free although it was not: then `spare` has it."""
        end = time.monotonic() + self._patience_s
        stands_still = pause < LOOK_S_MAX
        while (left := end - time.monotonic()) > 0:
            if place.turn.wait(min(pause, left)):
                return False
            if not _try_flock(spare):
                stands_still, pause = False, min(2 * pause, LOOK_S_MAX)
            elif stands_still:
                return True
            else:  # let go a moment ago, maybe: the first of the queue has a moment to take it
                fcntl.flock(spare, fcntl.LOCK_UN)
                stands_still, pause = True, LOOK_S_MIN
        return False

    # Descriptors

    def _hold(self, lock: int) -> bool:
        self._held = lock
        # The pid is for a message only, so a full disk must not stand in the way.
        with contextlib.suppress(OSError):
            os.pwrite(lock, b"%-20d" % os.getpid(), 0)
        return True

    def _open_both(self) -> tuple[int, int]:
        queue = self._open(self._queue_path)
        try:
            return queue, self._open(self._lock_path)
        except BaseException:
            self._close(queue)
            raise

    def _open(self, path: str) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._descriptors.add(descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        # Unlocked before it is closed: a child forked meanwhile holds a copy of the descriptor,
        # and closing alone would leave the lock with that child.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._descriptors.discard(descriptor)
        os.close(descriptor)


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
