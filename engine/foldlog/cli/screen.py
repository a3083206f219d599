"""The Run State on one screen: where the run is now, with alarms and what it waits for first.

Invariants:
- A function of the document, and of `why` where it is the present that is shown; what is empty has
  no row, what is long is cut and counted.
- Whatever may keep the run from going on stands above what it knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from foldlog.cli import output
from foldlog.cli.output import (
    counted,
    paint,
    shown_alarm,
    shown_author,
    shown_span,
    shown_time,
    shown_until,
    shown_value,
)
from foldlog.cli.safe import safe, width, wrap

LABEL = 12  # cells before the text
ITEMS_MAX = 4  # of each list; --json has all
LINES_MAX = 3  # of each text

Json = dict[str, Any]
Row = tuple[str, list[str]]

_STATUS_STYLES = {"waiting": "yellow", "retry": "yellow", "running": "green", "finish": "cyan"}


def screen(document: Json, why: Json | None = None) -> list[str]:
    """The lines to print; `why` is that of the present, None for a past state."""
    lines = [_headline(document)]
    for label, texts in _rows(document, why):
        for text in texts:
            for line in wrap(text, output.columns() - LABEL, LINES_MAX):
                lines.append(paint(f"{label:<{LABEL}}", "bold") + line)
                label = ""
    return lines


def _headline(document: Json) -> str:
    status = document["status"]
    words = paint(status, "bold", _STATUS_STYLES.get(status, "bold"))
    if document["result"]:
        style = "green" if document["result"] == "completed" else "red"
        words += f" ({paint(document['result'], style)})"
    phase = f", phase {safe(document['phase'])}" if document["phase"] else ""
    return f"{safe(document['run_id'])}: {words} at revision {document['revision']}{phase}"


def _rows(document: Json, why: Json | None) -> Iterator[Row]:
    if why is None:
        yield "waits for", _waiting(document)
    else:
        yield "alarms", [shown_alarm(alarm, why["at"]) for alarm in why["alarms"]]
        yield "waits for", _reasons(why)
    for rows in (_hindrances, _goal, _work, _limits, _knowledge, _surroundings, _latest):
        for label, texts in rows(document):
            if texts:
                yield label, texts


def _some(items: list[str]) -> list[str]:
    """The first few items, and how many more there are."""
    if len(items) <= ITEMS_MAX:
        return items
    more = counted(len(items) - ITEMS_MAX + 1, "more", "more")
    return [*items[: ITEMS_MAX - 1], f"... and {more} (--json has all)"]


# What it waits for, or is kept by


def _reasons(why: Json) -> list[str]:
    """What keeps it now, since when, and the first command that moves it."""
    if why["waiting_for"] is None:
        return ["nothing, it is finished" if why["status"] == "finish" else "nothing but its work"]
    lines = [safe(why["waiting_for"])]
    if why["since"] is not None:
        lines.append(f"since {shown_span(why['since'], why['at'])}{shown_until(why)}")
    how = safe(why["movers"][0]["how"])
    # A command that is broken by a line's end is none: `why` gives it whole.
    fits = width(how) <= output.columns() - LABEL
    return [*lines, how if fits else f"foldlog why {safe(why['run_id'])}"]


def _hindrances(document: Json) -> Iterator[Row]:
    if document["condition"] != "ok":
        run_id = safe(document["run_id"])
        words = paint(document["condition"].upper(), "bold", "red")
        code = "RUN_QUARANTINED" if document["condition"] == "quarantined" else "MIGRATION_REQUIRED"
        yield "condition", [f"{words}: foldlog explain {code}", f"foldlog why {run_id}"]
    yield "in doubt", _some([_effect(e) for e in document["effects"] if _in_doubt(e)])
    yield "conflicts", _some([_conflict(each) for each in document["conflicts"]])
    blocked = [task for task in document["tasks"] if task["status"] == "blocked"]
    yield "blocked", _some([f"{_task(task)}: {safe(task['blocked_by'])}" for task in blocked])


def _waiting(document: Json) -> list[str]:
    wait = document["waiting"]
    if wait is None:
        return ["nothing, it is finished" if document["status"] == "finish" else "nothing"]
    until = "without a deadline"
    if wait["deadline"]:
        until = f"until {shown_time(wait['deadline'])}"
    lines = [f"{wait['kind']} {safe(wait['key'])}: {safe(wait['reason'])}"]
    lines.append(f"since {shown_time(wait['since'])}, from {wait['from']}, {until}")
    return lines


def _in_doubt(effect: Json) -> bool:
    return effect["status"] in ("intended", "unknown")


def _effect(effect: Json) -> str:
    return (
        f"effect {safe(effect['id'])}: {safe(effect['kind'])} {safe(effect['target'])}"
        f" is {effect['status']}"
    )


def _conflict(conflict: Json) -> str:
    names = ", ".join(map(safe, conflict["entities"]))
    return (
        f"{safe(conflict['id'])} by {shown_author(conflict['author'])}"
        f" at revision {conflict['revision']}: {names}"
    )


# What it is to reach, and what is being done


def _goal(document: Json) -> Iterator[Row]:
    goal = document["goal"]
    scope = goal["scope"]
    yield "goal", [safe(goal["statement"])]
    yield "accepted if", _some([safe(each) for each in goal["acceptance"]])
    yield "constraints", _some([safe(each) for each in goal["constraints"]])
    parts = [(name, scope.get(name) or []) for name in ("include", "exclude")]
    yield "scope", [f"{name} {', '.join(map(safe, paths))}" for name, paths in parts if paths]


def _work(document: Json) -> Iterator[Row]:
    tasks = {task["id"]: task for task in document["tasks"]}
    active = document["active_task_id"]
    if active is not None:
        worker = tasks[active].get("worker")
        yield "active", [_task(tasks[active]) + (f" ({safe(worker)})" if worker else "")]
    yield "next", _some([_task(tasks[id]) for id in document["next_task_ids"]])
    counts = Counter(task["status"] for task in document["tasks"])
    order = "running pending blocked completed failed cancelled invalidated".split()
    counts_shown = [f"{counts[status]} {status}" for status in order if counts[status]]
    yield "tasks", [", ".join(counts_shown)] if counts_shown else []
    calls = document["pending_tool_calls"]
    yield "calls", _some([f"{safe(call['step_id'])} {safe(call['tool'])}" for call in calls])
    yield "signals", _signals(document["signals"])


def _task(task: Json) -> str:
    return f"{safe(task['id'])} {safe(task['title'])}"


def _signals(signals: list[Json]) -> list[str]:
    keys = Counter(safe(each["key"]) for each in signals)
    return _some([f"{key} (kept: {number})" for key, number in keys.items()])


# What bounds it


def _limits(document: Json) -> Iterator[Row]:
    lease = document["lease"]
    if lease is not None:
        until = shown_time(lease["expires_at"])
        yield "lease", [f"{safe(lease['worker'])}, epoch {lease['epoch']}, until {until}"]
    budgets = document["budgets"]
    parts = []
    if budgets["tokens_remaining"] is not None:
        parts.append(f"{budgets['tokens_remaining']:,} tokens remaining")
    if budgets["deadline"] is not None:
        parts.append(f"deadline {shown_time(budgets['deadline'])}")
    yield "budget", [", ".join(parts)] if parts else []
    if document["retry_count"]:
        yield "retries", [f"{document['retry_count']} of {document['retry_limit']}"]
    yield "revoked", _some([safe(each) for each in document["permissions_revoked"]])


# What it knows


def _knowledge(document: Json) -> Iterator[Row]:
    yield "facts", _newest(document["confirmed_facts"], _fact)
    yield "hypotheses", _newest(document["hypotheses"], _hypothesis)
    yield "ruled out", _newest(document["ruled_out"], _pair("id", "statement"))
    yield "questions", _newest(document["open_questions"], _pair("id", "text"))
    seen = document["environment_observations"]
    yield "observed", _newest(seen, _pair("subject", "observed_state"))
    settled = [effect for effect in document["effects"] if not _in_doubt(effect)]
    yield "effects", _newest(settled, _effect)
    yield "artifacts", _newest(document["artifacts"], _pair("id", "uri"))


def _pair(first: str, second: str) -> Callable[[Json], str]:
    return lambda item: f"{safe(item[first])} {safe(item[second])}"


def _newest(items: list[Json], shown: Callable[[Json], str]) -> list[str]:
    ordered = sorted(items, key=lambda item: -item["revision"])
    return _some([shown(item) for item in ordered])


def _fact(fact: Json) -> str:
    evidence = f" [{safe(fact['evidence'])}]" if fact["evidence"] else ""
    return f"{safe(fact['id'])} {safe(fact['statement'])}{evidence}"


def _hypothesis(hypothesis: Json) -> str:
    confidence = safe(hypothesis["confidence"])
    return f"{safe(hypothesis['id'])} ({confidence}) {safe(hypothesis['statement'])}"


# Where it works, and what came last


def _surroundings(document: Json) -> Iterator[Row]:
    workspace = document["workspace"]
    if workspace is not None:
        parts = [safe(workspace["workspace_id"])]
        for key, word in (("current_commit", "at"), ("uncommitted_changes", "with changes")):
            if workspace.get(key):
                parts.append(f"{word} {safe(workspace[key])}")
        yield "workspace", [" ".join(parts)]
    for label, key in (("agent", "agent_version"), ("labels", "labels")):
        pairs = [f"{safe(name)}={safe(value)}" for name, value in document[key].items()]
        yield label, [", ".join(pairs)] if pairs else []
    point = document["checkpoint"]
    if point is not None:
        yield "checkpoint", [f"{safe(point['id'])} ({point['boundary']}) at {point['revision']}"]
    fork = document["forked_from"]
    if fork is not None:
        yield "forked from", [f"{safe(fork['run_id'])} at revision {fork['revision']}"]


def _latest(document: Json) -> Iterator[Row]:
    last = document["last_transition"]
    texts = []
    if last is not None:
        texts.append(
            f"{last['from'] or 'nothing'} -> {last['to']}: {shown_value(last['reason'])}"
            f" (revision {last['revision']}, {shown_time(last['at'])})"
        )
    action = document["last_action"]
    if action is not None:
        texts.append(f"{action['type']} {safe(action['action'])} (revision {action['revision']})")
    yield "latest", texts
    yield "chain", [str(document["chain"])] if document["chain"] else []
