"""The ways a command fails that only the command line knows; foldlog.errors has the engine's.

Invariants:
- Each carries a code with a page of its own (`foldlog explain CODE`), an exit code, and a message
  that names the run or place and the next command to type.
"""

from __future__ import annotations


class Failure(Exception):
    """What the command was asked for cannot be done."""

    def __init__(self, code: str, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit_code = exit_code


def run_not_found(run_id: str) -> Failure:
    """There is no such run (its id may be none at all)."""
    return Failure("RUN_NOT_FOUND", f"there is no run {run_id!r}; see all with `foldlog runs`", 4)


def moment_not_found(run_id: str, moment: int | str, revision: int) -> Failure:
    """The run was not there at that revision or time."""
    words = f"revision {moment}" if isinstance(moment, int) else moment
    return Failure(
        "MOMENT_NOT_FOUND",
        f"run {run_id} has no state at {words}: its revisions are 1 to {revision};"
        f" see when each was made with `foldlog history {run_id}`",
        4,
    )


def batch_not_found(run_id: str, batch_id: str) -> Failure:
    """Nothing is recorded of this batch."""
    return Failure(
        "BATCH_NOT_FOUND",
        f"run {run_id} has no outcome of batch {batch_id!r}: it was not decided yet, or never"
        f" proposed; see what was with `foldlog history {run_id} --rejected`",
        4,
    )


def context_needs_more(run_id: str, max_tokens: int, needed: int) -> Failure:
    """The budget does not hold what a context never leaves out."""
    return Failure(
        "CONTEXT_NEEDS_MORE",
        f"what the context of run {run_id} never leaves out takes {needed} tokens, not"
        f" {max_tokens}: foldlog context {run_id} --max-tokens {needed}",
        2,
    )


def file_unreadable(name: str, error: OSError) -> Failure:
    """A file cannot be opened or read."""
    return Failure("USAGE", f"{name!r} cannot be read: {error.strerror or error}", 2)
