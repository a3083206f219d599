"""Threads in which a call runs undisturbed by signals, while its caller waits.

Python runs the handlers of signals in the main thread, between any two steps of it: a Ctrl-C there
may leave a lock taken, or a proposal forgotten by those who wait for it. In another thread nothing
is ever interrupted.

Invariants:
- The main thread never does the work of a call itself; others, which no signal reaches, do. What it
  may begin by itself (``begin`` of a seat) leaves nothing half done wherever it ends.
- An interrupted caller goes away at once; the work goes on to its end, and what it made that
  nobody gets is undone.
- A forked child has none of these threads, and makes its own.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class _Call:
    """A piece of work, what it gave, and a lock that is let go when it is done."""

    def __init__(self, work: Callable[[], Any], undo: Callable[[Any], object]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()
        self._work, self._undo = work, undo
        self._deciding = threading.Lock()
        self._ended = self._given_up = False

    def run(self) -> None:
        """Do it."""
        try:
            self.value = self._work()
        except BaseException as error:  # raised again where the caller waits
            self.error = error
        with self._deciding:
            self._ended, given_up = True, self._given_up
        if given_up and self.error is None:
            self._undo(self.value)

    def give_up(self) -> None:
        """Nobody takes what it gives."""
        with self._deciding:
            self._given_up = True
            ended = self._ended
        if ended and self.error is None:
            self._undo(self.value)


class Apart:
    """Threads for the calls of the main thread, made when none is idle."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._pid = os.getpid()

    def call(self, work: Callable[[], T], undo: Callable[[T], object] = lambda value: None) -> T:
        """What ``work`` gives or raises; ``undo`` is for what an interrupted caller cannot get."""
        if threading.current_thread() is not threading.main_thread():
            return work()
        call = _Call(work, undo)
        try:
            self._idle_queue().put(call)
            call.done.acquire()
        except BaseException:
            call.give_up()
            raise
        if call.error is not None:
            raise call.error
        value: T = call.value
        return value

    def _idle_queue(self) -> "SimpleQueue[_Call | None]":
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._start()

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            self._idle.pop().put(None)

    def _start(self) -> "SimpleQueue[_Call | None]":
        queue: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(
            target=self._serve, args=(queue,), name="foldlog-apart", daemon=True
        ).start()
        return queue

    def _serve(self, queue: "SimpleQueue[_Call | None]") -> None:
        while (call := queue.get()) is not None:
            call.run()
            # Idle before the caller goes on, or each call would need a thread of its own.
            self._idle.append(queue)
            call.done.release()
            del call
