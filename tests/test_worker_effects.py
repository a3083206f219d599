"""Effects from a step: intent, outcome, doubt; reconcilers and people; what is never repeated.

Invariants:
- The outside world is a list that takes everything it is told: that nothing is there twice is the
  kit's doing.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import pytest

from foldlog import client, testing
from foldlog.worker import Agent, CannotTell, Failed, NotDone, Retries, Succeeded
from tests import kit
from tests.client_runs import NOW, OPERATOR, act, event, started
from tests.kit import OTHER, Kit, state_of, types_of
from tests.kit import engine as engine
from tests.kit import made as made

SOON = Retries(first_seconds=0.5, max_seconds=0.5)


class Crash(BaseException):
    """The process ends here."""


class World:
    """An outside world, and an agent that charges there once."""

    def __init__(self, **options: Any) -> None:
        self.ledger: list[str] = []
        self.asked: list[str] = []
        self.returned: list[Any] = []
        self.before: list[BaseException] = []
        self.after: list[BaseException] = []
        self.verdict: Any = None
        self.agent, self.options = Agent(), options
        charge = self.agent.effect("charge")(self._charge)
        charge.reconciler(self._ask)

        @self.agent.step
        def work(run: Any) -> None:
            found = run.perform("charge-1", charge, "bank:acct", 40, **self.options)
            self.returned.append(found)

    def _charge(self, effect: Any, cents: int) -> str:
        if self.before:
            raise self.before.pop()
        self.ledger.append(effect.idempotency_key)
        if self.after:
            raise self.after.pop()
        return f"bank:tx/{len(self.ledger)}"

    def _ask(self, effect: Any) -> Any:
        self.asked.append(effect.id)
        if isinstance(self.verdict, BaseException):
            raise self.verdict
        if self.verdict is not None:
            return self.verdict
        if effect.idempotency_key in self.ledger:
            return Succeeded(f"bank:found/{effect.id}")
        return Failed("bank:none")


def crash_in(made: Kit, engine: testing.Engine, world: World, moment: str) -> None:
    """A worker that dies around its effect; its lease is over."""
    getattr(world, moment).append(Crash())
    with pytest.raises(Crash):
        made.worker(engine, OTHER, world.agent).work(until_idle=True)
    engine.clock.advance(61)


def test_an_effect_is_recorded_around(made: Kit, engine: testing.Engine) -> None:
    """Intent with a checkpoint before it is done, outcome after, with its reference."""
    world, run = World(), started(engine)
    made.worker(engine, agent=world.agent).work(until_idle=True)
    assert types_of(run)[4:6] == [["CheckpointTaken", "EffectIntended"], ["EffectSucceeded"]]
    [effect] = state_of(run).effects
    assert (effect.id, effect.kind, effect.target) == ("charge-1", "charge", "bank:acct")
    assert (effect.idempotency_key, effect.status) == ("run_1/charge-1", "succeeded")
    assert (world.ledger, world.returned) == (["run_1/charge-1"], ["bank:tx/1"])
    assert state_of(run).result == "completed"


def test_an_effect_is_performed_once(made: Kit, engine: testing.Engine) -> None:
    """Performed again under its id, in a later pass or the same, it gives what it gave."""
    world, calls = World(), []

    @world.agent.step("again")
    def again(run: Any) -> None:
        calls.append(run.perform("charge-1", world.agent.effects["charge"], "bank:acct", 40))
        if len(calls) < 3:
            raise OSError("try me again")

    run, worker = started(engine), made.worker(engine, agent=world.agent, retries=SOON)
    for _ in range(4):
        worker.work(until_idle=True)
        engine.clock.advance(1)
    assert calls == ["bank:tx/1"] * 3
    assert len(world.ledger) == 1
    assert state_of(run).result == "completed"


def test_an_effect_of_unknown_outcome_is_not_repeated(made: Kit, engine: testing.Engine) -> None:
    """FAULTS 11: after a crash between effect and answer the other side is asked; it was done."""
    world, run = World(), started(engine)
    crash_in(made, engine, world, "after")
    made.worker(engine, agent=world.agent).work(until_idle=True)
    [effect] = state_of(run).effects
    assert (effect.status, effect.outcome) == ("reconciled", "succeeded")
    assert (world.ledger, world.asked) == (["run_1/charge-1"], ["charge-1"])
    assert world.returned == ["bank:found/charge-1"]
    assert state_of(run).result == "completed"


def test_an_effect_that_did_not_happen_is_tried_again(made: Kit, engine: testing.Engine) -> None:
    """After a crash before the effect the other side says that nothing came: it is done now, under
    the same key and another id."""
    world, run = World(), started(engine)
    crash_in(made, engine, world, "before")
    made.worker(engine, agent=world.agent).work(until_idle=True)
    first, second = state_of(run).effects
    assert (first.id, first.outcome, second.id) == ("charge-1", "failed", "charge-1#2")
    assert first.idempotency_key == second.idempotency_key
    assert world.ledger == ["run_1/charge-1"]
    assert state_of(run).result == "completed"


def test_a_key_that_was_given_up(made: Kit, engine: testing.Engine) -> None:
    """Where the reconciler gave the key up, the next attempt has another one, after a crash too."""
    world, run = World(), started(engine)
    crash_in(made, engine, world, "before")
    world.verdict = Failed("bank:void", key_given_up=True)
    crash_in(made, engine, world, "before")
    world.verdict = None
    made.worker(engine, agent=world.agent).work(until_idle=True)
    keys = [(each.id, each.idempotency_key) for each in state_of(run).effects]
    again = ("charge-1#3", "run_1/charge-1#2")  # the second was not given up
    assert keys == [("charge-1", "run_1/charge-1"), ("charge-1#2", again[1]), again]
    assert world.ledger == ["run_1/charge-1#2"]


def test_an_id_without_the_kits_mark(made: Kit, engine: testing.Engine) -> None:
    """An effect's id may not look like a later attempt of another."""
    agent, run = Agent(), started(engine)
    mail = agent.effect("mail")(print)
    agent.step("work")(lambda claim: claim.perform("a#2", mail, "mail:ada"))
    made.worker(engine, agent=agent).work(until_idle=True)
    assert "has no #" in state_of(run).waiting.reason
    assert state_of(run).effects == []


@pytest.mark.parametrize(
    ("payload", "outcome", "count"),
    [
        ({"outcome": "succeeded", "evidence": "mail:from-the-bank"}, "succeeded", 1),
        ({"outcome": "failed"}, "failed", 2),
    ],
)
def test_nobody_can_tell_so_a_person_is_asked(
    made: Kit, engine: testing.Engine, payload: Any, outcome: str, count: int
) -> None:
    """The run waits for a user under the key effect/ID; the answer settles the effect."""
    world, run = World(), started(engine)
    world.verdict = CannotTell("the bank keeps no list")
    crash_in(made, engine, world, "after")
    worker = made.worker(engine, agent=world.agent)
    worker.work(until_idle=True)
    state = state_of(run)
    assert (state.waiting.kind, state.waiting.key) == ("user", "effect/charge-1")
    assert "the bank keeps no list" in state.waiting.reason
    assert (state.effects[0].status, state.lease) == ("unknown", None)
    assert [alarm.code for alarm in engine.runs()[0].alarms] == ["EFFECT_IN_DOUBT"]
    run.signal("effect/charge-1", payload, author="user:ada")
    worker.work(until_idle=True)
    state = state_of(run)
    assert (state.effects[0].outcome, len(world.ledger)) == (outcome, count)
    assert state.result == "completed"
    if outcome == "succeeded":
        assert world.returned == ["mail:from-the-bank"]


def test_a_person_may_give_the_key_up(made: Kit, engine: testing.Engine) -> None:
    """Whoever had the other side refuse the key says so; the next attempt has another one.

    With the refused key it would fail for ever; a soak found it."""
    world, run = World(), started(engine)
    world.verdict = CannotTell("no list")
    crash_in(made, engine, world, "before")
    worker = made.worker(engine, agent=world.agent)
    worker.work(until_idle=True)
    told = {"outcome": "failed", "evidence": "mail:void", "key_given_up": True}
    run.signal("effect/charge-1", told, author="user:ada")
    worker.work(until_idle=True)
    assert world.ledger == ["run_1/charge-1#2"]
    assert state_of(run).result == "completed"


def test_an_answer_that_says_nothing_is_asked_again(made: Kit, engine: testing.Engine) -> None:
    """A person's signal without an outcome settles nothing: the run waits again."""
    world, run = World(), started(engine)
    world.verdict = CannotTell("no list")
    crash_in(made, engine, world, "after")
    worker = made.worker(engine, agent=world.agent)
    for payload in (None, "what?", {"outcome": "maybe"}):
        worker.work(until_idle=True)
        assert state_of(run).waiting.key == "effect/charge-1"
        run.signal("effect/charge-1", payload, author="user:ada")
    worker.work(until_idle=True)
    run.signal("effect/charge-1", {"outcome": "succeeded"}, author="user:ada")
    worker.work(until_idle=True)
    [evidence] = world.returned
    assert (state_of(run).result, evidence.split("@")[0]) == ("completed", "history://run_1")


def test_an_operator_who_reconciles_wakes_the_run(made: Kit, engine: testing.Engine) -> None:
    """Once the effect is settled by somebody's report, the wait for it ends by itself."""
    world, run = World(), started(engine)
    world.verdict = CannotTell("no list")
    crash_in(made, engine, world, "after")
    worker = made.worker(engine, agent=world.agent)
    worker.work(until_idle=True)
    settled = event("EffectReconciled", effect_id="charge-1", outcome="succeeded", evidence="a:b")
    act(run, settled, author="operator:ops")
    worker.work(until_idle=True)
    assert (state_of(run).result, world.returned) == ("completed", ["a:b"])
    assert len(world.ledger) == 1


def test_doubt_after_a_fresh_start(made: Kit, engine: testing.Engine) -> None:
    """A run that somebody brought back to start has its effect settled once it plans again."""
    world, run = World(), started(engine)
    world.verdict = CannotTell("no list")
    crash_in(made, engine, world, "after")
    failed = event("ToolFailed", step_id="t", error="x", recoverable=True)
    act(run, event("ToolStarted", step_id="t", tool="x"), failed, author="user:ada")
    act(run, event("RunTransitioned", to="start"), author="user:ada")
    worker = made.worker(engine, agent=world.agent)
    worker.work(until_idle=True)
    assert (state_of(run).waiting.key, state_of(run).waiting["from"]) == (
        "effect/charge-1",
        "planning",
    )
    run.signal("effect/charge-1", {"outcome": "succeeded"}, author="user:ada")
    worker.work(until_idle=True)
    assert (state_of(run).result, len(world.ledger)) == ("completed", 1)


def test_an_effect_without_a_reconciler(made: Kit, engine: testing.Engine) -> None:
    """Of a kind that nobody taught this worker to ask about, a person is asked."""
    world, run = World(), started(engine)
    crash_in(made, engine, world, "after")
    agent = Agent()
    agent.step("work")(print)
    made.worker(engine, agent=agent).work(until_idle=True)
    assert "knows no effect of kind charge" in state_of(run).waiting.reason
    agent = Agent()
    agent.effect("charge")(print)
    run.signal("effect/charge-1", author="user:ada")
    made.worker(engine, agent=agent).work(until_idle=True)
    assert "no way to ask bank:acct" in state_of(run).waiting.reason


def test_an_answer_that_was_lost(made: Kit, engine: testing.Engine) -> None:
    """What an effect raises leaves it unknown; the next pass asks, and does not repeat it."""
    world, run = World(), started(engine)
    world.after.append(OSError("connection reset"))
    worker = made.worker(engine, agent=world.agent, retries=SOON)
    worker.work(until_idle=True)
    assert state_of(run).effects[0].status == "unknown"
    engine.clock.advance(1)
    worker.work(until_idle=True)
    assert (world.ledger, world.asked) == (["run_1/charge-1"], ["charge-1"])
    assert state_of(run).result == "completed"


def test_the_other_side_is_away(made: Kit, engine: testing.Engine) -> None:
    """A reconciler that cannot ask now is asked again later; nothing is settled on a guess."""
    world, run = World(), started(engine)
    crash_in(made, engine, world, "after")
    world.verdict = OSError("no route to the bank")
    worker = made.worker(engine, agent=world.agent, retries=SOON)
    for _ in range(3):
        worker.work(until_idle=True)
        assert state_of(run).effects[0].status == "intended"
        assert "no route" in state_of(run).waiting.reason
        engine.clock.advance(1)
    world.verdict = None
    worker.work(until_idle=True)
    assert (world.ledger, state_of(run).result) == (["run_1/charge-1"], "completed")


def test_the_other_side_is_away_for_long(made: Kit, engine: testing.Engine) -> None:
    """It is asked less and less often, and for as long as it takes."""
    world, run, at = World(), started(engine), list[int]()
    crash_in(made, engine, world, "after")
    world.verdict = OSError("no route to the bank")
    worker = made.worker(engine, agent=world.agent, retries=Retries(max_seconds=60))
    for second in range(300):
        worker.work(until_idle=True)
        if len(world.asked) > len(at):
            at.append(second)
        engine.clock.advance(1)
    assert [later - earlier for earlier, later in pairwise(at)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (state_of(run).status, state_of(run).effects[0].status) == ("waiting", "intended")


def test_a_reconciler_that_says_nothing(made: Kit, engine: testing.Engine) -> None:
    """An answer that is no verdict settles nothing, and is the author's mistake."""
    world, run = World(), started(engine)
    crash_in(made, engine, world, "after")
    world.verdict = "done"
    made.worker(engine, agent=world.agent).work(until_idle=True)
    assert "not Succeeded, Failed or CannotTell" in state_of(run).waiting.reason
    assert state_of(run).effects[0].status == "intended"


@pytest.mark.parametrize(
    "verdict",
    [Succeeded("order 12"), Failed("none"), Succeeded(cast(str, None)), Failed("bank:\udc80")],
)
def test_a_verdict_whose_evidence_is_no_reference(
    made: Kit, engine: testing.Engine, verdict: Any
) -> None:
    """It settles nothing, is told to the author, and the other side is asked again later."""
    world, run = World(), started(engine)
    crash_in(made, engine, world, "after")
    world.verdict = verdict
    worker = made.worker(engine, agent=world.agent, retries=SOON)
    for count in (1, 2):
        worker.work(until_idle=True)
        assert "its evidence is no reference" in state_of(run).waiting.reason
        assert (state_of(run).effects[0].status, len(world.asked)) == ("intended", count)
        engine.clock.advance(1)


def test_a_verdict_whose_evidence_is_not_found(made: Kit) -> None:
    """If the engine's check refuses it, the effect stays in doubt, and a person has to look: the
    other side is asked once, and not again and again."""
    with testing.Engine(now=NOW, evidence_check=lambda said: "found" not in said) as engine:
        world, run = World(), started(engine)
        crash_in(made, engine, world, "after")
        worker = made.worker(engine, agent=world.agent)
        worker.work(until_idle=True)
        assert state_of(run).waiting.reason.startswith("EVIDENCE_REQUIRED")
        assert (state_of(run).effects[0].status, len(world.asked)) == ("intended", 1)
        world.verdict = Succeeded("bank:1")
        run.signal(state_of(run).waiting.key, author="user:ada")
        worker.work(until_idle=True)
        assert (state_of(run).result, world.returned) == ("completed", ["bank:1"])


def test_an_answer_without_evidence_to_a_long_question(made: Kit, engine: testing.Engine) -> None:
    """What a person says counts whatever the effect's id is: the evidence is the run's history."""
    agent, given, run = Agent(), [], started(engine)

    @agent.effect("mail")
    def mail(effect: Any) -> None:
        raise OSError("no answer")

    agent.step("work")(lambda claim: given.append(claim.perform("é" * 400, mail, "mail:ada")))
    worker = made.worker(engine, agent=agent, retries=SOON)
    worker.work(until_idle=True)
    engine.clock.advance(1)
    worker.work(until_idle=True)
    run.signal(state_of(run).waiting.key, {"outcome": "succeeded"}, author="user:ada")
    worker.work(until_idle=True)
    assert state_of(run).result == "completed"
    assert given[0].startswith("history://run_1@rev")


def test_stopping_while_an_effect_is_in_doubt(made: Kit, engine: testing.Engine) -> None:
    """A worker that is told to stop when it asks does not try again what did not happen."""
    agent, tried, run = Agent(), [], started(engine)

    @agent.effect("mail")
    def mail(effect: Any) -> None:
        tried.append(effect.id)
        raise OSError("no answer")

    @mail.reconciler
    def ask(effect: Any) -> Failed:
        worker.stop()
        return Failed("mail:none")

    @agent.step
    def work(claim: Any) -> None:
        for _ in range(2):
            with suppress(OSError):
                claim.perform("mail-1", mail, "mail:ada")

    worker = made.worker(engine, agent=agent)
    worker.work(until_idle=True)
    assert (tried, state_of(run).lease) == (["mail-1"], None)


def test_the_other_side_said_no(made: Kit, engine: testing.Engine) -> None:
    """NotDone is certain: the effect has failed, the step is told, and may try again later."""
    world, run = World(), started(engine)
    world.before.append(NotDone("no such account"))
    worker = made.worker(engine, agent=world.agent, retries=SOON)
    worker.work(until_idle=True)
    [effect] = state_of(run).effects
    assert (effect.status, world.asked) == ("failed", [])
    engine.clock.advance(1)
    worker.work(until_idle=True)
    assert [each.outcome for each in state_of(run).effects] == ["failed", "succeeded"]
    assert len(world.ledger) == 1


def test_what_an_effect_requires_is_read_again(made: Kit, engine: testing.Engine) -> None:
    """If it has changed since the step looked, nothing is done, and the step begins again."""
    world, run = World(), started(engine)
    versions, seen = ["v1", "v2", "v2", "v2"], []

    @world.agent.step("careful")
    def careful(run: Any) -> None:
        stock = run.observe("stock:7", lambda: versions.pop(0))
        seen.append(stock.version)
        kind = world.agent.effects["charge"]
        run.perform("charge-2", kind, "bank:acct", 1, requires=[stock])

    worker = made.worker(engine, agent=world.agent, retries=SOON)
    worker.work(until_idle=True)
    assert world.ledger == ["run_1/charge-1"]
    assert "is now at 'v2'" in state_of(run).waiting.reason
    engine.clock.advance(1)
    worker.work(until_idle=True)
    assert (seen, len(world.ledger)) == (["v1", "v2"], 2)
    events = [e.to_dict() for row in run.history() for e in row.events or []]
    required = [e["requires"] for e in events if "requires" in e]
    assert required == [[{"subject": "stock:7", "observed_version": "v2"}]]


def test_what_somebody_else_saw_meanwhile(made: Kit, engine: testing.Engine) -> None:
    """If another author observes something newer between the second look and the intent, nothing is
    done, and the step begins again on that."""
    world, run = World(), started(engine)
    reads: list[str] = []

    @world.agent.step("careful")
    def careful(claim: Any) -> None:
        stock = claim.observe("stock:7", read)
        claim.perform("charge-2", world.agent.effects["charge"], "bank:acct", 1, requires=[stock])

    def read() -> str:
        reads.append("v1" if len(reads) < 2 else "v2")
        if len(reads) == 2:
            engine.clock.advance(1)
            seen = {"subject": "stock:7", "observed_state": "", "observed_at": engine.clock.now}
            act(run, event("EnvironmentObserved", observed_version="v2", **seen), author=OPERATOR)
        return reads[-1]

    worker = made.worker(engine, agent=world.agent, retries=SOON)
    worker.work(until_idle=True)
    assert (len(world.ledger), state_of(run).waiting.kind) == (1, "timer")
    assert "was seen at 'v1' and is now at 'v2'" in state_of(run).waiting.reason
    engine.clock.advance(1)
    worker.work(until_idle=True)
    assert (len(world.ledger), state_of(run).result) == (2, "completed")


def test_a_stale_writer_is_fenced_before_it_acts(
    made: Kit, engine: testing.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 3: a worker that stood still between intent and effect, until its lease was over, does
    nothing; whoever took over settled the effect, and did it."""
    world, run, real = World(), started(engine), client.Run.propose
    other = made.worker(engine, OTHER, world.agent)

    def propose(self: client.Run, events: Any, **options: Any) -> Any:
        outcome = real(self, events, **options)
        if events[-1]["type"] == "EffectIntended" and options["author"] == f"agent:{kit.WORKER}":
            engine.clock.advance(61)
            assert other.work(until_idle=True) == 1
        return outcome

    monkeypatch.setattr(client.Run, "propose", propose)
    made.worker(engine, agent=world.agent, renew=False).work(until_idle=True)
    assert world.ledger == ["run_1/charge-1"]
    first, second = state_of(run).effects
    assert (first.outcome, second.outcome, second.author.id) == ("failed", "succeeded", OTHER)
    assert state_of(run).result == "completed"


def test_no_effect_without_a_recorded_intent(made: Kit, engine: testing.Engine) -> None:
    """Whatever refuses the intent, nothing is done."""
    world, run = World(), started(engine)
    act(run, event("PermissionRevoked", permission="effect:*", reason="stop"))
    made.worker(engine, agent=world.agent).work(until_idle=True)
    assert (world.ledger, state_of(run).effects) == ([], [])
    assert state_of(run).waiting.reason.startswith("PERMISSION_REVOKED")


def test_a_quarantined_intent_is_no_intent(made: Kit) -> None:
    """A rule that raises at the intent quarantines its run: nothing is done, then or later."""
    with testing.Engine(now=NOW, raise_in="EffectIntended") as engine:
        world, run = World(), started(engine)
        for _ in range(2):
            made.worker(engine, agent=world.agent).work(until_idle=True)
            assert (world.ledger, state_of(run).condition) == ([], "quarantined")
            run.release("look again", author="operator:ops")
            engine.clock.advance(61)


def test_a_quarantined_report_ends_the_step(made: Kit) -> None:
    """Where an outcome quarantines the run, the step does not go on as if it had been recorded."""
    with testing.Engine(now=NOW, raise_in="EffectSucceeded") as engine:
        world, run = World(), started(engine)
        made.worker(engine, agent=world.agent).work(until_idle=True)
        assert (world.ledger, world.returned) == (["run_1/charge-1"], [])
        assert state_of(run).condition == "quarantined"


def test_an_effect_after_a_cancel_reaches_the_ledger(made: Kit, engine: testing.Engine) -> None:
    """A run that is cancelled while an effect is under way has its outcome all the same."""
    world, run = World(), started(engine)
    real = world._charge

    def charge(effect: Any, cents: int) -> str:
        run.cancel("no need", author="user:ada")
        return real(effect, cents)

    world.agent.effects["charge"].function = charge
    made.worker(engine, agent=world.agent).work(until_idle=True)
    assert (state_of(run).result, state_of(run).effects[0].status) == ("cancelled", "succeeded")


def test_an_effect_returns_a_reference_or_nothing(made: Kit, engine: testing.Engine) -> None:
    """What is no reference is the author's mistake; the effect is not repeated for it."""
    world, run = World(), started(engine)
    kind = world.agent.effects["charge"]

    def charge(effect: Any, cents: int) -> int:
        world.ledger.append(effect.id)
        return cents

    kind.function = charge
    worker = made.worker(engine, agent=world.agent, retries=SOON)
    worker.work(until_idle=True)
    assert state_of(run).effects[0].status == "succeeded"
    assert "which is no reference" in state_of(run).waiting.reason
    engine.clock.advance(1)
    worker.work(until_idle=True)
    assert (world.ledger, world.returned) == (["charge-1"], [None])
