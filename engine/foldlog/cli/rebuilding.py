"""The command rebuild: a projection built anew beside the old one, and swapped in.

Invariants:
- Whoever holds the projection goes on meanwhile; nothing is half swapped, whenever this ends.
"""

from __future__ import annotations

from typing import Any

import click

from foldlog.cli import options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import counted, paint
from foldlog.cli.recovering import recovery_shown
from foldlog.cli.safe import safe

Json = dict[str, Any]


@command(
    "rebuild",
    "foldlog rebuild",
    "foldlog rebuild --from start",
    "foldlog rebuild --partition 2 --json",
)
@click.option(
    "--from",
    "source",
    type=click.Choice(["snapshot", "start"]),
    default="snapshot",
    help="Where to begin: at the newest good snapshot, or at the start of the log.",
)
@click.option("--partition", type=click.IntRange(min=0), metavar="N",
              help="Of this partition only. [all of them]")  # fmt: skip
@options.snapshots_option
@pass_settings
def rebuild(settings: Settings, source: str, partition: int | None) -> int:
    """Build the projection anew, beside the one that is there.

    The old one goes on being written and read until the new one has caught up, and is then replaced
    by whoever holds it. Runs that stand at the same record in both are compared; where they
    differ, it is built once more from the start of the log, which decides. Ends with 5 if a run of
    the old one was not the fold of the log. A build whose rules or formats are others than those
    of the projection does this by itself when it opens the home.
    """
    differing = 0
    with options.stores_of(settings) as home:
        for number in options.partition_numbers(partition, home.log.partitions):
            with recovery_shown():
                rebuilt, is_swapped = home.rebuild(number, source)
            differing += len(rebuilt.differing)
            row: Json = {
                "partition": number,
                "from": rebuilt.begun_with,
                "records": rebuilt.records,
                "runs": rebuilt.runs,
                "compared": rebuilt.compared,
                "differing": list(rebuilt.differing),
                "migration_required": list(rebuilt.stuck),
                "swapped": is_swapped,
            }
            _say(settings, row)
    return 5 if differing else 0


def _say(settings: Settings, row: Json) -> None:
    if settings.json:
        output.say_json(row)
        return
    output.say(
        f"partition {row['partition']}: rebuilt from {_begin(row['from'])},"
        f" {counted(row['records'], 'record')} folded, {counted(row['runs'], 'run')},"
        f" {row['compared']} compared"
    )
    for run_id in row["differing"]:
        output.say(f"  {paint('DIFFERENT', 'bold', 'red')}: run {safe(run_id)} was not the fold of"
                   " the log; now it is")  # fmt: skip
    for run_id in row["migration_required"]:
        output.say(f"  run {safe(run_id)} needs a migration: foldlog doctor")
    if not row["swapped"]:
        output.note("  its holder has not taken it over yet; whoever holds it next does")


def _begin(source: str) -> str:
    return "the start of the log" if source == "start" else source
