"""The commands that make a home and propose: init, start, propose, signal, cancel, outcome.

Invariants:
- Nothing is decided here: a command makes the JSON of one proposal, the engine says the outcome.
- What a caller's JSON has wrong is an outcome (MALFORMED, exit 3), never a usage error; a file that
  cannot be opened is one.
- Whatever ends a proposing command before its outcome is there names the batch id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from foldlog.cli import failures, options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.outcomes import say_outcome
from foldlog.cli.safe import safe
from foldlog.core.values import strict_json

if TYPE_CHECKING:
    from pathlib import Path

    from foldlog.client import Engine

Json = dict[str, Any]


@command(
    "init",
    "foldlog init",
    "foldlog init --partitions 8 --home /var/lib/foldlog",
    "foldlog init --log kafka://broker-1:9092,broker-2:9092/foldlog --partitions 16",
)
@click.option("--partitions", type=click.IntRange(1, 1024), metavar="N",
              help="Partitions of the log, fixed for good. [4]")  # fmt: skip
@pass_settings
def init(settings: Settings, partitions: int | None) -> int:
    """Make an empty home.

    The home is .foldlog here, unless one is named. Where a home is already, nothing is changed:
    that is fine if it has N partitions, or N is not given.

    With --log the log is made, too: two topics on Kafka, PREFIX.proposals and PREFIX.events, with
    as many copies as the cluster makes by default. Topics that are there are checked and left as
    they are; the home holds nothing but the projection then.
    """
    home, url = options.new_home(settings), options.log_url(settings)
    try:
        made, number = (
            _make_home(home, partitions) if url is None else _make_log(home, url, partitions)
        )
    except (FileExistsError, NotADirectoryError):
        raise click.UsageError(f"no home can be made at {str(home)!r}: a file is there") from None
    if settings.json:
        found = {"home": str(home.resolve()), "partitions": number, "created": made}
        output.say_json(found if url is None else {**found, "log": url})
    else:
        words = "made" if made else "there already:"
        place = home.resolve() if url is None else url
        output.say(f"{words} {safe(place)} ({output.counted(number, 'partition')})")
    return 0


def _make_home(home: Path, partitions: int | None) -> tuple[bool, int]:
    from foldlog.home import LOG_FILE, create_home

    made = not (home / LOG_FILE).exists()
    return made, create_home(home, partitions)


def _make_log(home: Path, url: str, partitions: int | None) -> tuple[bool, int]:
    from foldlog.reaching import create_log, folder_of

    if home.exists() and not home.is_dir():
        raise NotADirectoryError(home)
    number, made = create_log(url, partitions)
    folder_of(home)
    return made, number


@command(
    "start",
    'foldlog start run_128 --goal "Fix the login failure"',
    'foldlog start run_129 --goal "Upgrade the parser" --label team=web --author agent:worker-1',
)
@options.run_argument
@click.option("--goal", required=True, metavar="TEXT", help="What the run is to reach.")
@click.option("--label", "labels", metavar="K=V", multiple=True, callback=options.pairs,
              help="A label; may be given several times.")  # fmt: skip
@options.author_option
@options.timeout_option
@pass_settings
def start(
    settings: Settings,
    run_id: str,
    goal: str,
    labels: dict[str, str],
    author: Json | None,
    timeout: float,
) -> int:
    """Start a run towards a goal.

    A goal with scope, acceptance or constraints, or a run with budgets, is started with `propose`
    and the event RunStarted.
    """
    event: Json = {"type": "RunStarted", "goal": {"statement": goal}}
    if labels:
        event["labels"] = labels
    return propose_event(settings, run_id, event, author, timeout)


@command(
    "signal",
    "foldlog signal run_128 approval",
    "foldlog signal run_128 approval --payload '{\"granted\": true}' --id ticket-7",
)
@options.run_argument
@click.argument("key", metavar="KEY")
@click.option("--payload", metavar="JSON", help="What the signal carries.")
@click.option(
    "--id",
    "signal_id",
    metavar="ID",
    help="Names the signal: sent again under the same id it changes nothing. [a new one]",
)
@options.author_option
@options.timeout_option
@pass_settings
def signal(
    settings: Settings,
    run_id: str,
    key: str,
    payload: str | None,
    signal_id: str | None,
    author: Json | None,
    timeout: float,
) -> int:
    """Send a signal to a run that waits, or will wait.

    It ends the open wait of that KEY; without one it is kept for the next.
    """
    event: Json = {
        "type": "SignalReceived",
        "key": key,
        "signal_id": _new_id() if signal_id is None else signal_id,
    }
    with options.opened(settings) as engine:
        if payload is not None:
            try:
                event["payload"] = strict_json(payload)
            except ValueError as error:
                return _refuse(settings, engine, run_id, f"--payload is not JSON: {error}")
        return _send(settings, engine, run_id, {"events": [event], "author": author}, timeout)


@command("cancel", 'foldlog cancel run_128 --reason "superseded by run_131"')
@options.run_argument
@click.option("--reason", required=True, metavar="T", help="Why.")
@options.author_option
@options.timeout_option
@pass_settings
def cancel(
    settings: Settings, run_id: str, reason: str, author: Json | None, timeout: float
) -> int:
    """Cancel a run.

    For user, operator and system authors. Reports of what has already happened are taken
    afterwards too.
    """
    event = {"type": "RunCancelled", "reason": reason}
    return propose_event(settings, run_id, event, author, timeout)


@command(
    "propose",
    "foldlog propose run_128 batch.json --expect 18 --author agent:worker-1",
    'echo \'{"events": [{"type": "PhaseChanged", "phase": "diagnose"}]}\''
    " | foldlog propose run_128 --expect 18",
)
@options.run_argument
@click.argument("file", metavar="[FILE]", default="-")
@click.option("--expect", callback=options.revision, metavar="N",
              help="The revision the proposal was decided on; wins over the file's.")  # fmt: skip
@options.author_option
@options.timeout_option
@pass_settings
def propose(
    settings: Settings,
    run_id: str,
    file: str,
    expect: int | None,
    author: Json | None,
    timeout: float,
) -> int:
    """Propose a batch of events to a run.

    FILE (default: standard input) holds one proposal as JSON: {"events": [...]} and, if wanted,
    expected_revision, author, batch_id, on_conflict, reads and lease_epoch. Prints the outcome.
    Proposing the same batch_id again gives the first outcome again.
    """
    data = _read(file)
    with options.opened(settings) as engine:
        try:
            value = strict_json(data)
        except ValueError as error:
            return _refuse(settings, engine, run_id, f"{_named(file)} is not JSON: {error}")
        # What is no object is for the engine to refuse, as it refuses every wrong shape.
        if isinstance(value, dict):
            over = {"expected_revision": expect, "author": author}
            value |= {key: given for key, given in over.items() if given is not None}
        return _send(settings, engine, run_id, value, timeout)


@command("outcome", "foldlog outcome run_128 7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11")
@options.run_argument
@click.argument("batch_id", metavar="BATCH_ID")
@pass_settings
def outcome(settings: Settings, run_id: str, batch_id: str) -> int:
    """Say what became of a proposal.

    Ends as the proposal did: 3 if it was rejected or sent to arbitration.
    """
    with options.opened(settings) as engine:
        found = engine.run(run_id).outcome(batch_id)
        begun = found is not None or engine.run(run_id).state() is not None
    if found is None:
        known = failures.batch_not_found(run_id, batch_id)
        raise known if begun else failures.run_not_found(run_id)
    return say_outcome(settings, found.to_dict())


def propose_event(
    settings: Settings, run_id: str, event: Json, author: Json | None, timeout: float
) -> int:
    """Propose one event and print the outcome; the exit code."""
    with options.opened(settings) as engine:
        return _send(settings, engine, run_id, {"events": [event], "author": author}, timeout)


def _send(settings: Settings, engine: Engine, run_id: str, value: Any, timeout: float) -> int:
    """Propose and print the outcome. The batch id is made here, so that it can always be named."""
    from foldlog.errors import FoldlogError, OutcomeUnknown, ProjectorStalled

    if isinstance(value, dict) and value.get("batch_id") is None:
        value["batch_id"] = _new_id()
    try:
        outcome = engine.run(run_id).propose_json(value, timeout=timeout).to_dict()
    except OutcomeUnknown as error:
        outcome = {"outcome": "unknown", "run_id": error.run_id, "batch_id": error.batch_id}
    except ProjectorStalled as error:
        output.note(f"foldlog: {error.code}: {safe(error.message)}")
        outcome = {"outcome": "unknown", "run_id": run_id, "batch_id": error.batch_id}
    except (FoldlogError, KeyboardInterrupt):
        if isinstance(value, dict):
            batch_id = output.shown_value(value.get("batch_id"))
            output.note(f"it may be decided yet: foldlog outcome {run_id} {batch_id}")
        raise
    return say_outcome(settings, outcome)


def _refuse(settings: Settings, engine: Engine, run_id: str, message: str) -> int:
    from foldlog.core.proposals import Malformed

    outcome = engine.run(run_id).refused(None, Malformed(message))
    return say_outcome(settings, outcome.to_dict())


def _new_id() -> str:
    import uuid

    return str(uuid.uuid4())


def _named(file: str) -> str:
    return "standard input" if file == "-" else repr(file)


def _read(file: str) -> bytes:
    try:
        with click.open_file(file, "rb") as stream:
            if stream.isatty():
                output.note("reading the proposal from the terminal; end it with Ctrl-D")
            return bytes(stream.read())
    except OSError as error:
        raise failures.file_unreadable(file, error) from None
