"""A reader that starts in the middle of a partition: which of the records there count.

It does not know the head, and a record that is merely there may be void. Nobody extends a void
record except within the same turn, so no chain of void records is longer than T, the most records
a turn may have. So where some record in view has more than T ancestors in view, the one T steps
above it counts for certain; from there on the first record that extends the head does.

Invariants:
- Pure: rows in, places out. Nothing is read here, and nothing decoded.
- The tip of a long chain is never taken at its word: it may be the end of a void branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from foldlog.fold import TURN_RECORDS_MAX
from foldlog.wire.chain import ZERO

WINDOW_RECORDS = TURN_RECORDS_MAX + 100
"""How many records are looked at first: one more than T where none is void, and room for some."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a record extends, and the head after it."""

    previous: bytes
    head: bytes


def certain_place(links: Sequence[Link]) -> int | None:
    """The index of a record that counts for certain; None if none in view does."""
    ancestors: dict[bytes, int] = {}
    first: dict[bytes, int] = {}
    for index, link in enumerate(links):
        if link.head in first:
            continue  # the same record again
        first[link.head] = index
        count = ancestors.get(link.previous, -1) + 1
        ancestors[link.head] = count
        if count > TURN_RECORDS_MAX:
            for _ in range(TURN_RECORDS_MAX):
                index = first[links[index].previous]
            return index
    return None


def counted(links: Sequence[Link], head: bytes) -> list[int]:
    """The indexes of the records that count, for who knows the head before the first of them."""
    found = []
    for index, link in enumerate(links):
        if link.previous == head:
            found.append(index)
            head = link.head
    return found


def counted_in_view(links: Sequence[Link], *, from_the_start: bool) -> list[int] | None:
    """The indexes of the records that count, from the first that is certain; None if none is."""
    if from_the_start:
        return counted(links, ZERO)
    place = certain_place(links)
    if place is None:
        return None
    return [place, *(place + 1 + n for n in counted(links[place + 1 :], links[place].head))]
