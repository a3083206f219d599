"""Users' own events: their fields, conflicts, collections, what a reducer may not do, versions.

Invariants:
- Everything goes through `Engine` and `foldlog.testing`, as a plug-in's author has them.
- What another process or build meets is in test_plugins_installed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from foldlog import client, errors
from foldlog.plugins import (
    Access,
    EventDefinition,
    Id,
    ListOf,
    Plugin,
    Record,
    Text,
    Whole,
    optional,
    required,
    rules_of,
)
from foldlog.testing import Engine, LawBroken, check_plugin
from tests.client_runs import event, fact, task
from tests.seats import holder_of

RULES = 1_000_001
Json = dict[str, Any]


def cast(access: Access, event: Any) -> None:
    """A ballot is what its voter chose last."""
    access.put(f"votes:ballot/{event['voter']}", {"choice": event["choice"]})


def withdraw(access: Access, event: Any) -> None:
    """A withdrawn ballot leaves the state."""
    access.remove(f"votes:ballot/{event['voter']}")


def is_cast(access: Access, event: Any) -> str | None:
    """Only a ballot that is there can be withdrawn."""
    there = access.get(f"votes:ballot/{event['voter']}") is not None
    return None if there else f"{event['voter']} has not voted"


def count(access: Access, event: Any) -> None:
    """The result so far, of the ballots named."""
    choices = [access.get(f"votes:ballot/{voter}") for voter in event["voters"]]
    access.put("votes:result/now", {"votes": sum(choice is not None for choice in choices)})


VOTER = ("votes:ballot/{voter}",)
CAST = EventDefinition(
    "BallotCast",
    {"voter": required(Id()), "choice": required(Text()), "notes": optional(ListOf(Text()))},
    cast,
    writes=VOTER,
    commutes=True,
)
WITHDRAWN = EventDefinition(
    "BallotWithdrawn", {"voter": required(Id())}, withdraw, is_cast, writes=VOTER
)
COUNTED = EventDefinition("Counted", {"voters": required(ListOf(Id()))}, count)
VOTES = Plugin("votes", [CAST, WITHDRAWN, COUNTED], collections=("ballot", "result"))


def ballot(voter: str, choice: str = "yes") -> Json:
    """A vote."""
    return VOTES.event("BallotCast", voter=voter, choice=choice)


def with_apply(apply: Callable[[Access, Any], None], **changes: Any) -> Plugin:
    """The plug-in with another reducer of BallotCast."""
    return dataclasses.replace(VOTES, events=[dataclasses.replace(CAST, apply=apply, **changes)])


def begun(engine: client.Engine, run_id: str = "run_1", rules: int = RULES) -> client.Run:
    """A run under the plug-in's rules."""
    run = engine.start(run_id, goal="vote", rules_version=rules)
    assert run.started is not None
    assert run.started.accepted
    return run


@pytest.fixture
def run() -> Iterator[client.Run]:
    """A run that may vote."""
    with Engine(plugins={RULES: [VOTES]}) as engine:
        yield begun(engine)


def members(run: client.Run, collection: str = "votes:ballot") -> Any:
    """A collection as the document has it."""
    state = run.state()
    assert state is not None
    return state.plugins.to_dict().get(collection)


def test_a_field_may_have_any_name() -> None:
    """A field called rules_version is the plug-in's: it chooses no rules."""
    fields = {"voter": required(Id()), "rules_version": optional(Text())}
    renamed = dataclasses.replace(CAST, fields=fields, apply=lambda access, event: None)
    event = {"type": "votes:BallotCast", "voter": "ada", "rules_version": "first draft"}
    with Engine(plugins={RULES: [dataclasses.replace(VOTES, events=[renamed])]}) as engine:
        assert begun(engine).propose(event).accepted
        assert engine.run("not there").propose(event).code == "MALFORMED"  # of other rules
        assert engine.run("run_2").propose(event).code == "MALFORMED"


# What it is for


def test_an_event_changes_its_collection(run: client.Run) -> None:
    """A member is shown with id, author and revision, and diff names it by its collection."""
    assert run.propose(ballot("ada"), author="agent:a").accepted
    author = {"kind": "agent", "id": "a"}
    assert members(run) == [{"id": "ada", "choice": "yes", "author": author, "revision": 2}]
    [change] = run.diff(1, 2) or []
    assert change.to_dict() == {
        "entity": "votes:ballot/ada", "change": "added", "before": None,
        "after": {"id": "ada", "choice": "yes"}, "revision": 2, "author": author,
    }  # fmt: skip
    assert run.history()[-1].to_dict()["events"] == [ballot("ada")]


def test_a_run_under_other_rules_knows_nothing_of_it(run: client.Run) -> None:
    """The document says {} of plug-ins, and their events are malformed, as the record says."""
    other = run.engine.start("run_2", goal="g")
    assert members(other) is None
    outcome = other.propose(ballot("ada"))
    assert (outcome.code, outcome.event_index, outcome.field) == ("MALFORMED", 0, "type")
    assert outcome.recorded


def test_a_run_may_take_the_rules_later(run: client.Run) -> None:
    """RulesActivated gives a run the plug-in's events."""
    other = run.engine.start("run_2", goal="g")
    activate = event("RulesActivated", rules_version=RULES)
    assert other.propose([activate], author="operator:o").accepted
    assert other.propose(ballot("ada")).accepted


class Silent(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError


def leave(access: Access, event: Any) -> None:
    """A reducer that would end the process."""
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        (lambda access, event: False, "quarantined"),
        (lambda access, event: ["no"], "quarantined"),
        (lambda access, event: "bad \udc80", "rejected"),
        (lambda access, event: (_ for _ in ()).throw(ValueError("bad \udc80")), "quarantined"),
        (lambda access, event: (_ for _ in ()).throw(Silent()), "quarantined"),
        (leave, "quarantined"),
    ],
    ids=["false", "a list", "no UTF-8", "an error of no UTF-8", "an error without text", "exit"],
)
def test_whatever_a_check_does_the_partition_goes_on(check: Any, outcome: str) -> None:
    """It is the plug-in's fault and the run's, and nobody else's."""
    odd = dataclasses.replace(VOTES, events=[dataclasses.replace(CAST, check=check)])
    with Engine(plugins={RULES: [odd]}) as engine:
        run = begun(engine)
        assert run.propose(ballot("ada")).outcome == outcome
        assert engine.start("run_2", goal="x").propose(fact("f")).accepted
        assert engine.verify().ok


def test_kept_events_that_the_rules_have_in_another_shape(run: client.Run) -> None:
    """Taking them is refused, and quarantines nobody: the conflict can be settled otherwise."""
    fields = {**CAST.fields, "place": required(Text())}
    stricter = dataclasses.replace(VOTES, events=[dataclasses.replace(CAST, fields=fields)])
    with Engine(plugins={RULES: [VOTES], RULES + 1: [stricter]}) as engine:
        run = begun(engine)
        assert run.propose(ballot("ada"), expected_revision=1).accepted
        kept = run.propose(
            [ballot("ada", "no"), task("t")], expected_revision=1, on_conflict="arbitrate"
        )
        assert kept.outcome == "arbitration"
        newer = event("RulesActivated", rules_version=RULES + 1)
        assert run.propose(newer, author="operator:o").accepted
        taken = run.resolve(str(kept.conflict_id), "take_proposed", reason="it was so")
        assert (taken.outcome, taken.code) == ("rejected", "INVALID_TRANSITION")
        assert run.resolve(str(kept.conflict_id), "keep_current", reason="no").accepted


def test_a_difference_tells_1_from_true() -> None:
    """Values that Python takes for equal are written differently: a difference shows them."""
    kept = with_apply(
        lambda access, event: access.put(
            f"votes:ballot/{event['voter']}", {"choice": {"one": 1, "true": True}[event["choice"]]}
        )
    )
    with Engine(plugins={RULES: [kept]}) as engine:
        run = begun(engine)
        assert run.propose(ballot("ada", "one")).accepted
        assert run.propose(ballot("ada", "true")).accepted
        changes = run.diff(2, 3)
    assert changes is not None
    assert [(each.entity, each.change) for each in changes] == [("votes:ballot/ada", "changed")]


def test_a_batch_may_mix_its_events_with_others(run: client.Run) -> None:
    """Events of a plug-in and of foldlog's apply together, or none of them."""
    assert run.propose([fact("f"), ballot("ada")]).accepted
    withdrawn = VOTES.event("BallotWithdrawn", voter="bob")
    outcome = run.propose([ballot("eve"), withdrawn], expected_revision=2)
    assert (outcome.code, outcome.event_index) == ("INVALID_TRANSITION", 1)
    assert outcome.message == "bob has not voted"
    assert [member["id"] for member in members(run)] == ["ada"]


def test_a_member_leaves_and_comes_back(run: client.Run) -> None:
    """A removed member is gone from the document, and its id may be used again."""
    assert run.propose(ballot("ada")).accepted
    withdrawn = VOTES.event("BallotWithdrawn", voter="ada")
    assert run.propose(withdrawn, expected_revision=2).accepted
    assert members(run) == []
    assert run.propose(ballot("ada", "no")).accepted
    assert [member["choice"] for member in members(run)] == ["no"]


# Fields


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"voter": "ada"}, "choice"),
        ({"voter": "", "choice": "yes"}, "voter"),
        ({"voter": "ada", "choice": 1}, "choice"),
        ({"voter": "ada", "choice": "yes", "notes": ["a", 2]}, "notes[1]"),
        ({"voter": "ada", "choice": "yes", "weight": 1}, "weight"),
    ],
)
def test_its_fields_are_checked(run: client.Run, given: Json, field: str) -> None:
    """A wrong field is MALFORMED, named, before anything is handed in."""
    outcome = run.propose([fact("f"), {"type": "votes:BallotCast", **given}])
    assert (outcome.code, outcome.event_index, outcome.field) == ("MALFORMED", 1, field)
    assert not outcome.recorded


def test_null_is_absence(run: client.Run) -> None:
    """An optional field that is null is not there, in the history neither."""
    assert run.propose({**ballot("ada"), "notes": None}).accepted
    assert run.history()[-1].to_dict()["events"] == [ballot("ada")]


def test_an_unknown_type_is_refused_here(run: client.Run) -> None:
    """A type that no plug-in of this build brings is MALFORMED and not handed in."""
    outcome = run.propose({"type": "votes:BallotBurnt", "voter": "ada"})
    assert (outcome.code, outcome.field, outcome.recorded) == ("MALFORMED", "type", False)


def test_an_event_has_a_size(run: client.Run) -> None:
    """More than 64 KiB of fields are MALFORMED."""
    notes = ["x" * 8_000] * 9
    outcome = run.propose({**ballot("ada"), "notes": notes})
    assert (outcome.code, outcome.event_index, outcome.recorded) == ("MALFORMED", 0, False)


# Conflicts


def test_events_that_commute_need_no_expectation(run: client.Run) -> None:
    """A commuting event rebases over others on other ids, and conflicts on its own."""
    assert run.propose(ballot("ada")).accepted
    outcome = run.propose(ballot("bob"), expected_revision=1)
    assert (outcome.outcome, outcome.rebased) == ("accepted", True)
    outcome = run.propose(ballot("ada", "no"), expected_revision=1)
    assert outcome.code == "CONFLICT"
    assert [conflict.entity for conflict in outcome.conflicts] == ["votes:ballot/ada"]
    assert run.propose(fact("f"), expected_revision=1).rebased


def test_others_need_one(run: client.Run) -> None:
    """An event that does not commute has to say what it was decided on."""
    outcome = run.propose(VOTES.event("BallotWithdrawn", voter="ada"))
    assert outcome.code == "EXPECTATION_REQUIRED"


@pytest.mark.parametrize("change", ["ballot", "fact", "task", "phase"])
def test_an_undeclared_event_conflicts_with_everything(run: client.Run, change: str) -> None:
    """An event type that does not say what it touches conflicts with whatever has changed."""
    changes = {
        "ballot": (ballot("ada"), "votes:ballot/ada"),
        "fact": (fact("f"), "fact/f"),
        "task": (task("t"), "task/t"),
        "phase": (event("PhaseChanged", phase="p"), "phase"),
    }
    changed, name = changes[change]
    assert run.propose(changed, expected_revision=1).accepted
    outcome = run.propose(VOTES.event("Counted", voters=["ada"]), expected_revision=1)
    assert outcome.code == "CONFLICT"
    assert name in [conflict.entity for conflict in outcome.conflicts]
    assert run.propose(VOTES.event("Counted", voters=["ada"]), expected_revision=2).accepted
    counted = int(change == "ballot")
    assert [member["votes"] for member in members(run, "votes:result")] == [counted]


def test_reads_may_name_its_entities(run: client.Run) -> None:
    """A member stands in `reads` like any entity."""
    assert run.propose(ballot("ada")).accepted
    options: Json = {"reads": ["votes:ballot/ada"], "expected_revision": 1}
    assert run.propose(fact("f"), **options).code == "CONFLICT"
    assert run.propose(fact("f"), **{**options, "expected_revision": 2}).accepted


def test_a_conflict_keeps_its_events(run: client.Run) -> None:
    """Arbitration keeps a plug-in's events, and taking them applies them."""
    assert run.propose(ballot("ada")).accepted
    outcome = run.propose(ballot("ada", "no"), expected_revision=1, on_conflict="arbitrate")
    assert outcome.outcome == "arbitration"
    settled = event(
        "ConflictResolved", conflict_id=outcome.conflict_id, resolution="take_proposed", reason="r"
    )
    assert run.propose(settled, author="user:ada").accepted
    assert [member["choice"] for member in members(run)] == ["no"]


def test_kept_events_that_the_rules_no_longer_have(run: client.Run) -> None:
    """Events that a conflict kept cannot be taken once the run's rules do not know them."""
    assert run.propose(ballot("ada")).accepted
    outcome = run.propose(ballot("ada", "no"), expected_revision=1, on_conflict="arbitrate")
    back = event("RulesActivated", rules_version=1)
    assert run.propose(back, author="operator:o").accepted
    settled = event(
        "ConflictResolved", conflict_id=outcome.conflict_id, resolution="take_proposed", reason="r"
    )
    assert run.propose(settled, author="user:ada").code == "INVALID_TRANSITION"
    assert [member["choice"] for member in members(run)] == ["yes"]


# What a reducer may not do


counter = itertools.count()


@pytest.mark.parametrize(
    ("apply", "says"),
    [
        (lambda access, event: access.put("votes:ballot/x", {}), "does not declare"),
        (lambda access, event: access.put("task/t", {}), "in none of its collections"),
        (lambda access, event: access.remove("goal"), "in none of its collections"),
        (lambda access, event: access.get("task/t"), "does not declare"),
        (lambda access, event: access.put("votes:ballot/ada", {"p": 0.5}), "fraction"),
        (lambda access, event: access.put("votes:ballot/ada", {"p": {1}}), "no JSON value"),
        (lambda access, event: access.put("votes:ballot/ada", {"id": "x"}), "without"),
        (lambda access, event: access.put("votes:ballot/ada", ["x"]), "an object"),
        (lambda access, event: access.put("votes:ballot/ada", {"p": "x" * 70_000}), "bytes"),
        (lambda access, event: access.put("votes:ballot/ada", {"n": next(counter)}), "not pure"),
        (lambda access, event: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_reducer_that_does_what_it_must_not(
    apply: Callable[[Access, Any], None], says: str
) -> None:
    """It quarantines the run whose event it was, and says why; others go on."""
    with Engine(plugins={RULES: [with_apply(apply)], RULES + 1: [VOTES]}) as engine:
        run, other = begun(engine), begun(engine, "run_2", RULES + 1)
        outcome = run.propose(ballot("ada"))
        assert outcome.outcome == "quarantined"
        assert says in (outcome.message or "")
        assert members(run) is None
        assert other.propose(ballot("ada")).accepted
        assert engine.verify(redecide=False).ok


def test_what_a_reducer_is_given_is_its_own() -> None:
    """Changing the event or a value that was read changes nothing of the state."""

    def spoil(access: Access, event: Any) -> None:
        seen = access.get("votes:ballot/ada")
        event["choice"] = "spoilt"
        if seen is None:
            access.put("votes:ballot/ada", {"list": []})
        else:
            seen["list"].append("spoilt")

    with Engine(plugins={RULES: [with_apply(spoil)]}) as engine:
        run = begun(engine)
        for _ in range(2):
            assert run.propose(ballot("ada")).accepted
        assert [member["list"] for member in members(run)] == [[]]
        assert run.history()[-1].to_dict()["events"] == [ballot("ada")]
        assert engine.verify(redecide=True).ok


# Proof


def test_it_is_proven_like_all_else(run: client.Run) -> None:
    """Past states, replay, decisions made again and the chain agree with a plug-in's events."""
    seen = []
    for number, voter in enumerate(["ada", "bob", "ada"]):
        assert run.propose(ballot(voter, str(number))).accepted
        seen.append(members(run))
    assert run.propose(VOTES.event("Counted", voters=["ada", "eve"]), expected_revision=4).accepted
    for number, expected in enumerate(seen):
        then = run.at(2 + number)
        assert then is not None
        assert then.to_dict()["plugins"]["votes:ballot"] == expected
    assert run.engine.verify(redecide=True).ok
    replayed = run.engine.replay()
    assert replayed is not None
    assert replayed.digest == run.engine.digest()


def test_a_changed_reducer_is_found() -> None:
    """Folding with a reducer that does something else is found at the revision it changes."""
    log = Engine(plugins={RULES: [VOTES]})
    run = begun(log)
    assert run.propose(ballot("ada")).accepted
    other = with_apply(lambda access, event: access.put("votes:ballot/ada", {"choice": "x"}))
    holder_of(log).rules = rules_of({RULES: [other]})  # what another build would have
    report = log.verify("run_1")
    assert not report.ok
    difference = report.first_difference
    assert difference is not None
    assert (difference.sequence, difference.what) == (2, "state hash")
    log.close()


# Versions


def upgraded(collection: str, value: Json) -> Json:
    """Version 2 of a ballot has a list of choices."""
    return {"choices": [value["choice"]]} if collection == "ballot" else value


def add(access: Access, event: Any) -> None:
    """Version 2 adds a choice."""
    name = f"votes:ballot/{event['voter']}"
    choices = (access.get(name) or {"choices": []})["choices"]
    access.put(name, {"choices": [*choices, event["choice"]]})


def test_a_new_version_reads_old_values() -> None:
    """Under the next rules a value of the old form is upgraded where an event reads it; the past
    stays as it was."""
    newer = dataclasses.replace(with_apply(add), version=2, upgrades={1: upgraded})
    with Engine(plugins={RULES: [VOTES], RULES + 1: [newer]}) as engine:
        run = begun(engine)
        for voter in ("ada", "bob"):
            assert run.propose(ballot(voter)).accepted
        activate = event("RulesActivated", rules_version=RULES + 1)
        assert run.propose(activate, author="operator:o").accepted
        for _ in range(2):
            assert run.propose(ballot("ada", "no")).accepted
        ada, bob = members(run)
        assert (ada["choices"], bob["choice"]) == (["yes", "no", "no"], "yes")
        past = run.at(3)
        assert past is not None
        assert [m["choice"] for m in past.to_dict()["plugins"]["votes:ballot"]] == ["yes", "yes"]
        assert engine.verify(redecide=True).ok


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: dataclasses.replace(VOTES, name="Votes"), "a name like"),
        (lambda: dataclasses.replace(VOTES, collections=("Ballot",)), "a name like"),
        (lambda: dataclasses.replace(VOTES, version=3, upgrades={1: upgraded}), "one for each"),
        (lambda: with_apply(cast, name="ballot_cast"), "a name like"),
        (lambda: with_apply(cast, fields={"type": required(Id())}), "other names"),
        (lambda: with_apply(cast, writes=("task/{voter}",)), "one of"),
        (lambda: with_apply(cast, writes=None), "to say what it writes"),
    ],
)
def test_a_plugin_that_makes_no_sense(make: Callable[[], Plugin], says: str) -> None:
    """A wrong definition is a ValueError where it is written down."""
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("plugins", [{1: [VOTES]}, {999_999: [VOTES]}, {RULES: [VOTES, VOTES]}])
def test_rules_that_make_no_sense(plugins: Any) -> None:
    """A number of foldlog's own, or one plug-in twice, is Usage."""
    with pytest.raises(errors.Usage, match="plug-ins: rules"):
        Engine(plugins=plugins)


# The laws, for authors


STORY = [
    task("t"),
    ballot("ada"),
    ballot("bob", "no"),
    VOTES.event("BallotWithdrawn", voter="ada"),
    VOTES.event("BallotWithdrawn", voter="eve"),
    VOTES.event("Counted", voters=["ada", "bob"]),
]


def test_a_plugin_that_keeps_the_laws() -> None:
    """A story in which every type is accepted passes."""
    check_plugin(VOTES, STORY)


def test_each_type_must_be_in_the_story() -> None:
    """A type that is never accepted has not been tried."""
    with pytest.raises(LawBroken, match="votes:Counted"):
        check_plugin(VOTES, STORY[:-1])


def test_a_plus_that_does_not_commute_is_found() -> None:
    """Two events on different ids whose order shows do not commute."""

    def follow(access: Access, event: Any) -> None:
        leader = access.get("votes:ballot/ada")
        access.put(f"votes:ballot/{event['voter']}", {"after": leader is not None})

    plugin = with_apply(follow, reads=("votes:ballot/ada",))
    with pytest.raises(LawBroken, match="do not commute"):
        check_plugin(plugin, [ballot("ada"), ballot("bob")])


def test_a_reducer_that_raises_breaks_a_law() -> None:
    """What would quarantine a run is told with the event."""
    with pytest.raises(LawBroken, match=r"'voter': 'ada'.*ZeroDivisionError"):
        check_plugin(with_apply(lambda access, event: 1 // 0), [ballot("ada")])  # type: ignore[arg-type]


def test_shapes_may_hold_records() -> None:
    """Fields of objects are checked inside, and named by their path."""
    fields = {"voter": required(Id()), "at": required(Record({"line": required(Whole())}))}
    plugin = with_apply(lambda access, event: None, fields=fields)
    with Engine(plugins={RULES: [plugin]}) as engine:
        run = begun(engine)
        given = {"type": "votes:BallotCast", "voter": "ada"}
        assert run.propose({**given, "at": {"line": 3}}).accepted
        assert run.propose({**given, "at": {"line": -3}}).field == "at.line"
