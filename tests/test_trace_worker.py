"""Real transcripts, worked through the kit as if live, and killed at random points.

A transcript's translation says which tools were called with which results, what was done outside,
what people answered. An agent does all that again, step by step, through the worker kit; people
answer when the run waits. Killed around its proposals and effects, in lives that know nothing of
each other, it ends in the same document as undisturbed.

Invariants:
- A life that is killed does nothing more: no proposal, no effect, and it gives no lease back.
- Compared is the document without what tells when, by whom and at which revision, and without what
  it must tell of a crash: that an effect was asked about or tried again, and the last action, for a
  call that failed is made again. The outside world's own ledger has each effect once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from foldlog import client, testing
from foldlog.importers import chat, swe_agent
from foldlog.worker import Agent, Failed, GiveUp, NotDone, Retries, Succeeded, Worker
from tests.kit import state_of
from tests.test_traces import AIRLINE, EFFECTS, EXAMPLE_EFFECTS, EXAMPLES, TRAJECTORIES, read

LIVES_MAX, WAITS_MAX = 60, 500
LEASE_SECONDS = 60
SOON = Retries(first_seconds=0.01, max_seconds=0.01)
Json = dict[str, Any]


def translations() -> list[tuple[str, list[Json]]]:
    """The runs of the examples, and of the traces that are there: id, events in order."""
    found = [chat.translate(line, EXAMPLE_EFFECTS) for line in read(EXAMPLES)]
    if AIRLINE.exists():  # where they were asked for all of them, else some
        some = slice(None, None, 1 if "FOLDLOG_TRACES" in os.environ else 10)
        found += [chat.translate(line, EFFECTS) for line in read(AIRLINE)[some]]
    for path in TRAJECTORIES:
        found.append(swe_agent.translate(json.loads(path.read_bytes()), path.stem))
    return [(each.run_id, [e for p in each.proposals for e in p["events"]]) for each in found]


class Killed(BaseException):
    """This life is over."""


class Lives:
    """Lets a life end at its n-th proposal or effect, before it or after; then nothing more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.dead = False
        self._real = client.Run.propose
        lives = self

        def propose(run: client.Run, *args: Any, **options: Any) -> Any:
            return lives.around(lambda: lives._real(run, *args, **options))

        monkeypatch.setattr(client.Run, "propose", propose)

    def begin(self, left: int | None) -> None:
        """A new life, of so many halves of a call; without end for None."""
        self.left, self.dead = left, False

    def around(self, work: Callable[[], Any]) -> Any:
        """A call that leaves the process."""
        self._tick()
        value = work()
        self._tick()
        return value

    def _tick(self) -> None:
        if self.left is not None:
            self.left -= 1
            self.dead = self.dead or self.left < 0
        if self.dead:
            raise Killed

    def outside(self, work: Callable[[], Any]) -> Any:
        """What somebody else does, whom nobody kills."""
        left, self.left = self.left, None
        dead, self.dead = self.dead, False
        try:
            return work()
        finally:
            self.left, self.dead = left, dead


class Live:
    """One transcript as an agent that works on it, its outside world, and the people who answer."""

    def __init__(self, run_id: str, events: list[Json], lives: Lives) -> None:
        self.run_id, self.events, self.lives = run_id, events, lives
        self.ledger: list[str] = []
        self.answers = {e["key"]: e for e in events if e["type"] == "SignalReceived"}
        self.ends = {
            e["step_id"]: e for e in events if e["type"].startswith("Tool") and "tool" not in e
        }
        self.outcomes = {e["effect_id"]: e for e in events if "effect_id" in e}
        self.turns = self._turns()
        self.agent = self._agent()

    def _turns(self) -> list[list[Json]]:
        """The events, cut where a person speaks."""
        turns: list[list[Json]] = [[]]
        for event in self.events[1:]:
            if event["type"] == "WaitStarted":
                turns.append([])
            turns[-1].append(event)
        return turns

    def _agent(self) -> Agent:
        agent = Agent()
        for kind in {e["effect"]["kind"] for e in self.events if e["type"] == "EffectIntended"}:
            agent.effect(kind)(self._do).reconciler(self._ask)

        @agent.plan
        def plan(run: Any) -> list[Json]:
            ids = [f"turn-{number}" for number in range(len(self.turns))]
            before = [[], *([id] for id in ids)]
            return [
                {"id": id, "title": id, "depends_on": on}
                for id, on in zip(ids, before, strict=False)
            ]

        @agent.step("turn-*")
        def turn(run: Any) -> None:
            number = int(run.state().active_task_id.removeprefix("turn-"))
            for place, event in enumerate(self.turns[number]):
                self._work(run, agent, f"{number}.{place}", event)

        return agent

    def _work(self, run: Any, agent: Agent, place: str, event: Json) -> None:
        match event["type"]:
            case "WaitStarted":
                assert run.wait_for_user(event["key"], event["reason"]).signal_id
            case "ToolStarted" if event["step_id"] in self.ends:
                self._call(run, event, self.ends[event["step_id"]])
            case "EffectIntended":
                effect = event["effect"]
                with contextlib.suppress(NotDone):  # the transcript's agent was told, and went on
                    run.perform(effect["id"], agent.effects[effect["kind"]], effect["target"])
            case "RunFinished" if event["result"] == "failed":
                raise GiveUp("as the transcript ends")
            case "Recorded" | "ArtifactAdded" | "WorkspaceMoved" | "BudgetSpent" | "PhaseChanged":
                id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.run_id}/{place}"))
                outcome = run.propose(event, batch_id=id)
                assert outcome.code in (None, "BATCH_ID_REUSED"), outcome

    def _call(self, run: Any, event: Json, end: Json) -> None:
        class ToolError(Exception):
            pass

        def call(**arguments: Any) -> Any:
            if end["type"] == "ToolFailed":
                raise ToolError(end["error"])
            return end.get("result")

        try:
            found = run.tool(
                event["tool"], call, step_id=event["step_id"], **event.get("arguments", {})
            )
            assert found == end.get("result")
        except ToolError:
            pass  # the transcript's agent read the error, and went on

    # The outside world

    def _do(self, effect: Any) -> str:
        outcome = self.outcomes.get(effect.id.split("#")[0], {"type": "EffectUnknown"})
        if outcome["type"] == "EffectFailed":
            raise NotDone(outcome["error"])
        self.lives.around(lambda: self.ledger.append(effect.idempotency_key))
        if outcome["type"] == "EffectUnknown":
            raise OSError("no answer")
        return f"world:{effect.idempotency_key}"

    def _ask(self, effect: Any) -> Any:
        found = effect.idempotency_key in self.ledger
        return Succeeded(f"world:{effect.idempotency_key}") if found else Failed("world:none")

    # Lives

    def live(self, engine: testing.Engine, dice: random.Random | None) -> Json:
        """From the start to the end of the run; the document. With dice, killed again and again."""
        started = {name: value for name, value in self.events[0].items() if name != "type"}
        self.lives.begin(None)
        run = engine.start(self.run_id, author="user:ada", **started)
        for number in range(LIVES_MAX):
            kill = dice is not None and number < LIVES_MAX // 2
            self.lives.begin(dice.randrange(2, 40) if dice is not None and kill else None)
            try:
                self._life(engine, run, f"worker-{number}")
            except Killed:
                engine.clock.advance(LEASE_SECONDS + 1)
                continue
            if state_of(run).status == "finish":
                return state_of(run).to_dict()
        raise AssertionError(f"{self.run_id} does not end")

    def _life(self, engine: testing.Engine, run: client.Run, name: str) -> None:
        options: Json = {"lease_seconds": LEASE_SECONDS, "renew": False, "retries": SOON}
        worker = Worker(engine, name, self.agent, **options)
        for _ in range(WAITS_MAX):
            worker.work(until_idle=True)
            state = state_of(run)
            if state.status == "finish":
                return
            if state.waiting is not None and state.waiting.key in self.answers:
                self.lives.outside(functools.partial(self._answer, run, state.waiting.key))
            engine.clock.advance(1)
        raise AssertionError(f"{self.run_id} does not go on")

    def _answer(self, run: client.Run, key: str) -> None:
        said = self.answers[key]
        options = {"signal_id": said["signal_id"], "author": "user:eva"}
        assert run.signal(key, said.get("payload"), **options).accepted


LEFT_OUT = {
    "chain", "revision", "control_revision", "since", "at", "observed_at", "expires_at", "lease",
    "checkpoint", "author", "worker", "effect_ledger_ref", "last_action",
}  # fmt: skip


def comparable(value: Any) -> Any:
    """A document without what tells when, by whom and at which revision."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return re.sub(r"@(rev)?\d+$", "@", value) if isinstance(value, str) else value


def compared(document: Json) -> Json:
    """A document as it is compared; of the ledger what each effect came to."""
    shown = comparable(document)
    effects = {each["id"].split("#")[0]: each for each in shown.pop("effects")}  # the last attempt
    kept = ("kind", "target", "idempotency_key", "outcome")
    shown["ledger"] = {id: [each[name] for name in kept] for id, each in effects.items()}
    return dict(shown)


RUNS = translations()


@pytest.mark.parametrize("part", range(4))
def test_transcripts_worked_through_the_kit(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at random points, each run ends in the same document, each effect done once."""
    lives = Lives(monkeypatch)
    for number, (run_id, events) in enumerate(RUNS[part::4]):
        documents, ledgers = [], []
        for dice in (None, random.Random(f"{part}/{number}")):
            live = Live(run_id, events, lives)
            with testing.Engine() as engine:
                documents.append(compared(live.live(engine, dice)))
                assert engine.verify().ok
            ledgers.append(sorted(live.ledger))
        assert documents[1] == documents[0], run_id
        assert ledgers[1] == ledgers[0] == sorted(set(ledgers[0])), run_id


def test_lives_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lives of these tests do end, at each of the points around a proposal and an effect."""
    lives, [run_id, events] = Lives(monkeypatch), RUNS[0]
    ended = 0
    for seed in range(5):
        with testing.Engine() as engine:
            live = Live(run_id, events, lives)
            live.live(engine, random.Random(seed))
            epochs = [
                row.lease_epoch
                for row in engine.run(run_id).history()
                if row.lease_epoch is not None
            ]
            ended += max(epochs) - 1
    assert ended > 10
