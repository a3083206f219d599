"""Budgets: what is left to spend, and what is refused when nothing is.

Invariants:
- Spending always counts and may go below zero, to ``-(2^53-1)`` at the lowest.
- None means unlimited, which is higher than every number and later than every time.
"""

from foldlog.core.context import Context, Event, Refusal
from foldlog.core.state import Draft
from foldlog.core.values import parse_instant

TOKENS_MIN = -(2**53 - 1)


def exhausted(draft: Draft, ctx: Context) -> Refusal | None:
    """BUDGET_EXHAUSTED if no tokens are left or the deadline has come, by log time."""
    tokens = draft.value("budget", "tokens")
    if tokens is not None and tokens <= 0:
        return Refusal("BUDGET_EXHAUSTED", f"tokens_remaining is {tokens}")
    deadline = draft.value("budget", "deadline")
    if deadline is not None and ctx.log_time * 1000 >= parse_instant(deadline):
        return Refusal("BUDGET_EXHAUSTED", f"the deadline {deadline} has passed by log time")
    return None


def set_budget(draft: Draft, event: Event, ctx: Context) -> None:
    """Set what is given; lowering either limit supersedes what was decided before."""
    lowers = False
    if "tokens_remaining" in event:
        old, new = draft.value("budget", "tokens"), event["tokens_remaining"]
        lowers |= new is not None and (old is None or new < old)
        _set(draft, "tokens", new)
    if "deadline" in event:
        old, new = draft.value("budget", "deadline"), event["deadline"]
        lowers |= new is not None and (old is None or parse_instant(new) < parse_instant(old))
        _set(draft, "deadline", new)
    if lowers:
        draft.note(control_revision=draft.header.revision)


def _set(draft: Draft, name: str, value: object) -> None:
    if value is not None or draft.value("budget", name) is not None:
        draft.put("budget", name, value)


def spend(draft: Draft, event: Event, ctx: Context) -> None:
    """``BudgetSpent``: always counts, also below 0; nothing to count where it is unlimited."""
    tokens = draft.value("budget", "tokens")
    if tokens is not None:
        draft.put("budget", "tokens", max(tokens - event["tokens"], TOKENS_MIN))
