"""Effects from a step: intent, fence, act, outcome; and asking what became of those in doubt.

Invariants:
- Nothing is done without an accepted intent and a lease made certain after it.
- What was done once is not done again: its id returns the recorded outcome. What may have been done
  is asked for, of the author's reconciler and then of a person; never repeated by itself.
- An effect that certainly did not happen may be tried again, under the same idempotency key.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from foldlog.core.values import is_reference
from foldlog.errors import Usage
from foldlog.results import RunState, Value
from foldlog.worker.agent import (
    CannotTell,
    EffectCall,
    EffectKind,
    Failed,
    Json,
    Succeeded,
    Verdict,
)
from foldlog.worker.driving import Steps, do, theirs
from foldlog.worker.endings import NotDone
from foldlog.worker.holding import short
from foldlog.worker.tools import Observed, Tools
from foldlog.worker.waits import Answer

ATTEMPT = "#"
"""Stands between an effect's id and the number of a later attempt."""

ID_CHARACTERS_MAX = 1_900
"""Of an effect's id: what is made of it, keys of waits and of attempts, is longer."""

GIVEN_UP = "given-up/"
"""Begins the id of the fact that an idempotency key is refused by the other side from now on."""


class Effects(Tools):
    """A claim that can act on the outside world."""

    def _perform(
        self,
        id: str,
        effect: EffectKind,
        target: str,
        /,
        *args: Any,
        requires: Sequence[Observed] = (),
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Steps[str | None]:
        """Act on the outside world once; returns the reference to what was done.

        ``id`` names the effect in this run for ever: performed before, it is not performed again.
        What ``requires`` names is read again first; Stale if it is no longer as it was seen.
        NotDone if the other side has certainly not done it.
        """
        self._check_going_on()
        if ATTEMPT in id or len(id) > ID_CHARACTERS_MAX:
            shape = f"has no {ATTEMPT} and at most {ID_CHARACTERS_MAX} characters"
            raise Usage(f"the id of an effect {shape}: {id[:80]!r}")
        while True:
            state = yield from self._known()
            tried = [each for each in state.effects if each.id.split(ATTEMPT)[0] == id]
            last = next((each for each in tried if each.outcome != "failed"), None)
            if last is None:
                break
            if last.outcome == "succeeded":
                found: str | None = yield do(self._reference_to, last)
                return found
            yield from self._settle(last)
        number = len(tried) + 1
        key = idempotency_key or f"{self.run_id}/{id}"
        if tried:
            key = _next_key(state, tried, f"{key}{ATTEMPT}{number}")
        attempt = id if number == 1 else f"{id}{ATTEMPT}{number}"
        call = {"id": attempt, "kind": effect.kind, "target": target, "idempotency_key": key}
        yield from self._intend(call, requires)
        return (yield from self._act(EffectCall(call), effect, args, options))

    def _intend(self, call: Json, requires: Sequence[Observed]) -> Steps[None]:
        required = []
        for observed in requires:
            required.append((yield from self._look_again(observed)))
        state = yield from self._known()
        intent: Json = {"type": "EffectIntended", "effect": call}
        if required:
            intent["requires"] = required
        yield from self._propose(self._checkpoint_event("before_effect", state), intent)
        yield from self._fence()

    def _act(
        self, call: EffectCall, effect: EffectKind, args: tuple[Any, ...], options: Json
    ) -> Steps[str | None]:
        try:
            result_ref = yield theirs(effect.function, call, *args, **options)
        except NotDone as error:
            yield from self._report(_outcome(call.id, "EffectFailed", error=short(str(error))))
            raise
        except Exception as error:
            yield from self._report(_outcome(call.id, "EffectUnknown", reason=short(error)))
            raise
        known = isinstance(result_ref, str) and is_reference(result_ref)
        found = {"result_ref": result_ref} if known else {}
        yield from self._report(_outcome(call.id, "EffectSucceeded", **found))
        if result_ref is not None and not known:
            raise Usage(f"effect {call.id} returned {result_ref!r}, which is no reference")
        return result_ref if known else None

    # In doubt

    def _settle(self, effect: Value) -> Steps[None]:
        """Find out what became of an effect; waits for a person if asking does not tell."""
        call = EffectCall({name: effect[name] for name in EffectCall.__annotations__})
        key = f"effect/{effect.id}"
        verdict: Verdict | None = _told((yield from self._answer(key)))
        if verdict is None:
            yield from self._fence()  # a worker that lost the run asks nobody
            verdict = yield from self._asked(call)
        if isinstance(verdict, CannotTell):
            unknown = [_outcome(effect.id, "EffectUnknown", reason=short(verdict.reason))]
            before = unknown if effect.status == "intended" else []
            reason = f"did {effect.kind} to {effect.target} happen? {verdict.reason}"
            answer = yield from self._ask("user", key, reason, None, *before)
            verdict = _told(answer)
        if isinstance(verdict, Succeeded | Failed):
            if isinstance(verdict, Failed) and verdict.key_given_up:
                yield from self._note_given_up(call.idempotency_key, verdict.evidence)
            outcome = "succeeded" if isinstance(verdict, Succeeded) else "failed"
            event = {"outcome": outcome, "evidence": verdict.evidence}
            yield from self._report(_outcome(effect.id, "EffectReconciled", **event))

    def _note_given_up(self, key: str, evidence: str) -> Steps[None]:
        if not (yield do(self._was_used, "fact", GIVEN_UP + key)):
            statement = "the other side refuses this idempotency key from now on"
            fact = {"id": GIVEN_UP + key, "statement": statement, "evidence": evidence}
            yield from self._propose({"type": "FactConfirmed", "fact": fact})

    def _asked(self, call: EffectCall) -> Steps[Verdict]:
        verdict = yield theirs(self.agent.reconcile, call)
        if isinstance(verdict, Succeeded | Failed | CannotTell):
            return verdict
        what = f"the reconciler of {call.kind} said {verdict!r}"
        raise Usage(f"{what}: not Succeeded, Failed or CannotTell")

    def _reference_to(self, effect: Value) -> str | None:
        """What an effect that happened gave, or was found by when it was asked for."""
        if effect.status != "reconciled":
            return effect.to_dict()["result_ref"]  # type: ignore[no-any-return]
        for row in reversed(self._run.history()):
            for event in row.to_dict()["events"] or ():
                if event["type"] == "EffectReconciled" and event["effect_id"] == effect.id:
                    return str(event["evidence"])
        return None


def _next_key(state: RunState, tried: Sequence[Value], other: str) -> str:
    """The key of the attempts before, unless it was given up."""
    before: str = max(tried, key=lambda each: (len(each.id), each.id)).idempotency_key
    given_up = any(fact.id == GIVEN_UP + before for fact in state.confirmed_facts)
    return other if given_up else before


def _outcome(effect_id: str, type: str, **fields: Any) -> Json:
    return {"type": type, "effect_id": effect_id, **fields}


def _told(answer: Answer | None) -> Succeeded | Failed | None:
    """What a person said of an effect: ``{"outcome": "succeeded", "evidence": URI}``; of a failed
    one also ``"key_given_up": true``."""
    payload = None if answer is None else answer.to_dict()["payload"]
    if answer is None or not isinstance(payload, dict):
        return None
    outcome = payload.get("outcome")
    evidence = payload.get("evidence")
    if not (isinstance(evidence, str) and is_reference(evidence)):
        evidence = f"signal:{quote(answer.key)}"
    if outcome == "failed":
        return Failed(evidence, payload.get("key_given_up") is True)
    return Succeeded(evidence) if outcome == "succeeded" else None
