"""Outcomes on the command line: how one is printed, and the exit code that it means.

Invariants:
- The exit code follows the outcome alone: accepted 0, unknown 6, everything else 3; a duplicate has
  the outcome of the first record, and so its exit code.
- The JSON printed is the engine's, untouched.
"""

from __future__ import annotations

from typing import Any

from foldlog.cli import output
from foldlog.cli.options import Settings
from foldlog.cli.output import paint, shown_value
from foldlog.cli.safe import safe, wrap

_STYLES = {"accepted": ("green",), "arbitration": ("yellow",), "unknown": ("yellow",)}
_EXIT_CODES = {"accepted": 0, "unknown": 6}


def exit_code(outcome: dict[str, Any]) -> int:
    """What a command that printed this outcome ends with."""
    return _EXIT_CODES.get(outcome["outcome"], 3)


def say_outcome(settings: Settings, outcome: dict[str, Any]) -> int:
    """Print an outcome, and on stderr what may be typed next; the exit code."""
    if settings.json:
        output.say_json(outcome)
        return exit_code(outcome)
    output.say(_headline(outcome))
    for line in _details(outcome):
        output.say(f"  {line}")
    for line in _next(outcome):
        output.note(f"  see: {line}")
    return exit_code(outcome)


def _headline(outcome: dict[str, Any]) -> str:
    name = outcome["outcome"]
    words = [paint(name, "bold", *_STYLES.get(name, ("red",)))]
    if outcome.get("code"):
        words.append(paint(safe(outcome["code"]), "bold"))
    words.append(safe(outcome["run_id"]))
    if "revision" in outcome:
        words.append(f"revision {outcome['revision']}")
    if outcome.get("batch_id"):
        words.append(f"batch {safe(outcome['batch_id'])}")
    return " ".join(words) + _remarks(outcome)


def _remarks(outcome: dict[str, Any]) -> str:
    remarks = []
    if outcome.get("rebased"):
        remarks.append("rebased: the run had moved on, nothing it touches had changed")
    if outcome.get("duplicate"):
        remarks.append("proposed before, this is the first outcome")
    if outcome.get("recorded") is False:
        remarks.append("not recorded")
    return "".join(f"\n  {remark}" for remark in remarks)


def _details(outcome: dict[str, Any]) -> list[str]:
    lines = []
    for key in ("message", "error"):
        if outcome.get(key):
            lines += wrap(safe(outcome[key]), output.columns() - 2)
    place = _place(outcome)
    if place:
        lines.append(place)
    for conflict in outcome.get("conflicts") or ():
        lines.append(
            f"{safe(conflict['entity'])} was changed at revision {conflict['changed_at']}"
            f" by {output.shown_author(conflict['changed_by'])},"
            f" expected at {shown_value(conflict['expected_revision'])}"
        )
    if outcome.get("conflict_id"):
        lines.append(f"open conflict {safe(outcome['conflict_id'])}")
    return lines


def _place(outcome: dict[str, Any]) -> str:
    """Where the fault is, unless the message begins with it."""
    index, field = outcome.get("event_index"), outcome.get("field")
    parts = [] if index is None else [f"event {index}"]
    if field:
        parts.append(f"field {safe(field)}")
    is_told = str(outcome.get("message")).startswith((f"event {index}", f"{field}:"))
    return "" if is_told else ", ".join(parts)


def _next(outcome: dict[str, Any]) -> list[str]:
    """Commands that help on from here."""
    run_id = safe(outcome["run_id"])
    name = outcome["outcome"]
    if name == "unknown":
        return [f"foldlog outcome {run_id} {outcome['batch_id']}"]
    if name == "quarantined":
        return [f"foldlog history {run_id}", "foldlog explain RUN_QUARANTINED"]
    if name == "arbitration":
        return [f"foldlog conflicts {run_id}", "foldlog explain CONFLICT"]
    return [f"foldlog explain {safe(outcome['code'])}"] if outcome.get("code") else []
