"""The commands about what keeps a run: why and wait.

Invariants:
- They change nothing. `wait` ends with 0 only where the run is, or was, what was waited for.
- A command that may be typed next stands on a line of its own and is never cut or broken.
"""

from __future__ import annotations

from typing import Any

import click

from foldlog.cli import options, output
from foldlog.cli.failures import Failure, run_not_found
from foldlog.cli.lacking import note_lacking
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import paint, shown_alarm, shown_span, shown_time, shown_until
from foldlog.cli.safe import safe, wrap
from foldlog.core.shapes import STATUSES

Json = dict[str, Any]
LABEL = 12  # cells before the text, as on the screen of `show`
LINES_MAX = 4  # of each text


@command("why", "foldlog why run_128", "foldlog why run_128 --json")
@options.run_argument
@pass_settings
def why(settings: Settings, run_id: str) -> int:
    """Say what keeps a run, since when, and who can move it.

    What it waits for or is blocked by, alarms, and blocked tasks; for each who can move it, the
    command to type, in which what you have to put in stands in capitals. Alarms are counted at
    this moment: `foldlog explain` has a page for each.
    """
    with options.opened(settings) as engine:
        note_lacking(run := engine.run(run_id))
        found = run.why()
    if found is None:
        raise run_not_found(run_id)
    if settings.json:
        output.say_json(found.to_dict())
    else:
        _say_why(found.to_dict())
    return 0


def _say_why(found: Json) -> None:
    output.say(f"{safe(found['run_id'])}: {paint(found['status'], 'bold')}"
               f" at revision {found['revision']}")  # fmt: skip
    for alarm in found["alarms"]:
        _row("alarm", shown_alarm(alarm, found["at"]), style="red")
    _row("waits for", safe(found["waiting_for"] or _nothing(found)))
    if found["since"] is not None:
        _row("since", shown_span(found["since"], found["at"]) + shown_until(found))
    for task in found["blocked_tasks"]:
        _row("blocked", f"{safe(task['id'])} {safe(task['title'])}: {safe(task['blocked_by'])}")
    for mover in found["movers"]:
        _row("moved by", safe(mover["who"]))
        output.say(" " * LABEL + "  " + safe(mover["how"]))


def _nothing(found: Json) -> str:
    return "nothing, it is finished" if found["status"] == "finish" else "nothing but its work"


def _row(label: str, text: str, style: str = "bold") -> None:
    for line in wrap(text, output.columns() - LABEL, LINES_MAX) if text else ():
        output.say(paint(f"{label:<{LABEL}}", style) + line)
        label = ""


@command(
    "wait",
    "foldlog wait run_128",
    "foldlog wait run_128 --until finish --timeout 3600",
    "foldlog wait run_128 --until waiting --json",
)
@options.run_argument
@click.option("--until", type=click.Choice(STATUSES), metavar="STATUS",
              help="The status to wait for. [waiting or finish]")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S",
              help="Seconds to wait at most. [for ever]")  # fmt: skip
@pass_settings
def wait(settings: Settings, run_id: str, until: str | None, timeout: float | None) -> int:
    """Wait until a run is in a status.

    Returns at once if it is there. Without --until: until no worker has anything to do, since the
    run waits for something or is finished. A status that the run passes through while you wait
    counts. Ends with 4 if there is no such run, or a finished run cannot reach it any more, and
    with 6 when the time is up.
    """
    with options.opened(settings) as engine:
        run = engine.run(run_id)
        state = run.state()
        if state is not None and state.condition != "ok":
            output.note(f"{state.condition}; see: foldlog why {run_id}")
        found = run.wait(until, timeout)
    if found is None:
        raise run_not_found(run_id)
    if not found.reached:
        raise _not_reached(found.to_dict(), timeout)
    if settings.json:
        output.say_json(found.to_dict())
    else:
        result = f" ({found.result})" if found.result else ""
        output.say(
            f"{safe(run_id)}: {paint(found.status, 'bold')}{result} at revision {found.revision},"
            f" since {shown_time(found.since)}"
        )
    return 0


def _not_reached(found: Json, timeout: float | None) -> Exception:
    run_id, until = found["run_id"], found["until"] or "waiting or finish"
    if found["status"] == "finish":
        words = (
            f"run {run_id} is finished ({found['result']}) and cannot be {until} any more;"
            f" see how it came: foldlog history {run_id} --transitions"
        )
        return Failure("STATUS_UNREACHABLE", words, 4)
    from foldlog.errors import TimedOut

    return TimedOut(
        f"run {run_id} is {found['status']}, not {until}, after {timeout:g} s; see what it waits"
        f" for: foldlog why {run_id}"
    )
