"""What there is to say about a run in a model's context: sections of one-line items.

Invariants:
- A function of the document alone; within a section the newest change stands first, except that
  open tasks stand in plan order.
- A text of the run stands in a line as a JSON string, or as one plain word, so that nothing in a
  run can look like a line, a heading or a remark of foldlog's.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from foldlog.core.effects import IN_DOUBT
from foldlog.core.printable import quoted_json
from foldlog.core.scopes import GoalScope
from foldlog.core.tasks import OPEN
from foldlog.core.why import WAITS_FOR

Json = dict[str, Any]

_WORD = re.compile("[A-Za-z0-9_][A-Za-z0-9_.:/@#~+=%?&*-]*")


@dataclass(frozen=True, slots=True)
class Item:
    """One line, and the entity that it tells of."""

    entity: str
    line: str


@dataclass(frozen=True, slots=True)
class Section:
    """Items under a heading; ``name`` is what they are called where they are left out."""

    name: str
    heading: str
    items: list[Item]


# Never left out


def always(document: Json) -> list[str]:
    """The lines that are in every text: where the run is, and the five things nobody may miss."""
    return [
        _head(document),
        *_goal(document["goal"]),
        *_listed("constraints", map(quoted_json, document["goal"]["constraints"])),
        *_listed("acceptance", map(quoted_json, document["goal"]["acceptance"])),
        *_listed("revoked permissions: do not use", map(_word, document["permissions_revoked"])),
        *_listed("effects in doubt: ask the other side, do not repeat", _doubts(document)),
        *_listed("waits for", _wait(document["waiting"])),
    ]


def _head(document: Json) -> str:
    head = f"# run {document['run_id']} at revision {document['revision']}: {document['status']}"
    if document["result"] is not None:
        head += f" ({document['result']})"
    if document["condition"] != "ok":
        head += f", {document['condition']}"
    return head if document["phase"] is None else f"{head}, phase {_word(document['phase'])}"


def _goal(goal: Json) -> Iterator[str]:
    yield "## goal"
    yield quoted_json(goal["statement"])
    for words, items in (("only", goal["scope"]["include"]), ("not", goal["scope"]["exclude"])):
        if items:
            yield f"{words} in {_words(items)}"


def _listed(heading: str, lines: Iterable[str]) -> Iterator[str]:
    """A heading and its lines; that there are none is said too, for it may be relied on."""
    yield f"## {heading}"
    found = [f"- {line}" for line in lines]
    yield from found or ["none"]


def _doubts(document: Json) -> Iterator[str]:
    for effect in document["effects"]:
        if effect["status"] in IN_DOUBT:
            what = f"{_word(effect['id'])}: {_word(effect['kind'])} on {_word(effect['target'])}"
            key = f"idempotency key {_word(effect['idempotency_key'])}"
            yield f"{what}, {key}, {effect['status']} at revision {effect['revision']}"


def _wait(wait: Json | None) -> Iterator[str]:
    if wait is not None:
        until = f"until {wait['deadline']}" if wait["deadline"] else "without a deadline"
        what = f"{WAITS_FOR[wait['kind']]}, key {_word(wait['key'])}: {quoted_json(wait['reason'])}"
        yield f"{what}, since {wait['since']}, {until}"


# As much as there is room for


def optional(document: Json) -> list[Section]:
    """The sections that a budget may cut off, the most important first."""
    return [Section(name, heading, list(items(document))) for name, heading, items in _OPTIONAL]


def _control(document: Json) -> Iterator[Item]:
    goal, control = document["goal"], document["control_revision"]
    if goal["revision"] > 1:
        line = f"- the goal was changed at revision {goal['revision']} by {_author(goal)}"
        yield Item("goal", line)
    if control:
        how = f"foldlog diff {document['run_id']} {control - 1} {control}"
        line = f"- what was decided before revision {control} is superseded by a control change"
        yield Item("status", f"{line}: {how}")


def _tasks(document: Json) -> Iterator[Item]:
    """The active one, the others that run, and those that may be started."""
    tasks = {task["id"]: task for task in document["tasks"]}
    active = document["active_task_id"]
    runs = [id for id in document["plan"] if tasks[id]["status"] == "running" and id != active]
    for id in [active, *runs] if active is not None else runs:
        word = "active" if id == active else "runs"
        yield _task(tasks[id], f"{word}, worker {_word(tasks[id]['worker'])}")
    for id in document["next_task_ids"]:
        yield _task(tasks[id], "next")


def _other_tasks(document: Json) -> Iterator[Item]:
    """Those that are blocked, or wait for others."""
    tasks = {task["id"]: task for task in document["tasks"]}
    for id in document["plan"]:
        task = tasks[id]
        if task["status"] == "blocked":
            yield _task(task, f"blocked: {quoted_json(task['blocked_by'])}")
        elif task["status"] == "pending" and id not in document["next_task_ids"]:
            yield _task(task, f"after {_words(task['depends_on'])}")


def _ended_tasks(document: Json) -> Iterator[Item]:
    for task in _newest_first(document["tasks"], "id"):
        if task["status"] not in OPEN:
            says = task["evidence"]
            evidence = "" if says is None else f", evidence {_word(says)}"
            yield _task(task, task["status"] + evidence)


def _task(task: Json, how: str) -> Item:
    scope = f", in {_words(task['scope'])}" if task["scope"] else ""
    line = f"- {_word(task['id'])}: {quoted_json(task['title'])} ({how}{scope})"
    return Item(f"task/{task['id']}", line)


def _facts(document: Json) -> Iterator[Item]:
    return _facts_in_scope(document, True)


def _other_facts(document: Json) -> Iterator[Item]:
    return _facts_in_scope(document, False)


def _facts_in_scope(document: Json, inside: bool) -> Iterator[Item]:
    """The facts that lie in the goal's scope, or those that do not."""
    goal = GoalScope(document["goal"]["scope"])
    for fact in _newest_first(document["confirmed_facts"], "id"):
        if goal.has(fact["scope"]) is inside:
            says = fact["evidence"]
            by = f"evidence {_word(says)}" if says is not None else f"word of {_author(fact)}"
            line = f"{_word(fact['id'])}: {quoted_json(fact['statement'])}"
            yield Item(f"fact/{fact['id']}", f"- {line} ({by}, {fact['observed_at']})")


def _ruled_out(document: Json) -> Iterator[Item]:
    for each in _newest_first(document["ruled_out"], "id"):
        line = f"{_word(each['id'])}: {quoted_json(each['statement'])}"
        evidence = f"evidence {_word(each['evidence'])}"
        yield Item(f"hypothesis/{each['id']}", f"- {line} ({evidence})")


def _hypotheses(document: Json) -> Iterator[Item]:
    for each in _newest_first(document["hypotheses"], "id"):
        line = f"{_word(each['id'])}: {quoted_json(each['statement'])}"
        test = f"false if: {quoted_json(each['falsifier'])}"
        confidence = f"confidence {each['confidence']}"
        yield Item(f"hypothesis/{each['id']}", f"- {line} ({confidence}; {test})")


def _questions(document: Json) -> Iterator[Item]:
    for each in _newest_first(document["open_questions"], "id"):
        line = f"- {_word(each['id'])}: {quoted_json(each['text'])}"
        yield Item(f"question/{each['id']}", line)


def _budgets(document: Json) -> Iterator[Item]:
    budgets = document["budgets"]
    if budgets["tokens_remaining"] is not None:
        yield Item("budget/tokens", f"- {budgets['tokens_remaining']} tokens remain")
    if budgets["deadline"] is not None:
        yield Item("budget/deadline", f"- deadline {budgets['deadline']}")


def _calls(document: Json) -> Iterator[Item]:
    for call in _newest_first(document["pending_tool_calls"], "step_id"):
        task = "" if call["task_id"] is None else f" for {_word(call['task_id'])}"
        line = f"- {_word(call['step_id'])}: {_word(call['tool'])}{task}"
        yield Item(f"tool/{call['step_id']}", line)


def _conflicts(document: Json) -> Iterator[Item]:
    for each in _newest_first(document["conflicts"], "id"):
        line = f"- {each['id']}: {_words(each['entities'])}, proposed by {_author(each)}"
        yield Item(f"conflict/{each['id']}", line)


def _observations(document: Json) -> Iterator[Item]:
    for seen in _newest_first(document["environment_observations"], "subject"):
        version = seen["observed_version"]
        at = seen["observed_at"] if version is None else f"{_word(version)}, {seen['observed_at']}"
        line = f"- {_word(seen['subject'])}: {quoted_json(seen['observed_state'])} ({at})"
        yield Item(f"observation/{seen['subject']}", line)


def _workspace(document: Json) -> Iterator[Item]:
    place = document["workspace"]
    if place is not None:
        commit = place["current_commit"] or place["base_commit"]
        at = "" if commit is None else f" at {_word(commit)}"
        yield Item("workspace", f"- {_word(place['workspace_id'])}{at}")


def _artifacts(document: Json) -> Iterator[Item]:
    for each in _newest_first(document["artifacts"], "id"):
        yield Item(f"artifact/{each['id']}", f"- {_word(each['id'])}: {_word(each['uri'])}")


_OPTIONAL: tuple[tuple[str, str, Callable[[Json], Iterator[Item]]], ...] = (
    ("control changes", "control changes", _control),
    ("tasks", "tasks", _tasks),
    ("facts", "facts", _facts),
    ("ruled out", "ruled out: do not try again", _ruled_out),
    ("hypotheses", "hypotheses", _hypotheses),
    ("questions", "open questions", _questions),
    ("budgets", "budgets", _budgets),
    ("tool calls", "tool calls without an outcome", _calls),
    ("conflicts", "proposals that wait for a person", _conflicts),
    ("other tasks", "other open tasks", _other_tasks),
    ("observations", "seen, may have changed since", _observations),
    ("workspace", "workspace", _workspace),
    ("artifacts", "artifacts", _artifacts),
    ("ended tasks", "ended tasks", _ended_tasks),
    ("other facts", "other facts: out of the goal's scope", _other_facts),
)


# How texts of the run are written


def _newest_first(rows: Iterable[Json], id: str) -> list[Json]:
    return sorted(rows, key=lambda row: (-row["revision"], row[id]))


def _author(entity: Json) -> str:
    return _word(f"{entity['author']['kind']}:{entity['author']['id']}")


def _words(texts: Iterable[str]) -> str:
    return ", ".join(map(_word, texts))


def _word(text: str) -> str:
    """A text that is one plain word as it is, any other as a JSON string."""
    return text if _WORD.fullmatch(text) else quoted_json(text)
