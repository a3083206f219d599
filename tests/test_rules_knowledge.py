"""The contract's sentences on facts, hypotheses, questions, observations and artifacts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core_model import AGENT, USER, Story, ev, fact, observed, task


def hypothesis(id: str, **fields: Any) -> dict[str, Any]:
    """The event that proposes a hypothesis."""
    inner = {"id": id, "statement": id, "confidence": "0.5", "falsifier": "try", **fields}
    return ev("HypothesisProposed", hypothesis=inner)


def question(id: str) -> dict[str, Any]:
    """The event that opens a question."""
    return ev("QuestionOpened", question={"id": id, "text": id})


def artifact(id: str, **fields: Any) -> dict[str, Any]:
    """The event that adds an artifact."""
    return ev("ArtifactAdded", artifact={"id": id, "uri": "artifact:1", **fields})


# Facts


@pytest.mark.parametrize("kind", ["agent", "user", "tool", "operator", "system"])
def test_a_fact_without_evidence_is_for_users_and_operators(kind: str) -> None:
    """No evidence only from user and operator: EVIDENCE_REQUIRED."""
    story, author = Story(), {"kind": kind, "id": "x"}
    if kind in ("user", "operator"):
        story.ok(fact("f", evidence=None), author=author)
    else:
        decision = story.no("EVIDENCE_REQUIRED", fact("f", evidence=None), author=author)
        assert (decision.event_index, decision.field) == (0, "fact.evidence")
    story.ok(fact("g"), author=author)


def test_a_fact_is_shown_as_confirmed() -> None:
    """observed_at absent = log time, as foldlog writes it; given, as it was written."""
    story = Story().wait(1.5)
    story.ok(fact("b"), author=AGENT)
    given = "2026-08-11T16:22:10.5+08:00"
    story.ok(fact("a", fact_observed_at=given, fact_scope=["z", "a"]))
    first, second = story.doc["confirmed_facts"]
    assert second == {
        "id": "b",
        "statement": "b",
        "evidence": "test:1",
        "scope": [],
        "observed_at": "2026-01-01T00:00:01.500000Z",
        "supersedes": None,
        "author": AGENT,
        "revision": 2,
    }
    assert (first["observed_at"], first["scope"]) == (given, ["z", "a"])


def test_a_fact_takes_the_place_of_a_hypothesis_and_an_older_fact() -> None:
    """The hypothesis or older fact leaves the current state; the ids stay used."""
    story = Story()
    story.ok(fact("old"), hypothesis("h"))
    story.ok(fact("new", supersedes_fact_id="old", replaces_hypothesis_id="h"))
    assert [f["id"] for f in story.doc["confirmed_facts"]] == ["new"]
    assert story.doc["confirmed_facts"][0]["supersedes"] == "old"
    assert (story.doc["hypotheses"], story.doc["ruled_out"]) == ([], [])
    story.no("INVALID_TRANSITION", fact("old"))
    story.no("INVALID_TRANSITION", hypothesis("h"))
    story.no("INVALID_TRANSITION", fact("n2", supersedes_fact_id="old"))
    story.no("INVALID_TRANSITION", fact("n2", replaces_hypothesis_id="h"))


def test_a_superseding_fact_is_not_plus_and_writes_both() -> None:
    """With replaces or supersedes a fact needs an expectation and compares what it replaces."""
    story = Story()
    story.ok(fact("old"), hypothesis("h"))
    before = story.revision
    new = fact("n", supersedes_fact_id="old")
    story.no("EXPECTATION_REQUIRED", new, expected_revision=None)
    instead = fact("n", replaces_hypothesis_id="h")
    story.no("EXPECTATION_REQUIRED", instead, expected_revision=None)
    story.ok(ev("HypothesisRevised", hypothesis_id="h", confidence="0.7"))
    story.conflict("hypothesis/h", events=[instead], expected_revision=before)
    story.ok(ev("FactRetracted", fact_id="old"))
    story.conflict("fact/old", events=[new], expected_revision=before)


def test_a_retracted_fact_leaves_the_state() -> None:
    """FactRetracted: leaves the state; its id stays used; a second time it is not there."""
    story = Story()
    story.ok(fact("f"))
    story.ok(ev("FactRetracted", fact_id="f"))
    assert story.doc["confirmed_facts"] == []
    story.no("INVALID_TRANSITION", ev("FactRetracted", fact_id="f"))
    story.no("INVALID_TRANSITION", fact("f"))


# Hypotheses


def test_a_hypothesis_shows_its_confidence_as_a_string() -> None:
    """A number shows as its shortest decimal without exponent, a string as given."""
    story = Story()
    story.ok(
        hypothesis("a", confidence=1.0),
        hypothesis("b", confidence="0.660"),
        hypothesis("c", confidence=1e-7),
        hypothesis("d", confidence=0),
    )
    shown = {h["id"]: h["confidence"] for h in story.doc["hypotheses"]}
    assert shown == {"a": "1", "b": "0.660", "c": "0.0000001", "d": "0"}


def test_a_revised_hypothesis_keeps_all_but_its_confidence() -> None:
    """HypothesisRevised changes the confidence and the stamp."""
    story = Story()
    story.ok(hypothesis("h"))
    story.ok(ev("HypothesisRevised", hypothesis_id="h", confidence=0.75), author=AGENT)
    assert story.doc["hypotheses"] == [
        {
            "id": "h",
            "statement": "h",
            "confidence": "0.75",
            "falsifier": "try",
            "author": AGENT,
            "revision": 3,
        }
    ]


def test_a_falsified_hypothesis_moves_to_ruled_out() -> None:
    """ruled_out: {id, statement, evidence, ...}; it is not revised, falsified or proposed again."""
    story = Story()
    story.ok(hypothesis("h"))
    story.ok(ev("HypothesisFalsified", hypothesis_id="h", evidence="test:4"))
    assert story.doc["hypotheses"] == []
    assert story.doc["ruled_out"] == [
        {"id": "h", "statement": "h", "evidence": "test:4", "author": USER, "revision": 3}
    ]
    story.no("INVALID_TRANSITION", ev("HypothesisRevised", hypothesis_id="h"))
    story.no("INVALID_TRANSITION", ev("HypothesisFalsified", hypothesis_id="h"))
    story.no("INVALID_TRANSITION", hypothesis("h"))
    story.no("INVALID_TRANSITION", fact("f", replaces_hypothesis_id="h"))


# Questions


def test_an_answered_question_leaves_the_state() -> None:
    """QuestionAnswered takes the question away; its id stays used."""
    story = Story()
    story.ok(question("q"))
    assert story.doc["open_questions"] == [{"id": "q", "text": "q", "author": USER, "revision": 2}]
    story.ok(ev("QuestionAnswered", question_id="q"))
    assert story.doc["open_questions"] == []
    story.no("INVALID_TRANSITION", ev("QuestionAnswered", question_id="q"))
    story.no("INVALID_TRANSITION", question("q"))


# Observations


def seen(story: Story, subject: str = "env:x") -> tuple[Any, Any]:
    """State and version of the observation that stands."""
    found = story.find("environment_observations", subject, "subject")
    assert found is not None
    return found["observed_state"], found["observed_version"]


def test_an_observation_is_shown_by_subject() -> None:
    """Ordered by subject; absent version and evidence are null; the time is kept as written."""
    story = Story()
    at = "2026-08-11T16:22:10+08:00"
    story.ok(observed("env:z", at), observed("env:a", observed_version="v1", evidence="test:1"))
    first, second = story.doc["environment_observations"]
    assert (first["subject"], first["observed_version"], first["evidence"]) == (
        "env:a",
        "v1",
        "test:1",
    )
    assert second == {
        "subject": "env:z",
        "observed_version": None,
        "observed_state": "seen",
        "observed_at": at,
        "evidence": None,
        "author": USER,
        "revision": 2,
    }


def test_an_older_observation_never_replaces_a_newer_one() -> None:
    """Compared as instants, whatever the offset; the older one is accepted and changes nothing."""
    story = Story()
    story.ok(observed("env:x", "2026-01-01T10:00:00Z", state="new"))
    before = story.revision
    story.ok(observed("env:x", "2026-01-01T10:30:00+01:00", state="old"))
    assert seen(story)[0] == "new"
    story.ok(fact("f"), expected_revision=before, reads=["observation/env:x"])
    story.ok(observed("env:x", "2026-01-01T09:30:00-01:00", state="newer"))
    assert seen(story)[0] == "newer"


def test_observations_are_compared_to_nanoseconds() -> None:
    """A nanosecond later is newer."""
    story = Story()
    story.ok(observed("env:x", "2026-01-01T10:00:00.000000002Z", state="new"))
    story.ok(observed("env:x", "2026-01-01T10:00:00.000000001Z", state="old"))
    assert seen(story)[0] == "new"


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("less", "greater"),
    [((None, "b"), ("", "a")), (("", "b"), ("v1", "a")), (("v1", "a"), ("v2", "a"))],
)
def test_at_equal_instants_the_greater_version_stands(
    less: tuple[str | None, str], greater: tuple[str, str], later: bool
) -> None:
    """At equal instants the greater (version, batch_id, place) wins, null being the lowest."""
    story = Story()
    pair = (less, greater) if later else (greater, less)
    for version, state in pair:
        at = "2026-01-01T10:00:00Z"
        story.ok(observed("env:x", at, observed_version=version, state=state))
    assert seen(story) == (greater[1], greater[0])


@pytest.mark.parametrize("greater_first", [False, True])
def test_at_equal_versions_the_greater_batch_id_stands(greater_first: bool) -> None:
    """With equal instants and versions the batch id decides."""
    story = Story()
    ids = ["00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"]
    for id in reversed(ids) if greater_first else ids:
        story.ok(observed("env:x", state=id), batch_id=id)
    assert seen(story)[0] == ids[1]


def test_at_equal_batches_the_later_place_stands() -> None:
    """Within one batch the later of two equal observations stands."""
    story = Story()
    story.ok(observed("env:x", state="first"), observed("env:x", state="second"))
    assert seen(story)[0] == "second"


def test_what_stands_is_ranked_by_its_own_batch() -> None:
    """An equal observation with a greater batch id takes the rank, though it changes nothing."""
    story = Story()
    low, middle, high = (f"00000000-0000-4000-8000-00000000000{x}" for x in "abc")
    story.ok(observed("env:x", state="same"), batch_id=low)
    story.ok(observed("env:x", state="same"), batch_id=high)
    story.ok(observed("env:x", state="other"), batch_id=middle)
    assert seen(story)[0] == "same"


def test_an_effect_requires_the_latest_observation() -> None:
    """Each `requires` must equal the latest observation's version, else STALE_OBSERVATION."""
    story = Story("running")
    effect = {"id": "e", "kind": "k", "target": "x:1", "idempotency_key": "i"}

    def intent(version: str, subject: str = "env:x") -> dict[str, Any]:
        requires = [{"subject": subject, "observed_version": version}]
        return ev("EffectIntended", effect=effect, requires=requires)

    assert story.no("STALE_OBSERVATION", intent("v1")).event_index == 0
    story.ok(observed("env:x", "2026-01-01T10:00:00Z", observed_version="v2"))
    story.ok(observed("env:x", "2026-01-01T09:00:00Z", observed_version="v1"))
    story.no("STALE_OBSERVATION", intent("v1"))
    story.no("STALE_OBSERVATION", intent("v2", "env:y"))
    story.ok(intent("v2"))


# Artifacts, records, ids


def test_an_artifact_is_shown_as_given() -> None:
    """Absent digest and type are null; an id is used once."""
    story = Story()
    story.ok(artifact("b"), artifact("a", sha256="9a" * 32, media_type="text/plain"))
    assert [a["id"] for a in story.doc["artifacts"]] == ["a", "b"]
    assert story.doc["artifacts"][1] == {
        "id": "b",
        "uri": "artifact:1",
        "sha256": None,
        "media_type": None,
        "author": USER,
        "revision": 2,
    }
    story.no("INVALID_TRANSITION", artifact("a"))


def test_recorded_is_kept_in_the_history_only() -> None:
    """Recorded changes nothing but the revision."""
    story = Story()
    before = story.doc
    decision = story.ok(ev("Recorded", name="n", payload=[1]), expected_revision=None)
    assert decision.draft is not None
    assert decision.draft.changes == {}
    assert {k for k, v in story.doc.items() if before[k] != v} == {"revision"}


def test_ids_are_used_once_within_their_collection_only() -> None:
    """The same id may be used in several collections."""
    story = Story("running")
    story.ok(fact("x"), hypothesis("x"), question("x"), artifact("x"), task("x"))
    story.ok(ev("ToolStarted", step_id="x"), ev("CheckpointTaken", checkpoint=checkpoint("x")))
    for event in (fact("x"), hypothesis("x"), question("x"), artifact("x"), task("x")):
        story.no("INVALID_TRANSITION", event)
    story.no("INVALID_TRANSITION", ev("ToolStarted", step_id="x"))
    story.no("INVALID_TRANSITION", ev("CheckpointTaken", checkpoint=checkpoint("x")))


def checkpoint(id: str) -> dict[str, Any]:
    """A checkpoint's required fields."""
    return {"id": id, "boundary": "tasks_done"}


@pytest.mark.parametrize(
    "make", [fact, hypothesis, question, artifact, task], ids=lambda make: make.__name__
)
def test_an_id_is_used_once_within_a_batch_too(make: Any) -> None:
    """The second of two events with one id is refused, and with it the batch."""
    story = Story()
    assert story.no("INVALID_TRANSITION", make("x"), make("x")).event_index == 1


def test_plus_needs_no_expectation_and_does_not_conflict() -> None:
    """Every `+` is accepted without an expectation, and rebased with an old one."""
    story = Story("running")
    story.ok(ev("ToolStarted", step_id="s1"), ev("ToolStarted", step_id="s2"))
    plus = [
        (fact("f1"), fact("f2")),
        (hypothesis("h1"), hypothesis("h2")),
        (question("q1"), question("q2")),
        (observed("env:1"), observed("env:2")),
        (artifact("a1"), artifact("a2")),
        (task("t1"), task("t2")),
        (ev("ToolStarted", step_id="s3"), ev("ToolStarted", step_id="s4")),
        (ev("ToolSucceeded", step_id="s3"), ev("ToolSucceeded", step_id="s4")),
        (ev("SignalReceived", signal_id="i1"), ev("SignalReceived", signal_id="i2")),
        (ev("Recorded"), ev("Recorded")),
    ]
    for without, late in plus:
        assert story.ok(without, expected_revision=None).rebased is False
        early = story.revision - 1 if late["type"] == "ToolSucceeded" else 1
        decision = story.ok(late, expected_revision=early)
        assert decision.rebased is (late["type"] != "ToolSucceeded")
