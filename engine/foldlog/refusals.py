"""What the client refuses by itself, before anything is handed in.

Invariants:
- Nothing of it reaches the log: ``recorded`` is false, and the batch id is not used up.
- A batch that was decided once is never refused here for what has become of its evidence since.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foldlog import views
from foldlog.core.proposals import Malformed, Proposal, hinted
from foldlog.core.values import is_batch_id
from foldlog.evidence import missing
from foldlog.results import Outcome
from foldlog.views import View


class Refusals:
    """The refusals of a run's handle."""

    if TYPE_CHECKING:
        run_id: str
        engine: Any

        def outcome(self, batch_id: str) -> Outcome | None: ...
        def _read(self, work: Callable[[View], Any]) -> Any: ...

    def refused(self, value: Any, error: Malformed) -> Outcome:
        """The outcome of what is malformed in shape: never handed in, its batch id not used up."""
        given = value.get("batch_id") if isinstance(value, dict) else None
        batch_id = given.lower() if isinstance(given, str) and is_batch_id(given) else None
        events = value.get("events") if isinstance(value, dict) else None
        message = hinted(error.message, events)
        return self._unrecorded(batch_id, "MALFORMED", message, error.event_index, error.field)

    def _unrecorded(
        self, batch_id: str | None, code: str, message: str, index: int | None, field: str | None
    ) -> Outcome:
        revision = self._read(lambda view: view.run(self.run_id).header.revision) or 0
        value = views.unrecorded(self.run_id, batch_id, revision)
        told = {"code": code, "message": message, "event_index": index, "field": field}
        return Outcome({**value, **told})

    def _without_evidence(self, proposal: Proposal) -> Outcome | None:
        """The refusal of a proposal whose evidence is missing, unless it was decided before: then
        whoever proposes it again must get that answer, whatever became of the evidence."""
        if (check := self.engine.evidence_check) is None:
            return None
        lost = missing(self.run_id, proposal.events, check)
        if lost is None or self.outcome(proposal.batch_id) is not None:
            return None
        message = f"{lost.reference!r} is not found by the evidence check: name what is there"
        message = hinted(message, proposal.events)
        where = (lost.event_index, lost.field)
        return self._unrecorded(proposal.batch_id, "EVIDENCE_REQUIRED", message, *where)
