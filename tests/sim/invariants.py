"""What must hold, each as a function with a name; ``HOLDS`` tells them all.

Invariants:
- A check looks at the logs and stores as they are on the disk, and never takes a step.
- What can be told without the engine's own code is: the models here are a few lines each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from foldlog.core.proposals import Proposal
from foldlog.log.base import Proposed, Stored
from foldlog.wire import keys
from foldlog.wire.records import Record

Rows = Mapping[bytes, bytes]

HOLDS = {
    "state_is_the_fold": "every store is byte for byte the fold of the log up to its offset",
    "decided_again": "every record decided again, under its rules and log time, is the same",
    "the_log_folds": "the log holds no damage: chain, columns, order, revisions, state hashes",
    "acknowledged_is_logged": "what a client was told stands in the log, word for word",
    "history_only_grows": "no record that was once readable is gone or another one",
    "head_extended": "a record counts if and only if it is the first to extend the head",
    "one_record_per_proposal": "every proposal has one record, in the order of the inbox",
    "sequences_and_revisions_dense": "1, 2, 3, ... in a partition; revisions in a run",
    "log_time": "later of the time of taking and the log time before, and never steps back",
    "identity_first": "a known batch id is answered by its first record, whatever else is wrong",
    "runs_are_apart": "a record changes keys of its own run only; a run alone folds the same",
    "one_answer": "every answer to a proposal is the same one",
    "reads_are_fresh": "a client reads at least what it was told, and only what was once true",
    "followers_agree": "from whichever store a reader begins, it ends with the same bytes",
    "all_decided": "after the faults everything is decided, and no deadline is forgotten",
    "intent_first": "nothing is done outside that was not recorded as intended before",
    "done_once": "no effect is done twice, and a run's ledger says what was done",
    "jobs_end": "every run that workers work on is completed once the faults have stopped",
    "snapshots_fold": "snapshot and tail are byte for byte the full replay, from every snapshot",
    "two_are_kept": "no snapshot is pruned before two newer ones verify",
    "snapshots_stay": "a snapshot that was taken is there and whole until it is pruned or rots",
    "bad_is_not_served": "no store is shown that a bad snapshot, or half of a swap, left",
    "errors_are_ours": "a client meets only errors of the library, a process none by itself",
}
"""Every invariant by name."""


class Violated(BaseException):
    """An invariant does not hold. No engine code catches it."""

    def __init__(self, name: str, text: str) -> None:
        assert name in HOLDS, name
        super().__init__(f"{name}: {text}")
        self.name = name


def demand(condition: bool, name: str, text: Callable[[], str] | str) -> None:
    """Violated unless the condition holds."""
    if not condition:
        raise Violated(name, text if isinstance(text, str) else text())


# The models: what the log must be like, told without the engine


def check_order(record: Record, before: Record | None, proposed: Proposed | None) -> None:
    """Sequence, log time and position of a counted record follow from the one before it and from
    its proposal, which is the next in the inbox."""
    sequence = 1 if before is None else before.sequence + 1
    demand(
        record.sequence == sequence,
        "sequences_and_revisions_dense",
        f"record {record.sequence} where {sequence} is next",
    )
    demand(
        proposed is not None and proposed.position == record.position,
        "one_record_per_proposal",
        lambda: f"record {sequence} decides position {record.position}, next is {proposed}",
    )
    assert proposed is not None
    log_time = max(proposed.appended_at, before.log_time if before is not None else 0)
    demand(
        (record.appended_at, record.log_time) == (proposed.appended_at, log_time),
        "log_time",
        f"record {sequence}: {record.appended_at}/{record.log_time}, not {log_time}",
    )
    if record.proposal is not None:
        demand(
            record.proposal == proposed.value,
            "one_record_per_proposal",
            f"record {sequence} holds another proposal than position {record.position}",
        )


def check_revision(record: Record, revision: int) -> None:
    """Accepted and arbitration add one to the run's revision, everything else nothing."""
    more = 1 if record.outcome in ("accepted", "arbitration") else 0
    demand(
        (record.revision_before, record.revision_after) == (revision, revision + more),
        "sequences_and_revisions_dense",
        f"record {record.sequence} ({record.outcome}) takes run {record.run_id} from "
        f"{record.revision_before} to {record.revision_after}; it stood at {revision}",
    )


def check_identity(
    record: Record, first: tuple[Record, Any] | None, proposal: Proposal | None
) -> None:
    """A batch id met before is a duplicate with the same content, and refused with another."""
    told = (record.outcome, record.code, record.duplicate_of)
    known = record.outcome == "duplicate" or record.code == "BATCH_ID_REUSED"
    if first is None or proposal is None:
        demand(not known, "identity_first", f"record {record.sequence} is {told}, but the first")
        return
    earlier, content = first
    same = content is not None and content == proposal.content()
    expected = "duplicate" if same else "BATCH_ID_REUSED"
    found = "duplicate" if record.outcome == "duplicate" else str(record.code)
    demand(
        found == expected and record.duplicate_of in (None, earlier.sequence),
        "identity_first",
        f"record {record.sequence} repeats record {earlier.sequence}: {told}, not {expected}",
    )


def check_counted(stored: Stored, previous: bytes, head: bytes, counts: bool) -> None:
    """The four-line model: the first record that extends the head is the next one."""
    demand(
        (previous == head) == counts,
        "head_extended",
        f"offset {stored.offset} extends {previous.hex()[:12]}, the head is {head.hex()[:12]}, "
        f"counted: {counts}",
    )


def check_keys(run_id: str, changed: Iterable[bytes]) -> None:
    """Folding a record of a run touches keys of that run and the fold's position."""
    run = run_id.encode()
    for key in changed:
        mine = key == keys.META or key == keys.head_key(run_id)
        mine = mine or (key[:2] in (b"e\0", b"b\0", b"r\0") and key[2:].startswith(run + b"\0"))
        mine = mine or (key.startswith(keys.TIMER_PREFIX) and keys.timer_of(key)[1] == run_id)
        demand(mine, "runs_are_apart", f"a record of {run_id} changes {key!r}")


def check_same(name: str, what: str, expected: Rows, found: Rows) -> None:
    """Two stores hold the same rows."""
    if expected == found:
        return
    key = min(k for k in {*expected, *found} if expected.get(k) != found.get(k))
    text = f"{what}: {key!r} is {found.get(key)!r}, not {expected.get(key)!r}"
    raise Violated(name, text)


def check_grown(what: str, before: Sequence[Any], now: Sequence[Any]) -> None:
    """What was there is there, and the same."""
    for number, row in enumerate(before):
        demand(
            number < len(now) and now[number] is row,
            "history_only_grows",
            f"{what} {number + 1} of {len(before)} is gone or another",
        )


def check_answer(told: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """What a client was told is what the record in the log says."""
    for name, value in expected.items():
        demand(
            told.get(name) == value,
            "acknowledged_is_logged",
            f"batch {told.get('batch_id')}: {name} was told {told.get(name)!r}, not {value!r}",
        )
