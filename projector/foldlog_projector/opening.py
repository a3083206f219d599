"""A partition's store being opened in a thread of its own, since it may have to be restored first.

Invariants:
- Who gives an opening up gets no store of it: one that comes all the same is closed.
- It is asked whether to go on between any two pieces of work, which shows that it does.
"""

import contextlib
import threading
import time

from foldlog.projector_home import ProjectorHome
from foldlog.store.base import StoreError
from foldlog.store.rocks import RocksStore

SILENT_SECONDS = 10.0
"""An opening that did nothing for so long stands still."""

ABANDON_SECONDS = 2.0
"""How long somebody who gives one up waits for its end; the group waits for him."""


class Opening:
    """The opening of one store."""

    def __init__(self, home: ProjectorHome, number: int) -> None:
        self._home, self._number = home, number
        self._lock = threading.Lock()
        self._given_up = False
        self._store: RocksStore | None = None
        self._error: BaseException | None = None
        self._worked_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="foldlog-opening", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            store = self._home.open(self._number, stop=self._stop)
        except BaseException as error:  # raised again where it is waited for
            self._error = error
            return
        with self._lock:
            if not self._given_up:
                self._store = store
                return
        _close_unused(store)

    def _stop(self) -> bool:
        self._worked_at = time.monotonic()
        return self._given_up

    @property
    def goes_on(self) -> bool:
        """Whether it has worked lately."""
        return time.monotonic() - self._worked_at < SILENT_SECONDS

    def is_over(self) -> bool:
        """Whether ``store`` has an answer."""
        return not self._thread.is_alive()

    def store(self) -> RocksStore:
        """The store, which is the caller's to close, or the error that came instead."""
        if self._error is not None:
            raise self._error
        assert self._store is not None
        return self._store

    def abandon(self) -> None:
        """Give it up; it ends soon, maybe after this returns."""
        with self._lock:
            self._given_up = True
            store, self._store = self._store, None
        if store is not None:
            _close_unused(store)
        self._thread.join(ABANDON_SECONDS)


def _close_unused(store: RocksStore) -> None:
    """Whatever is wrong with it, whoever opens it next meets it."""
    with contextlib.suppress(StoreError):
        store.close()
