"""The contract's sentences on leases: who holds one, who is fenced, who needs none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core_model import AGENT, OTHER_AGENT, USER, Story, effect, ev, fact, transition


def acquire(worker: str = "worker-1", ttl: int = 60) -> dict[str, Any]:
    """The event that acquires the lease."""
    return ev("LeaseAcquired", worker=worker, ttl_seconds=ttl)


RENEW = ev("LeaseRenewed", ttl_seconds=60)
RELEASE = ev("LeaseReleased")


def held(**fields: Any) -> Story:
    """A running run whose lease worker-1 holds for a minute."""
    story = Story("running", **fields)
    story.ok(acquire(), author=AGENT)
    return story


def test_a_lease_is_shown_with_its_epoch_and_end() -> None:
    """{worker, epoch, expires_at}; shown also when expired; acquiring raises the epoch."""
    story = held()
    lease = {"worker": "worker-1", "epoch": 1, "expires_at": "2026-01-01T00:01:00.000000Z"}
    assert story.doc["lease"] == lease
    story.wait(600)
    assert story.doc["lease"] == lease
    story.ok(acquire("worker-2", 1), author=OTHER_AGENT)
    assert story.doc["lease"]["epoch"] == 2
    assert story.doc["lease"]["expires_at"] == "2026-01-01T00:10:01.000000Z"


def test_acquiring_ones_own_lease_raises_the_epoch_too() -> None:
    """Acquiring raises the epoch, one's own too, and needs no epoch to be given."""
    story = held()
    story.ok(acquire(), author=AGENT, expected_revision=None)
    assert story.doc["lease"]["epoch"] == 2
    story.no("FENCED", fact("f"), author=AGENT, lease_epoch=1)
    story.ok(fact("f"), author=AGENT, lease_epoch=2)


def test_a_given_epoch_must_be_the_current_one() -> None:
    """`lease_epoch` given and not the current one: FENCED, for every author and without a lease."""
    story = Story("running")
    for epoch in (0, 1):
        story.no("FENCED", fact("f"), lease_epoch=epoch)
    story.ok(acquire())
    for author in (AGENT, USER, OTHER_AGENT):
        story.no("FENCED", fact("f"), author=author, lease_epoch=2)
        decision = story.no("FENCED", fact("f"), author=author, lease_epoch=0)
        assert (decision.event_index, decision.field) == (None, "lease_epoch")
    story.ok(fact("f"), author=OTHER_AGENT, lease_epoch=1)


@pytest.mark.parametrize("kind", ["agent", "user", "tool", "operator", "system"])
def test_without_an_epoch_only_agents_are_held_off(kind: str) -> None:
    """Not given: always allowed but for an agent while a lease is live."""
    story, author = held(), {"kind": kind, "id": "x"}
    if kind == "agent":
        story.no("LEASE_HELD", fact("f"), author=author)
        story.no("LEASE_HELD", fact("f"), author=AGENT)
        story.wait(59.999999)
        story.no("LEASE_HELD", fact("f"), author=author)
        story.wait(0.000001)
    story.ok(fact("f"), author=author)


def test_an_agent_may_acquire_for_the_holder_without_an_epoch() -> None:
    """LEASE_HELD, except for a batch that only acquires the lease for the worker who holds it."""
    story = held()
    assert story.no("LEASE_HELD", acquire("worker-2"), author=OTHER_AGENT).event_index is None
    story.no("LEASE_HELD", acquire(), fact("f"), author=AGENT)
    story.no("LEASE_HELD", RENEW, author=AGENT)
    story.ok(acquire(), author=OTHER_AGENT)
    assert story.doc["lease"]["worker"] == "worker-1"


def test_another_live_lease_is_not_acquired() -> None:
    """Acquiring is refused in step 7 while another's is live, for a user as well."""
    story = held()
    assert story.no("LEASE_HELD", acquire("worker-2")).event_index == 0
    story.no("LEASE_HELD", acquire("worker-2"), author=OTHER_AGENT, lease_epoch=1)
    story.ok(RELEASE, acquire("worker-2"))
    story.wait(60)
    story.ok(acquire("worker-3"), author=AGENT)
    assert story.doc["lease"]["epoch"] == 3


def test_an_expired_lease_that_nobody_took_still_writes_and_renews() -> None:
    """Its epoch is still the current one."""
    story = held().wait(3600)
    story.ok(fact("f"), author=AGENT, lease_epoch=1)
    story.ok(RENEW, author=AGENT, lease_epoch=1)
    assert story.doc["lease"]["expires_at"] == "2026-01-01T01:01:00.000000Z"
    story.wait(60)
    story.ok(acquire("worker-2"), author=OTHER_AGENT)
    story.no("FENCED", fact("g"), author=AGENT, lease_epoch=1)


def test_anyone_past_step_4_may_renew_or_release() -> None:
    """A user, or another agent with the epoch, may renew or release the lease there is."""
    story = held().wait(30)
    story.ok(RENEW, author=OTHER_AGENT, lease_epoch=1)
    assert story.doc["lease"]["worker"] == "worker-1"
    assert story.doc["lease"]["epoch"] == 1
    story.ok(RELEASE)
    story.no("INVALID_TRANSITION", RENEW)
    story.no("INVALID_TRANSITION", RELEASE)


def test_after_a_release_every_epoch_is_fenced_and_epochs_go_on() -> None:
    """After a release `lease` is null, every given epoch is FENCED, epochs go on from the last."""
    story = held()
    story.ok(RELEASE, author=AGENT, lease_epoch=1)
    assert story.doc.get("lease") is None
    for epoch in (0, 1, 2):
        story.no("FENCED", fact("f"), lease_epoch=epoch)
    story.ok(acquire("worker-2"), author=OTHER_AGENT)
    assert story.doc["lease"]["epoch"] == 2


def test_the_end_of_a_run_fences_its_epochs() -> None:
    """Finishing releases the lease; a report with the old epoch is accepted all the same."""
    story = held()
    story.ok(effect("e"), author=AGENT, lease_epoch=1)
    story.ok(ev("RunCancelled", reason="r"))
    assert story.doc.get("lease") is None
    story.ok(ev("EffectSucceeded", effect_id="e"), author=AGENT, lease_epoch=1)


def test_lease_events_are_compared_where_an_expectation_is_given() -> None:
    """The lease events are `~`: no expectation needed, a given one is compared on `lease`."""
    story = Story("running")
    before = story.revision
    story.ok(acquire(), author=AGENT, expected_revision=None)
    for event in (acquire(), RENEW, RELEASE):
        story.conflict("lease", events=[event], expected_revision=before)
    story.ok(RENEW, expected_revision=None)
    story.ok(RELEASE, expected_revision=None)


def test_a_lease_acquired_in_the_batch_does_not_fence_the_batch() -> None:
    """Step 4 looks at the state before the batch, so the epoch it makes is not yet current."""
    story = Story("running")
    story.no("FENCED", acquire(), fact("f"), author=AGENT, lease_epoch=1)
    story.ok(acquire(), fact("f"), author=AGENT)


def test_control_takes_effect_whatever_the_lease() -> None:
    """Step 4 never refuses control, with a wrong epoch too."""
    story = held()
    story.ok(ev("PermissionRevoked", permission="tool:a"), lease_epoch=99)
    story.ok(ev("BudgetSet", tokens_remaining=3))
    story.ok(ev("RunCancelled", reason="r"), lease_epoch=5)


def test_a_start_carries_no_epoch() -> None:
    """A run that does not exist has no lease: a given epoch is FENCED."""
    story = Story()
    story.run_id = "run_2"
    story.no("FENCED", ev("RunStarted"), expected_revision=None, lease_epoch=1)
    story.ok(ev("RunStarted"), acquire(), author=AGENT, expected_revision=None)
    assert story.doc["lease"]["epoch"] == 1
    story.ok(transition("planning"), author=AGENT, lease_epoch=1)
