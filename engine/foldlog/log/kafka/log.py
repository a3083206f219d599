"""The log on Apache Kafka: a topic for each half, a partition for each partition.

Invariants:
- A write is confirmed by the brokers (acks=all), or its error says that it is unknown.
- What reaches the log of one append is its beginning: records of a turn leave no gap.
- Reading begins where it is told, or fails; the end is what the brokers say when asked.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from confluent_kafka import KafkaException, Message, TopicPartition

from foldlog.log.base import (
    Clock,
    Entry,
    LogClosed,
    LogError,
    LogTrimmed,
    Proposed,
    Row,
    Stored,
    check_partition,
    check_read,
)
from foldlog.log.kafka.address import Address, Known
from foldlog.log.kafka.groups import Report, owners, reported
from foldlog.log.kafka.handles import (
    AWAY,
    CURSOR_WAIT_MS,
    MOVING,
    TAIL_WAIT_MS,
    UNLEARNT,
    Handles,
    error_of,
    reading_failed,
)
from foldlog.log.kafka.reading import Cursor, Tail
from foldlog.log.kafka.rows import headers_of, proposed, stored
from foldlog.log.kafka.topics import (
    Found,
    check_rights,
    check_topics,
    create_topics,
    find_topics,
)
from foldlog.log.kafka.writing import Delivery, Outgoing, Sender

WRITE_SECONDS = 10.0
"""How long propose and append wait for the brokers' word."""

ASK_SECONDS, ASK_ONCE_SECONDS = 10.0, 2.0
"""How long a question may take, and how long one answer to it."""

LEARN_SECONDS = 3.0
"""How long a topic may seem to be gone before it is."""

PATIENCE_SECONDS = {
    **dict.fromkeys((*MOVING, *AWAY), ASK_SECONDS),
    **dict.fromkeys(UNLEARNT, LEARN_SECONDS),
}
"""How long a question is asked again after an error, by its code."""

LOOK_SECONDS = 0.5
"""How long a question may take that only looks whether all is well."""

MOVING_SECONDS = 0.02
"""Between two questions to a partition whose leader is being changed."""

OWNERS_SECONDS = 1.0
"""How long an answer about who has which partition is good."""

CLOSE_SECONDS = 1.0
"""How long closing waits for proposals that nobody waits for any more."""

CURSORS_MAX = 16
"""Partitions that are read at the same time; each has a client of its own."""

Half = Literal["proposals", "events"]


def create(
    address: Address,
    settings: Mapping[str, Any],
    partitions: int,
    *,
    create_time: bool = False,
) -> None:
    """Make the topics of a log; LogExists if they are there. ``create_time``: for tests only."""
    create_topics(Handles(address, settings), partitions, create_time=create_time)


class KafkaLog:
    """A Log on Kafka. ``known``: what it must be, if it was used before.

    LogMissing, LogRefused or LogUnreachable if it cannot be used. ``clock`` is for tests only:
    their topics stamp with CreateTime, which this clock gives.
    """

    conditional = False

    needs: tuple[str, ...] = ()
    """What has to be allowed of both topics, so that what is lacking is told at once."""

    def __init__(
        self,
        address: Address,
        settings: Mapping[str, Any],
        *,
        known: Known | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.address = address
        self.handles = Handles(address, settings)
        found = find_topics(self.handles)
        check_topics(address, found, known, create_time=clock is not None)
        check_rights(found, self.needs)
        self.known = found.known
        self.identity = found.known.identity
        self.origin = found.known.origin
        self.partitions = found.known.partitions
        self._clock = clock
        self._pid = os.getpid()
        self._closed = False
        self._asking = threading.Lock()
        self._asker = self.handles.asker()
        self._ends: dict[tuple[Half, int], int] = {}
        self._cursors: OrderedDict[tuple[Half, int], Cursor[Any]] = OrderedDict()
        self._owners: dict[int, str] = {}
        self._reports: dict[int, Report] = {}
        self._asked_until = 0.0
        self._proposer = Sender(self.handles.proposer, address.proposals)
        self._appender = Sender(self.handles.appender, address.events)

    def check(self) -> None:
        """Look at the topics again: LogRefused unless they are what they were, LogMissing."""
        self.found()

    def found(self) -> Found:
        """The topics as they are now; errors as of ``check``."""
        found = find_topics(self.handles)
        check_topics(self.address, found, self.known, create_time=self._clock is not None)
        check_rights(found, self.needs)
        return found

    # Writing

    def propose(self, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See Log.propose; an error may leave a part of them in the log."""
        return self._proposer.wait(self.send(partition, entries), WRITE_SECONDS)

    def send(
        self,
        partition: int,
        entries: Sequence[tuple[bytes, bytes]],
        seconds: float = WRITE_SECONDS,
    ) -> Delivery:
        """Hand proposals over without waiting for the brokers' word."""
        check_partition(partition, self.partitions)
        self._check_open()
        messages: list[Outgoing] = [(key, value, []) for key, value in entries]
        return self._proposer.send(partition, messages, self._stamp(), seconds)

    def delivered(self, delivery: Delivery) -> list[int] | None:
        """The positions of what was sent, if the brokers have told by now; LogError as of
        ``propose``."""
        return self._proposer.look(delivery)

    def append(self, partition: int, head: bytes, entries: Sequence[Entry]) -> None:
        """See Log.append; the head is not looked at. An error may leave the first of them in the
        log, and others may come later: they extend one another."""
        self._written(partition, entries)

    def _written(self, partition: int, entries: Sequence[Entry]) -> list[int]:
        """Append records; the positions that they got."""
        check_partition(partition, self.partitions)
        self._check_open()
        messages = [(entry.key, entry.value, headers_of(entry)) for entry in entries]
        if not messages:
            return []
        try:
            delivery = self._appender.send(partition, messages, self._stamp(), WRITE_SECONDS)
            positions = self._appender.wait(delivery, WRITE_SECONDS)
        except BaseException:
            self._appender.abandon()
            raise
        self._saw_end("events", partition, positions[-1] + 1)
        return positions

    def _stamp(self) -> int:
        return 0 if self._clock is None else self._clock() // 1_000

    # Reading

    def proposals(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Proposed]:
        """See Log.proposals; LogTrimmed if ``start`` is before what the topic still has."""
        return self._read("proposals", partition, start, limit, max_bytes)

    def events(self, partition: int, start: int, limit: int, max_bytes: int) -> list[Stored]:
        """See Log.events; LogTrimmed if ``start`` is before what the topic still has."""
        return self._read("events", partition, start, limit, max_bytes)

    def _read(
        self, half: Half, partition: int, start: int, limit: int, max_bytes: int
    ) -> list[Any]:
        check_read(partition, self.partitions, limit)
        self._check_open()
        cursor = self._cursor(half, partition)
        known = self._ends.get((half, partition), 1)
        try:
            if limit == 1 and start < known:
                # One row that is known to be there needs no question.
                rows = cursor.read(start, 1, max_bytes, known)
                if rows:
                    return rows
            return cursor.read(start, limit, max_bytes, self._end(half, partition))
        except LogTrimmed as error:
            error.first = self._marks(half, partition)[0] + 1
            raise

    def _cursor(self, half: Half, partition: int) -> Cursor[Any]:
        key = (half, partition)
        with self._asking:
            cursor = self._cursors.get(key)
            if cursor is None:
                topic = getattr(self.address, half)
                make: Any = proposed if half == "proposals" else stored
                cursor = Cursor(self._reader, topic, partition, make)
                self._cursors[key] = cursor
            self._cursors.move_to_end(key)
            oldest = None
            if len(self._cursors) > CURSORS_MAX:
                _, oldest = self._cursors.popitem(last=False)
        if oldest is not None:
            oldest.close()
        return cursor

    def _reader(self) -> Any:
        return self.handles.reader(CURSOR_WAIT_MS)

    def end(self, partition: int) -> int:
        """See Log.end."""
        return self._end("events", partition)

    def proposals_end(self, partition: int) -> int:
        """See Log.proposals_end."""
        return self._end("proposals", partition)

    def _end(self, half: Half, partition: int) -> int:
        end = self._marks(half, partition)[1] + 1
        self._saw_end(half, partition, end)
        return end

    def _marks(self, half: Half, partition: int) -> tuple[int, int]:
        """The first offset that a partition has, and the one that comes next."""
        check_partition(partition, self.partitions)
        topic = getattr(self.address, half)
        with self._asking:
            self._check_open()
            return self._asked(TopicPartition(topic, partition))

    def _asked(self, place: TopicPartition) -> tuple[int, int]:
        began = time.monotonic()
        while True:
            try:
                return self._asker.get_watermark_offsets(place, timeout=ASK_ONCE_SECONDS)
            except KafkaException as error:
                code, took = error_of(error).code(), time.monotonic() - began
                if took >= PATIENCE_SECONDS.get(code, 0.0):
                    if code in AWAY:
                        self._asker.close()
                        self._asker = self.handles.asker()
                    where = f"{place.topic}/{place.partition}"
                    raise reading_failed(where, error, "Describe") from error
                self._learn_leader(place.topic, ASK_SECONDS - took)

    def _learn_leader(self, topic: str, seconds: float) -> None:
        """Ask again who leads a topic's partitions: of who only asks, the client does it itself
        when it hears of a change, and of a leader that is gone it hears nothing."""
        time.sleep(MOVING_SECONDS)
        with contextlib.suppress(KafkaException):
            self._asker.list_topics(topic, timeout=max(MOVING_SECONDS, seconds))

    def _saw_end(self, half: Half, partition: int, end: int) -> None:
        self._ends[half, partition] = max(end, self._ends.get((half, partition), 1))

    def tail(self) -> Tail[Stored]:
        """A tail of ``events``, whose owner closes it."""
        return self._tail(self.address.events, stored)

    def _tail(self, topic: str, make: Callable[[Message], Row]) -> Tail[Row]:
        return Tail(lambda: self.handles.reader(TAIL_WAIT_MS), topic, make, self._end_now)

    def _end_now(self, topic: str, partition: int) -> int:
        """Where a partition of a topic ends, if the answer comes within a moment; else 0."""
        if self._closed or not self._asking.acquire(timeout=LOOK_SECONDS):
            return 0
        try:
            place = TopicPartition(topic, partition)
            return self._asker.get_watermark_offsets(place, timeout=LOOK_SECONDS)[1] + 1
        except KafkaException:
            return 0  # an outage: whoever asks for more hears of it
        finally:
            self._asking.release()

    def owner(self, partition: int) -> str | None:
        """Which projector has a partition; as of a moment ago."""
        self._ask_group()
        return self._owners.get(partition)

    def outage(self, partition: int) -> str | None:
        """What its projector says that keeps a partition from going on; as of a moment ago."""
        self._ask_group()
        report = self._reports.get(partition)
        return None if report is None else report.why or None

    def _ask_group(self) -> None:
        now = time.monotonic()
        if now >= self._asked_until:
            self._owners, self._reports = owners(self.handles), reported(self.handles)
            self._asked_until = now + OWNERS_SECONDS

    # Leaving

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(str(self.address), "the log is closed", "open a new one")
        if os.getpid() != self._pid:
            what = f"opened by process {self._pid}, before the fork of {os.getpid()}"
            raise LogClosed(str(self.address), what, "open it in the process that uses it")

    def close(self) -> None:
        """See Log.close."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with contextlib.suppress(LogError):
            self._proposer.flush(CLOSE_SECONDS)
        self._proposer.abandon()
        self._appender.abandon()
        with self._asking:
            cursors = [*self._cursors.values()]
            self._cursors.clear()
            self._asker.close()
        for cursor in cursors:
            cursor.close()
