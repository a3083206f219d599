"""Watching a run: its rows as they come, for the client and its async twin.

Invariants:
- Nothing waits here; whoever watches decides how, and asks again.
- A row is given once, in the order of the log.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from foldlog import views
from foldlog.errors import check_timeout
from foldlog.results import HistoryRow
from foldlog.views import View

Reading = Callable[[str], AbstractContextManager[View]]
"""Gives a view of a run's partition as of one moment."""

WATCH_SECONDS_MIN, WATCH_SECONDS_MAX = 0.005, 0.1
"""Between two looks: short after a row, longer while nothing comes."""


class Watch:
    """How far somebody who watches a run has come; waits for nothing itself."""

    def __init__(
        self,
        run_id: str,
        reading: Reading,
        after: int | None,
        timeout: float | None,
        rejected: bool = False,
    ) -> None:
        check_timeout(timeout)
        self._run_id = run_id
        self._reading = reading
        self._rejected = rejected
        self._after = after or 0
        self._timeout = timeout
        self._pause = WATCH_SECONDS_MIN
        self._seen = 0
        if after is None:
            with reading(run_id) as view:
                run = view.run(run_id)
                # Of a run that is not there yet all is new, also if it is being imported.
                self._seen = run.head.sequence if run.header.revision else 0
        self._idle_since = time.monotonic()

    def is_over(self) -> bool:
        """Whether no row came for as long as was said."""
        return self._timeout is not None and time.monotonic() - self._idle_since >= self._timeout

    def look(self) -> Iterator[HistoryRow]:
        """The rows that came since the last look; what is not taken comes again."""
        with self._reading(self._run_id) as view:
            records = view.records_after(self._run_id, self._seen)
        for record in records:
            self._seen = record.sequence
            shown = self._rejected or views.is_shown(record)
            # What makes no revision came since, if the revision it met is not before that one.
            since = record.revision_before >= self._after
            if shown and since:
                yield HistoryRow(views.history_row(record))
                self._pause, self._idle_since = WATCH_SECONDS_MIN, time.monotonic()

    def pause(self) -> float:
        """How many seconds to wait before the next look."""
        pause = self._pause
        self._pause = min(pause * 2, WATCH_SECONDS_MAX)
        return pause
