"""The commands that audit: verify and replay.

Invariants:
- They read; nothing is decided, and nothing reaches the outside world.
- A difference found is data (stdout) and exit 5, not an error.
"""

from __future__ import annotations

import re
from typing import Any

import click

from foldlog.cli import failures, options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import Progress, counted, paint, shown_value
from foldlog.cli.reading import existing_run
from foldlog.cli.safe import safe

Json = dict[str, Any]


@command(
    "verify",
    "foldlog verify",
    "foldlog verify run_128",
    "foldlog verify --redecide --json",
    "foldlog verify --heads heads-2026-08-11.jsonl",
    "foldlog verify run_128 --evidence",
)
@options.optional_run_argument
@click.option(
    "--heads",
    "heads_file",
    metavar="FILE",
    help="What `foldlog heads` once printed: the log has to contain it still.",
)
@click.option(
    "--redecide",
    is_flag=True,
    help="Make every decision again too, under its recorded rules and log time.",
)
@click.option("--evidence", is_flag=True, help="Look for the evidence that the runs name, too.")
@options.snapshots_option
@pass_settings
def verify(
    settings: Settings, run_id: str | None, heads_file: str | None, redecide: bool, evidence: bool
) -> int:
    """Check that the state is the fold of the log.

    Checks the chain, the sequence, the state hash after every revision, that the projection equals
    the fold of the log, and that each snapshot does with the log's tail folded onto it. Names the
    first difference and ends with 5 if there is one. With --heads a cut tail and a rewritten past
    are found too, which no look at the log alone can find; the whole log is checked then, with a
    RUN too.

    --evidence looks for what facts, tasks, observations, ruled-out hypotheses and artifacts name as
    they stand: file: URIs (relative ones below the current folder) and artifact: URIs of this
    home, by their SHA-256 where it is known. Of other URIs nothing can be told.
    """
    heads = None if heads_file is None else _heads(heads_file)
    report = _verify(settings, run_id, heads, redecide=redecide, evidence=evidence)
    if settings.json:
        output.say_json(report)
    else:
        _say_report(report, run_id, heads is not None)
    return 0 if report["ok"] else 5


def _heads(name: str) -> list[Any]:
    """What a heads file says; a usage error where it says nothing, or something else."""
    from foldlog.heads import parse_heads, parse_lines

    try:
        with click.open_file(name, "rb") as stream:
            rows = parse_lines(bytes(stream.read()))
    except OSError as error:
        raise failures.file_unreadable(name, error) from None
    parse_heads(rows)
    return rows


def _verify(
    settings: Settings, run_id: str | None, heads: list[Any] | None, **checks: bool
) -> Json:
    """The engine's report; also of a home so damaged that it cannot be opened."""
    from foldlog.errors import Damaged, Unavailable
    from foldlog.log.base import LogDamaged
    from foldlog.store.base import StoreDamaged

    counts = dict.fromkeys(("partitions", "records", "void", "snapshots"), 0)
    nothing = {"ok": False, **counts, "evidence": None}
    try:
        with options.opened(settings) as engine, Progress("verified records") as bar:
            report = engine.verify(run_id, heads=heads, progress=bar, **checks)
            # The log is asked first: a projection that has lost a run is a difference, not a 4.
            if run_id is not None and report.ok:
                existing_run(engine, run_id)
            return report.to_dict()
    except Damaged as error:
        return {**nothing, "first_difference": error.difference()}
    except Unavailable as error:
        damage = error.__cause__
        if not isinstance(damage, LogDamaged | StoreDamaged):
            raise
        place = {"run_id": None, "sequence": None, "what": damage.where}
        return {**nothing, "first_difference": {**place, "expected": "whole", "found": damage.what}}


def _say_report(report: Json, run_id: str | None, has_heads: bool) -> None:
    what = "the log" if run_id is None or has_heads else f"run {safe(run_id)}"
    seen = f"{counted(report['records'], 'record')} in {counted(report['partitions'], 'partition')}"
    void = f", {counted(report['void'], 'void record')} passed over" if report["void"] else ""
    if report.get("snapshots"):
        void += f", and from {counted(report['snapshots'], 'snapshot')} too"
    if report["ok"]:
        more = " and contains what the heads say" if has_heads else ""
        output.say(f"{paint('ok', 'bold', 'green')}: {what} verifies{more}; {seen}{void}")
        _say_evidence(report["evidence"])
        return
    found = report["first_difference"]
    how = "verifies, but evidence is missing" if report["evidence"] else "does not verify"
    output.say(f"{paint('DIFFERENCE', 'bold', 'red')}: {what} {how}; {seen}{void}")
    run = "" if found["run_id"] is None else f"run {safe(found['run_id'])}, "
    output.say(f"  {run}sequence {shown_value(found['sequence'])}")
    output.say(f"  {safe(found['what'])}")
    output.say(f"  expected {shown_value(found['expected'])}")
    output.say(f"  found    {shown_value(found['found'])}")
    _say_evidence(report["evidence"])


def _say_evidence(evidence: Json | None) -> None:
    if evidence is None:
        return
    missing = evidence["missing"]
    there, untold = evidence["checked"] - len(missing), evidence["untold"]
    output.say(
        f"  evidence: {there:,} there, {len(missing):,} missing; of {untold:,} nothing can be told"
    )
    for each in missing:
        output.say(f"    {safe(each['run_id'])} {safe(each['entity'])}: {safe(each['found'])}")


def _digest(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch("[0-9a-fA-F]{64}", value):
        raise click.BadParameter(f"{value!r} is no digest (64 hex digits)")
    return None if value is None else value.lower()


@command(
    "replay",
    "foldlog replay",
    "foldlog replay run_128 --to 18",
    "foldlog replay --from snapshot",
    "foldlog replay --to 2026-08-11T18:00:00Z --json",
)
@options.optional_run_argument
@click.option(
    "--from",
    "start",
    type=click.Choice(["start", "snapshot"]),
    default="start",
    help="Where to begin: at the start of the log, or each partition at its newest snapshot.",
)
@click.option(
    "--to",
    callback=options.moment,
    metavar="REVISION|TIME",
    help="Where to end, included. [the end of the log]",
)
@click.option("--expect-digest", "expected", metavar="D", callback=_digest,
              help="End with 5 unless this is the digest.")  # fmt: skip
@options.snapshots_option
@pass_settings
def replay(
    settings: Settings, run_id: str | None, start: str, to: int | str | None, expected: str | None
) -> int:
    """Fold the log again and print the digest.

    The digest of a run is taken over its document; that of everything over the runs' digests.
    """
    if run_id is None and isinstance(to, int):
        raise click.UsageError("--to REVISION is about one run: name it, or give a time")
    with options.opened(settings) as engine, Progress("replayed records") as bar:
        now = None if run_id is None else existing_run(engine, run_id)[1]
        result = engine.replay(run_id, to=to, start=start, progress=bar)
    if result is None or (now is not None and isinstance(to, int) and to > now.revision):
        assert run_id is not None and to is not None and now is not None  # noqa: PT018
        raise failures.moment_not_found(run_id, to, now.revision)
    replayed = result.to_dict()
    if settings.json:
        output.say_json(replayed)
    else:
        _say_replay(replayed)
    if expected is not None and replayed["digest"] != expected:
        output.note(f"the digest is not the expected one: {expected}")
        return 5
    return 0


def _say_replay(result: Json) -> None:
    output.say(f"digest {result['digest']}")
    output.say(
        f"  {counted(result['records'], 'record')}, {counted(result['runs'], 'run')},"
        f" from the {safe(' '.join([result['from'], *result['snapshots']]))} to"
        f" {'the end' if result['to'] is None else shown_value(result['to'])}"
    )
