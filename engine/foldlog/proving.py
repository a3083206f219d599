"""What an engine proves: that the state is the fold of the log, and the digest of a replay.

Invariants:
- Proving only reads: nothing is decided, and nothing reaches the outside world.
- A difference that is found is a value, never an exception.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foldlog import audit
from foldlog import heads as witness
from foldlog.apart import Apart
from foldlog.core.values import is_run_id, parse_instant
from foldlog.errors import Damaged, SnapshotMissing, Usage
from foldlog.evidence import EvidenceCheck, Survey
from foldlog.halting import why_halted
from foldlog.results import Replay, VerifyReport
from foldlog.snapshots.kept import NoSnapshots
from foldlog.views import View
from foldlog.wire.partitioner import partition_of

if TYPE_CHECKING:
    from foldlog.operating import AnySeat


class EngineProofs:
    """What an engine proves of its home as a whole, or of one run."""

    if TYPE_CHECKING:
        evidence_check: EvidenceCheck | None
        _seat: AnySeat
        _apart: Apart
        _folder: Path | None

        @property
        def partitions(self) -> int: ...
        def _reading_partition(self, number: int) -> contextlib.AbstractContextManager[View]: ...

    def verify(
        self,
        run_id: str | None = None,
        *,
        redecide: bool = False,
        heads: Iterable[Any] | None = None,
        evidence: bool = False,
        progress: audit.Progress = audit.no_progress,
    ) -> VerifyReport:
        """Fold the log again from its start and compare it with itself and the projection, and
        every snapshot with the log's tail on it too.

        With a run, only its records: run chain, state hashes and projected state. ``heads`` is
        what ``heads()`` once gave, or objects of that form: the log has to contain it still, and
        is folded whole, with a run too.
        ``evidence`` looks for what the runs as they stand name: files, artifacts of this home, and
        whatever else the engine's ``evidence_check`` can tell of.
        """
        said, logs = ({}, set()) if heads is None else witness.parse_heads(heads)
        with contextlib.suppress(Damaged):  # a partition that halted: the proof says why
            self._apart.call(self._seat.turn_all)
        counts = dict.fromkeys(("partitions", "records", "void", "snapshots"), 0)
        report: dict[str, Any] = {"ok": True, **counts, "first_difference": None, "evidence": None}
        whole = run_id is None or bool(said)
        try:
            witness.check_log(said, logs, self._seat.place.log)
            for number in self._partitions_of(None if whole else run_id):
                self._verify_one(number, report, None if whole else run_id, redecide,
                                 said.get(number, {}), progress)  # fmt: skip
        except Damaged as error:
            report.update(ok=False, first_difference=error.difference())
        if evidence and report["ok"]:
            survey = Survey(self._folder, self.evidence_check)
            for number in self._partitions_of(run_id):
                with self._reading_partition(number) as view:
                    survey.look_at(view, run_id)
            report.update(survey.report())
        return VerifyReport(report)

    def _verify_one(
        self,
        number: int,
        report: dict[str, Any],
        run_id: str | None,
        redecide: bool,
        heads: dict[int, list[bytes]],
        progress: Callable[[int], None],
    ) -> None:
        """One partition, or one run of it, into the report; Damaged at the first difference."""
        kept = self._seat.place.snapshots
        names = kept.names(number)  # before the view: none of them can be ahead of it
        with self._reading_partition(number) as view:
            report["partitions"] += 1
            if run_id is not None:
                report["records"] += audit.verify_run(
                    view, run_id, redecide=redecide, progress=progress
                )
                return
            proof = audit.verify_partition(view, redecide=redecide, heads=heads, progress=progress)
            report["records"] += proof.records
            report["void"] += proof.meta.void
            report["snapshots"] += audit.verify_snapshots(view, kept, names, progress)
            if (halted := why_halted(view)) is not None:
                raise halted  # by what comes after the projection

    def _partitions_of(self, run_id: str | None) -> Iterable[int]:
        if run_id is None:
            return range(self.partitions)
        if not is_run_id(run_id):
            return []
        return [partition_of(run_id, self.partitions)]

    def replay(
        self,
        run_id: str | None = None,
        *,
        to: int | str | None = None,
        start: str = "start",
        progress: audit.Progress = audit.no_progress,
    ) -> Replay | None:
        """Fold again and give the digest; None if there is no such run.

        ``start``: "start" of the log, or "snapshot", the newest of each partition (SnapshotMissing
        if no partition has one, SnapshotDamaged). ``to`` is a revision or a time; it ends the
        replay there, for each run.
        """
        if start not in ("start", "snapshot"):
            raise Usage(f"a replay begins at the start or at a snapshot, not at {start!r}")
        replay = audit.Replaying(*parse_moment(to), progress)
        kept = self._seat.place.snapshots if start == "snapshot" else NoSnapshots()
        for number in self._partitions_of(run_id):
            with replay.based(kept, number) as base, self._reading_partition(number) as view:
                replay.fold(view, base, [run_id] if run_id is not None else view.run_ids())
        if start == "snapshot" and not replay.snapshots:
            raise SnapshotMissing("there is no snapshot to begin at: foldlog snapshot create")
        shown = replay.result(run_id)
        return None if shown is None else Replay({**shown, "from": start, "to": to})

    def digest(self) -> str:
        """The digest of everything as the projection has it."""
        digests: dict[str, bytes] = {}
        for number in range(self.partitions):
            with self._reading_partition(number) as view:
                for run_id in view.run_ids():
                    digests[run_id] = audit.run_digest(view.run(run_id).state())
        return audit.digest_of(digests)


def parse_moment(moment: int | str | None) -> tuple[int | None, int | None]:
    """A revision or a time (text) as (revision, nanoseconds); Usage if it is neither."""
    if moment is None or type(moment) is int:
        return moment, None
    try:
        return None, parse_instant(moment)  # type: ignore[arg-type]  # others than text raise
    except (TypeError, ValueError) as error:
        raise Usage(f"{moment!r} is neither a revision nor a time: {error}") from None
