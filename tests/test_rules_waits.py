"""The contract's sentences on waits, their signals, and their deadlines."""

from __future__ import annotations

from typing import Any

import pytest

from foldlog.core.document import transitions
from tests.core_model import AGENT, OTHER_AGENT, SYSTEM, USER, Story, ev, fact, transition


def wait(key: str = "k", kind: str = "user", **fields: Any) -> dict[str, Any]:
    """The event that begins a wait."""
    return ev("WaitStarted", kind=kind, key=key, reason=fields.pop("reason", "why"), **fields)


def signal(id: str, key: str = "k", **fields: Any) -> dict[str, Any]:
    """The event that brings a signal."""
    return {"type": "SignalReceived", "key": key, "signal_id": id, **fields}


def retrying(**start: Any) -> Story:
    """A run in retry."""
    story = Story("running", **start)
    story.ok(ev("ToolStarted", step_id="s0"))
    story.ok(ev("ToolFailed", step_id="s0", error="e", recoverable=True))
    return story


@pytest.mark.parametrize("status", ["planning", "running", "retry"])
def test_a_wait_begins_in_three_statuses_and_names_where_it_came_from(status: str) -> None:
    """From planning, running or retry; the document says kind, key, reason, deadline, since."""
    story = retrying() if status == "retry" else Story(status)
    story.wait(3)
    deadline = "2026-01-01T10:00:00+02:00"
    story.ok(wait(kind="approval", reason="may it?", deadline=deadline))
    assert story.doc["waiting"] == {
        "kind": "approval",
        "key": "k",
        "reason": "may it?",
        "deadline": deadline,
        "since": story.time,
        "from": status,
    }
    assert story.doc["last_transition"]["reason"] == "may it?"
    assert story.doc["status"] == "waiting"


def test_a_wait_does_not_begin_elsewhere() -> None:
    """Not from start, and one wait at a time."""
    Story("start").no("INVALID_TRANSITION", wait())
    story = Story("running")
    story.ok(wait())
    story.no("INVALID_TRANSITION", wait("other"))
    Story("running").no("INVALID_TRANSITION", wait("a"), wait("b"))


@pytest.mark.parametrize("status", ["planning", "running", "retry"])
def test_a_signal_takes_the_run_back_to_where_it_was(status: str) -> None:
    """A signal ends the open wait of its key; a return to retry does not count."""
    story = retrying() if status == "retry" else Story(status)
    count = story.doc["retry_count"]
    story.ok(wait())
    story.ok(signal("s1", payload={"a": 1}), author=AGENT)
    doc = story.doc
    assert (doc["status"], doc["waiting"], doc["signals"]) == (status, None, [])
    assert doc["retry_count"] == count
    assert doc["last_transition"]["reason"] == "SignalReceived"
    assert doc["last_signal"] == {
        "key": "k",
        "signal_id": "s1",
        "payload": {"a": 1},
        "author": AGENT,
        "revision": story.revision,
    }


def test_a_signal_of_another_key_is_kept() -> None:
    """A signal that ends no wait is kept; absent payload shows as null."""
    story = Story("running")
    story.ok(wait())
    story.ok(signal("s1", key="other"), expected_revision=None)
    assert story.doc["status"] == "waiting"
    assert story.doc["signals"] == [
        {"key": "other", "signal_id": "s1", "payload": None, "author": USER}
        | {"revision": story.revision}
    ]
    assert story.doc["last_signal"] is None


def test_a_kept_signal_satisfies_a_later_wait_in_one_revision() -> None:
    """The wait makes two transitions in one revision, the second with reason SignalReceived."""
    story = Story("running")
    story.ok(signal("s1", payload=7), author=AGENT)
    brought = story.revision
    story.ok(wait(reason="may it?"))
    moves = list(transitions(story.state))[-2:]
    assert [(m["from"], m["to"], m["reason"]) for m in moves] == [
        ("running", "waiting", "may it?"),
        ("waiting", "running", "SignalReceived"),
    ]
    assert {m["revision"] for m in moves} == {story.revision}
    assert (story.doc["waiting"], story.doc["signals"]) == (None, [])
    last = story.doc["last_signal"]
    assert (last["signal_id"], last["author"], last["revision"]) == ("s1", AGENT, brought)


def test_of_several_kept_signals_the_oldest_is_used() -> None:
    """Oldest by arrival, not by id; `signals` shows the oldest first."""
    story = Story("running")
    story.ok(signal("z"), signal("a"))
    story.ok(signal("m"), signal("o", key="other"))
    assert [s["signal_id"] for s in story.doc["signals"]] == ["z", "a", "m", "o"]
    story.ok(wait())
    assert story.doc["last_signal"]["signal_id"] == "z"
    assert [s["signal_id"] for s in story.doc["signals"]] == ["a", "m", "o"]
    story.ok(wait())
    assert story.doc["last_signal"]["signal_id"] == "a"


def test_a_signal_that_ends_a_wait_stamps_status_wait_and_itself() -> None:
    """A signal that ends an open wait stamps `status`, `wait` and the signal."""
    story = Story("running")
    story.ok(wait())
    before = story.revision
    story.ok(signal("s1"))
    late = {"events": [fact("f")], "expected_revision": before}
    story.conflict("signal/s1", "status", "wait", reads=["status", "wait", "signal/s1"], **late)


def test_a_kept_signal_that_ends_a_wait_just_begun_stamps_them_too() -> None:
    """A wait that a kept signal ends at once stamps `status`, `wait` and the signal."""
    story = Story("running")
    story.ok(signal("s1"))
    before = story.revision
    story.ok(wait())
    late = {"events": [fact("f")], "expected_revision": before}
    story.conflict("signal/s1", "status", "wait", reads=["status", "wait", "signal/s1"], **late)


def test_a_kept_signal_stamps_only_itself() -> None:
    """A signal that is kept leaves `status` and `wait` as they were."""
    story = Story("running")
    story.ok(signal("s1"))
    before = story.revision - 1
    late = {"events": [fact("f")], "expected_revision": before}
    story.conflict("signal/s1", reads=["status", "wait", "signal/s1"], **late)


# Repeated signals


def test_a_repeated_signal_is_an_empty_change_whatever_it_says() -> None:
    """Accepted as an empty change, whatever key, payload or expectation."""
    story = Story("running")
    story.ok(signal("s1", payload=1))
    before = story.doc
    story.ok(wait("other"))
    for expected, rebased in ((None, False), (0, True), (99, False)):
        decision = story.ok(signal("s1", key="other", payload=2), expected_revision=expected)
        assert decision.rebased is rebased
        assert decision.draft is not None
        assert decision.draft.changes == {}
    assert story.doc["signals"] == before["signals"]
    assert story.doc["waiting"]["key"] == "other"


def test_a_used_signal_stays_used() -> None:
    """A signal that ended a wait is repeated as well as a kept one."""
    story = Story("running")
    story.ok(wait())
    story.ok(signal("s1"))
    story.ok(wait())
    story.ok(signal("s1"))
    assert story.doc["status"] == "waiting"


def test_repeated_signals_are_exempt_of_superseding() -> None:
    """A repeated signal below control_revision is an empty change too."""
    story = Story("running")
    story.ok(signal("s1"))
    story.ok(ev("GoalChanged", goal={"statement": "g"}))
    story.ok(signal("s1"), expected_revision=1)
    story.no("SUPERSEDED", signal("s2"), expected_revision=1)


def test_repeated_signals_reads_are_checked_for_shape_only() -> None:
    """`reads` of a batch of repeated signals only neither needs an expectation nor conflicts."""
    story = Story("running")
    story.ok(signal("s1"))
    story.ok(signal("s1"), expected_revision=None, reads=["status"])
    story.ok(signal("s1"), expected_revision=0, reads=["status"])


def test_a_repeated_signal_beside_other_events_adds_no_conflict() -> None:
    """Beside other events repeated signals add no conflict."""
    story = Story("running")
    before = story.revision
    story.ok(signal("s1"))
    story.ok(signal("s1", key="x"), fact("f"), expected_revision=before)
    assert story.find("confirmed_facts", "f") is not None


def test_a_repeated_signal_after_finish_is_run_finished() -> None:
    """After finish a repeated signal is RUN_FINISHED like a new one."""
    story = Story("running")
    story.ok(signal("s1"))
    story.ok(ev("RunFinished", result="failed"))
    story.no("RUN_FINISHED", signal("s1"))
    story.no("RUN_FINISHED", signal("s2"))


def test_a_signal_given_twice_in_a_batch_counts_once() -> None:
    """The second of two equal signals in one batch changes nothing."""
    story = Story("running")
    story.ok(signal("s1"), signal("s1"))
    assert len(story.doc["signals"]) == 1


# Signals, leases, limits


def test_signals_alone_need_no_lease() -> None:
    """A batch of SignalReceived only is exempt from step 4, whatever epoch it carries."""
    story = Story("running")
    story.ok(ev("LeaseAcquired", worker="worker-1", ttl_seconds=60))
    story.ok(signal("s1"), author=OTHER_AGENT)
    story.ok(signal("s2"), signal("s3"), author=OTHER_AGENT, lease_epoch=99)
    story.no("LEASE_HELD", signal("s4"), fact("f"), author=OTHER_AGENT)
    story.no("FENCED", signal("s4"), fact("f"), author=OTHER_AGENT, lease_epoch=99)


def test_a_signal_may_be_stale() -> None:
    """A signal with an old expectation is accepted, rebased."""
    story = Story("running")
    story.ok(fact("f"))
    assert story.ok(signal("s1"), expected_revision=1).rebased is True


def test_the_1001st_kept_signal_is_too_many() -> None:
    """The 1,001st kept signal is LIMIT_EXCEEDED; one that is repeated or used at once is not."""
    story = Story("running")
    for hundred in range(10):
        story.ok(*[signal(f"s{hundred}_{n}") for n in range(100)])
    assert story.no("LIMIT_EXCEEDED", signal("more")).event_index == 0
    story.ok(signal("s0_0"))
    story.ok(signal("s0_0"), fact("f"))
    story.ok(wait("other"))
    story.ok(signal("now", key="other"))
    story.ok(wait("k"))
    story.ok(signal("more"))
    story.no("LIMIT_EXCEEDED", signal("again"))


# Time-outs


def test_a_wait_times_out_at_its_deadline_by_log_time() -> None:
    """Valid once log time >= the open wait's deadline; needs no expectation."""
    story = Story("running")
    story.ok(wait(deadline=story.later(10)))
    timed_out = ev("WaitTimedOut", key="k")
    story.wait(9.999999)
    story.no("INVALID_TRANSITION", timed_out, author=SYSTEM, expected_revision=None)
    story.wait(0.000001)
    story.ok(timed_out, author=SYSTEM, expected_revision=None)
    assert (story.doc["status"], story.doc["retry_count"]) == ("retry", 1)
    assert story.doc["last_transition"]["reason"] == "WaitTimedOut"
    assert story.doc["waiting"] is None


@pytest.mark.parametrize("status", ["planning", "running", "retry"])
def test_a_timer_that_rings_goes_back(status: str) -> None:
    """kind timer: back to where it was, uncounted; others: to retry, and counts."""
    story = retrying() if status == "retry" else Story(status)
    count = story.doc["retry_count"]
    story.ok(wait(kind="timer", deadline=story.time))
    story.ok(ev("WaitTimedOut", key="k"), author=SYSTEM)
    assert (story.doc["status"], story.doc["retry_count"]) == (status, count)


def test_a_time_out_of_a_wait_from_retry_counts() -> None:
    """Any entry into retry adds 1: the time-out of an approval that began in retry as well."""
    story = retrying()
    story.ok(wait(deadline=story.time))
    story.ok(ev("WaitTimedOut", key="k"), author=SYSTEM)
    assert (story.doc["status"], story.doc["retry_count"]) == ("retry", 2)


def test_a_time_out_needs_the_open_wait_of_its_key_and_a_deadline() -> None:
    """Without an open wait, with another key, or without a deadline: INVALID_TRANSITION."""
    story = Story("running")
    story.no("INVALID_TRANSITION", ev("WaitTimedOut", key="k"), author=SYSTEM)
    story.ok(wait())
    story.no("INVALID_TRANSITION", ev("WaitTimedOut", key="k"), author=SYSTEM)
    story.ok(transition("planning"))
    story.ok(wait(deadline=story.time))
    story.no("INVALID_TRANSITION", ev("WaitTimedOut", key="x"), author=SYSTEM)


def test_a_signal_before_the_time_out_wins_even_after_the_deadline() -> None:
    """A signal logged before the time-out ends the wait, after the deadline too."""
    story = Story("running")
    story.ok(wait(deadline=story.later(10)))
    story.wait(60)
    story.ok(signal("s1"))
    story.no("INVALID_TRANSITION", ev("WaitTimedOut", key="k"), author=SYSTEM)
    assert story.doc["status"] == "running"


def test_deadlines_are_compared_as_instants() -> None:
    """A deadline with an offset and nine digits is compared to the nanosecond."""
    story = Story("running")
    story.ok(wait(deadline="2026-01-01T01:00:00.000000001+01:00"))
    story.no("INVALID_TRANSITION", ev("WaitTimedOut", key="k"), author=SYSTEM)
    story.wait(0.000001)
    story.ok(ev("WaitTimedOut", key="k"), author=SYSTEM)
