"""The commands that read runs: runs, show, history, diff.

Invariants:
- They change nothing. A run, revision or time that is not there ends with 4, and nothing on stdout.
- `--json` prints what the engine gives, untouched; text is the same, cut to a screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from foldlog.cli import failures, options, output
from foldlog.cli.lacking import note_lacking
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import paint, shown_author, shown_time, shown_value
from foldlog.cli.safe import cut, pad, safe, width
from foldlog.core.shapes import STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foldlog.client import Engine, Run
    from foldlog.results import RunState, Value

Json = dict[str, Any]
# The field that says best what an event is about, in the order of asking.
_NAMING = (
    "step_id task_id fact_id hypothesis_id question_id effect_id conflict_id subject key to phase"
    " result worker permission name"
).split()
# Room for revision, time, author and outcome of rows that are yet to come.
FOLLOWED = (4, 20, 12, 8)
_OUTCOME_STYLES = {"accepted": "green", "arbitration": "yellow", "duplicate": "dim"}


def existing_run(engine: Engine, run_id: str) -> tuple[Run, RunState]:
    """The run and its state now; raises a failure (4) for a run that has not begun, or a bad id."""
    run = engine.run(run_id)
    state = run.state()
    if state is None:
        raise failures.run_not_found(run_id)
    return run, state


@command(
    "runs",
    "foldlog runs",
    "foldlog runs --status waiting --label team=web",
    "foldlog runs --alarms --json",
)
@click.option("--status", type=click.Choice(STATUSES), metavar="S", help="Only runs in it.")
@click.option(
    "--label",
    "labels",
    metavar="K=V",
    multiple=True,
    callback=options.pairs,
    help="Only runs with this label; given several times, with all of them.",
)
@click.option("--alarms", is_flag=True, help="Only runs with an alarm.")
@click.option("--archived", is_flag=True, help="The archived runs, in place of the others.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@pass_settings
def runs(
    settings: Settings,
    status: str | None,
    labels: dict[str, str],
    alarms: bool,
    archived: bool,
    limit: int | None,
) -> int:
    """List the runs, the one changed last first.

    A run that needs somebody shows an alarm: `foldlog explain` has a page for each.
    """
    with options.opened(settings) as engine:
        found = engine.runs(
            status=status, labels=labels or None, limit=limit, alarms=alarms, archived=archived
        )
        rows = [each.to_dict() for each in found]
    if settings.json:
        for row in rows:
            output.say_json(row)
    elif rows:
        head = ("RUN", "STATUS", "REV", "CHANGED", "ALARMS", "NOW")
        output.table(head, [_run_row(row) for row in rows], prose=5)
    else:
        output.note("no runs" + (" like that" if status or labels or alarms or archived else ""))
    return 0


def _run_row(row: Json) -> tuple[object, ...]:
    alarms = ",".join(alarm["code"] for alarm in row["alarms"]) or "-"
    status = row["result"] or row["status"]
    changed = shown_time(row["changed_at"])
    return row["run_id"], status, row["revision"], changed, alarms, _now(row)


def _now(row: Json) -> str:
    """What it waits for, or works on."""
    if row["condition"] != "ok":
        return str(row["condition"])
    if row["waiting"] is not None:
        return f"{row['waiting']['kind']} {row['waiting']['key']}"
    parts = [row["phase"], row["active_task_id"]]
    return ", ".join(part for part in parts if part) or "-"


@command(
    "show",
    "foldlog show run_128",
    "foldlog show run_128 --at 12",
    "foldlog show run_128 --at 2026-08-11T16:22:10+08:00 --json",
    "foldlog show run_128 --after 1042",
)
@options.run_argument
@click.option("--at", "moment", callback=options.moment, metavar="REVISION|TIME",
              help="As it was then, that revision or instant included. [now]")  # fmt: skip
@click.option(
    "--after",
    callback=options.revision,
    metavar="SEQUENCE",
    help="Wait until the projection has folded it: the sequence of an outcome.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=10.0,
    metavar="S",
    show_default=True,
    help="Seconds to wait for it.",
)
@pass_settings
def show(
    settings: Settings, run_id: str, moment: int | str | None, after: int | None, timeout: float
) -> int:
    """Show where a run is, now or then.

    One screen: alarms, what it waits for, what keeps it, its goal, work, limits and knowledge.
    --json has the whole Run State.
    """
    from foldlog.cli.screen import screen

    with options.opened(settings) as engine:
        run = engine.run(run_id)
        now = run.state(after=after, timeout=timeout)
        if now is None:
            raise failures.run_not_found(run_id)
        note_lacking(run)
        state = now if moment is None else run.at(moment)
        why = run.why() if moment is None and not settings.json else None
    if state is None:
        assert moment is not None
        raise failures.moment_not_found(run_id, moment, now.revision)
    if settings.json:
        output.say_json(state.to_dict())
    else:
        output.say("\n".join(screen(state.to_dict(), why.to_dict() if why else None)))
    return 0


@command(
    "history",
    "foldlog history run_128",
    "foldlog history run_128 --rejected --json",
    "foldlog history run_128 --transitions",
    "foldlog history run_128 --follow",
)
@options.run_argument
@click.option("--rejected", is_flag=True, help="Also what changed nothing: refusals, duplicates.")
@click.option(
    "--transitions",
    is_flag=True,
    help="Only how the status changed, and why; no refusal changes it.",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@pass_settings
def history(
    settings: Settings, run_id: str, rejected: bool, transitions: bool, follow: bool
) -> int:
    """List who proposed what, when, with which outcome.

    Oldest first, one line a batch: the revision it made, its log time, author, outcome and events.
    """
    with options.opened(settings) as engine:
        run = engine.run(run_id)
        found: Sequence[Value] = (
            run.transitions() if transitions else run.history(rejected=rejected)
        )
        rows = [each.to_dict() for each in found]
        # A quarantined RunStarted is all there is of a run that has not begun, and worth showing.
        begun = any(row.get("outcome") == "quarantined" for row in rows) or run.state() is not None
        if not begun:
            raise failures.run_not_found(run_id)
        note_lacking(run)
        widths = _say_rows(settings, rows, transitions, FOLLOWED if follow else ())
        if follow:
            _follow(settings, run, rows, widths, rejected, transitions)
    return 0


def _say_rows(
    settings: Settings,
    rows: list[Json],
    transitions: bool,
    widths: Sequence[int],
    head: bool = True,
) -> Sequence[int]:
    """Print rows whose columns are at least that wide; how wide they are."""
    if settings.json:
        for row in rows:
            output.say_json(row)
    elif transitions:
        _say_transitions(rows, head)
    elif rows:
        return _say_history(rows, widths)
    return widths


def _follow(
    settings: Settings,
    run: Run,
    shown: list[Json],
    widths: Sequence[int],
    rejected: bool,
    transitions: bool,
) -> None:
    """Print what comes after the rows that were shown, each at once."""
    last = 0 if transitions or not shown else shown[-1]["sequence"]
    count = len(shown)
    output.flush()
    for row in run.watch(after=0, rejected=rejected):
        if transitions:
            more = [each.to_dict() for each in run.transitions()[count:]]
            count += len(more)
        else:
            more = [row.to_dict()] if row.sequence > last else []
        widths = _say_rows(settings, more, transitions, widths, head=False)
        output.flush()


def _say_transitions(rows: list[Json], head: bool) -> None:
    names = ("REV", "TIME", "FROM", "TO", "REASON")
    shown = [
        (row["revision"], shown_time(row["at"]), row["from"] or "-", row["to"], row["reason"])
        for row in rows
    ]
    output.table(names, shown, prose=4, with_head=head)


def _say_history(rows: list[Json], before: Sequence[int]) -> list[int]:
    cells = [_history_cells(row) for row in rows]
    columns = zip(before or (0, 0, 0, 0), zip(*cells, strict=True), strict=True)
    widths = [max(least, *map(width, column)) for least, column in columns]
    # What author and events share; ids of authors can be long, and say less than the events.
    room = output.columns() - widths[0] - widths[1] - widths[3] - 2 * len(widths)
    widths[2] = min(widths[2], max(room * 2 // 5, 12))
    room = max(room - widths[2], 14)
    for (revision, at, author, outcome), row in zip(cells, rows, strict=True):
        style = _OUTCOME_STYLES.get(row["outcome"], "red")
        parts = [
            f"{revision:>{widths[0]}}",
            pad(at, widths[1]),
            pad(cut(author, widths[2]), widths[2]),
            paint(pad(outcome, widths[3]), style),
            _what(row, room),
        ]
        output.say("  ".join(parts).rstrip())
    return widths


def _history_cells(row: Json) -> tuple[str, str, str, str]:
    """Revision, time, author, outcome with code; all safe."""
    changed = row["revision_after"] != row["revision_before"]
    revision = str(row["revision_after"]) if changed else "-"
    # A code of its own says that the proposal was rejected; a duplicate's is that of the first.
    parts = (row["outcome"] if row["outcome"] != "rejected" else None, row["code"])
    outcome = safe(" ".join(part for part in parts if part))
    return revision, shown_time(row["log_time"]), shown_author(row["author"]), outcome


def _what(row: Json, room: int) -> str:
    """As many events as there is room for, and how many more there are."""
    events = [_event(event) for event in row["events"] or ()]
    if not events:
        return "(unreadable)"
    for number in range(len(events), 0, -1):
        rest = f" +{len(events) - number}" if number < len(events) else ""
        shown = ", ".join(events[:number]) + rest
        if width(shown) <= room:
            return shown
    return cut(events[0], room - width(rest)) + rest


def _event(event: Json) -> str:
    """The type, and the id of what it is about."""
    inner = next((value["id"] for value in event.values() if _has_id(value)), None)
    names = (event[key] for key in _NAMING if isinstance(event.get(key), str))
    name = inner or next(names, None)
    return event["type"] if name is None else f"{event['type']} {safe(name)}"


def _has_id(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("id"), str)


@command("diff", "foldlog diff run_128 12 18", "foldlog diff run_128 12 18 --json")
@options.run_argument
@click.argument("a", metavar="A", callback=options.revision_there)
@click.argument("b", metavar="B", callback=options.revision_there)
@pass_settings
def diff(settings: Settings, run_id: str, a: int, b: int) -> int:
    """Show what changed between two revisions.

    Entity by entity, from revision A to revision B, with the revision and author of each change.
    """
    with options.opened(settings) as engine:
        run, state = existing_run(engine, run_id)
        found = run.diff(a, b)
    if found is None or min(a, b) < 1:
        missing = a if not 1 <= a <= state.revision else b
        raise failures.moment_not_found(run_id, missing, state.revision)
    changes = [each.to_dict() for each in found]
    if settings.json:
        for change in changes:
            output.say_json(change)
    else:
        _say_diff(run_id, a, b, changes)
    return 0


def _say_diff(run_id: str, a: int, b: int, changes: list[Json]) -> None:
    output.say(paint(f"--- {safe(run_id)} revision {a}", "bold"))
    output.say(paint(f"+++ {safe(run_id)} revision {b}", "bold"))
    for change in changes:
        who = f"at revision {change['revision']} by {shown_author(change['author'])}"
        output.say(paint(f"@@ {safe(change['entity'])} {change['change']} {who} @@", "cyan"))
        before, after = _fields(change["before"]), _fields(change["after"])
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                for sign, style, fields in (("-", "red", before), ("+", "green", after)):
                    if name in fields:
                        output.say(paint(f"{sign}{fields[name]}", style))


def _fields(value: Any) -> Json:
    """An entity as lines by field; a bare value is one line without a name."""
    if value is None:
        return {}
    if isinstance(value, dict):
        there = {key: inner for key, inner in value.items() if inner is not None}
        return {key: f"{safe(key)}: {shown_value(inner)}" for key, inner in there.items()}
    if isinstance(value, list):
        return {f"[{place}]{item}": shown_value(item) for place, item in enumerate(value)}
    return {"": shown_value(value)}
