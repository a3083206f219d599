"""Which paths a goal covers, and so which tasks a change of goal leaves outside.

Invariants:
- Comparison is by whole path parts: ``src`` covers ``src/auth`` and not ``src2``.
"""

from collections.abc import Sequence
from typing import Any


def _parts(item: str) -> list[str]:
    while item.startswith(("./", "/")):
        item = item[2:] if item.startswith("./") else item[1:]
    item = item.rstrip("/")
    return item.split("/") if item else []


def covers(a: str, b: str) -> bool:
    """Whether scope item ``a`` covers ``b``: they are equal, or ``a`` is a ``/``-prefix of it."""
    outer, inner = _parts(a), _parts(b)
    return inner[: len(outer)] == outer


def in_scope(items: Sequence[str], scope: dict[str, Any]) -> bool:
    """Whether a task with these scope items lies within a goal's scope (no items: it does)."""
    include, exclude = scope["include"], scope["exclude"]
    return all(
        (not include or any(covers(outer, item) for outer in include))
        and not any(covers(outer, item) for outer in exclude)
        for item in items
    )
