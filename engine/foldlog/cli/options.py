"""The options that every command has, before or after its name, and the kinds of value they take.

Invariants:
- `--home`, `--log` and `--json` are declared on the group and on each command; the one that stands
  later wins.
- Every command is made with `command` and shows at least one example in its `--help`.
- Only `init` makes a home; every other command finds one or ends with HOME_MISSING.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from foldlog.core.values import AUTHOR_KINDS, parse_instant

if TYPE_CHECKING:
    from foldlog.client import Engine
    from foldlog.home import Home
    from foldlog.onlooker import Onlooker
    from foldlog.projector_home import ProjectorHome
    from foldlog.snapshots.settings import SnapshotSettings

    AnyHome = Home | ProjectorHome

HOME_NAME = ".foldlog"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """What the shared options said so far."""

    home: str | None = None
    log: str | None = None
    json: bool = False
    snapshots: str | None = None


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    settings = ctx.ensure_object(Settings)
    # What stands after the command is read after what stands before it.
    if value is not None and value is not False:
        setattr(settings, str(param.name), value)


def _keep_home(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value == "":
        raise click.BadParameter("the name of a folder is empty")
    _keep(ctx, param, value)


def shared(function: F) -> F:
    """Declare the three options on a group or a command."""
    for option in (
        click.option("--json", is_flag=True, expose_value=False, callback=_keep,
                     help="Print JSON: one object, or one a line for lists."),
        click.option("--log", metavar="URL", expose_value=False, callback=_keep,
                     help="The log, where it is not in the home: kafka://HOST/PREFIX. "
                     "[FOLDLOG_LOG]"),
        click.option("--home", metavar="DIR", expose_value=False, callback=_keep_home,
                     help="The home. [FOLDLOG_HOME, else the nearest .foldlog upward from here]"),
    ):  # fmt: skip
        function = option(function)
    return function


class Command(click.Command):
    """A command that shows examples below its options."""

    examples: tuple[str, ...] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A negative number is no option: as a revision it is one that no run has."""
        if any(re.fullmatch("-[0-9]+", arg) for arg in args):
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on a line that can be copied."""
        with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def command(name: str, *examples: str) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command with the shared options and examples."""

    def made(function: Callable[..., Any]) -> Command:
        built = click.command(name, cls=Command)(shared(function))
        built.examples = examples
        return built

    return made


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from foldlog.cli.completing import run_ids

    return run_ids(ctx, param, incomplete)


run_argument = click.argument("run_id", metavar="RUN", shell_complete=_run_ids)
optional_run_argument = click.argument(
    "run_id", metavar="[RUN]", required=False, shell_complete=_run_ids
)
snapshots_option = click.option(
    "--snapshots", metavar="URL", expose_value=False, callback=_keep,
    help="A place elsewhere for snapshots: s3://BUCKET/PREFIX, gs://, az://. "
    "[FOLDLOG_SNAPSHOT_URL]",
)  # fmt: skip
author_option = click.option(
    "--author", "author", metavar="KIND:ID", callback=lambda ctx, param, value: _author(value),
    help="Who proposes: agent, user, tool, operator or system, and an id. [user:$USER]",
)  # fmt: skip
timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0), default=10.0, metavar="S", show_default=True,
    help="Seconds to wait for the outcome.",
)  # fmt: skip


def _author(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    kind, colon, id = text.partition(":")
    if not colon or kind not in AUTHOR_KINDS or not id:
        raise click.BadParameter(f"{text!r} is not KIND:ID with KIND {', '.join(AUTHOR_KINDS)}")
    return {"kind": kind, "id": id}


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """A revision (digits) as an int; a time in the form that foldlog reads as it was written."""
    if value is None:
        return None
    if re.fullmatch("-[0-9]+", value):
        return -1  # a revision, and outside of every run
    if re.fullmatch("[0-9]+", value):
        # So many digits are no revision that could be there, and cost quadratic time.
        return int(value) if len(value) < 20 else 2**63
    try:
        parse_instant(value)
    except ValueError as error:
        words = f"{value!r} is no revision (digits) and no time: {error}"
        raise click.BadParameter(words) from None
    return value


def revision(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A revision: digits."""
    if value is not None and value.startswith("-"):
        raise click.BadParameter(f"{value!r} is no revision (digits)")
    return revision_there(ctx, param, value)


def revision_there(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A revision that a run has, or has not: a negative one is one that no run has."""
    if value is not None and not re.fullmatch("-?[0-9]+", value):
        raise click.BadParameter(f"{value!r} is no revision (digits)")
    found = moment(ctx, param, value)
    assert not isinstance(found, str)
    return found


def pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping; a value may be empty and may hold further equals signs."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        found[key] = value
    return found


def partition_numbers(partition: int | None, count: int) -> list[int]:
    """One partition of so many, which has to be there, or all of them."""
    if partition is not None and partition >= count:
        raise click.UsageError(f"there is no partition {partition}: 0 to {count - 1}")
    return list(range(count)) if partition is None else [partition]


# Homes


def find_home(settings: Settings) -> Path:
    """The home that is meant; raises HomeMissing where none is named and none is near.

    A home that is named need not be there: whoever opens it says so.
    """
    named = settings.home or os.environ.get("FOLDLOG_HOME")
    if named:
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / HOME_NAME).is_dir():
            return folder / HOME_NAME
    from foldlog.errors import HomeMissing

    raise HomeMissing(
        f"no home: there is no {HOME_NAME} in {here} or above it; make one with `foldlog init`,"
        " or name one with --home DIR"
    )


def new_home(settings: Settings) -> Path:
    """Where `init` makes a home: the named place, else `.foldlog` here."""
    return Path(settings.home or os.environ.get("FOLDLOG_HOME") or HOME_NAME)


def log_url(settings: Settings) -> str | None:
    """The log that is named, where it is not in the home."""
    return settings.log or os.environ.get("FOLDLOG_LOG") or None


def refuse_log(settings: Settings) -> None:
    """End with a usage error where a log outside the home is named and the command looks at one."""
    url = log_url(settings)
    if url is None:
        return
    source = "--log" if settings.log else "FOLDLOG_LOG"
    raise click.UsageError(
        f"{source} names {url!r}, and this command is about a home with a log of its own;"
        f" leave {source} out and name the home with --home DIR"
    )


@contextmanager
def opened(settings: Settings) -> Iterator[Engine]:
    """The engine of the home that is meant, or connected to the log, closed at the end."""
    url, home = log_url(settings), find_home(settings)
    from foldlog.cli.recovering import recovery_shown
    from foldlog.client import Engine

    kept = snapshot_settings(settings)
    with recovery_shown():
        if url is None:
            engine = Engine.open(home, snapshots=kept)
        else:
            engine = Engine.connect(url, home=home, snapshots=kept)
    with engine:
        yield engine


def snapshot_settings(settings: Settings) -> SnapshotSettings:
    """When snapshots are taken and where they lie: the environment says it, and --snapshots."""
    from foldlog.snapshots.settings import from_environment

    found = from_environment()
    return found if settings.snapshots is None else replace(found, url=settings.snapshots)


def is_of_projector(settings: Settings) -> bool:
    """Whether the log is elsewhere and the home is one in which a projector works, or worked."""
    return log_url(settings) is not None and (find_home(settings) / "projection").is_dir()


@contextmanager
def stores_of(settings: Settings) -> Iterator[AnyHome]:
    """The home that is meant, for who looks after its stores and snapshots, whoever holds it."""
    url, path = log_url(settings), find_home(settings)
    from foldlog import home as homes
    from foldlog import reaching
    from foldlog.plugins import installed
    from foldlog.runtime import wall_clock

    home: AnyHome
    kept, rules = snapshot_settings(settings), installed()
    if url is None:
        home = homes.open_home(path, wall_clock, kept, rules)
    else:
        home = reaching.stores_of(url, path, snapshots=kept, rules=rules)
    try:
        yield home
    finally:
        home.close()


@contextmanager
def looked_at(settings: Settings) -> Iterator[Onlooker]:
    """The home that is meant, looked at from beside."""
    refuse_log(settings)
    home = find_home(settings)
    from foldlog.client import wall_clock
    from foldlog.onlooker import Onlooker

    with Onlooker(home, wall_clock) as onlooker:
        yield onlooker
