"""Health: whether what waits is being decided. Asked from another process; changes nothing.

Invariants:
- Healthy means progress, not a process that is there: nothing waits for longer than the limit, or
  the holder turned within it; on Kafka, where this home's members or nobody have it, it moves.
- Alarms of runs are counted and are no ill health: they need a person or a worker, no restart.
"""

import time
from pathlib import Path
from typing import Any

from foldlog.client import wall_clock
from foldlog.core.values import format_instant
from foldlog.errors import FoldlogError, Unavailable
from foldlog.home import Home, open_home
from foldlog.locks import FileLock, Note
from foldlog.log.base import LogError
from foldlog.onlooker import Onlooker
from foldlog.place import is_halted
from foldlog.runtime import SECOND, RealRuntime
from foldlog.seat import STALLED_US
from foldlog.views import next_undecided
from foldlog_projector.alarming import counted_at

TURNING = ("recovering", "turning", "idle")
"""Phases of a member that are no reason to worry."""

MOVES_SECONDS = 3.0
"""Within this time a partition of which proposals are late moves on, and says so (once a second);
where much waits the oldest is late although all goes well."""


def health(path: Path) -> dict[str, Any]:
    """``{healthy, holder, role, phase, lag, oldest, turned_ago, message, alarms}``.

    ``lag`` counts proposals that wait, ``oldest`` is when the first of them was taken,
    ``turned_ago`` is in seconds; ``alarms`` counts the runs that have each, and is None where the
    projection cannot be read. On Kafka those of the partitions that this home's members turn.
    """
    home = open_home(path, wall_clock)
    try:
        return {**_judge(home), "alarms": _alarms(path)}
    finally:
        home.close()


def _alarms(path: Path) -> dict[str, int] | None:
    try:
        with Onlooker(path, wall_clock) as onlooker:
            return {code: count for code, count in onlooker.alarms().items() if count}
    except FoldlogError:
        return None


def _judge(home: Home) -> dict[str, Any]:
    lag, oldest = _waiting(home)
    held, note = home.holder_lock.is_taken(), home.holder()
    ago = None if note is None else max(0, RealRuntime().monotonic() - note.turned_at)
    late = oldest is not None and wall_clock() - oldest >= STALLED_US
    stalled = late and (not held or ago is None or ago >= STALLED_US)
    message = "caught up" if not lag else "what waits is being decided"
    halted = held and note is not None and is_halted(note.phase)
    if halted:
        message = "has halted a partition: foldlog doctor says why"
    elif stalled:
        message = "holds the projection and makes no turn" if held else "nobody decides what waits"
    return {
        "healthy": not (stalled or halted),
        "holder": note.pid if held and note is not None else None,
        "role": note.role if held and note is not None else None,
        "phase": note.phase if held and note is not None else None,
        "lag": lag,
        "oldest": None if oldest is None else format_instant(oldest),
        "turned_ago": None if ago is None or not held else round(ago / 1_000_000, 3),
        "message": message,
    }


def health_of_members(url: str, home: Path) -> dict[str, Any]:
    """The same of a log on Kafka, by what the group's members report and those of this home say.

    Unavailable if the log does not answer.
    """
    from foldlog.log.kafka.groups import owners, reported
    from foldlog.reaching import open_log
    from foldlog_projector.member import instance_name

    log = open_log(url)
    try:
        lag, oldest = 0, None
        late: list[int] = []
        reports = reported(log.handles)
        for number in range(log.partitions):
            position = reports[number].position if number in reports else 1
            rows = log.proposals(number, position, 1, 1)
            lag += log.proposals_end(number) - position if rows else 0
            for first in rows:
                oldest = first.appended_at if oldest is None else min(oldest, first.appended_at)
                if wall_clock() - first.appended_at >= STALLED_US:
                    late.append(number)
        notes = _notes(home)
        if late:
            here = {instance_name(home, worker): note for worker, note in notes.items()}
            late = _concerning(late, owners(log.handles), here)
        if late:
            time.sleep(MOVES_SECONDS)
            now = reported(log.handles)
            late = [number for number in late if now.get(number) == reports.get(number)]
    except LogError as error:
        raise Unavailable(str(error)) from error
    finally:
        log.close()
    return _judge_members(home, list(notes.values()), lag, oldest, late)


def _notes(home: Path) -> dict[int, Note]:
    """What the members say that are at work in a home, by their numbers."""
    locks = {
        int(file.stem.removeprefix("worker-")): FileLock(file)
        for file in sorted(home.glob("worker-*.lock"))
    }
    return {
        worker: note
        for worker, lock in locks.items()
        if lock.is_taken() and (note := lock.read()) is not None
    }


def _concerning(late: list[int], owned: dict[int, str], here: dict[str, Note]) -> list[int]:
    """Those of the late partitions that nobody has, or a member here that does not recover."""
    free = [number for number in late if number not in owned]
    ours = {number: here.get(owned[number].partition("@")[0]) for number in late if number in owned}
    return free + [n for n, note in ours.items() if note and note.phase != "recovering"]


def _judge_members(
    home: Path, notes: list[Note], lag: int, oldest: int | None, still: list[int]
) -> dict[str, Any]:
    """``still`` are late partitions for which this home has to answer, and which do not move."""
    now = RealRuntime().monotonic()
    counts = counted_at(home)
    late = oldest is not None and wall_clock() - oldest >= STALLED_US
    # The member that is worst off speaks for all of this home.
    worst = min(notes, key=lambda note: (note.phase in TURNING, note.turned_at), default=None)
    ago = None if worst is None else max(0, now - worst.turned_at)
    if worst is None or ago is None:
        healthy, message = not late, "decides here"
    else:
        healthy = worst.phase in TURNING and ago < STALLED_US
        message = f"is {worst.phase}, its last turn {ago // SECOND} s ago"
        message += f" ({worst.why})" if worst.why else ""
        if still:
            healthy = False
            message += f"; nothing of what waits is decided in partitions {sorted(still)}"
    return {
        "healthy": healthy,
        "holder": None if worst is None else worst.pid,
        "role": None if worst is None else worst.role,
        "phase": None if worst is None else worst.phase,
        "lag": lag,
        "oldest": None if oldest is None else format_instant(oldest),
        "waiting_seconds": None if oldest is None else max(0.0, (wall_clock() - oldest) / SECOND),
        "turned_ago": None if ago is None else round(ago / 1_000_000, 3),
        "message": message,
        "alarms": counts and {code: count for code, count in counts.items() if count},
    }


def _waiting(home: Home) -> tuple[int, int | None]:
    """How many proposals wait, and when the log took the first of them."""
    lag, oldest = 0, None
    for number in range(home.log.partitions):
        position = next_undecided(home.log, number)
        lag += home.log.proposals_end(number) - position
        for first in home.log.proposals(number, position, 1, 1):
            oldest = first.appended_at if oldest is None else min(oldest, first.appended_at)
    return lag, oldest
