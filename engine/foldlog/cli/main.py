"""`foldlog`: the group of all commands, and how each way of ending becomes an exit code.

Exit codes: 0 done; 1 unexpected; 2 usage; 3 proposal rejected or sent to arbitration; 4 not found;
5 verification failed; 6 log or store unreachable, busy, or time-out; 10, 20, 30 verdicts of
`resume-check`; 130 interrupted; 141 nobody reads the output any more.

Invariants:
- A command's module is imported when the command runs, not before; `--help` imports none of them.
- Commands of other packages come in by the entry points of the group `foldlog.commands`, and one
  that cannot be loaded harms no other command.
- A command returns its exit code; every error of ours ends in one line that names its code, and
  the next command to type.
- No traceback reaches a user, except with FOLDLOG_TRACEBACK set.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from foldlog.cli import options, output
from foldlog.cli.failures import Failure
from foldlog.cli.safe import safe
from foldlog.version import __version__

ENTRY_POINTS = "foldlog.commands"
INTERRUPTED = 130
NOBODY_READS = 141

# Heading -> command -> (where it is, what it does). The words are the first line of its help.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Make and propose": {
        "init": ("foldlog.cli.proposing", "Make an empty home."),
        "start": ("foldlog.cli.proposing", "Start a run towards a goal."),
        "propose": ("foldlog.cli.proposing", "Propose a batch of events to a run."),
        "signal": ("foldlog.cli.proposing", "Send a signal to a run that waits, or will wait."),
        "cancel": ("foldlog.cli.proposing", "Cancel a run."),
        "outcome": ("foldlog.cli.proposing", "Say what became of a proposal."),
        "resolve": ("foldlog.cli.settling", "Settle an open conflict."),
        "reconcile": ("foldlog.cli.settling", "Say what became of an effect in doubt."),
        "archive": ("foldlog.cli.settling", "Archive a finished run."),
        "release": ("foldlog.cli.settling", "Release a run from quarantine."),
        "fork": ("foldlog.cli.forking", "Fork a run: go on from a revision under another id."),
        "import": ("foldlog.cli.importing", "Import transcripts into runs."),
        "export": (
            "foldlog.cli.exporting",
            "Print a run's records, losslessly.",
        ),
    },
    "Read": {
        "runs": ("foldlog.cli.reading", "List the runs, the one changed last first."),
        "show": ("foldlog.cli.reading", "Show where a run is, now or then."),
        "history": ("foldlog.cli.reading", "List who proposed what, when, with which outcome."),
        "diff": ("foldlog.cli.reading", "Show what changed between two revisions."),
        "why": ("foldlog.cli.waiting", "Say what keeps a run, since when, and who can move it."),
        "resume-check": ("foldlog.cli.resuming", "Say whether a run may be taken up again."),
        "context": ("foldlog.cli.resuming", "Print a compact text for a model's context."),
        "wait": ("foldlog.cli.waiting", "Wait until a run is in a status."),
        "conflicts": ("foldlog.cli.settling", "List the open conflicts of a run."),
    },
    "Operate": {
        "status": ("foldlog.cli.operating", "Show who turns each partition, and what waits."),
        "doctor": ("foldlog.cli.operating", "Say what is wrong with this home, and what to do."),
        "quarantine": ("foldlog.cli.settling", "List the quarantined runs, and why."),
        "snapshot": (
            "foldlog.cli.snapshotting",
            "Take, list, verify, restore or prune snapshots.",
        ),
        "rebuild": (
            "foldlog.cli.rebuilding",
            "Build the projection anew, beside the one that is there.",
        ),
    },
    "Audit": {
        "heads": ("foldlog.cli.operating", "Print each partition's head, to be kept elsewhere."),
        "verify": ("foldlog.cli.auditing", "Check that the state is the fold of the log."),
        "replay": ("foldlog.cli.auditing", "Fold the log again and print the digest."),
    },
    "Learn": {
        "explain": ("foldlog.cli.explaining", "Explain a code: meaning, cause and remedy."),
        "completion": (
            "foldlog.cli.completing",
            "Print a script that makes a shell complete what you type.",
        ),
    },
}
_PLACES = {name: place for group in COMMANDS.values() for name, (place, _) in group.items()}


class Stopped(Exception):
    """The user or the reader of the output ended the command."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Foldlog(click.Group):
    """The group: finds commands by name without importing the others, and ends with exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, also those that other packages add."""
        return [*_PLACES, *sorted(set(_added()) - set(_PLACES))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of this one command; None if there is no such command."""
        if name in _PLACES:
            module = importlib.import_module(_PLACES[name])
            return next(
                each
                for each in vars(module).values()
                if isinstance(each, click.Command) and each.name == name
            )
        point = _added().get(name)
        return None if point is None else _load(name, point)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a misspelt name gets the names that are near."""
        name = click.utils.make_str(args[0])
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx), 3)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"there is no command {name!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under their headings, without importing them."""
        added = {name: point for name, point in _added().items() if name not in _PLACES}
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, words) for name, (_, words) in commands.items()])
        if added:
            with formatter.section("Run"):
                formatter.write_dl(
                    [(n, _load(n, p).get_short_help_str(60)) for n, p in added.items()]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the two ways of being stopped leave click's own handling aside."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped(INTERRUPTED) from None
        except BrokenPipeError:
            raise Stopped(NOBODY_READS) from None

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **more: Any
    ) -> Any:
        """Parse, run, and end the process with the exit code (unless `standalone_mode` is off)."""
        try:
            code = super().main(args, standalone_mode=False, **more)
            sys.stdout.flush()
        except Exception as error:
            code = _report(error)
        if standalone_mode:
            sys.exit(code or 0)
        return code


def _added() -> dict[str, Any]:
    """The entry points by name: commands of other packages, the projector's among them."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(name: str, point: Any) -> click.Command:
    try:
        command = point.load()
    except Exception as error:
        words = f"(cannot be loaded: {safe(f'{type(error).__name__}: {error}')})"
        return click.Command(name, help=words, short_help=words, callback=lambda: 1)
    assert isinstance(command, click.Command), f"{point.value} is no click command"
    return command


# Errors


def _report(error: Exception) -> int:
    """Say what went wrong on stderr; the exit code that it means."""
    if isinstance(error, click.UsageError):
        return _report_usage(error)
    if isinstance(error, Stopped):
        return _stop(error.exit_code)
    if isinstance(error, BrokenPipeError):
        return _stop(NOBODY_READS)
    if isinstance(error, click.Abort):
        return _stop(INTERRUPTED)
    if isinstance(error, Failure):
        return _say_error(error.code, error.message, error.exit_code)
    if isinstance(error, click.ClickException):
        return _say_error("USAGE", error.format_message(), error.exit_code)
    return _report_ours(error)


def _stop(code: int) -> int:
    output.Progress.clear()
    if code == NOBODY_READS:
        # Python flushes stdout once more as it ends, and would complain about the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _report_usage(error: click.UsageError) -> int:
    ctx = error.ctx
    if ctx is not None:
        output.note(safe(ctx.get_usage()).replace("\\n", " "))
    _say_error("USAGE", _usage_words(error), 2)
    path = "foldlog" if ctx is None else ctx.command_path
    output.note(f"  see: {path} --help")
    return 2


def _usage_words(error: click.UsageError) -> str:
    """What is wrong, in words that do not change with the version of click."""
    param = error.param if isinstance(error, click.BadParameter) else None
    name = "" if param is None else param.make_metavar(error.ctx or click.Context(cli))
    if isinstance(param, click.Option):
        name = param.opts[0]
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing"
    if isinstance(error, click.NoSuchOption):
        known = (
            [opt for param in error.ctx.command.params for opt in param.opts] if error.ctx else []
        )
        near = difflib.get_close_matches(error.option_name, known, 3, 0.7)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"there is no option {error.option_name}{meant}"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} is not given as it has to be: {error.message}"
    if isinstance(error, click.BadParameter):
        return f"{name}: {error.message}"
    return error.message


def _report_ours(error: Exception) -> int:
    from foldlog.errors import FoldlogError

    if isinstance(error, FoldlogError):
        return _say_error(error.code, error.message, error.exit_code)
    from foldlog.log.base import LogError
    from foldlog.store.base import StoreError

    if isinstance(error, LogError | StoreError):
        return _say_error("UNAVAILABLE", str(error), 6)
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return _say_error("UNAVAILABLE", f"{where}{error.strerror or error}", 6)
    if os.environ.get("FOLDLOG_TRACEBACK"):
        raise error
    words = f"{type(error).__name__}: {error}"
    code = _say_error("UNEXPECTED", f"this should not have happened: {words}", 1)
    output.note("  see: the same command with FOLDLOG_TRACEBACK=1 shows where")
    return code


def _say_error(code: str, message: str, exit_code: int) -> int:
    head = output.paint(f"foldlog: {code}:", "bold", "red", stream=sys.stderr)
    output.note(f"{head} {safe(message)}")
    return exit_code


@click.group(cls=Foldlog, context_settings={"help_option_names": ["-h", "--help"]})
@options.shared
@click.version_option(__version__, prog_name="foldlog", message="%(prog)s %(version)s")
def cli() -> None:
    """Where is this agent run now, and is it safe to go on?

    Options may stand before or after the command. Data goes to stdout, everything else to stderr.

    Exit codes: 0 done, 1 unexpected, 2 usage, 3 proposal rejected or sent to arbitration, 4 not
    found, 5 verification failed, 6 log or store unreachable, busy, or time-out.
    """


def main() -> None:
    """The command `foldlog`."""
    cli.main(prog_name="foldlog")
