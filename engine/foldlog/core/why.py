"""Why a run does not go on, since when, and who can move it and how. CONTRACT section 4, ``why``.

Invariants:
- A function of the document, its alarms and effects in doubt: no clock, no storage.
- Every ``how`` is one line for a shell. What its reader has to put in stands in capitals, and
  nothing in it can act on a terminal, whatever the run's texts hold.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

Json = dict[str, Any]
Alarms = Mapping[str, Mapping[str, Any]]
Mover = tuple[str, str]

WAITS_FOR = {
    "user": "an answer of the user",
    "approval": "an approval",
    "timer": "a timer",
    "external": "an event from outside",
}
SIGNALLERS = {
    "user": "the user who is asked",
    "approval": "whoever may approve",
    "timer": "whoever needs not wait so long",
    "external": "whoever sees the event",
}
GONE = "no longer in the plan"
_HOPELESS = ("failed", "cancelled", "invalidated", GONE)
_PLAIN = re.compile("[A-Za-z0-9./_@:][A-Za-z0-9@%+=:,./_-]*")


def why(document: Json, alarms: Sequence[Json], doubtful: Collection[str] = ()) -> Json:
    """``{status, waiting_for, since, movers: [{who, how}], blocked_tasks, alarms}``.

    ``doubtful`` are the ids of the effects that EFFECT_IN_DOUBT is about. ``waiting_for`` is None
    where nothing keeps the run but the work itself; ``since`` is then when it came into its status.
    """
    found = {alarm["code"]: alarm for alarm in alarms}
    blocked = blocked_tasks(document)
    waiting_for, since = _keeper(document, found, blocked)
    movers = [*_keeper_movers(document, found, blocked), *_other_movers(document, found, doubtful)]
    if waiting_for is None and document["status"] != "finish":
        movers.append(_worker(document))
    return {
        "run_id": document["run_id"],
        "revision": document["revision"],
        "status": document["status"],
        "waiting_for": waiting_for,
        "since": since,
        "deadline": document["waiting"] and document["waiting"]["deadline"],
        "movers": [{"who": who, "how": how} for who, how in movers],
        "blocked_tasks": blocked,
        "alarms": list(alarms),
    }


def blocked_tasks(document: Json) -> list[Json]:
    """Tasks that are blocked, or depend on one that is never completed: id, title, blocked_by."""
    tasks = {task["id"]: task for task in document["tasks"]}
    rows = []
    for id in document["plan"]:
        task = tasks[id]
        reason = task["blocked_by"]
        if task["status"] == "pending":
            # A plan may drop what a task that stays depends on.
            states = {on: tasks[on]["status"] if on in tasks else GONE for on in task["depends_on"]}
            lost = [f"{on} is {status}" for on, status in states.items() if status in _HOPELESS]
            reason = ", ".join(lost) or None
        if reason is not None:
            rows.append(
                {"id": id, "title": task["title"], "status": task["status"], "blocked_by": reason}
            )
    return rows


# What keeps it


def _keeper(document: Json, found: Alarms, blocked: list[Json]) -> tuple[str | None, str | None]:
    """What the run waits for or is kept by, and since when."""
    last = document["last_transition"]
    since = None if last is None else last["at"]
    wait = document["waiting"]
    if "QUARANTINED" in found:
        return "a release from quarantine", _since(found, "QUARANTINED")
    if "MIGRATION_REQUIRED" in found:
        return "a migration", since
    if document["status"] == "finish":
        return None, since
    if wait is not None:
        return waited_for(wait), wait["since"]
    if "BUDGET_EXHAUSTED" in found:
        what = f"a budget ({found['BUDGET_EXHAUSTED']['message']})"
        return what, _since(found, "BUDGET_EXHAUSTED")
    if _is_spent(document):
        spent = f"{document['retry_count']} of {document['retry_limit']}"
        return f"a fresh start (its retries are spent: {spent})", since
    if _has_only(document, blocked):
        return f"its blocked tasks ({', '.join(task['id'] for task in blocked)})", since
    return None, since


def waited_for(wait: Json) -> str:
    """What a wait is for, in words: what, its key, and its reason."""
    what = f"{WAITS_FOR[wait['kind']]} ({wait['key']})"
    return f"{what}: {wait['reason']}" if wait["reason"] else what


def _since(found: Alarms, code: str) -> str | None:
    since: str | None = found[code]["since"]
    return since


def _is_spent(document: Json) -> bool:
    return bool(
        document["status"] == "retry" and document["retry_count"] >= document["retry_limit"]
    )


def _has_only(document: Json, blocked: list[Json]) -> bool:
    """Whether a running run has work left, all of it blocked."""
    busy = document["active_task_id"] is not None or document["next_task_ids"]
    calls = document["pending_tool_calls"]
    return bool(document["status"] == "running" and blocked and not busy and not calls)


# Who moves it


def _keeper_movers(document: Json, found: Alarms, blocked: list[Json]) -> Iterator[Mover]:
    """Who can end what keeps the run."""
    run_id = document["run_id"]
    if "QUARANTINED" in found:
        yield (
            "an operator, once the rule that failed is mended",
            f"foldlog release {run_id} --reason TEXT",
        )
    elif "MIGRATION_REQUIRED" in found:
        yield "an operator, with a build that migrates it", "foldlog explain MIGRATION_REQUIRED"
    elif document["status"] == "finish":
        return
    elif document["waiting"] is not None:
        yield from _signallers(document, found)
    elif "BUDGET_EXHAUSTED" in found:
        yield "a user or operator", propose_line(document, _budget_event(document))
    elif _is_spent(document):
        yield _fresh_start(document)
        yield "a user or operator", f"foldlog cancel {run_id} --reason TEXT"
    elif _has_only(document, blocked):
        yield from _unblockers(document, blocked)


def _fresh_start(document: Json) -> Mover:
    return "any worker", propose_line(document, {"type": "RunTransitioned", "to": "start"})


def _signallers(document: Json, found: Alarms) -> Iterator[Mover]:
    wait = document["waiting"]
    signal = (SIGNALLERS[wait["kind"]], command("signal", document["run_id"], wait["key"]))
    if wait["deadline"] is None:
        yield signal
        return
    over = "DEADLINE_PASSED" in found
    when = "its deadline has passed" if over else f"by itself at {wait['deadline']}"
    clock = (
        f"the timekeeper of a projector, {when}",
        f"foldlog project{' --once' if over else ''}",
    )
    yield from (clock, signal) if wait["kind"] == "timer" else (signal, clock)


def _budget_event(document: Json) -> Json:
    tokens = document["budgets"]["tokens_remaining"]
    if tokens is not None and tokens <= 0:
        return {"type": "BudgetSet", "tokens_remaining": "TOKENS"}
    return {"type": "BudgetSet", "deadline": "TIME"}


def _unblockers(document: Json, blocked: list[Json]) -> Iterator[Mover]:
    for task in blocked:
        if task["status"] == "blocked":
            event = {"type": "TaskUnblocked", "task_id": task["id"]}
        else:
            event = {"type": "TaskCancelled", "task_id": task["id"], "reason": "TEXT"}
        yield f"whoever can settle: {task['blocked_by']}", propose_line(document, event)


def _other_movers(document: Json, found: Alarms, doubtful: Collection[str]) -> Iterator[Mover]:
    """Who can settle what else an alarm points at."""
    run_id = document["run_id"]
    if "QUARANTINED" in found or "MIGRATION_REQUIRED" in found:
        return
    for effect in document["effects"]:
        if effect["id"] in doubtful:
            yield (
                f"whoever can ask {effect['target']} about {effect['id']}: succeeded or failed",
                command("reconcile", run_id, effect["id"], "OUTCOME", options=" --evidence URI"),
            )
    if document["status"] == "finish":
        return
    for conflict in document["conflicts"]:
        yield (
            f"a person who saw both (foldlog conflicts {run_id}): keep_current or take_proposed",
            command("resolve", run_id, conflict["id"], "RESOLUTION", options=" --reason TEXT"),
        )
    if "LEASE_EXPIRED" in found or "SILENT" in found:
        yield (
            "a worker that takes the lease, and then goes on",
            propose_line(
                document, {"type": "LeaseAcquired", "worker": "WORKER", "ttl_seconds": 60}
            ),
        )


def moved_on_by(document: Json) -> Iterator[tuple[str, str, str]]:
    """Who takes a run on that nothing outside keeps, how, and the entity that it is about."""
    if document["status"] == "finish" or document["waiting"] is not None:
        return
    if _is_spent(document):
        yield (*_fresh_start(document), "status")
        return
    blocked = blocked_tasks(document)
    if _has_only(document, blocked):
        movers = zip(_unblockers(document, blocked), blocked, strict=True)
        yield from ((who, how, f"task/{task['id']}") for (who, how), task in movers)
        return
    id = document["active_task_id"] or next(iter(document["next_task_ids"]), None)
    of_a_task = document["status"] == "running" and id is not None
    yield (*_worker(document), f"task/{id}" if of_a_task else "status")


def _worker(document: Json) -> Mover:
    """Whose work comes next, and what is proposed when it is done."""
    status = document["status"]
    lease, active = document["lease"], document["active_task_id"]
    who = "any worker" if lease is None else f"the worker {lease['worker']}"
    if status == "start":
        return who, propose_line(document, {"type": "RunTransitioned", "to": "planning"})
    if status in ("planning", "retry"):
        return who, propose_line(document, {"type": "RunTransitioned", "to": "running"})
    if active is not None:
        task = next(task for task in document["tasks"] if task["id"] == active)
        event = {"type": "TaskCompleted", "task_id": active, "evidence": "URI"}
        return f"the worker {task['worker']}", propose_line(document, event)
    if document["next_task_ids"]:
        event = {"type": "TaskStarted", "task_id": document["next_task_ids"][0]}
        return who, propose_line(document, event)
    return who, propose_line(document, {"type": "RunFinished", "result": "RESULT"})


# What is typed


def propose_line(document: Json, event: Json) -> str:
    """The command that proposes an event on the revision that the document has."""
    text = json.dumps({"events": [event]}).replace('"TOKENS"', "TOKENS")
    # `echo` of some shells turns backslashes into other characters, printf's %s does not.
    tool = "printf %s" if "\\" in text else "echo"
    expect = f" --expect {document['revision']}"
    return f"{tool} {quoted(text)} | foldlog propose {document['run_id']}{expect}"


def command(name: str, *arguments: str, options: str = "") -> str:
    """A command of ours with arguments that may hold anything."""
    words = " ".join(map(quoted, arguments))
    if any(each.startswith("-") for each in arguments):
        return f"foldlog {name}{options} -- {words}"
    return f"foldlog {name} {words}{options}"


def quoted(text: str) -> str:
    """A text as one word of a shell; what does not print is written as its number."""
    if _PLAIN.fullmatch(text):
        return text
    if text.isprintable():
        return "'" + text.replace("'", "'\"'\"'") + "'"
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
