"""Reading a topic: a cursor goes where it is told, a tail waits for what comes.

Invariants:
- How far something was read is what the client says (a row, or that the end was reached), never
  computed from the rows: control records take offsets of their own.
- A place that is not there is an error (`LogTrimmed`), never a jump to another place.
- An error takes no rows with it: those that came with it are given first, those after it next.
- A message is made into a row once at most: asked again, some end the process (see ``rows``).
- One thread at a time uses a handle.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from foldlog.log.base import LogError, LogUnreachable, Row
from foldlog.log.kafka.handles import logger, reading_failed
from foldlog.log.kafka.rows import offset_of, position_of

CHUNK_MAX = 500
SKIP_MAX = 2_000
"""Rows read past rather than sought over: seeking costs 2 ms and what was read ahead."""

SILENCE_SECONDS = 10.0
"""A read that gets nothing for so long although there is something is an outage."""

AGAIN_SECONDS = 1.0
"""After so long without a word the place is sought again; the client then says where the end is."""

QUIET_SECONDS = 3.0
"""A tail that heard nothing of a partition for so long asks whether there is something."""

LOOK_SECONDS, LOOK_SHARE = 0.05, 0.2
"""How often a tail looks for such partitions, and the most of its time that its questions take:
while they wait for brokers that do not answer, the partitions of others go on."""

HARMLESS = (KafkaError.GROUP_AUTHORIZATION_FAILED,)
"""The client looks for the coordinator of its group, in which a reader never is."""


class Cursor(Generic[Row]):
    """Reads one partition from any place, onward."""

    def __init__(
        self,
        connect: Callable[[], Consumer],
        topic: str,
        partition: int,
        make: Callable[[Message], Row],
    ) -> None:
        self._connect = connect
        self._make: Callable[[Message], Row] = make
        self._topic, self._partition = topic, partition
        self._where = f"{topic}/{partition}"
        self._handle: Consumer | None = None
        self._lock = threading.Lock()
        self._read: deque[Message] = deque()
        self._next = 0  # the position that comes next; 0: nowhere

    def read(self, start: int, limit: int, max_bytes: int, end: int) -> list[Row]:
        """The rows at positions from ``start`` to before ``end``, bounded as a log bounds them."""
        with self._lock:
            try:
                return list(self._rows(max(start, 1), limit, max_bytes, end))
            except LogUnreachable:
                self._let_go()  # a client that gave nothing may never give anything again
                raise
            except BaseException:
                self._next = 0  # whatever was read ahead is forgotten
                raise

    def _rows(self, start: int, limit: int, max_bytes: int, end: int) -> Iterator[Row]:
        if start >= end:
            return
        self._go_to(start)
        size = 0
        for number, message in enumerate(self._messages(start, end)):
            size += len(message.key() or b"") + len(message.value() or b"")
            if number and size > max_bytes:
                self._put_back(message)
                return
            yield self._make(message)
            if number + 1 == limit:
                return

    def _put_back(self, message: Message) -> None:
        self._read.appendleft(message)
        self._next = position_of(message)

    def _go_to(self, start: int) -> None:
        if self._handle is None:
            self._handle = self._connect()
        place = [TopicPartition(self._topic, self._partition, offset_of(start))]
        if not 0 < self._next <= start <= self._next + SKIP_MAX:
            self._read.clear()
            self._handle.assign(place)
            self._next = start

    def _messages(self, start: int, end: int) -> Iterator[Message]:
        while self._next < end:
            if not self._read and not self._fetch(end):
                continue
            message = self._read.popleft()
            position = position_of(message)
            if position >= end:
                self._put_back(message)
                return
            self._next = position + 1
            if position >= start:
                yield message
        if not self._read:
            # A fetch that waits for more would keep whatever is asked next waiting.
            assert self._handle is not None
            self._handle.unassign()
            self._next = 0

    def _fetch(self, end: int) -> bool:
        """Get the next messages; False if there were none, but the end has come nearer."""
        assert self._handle is not None
        handle: Consumer = self._handle
        quiet_until = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < quiet_until:
            first = handle.poll(AGAIN_SECONDS)
            if first is None:
                place = TopicPartition(self._topic, self._partition, offset_of(self._next))
                handle.assign([place])
                continue
            for message in (first, *handle.consume(CHUNK_MAX, 0)):
                self._take(message)
            if self._read:
                return True
            if self._next >= end:
                return False
        what = f"nothing came for {SILENCE_SECONDS:g} s of what is there"
        raise LogUnreachable(self._where, what, "it goes on by itself once the brokers answer")

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._read.append(message)
        elif error.code() in HARMLESS:
            return
        elif error.code() == KafkaError._PARTITION_EOF:
            if not self._read:
                self._next = max(self._next, position_of(message))
        elif not error.retriable():
            raise reading_failed(self._where, error)

    def close(self) -> None:
        """Let the handle go."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        handle, self._handle = self._handle, None
        self._next = 0
        self._read.clear()
        if handle is not None:
            handle.close()


@dataclass(slots=True)
class _Place:
    """Where a tail is in a partition, when it last heard of it, and up to where more is there."""

    next: int
    heard_at: float
    paused: bool = False
    owed: int = 0


class Tail(Generic[Row]):
    """Waits for what comes in some partitions of a topic.

    ``end_of`` says where one ends, within a moment; 0 if it cannot.
    """

    def __init__(
        self,
        connect: Callable[[], Consumer],
        topic: str,
        make: Callable[[Message], Row],
        end_of: Callable[[str, int], int],
    ) -> None:
        self._connect, self._end_of = connect, end_of
        self._topic = topic
        self._make: Callable[[Message], Row] = make
        self._handle = connect()
        self._places: dict[int, _Place] = {}
        self._came: deque[tuple[int | None, Row | LogError]] = deque()
        self._look_at = 0.0

    def follow(self, partition: int, start: int) -> None:
        """From now on ``poll`` gives the rows of a partition from a position on."""
        self._places[partition] = _Place(start, time.monotonic())
        self._handle.incremental_assign([self._place(partition, start)])

    def _place(self, partition: int, position: int = 1) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset_of(position))

    def drop(self, partition: int) -> None:
        """``poll`` gives no more of a partition; what was read ahead is forgotten."""
        place = self._places.pop(partition, None)
        self._came = deque(each for each in self._came if each[0] != partition)
        if place is not None and place.paused:
            # A pause is the client's and would outlive this: followed again, nothing would come.
            self._handle.resume([self._place(partition)])
        self._handle.incremental_unassign([self._place(partition)])

    def pause(self, partition: int) -> None:
        """Read nothing ahead until ``resume``."""
        self._places[partition].paused = True
        self._handle.pause([self._place(partition)])

    def resume(self, partition: int) -> None:
        """Go on after ``pause``."""
        place = self._places[partition]
        place.paused, place.heard_at = False, time.monotonic()
        self._handle.resume([self._place(partition)])

    def poll(self, seconds: float) -> list[tuple[int, Row]]:
        """What has come, waiting for it at most so long.

        LogError if something is wrong with a partition (``partition`` says which), or with all.
        """
        if not self._came:
            self._fetch(seconds)
        rows: list[tuple[int, Row]] = []
        while self._came:
            partition, what = self._came[0]
            if isinstance(what, LogError):
                if rows:
                    break  # theirs first: it stays, and is told next time
                self._came.popleft()
                raise what
            assert partition is not None
            rows.append((partition, what))
            self._came.popleft()
        return rows

    def _fetch(self, seconds: float) -> None:
        try:
            first = self._handle.poll(seconds)
            if first is not None:
                self._take(first)
                more = self._handle.consume(CHUNK_MAX, 0)
                for message in more:
                    self._take(message)
                if len(more) == CHUNK_MAX:
                    return  # who seems to be silent may be next
            self._look()
        except KafkaException as error:
            raise reading_failed(self._topic, error) from error

    def _take(self, message: Message) -> None:
        """Keep the row of a message, or what is wrong; nothing where it only says that a partition
        ends."""
        partition, error = message.partition(), message.error()
        if error is None:
            assert partition is not None
            self._heard(partition, position_of(message) + 1)
            self._came.append((partition, self._make(message)))
        elif error.code() == KafkaError._PARTITION_EOF:
            assert partition is not None
            self._heard(partition, position_of(message))
        elif error.code() not in HARMLESS and not error.retriable():
            where = self._topic if partition is None else f"{self._topic}/{partition}"
            failure = reading_failed(where, error)
            failure.partition = partition
            self._came.append((partition, failure))

    # A client that says nothing

    def _heard(self, partition: int, position: int) -> None:
        place = self._places.get(partition)
        if place is not None:
            place.next = max(place.next, position)
            place.heard_at, place.owed = time.monotonic(), 0

    def _look(self) -> None:
        """Begin anew with a client that stays silent although there is something to read.

        One partition is asked about at a time; twice, since what is there may just be on its way.
        It is looked by time, whatever came: others may be busy all the time.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        read = [each for each in self._places.items() if not each[1].paused]
        # The one that was silent for longest, so that each has its turn however many there are.
        partition, place = min(read, key=lambda each: each[1].heard_at, default=(0, None))
        if place is None or now - place.heard_at < QUIET_SECONDS:
            return
        place.heard_at = now
        if place.next < place.owed:
            self._begin_anew()
        else:
            place.owed = self._end_of(self._topic, partition)
            took = time.monotonic() - now
            self._look_at = now + max(LOOK_SECONDS, took / LOOK_SHARE)

    def _begin_anew(self) -> None:
        facts = {"event": "reconnected", "topic": self._topic}
        text = "nothing came of what is there in %s: connects anew"
        logger.warning(text, self._topic, extra=facts)
        self._handle.close()
        self._handle = self._connect()
        for partition, place in self._places.items():
            place.owed = 0
            self._handle.incremental_assign([self._place(partition, place.next)])
            if place.paused:
                self._handle.pause([self._place(partition)])

    def close(self) -> None:
        """Let the handle go."""
        self._handle.close()
