"""A projector of a log on Kafka: a member of the group that decides the partitions it is given.

    HOME/worker-1.lock       held by the member of that number; says how it is
    HOME/projection/0/ ...   the stores of the partitions it has now, and those that it had
    HOME/snapshots/0/ ...    their snapshots

Invariants:
- One thread does everything, in bounded steps, so the group hears from it well within its time.
- A partition that is taken away is between two turns; one that was lost meanwhile is dropped, and
  nothing is reported for it.
- Two members that both believe they own a partition do no harm: of their records one chain counts.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from foldlog.errors import HomeBusy, Unavailable
from foldlog.following import PROJECTION
from foldlog.holder import OUTAGES, decider_name
from foldlog.locks import FileLock, Note
from foldlog.log.base import LogError, LogForbidden, LogTrimmed
from foldlog.log.kafka.groups import Membership, Protocol, Report, group_of, reported
from foldlog.log.kafka.owned import OwnedLog
from foldlog.plugins import installed
from foldlog.projector_home import ProjectorHome
from foldlog.reaching import Settings, folder_of, open_owned_log
from foldlog.runtime import SECOND, RealRuntime, wall_clock
from foldlog.snapshots.settings import SnapshotSettings, from_environment
from foldlog_projector.alarming import AlarmCount, alarms_file
from foldlog_projector.deciding import Deciding

WAIT_SECONDS = 0.05
"""How long to wait for proposals at most: deadlines pass, and the group may say something."""

HEAR_US = SECOND // 50
"""How often the group is asked what there is to hear."""

REPORT_US = SECOND
"""How often positions are reported to the group."""

BACK_US = 20 * SECOND
"""How long a member that lost its partitions waits to hear of the group. Its client may hear of
nobody any more, without a word, where the brokers were all away for a moment (librdkafka 2.16)."""

JOIN_US = 60 * SECOND
"""The same from the start of a membership. Longer than the group may rightly take: a dead member
without a name of its own is waited for 45 s by the clients' defaults, and who joins anew meanwhile
begins to wait anew."""

LET_IN_US = 20 * SECOND
"""How long that may take before it is ill health: all members must answer, and one that is dead
keeps the others waiting until the group has missed it for 10 s."""

NOTE_US = SECOND // 2
"""How often a member writes down that it works."""

REJOIN_SECONDS_MIN, REJOIN_SECONDS_MAX = 0.5, 30.0
"""Before a membership that ended by itself is begun anew; twice as long each time it did not last.
A broker that comes back may fence a static member for a commit under its former id."""

WORST = ("halted", "waiting", "opening", "recovering", "turning", "idle")
"""Phases, the ones first that need somebody to look."""

logger = logging.getLogger("foldlog")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a projector on Kafka is started with."""

    url: str
    home: Path
    settings: Settings = None
    protocol: Protocol = "classic"
    worker: int = 1
    snapshots: SnapshotSettings | None = None


def lock_file(home: Path, worker: int) -> Path:
    """What the member of this number holds and writes its note into."""
    return home / f"worker-{worker}.lock"


def instance_name(home: Path, worker: int) -> str:
    """The name of a member in its group: the same after a restart, another in another home."""
    place = blake2b(str(home.resolve()).encode(), digest_size=4).hexdigest()
    return f"{socket.gethostname()}-{place}-{worker}"


class Member:
    """One member, until ``stop``. HomeBusy if one of its number is at this home already."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._monotonic = RealRuntime().monotonic
        folder = folder_of(plan.home, PROJECTION)
        self._lock = FileLock(lock_file(plan.home, plan.worker))
        if not self._lock.try_acquire():
            note = self._lock.read()
            pid = None if note is None else note.pid
            raise HomeBusy(f"process {pid} is worker {plan.worker} of {plan.home} already", pid)
        try:
            self.log: OwnedLog = open_owned_log(plan.url, plan.settings, folder.known())
        except BaseException:
            self._lock.release()
            raise
        folder.remember(self.log.known.to_dict())
        settings = plan.snapshots or from_environment()
        self._home = ProjectorHome(folder, self.log, wall_clock, settings, installed())
        self.decided = 0
        self._decider = decider_name()
        self._own: dict[int, Deciding] = {}
        self._reported: dict[int, Report] = {}
        self._last: dict[int, int] = {}  # the last known positions, of former partitions too
        self._hear_at = self._report_at = self._note_at = self._ask_at = 0
        self._elsewhere: dict[int, int] = {}
        self._back_by: int | None = None  # until when it has to hear of the group
        self._well_until = 0  # until when it is well not to have heard yet
        self._snapshots_told = False
        self._turned_at = self.worked_at = self._monotonic()
        self._apart: str | None = None  # why it is no member of the group at the moment
        self._alarms = AlarmCount(alarms_file(self._lock.path), self._monotonic, wall_clock)
        self._stopping = False

    def stop(self) -> None:
        """End after the step that runs; safe to call from a signal handler."""
        self._stopping = True

    def run(self, until: Callable[[], bool] = lambda: False, *, patient: bool = True) -> None:
        """Decide until ``stop``, or until what is asked after each idle wait says so.

        Whoever is not patient does not wait for a right that he lacks: Unavailable.
        """
        plan = self._plan
        facts: dict[str, Any] = {"event": "started", "home": str(plan.home), "worker": plan.worker}
        logger.info("starts", extra=facts)
        pause = REJOIN_SECONDS_MIN
        try:
            while not self._stopping:
                began = time.monotonic()
                try:
                    return self._serve(until)
                except LogError as error:
                    if isinstance(error, LogForbidden) and not patient:
                        raise Unavailable(str(error)) from error
                    # The client is of no use any more; what it had may be another's by now.
                    self._apart = str(error)
                    facts = {"event": "membership_ended"}
                    logger.warning("joins again in %.1f s: %s", pause, error, extra=facts)
                lasted = time.monotonic() - began
                self._stay_apart(pause)
                long = lasted > 10 * pause
                pause = REJOIN_SECONDS_MIN if long else min(2 * pause, REJOIN_SECONDS_MAX)
        finally:
            self._drop(list(self._own))
            self._home.close()
            self._lock.release()
            logger.info("stopped", extra={"event": "stopped"})

    def _stay_apart(self, seconds: float) -> None:
        """Wait before joining again, and say so meanwhile."""
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            self._write_note()
            time.sleep(min(left, NOTE_US / SECOND))

    def _serve(self, until: Callable[[], bool]) -> None:
        """Be a member until ``stop``; LogError if the membership ends by itself."""
        name = instance_name(self._plan.home, self._plan.worker)
        membership = Membership(
            self.log.handles, name, self._plan.protocol, self._assigned, self._revoked, self._lost
        )
        # By the newer protocol a member that gets no partition is told nothing, ever.
        if self._plan.protocol == "classic":
            self._hear_by(JOIN_US, "the group has not let it in yet", LET_IN_US)
        elif self._back_by is not None:
            self._hear_by(BACK_US, "it lost its partitions")
        self._membership = membership
        try:
            while not self._stopping:
                busy = self._work()
                more = any(each.more for each in self._own.values())
                self._wait(0 if more else WAIT_SECONDS)
                if not busy and until():
                    break
            self._report(membership)
        finally:
            self._drop(list(self._own))
            membership.close()

    def _work(self) -> bool:
        """One step of each partition; whether there was anything to do."""
        busy = False
        self._hear()
        for number, deciding in list(self._own.items()):
            if self._stopping:
                break
            if self._own.get(number) is not deciding:
                continue
            done = deciding.step()
            if done is not None:
                busy = True
                self.decided += done
            # In an outage each step may take its whole time: the group hears of us in between.
            self._hear()
        own = self._own.values()
        self._alarms.step(lambda: [view for each in own if (view := each.view) is not None])
        self._look_after_snapshots()
        now = self._monotonic()
        if busy:
            self.worked_at = now
        if busy or not any(each.outage for each in self._own.values()):
            self._turned_at = now
        if now >= self._note_at:
            self._note_at = now + NOTE_US
            self._write_note()
        if now >= self._report_at:
            self._report_at = now + REPORT_US
            self._report(self._membership)
        if self._back_by is not None and now >= self._back_by:
            what = "nothing was heard of the group for too long"
            raise LogError(group_of(self.log.address), what, "join again")
        return busy

    def _look_after_snapshots(self) -> None:
        """Take or upload what is due. A store that cannot be read is met by its partition, too."""
        try:
            self._home.snapshots.look()
            self._snapshots_told = False
        except (*OUTAGES, OSError) as error:
            if not self._snapshots_told:
                self._snapshots_told = True
                facts = {"event": "snapshots_wait"}
                logger.warning("no snapshots are taken: %s", error, extra=facts)

    def _hear_by(self, microseconds: int, why: str, well: int = 0) -> None:
        """It is apart from the group until that says something, which it must within this time;
        that is well for a while, unless it was apart before."""
        now = self._monotonic()
        self._well_until = now + well if self._apart is None else 0
        self._back_by, self._apart = now + microseconds, self._apart or why

    def _hear(self) -> None:
        """Stay a member, and hear of partitions that come and go."""
        now = self._monotonic()
        if now >= self._hear_at:
            self._hear_at = now + HEAR_US
            self._membership.poll()

    def _wait(self, seconds: float) -> None:
        """Wait for proposals, or only take those that have come."""
        try:
            self.log.wait(seconds)
        except LogError as error:
            if error.partition is None:
                logger.warning("waits for the log: %s", error, extra={"event": "outage"})
                RealRuntime().sleep(SECOND // 10)
                return
            deciding = self._own.get(error.partition)
            if deciding is None:
                return
            if isinstance(error, LogTrimmed):
                deciding.trimmed(error)
            elif isinstance(error, LogForbidden):
                deciding.forbidden(error)
            else:
                deciding.unreadable(error)

    def _write_note(self) -> None:
        phase, why = "idle", ""
        if self._own:
            worst = min(self._own.values(), key=lambda each: WORST.index(each.phase))
            phase, why = worst.phase, worst.why
        elif self._apart is not None:
            well = self._monotonic() < self._well_until
            phase, why = "recovering" if well else "waiting", self._apart
        self._lock.write(Note(os.getpid(), "projector", phase, self._turned_at, why))

    def _report(self, membership: Membership) -> None:
        reports = {n: self._report_of(n, each) for n, each in self._own.items()}
        # Why one waits is said again and again: nobody hears whether a report was taken.
        changed = {
            number: report
            for number, report in reports.items()
            if report and (report.why or self._reported.get(number) != report)
        }
        try:
            membership.report(changed)
        except Exception as error:
            logger.debug("the group does not take what is reported: %s", error)
            return
        self._reported.update(changed)

    def _report_of(self, number: int, deciding: Deciding) -> Report | None:
        """What there is to report; while it waits, the position is the last one known here."""
        position = deciding.position
        if deciding.why:
            position = deciding.reached or self._last.get(number)
        return None if position is None else Report(position, deciding.why)

    # What the group says; inside its ``poll``

    def _assigned(self, partitions: list[int]) -> None:
        self._apart = self._back_by = None
        for number in partitions:
            self._own[number] = Deciding(
                self.log, self._home, number, wall_clock, self._monotonic, self._decider
            )
        self._say("assigned", partitions)

    def _revoked(self, partitions: list[int]) -> None:
        self._report(self._membership)
        self._drop(partitions)
        self._say("revoked", partitions)

    def _lost(self, partitions: list[int]) -> None:
        self._drop(partitions)
        self._hear_by(BACK_US, "it lost its partitions")
        self._say("lost", partitions)

    def _drop(self, partitions: list[int]) -> None:
        for number in partitions:
            self._reported.pop(number, None)
            deciding = self._own.pop(number, None)
            if deciding is not None:
                deciding.close()
                if deciding.reached is not None:
                    self._last[number] = deciding.reached

    def _say(self, event: str, partitions: list[int]) -> None:
        if partitions:
            facts = {"event": event, "partitions": sorted(partitions)}
            logger.info("%s: partitions %s", event, sorted(partitions), extra=facts)

    # Until caught up

    def positions(self, numbers: list[int]) -> dict[int, int]:
        """How far partitions are: this member's own, and those of others as they reported it."""
        own = {number: self._own[number].position for number in numbers if number in self._own}
        now = self._monotonic()
        if len(own) < len(numbers) and now >= self._ask_at:
            self._ask_at = now + REPORT_US
            self._elsewhere = {n: each.position for n, each in reported(self.log.handles).items()}
        return {number: own.get(number) or self._elsewhere.get(number, 1) for number in numbers}

    def why(self, number: int) -> str | None:
        """What keeps a partition from going on; None if it is not this member's own."""
        deciding = self._own.get(number)
        return None if deciding is None else deciding.why or f"it is {deciding.phase}"
