"""foldlog: an event-sourced run-state engine for AI agents.

    from foldlog import Engine, FactConfirmed

    with Engine.open("./.foldlog", create=True) as engine:
        run = engine.start("run_1", goal="Fix the login failure")
        outcome = run.propose([FactConfirmed(fact={"id": "f1", "statement": "it is the cache"})])
        state = run.state()

Invariants:
- What this module exports is the public API; everything else may move.
- Importing it loads nothing else: names are looked up when they are first used, since the command
  line starts often and needs little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foldlog.version import __version__ as __version__

if TYPE_CHECKING:
    from foldlog.client import Engine as Engine
    from foldlog.client import Run as Run
    from foldlog.errors import Damaged as Damaged
    from foldlog.errors import FoldlogError as FoldlogError
    from foldlog.errors import HomeBusy as HomeBusy
    from foldlog.errors import HomeExists as HomeExists
    from foldlog.errors import HomeMissing as HomeMissing
    from foldlog.errors import OutcomeUnknown as OutcomeUnknown
    from foldlog.errors import ProjectorStalled as ProjectorStalled
    from foldlog.errors import TimedOut as TimedOut
    from foldlog.errors import Unavailable as Unavailable
    from foldlog.errors import Usage as Usage
    from foldlog.events import *  # noqa: F403
    from foldlog.results import Conflict as Conflict
    from foldlog.results import ContextText as ContextText
    from foldlog.results import Difference as Difference
    from foldlog.results import Finding as Finding
    from foldlog.results import Head as Head
    from foldlog.results import HistoryRow as HistoryRow
    from foldlog.results import Outcome as Outcome
    from foldlog.results import PartitionStatus as PartitionStatus
    from foldlog.results import Quarantined as Quarantined
    from foldlog.results import Replay as Replay
    from foldlog.results import ResumeCheck as ResumeCheck
    from foldlog.results import RunState as RunState
    from foldlog.results import RunSummary as RunSummary
    from foldlog.results import Value as Value
    from foldlog.results import VerifyReport as VerifyReport
    from foldlog.results import Waited as Waited
    from foldlog.results import Why as Why
    from foldlog.workspace import WorkspaceUnreadable as WorkspaceUnreadable
    from foldlog.workspace import workspace_version as workspace_version

_HOMES = {
    "client": ("Engine", "Run"),
    "errors": (
        "Damaged",
        "FoldlogError",
        "HomeBusy",
        "HomeExists",
        "HomeMissing",
        "OutcomeUnknown",
        "ProjectorStalled",
        "TimedOut",
        "Unavailable",
        "Usage",
    ),
    "results": (
        "Conflict",
        "ContextText",
        "Difference",
        "Finding",
        "Head",
        "HistoryRow",
        "Outcome",
        "PartitionStatus",
        "Quarantined",
        "Replay",
        "ResumeCheck",
        "RunState",
        "RunSummary",
        "Value",
        "VerifyReport",
        "Waited",
        "Why",
    ),
    "workspace": ("WorkspaceUnreadable", "workspace_version"),
}


def __getattr__(name: str) -> Any:
    """A public name, from the module that holds it: every event type is one of them."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"foldlog.{module}"), name)
    if not name.startswith("_"):
        events = import_module("foldlog.events")
        if name in events.__all__:
            return getattr(events, name)
    raise AttributeError(f"module 'foldlog' has no attribute {name!r}")
