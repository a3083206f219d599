"""How a step ends before its own end, and what an author's code may say about a failure.

    StepEnded                control goes back to the worker: not an error, and nothing to catch
     +-- RunWaits            the run waits; a later claim goes on when it is over
     +-- RunStopped          the run is finished, quarantined, or not there
     +-- LeaseLost           another worker holds the run, or may: nothing more is done to it
     +-- Overtaken           what was decided on has changed; the step begins again on what is
     +-- HandOver            the worker was told to stop; another goes on

    Refused                  a proposal was refused; its outcome says why
    NotDone                  raised by an effect: the other side has certainly not done it
    GiveUp                   raised by a step: its task has failed for good
    Stale                    what an effect depends on is no longer as it was seen

Invariants:
- ``StepEnded`` is no ``Exception``: an author's ``except Exception`` cannot swallow it.
"""

from typing import Any

from foldlog.results import Outcome


class StepEnded(BaseException):
    """Control goes back to the worker."""


class RunWaits(StepEnded):
    """The run waits, and its lease is released."""


class RunStopped(StepEnded):
    """There is nothing more to do: the run is finished, quarantined, or does not exist."""


class LeaseLost(StepEnded):
    """Another worker holds the run, or may hold it."""


class Overtaken(StepEnded):
    """What this worker decided on was changed by somebody; ``outcome`` says what and by whom."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.code}: {outcome.message}")
        self.outcome = outcome


class HandOver(StepEnded):
    """The worker was told to stop; the run is released at this safe point."""


class Refused(Exception):
    """A proposal was refused for a reason that looking again does not change."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"run {outcome.run_id}: {outcome.code}: {outcome.message}")
        self.outcome = outcome


class NotDone(Exception):
    """An effect raises it: the other side has not done it, and will not do it later."""


class GiveUp(Exception):
    """A step raises it: its task has failed, and trying again would not help."""


class Stale(Exception):
    """Something that an effect requires was read again, and is no longer as it was seen."""

    def __init__(self, subject: str, seen: Any, found: Any) -> None:
        super().__init__(f"{subject!r} was seen at {seen!r} and is now at {found!r}")
        self.subject, self.seen, self.found = subject, seen, found
