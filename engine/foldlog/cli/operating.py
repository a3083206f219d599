"""The commands about the home as a whole: status, heads, doctor.

Invariants:
- `status` and `doctor` look from beside: they neither hold the projection nor decide, so that what
  they say of a home that nobody turns is how it stands.
- Whether something is wrong is said in words; colour only repeats it.
"""

from __future__ import annotations

from typing import Any

from foldlog.cli import options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import counted, paint
from foldlog.cli.safe import safe, wrap
from foldlog.lacking import not_here

Json = dict[str, Any]
HEAD_CHARACTERS = 12  # enough to compare by eye; --json and `heads` have the whole


@command("status", "foldlog status", "foldlog status --json")
@pass_settings
def status(settings: Settings) -> int:
    """Show who turns each partition, and what waits.

    OWNER is who holds the projection (role and process id; on Kafka: which projector), POSITION the
    next proposal to decide, LAG how many wait, SEQUENCE the last record folded, VOID how many
    records were passed over, ALARMS how many there are of each. Decides nothing itself.
    """
    looking = options.looked_at if options.log_url(settings) is None else options.opened
    with looking(settings) as looker:
        rows = [each.to_dict() for each in looker.status()]
    if settings.json:
        for row in rows:
            output.say_json(row)
    else:
        _say_status(rows)
    return 0


def _say_status(rows: list[Json]) -> None:
    head = ("PART", "OWNER", "POSITION", "LAG", "SEQUENCE", "HEAD", "VOID", "ALARMS")
    shown = [
        (
            row["partition"],
            row["owner"] or "-",
            row["position"],
            row["lag"],
            row["sequence"],
            row["head"][:HEAD_CHARACTERS],
            row["void"],
            ", ".join(f"{count} {code}" for code, count in row["alarms"].items()) or "-",
        )
        for row in rows
    ]
    output.table(head, shown, prose=7)
    lag = sum(row["lag"] for row in rows if row["owner"] is None)
    if lag:
        waiting = counted(lag, "proposal")
        output.note(f"nobody decides what waits ({waiting}): foldlog project --once")
    for row in rows:
        for each in row["plugins_missing"]:
            output.note(f"partition {row['partition']} is refused here: {not_here(each)}")
        if row["halted"]:
            why = f"{safe(row['halted'])}; foldlog doctor"
            output.note(f"partition {row['partition']} is halted: {why}")
        if row["outage"]:
            output.note(f"partition {row['partition']} waits: {safe(row['outage'])}")
    if any(row["alarms"] for row in rows):
        output.note("  see: foldlog runs --alarms")


@command("heads", "foldlog heads", "foldlog heads --json > heads-2026-08-11.jsonl")
@pass_settings
def heads(settings: Settings) -> int:
    """Print each partition's head, to be kept elsewhere.

    What --json prints is what `foldlog verify --heads FILE` takes: kept where those who can change
    the log cannot change it, it shows a cut tail and a rewritten past.
    """
    with options.opened(settings) as engine:
        found = [each.to_dict() for each in engine.heads()]
    if settings.json:
        for each in found:
            output.say_json(each)
    else:
        rows = [(each["partition"], each["sequence"], each["head"]) for each in found]
        output.table(("PART", "SEQUENCE", "HEAD"), rows)
    return 0


@command(
    "doctor",
    "foldlog doctor",
    "foldlog doctor --json",
    "foldlog doctor --log kafka://broker-1:9092/foldlog",
)
@pass_settings
def doctor(settings: Settings) -> int:
    """Say what is wrong with this home, and what to do.

    Looks at the folder, the log, each partition's projection, who holds it, and what is
    quarantined; changes nothing. Ends with 0 if nothing is wrong, 5 if something is broken, 6 if
    something cannot go on at the moment. `verify` proves more, and takes longer.

    With --log it looks at the topics, their copies, what this principal may do, the projectors of
    the group and what they wait for; each partition is folded into the home, as `status` does.
    """
    url, home = options.log_url(settings), options.find_home(settings)
    from foldlog.client import wall_clock
    from foldlog.doctor import examine, exit_code

    if url is None:
        findings = examine(home, wall_clock)
    else:
        from foldlog.doctor_kafka import examine_connected

        findings = examine_connected(url, home, wall_clock)
    for each in findings:
        if settings.json:
            output.say_json(each.to_dict())
        else:
            _say_finding(each.to_dict())
    wrong = sum(not each.ok for each in findings)
    if not settings.json:
        output.say(f"{counted(wrong, 'thing')} to mend" if wrong else "nothing is wrong")
    return exit_code(findings)


def _say_finding(finding: Json) -> None:
    mark, style = ("ok", "green") if finding["ok"] else ("WRONG", "red")
    if finding["ok"] and finding["remedy"]:
        mark, style = "note", "yellow"
    head = f"{finding['check']:<11}"
    lines = wrap(f"{safe(finding['what'])}", output.columns() - 18)
    for number, line in enumerate(lines):
        first = number == 0
        left = paint(f"{mark:<6}", "bold", style) + f"{head} " if first else " " * 18
        output.say(left + line)
    if not finding["ok"] or finding["remedy"]:
        output.say(" " * 18 + safe(finding["where"]))
    if finding["remedy"]:
        for line in wrap(f"-> {safe(finding['remedy'])}", output.columns() - 18):
            output.say(" " * 18 + line)
