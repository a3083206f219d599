"""What is wrong with a home, and what to do about it: a list of findings, of good ones too.

Invariants:
- It looks and changes nothing; it takes no lock but to see whether somebody holds it.
- One thing that is broken stops no other from being looked at.
- Every finding that is not ok has a remedy that can be typed or done.
"""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from foldlog import views
from foldlog.errors import Damaged, FoldlogError, HomeMissing
from foldlog.halting import check_goes_on
from foldlog.home import LOG_FILE
from foldlog.lacking import lacking, not_here
from foldlog.log import sqlite
from foldlog.log.base import Clock, LogDamaged, LogError
from foldlog.onlooker import Onlooker
from foldlog.recovery import DAMAGED
from foldlog.results import Finding
from foldlog.runtime import RealRuntime
from foldlog.seat import STALLED_US
from foldlog.store.base import StoreDamaged, StoreError
from foldlog.version import __version__
from foldlog.views import View
from foldlog.wire.slots import STATE_FORMAT
from foldlog.working import why_stuck

DISK_BYTES_MIN = 256 << 20
"""The log's write-ahead file is let grow to 64 MiB, and each partition keeps 16 MiB in memory that
it has to write somewhere."""

BROKEN, UNAVAILABLE = 5, 6

LEFTOVERS = {
    f"{LOG_FILE}.new": "a crash while the home was made left it",
    f"{LOG_FILE}.new-wal": "a crash while the home was made left it",
    f"{LOG_FILE}.new-shm": "a crash while the home was made left it",
    f"{LOG_FILE}.new-journal": "a crash while the home was made left it",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What was found in one place. ``exit`` is 0 where it is ok; a remedy then is mere advice."""

    check: str
    what: str
    where: str
    remedy: str | None = None
    exit: int = 0

    def finding(self) -> Finding:
        """The finding as ``doctor --json`` prints it."""
        return Finding(
            {
                "check": self.check,
                "ok": self.exit == 0,
                "what": self.what,
                "where": self.where,
                "remedy": self.remedy,
                "exit": self.exit,
            }
        )


def examine(path: Path, clock: Clock) -> list[Finding]:
    """Everything worth saying of a home. HomeMissing if there is none."""
    if not (path / LOG_FILE).exists():
        raise HomeMissing(f"no foldlog home at {path}: foldlog --home {path} init")
    looks = [_versions(path), *folder(path), *_leftovers(path)]
    try:
        onlooker = Onlooker(path, clock)
    except FoldlogError as error:
        looks.append(_unopened(path, error))
    else:
        with onlooker:
            looks += _inside(onlooker, clock)
    return [look.finding() for look in looks]


def exit_code(findings: list[Finding]) -> int:
    """0 if nothing is wrong; 5 if something is broken; 6 if something cannot go on now."""
    return min((each.exit for each in findings if not each.ok), default=0)


# The folder


def _versions(path: Path) -> Look:
    parts = [
        f"foldlog {__version__}",
        f"Python {'.'.join(map(str, sys.version_info[:3]))}",
        f"SQLite {sqlite3.sqlite_version}",
        f"rocksdict {metadata.version('rocksdict')}",
        f"log format {sqlite.FORMAT}",
        f"state format {STATE_FORMAT}",
    ]
    return Look("versions", ", ".join(parts), str(path))


def folder(path: Path) -> Iterator[Look]:
    """Whether this user may write there, and whether there is room."""
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        what, remedy = "this user may not write here", "give this user the right to, or use another"
        yield Look("rights", what, str(path), remedy, UNAVAILABLE)
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        yield Look("disk", f"cannot be asked: {error}", str(path), "look at the disk", UNAVAILABLE)
        return
    what = f"{free // (1 << 20):,} MiB free"
    if free < DISK_BYTES_MIN:
        wanted = f"make room: at least {DISK_BYTES_MIN >> 20} MiB"
        yield Look("disk", f"{what}, too little to go on safely", str(path), wanted, UNAVAILABLE)
    else:
        yield Look("disk", what, str(path))


def _leftovers(path: Path) -> Iterator[Look]:
    for name, what in LEFTOVERS.items():
        if (path / name).exists():
            yield Look("leftover", f"{what}; it does no harm", str(path / name), "remove it")


def _unopened(path: Path, error: FoldlogError) -> Look:
    """A log that does not open: broken, or not to be had now."""
    cause = error.__cause__
    where, what, remedy = str(path / LOG_FILE), error.message, "foldlog explain UNAVAILABLE"
    if isinstance(cause, LogError):
        where, what, remedy = cause.where, cause.what, cause.remedy
    code = BROKEN if isinstance(cause, LogDamaged) else UNAVAILABLE
    return Look("log", what, where, remedy, code)


# What it holds


def _inside(onlooker: Onlooker, clock: Clock) -> Iterator[Look]:
    log = onlooker.home.log
    count = f"{log.partitions} partition{'s' if log.partitions > 1 else ''}"
    what = f"opens; {count}, identity {log.identity}"
    yield Look("log", what, str(onlooker.path / LOG_FILE))
    views_open: list[View] = []
    for number in range(log.partitions):
        yield from _partition(onlooker, number, views_open)
        yield from _snapshots(onlooker, number)
    yield from _holder(onlooker, views_open, clock)


def _partition(onlooker: Onlooker, number: int, views_open: list[View]) -> Iterator[Look]:
    where = os.path.abspath(onlooker.path / "projection" / str(number))
    rebuild = f"end what has the home open and move {where} away: it is recovered when it is opened"
    try:
        view = onlooker.view(number)
        meta = view.meta()
        check_goes_on(view)
    except Damaged as error:
        remedy = f"foldlog verify; if only the projection differs: {rebuild}"
        yield Look("projection", f"halted: {error.message}", where, remedy, BROKEN)
        return
    except (StoreError, LogError) as error:
        # Beside a holder a file may just have gone; without one, what does not open is broken.
        alone = onlooker.holder() is None and error.where.startswith(where)
        if isinstance(error, StoreDamaged) or alone:
            yield Look("projection", f"does not open: {error.what}", where, rebuild, BROKEN)
        else:
            yield Look("projection", error.what, where, error.remedy, UNAVAILABLE)
        return
    views_open.append(view)
    behind = view.log.end(number) - meta.offset
    what = f"partition {number} opens, is folded to sequence {meta.sequence}, which is in the log"
    if meta.sequence == 0:
        what = f"partition {number} has nothing folded yet"
    if behind > 0:
        remedy = "nothing is lost: whoever opens the home folds them"
        yield Look("projection", f"{what}; {behind:,} in the log to be folded", where, remedy)
    else:
        yield Look("projection", what, where)
    yield from contents(view, where)


def _snapshots(onlooker: Onlooker, number: int) -> Iterator[Look]:
    """What there is to recover a partition from, and what was put aside as broken."""
    shelf = onlooker.home.snapshots.shelves[number]
    where = str(shelf.folder)
    if names := shelf.names():
        count = f"{len(names)} snapshot{'s' if len(names) > 1 else ''}"
        what = f"partition {number} has {count}, the newest of sequence {int(names[0][:16])}"
        yield Look("snapshots", what, where)
    for name, reason in shelf.quarantined().items():
        remedy = "see to the disk; it goes once two newer ones verify: foldlog snapshot prune"
        yield Look("snapshots", f"{name} is quarantined: {reason}", where, remedy)
    aside = onlooker.path / "projection" / f"{number}{DAMAGED}"
    if aside.exists():
        what = f"a broken store of partition {number} was put aside, and recovered since"
        yield Look("leftover", what, str(aside), "see to the disk, then remove it")


def _plugins(view: View, where: str) -> Iterator[Look]:
    """Runs that this build would refuse to decide."""
    for each in lacking(view.reader, view.rules):
        remedy = "install it where the projection is held, and start that process again"
        yield Look("plug-ins", not_here(each), where, remedy, UNAVAILABLE)


def contents(view: View, where: str) -> Iterator[Look]:
    """What stands in a partition that a person should see to."""
    yield from _plugins(view, where)
    void = view.meta().void
    if void:
        what = f"{void:,} void records were passed over: another projector decided at the same time"
        remedy = "no harm; see that only one projector is meant to run"
        yield Look("void", what, where, remedy)
    for run_id in view.run_ids():
        if (why := why_stuck(view.reader, run_id)) is not None:
            what = f"run {run_id} needs a migration that cannot be made: {why}"
            remedy = (
                "it can be read and not resumed; if the log is whole it is folded anew by: "
                "foldlog rebuild --from start"
            )
            yield Look("migration", what, where, remedy, BROKEN)
    for row in views.quarantines(view):
        what = f"run {row['run_id']} is quarantined since {row['since']}: {row['error']}"
        remedy = f"mend the rule, then: foldlog release {row['run_id']} --reason TEXT"
        yield Look("quarantine", what, f"{where}, sequence {row['sequence']}", remedy, BROKEN)


# Who turns it


def _holder(onlooker: Onlooker, views_open: list[View], clock: Clock) -> Iterator[Look]:
    where = str(onlooker.home.holder_lock.path)
    note = onlooker.holder()
    waiting = [_oldest(view) for view in views_open]
    oldest = min((at for at in waiting if at is not None), default=None)
    late = oldest is not None and clock() - oldest >= STALLED_US
    if note is None:
        what = "nobody holds the projection"
        if late:
            what += ", and proposals wait to be decided"
            yield Look("holder", what, where, "foldlog project --once", UNAVAILABLE)
        else:
            yield Look("holder", what, where)
        return
    who = f"process {note.pid} ({note.role}) holds the projection"
    ago = RealRuntime().monotonic() - note.turned_at
    if is_stopped(note.pid):
        remedy = f"let it go on (kill -CONT {note.pid}), or end it and another takes over"
        yield Look("holder", f"{who} and is stopped", where, remedy, UNAVAILABLE)
    elif late and ago >= STALLED_US:
        what = f"{who} and has made no turn for {ago // 1_000_000} s, while proposals wait"
        remedy = f"see what process {note.pid} does, or end it and another takes over"
        yield Look("holder", what, where, remedy, UNAVAILABLE)
    else:
        yield Look("holder", f"{who} and is {note.phase}", where)


def _oldest(view: View) -> int | None:
    """When the log took the first proposal that is not decided yet."""
    for row in view.log.proposals(view.partition, view.meta().position, 1, 1):
        return row.appended_at
    return None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, where the system tells (Linux)."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    # The name stands in brackets and may hold anything; the state comes after it.
    return about.rpartition(")")[2].split()[0] in ("T", "t")
