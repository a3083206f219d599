"""Old state documents as the newest schema has them: one pure step for each schema version.

Schema 2 keeps ``attempts`` ({at, reason, revision} of each entry into retry that counts, since the
run last began anew), from which ``retry_count`` is derived; schema 1 kept the count alone. Beside
that it keeps ``migrated_from`` with the run's head, which takes the place of the header's.

Invariants:
- A step looks at the document alone: no clock, no storage but the document's own slots.
- A document whose parts contradict each other, or from which the new part does not follow, is
  Unsafe: it stays readable as it is, and nothing is guessed.
- What a step leaves out has a stated replacement.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from foldlog.core.lifecycle import attempt_of
from foldlog.core.lifting import Chain, Unsafe
from foldlog.core.state import (
    SCHEMA_VERSION,
    Address,
    Header,
    Slot,
    Slots,
    merged,
    ordinal,
)

Transition = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """A run's header and slots in some schema version, with the slots that steps have changed."""

    header: Header
    slots: Slots
    changes: Mapping[Address, Slot | None] = field(default_factory=dict)

    def get(self, kind: str, id: str) -> Slot | None:
        """A slot as it is now."""
        address = (kind, id)
        return self.changes[address] if address in self.changes else self.slots.get(kind, id)

    def scan(self, kind: str) -> Iterator[tuple[str, Slot]]:
        """The slots of a kind as they are now, ordered by id."""
        changed = {id: slot for (k, id), slot in self.changes.items() if k == kind}
        below = self.slots.scan(kind)
        return merged(below, changed) if changed else below

    def with_changes(self, header: Header, changes: Mapping[Address, Slot | None]) -> "Document":
        """The document after one more step."""
        return replace(self, header=header, changes={**self.changes, **changes})


def with_attempts(document: Document) -> Document | Unsafe:
    """Schema 1 to 2: the attempts out of the list of transitions, as many as the count says.

    Those from before the run last began anew are kept too, as a replay of the log keeps them.
    """
    header = document.header
    *earlier, last = _retries(slot.value for _, slot in document.scan("transition"))
    before = _certain([entry for entries in earlier for entry in entries])
    counted = _counted(last, header.retry_count)
    if isinstance(before, Unsafe):
        return before
    if isinstance(counted, Unsafe):
        return counted
    attempts = [*before, *counted]
    changes: dict[Address, Slot | None] = {
        ("attempt", ordinal(number)): Slot(attempt_of(transition))
        for number, transition in enumerate(attempts, 1)
    }
    checkpoint = document.get("checkpoint", "")
    if checkpoint is not None and checkpoint.value is not None:
        value = {**checkpoint.value, "schema_version": 2}
        changes[("checkpoint", "")] = replace(checkpoint, value=value)
    header = replace(
        header,
        schema_version=2,
        attempts_count=len(attempts),
        attempts_before=len(before),
        retries_kept=None,
    )
    return document.with_changes(header, changes)


@dataclass(frozen=True, slots=True)
class _Retry:
    """A transition into retry; ``counts`` is None where schema 1 does not tell."""

    transition: Transition
    counts: bool | None


def _retries(transitions: Iterable[Transition]) -> list[list[_Retry]]:
    """The transitions into retry: a list for each time that the run began anew, and the last."""
    found: list[list[_Retry]] = [[]]
    waited_from = None
    for transition in transitions:
        before, to = transition["from"], transition["to"]
        if (before, to) == ("retry", "start"):
            found.append([])
        elif to == "retry":
            found[-1].append(_Retry(transition, _counts(transition, waited_from)))
        if to == "waiting":
            waited_from = before
    return found


def _counts(transition: Transition, waited_from: str | None) -> bool | None:
    """Whether an entry into retry counted: a wait's return to it did not.

    A wait that began in retry and ended by its deadline returned there if it was a timer and
    counted if it was another one; of which kind it was is not in the list.
    """
    if transition["from"] != "waiting":
        return True
    if transition["reason"] != "WaitTimedOut":
        return False  # by a signal, or because the run was forked
    return None if waited_from == "retry" else True


def _certain(entries: list[_Retry]) -> list[Transition] | Unsafe:
    """The entries that counted before the run last began anew: no count tells of those."""
    unsure = sum(entry.counts is None for entry in entries)
    if unsure:
        return Unsafe(
            f"the run began anew, and of {unsure} entries into retry before that schema 1 does not "
            "say whether they counted"
        )
    return [entry.transition for entry in entries if entry.counts]


def _counted(entries: list[_Retry], count: int) -> list[Transition] | Unsafe:
    """The entries that counted, if the count tells which they are."""
    certain = [entry.transition for entry in entries if entry.counts]
    possible = [entry.transition for entry in entries if entry.counts is not False]
    if count == len(certain):
        return certain
    if count == len(possible):
        return possible
    if not len(certain) < count < len(possible):
        return Unsafe(
            f"the list of transitions and the count of retries disagree: {len(possible)} entries "
            f"into retry since the run began anew, and a count of {count}"
        )
    return Unsafe(
        f"{count} of {len(possible)} entries into retry counted, and schema 1 does not say which"
    )


MIGRATIONS: Chain[Document] = Chain("schema", SCHEMA_VERSION, {1: with_attempts})
"""Every document of an older schema goes through these."""
