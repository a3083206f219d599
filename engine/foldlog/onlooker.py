"""A look at a home from beside: who turns it, how far it is. For status, doctor, and followers.

Invariants:
- An onlooker never holds the projection, hands nothing in, decides nothing, and changes no file of
  the home's: what it says of a home that nobody turns is how that home stands.
"""

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Self

from foldlog import views
from foldlog.errors import Unavailable
from foldlog.guest import Follower
from foldlog.halting import why_halted
from foldlog.home import Home, open_home
from foldlog.locks import Note
from foldlog.log.base import Clock, LogError
from foldlog.plugins import installed
from foldlog.results import PartitionStatus
from foldlog.store.base import StoreError, StoreMissing
from foldlog.store.memory import MemoryStore
from foldlog.views import View
from foldlog.wire import keys


class Onlooker:
    """A home that is looked at. A context manager; of one thread."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """HomeMissing if there is none, Unavailable if its log cannot be read."""
        self.path = path
        self._clock = clock
        self.home: Home = open_home(path, clock)
        self._followers: dict[int, Follower] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def partitions(self) -> int:
        """The number of partitions of the home's log."""
        return self.home.log.partitions

    def holder(self) -> Note | None:
        """What the holder of the projection says of itself; None if nobody holds it."""
        return self.home.holder() if self.home.holder_lock.is_taken() else None

    def owner(self) -> str | None:
        """Who turns the log, as ``ROLE:PID``."""
        note = self.holder()
        return None if note is None else f"{note.role}:{note.pid}"

    def view(self, number: int) -> View:
        """One partition as it is now, until the next view of it; StoreError if it does not open.

        A projection that is not there yet is one of which nothing is folded.
        """
        try:
            follower = self._followers.get(number)
            if follower is None:
                follower = self._followers[number] = self.home.follower(number)
            follower.refresh()
        except StoreMissing:
            self._forget(number)
            return View(self.home.log, MemoryStore(), number, installed())
        return View(self.home.log, follower, number, installed())

    def status(self) -> list[PartitionStatus]:
        """Each partition: who turns it, how far it is, what waits, how many runs have alarms."""
        owner = self.owner()
        with _told():
            return [self._status(number, owner) for number in range(self.partitions)]

    def _status(self, number: int, owner: str | None) -> PartitionStatus:
        view = self.view(number)
        row = views.status(view, owner, self._clock(), why_halted(view))
        return PartitionStatus({**row, "outage": None})

    def alarms(self) -> dict[str, int]:
        """How many runs of the home have each alarm; Unavailable if a projection cannot be read."""
        found: dict[str, int] = {}
        with _told():
            for number in range(self.partitions):
                view = self.view(number)
                now = max(self._clock(), view.meta().log_time)
                for code, count in views.alarm_counts(view, now).items():
                    found[code] = found.get(code, 0) + count
        return found

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        """The first ids of runs that begin like this, sorted."""
        found: list[str] = []
        with _told():
            for number in range(self.partitions):
                found.extend(islice(self._run_ids(self.view(number), prefix), limit))
        return sorted(found)[:limit]

    def _run_ids(self, view: View, prefix: str) -> Iterator[str]:
        start = len(keys.head_key(""))
        for key, _ in view.reader.scan(keys.head_key(prefix)):
            run_id = key[start:].decode()
            if view.run(run_id).header.revision > 0:
                yield run_id

    def _forget(self, number: int) -> None:
        follower = self._followers.pop(number, None)
        if follower is not None:
            follower.close()

    def close(self) -> None:
        """Let everything go."""
        for number in list(self._followers):
            self._forget(number)
        self.home.close()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """An outage of log or store as users meet it."""
    try:
        yield
    except (LogError, StoreError) as error:
        raise Unavailable(str(error)) from error
