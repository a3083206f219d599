"""Waiting from a step: the run waits, no process does, and the step is given the answer later.

A step that waits ends (``RunWaits``); when the wait is over some worker claims the run, the step
begins again, and this time the call returns. So that every later pass returns the same, the answer
is kept in the Run State as a fact, ``wait/KEY@REVISION`` with the revision at which the wait ended.

Invariants:
- A key is one question: asked once, it has its answer for ever. Another question has another key.
- An answer that came before the question ends it at once; the run is then kept.
"""

import json
from datetime import datetime, timedelta
from typing import Any

from foldlog.core.values import TEXT_BYTES_MAX, fits, format_instant
from foldlog.errors import Usage
from foldlog.results import RunState, Value
from foldlog.views import View
from foldlog.worker.agent import Json
from foldlog.worker.driving import Steps, do
from foldlog.worker.endings import RunWaits
from foldlog.worker.holding import Holding, short
from foldlog.worker.past import past_waits, question_of
from foldlog.worker.progress import EFFECT, OWN_KEYS

KEY_CHARACTERS_MAX = 2_000
"""Of a wait; some are left for the fact that keeps its answer, whose id holds 2,048."""

FACT = "wait/"
ANSWERED = "answered: "
"""What a fact's statement begins with; JSON follows."""

Deadline = str | datetime | timedelta | None


class Answer(Value):
    """How a wait ended: ``ended`` is signal or deadline; with the signal's payload and author."""

    __slots__ = ()

    key: str
    ended: str
    signal_id: str | None
    payload: Any
    author: Value | None

    @property
    def timed_out(self) -> bool:
        """Whether the deadline passed before a signal came."""
        return bool(self["ended"] == "deadline")

    @property
    def granted(self) -> bool:
        """Whether somebody said yes: the payload is true, or has ``"granted": true``."""
        payload = self._json["payload"]
        return payload is True or (isinstance(payload, dict) and payload.get("granted") is True)


class Waits(Holding):
    """A claim that can wait."""

    def _wait_for_user(self, key: str, reason: str, deadline: Deadline = None) -> Steps[Answer]:
        """Wait until somebody answers (``foldlog signal RUN KEY --payload ...``)."""
        return (yield from self._wait_for("user", key, reason, deadline))

    def _wait_for_approval(self, key: str, reason: str, deadline: Deadline = None) -> Steps[Answer]:
        """Wait until somebody approves or not; ``granted`` says which."""
        return (yield from self._wait_for("approval", key, reason, deadline))

    def _wait_for_timer(
        self, key: str, deadline: str | datetime | timedelta, reason: str = "a timer"
    ) -> Steps[Answer]:
        """Wait until a time, or for some time; a signal ends it earlier."""
        return (yield from self._wait_for("timer", key, reason, deadline))

    def _wait_for_event(self, key: str, reason: str, deadline: Deadline = None) -> Steps[Answer]:
        """Wait until something outside signals."""
        return (yield from self._wait_for("external", key, reason, deadline))

    def _wait_for(self, kind: str, key: str, reason: str, deadline: Deadline) -> Steps[Answer]:
        self._check_going_on()
        if len(key) > KEY_CHARACTERS_MAX:
            raise Usage(f"a key is at most {KEY_CHARACTERS_MAX} characters, this one {len(key)}")
        if key.startswith(OWN_KEYS):
            raise Usage(f"a key does not begin with {', '.join(OWN_KEYS)}: not {short(key)!r}")
        answer = yield from self._answer(key)
        return answer or (yield from self._ask(kind, key, reason, deadline))

    def _answer(self, key: str) -> Steps[Answer | None]:
        """How the wait of this key ended, if it was asked before."""
        state = yield from self._known()
        told = [fact for fact in state.confirmed_facts if _is_answer(fact.id, key)]
        if not told:
            return None
        # What became of an effect is asked until the answer tells; elsewhere the first one counts.
        which = max if key.startswith(EFFECT) else min
        fact = which(told, key=lambda fact: int(fact.id.rpartition("@")[2]))
        found: Json = json.loads(fact.statement.removeprefix(ANSWERED))
        if "payload" not in found:
            payload = yield do(self._payload, found["signal_id"])
            found = {**found, "payload": payload}
        return Answer({"key": key, **found})

    def _payload(self, signal_id: str) -> Any:
        """A signal's payload from the history: it was too large to be kept in the state."""
        for row in reversed(self._run.history()):
            for event in row.to_dict()["events"] or ():
                if event["type"] == "SignalReceived" and event["signal_id"] == signal_id:
                    return event.get("payload")
        return None

    def _ask(
        self, kind: str, key: str, reason: str, deadline: Deadline, *before: Any
    ) -> Steps[Answer]:
        """Ask a question whose answer is kept; returns only if it was there already."""
        yield from self._rest(kind, key, reason, deadline, *before, data={"key": key})
        yield from self._note_end_of_wait()
        answer = yield from self._answer(key)
        if answer is None:  # somebody else ended it, without an answer
            raise RunWaits(key)
        return answer

    def _rest(
        self, kind: str, key: str, reason: str, deadline: Deadline, *before: Any, **fields: Any
    ) -> Steps[None]:
        """Begin to wait and let the run go; returns only if a signal was there already."""
        state = yield from self._known()
        wait = {"type": "WaitStarted", "kind": kind, "key": key, "reason": short(reason)}
        if deadline is not None:
            wait["deadline"] = self._instant(deadline)
        yield from self._propose(
            *before, self._checkpoint_event("before_wait", state, **fields), wait
        )
        if (yield from self._look()).status == "waiting":
            # By itself: together with the wait it would need an expectation, which a renewal in
            # the background meanwhile would make a conflict.
            yield from self._release()
            raise RunWaits(key)

    def _instant(self, deadline: str | datetime | timedelta) -> str:
        if isinstance(deadline, timedelta):
            us = self._run.engine._clock() + deadline // timedelta(microseconds=1)
            return format_instant(us)
        if isinstance(deadline, datetime):
            if deadline.tzinfo is None:
                raise Usage(f"a deadline needs a time zone: {deadline}")
            return deadline.isoformat()
        return deadline

    def _note_end_of_wait(self) -> Steps[None]:
        """Keep the answers to the question that was asked last, as facts, if they are not yet."""
        state = yield from self._known()
        point = None if state.checkpoint is None else state.checkpoint.to_dict()
        key = question_of(point)
        if key is None or (_is_answered(state, key) and not key.startswith(EFFECT)):
            return
        for at, end in (yield do(self._ends_of, key)):
            statement = _statement(end)
            if not fits(statement, TEXT_BYTES_MAX):
                del end["payload"]
                statement = _statement(end)
            fact = {"id": f"{FACT}{key}@{at}", "statement": statement}
            fact["evidence"] = f"history://{self.run_id}@rev{at}"
            yield from self._propose({"type": "FactConfirmed", "fact": fact})

    def _ends_of(self, key: str) -> list[tuple[int, Json]]:
        """How the waits of a question ended, with the revision, where that was never a fact."""

        def work(view: View) -> list[tuple[int, Json]]:
            state = view.run(self.run_id).state()
            return [
                (wait.revision, wait.end)
                for wait in past_waits(view, self.run_id)
                if wait.is_question and wait.key == key and wait.end is not None
                if state.stamp("fact", f"{FACT}{key}@{wait.revision}") is None
            ]

        found: list[tuple[int, Json]] = self._run._read(work)
        return found


def _statement(end: Json) -> str:
    return ANSWERED + json.dumps(end, ensure_ascii=False, separators=(",", ":"))


def _is_answer(fact_id: str, key: str) -> bool:
    """Whether a fact says how the wait of this key ended."""
    before, mark, revision = fact_id.rpartition("@")
    return before == FACT + key and mark == "@" and revision.isdecimal()


def _is_answered(state: RunState, key: str) -> bool:
    return any(_is_answer(fact.id, key) for fact in state.confirmed_facts)
