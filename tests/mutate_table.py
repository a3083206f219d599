"""Is every column of the table of event types held by a test? Take each away and see who notices.

`python -m tests.mutate_table` tries every mutation and ends with 1, naming row and column, if one
goes unnoticed. A mutation is noticed if a decision of the walks comes out otherwise under the
mutated table, if a reducer then stamps what its row does not name, or if the row's marks are no
longer the contract's (`MARKS`; only what no decision can show is left to them).

Invariants:
- The walks are decided once under the table as it is; mutations only decide the same again.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from foldlog.core.catalogue import AUTHORITIES, CATALOGUE, Catalogue, EventType
from tests.core_model import Record
from tests.core_walk import RULES_OF_WALKS, poisoned, walk
from tests.test_laws import decide_again, single_event_records, told, undeclared

SEEDS = range(120)
LISTS = ("reads", "writes", "also", "unless")
FLAGS = ("commutes", "floats", "report")


# The contract's marks: which events are `+`, `~` and "R". A `+` needs no `~`, so whether a type
# has both, or the wrong one of them, is seen in no decision but in what its authors are told.
PLUS = """
    FactConfirmed HypothesisProposed QuestionOpened EnvironmentObserved ArtifactAdded TaskAdded
    ToolStarted ToolSucceeded ToolFailed SignalReceived BudgetSpent Recorded
""".split()
FLOATS = """
    ToolFailed WaitTimedOut EffectSucceeded EffectFailed EffectUnknown EffectReconciled
    CheckpointTaken LeaseAcquired LeaseRenewed LeaseReleased ConflictResolved
""".split()
REPORTS = """
    ToolSucceeded ToolFailed BudgetSpent EffectSucceeded EffectFailed EffectUnknown EffectReconciled
""".split()
# Named both read and written by the contract; either alone is compared alike.
READ_AND_WRITTEN = {"PlanAdopted": "plan"}


def has_marks(row: EventType) -> bool:
    """Whether a row carries the contract's marks."""
    own = {"replaces_hypothesis_id": "h", "supersedes_fact_id": "f", "recoverable": True}
    own |= {"task": {"depends_on": ["t"]}}
    unless = all(not row.is_plus({name: own[name]}) for name in CONDITIONS.get(row.name, ()))
    both = READ_AND_WRITTEN.get(row.name)
    return (
        (row.commutes, row.floats, row.report)
        == (row.name in PLUS, row.name in FLOATS, row.name in REPORTS)
        and unless
        and (both is None or (both in row.reads and both in row.writes))
    )


CONDITIONS = {
    "FactConfirmed": ("replaces_hypothesis_id", "supersedes_fact_id"),
    "TaskAdded": ("task",),
    "ToolFailed": ("recoverable",),
}


@dataclass(frozen=True)
class Mutation:
    """One row of the table with one thing changed in one column."""

    row: str
    column: str
    change: str
    mutated: EventType

    def __str__(self) -> str:
        return f"{self.row}: {self.column} {self.change}"

    def rules(self) -> dict[int, Catalogue]:
        """The rules of the walks with this row in place of its own."""
        rows = poisoned({**CATALOGUE, self.row: self.mutated})
        return dict.fromkeys(RULES_OF_WALKS, rows)


def mutations() -> Iterator[Mutation]:
    """Every template taken out and every flag turned over, row by row."""
    for row in CATALOGUE.values():
        for column in LISTS:
            yield from _without_each(row, column)
        for column in FLAGS:
            if not (row.control and column != "report"):  # Control is asked for first.
                yield _mutated(row, column, "turned over", not getattr(row, column))
        yield from _other_authors(row)


def _without_each(row: EventType, column: str) -> Iterator[Mutation]:
    templates = getattr(row, column)
    for template in templates:
        rest = tuple(other for other in templates if other != template)
        yield _mutated(row, column, f"without {template}", rest)
        if "?" in template:
            always = tuple(other.partition("?")[0] for other in templates)
            yield _mutated(row, column, f"{template} without its condition", always)


def _other_authors(row: EventType) -> Iterator[Mutation]:
    if row.authors is None:
        yield _mutated(row, "authors", "for authorities only", AUTHORITIES)
        return
    yield _mutated(row, "authors", "for all", None)
    for kind in sorted(row.authors):
        yield _mutated(row, "authors", f"without {kind}", row.authors - {kind})


def _mutated(row: EventType, column: str, change: str, value: Any) -> Mutation:
    changed: dict[str, Any] = {column: value}
    return Mutation(row.name, column, change, dataclasses.replace(row, **changed))


def corpus(seeds: Iterable[int] = SEEDS) -> dict[str, list[Record]]:
    """The records of the walks by the event types in them, as proposed or kept in a conflict."""
    by_type: dict[str, list[Record]] = {name: [] for name in CATALOGUE}
    for seed in seeds:
        for record in walk(seed).records:
            for name in {event["type"] for event in record.proposal.events}:
                by_type[name].append(record)
    return by_type


def noticed(mutation: Mutation, by_type: dict[str, list[Record]]) -> str | None:
    """What notices this mutation, or None."""
    rules, records = mutation.rules(), by_type[mutation.row]
    for record in records:
        if told(decide_again(record, rules)) != told(record.decision):
            return f"decision {record.sequence} of {record.run_id}"
    if mutation.column in ("writes", "also"):
        for record in single_event_records(records):
            if record.proposal.events[0]["type"] == mutation.row:
                if undeclared(record, rules[1]):
                    return f"stamps of {record.sequence} of {record.run_id}"
    return None if has_marks(mutation.mutated) else "the contract's marks"


def main() -> int:
    """Try every mutation; 0 if all are noticed."""
    by_type = corpus()
    tried = list(mutations())
    by = {mutation: noticed(mutation, by_type) for mutation in tried}
    missed = [mutation for mutation, what in by.items() if what is None]
    for mutation in missed:
        sys.stdout.write(f"unnoticed: {mutation}\n")
    kinds = Counter(str(what).split()[0] for what in by.values())
    sys.stdout.write(f"{len(tried) - len(missed)} of {len(tried)} mutations noticed: {kinds}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
