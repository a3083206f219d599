"""Writing to a topic: messages handed to a producer, and the wait until the brokers have them.

Invariants:
- A message counts as written once its delivery was reported with its offset, never before.
- What is not reported in time is unknown, not failed: the caller reads back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from foldlog.log.base import LogError
from foldlog.log.kafka.handles import MESSAGE_BYTES_MAX, logger, writing_failed
from foldlog.log.kafka.rows import position_of

SILENT_SECONDS, LEFT_MAX = 5.0, 3
"""A producer that owes reports and gave none for so long is left, and how many such are kept."""

STEP_SECONDS = 0.005
"""How long one thread serves the reports of all before another may."""

Headers = list[tuple[str, str | bytes]]
Outgoing = tuple[bytes, bytes, Headers]
"""Key, value and headers of a message."""


class Delivery:
    """Messages on their way, by the producer that has them. ``heard`` is called at each report."""

    def __init__(self, where: str, count: int, handle: Producer, heard: Callable[[], None]) -> None:
        self.where, self.handle, self._heard = where, handle, heard
        self.positions: list[int] = []
        self.error: KafkaError | None = None
        self.done = threading.Event()
        self._left = count
        if count == 0:
            self.done.set()

    def report(self, error: KafkaError | None, message: Message) -> None:
        """The client's word on one message."""
        self._heard()
        if error is None and message.offset() is None:
            # Taken for delivered because what was sent after it is: the brokers never said so.
            error = KafkaError(KafkaError._NO_OFFSET, "delivered to no known place")
        if error is None:
            self.positions.append(position_of(message))
        else:
            self.error = self.error or error
        self._left -= 1
        if self._left == 0:
            self.done.set()


class Sender:
    """A producer, made when it is first needed, for one topic.

    One that reports nothing for a while is left to itself, and another one takes its place.
    """

    def __init__(self, connect: Callable[[], Producer], topic: str) -> None:
        self._connect, self._topic = connect, topic
        self._handle: Producer | None = None
        self._left: deque[Producer] = deque(maxlen=LEFT_MAX)
        self._heard_at = 0.0
        self._making = threading.Lock()
        self._serving = threading.Lock()

    def send(
        self,
        partition: int,
        messages: Sequence[Outgoing],
        timestamp_ms: int,
        seconds: float,
    ) -> Delivery:
        """Hand messages over, in order; waits for room in the queue for at most ``seconds``."""
        for key, value, _ in messages:
            size = len(key) + len(value)
            assert size < MESSAGE_BYTES_MAX - 1024, f"a message of {size} bytes"
        handle, end = self._producer(), time.monotonic() + seconds
        delivery = Delivery(f"{self._topic}/{partition}", len(messages), handle, self._heard)
        if len(handle) == 0:
            self._heard()  # nothing is owed
        for key, value, headers in messages:
            while True:
                try:
                    handle.produce(
                        self._topic,
                        key=key,
                        value=value,
                        partition=partition,
                        headers=headers,
                        timestamp=timestamp_ms,
                        on_delivery=delivery.report,
                    )
                    break
                except BufferError:
                    if time.monotonic() >= end:
                        raise self._unknown(delivery.where, seconds) from None
                    _poll(handle, STEP_SECONDS)
                except KafkaException as error:
                    raise writing_failed(delivery.where, error) from error
        return delivery

    def wait(self, delivery: Delivery, seconds: float) -> list[int]:
        """The positions that the messages got. LogError if a delivery failed, or is not reported
        in time: it is unknown then what is in the log."""
        end = time.monotonic() + seconds
        while not delivery.done.is_set():
            left = end - time.monotonic()
            if left <= 0:
                self._look()
                raise self._unknown(delivery.where, seconds)
            self._serve(delivery, left)
        if delivery.error is not None:
            raise writing_failed(delivery.where, delivery.error)
        return delivery.positions

    def look(self, delivery: Delivery) -> list[int] | None:
        """The same without waiting; None if it is not reported yet.

        LogError too where its producer was left meanwhile: whoever sends again gets another one.
        """
        if not delivery.done.is_set():
            _poll(self._producer())
            self._look()
        if delivery.done.is_set():
            return self.wait(delivery, 0)
        if delivery.handle is not self._handle:
            delivery.error = KafkaError(KafkaError._TIMED_OUT)
            raise self._unknown(delivery.where, SILENT_SECONDS)
        return None

    def _serve(self, delivery: Delivery, left: float) -> None:
        """One thread serves everybody's reports, the others wait for theirs."""
        if self._serving.acquire(blocking=False):
            try:
                _poll(self._producer(), min(left, STEP_SECONDS))
            finally:
                self._serving.release()
        else:
            delivery.done.wait(min(left, STEP_SECONDS))

    def _heard(self) -> None:
        self._heard_at = time.monotonic()

    def _look(self) -> None:
        """Leave a producer that has said nothing for long; what it has it may deliver yet."""
        with self._making:
            if self._handle is None or time.monotonic() - self._heard_at < SILENT_SECONDS:
                return
            logger.info("%s: a producer that reports nothing is replaced", self._topic)
            self._left.append(self._handle)
            self._handle = None

    def _unknown(self, where: str, seconds: float) -> LogError:
        what = f"the brokers did not confirm a write within {seconds:g} s"
        return LogError(where, what, "read back before writing again")

    def _producer(self) -> Producer:
        with self._making:
            if self._handle is None:
                self._handle = self._connect()
                self._heard()
            for left in self._left:
                _poll(left)
            return self._handle

    def flush(self, seconds: float) -> None:
        """Wait until nothing is on its way, or that long."""
        with self._making:
            if self._handle is not None:
                with contextlib.suppress(KafkaException):  # as of `_poll`
                    self._handle.flush(seconds)

    def abandon(self) -> None:
        """Drop the producer and what it has not sent; what is on its way may arrive yet."""
        with self._making:
            handles = [*self._left, self._handle]
            self._left.clear()
            self._handle = None
        for handle in handles:
            if handle is not None:
                handle.purge()
                _poll(handle)


def _poll(handle: Producer, seconds: float = 0) -> None:
    """Hear of deliveries. What ends a producer for good is raised in the midst of that, and is no
    more than the deliveries say one by one."""
    with contextlib.suppress(KafkaException):
        handle.poll(seconds)
