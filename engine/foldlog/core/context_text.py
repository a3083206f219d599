"""The compact text about a run that goes into a model's context. CONTRACT section 4, ``context``.

Most important first, in the sections of ``context_sections``. What must be there is there; of the
rest as much as the budget holds, in order: whatever is left out is less important than whatever
is there.

Invariants:
- A function of document, budget and counter alone: the same text every time.
- Never more tokens than the budget; no item is cut; what is left out is said, and how to get it.
- A greater budget never takes an item away, if the counter gives two lines the sum of their counts
  or less.
"""

from collections.abc import Callable, Iterator
from typing import Any

from foldlog.core.context_sections import Item, Section, always, optional
from foldlog.core.tokens import estimated_tokens

Json = dict[str, Any]
Counter = Callable[[str], int]


def context_text(
    document: Json, max_tokens: int | None = None, counter: Counter = estimated_tokens
) -> Json:
    """``{text, tokens, left_out, needed}`` of a run; None is no limit.

    ``needed`` is the least budget that would do; below it ``text`` and ``tokens`` are None.
    """
    parts = _Parts(document, counter)
    number, text = parts.within(max_tokens)
    return {
        "run_id": document["run_id"],
        "revision": document["revision"],
        "text": text,
        "tokens": None if text is None else counter(text),
        "left_out": parts.left_out(number),
        "needed": parts.needed,
        "max_tokens": max_tokens,
    }


class _Parts:
    """What may stand in the text, and every text that is made of it."""

    def __init__(self, document: Json, counter: Counter) -> None:
        self._run_id = document["run_id"]
        self._counter = counter
        self._always = always(document)
        self._optional = optional(document)
        self._items: list[tuple[int, Item]] = [
            (place, item) for place, section in enumerate(self._optional) for item in section.items
        ]
        self._whole = counter(self._text(len(self._items)))
        self.needed = min(self._whole, counter(self._text(0)))

    def within(self, max_tokens: int | None) -> tuple[int, str | None]:
        """The text with the most items that the budget holds, and how many items these are."""
        if max_tokens is None or self._whole <= max_tokens:
            number = len(self._items)
        elif max_tokens < self.needed:
            return 0, None
        else:
            number = self._number_within(max_tokens)
        return number, self._text(number)

    def _number_within(self, max_tokens: int) -> int:
        """The most items, counted from the first, with which no text is beyond the budget."""
        number, total = 0, sum(map(self._cost, self._always))
        for count, (place, item) in enumerate(self._items, start=1):
            if item is self._optional[place].items[0]:
                total += self._cost(f"## {self._optional[place].heading}")
            total += self._cost(item.line)
            if total > max_tokens:
                break
            if total + sum(map(self._cost, self._remark(count))) <= max_tokens:
                number = count
        # Only a counter that gives two lines more than the sum of their counts comes in here.
        while number > 0 and self._counter(self._text(number)) > max_tokens:
            number -= 1
        return number

    def _cost(self, line: str) -> int:
        return self._counter(line + "\n")

    def _text(self, number: int) -> str:
        lines = list(self._always)
        last = -1
        for place, item in self._items[:number]:
            if place != last:
                lines.append(f"## {self._optional[place].heading}")
                last = place
            lines.append(item.line)
        return "\n".join([*lines, *self._remark(number)])

    def _remark(self, number: int) -> list[str]:
        """The lines that say what is not among the first items."""
        rows = [f"{section.name}: {count}" for section, count in self._cut_off(number)]
        return ["## left out", f"{', '.join(rows)}; all of it: {self._how()}"] if rows else []

    def _cut_off(self, number: int) -> Iterator[tuple[Section, int]]:
        """The sections of which something is not among the first items, and how much."""
        for section in self._optional:
            size = len(section.items)
            if (count := size - min(size, number)) > 0:
                yield section, count
            number = max(0, number - size)

    def left_out(self, number: int) -> list[Json]:
        """Section by section what is not among the first items: how many, which, how to get it."""
        return [
            {
                "section": section.name,
                "count": count,
                "entities": [item.entity for item in section.items[-count:]],
                "how": self._how(),
            }
            for section, count in self._cut_off(number)
        ]

    def _how(self) -> str:
        return f"foldlog show {self._run_id} --json"
