"""Storage that fails under a client: nobody loses a batch id, and everything goes on by itself.

Invariants:
- A failure is one call that raises; engine, log and store are the real ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine
from foldlog.errors import OutcomeUnknown, Unavailable
from foldlog.log.base import LogError, LogUnreachable
from foldlog.seat import Seat
from foldlog.store.base import StoreFailed, StoreFull
from foldlog.testing import Engine as MemoryEngine
from tests.seats import holder_of, seat_of

FACT = {"type": "FactConfirmed", "fact": {"id": "fact_1", "statement": "so it is"}}


def failing(
    work: Callable[..., Any], error: Exception, times: int = 1, *, written: bool = False
) -> Callable[..., Any]:
    """A call that raises so many times, after its work or in its place."""
    left = [times]

    def call(*args: Any, **options: Any) -> Any:
        if left[0] <= 0:
            return work(*args, **options)
        left[0] -= 1
        if written:
            work(*args, **options)
        raise error

    return call


def test_fault_28_an_engine_that_cannot_open_lets_everything_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage while opening is Unavailable, and the same process can open the home after it."""
    with Engine.open(tmp_path, create=True, partitions=1):
        pass
    outage = LogUnreachable("log", "cannot be read", "wait")
    for name in ("turn_all", "take"):
        real = getattr(Seat, name)
        fails = failing(real, outage)
        monkeypatch.setattr(Seat, name, lambda self, fails=fails: fails(self))
        with pytest.raises(Unavailable):
            Engine.open(tmp_path)
        with Engine.open(tmp_path) as engine:
            assert engine._seat.is_holder


def test_fault_32_a_store_that_was_full_is_opened_again() -> None:
    """After a failed write the holder opens its stores anew, and what waits is decided."""
    with MemoryEngine() as engine:
        run = engine.start("run_1", goal="go on")
        seat = seat_of(engine)
        assert seat._holder is not None
        store: Any = seat._holder.held[0].partition.store
        error = StoreFailed("store", "takes no writes since one failed", "open it again")
        full = failing(failing(store.write, error, 1_000), StoreFull("store", "full", "make room"))
        store.write = full
        assert run.propose(FACT).outcome == "accepted"
        phase = {"type": "PhaseChanged", "phase": "fix"}
        assert run.propose(phase, expected_revision=2).revision == 3


@pytest.fixture
def guest(tmp_path: Path) -> Any:
    """An engine beside another one of the same home that holds it, with a run."""
    with Engine.open(tmp_path, create=True, partitions=1) as holder:
        holder.start("run_1", goal="go on")
        with Engine.open(tmp_path) as engine:
            assert not engine._seat.is_holder
            yield engine


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("error", [LogError, LogUnreachable])
def test_a_guest_hands_in_again_what_it_is_unsure_of(
    guest: Any, error: type[LogError], written: bool
) -> None:
    """Whether or not the log took it, the caller learns the outcome, and it counts once."""
    log: Any = guest._seat.place.log
    log.propose = failing(log.propose, error("log", "no answer", "read it back"), written=written)
    run = guest.run("run_1")
    assert run.propose(FACT).outcome == "accepted"
    assert run.state().revision == 2


def test_a_guest_waits_while_the_log_cannot_be_read(guest: Any) -> None:
    """A look for the outcome that fails is tried again, not told the caller."""
    log: Any = guest._seat.place.log
    log.events = failing(log.events, LogUnreachable("log", "cannot be read", "wait"), 2)
    assert guest.run("run_1").propose(FACT).outcome == "accepted"


def test_a_decided_batch_that_cannot_be_told_names_its_batch_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that gave no batch id is told the one it must ask for, not to try again."""
    with MemoryEngine() as engine:
        run = engine.start("run_1", goal="go on")
        batch_id = str(uuid.uuid4())
        first = run.propose(FACT, batch_id=batch_id)
        error = Unavailable("the store cannot be read")
        fails = failing(engine._reading, error)
        monkeypatch.setattr(engine, "_reading", fails)
        with pytest.raises(OutcomeUnknown) as unknown:
            run.propose(FACT, batch_id=batch_id)
        assert unknown.value.batch_id == batch_id
        again = run.outcome(batch_id)
        assert again is not None
        assert again.sequence == first.sequence


def test_the_turn_goes_on_after_an_outage_while_taking_over() -> None:
    """A holder that cannot read the log back when it takes over tries again, and does not end."""
    with MemoryEngine() as engine:
        engine.start("run_1", goal="go on")
        seat = seat_of(engine)
        seat.step_down()
        log: Any = seat.place.log
        log.events = failing(log.events, LogUnreachable("log", "cannot be read", "wait"))
        assert seat.tick() > 0
        assert not seat.is_holder
        seat.tick()
        assert seat.is_holder


def test_a_holder_does_not_wait_for_what_is_decided_already() -> None:
    """A record that the holder before it has folded never comes by: it is looked for in the log."""
    with MemoryEngine() as engine:
        engine.start("run_1", goal="go on")
        holder = holder_of(engine)
        holder.held[0].recent.clear()
        assert holder.await_position(0, 1, holder.runtime.monotonic() + 60_000_000) is None
