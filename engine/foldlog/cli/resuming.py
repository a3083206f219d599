"""The commands for whoever takes a run up again: resume-check and context.

Invariants:
- They change nothing; `resume-check` ends with the exit code of its verdict.
- `context` prints its text as it goes into a model, whatever the terminal.
- A command that may be typed next stands on a line of its own and is never cut or broken.
"""

from __future__ import annotations

from typing import Any

import click

from foldlog.cli import options, output
from foldlog.cli.failures import context_needs_more, run_not_found
from foldlog.cli.lacking import note_lacking
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import paint
from foldlog.cli.safe import safe, wrap

Json = dict[str, Any]
LABEL = 12  # cells before the text, as on the screen of `show`
LINES_MAX = 4  # of each text
VERDICTS = {
    "safe": ("safe to resume", "green"),
    "reconcile": ("reconcile first", "yellow"),
    "must_not": ("must not be resumed", "red"),
    "nothing": ("nothing to resume", "dim"),
}


@command(
    "resume-check",
    "foldlog resume-check run_128 --worker worker-1",
    "foldlog resume-check run_128 --workspace . --agent-version model=m-2 --json",
)
@options.run_argument
@click.option("--worker", metavar="W", help="Who would resume it: its own lease is no obstacle.")
@click.option("--commit", metavar="C", help="The commit where the caller is.")
@click.option(
    "--workspace", metavar="DIR", help="The folder where the caller is: git's HEAD, or a hash."
)
@click.option(
    "--agent-version",
    metavar="K=V",
    multiple=True,
    callback=options.pairs,
    help="A version of the caller: model, prompt, ...; may be given several times.",
)
@pass_settings
def resume_check(
    settings: Settings,
    run_id: str,
    worker: str | None,
    commit: str | None,
    workspace: str | None,
    agent_version: dict[str, str],
) -> int:
    """Say whether a run may be taken up again.

    Ends with 0 if it is safe, 10 if something has to be reconciled first, 20 if it must not be
    resumed, 30 if there is nothing to resume; with the worst, which is 20, then 10, then 30.
    Prints every reason with the command that settles or shows it, and the plan: what to settle
    first, what to read again, which step is next. Changes count from the latest checkpoint on.

    --workspace compares the commit of HEAD where DIR is the top of a git work tree; of any other
    folder a hash of its content, as foldlog.workspace_version gives it. Both are compared whole
    with the run's current_commit.
    """
    with options.opened(settings) as engine:
        note_lacking(run := engine.run(run_id))
        found = run.resume_check(
            worker=worker, commit=commit, workspace=workspace, agent_version=agent_version
        )
    if found is None:
        raise run_not_found(run_id)
    if settings.json:
        output.say_json(found.to_dict())
    else:
        _say_check(found.to_dict())
    return found.exit


def _say_check(found: Json) -> None:
    words, style = VERDICTS[found["verdict"]]
    output.say(f"{safe(found['run_id'])}: {paint(words, 'bold', style)}"
               f" at revision {found['revision']}")  # fmt: skip
    told = {reason["message"] for reason in found["reasons"]}
    for reason in found["reasons"]:
        head = reason["code"] + _about(reason["entity"])
        _rows("reason", f"{head}: {safe(reason['message'])}", style)
    for number, step in enumerate(found["plan"], start=1):
        head = step["step"] + _about(step["entity"])
        what = "" if step["what"] in told else f": {safe(step['what'])}"
        _rows(f"step {number}", head + what, "bold")
        output.say(" " * LABEL + "  " + safe(step["how"]))


def _about(entity: str | None) -> str:
    """The member of a collection that a line is about; what exists once is in its words."""
    return f" {safe(entity)}" if entity and "/" in entity else ""


def _rows(label: str, text: str, style: str) -> None:
    for line in wrap(text, output.columns() - LABEL, LINES_MAX):
        output.say(paint(f"{label:<{LABEL}}", style) + line)
        label = ""


@command(
    "context",
    "foldlog context run_128",
    "foldlog context run_128 --max-tokens 4000 --json",
)
@options.run_argument
@click.option("--max-tokens", type=click.IntRange(min=0), metavar="N",
              help="At most so many tokens, by foldlog's own estimate. [no limit]")  # fmt: skip
@pass_settings
def context(settings: Settings, run_id: str, max_tokens: int | None) -> int:
    """Print a compact text for a model's context.

    The most important first: goal, constraints and acceptance, revoked permissions, effects in
    doubt, and what the run waits for; these are never left out. Then control changes, tasks, facts,
    what was ruled out, hypotheses, questions, budgets and the rest, as much as there is room for;
    the last lines say what was left out. Ends with 2 and the number that would do if there is no
    room for what is never left out. The same run at the same revision gives the same text.

    Tokens are estimated from above, by foldlog's own count; in Python a model's counter can be
    given.
    """
    with options.opened(settings) as engine:
        note_lacking(run := engine.run(run_id))
        found = run.context(max_tokens)
    if found is None:
        raise run_not_found(run_id)
    if settings.json:
        output.say_json(found.to_dict())
    elif found.text is not None:
        output.say(found.text)
    if found.text is None:
        assert max_tokens is not None
        raise context_needs_more(run_id, max_tokens, found.needed)
    return 0
