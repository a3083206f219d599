"""The waits of a run that are over: of which key each was, how it ended, and at which revision.

Others wait and signal too: an operator has a run rest, a later signal comes. So what ended a wait
is looked up in the history, and not guessed from how the run stands now.

Invariants:
- Functions of a run's state and history alone.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from foldlog import views
from foldlog.core.document import transitions
from foldlog.core.state import RunState as State
from foldlog.views import View
from foldlog.worker.agent import Json

Row = Mapping[str, Any]


class PastWait(NamedTuple):
    """A wait that is over. ``end`` is how, as an answer has it; None where nobody answered."""

    key: str
    is_question: bool
    revision: int
    end: Json | None


def past_waits(view: View, run_id: str) -> list[PastWait]:
    """Every wait of a run that is over, oldest first."""
    state = view.run(run_id).state()
    rows = {row["revision_after"]: row for row in views.history(view, run_id) or () if _moved(row)}
    signals = _signals(state, rows.values())
    found = []
    for begun, ended in pairwise(transitions(state)):
        if begun["to"] == "waiting":
            key, is_question = _asked(rows[begun["revision"]])
            at = ended["revision"]
            end = _end(ended["reason"], rows[at], signals.get((key, at)))
            found.append(PastWait(key, is_question, at, end))
    return found


def pauses(view: View, run_id: str, prefix: str) -> int:
    """How many waits of such a key are over since the run did last anything but wait."""
    moves = transitions(view.run(run_id).state())
    others = [move["revision"] for move in moves if "waiting" not in (move["from"], move["to"])]
    return sum(
        wait.key.startswith(prefix) and wait.revision > others[-1]
        for wait in past_waits(view, run_id)
    )


def _moved(row: Row) -> bool:
    """Whether a row made a revision; a signal that is sent again makes none."""
    return bool(row["revision_after"] != row["revision_before"])


def question_of(checkpoint: Mapping[str, Any] | None) -> str | None:
    """The key of the question before which a checkpoint was taken; None if before none."""
    if checkpoint is None or checkpoint["boundary"] != "before_wait":
        return None
    data = checkpoint.get("data")
    return data.get("key") if isinstance(data, Mapping) else None


def _asked(row: Row) -> tuple[str, bool]:
    """The key of the wait that began with a row, and whether a step asked it as a question."""
    events = row["events"] or ()
    keys = [event["key"] for event in events if event["type"] == "WaitStarted"]
    points = [event["checkpoint"] for event in events if event["type"] == "CheckpointTaken"]
    key = keys[-1] if keys else ""
    return key, bool(key) and any(question_of(point) == key for point in points)


def _signals(state: State, rows: Iterable[Row]) -> dict[tuple[str, int], Json]:
    """Signals by key and by the revision that used or kept them; of one key the first."""
    found: dict[tuple[str, int], Json] = {}
    for row in rows:
        for event in row["events"] or ():
            if event["type"] == "SignalReceived":
                stamp = state.stamp("signal", event["signal_id"])
                if stamp is not None:
                    end = {"signal_id": event["signal_id"], "payload": event.get("payload")}
                    found.setdefault((event["key"], stamp[0]), {**end, "author": row["author"]})
    return found


def _end(reason: str, row: Row, signal: Json | None) -> Json | None:
    """How a wait ended that was left for this reason, with this row.

    The reason alone does not tell: who moves a run gives any reason.
    """
    if reason == "SignalReceived" and signal is not None:
        return {"ended": "signal", **signal}
    if reason == "WaitTimedOut" and any(event["type"] == reason for event in row["events"] or ()):
        return {"ended": "deadline", "signal_id": None, "payload": None, "author": None}
    return None
