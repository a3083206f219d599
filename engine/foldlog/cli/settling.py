"""How people settle what runs cannot: conflicts, resolve, reconcile, quarantine, release, archive.

Invariants:
- Looking changes nothing; settling is one proposal, and ends as its outcome does.
- What is shown to be settled stands with the commands that settle it.
"""

from __future__ import annotations

from typing import Any

import click

from foldlog.cli import failures, options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import counted, paint, shown_author, shown_time, shown_value
from foldlog.cli.proposing import propose_event
from foldlog.cli.safe import safe, wrap

Json = dict[str, Any]
EVENTS_MAX = 6  # of each conflict; --json has all
RESOLUTIONS = ("keep_current", "take_proposed")


@command("conflicts", "foldlog conflicts run_128", "foldlog conflicts run_128 --json")
@options.run_argument
@pass_settings
def conflicts(settings: Settings, run_id: str) -> int:
    """List the open conflicts of a run.

    With each, how it is settled. A conflict is a proposal that came too late for what it touches
    and asked for arbitration. It blocks nothing while it is open.
    """
    with options.opened(settings) as engine:
        run = engine.run(run_id)
        found = [each.to_dict() for each in run.conflicts()]
        begun = bool(found) or run.state() is not None
    if not begun:
        raise failures.run_not_found(run_id)
    for each in found:
        if settings.json:
            output.say_json(each)
        else:
            _say_conflict(run_id, each)
    if not found and not settings.json:
        output.note("no open conflicts")
    return 0


def _say_conflict(run_id: str, conflict: Json) -> None:
    output.say(paint(f"conflict {safe(conflict['id'])}", "bold"))
    expected = shown_value(conflict["expected_revision"])
    lines = [
        (
            f"by {shown_author(conflict['author'])}, decided on revision {expected},"
            f" kept at revision {conflict['revision']}"
        ),
        f"changed since: {', '.join(map(safe, conflict['entities']))}",
    ]
    events = conflict["events"]
    for event in events[:EVENTS_MAX]:
        fields = {name: value for name, value in event.items() if name != "type"}
        lines.append(f"proposed: {safe(event['type'])} {shown_value(fields)}")
    if len(events) > EVENTS_MAX:
        lines.append(f"... and {counted(len(events) - EVENTS_MAX, 'more', 'more')} (--json)")
    for line in lines:
        for part in wrap(line, output.columns() - 2, 4):
            output.say(f"  {part}")
    from foldlog.core.why import command as typed

    if conflict["expected_revision"]:
        output.say(f"  foldlog diff {safe(run_id)} {expected} {conflict['revision']}")
    for resolution in RESOLUTIONS:
        how = typed("resolve", run_id, conflict["id"], resolution, options=" --reason TEXT")
        output.say(f"  {safe(how)}")


@command(
    "resolve",
    'foldlog resolve run_128 7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11 keep_current --reason "done"',
    "foldlog resolve run_128 7f6d0b5e-0c55-4b53-9a0e-6f0d2b8f7c11 take_proposed --reason yes",
)
@options.run_argument
@click.argument("conflict_id", metavar="ID")
@click.argument("resolution", metavar="keep_current|take_proposed", type=click.Choice(RESOLUTIONS))
@click.option("--reason", required=True, metavar="T", help="Why.")
@options.author_option
@options.timeout_option
@pass_settings
def resolve(
    settings: Settings,
    run_id: str,
    conflict_id: str,
    resolution: str,
    reason: str,
    author: Json | None,
    timeout: float,
) -> int:
    """Settle an open conflict.

    keep_current leaves the run as it is. take_proposed applies the kept events to the run as it is
    now; if a rule refuses one of them, that is the outcome, and the conflict stays open. For user,
    operator and system authors.
    """
    from foldlog.core.values import is_batch_id

    event = {
        "type": "ConflictResolved",
        "conflict_id": conflict_id.lower() if is_batch_id(conflict_id) else conflict_id,
        "resolution": resolution,
        "reason": reason,
    }
    return propose_event(settings, run_id, event, author, timeout)


@command(
    "reconcile",
    "foldlog reconcile run_128 eff_1 succeeded --evidence https://orders.example/order_9",
)
@options.run_argument
@click.argument("effect_id", metavar="EFFECT")
@click.argument("outcome", metavar="succeeded|failed", type=click.Choice(("succeeded", "failed")))
@click.option("--evidence", required=True, metavar="URI", help="What says so.")
@options.author_option
@options.timeout_option
@pass_settings
def reconcile(
    settings: Settings,
    run_id: str,
    effect_id: str,
    outcome: str,
    evidence: str,
    author: Json | None,
    timeout: float,
) -> int:
    """Say what became of an effect in doubt.

    For an effect that was intended, or whose outcome is unknown, after asking the outside system.
    It is a report: taken whatever the run has become meanwhile.
    """
    event = {
        "type": "EffectReconciled",
        "effect_id": effect_id,
        "outcome": outcome,
        "evidence": evidence,
    }
    return propose_event(settings, run_id, event, author, timeout)


@command("quarantine", "foldlog quarantine", "foldlog quarantine --json")
@pass_settings
def quarantine(settings: Settings) -> int:
    """List the quarantined runs, and why.

    A rule failed on a proposal of each: a fault of foldlog or of a plug-in, not of the proposal.
    The run takes nothing until it is released.
    """
    with options.opened(settings) as engine:
        found = [each.to_dict() for each in engine.quarantined()]
    if settings.json:
        for each in found:
            output.say_json(each)
    elif found:
        rows = [
            (each["run_id"], shown_time(each["since"]), each["sequence"], each["error"])
            for each in found
        ]
        output.table(("RUN", "SINCE", "SEQUENCE", "ERROR"), rows, prose=3)
        output.note("  see: foldlog release RUN --reason TEXT, once the rule is mended")
    else:
        output.note("nothing is quarantined")
    return 0


@command("archive", "foldlog archive run_128", 'foldlog archive run_128 --reason "billed"')
@options.run_argument
@click.option("--reason", metavar="T", help="Why.")
@options.author_option
@options.timeout_option
@pass_settings
def archive(
    settings: Settings, run_id: str, reason: str | None, author: Json | None, timeout: float
) -> int:
    """Archive a finished run.

    It leaves the hot set: `runs` lists it with --archived only, and no alarm or count of `status`
    looks at it. It stays readable and provable, its batch ids stay known, a late report is still
    recorded, and nothing makes it run again. A run with an effect in doubt is reconciled first.
    For user, operator and system authors.
    """
    event = {"type": "RunArchived"} | ({} if reason is None else {"reason": reason})
    return propose_event(settings, run_id, event, author, timeout)


@command("release", 'foldlog release run_128 --reason "mended in 1.4.2"')
@options.run_argument
@click.option("--reason", required=True, metavar="T", help="Why it may go on.")
@options.author_option
@options.timeout_option
@pass_settings
def release(
    settings: Settings, run_id: str, reason: str, author: Json | None, timeout: float
) -> int:
    """Release a run from quarantine.

    The proposal that failed stays undone: propose it again under a new batch id. For user,
    operator and system authors.
    """
    event = {"type": "RunReleased", "reason": reason}
    return propose_event(settings, run_id, event, author, timeout)
