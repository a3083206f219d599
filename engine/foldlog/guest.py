"""A guest at a home: hands proposals in, reads outcomes out of the log, reads beside the holder.

Invariants:
- A guest writes proposals and nothing else; reading changes no file of the holder's.
- A read is made on one moment of one partition, at least as new as what the caller asks for.
- It relies on an append that is conditional: every record it finds in ``events`` counts.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from foldlog.core.catalogue import Catalogue
from foldlog.core.proposals import Proposal
from foldlog.errors import Damaged
from foldlog.fold import TURN_RECORDS_MAX
from foldlog.log.base import Log
from foldlog.runtime import Lock, Runtime, let_go
from foldlog.store.base import Reader, StoreError
from foldlog.views import View
from foldlog.wire.avro import WireError
from foldlog.wire.envelope import encode_proposal
from foldlog.wire.partitioner import partition_of
from foldlog.wire.records import Record, decode_record

READ_BYTES_MAX = 4 * 1024 * 1024


class Follower(Reader, Protocol):
    """A reader of a store that another process writes."""

    def refresh(self) -> None:
        """Move on to what has been written since."""

    def close(self) -> None:
        """Let go."""


@dataclass(slots=True)
class HandedIn:
    """A proposal in the log: where it is, and from which offset its record may come."""

    partition: int
    position: int
    offset: int


class Guest:
    """Proposes to a log and follows the stores of whoever holds them."""

    def __init__(
        self,
        log: Log,
        follow: Callable[[int], Follower],
        runtime: Runtime,
        rules: Mapping[int, Catalogue],
    ) -> None:
        self._log = log
        self._follow = follow
        self._runtime = runtime
        self._rules = rules
        self._followers: dict[int, Follower] = {}
        self._troubles: dict[int, str] = {}
        self._locks: dict[int, Lock] = {number: runtime.lock() for number in range(log.partitions)}

    def hand_in(self, proposal: Proposal) -> HandedIn:
        """Put a proposal into the log; Malformed if it is too large, LogError as it comes."""
        value = encode_proposal(proposal)
        number = partition_of(proposal.run_id, self._log.partitions)
        return self.put(number, proposal.run_id, value)

    def put(self, number: int, run_id: str, value: bytes) -> HandedIn:
        """Put the bytes of a proposal into the log."""
        offset = self._log.end(number)
        [position] = self._log.propose(number, [(run_id.encode(), value)])
        return HandedIn(number, position, offset)

    def look(self, handed: HandedIn) -> Record | None:
        """The proposal's record, if it is in the log by now."""
        while rows := self._log.events(
            handed.partition, handed.offset, TURN_RECORDS_MAX, READ_BYTES_MAX
        ):
            for stored in rows:
                handed.offset = stored.offset + 1
                try:
                    record = decode_record(stored.value)
                except WireError as error:
                    where = (handed.partition, None, stored.sequence)
                    raise Damaged(*where, "record", "a decided record", str(error)) from None
                if record.position == handed.position and record.ends_proposal:
                    return record
        return None

    @contextlib.contextmanager
    def reading(self, partition: int, sequence: int) -> Iterator[View | None]:
        """A view of one partition that has folded ``sequence``; None if it has not yet."""
        lock = self._locks[partition]
        try:
            lock.acquire()
            follower = self._refreshed(partition)
            view = None if follower is None else View(self._log, follower, partition, self._rules)
            yield view if view is not None and view.meta().sequence >= sequence else None
        finally:
            let_go(lock)

    def _refreshed(self, partition: int) -> Follower | None:
        follower = self._followers.get(partition)
        try:
            if follower is None:
                follower = self._followers[partition] = self._follow(partition)
            follower.refresh()
        except StoreError as error:
            self._troubles[partition] = str(error)
            self.forget(partition)
            return None
        self._troubles.pop(partition, None)
        return follower

    def trouble(self, partition: int) -> str:
        """Why a partition cannot be read as it should be, beside a holder that goes on."""
        here = f"partition {partition} of the projection"
        if (text := self._troubles.get(partition)) is not None:
            return f"{here} cannot be read beside its holder: {text}"
        return f"{here} has come no further for 10 s although its holder turns: foldlog doctor"

    def forget(self, partition: int) -> None:
        """Close a follower, so that the next read opens it anew."""
        follower = self._followers.pop(partition, None)
        if follower is not None:
            follower.close()

    def close(self) -> None:
        """Close every follower."""
        for partition in list(self._followers):
            self.forget(partition)
