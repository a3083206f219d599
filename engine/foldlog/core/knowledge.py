"""What a run knows: facts, hypotheses, open questions, observations, artifacts.

These are different types and none is stored as another: a fact has evidence or an authoritative
author, a hypothesis a confidence and a falsifier, an observation a subject, a version and a time.

Invariants:
- An id once used in a collection is never used again.
- Of two observations of a subject the same one stands whatever order they came in.
"""

from typing import Any

from foldlog.core.context import Context, Event, Refusal, invalid
from foldlog.core.state import Draft, RunState
from foldlog.core.values import format_instant, parse_instant

AUTHORITATIVE = ("user", "operator")
"""Author kinds whose fact needs no evidence."""


def _missing(draft: Draft, kind: str, id: str, field: str) -> Refusal | None:
    return None if draft.get(kind, id) is not None else invalid(f"no {kind} {id!r}", field)


def _taken(draft: Draft, kind: str, id: str, field: str) -> Refusal | None:
    return invalid(f"{kind} id {id!r} was used before", field) if draft.used(kind, id) else None


# Facts


def check_fact(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``FactConfirmed``: evidence or authority, a new id, what it replaces is there."""
    fact = event["fact"]
    if "evidence" not in fact and ctx.author.kind not in AUTHORITATIVE:
        message = f"a fact of author kind {ctx.author.kind} needs evidence"
        return Refusal("EVIDENCE_REQUIRED", message, field="fact.evidence")
    if (refusal := _taken(draft, "fact", fact["id"], "fact.id")) is not None:
        return refusal
    if "replaces_hypothesis_id" in event:
        id = event["replaces_hypothesis_id"]
        if (refusal := _open_hypothesis(draft, id, "replaces_hypothesis_id")) is not None:
            return refusal
    if "supersedes_fact_id" in event:
        return _missing(draft, "fact", event["supersedes_fact_id"], "supersedes_fact_id")
    return None


def confirm_fact(draft: Draft, event: Event, ctx: Context) -> None:
    """``FactConfirmed``: what it replaces or supersedes leaves the current state."""
    fact = event["fact"]
    older = event.get("supersedes_fact_id")
    if older is not None:
        draft.remove("fact", older)
    if "replaces_hypothesis_id" in event:
        draft.remove("hypothesis", event["replaces_hypothesis_id"])
    value = {
        "id": fact["id"],
        "statement": fact["statement"],
        "evidence": fact.get("evidence"),
        "scope": fact.get("scope", []),
        "observed_at": fact.get("observed_at", format_instant(ctx.log_time)),
        "supersedes": older,
    }
    draft.put("fact", fact["id"], value)


def check_retraction(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``FactRetracted``: the fact is there."""
    return _missing(draft, "fact", event["fact_id"], "fact_id")


def retract_fact(draft: Draft, event: Event, ctx: Context) -> None:
    """``FactRetracted``: the fact leaves the state; the history keeps it."""
    draft.remove("fact", event["fact_id"])


# Hypotheses: a falsified one stays, marked by its ``falsified`` hidden part, in ``ruled_out``.


def _open_hypothesis(draft: Draft, id: str, field: str) -> Refusal | None:
    slot = draft.get("hypothesis", id)
    if slot is None:
        return invalid(f"no hypothesis {id!r}", field)
    return invalid(f"hypothesis {id!r} is ruled out", field) if slot.hidden else None


def check_hypothesis(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``HypothesisProposed``: the id is new."""
    return _taken(draft, "hypothesis", event["hypothesis"]["id"], "hypothesis.id")


def propose_hypothesis(draft: Draft, event: Event, ctx: Context) -> None:
    """``HypothesisProposed``: one more open hypothesis."""
    draft.put("hypothesis", event["hypothesis"]["id"], dict(event["hypothesis"]))


def check_named_hypothesis(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of revising and falsifying: the hypothesis is there and not ruled out."""
    return _open_hypothesis(draft, event["hypothesis_id"], "hypothesis_id")


def revise_hypothesis(draft: Draft, event: Event, ctx: Context) -> None:
    """``HypothesisRevised``: another confidence, all else as it was."""
    old = draft.value("hypothesis", event["hypothesis_id"])
    draft.put("hypothesis", event["hypothesis_id"], {**old, "confidence": event["confidence"]})


def falsify_hypothesis(draft: Draft, event: Event, ctx: Context) -> None:
    """``HypothesisFalsified``: from the hypotheses to what is ruled out."""
    old = draft.value("hypothesis", event["hypothesis_id"])
    value = {"id": old["id"], "statement": old["statement"], "evidence": event["evidence"]}
    draft.put("hypothesis", old["id"], value, hidden="falsified")


# Questions


def check_question(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``QuestionOpened``: the id is new."""
    return _taken(draft, "question", event["question"]["id"], "question.id")


def open_question(draft: Draft, event: Event, ctx: Context) -> None:
    """``QuestionOpened``: one more open question."""
    draft.put("question", event["question"]["id"], dict(event["question"]))


def check_answer(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``QuestionAnswered``: the question is open."""
    return _missing(draft, "question", event["question_id"], "question_id")


def answer_question(draft: Draft, event: Event, ctx: Context) -> None:
    """``QuestionAnswered``: the question leaves the state; the history keeps the answer."""
    draft.remove("question", event["question_id"])


# Observations


def observe(draft: Draft, event: Event, ctx: Context) -> None:
    """Keep the newer observation; its rank (hidden) decides between equal instants."""
    subject = event["subject"]
    slot = draft.get("observation", subject)
    rank = [event.get("observed_version"), ctx.batch_id, ctx.place]
    if slot is not None and _order(event["observed_at"], rank) < _order(
        slot.value["observed_at"], slot.hidden
    ):
        return
    value = {
        "subject": subject,
        "observed_version": event.get("observed_version"),
        "observed_state": event["observed_state"],
        "observed_at": event["observed_at"],
        "evidence": event.get("evidence"),
    }
    draft.put("observation", subject, value, hidden=rank)


def place_in_batch(state: RunState, subject: str) -> int:
    """Which event of its batch the observation of a subject is, from 0; it must be there."""
    slot = state.slots.get("observation", subject)
    assert slot is not None
    return int(slot.hidden[2])


def _order(observed_at: str, rank: list[Any]) -> tuple[Any, ...]:
    version, batch_id, place = rank
    return (parse_instant(observed_at), version is not None, version or "", batch_id, place)


# Artifacts


def check_artifact(draft: Draft, event: Event, ctx: Context) -> Refusal | None:
    """Step 7 of ``ArtifactAdded``: the id is new."""
    return _taken(draft, "artifact", event["artifact"]["id"], "artifact.id")


def add_artifact(draft: Draft, event: Event, ctx: Context) -> None:
    """``ArtifactAdded``: one more artifact."""
    artifact = event["artifact"]
    value = {
        "id": artifact["id"],
        "uri": artifact["uri"],
        "sha256": artifact.get("sha256"),
        "media_type": artifact.get("media_type"),
    }
    draft.put("artifact", artifact["id"], value)
