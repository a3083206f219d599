"""The command fork: a copy of a run up to a revision, which goes on by itself.

Invariants:
- The run that is forked stays as it is; the new one is there whole, or not at all.
"""

from __future__ import annotations

from typing import Any

import click

from foldlog.cli import failures, options
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.outcomes import say_outcome

Json = dict[str, Any]


@command("fork", "foldlog fork run_128 --at 12 --as run_129")
@options.run_argument
@click.option("--at", "revision", required=True, metavar="REVISION",
              callback=options.revision_there,
              help="The last revision that both have.")  # fmt: skip
@click.option("--as", "new_id", required=True, metavar="NEW", help="The id of the new run.")
@options.author_option
@options.timeout_option
@pass_settings
def fork(
    settings: Settings,
    run_id: str,
    revision: int,
    new_id: str,
    author: Json | None,
    timeout: float,
) -> int:
    """Fork a run: go on from a revision under another id.

    The new run has the history of the old one up to that revision, and one record more, which
    makes it a run of its own: without lease, wait, kept signals, pending calls and open conflicts;
    running tasks are pending. Effects that were in doubt, or came later, stand in it as facts;
    their keys stay used, so it makes none of them again. For user, operator and system authors.

    A run that exists is never changed: NEW has to be free (RUN_EXISTS). An interrupted fork is
    finished by the same command again; before that nothing of it can be seen. Of one that is there
    it prints the outcome again.
    """
    with options.opened(settings) as engine:
        run = engine.run(run_id)
        outcome = run.fork(new_id, revision, author=author, timeout=timeout)
        state = run.state()
    if state is None:
        raise failures.run_not_found(run_id)
    if outcome is None:
        raise failures.moment_not_found(run_id, revision, state.revision)
    return say_outcome(settings, outcome.to_dict())
