"""The command completion: a script that makes a shell complete commands, options and run ids.

Invariants:
- Completing opens no home for writing and never fails: what cannot be read is not offered.
"""

from __future__ import annotations

import contextlib
from typing import Any

import click

from foldlog.cli import output
from foldlog.cli.options import Settings, command, pass_settings

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_FOLDLOG_COMPLETE"
RUNS_MAX = 100  # offered: more are no help to who types


@command(
    "completion",
    "foldlog completion bash > ~/.local/share/bash-completion/completions/foldlog",
    "foldlog completion fish > ~/.config/fish/completions/foldlog.fish",
    "foldlog completion zsh > ~/.zfunc/_foldlog",
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
@pass_settings
def completion(settings: Settings, shell: str) -> int:
    """Print a script that makes a shell complete what you type.

    Completes commands, options, their values, and the ids of runs. Put it where your shell looks
    for completions, or evaluate it in its start-up file.
    """
    script = _script(shell)
    if settings.json:
        output.say_json({"shell": shell, "script": script})
    else:
        output.say(script)
    return 0


def _script(shell: str) -> str:
    from click.shell_completion import ShellComplete, get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    from foldlog.cli.main import cli

    # Not `source`, which would start bash to ask for its version.
    return str(ShellComplete.source(found(cli, {}, "foldlog", VARIABLE))).strip()


def run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Ids of runs that begin like this, for a shell."""
    with contextlib.suppress(Exception):
        from foldlog.cli import options

        settings = ctx.ensure_object(Settings)
        if options.log_url(settings) is not None:
            # What this machine has folded so far: nobody waits for a broker while he types.
            from foldlog import following

            return list(following.run_ids(options.find_home(settings), incomplete, RUNS_MAX))
        with options.looked_at(settings) as onlooker:
            return list(onlooker.run_ids(incomplete, RUNS_MAX))
    return []
