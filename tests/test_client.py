"""Opening an engine, and proposing through it: CONTRACT section 5, sentence by sentence.

Reading is in test_client_reading, time and quarantine in test_client_time, codes in test_codes.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foldlog
from foldlog import client, errors, testing
from foldlog.results import Outcome, Value
from tests.client_runs import (
    AGENT,
    BATCH,
    KINDS,
    NOW,
    OTHER,
    Json,
    accepted,
    act,
    at_home,
    document,
    event,
    fact,
    opened,
    refused,
    revision,
    running,
    started,
    task,
)

OUTCOME_KEYS = {
    "outcome", "run_id", "batch_id", "revision", "rebased", "duplicate", "recorded", "partition",
    "sequence", "chain", "state_hash", "log_time", "code", "message", "event_index", "field",
    "conflicts", "conflict_id",
}  # fmt: skip


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[client.Engine]:
    """An engine of each kind in turn."""
    with opened(request.param, tmp_path) as engine:
        yield engine


# Opening


def test_only_create_makes_a_home(tmp_path: Path) -> None:
    """Without create there is HomeMissing, which says what to type, and nothing is made."""
    with pytest.raises(errors.HomeMissing) as caught:
        client.Engine.open(tmp_path / "home")
    assert (caught.value.code, caught.value.exit_code) == ("HOME_MISSING", 4)
    assert f"{tmp_path / 'home'} init" in caught.value.message
    assert not (tmp_path / "home").exists()


def test_a_home_has_four_partitions_unless_told_otherwise(tmp_path: Path) -> None:
    """The number given when a home is made is its number ever after."""
    for name, given, have in (("a", None, 4), ("b", 2, 2)):
        with client.Engine.open(tmp_path / name, create=True, partitions=given) as engine:
            assert engine.partitions == have
        with client.Engine.open(str(tmp_path / name), create=True) as engine:
            assert engine.partitions == have
        with client.Engine.open(tmp_path / name, partitions=have) as engine:
            assert engine.partitions == have


@pytest.mark.parametrize("create", [True, False])
def test_a_home_of_another_number_of_partitions_is_refused(tmp_path: Path, create: bool) -> None:
    """Whoever asks for another number is told, and the home stays as it is and can be opened."""
    client.Engine.open(tmp_path, create=True, partitions=2).close()
    with pytest.raises(errors.HomeExists, match="2 partitions"):
        client.Engine.open(tmp_path, create=create, partitions=3)
    with client.Engine.open(tmp_path) as engine:
        assert engine.partitions == 2


@pytest.mark.parametrize("partitions", [0, -1, 1025])
def test_an_impossible_number_of_partitions_makes_no_home(tmp_path: Path, partitions: int) -> None:
    """A number that no home can have is an error of use, and leaves nothing behind."""
    with pytest.raises(errors.Usage):
        client.Engine.open(tmp_path / "home", create=True, partitions=partitions)
    assert not (tmp_path / "home").exists()


def test_a_home_opened_again_has_everything(tmp_path: Path) -> None:
    """State, history and outcomes after closing and opening are those from before."""
    with at_home(tmp_path) as engine:
        run = running(engine)
        outcome = act(run, fact("f"), batch_id=BATCH)
        before = (document(run), run.history(rejected=True), run.outcome(BATCH))
    with at_home(tmp_path, create=False) as engine:
        run = engine.run("run_1")
        assert (document(run), run.history(rejected=True), run.outcome(BATCH)) == before
        assert run.propose([fact("f")], batch_id=BATCH, author=AGENT, expected_revision=3) == {
            **outcome.to_dict(),
            "duplicate": True,
        }


HOLD = """
import sys
from foldlog import Engine
engine = Engine.open(sys.argv[1], create=True, partitions=1, author="user:other")
print(engine.start("run_1", goal="hold").started.outcome, flush=True)
sys.stdin.read()
"""


def test_a_second_process_hands_in_and_reads(tmp_path: Path) -> None:
    """A home that another process holds is used beside it, and taken over once that is killed."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "home")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"accepted\n"
            with client.Engine.open(tmp_path / "home") as guest:
                assert document(guest.run("run_1"))["goal"]["statement"] == "hold"
                accepted(guest.start("run_2", goal="beside").started)
                assert document(guest.run("run_2"))["goal"]["statement"] == "beside"
        finally:
            holder.kill()
    with client.Engine.open(tmp_path / "home") as engine:
        assert {row.run_id for row in engine.runs()} == {"run_1", "run_2"}
        assert engine.verify().ok


def test_leaving_the_block_closes(tmp_path: Path) -> None:
    """The context manager closes also on an exception; closing twice is harmless."""
    engine = at_home(tmp_path)
    run = started(engine)
    with pytest.raises(KeyError), engine:
        raise KeyError
    engine.close()
    engine.close()
    uses = (run.state, run.history, engine.runs, engine.verify, engine.replay, engine.digest)
    for use in (*uses, lambda: run.propose([fact("f")]), lambda: run.propose([])):
        with pytest.raises(errors.Unavailable):
            use()
    with at_home(tmp_path) as engine:
        assert revision(engine.run("run_1")) == 1


def test_a_path_that_cannot_be_a_home_is_told(tmp_path: Path) -> None:
    """A file in the way is the system's own error or no home; a lock that fails is Unavailable."""
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            client.Engine.open(path, create=True)
        with pytest.raises(errors.HomeMissing):
            client.Engine.open(path)
    with at_home(tmp_path / "home"):
        pass
    (tmp_path / "home" / "holder.lock").unlink()
    (tmp_path / "home" / "holder.lock").mkdir()
    with pytest.raises(errors.Unavailable, match="cannot be locked"):
        at_home(tmp_path / "home")


# The author


@pytest.mark.parametrize(("user", "author"), [("ada", "ada"), ("", "unknown"), (None, "unknown")])
def test_the_default_author_is_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str | None, author: str
) -> None:
    """Without an author it is user:$USER, and user:unknown where USER is not set."""
    monkeypatch.delenv("USER", raising=False)
    if user is not None:
        monkeypatch.setenv("USER", user)
    for engine in (testing.Engine(), at_home(tmp_path)):
        with engine:
            assert document(engine.start("run_1", goal="g"))["goal"]["author"] == {
                "kind": "user",
                "id": author,
            }


def test_the_author_nearest_to_the_proposal_wins(tmp_path: Path) -> None:
    """An engine's author stands for $USER; a proposal's own author stands before it."""
    for engine in (testing.Engine(author="agent:a:b"), at_home(tmp_path, author="agent:a:b")):
        with engine:
            run = engine.start("run_1", goal="g")
            act(run, fact("f"), author=OTHER)
            authors = [row.author for row in run.history()]
            assert authors == [{"kind": "agent", "id": "a:b"}, {"kind": "agent", "id": "worker-2"}]


@pytest.mark.parametrize("author", ["worker-1", "robot:r", "agent:", ":x", ""])
def test_an_author_that_is_none_is_malformed(author: str) -> None:
    """What is wrong with an author is told by the outcome."""
    with testing.Engine() as engine:
        run = started(engine)
        outcome = refused(run.propose([fact("f")], author=author), "MALFORMED")
        assert outcome.field in ("author.kind", "author.id")


@pytest.mark.parametrize("bad", [{"author": 5}, {"events": None}, {"events": "x"}, {"reads": 5}])
def test_an_argument_of_another_type_is_malformed(bad: dict[str, Any]) -> None:
    """What Python hands in and no proposal can hold is told by the outcome, and never raised."""
    with testing.Engine() as engine:
        outcome = started(engine).propose(**{"events": [fact("f")], **bad})
        assert [refused(outcome, "MALFORMED").field] == list(bad)


# Starting


def test_start_returns_the_run_and_its_outcome(engine: client.Engine) -> None:
    """`start` gives the Run; the outcome is `run.started`, with the keys of the contract."""
    run = engine.start("run_1", goal="g", author="user:ada", retry_limit=5, labels={"a": "b"})
    assert accepted(run.started).to_dict() == {
        "outcome": "accepted",
        "run_id": "run_1",
        "batch_id": run.history()[0].batch_id,
        "revision": 1,
        "rebased": False,
        "duplicate": False,
        "recorded": True,
        "partition": 0,
        "sequence": 1,
        "chain": document(run)["chain"],
        "state_hash": run.history()[0].state_hash,
        "log_time": NOW,
        "code": None,
        "message": None,
        "event_index": None,
        "field": None,
        "conflicts": [],
        "conflict_id": None,
    }
    shown = document(run)
    assert (shown["retry_limit"], shown["labels"]) == (5, {"a": "b"})


def test_start_does_not_raise_when_it_is_refused(engine: client.Engine) -> None:
    """A run that exists, a bad field or a bad id is an outcome too."""
    started(engine)
    again = engine.start("run_1", goal="other")
    refused(again.started, "RUN_EXISTS")
    assert document(again)["goal"]["statement"] == "Fix the login failure"
    bad: list[tuple[str, Json]] = [("r", {"speed": 9}), ("r", {"retry_limit": -1}), ("../x", {})]
    for run_id, fields in bad:
        run = engine.start(run_id, goal="g", **fields)
        assert refused(run.started, "MALFORMED").recorded is False
        assert run.state() is None


def test_a_goal_is_a_statement_a_typed_one_or_a_dict(engine: client.Engine) -> None:
    """All three forms of goal, and typed parts in the other fields, are one and the same."""
    whole: Json = {"statement": "g", "scope": {"include": ["src"]}}
    goals: list[Any] = [whole, foldlog.Goal(**whole), foldlog.Goal(statement="g", scope=None)]
    shown = []
    for number, goal in enumerate(goals):
        run = engine.start(f"run_{number}", goal, budgets=foldlog.Budgets(tokens_remaining=5))
        accepted(run.started)
        shown.append((document(run)["goal"]["scope"]["include"], document(run)["budgets"]))
    budgets = {"tokens_remaining": 5, "deadline": None}
    assert shown == [(["src"], budgets), (["src"], budgets), ([], budgets)]


def test_a_handle_on_a_run_never_raises(engine: client.Engine) -> None:
    """`run(ID)` takes any id; what does not exist is None, and [] for history."""
    anything: list[Any] = ["nobody", "", "../../etc/passwd", "a/b", "x" * 200, None, 7]
    for run_id in anything:
        run = engine.run(run_id)
        assert run.started is None
        assert (run.state(), run.at(1), run.at(NOW), run.outcome(BATCH)) == (None,) * 4
        assert (run.history(), run.history(rejected=True), run.transitions()) == ([], [], [])
        assert run.diff(1, 1) is None
    run = started(engine)
    odd: list[Any] = [BATCH, "nonsense", "", None, 5]
    assert [run.outcome(batch_id) for batch_id in odd] == [None] * 5


# Proposing


def test_typed_events_and_dicts_are_the_same_proposal(engine: client.Engine) -> None:
    """A typed event, a dict, and each with inner objects of the other kind, are one content."""
    run = started(engine)
    inner = {"id": "f", "statement": "s", "evidence": "test:1"}
    forms: list[Any] = [
        [foldlog.FactConfirmed(fact=inner)],
        [foldlog.FactConfirmed(fact=foldlog.Fact(**inner))],
        [{"type": "FactConfirmed", "fact": inner}],
        [{"type": "FactConfirmed", "fact": foldlog.Fact(**inner)}],
        foldlog.FactConfirmed(fact=inner),
        ({"type": "FactConfirmed", "fact": inner, "supersedes_fact_id": None} for _ in range(1)),
    ]
    outcomes = [run.propose(form, batch_id=BATCH, author=AGENT) for form in forms]
    assert [outcome.duplicate for outcome in outcomes] == [False] + [True] * 5
    assert {(outcome.outcome, outcome.sequence) for outcome in outcomes} == {("accepted", 2)}


def test_every_option_of_a_proposal_reaches_its_record(engine: client.Engine) -> None:
    """Expectation, author, epoch, on_conflict, reads, ids, times and traces are in the history."""
    run = started(engine)
    act(run, event("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    options: dict[str, Any] = {
        "expected_revision": 2,
        "lease_epoch": 1,
        "on_conflict": "arbitrate",
        "reads": ["goal", "fact/none"],
        "batch_id": BATCH,
        "occurred_at": "2025-12-31T23:59:59+08:00",
        "correlation_id": "c1",
        "causation_id": "c2",
        "traceparent": "00-4bf92f3577b34da64bf92f3577b34da6-00f067aa0ba902b7-01",
    }
    accepted(run.propose([fact("f")], author=OTHER, **options))
    row = run.history()[-1]
    assert {name: row.to_dict()[name] for name in options} == options
    assert row.author == {"kind": "agent", "id": "worker-2"}
    assert row.to_dict()["events"] == [fact("f")]


def test_options_that_are_none_are_absent(engine: client.Engine) -> None:
    """None means absent for every option and optional field; only two defaults are filled in."""
    run = started(engine)
    names = "expected_revision lease_epoch on_conflict reads batch_id occurred_at correlation_id"
    options: dict[str, Any] = dict.fromkeys([*names.split(), "causation_id", "traceparent"])
    accepted(run.propose([fact("f", observed_at=None)], **options))
    row = run.history()[-1]
    assert (row.on_conflict, row.reads, row.expected_revision) == ("reject", [], None)
    assert row.to_dict()["events"] == [fact("f")]


MALFORMED: list[tuple[dict[str, Any], int | None, str | None]] = [
    ({"events": []}, None, "events"),
    ({"events": ["FactConfirmed"]}, 0, "type"),
    ({"events": [{"type": "FactGuessed"}]}, 0, "type"),
    ({"events": [fact("f"), fact("g", mood="good")]}, 1, "fact.mood"),
    ({"events": [fact("")]}, 0, "fact.id"),
    ({"events": [task("t", depends_on=["a", 5])]}, 0, "task.depends_on[1]"),
    ({"events": [fact("f")], "expected_revision": -1}, None, "expected_revision"),
    ({"events": [fact("f")], "expected_revision": True}, None, "expected_revision"),
    ({"events": [fact("f")], "lease_epoch": 1.0}, None, "lease_epoch"),
    ({"events": [fact("f")], "on_conflict": "ignore"}, None, "on_conflict"),
    ({"events": [fact("f")], "reads": ["facts/f"], "expected_revision": 1}, None, "reads[0]"),
    ({"events": [fact("f")], "batch_id": "7"}, None, "batch_id"),
    ({"events": [fact("f")], "occurred_at": "yesterday"}, None, "occurred_at"),
    ({"events": [fact("f")], "traceparent": "00-1-2-3"}, None, "traceparent"),
    ({"events": [fact("f"), event("RunCancelled", reason="r")]}, None, None),
    ({"events": [event("Recorded", name="n", payload=float("nan"))]}, None, None),
    ({"events": [event("Recorded", name="n", payload=2**53)]}, None, None),
    ({"events": [event("Recorded", name="n", payload="\ud800")]}, None, None),
    ({"events": [event("Recorded", name="n", payload={"x": {1, 2}})]}, 0, "payload.x"),
    ({"events": [event("Recorded", name="n", payload="x" * 65_536)]}, 0, "payload"),
    ({"events": [event("Recorded", name="n", payload="x" * 60_000)] * 5}, None, None),
    ({"events": [fact(f"f{number}") for number in range(101)]}, None, "events"),
]


@pytest.mark.parametrize(("proposal", "index", "field"), MALFORMED)
def test_what_is_malformed_is_refused_by_the_client(
    proposal: dict[str, Any], index: int | None, field: str | None
) -> None:
    """MALFORMED names event and field, has the run's revision, is not recorded, uses no id up."""
    with testing.Engine() as engine:
        run = started(engine)
        options = {"batch_id": BATCH.upper(), **proposal}
        outcome = refused(run.propose(**options), "MALFORMED")
        assert outcome.event_index == index
        if field is not None:
            assert outcome.field == field
        assert (outcome.recorded, outcome.revision, outcome.duplicate) == (False, 1, False)
        assert (outcome.sequence, outcome.log_time) == (None, None)
        assert outcome.batch_id in (BATCH, None)
        json.dumps(outcome.to_dict())
        assert set(outcome) == OUTCOME_KEYS
        assert run.outcome(BATCH) is None
        assert accepted(run.propose([fact("f")], batch_id=BATCH)).sequence == 2


def test_what_is_malformed_is_so_even_under_a_known_id() -> None:
    """A malformed batch under a known id is MALFORMED, and the id keeps its first outcome."""
    with testing.Engine() as engine:
        run = started(engine)
        first = run.propose([fact("f")], batch_id=BATCH)
        refused(run.propose([fact("")], batch_id=BATCH), "MALFORMED")
        assert run.outcome(BATCH) == first


def test_deep_and_endless_values_are_malformed() -> None:
    """Nesting beyond 64 levels is refused whatever holds it, without a RecursionError."""
    endless: dict[str, Any] = {}
    endless["again"] = endless
    deep: Any = None
    for _ in range(50_000):
        deep = [deep]
    with testing.Engine() as engine:
        run = started(engine)
        for payload in (endless, deep):
            for form in (foldlog.Recorded(name="n", payload=payload), event("Recorded", name="n")):
                if isinstance(form, dict):
                    form["payload"] = payload
                refused(run.propose([form]), "MALFORMED")


def test_the_whole_proposal_as_json(engine: client.Engine) -> None:
    """`propose_json` takes section 2's object, fills in id and author, and refuses other JSON."""
    run = started(engine)
    outcome = accepted(run.propose_json({"events": [fact("f")], "author": None, "batch_id": None}))
    assert run.outcome(outcome.batch_id) == outcome
    bad: list[Any] = [None, [], "x", 5, {}, {"events": [fact("g")], "speed": 1}]
    for value in bad:
        assert refused(run.propose_json(value), "MALFORMED").recorded is False


def test_a_proposal_again_gives_the_first_outcome(engine: client.Engine) -> None:
    """Under its batch id, in any case, the first outcome comes back whole, as a duplicate."""
    run = started(engine)
    first = run.propose([fact("f")], batch_id=BATCH.upper(), author=AGENT)
    assert first.batch_id == BATCH
    act(run, fact("g"))
    again = run.propose([fact("f")], batch_id=BATCH, author=AGENT)
    assert again == {**first.to_dict(), "duplicate": True}
    assert run.outcome(BATCH.upper()) == run.outcome(BATCH) == first
    assert revision(run) == 3


def test_a_conflict_and_its_arbitration_have_the_contracts_form(engine: client.Engine) -> None:
    """A rejection lists its conflicts; arbitration opens one under the batch id."""
    run = started(engine)
    act(run, event("PhaseChanged", phase="a"), author=OTHER)
    conflict = {
        "entity": "phase",
        "expected_revision": 1,
        "changed_at": 2,
        "changed_by": {"kind": "agent", "id": "worker-2"},
    }
    stale = [event("PhaseChanged", phase="b")]
    outcome = refused(run.propose(stale, expected_revision=1), "CONFLICT")
    shown = outcome.to_dict()
    assert (shown["conflicts"], shown["revision"], shown["conflict_id"]) == ([conflict], 2, None)
    outcome = run.propose(stale, expected_revision=1, on_conflict="arbitrate", batch_id=BATCH)
    assert (outcome.outcome, outcome.code) == ("arbitration", None)
    shown = outcome.to_dict()
    assert (shown["conflicts"], shown["revision"], shown["conflict_id"]) == ([conflict], 3, BATCH)
    [kept] = document(run)["conflicts"]
    assert (kept["id"], kept["entities"], kept["events"]) == (BATCH, ["phase"], stale)
    assert (kept["expected_revision"], kept["revision"]) == (1, 3)
    assert document(run)["phase"] == "a"


def test_a_stale_batch_that_touches_nothing_changed_is_rebased(engine: client.Engine) -> None:
    """`rebased` says that an older expectation was good enough."""
    run = started(engine)
    act(run, fact("f"))
    outcome = accepted(run.propose([event("PhaseChanged", phase="a")], expected_revision=1))
    assert (outcome.rebased, outcome.revision) == (True, 3)


def test_when_the_time_is_up_the_outcome_can_be_asked_for(engine: client.Engine) -> None:
    """OutcomeUnknown carries the batch id; the proposal stands in the log and is decided once."""
    run = started(engine)
    with pytest.raises(errors.OutcomeUnknown) as caught:
        run.propose([fact("f")], batch_id=BATCH, timeout=0, author=AGENT)
    assert (caught.value.run_id, caught.value.batch_id) == ("run_1", BATCH)
    later = run.outcome(BATCH)
    assert accepted(later).revision == 2
    again = run.propose([fact("f")], batch_id=BATCH, author=AGENT)
    assert (again.duplicate, again.sequence) == (True, accepted(later).sequence)


def test_a_client_reads_its_own_writes(engine: client.Engine) -> None:
    """After each outcome, state, list, history and outcome are at least as new as it is."""
    for name in ("run_1", "run_2"):
        run = started(engine, name)
        for number in range(20):
            outcome = accepted(run.propose([fact(f"f{number}")]))
            assert document(run)["chain"] == outcome.chain
            assert revision(run) == outcome.revision == number + 2
            assert engine.runs()[0].revision >= 1
            assert run.history()[-1].sequence == outcome.sequence
            assert run.outcome(outcome.batch_id) == outcome


# Everyday proposals


def test_signal_sends_a_payload_once_per_signal_id(engine: client.Engine) -> None:
    """A signal is kept with key, id and payload; the same id again changes nothing."""
    run = started(engine)
    accepted(run.signal("approval", payload={"ok": False}, signal_id="s1"))
    accepted(run.signal("approval", payload={"ok": True}, signal_id="s1"))
    accepted(run.signal("approval", False))
    first, second = document(run)["signals"]
    assert (first["key"], first["signal_id"], first["payload"]) == ("approval", "s1", {"ok": False})
    assert (second["payload"], second["revision"]) == (False, 4)


def test_an_empty_signal_id_is_malformed(engine: client.Engine) -> None:
    """A signal id that is empty by mistake is told, not replaced by another one."""
    outcome = refused(started(engine).signal("approval", signal_id=""), "MALFORMED")
    assert (outcome.event_index, outcome.field, outcome.recorded) == (0, "signal_id", False)


def test_a_signal_sent_again_under_its_batch_id_is_a_duplicate(engine: client.Engine) -> None:
    """A retry of a time-out needs no more than the batch id."""
    run = started(engine)
    first = accepted(run.signal("approval", batch_id=BATCH, author=AGENT))
    again = run.signal("approval", batch_id=BATCH, author=AGENT)
    assert (again.duplicate, again.sequence) == (True, first.sequence)


def test_cancel_ends_the_run(engine: client.Engine) -> None:
    """`cancel` is RunCancelled with a reason; an agent may not do it."""
    run = started(engine)
    refused(run.cancel("enough", author=AGENT), "NOT_AUTHORIZED")
    accepted(run.cancel("enough"))
    shown = document(run)
    assert (shown["status"], shown["result"]) == ("finish", "cancelled")
    assert shown["last_transition"]["reason"] == "enough"


# Values


def test_values_show_the_json_as_attributes() -> None:
    """Keys are attributes, nested ones too; lists are lists; what is not there is an error."""
    with testing.Engine() as engine:
        run = running(engine, goal={"statement": "g", "scope": {"include": ["src"]}})
        state = run.state()
        assert state is not None
        assert state.goal.scope.include == ["src"]
        assert state.goal.author.kind == "user"
        assert state.last_transition["from"] == "planning"
        assert getattr(state.last_transition, "from") == "planning"
        assert [row.outcome for row in run.history()] == ["accepted"] * 3
        assert isinstance(run.history()[0].events[0], Value)  # type: ignore[index]
        assert "goal" in state
        assert "goals" not in state
        with pytest.raises(AttributeError, match="goals"):
            _ = state.goals
        with pytest.raises(AttributeError):
            state.revision = 7
        assert (dict(state.goal.scope), len(state.labels)) == (
            {"include": ["src"], "exclude": []},
            0,
        )
        assert len({state, run.at(3), run.state()}) == 1


def test_to_dict_is_exactly_the_json() -> None:
    """`to_dict` is what json.dumps takes, equal to the value, and a copy that may be changed."""
    with testing.Engine() as engine:
        run = running(engine)
        outcome = act(run, fact("f"))
        differences = run.diff(1, 4)
        assert differences is not None
        values = [run.state(), outcome, *run.history(), *run.transitions(), *differences]
        values += [*engine.runs(), engine.verify(), engine.replay()]
        for value in values:
            assert isinstance(value, Value)
            shown = value.to_dict()
            assert json.loads(json.dumps(shown)) == shown == value
            assert set(shown) == set(value)
            assert pickle.loads(pickle.dumps(value)) == value
        state = run.state()
        assert state is not None
        changed = state.to_dict()
        changed["goal"]["scope"]["include"].append("everything")
        assert state.goal.scope.include == []


def test_an_outcome_says_whether_it_was_accepted() -> None:
    """`accepted` is a shorthand, beside the keys of the JSON and not among them."""
    with testing.Engine() as engine:
        run = started(engine)
        outcome: Outcome = run.propose([fact("f")])
        assert outcome.accepted
        assert not run.propose([fact("f")]).accepted
        assert set(outcome) == OUTCOME_KEYS


def test_every_public_name_is_there() -> None:
    """What the package documents can be imported from it, and nothing else can."""
    for name in ("Engine", "Run", "Outcome", "OutcomeUnknown", "FactConfirmed", "Goal"):
        assert getattr(foldlog, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = foldlog.NoSuchThing
