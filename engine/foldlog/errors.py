"""The errors that users of the library meet; every one carries fields and names the next step.

Rejections are not errors: a refused proposal is an ``Outcome``.

    FoldlogError
     +-- HomeMissing         there is no home here
     +-- HomeExists          a home of another shape is here already
     +-- HomeBusy            another process holds the projection of this home
     |    +-- ProjectorStalled    ... and has made no turn for 10 s (its pid is named)
     +-- EngineForked        opened before a fork and used in the child: open it there
     +-- TimedOut            what was waited for did not come in time; nothing was changed
     +-- OutcomeUnknown      the time was up before the outcome was there (batch_id is kept)
     +-- Damaged             log and projection do not fit: run, sequence, what, expected, found
     |    +-- PluginMissing       a run of the partition uses a plug-in that this build has not
     |    +-- BuildTooOld         a newer build decided a record that this one cannot read
     |    +-- LogTrimmed     the log's beginning is gone and no snapshot covers it
     +-- SnapshotDamaged     a snapshot is not what its manifest says
     +-- SnapshotMissing     there is no such snapshot
     +-- LogRefused          the log is set up wrongly, or is not the one it was
     +-- Unavailable         log or store cannot be used now; nothing is lost, try again
     |    +-- PlaceUnavailable    the place of snapshots elsewhere does not answer, or refuses
     +-- Usage               an argument that makes no sense

Invariants:
- ``code`` is stable and has a page of its own (``foldlog explain CODE``).
"""

from collections.abc import Sequence
from typing import Any, ClassVar


class FoldlogError(Exception):
    """Base of all; ``exit_code`` is what the command line ends with."""

    code: ClassVar[str] = "FOLDLOG_ERROR"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class HomeMissing(FoldlogError):
    """No home at this path."""

    code = "HOME_MISSING"
    exit_code = 4


class HomeExists(FoldlogError):
    """A home is here already and is not what was asked for."""

    code = "HOME_EXISTS"
    exit_code = 2


class HomeBusy(FoldlogError):
    """Another process holds the projection; ``pid`` is its process id, if it can be read."""

    code = "HOME_BUSY"
    exit_code = 6

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class ProjectorStalled(HomeBusy):
    """The holder of the projection has made no turn for 10 s while somebody waited.

    ``batch_id`` names the proposal that waits, if it was one; it may still be decided.
    """

    code = "PROJECTOR_STALLED"

    def __init__(self, message: str, pid: int | None = None, batch_id: str | None = None) -> None:
        super().__init__(message, pid)
        self.batch_id = batch_id


class EngineForked(FoldlogError):
    """An engine was opened before a fork and used after it."""

    code = "ENGINE_FORKED"


class TimedOut(FoldlogError):
    """What was waited for did not come in time; nothing was proposed, so nothing is in doubt."""

    code = "TIMED_OUT"
    exit_code = 6


class OutcomeUnknown(FoldlogError):
    """The proposal was handed in, its outcome did not come in time; ask ``run.outcome``."""

    code = "OUTCOME_UNKNOWN"
    exit_code = 6

    def __init__(self, run_id: str, batch_id: str, seconds: str, why: str | None = None) -> None:
        reason = f"within {seconds} s" if why is None else f"to be had: {why}"
        super().__init__(
            f"no outcome of batch {batch_id} of run {run_id} {reason}; it may still be "
            f"decided: foldlog outcome {run_id} {batch_id}"
        )
        self.run_id = run_id
        self.batch_id = batch_id


class Damaged(FoldlogError):
    """A partition halts here: what was found is not what the log's chain or the fold demands."""

    code = "DAMAGED"
    exit_code = 5

    def __init__(
        self,
        partition: int,
        run_id: str | None,
        sequence: int,
        what: str,
        expected: Any,
        found: Any,
    ) -> None:
        whose = "" if run_id is None else f"run {run_id}, "
        super().__init__(
            f"partition {partition}, {whose}sequence {sequence}: {what}: expected {expected}, "
            f"found {found}"
        )
        self.partition = partition
        self.run_id = run_id
        self.sequence = sequence
        self.what = what
        self.expected = expected
        self.found = found

    def difference(self) -> dict[str, Any]:
        """The difference as ``verify --json`` prints it."""
        names = ("run_id", "sequence", "what", "expected", "found")
        return {name: getattr(self, name) for name in names}


class PluginMissing(Damaged):
    """A run of this partition is under the rules of a plug-in that this build has not.

    The partition halts here: nothing is decided around the rules that a run is pinned to.
    ``plugins`` are the names of what these rules bring, ``runs`` says how many runs use them: as
    far as the projection tells.
    """

    code = "PLUGIN_MISSING"
    exit_code = 6

    def __init__(
        self,
        partition: int,
        run_id: str,
        sequence: int,
        version: int,
        plugins: Sequence[str] = (),
        runs: int = 1,
    ) -> None:
        expected = "a plug-in that is installed here"
        super().__init__(partition, run_id, sequence, "rules version", expected, version)
        self.plugins, self.runs = tuple(plugins), runs
        self.message = (
            f"partition {partition} is refused: {self.words(run_id, version, plugins, runs)}. "
            "Install that plug-in where this process runs, and start it again; until then nothing "
            "is decided there, and what is proposed waits"
        )
        self.args = (self.message,)

    @staticmethod
    def words(run_id: str | None, version: int, plugins: Sequence[str], runs: int) -> str:
        """What is missing, and for whom."""
        whose = f"run {run_id} uses" if runs == 1 else f"{runs} runs use, {run_id} for one,"
        named = f" (plug-in {', '.join(plugins)})" if plugins else ""
        return f"{whose} rules {version}{named}, which this build has not"


class BuildTooOld(Damaged):
    """A record that is whole and that this build cannot read: a newer one decided it.

    This process reads its partition no further, and decides nothing of it.
    """

    code = "BUILD_TOO_OLD"
    exit_code = 6


class LogTrimmed(Damaged):
    """The log no longer reaches back far enough: what comes next is gone from it.

    ``sequence`` is the first record that is needed, ``found`` the first one that is there.
    """

    code = "LOG_TRIMMED"

    def __init__(self, partition: int, needed: int, found: int) -> None:
        what = (
            f"the log no longer reaches back far enough, records {needed} to {found - 1} are gone "
            "from it and no usable snapshot covers them; bring a snapshot or an older copy of the "
            "log: foldlog snapshot list"
        )
        super().__init__(partition, None, needed, what, f"record {needed}", f"record {found}")


class SnapshotDamaged(FoldlogError):
    """A snapshot is not what its manifest says, or its manifest does not read."""

    code = "SNAPSHOT_DAMAGED"
    exit_code = 5


class SnapshotMissing(FoldlogError):
    """No snapshot of this name, or none at all."""

    code = "SNAPSHOT_MISSING"
    exit_code = 4


class LogRefused(FoldlogError):
    """The log must not be used: its topics are set up wrongly, or it is not the one it was."""

    code = "LOG_REFUSED"
    exit_code = 6


class Unavailable(FoldlogError):
    """The log or the store cannot be used at the moment."""

    code = "UNAVAILABLE"
    exit_code = 6


class PlaceUnavailable(Unavailable):
    """The place elsewhere where snapshots lie does not answer, or does not do what is asked."""


class Usage(FoldlogError):
    """An argument that makes no sense, such as a time that is none."""

    code = "USAGE"
    exit_code = 2


def check_timeout(timeout: float | None) -> None:
    """Usage for what is no length of time; None is for ever."""
    if timeout is not None and not timeout >= 0:  # NaN too
        raise Usage(f"a timeout is 0 or more seconds, not {timeout!r}")
