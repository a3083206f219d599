"""Engines on logs and stores that a test brings along."""

from collections.abc import Mapping, Sequence

from foldlog import client
from foldlog.core.catalogue import RULES, Catalogue
from foldlog.holder import Holder
from foldlog.log.base import Clock, Log
from foldlog.seat import Seat
from foldlog.store.base import Store
from foldlog.testing import MemoryPlace


def engine_on(
    log: Log, stores: Sequence[Store], clock: Clock, rules: Mapping[int, Catalogue] = RULES
) -> client.Engine:
    """An engine that holds the projection of a log on these stores; it turns when asked."""
    return client.Engine(seat_on(log, stores, clock, rules), clock)


def seat_on(
    log: Log,
    stores: Sequence[Store],
    clock: Clock,
    rules: Mapping[int, Catalogue] = RULES,
    timekeeper: bool = True,
) -> Seat:
    """A seat that holds the projection of a log on these stores."""
    seat = Seat(MemoryPlace(log, stores), clock, rules=rules, timekeeper=timekeeper)
    assert seat.take()
    return seat


def seat_of(engine: client.Engine) -> Seat:
    """The seat of an engine whose log is in its home."""
    assert isinstance(engine._seat, Seat)
    return engine._seat


def holder_of(engine: client.Engine) -> Holder:
    """The holder inside an engine that holds the projection."""
    holder = seat_of(engine)._holder
    assert holder is not None
    return holder
