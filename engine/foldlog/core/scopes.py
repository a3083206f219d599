"""Which paths a goal covers, and so which tasks a change of goal leaves outside.

Invariants:
- Comparison is by whole path parts: ``src`` covers ``src/auth`` and not ``src2``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_LEADING = re.compile(r"^(?:\./|/)+")
_Tree = dict[Any, Any]
"""Parts, what may follow each, and ``_END``."""

_END = None
"""Marks, among the parts that may follow, that an item ends here."""


def _parts(item: str) -> list[str]:
    item = _LEADING.sub("", item).rstrip("/")
    return item.split("/") if item else []


def covers(a: str, b: str) -> bool:
    """Whether scope item ``a`` covers ``b``: they are equal, or ``a`` is a ``/``-prefix of it."""
    outer, inner = _parts(a), _parts(b)
    return inner[: len(outer)] == outer


class GoalScope:
    """A goal's scope, parsed once: a task is as dear to compare as its items are long.

    Lists of items have no limit but the size of a proposal, so comparing each with each could take
    hours.
    """

    def __init__(self, scope: Mapping[str, Sequence[str]]) -> None:
        self._any = not scope["include"]
        self._include, self._exclude = _tree(scope["include"]), _tree(scope["exclude"])

    def has(self, items: Iterable[str]) -> bool:
        """Whether a task with these scope items lies within the goal's scope (none: it does)."""
        return all(
            (self._any or _covered(self._include, parts)) and not _covered(self._exclude, parts)
            for parts in map(_parts, items)
        )


def _tree(items: Iterable[str]) -> _Tree:
    root: _Tree = {}
    for item in items:
        node = root
        for part in _parts(item):
            node = node.setdefault(part, {})
        node[_END] = True
    return root


def _covered(tree: _Tree, parts: list[str]) -> bool:
    node: Any = tree
    for part in parts:
        if _END in node:
            return True
        node = node.get(part)
        if node is None:
            return False
    return _END in node
