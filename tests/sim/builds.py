"""The rule tables of the builds that decide side by side.

Invariants:
- Tables differ in what they refuse or raise on, never in what an accepted event does: whoever
  folds a record comes to the same state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from foldlog.core.catalogue import Catalogue
from foldlog.core.context import Context, Event, Refusal
from foldlog.core.state import Draft
from tests.core_walk import RULES_OF_WALKS


class RuleRaised(Exception):
    """What the rule of one build raises."""


def _changed_check(event_type: str, refuses: bool) -> Mapping[int, Catalogue]:
    """The rules of a build whose check of one event type refuses, or raises."""

    def check(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
        if refuses:
            return Refusal("INVALID_TRANSITION", f"this build takes no {event_type}")
        raise RuleRaised(event_type)

    return {
        version: MappingProxyType({**table, event_type: replace(table[event_type], check=check)})
        for version, table in RULES_OF_WALKS.items()
    }


BUILDS: tuple[Mapping[int, Catalogue], ...] = (
    RULES_OF_WALKS,
    _changed_check("QuestionOpened", refuses=True),
    _changed_check("ArtifactAdded", refuses=False),
)
"""Rule tables that differ in what they refuse, never in what an accepted event does."""
