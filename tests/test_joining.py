"""A reader that starts in the middle takes for counted what counts, and nothing that is void."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foldlog.fold import TURN_RECORDS_MAX
from foldlog.joining import Link, certain_place, counted, counted_in_view
from foldlog.wire.chain import ZERO


def head(number: int) -> bytes:
    """A head of its own."""
    return number.to_bytes(32, "big")


class Deciders:
    """Deciders that stall: each appends turns that extend what it believed to be the head."""

    def __init__(self, seed: int, turns: int, turn_max: int) -> None:
        self.dice = random.Random(seed)
        self.links: list[Link] = []
        self.numbers = 0
        self.head = ZERO
        self.trail = [ZERO]
        late: list[list[Link]] = []
        for _ in range(turns):
            turn = self.turn(self.believed(), self.dice.randint(1, turn_max))
            if self.dice.random() < 0.1:
                late.append(turn)
            else:
                self.arrive(turn)
            if late and self.dice.random() < 0.4:
                self.arrive(late.pop(self.dice.randrange(len(late))))
        for turn in late:
            self.arrive(turn)

    def believed(self) -> bytes:
        """The head, or for who has slept some earlier one that counted."""
        return self.dice.choice(self.trail) if self.dice.random() < 0.1 else self.head

    def turn(self, on: bytes, records: int) -> list[Link]:
        """A turn that extends this head."""
        made = []
        for _ in range(records):
            self.numbers += 1
            made.append(Link(on, head(self.numbers)))
            on = made[-1].head
        return made

    def arrive(self, turn: list[Link]) -> None:
        """A turn reaches the log, whole or its beginning only."""
        whole = self.dice.random() < 0.8
        kept = turn if whole else turn[: self.dice.randint(0, len(turn))]
        self.links += kept
        for link in kept:
            if link.previous == self.head:
                self.head = link.head
                self.trail.append(link.head)


@pytest.mark.parametrize("seed", range(30))
def test_from_any_start_what_counts_is_found(seed: int) -> None:
    """Wherever the view begins and ends, what is said to count does, from there on all of it."""
    turn_max = (3, 40, TURN_RECORDS_MAX)[seed % 3]
    deciders = Deciders(seed, 10_000 // turn_max + 12, turn_max)
    links = deciders.links
    truth = set(counted(links, ZERO))
    certain = 0
    for _ in range(40):
        start = deciders.dice.randrange(len(links))
        end = deciders.dice.randint(start, len(links))
        places = counted_in_view(links[start:end], from_the_start=start == 0)
        if places is None:
            continue
        certain += 1
        found = [start + place for place in places]
        assert found == sorted(truth & set(range(found[0] if found else end, end)))
    assert certain > 3


def test_a_void_chain_is_never_taken() -> None:
    """A whole turn of void records, the longest chain that there can be, says nothing by itself."""
    void = [Link(head(n), head(n + 1)) for n in range(1, TURN_RECORDS_MAX + 1)]
    assert certain_place(void) is None
    # One more than a turn can have: its beginning counts for certain, and no tip of it.
    assert certain_place([*void, Link(head(TURN_RECORDS_MAX + 1), head(9_999))]) is None
    longer = [Link(head(n), head(n + 1)) for n in range(1, TURN_RECORDS_MAX + 3)]
    assert certain_place(longer) == 1


def test_the_tip_of_a_long_chain_may_be_void() -> None:
    """Where two turns extend one record, the first to arrive counts, however long the other is."""
    chain = [Link(head(n), head(n + 1)) for n in range(TURN_RECORDS_MAX + 10)]
    tip = chain[-1].head
    first, other = Link(tip, head(100_000)), [Link(tip, head(200_000))]
    while len(other) < TURN_RECORDS_MAX:
        other.append(Link(other[-1].head, head(200_000 + len(other))))
    view = [*chain[5:], first, *other, Link(first.head, head(300_000))]
    places = counted_in_view(view, from_the_start=False)
    assert places is not None
    assert [view[place].head for place in places[-2:]] == [first.head, head(300_000)]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60))
@settings(deadline=None)
def test_any_rows_are_judged_without_end(pairs: list[tuple[int, int]]) -> None:
    """Rows in any order, repeated or extending themselves, end in an answer."""
    links = [Link(head(previous), head(own)) for previous, own in pairs]
    assert counted_in_view(links, from_the_start=False) is None
