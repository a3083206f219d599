"""Clients of Kafka as foldlog needs them, and their errors as errors of a log.

Invariants:
- Every promise that rests on a client's setting is made here, and nowhere else.
- librdkafka writes nothing to stderr: its lines go to the logger ``foldlog.kafka``, as DEBUG.
- A handle is made by the process that uses it, after a fork: one made before never delivers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, libversion
from confluent_kafka.admin import AdminClient

from foldlog.log.base import (
    LogDamaged,
    LogError,
    LogForbidden,
    LogMissing,
    LogReadOnly,
    LogRefused,
    LogTrimmed,
    LogUnreachable,
)
from foldlog.log.kafka.address import Address

CLIENT_VERSION = str(libversion()[0])
"""Of librdkafka, which does the work."""

MESSAGE_BYTES_MAX = 2 * 1024 * 1024
"""One message: a record is at most 1,000,000 bytes, a part of an import 256 KiB and one record."""

QUEUE_MESSAGES_MAX, QUEUE_KILOBYTES_MAX = 10_000, 32 * 1024
"""What may wait in a producer; propose and append wait for room beyond that."""

FETCHED_KILOBYTES_MAX = 8 * 1024
"""What a consumer reads ahead for each of its partitions."""

TAIL_WAIT_MS, CURSOR_WAIT_MS = 100, 5
"""How long a broker keeps a fetch that finds nothing. Whatever else is asked over the same
connection waits behind it: the place that a cursor seeks, a partition that a tail begins to follow.
"""

PROPOSAL_SECONDS_MAX = 60
"""A proposal that the log did not take for so long is given up (its sender has gone long ago)."""

READING = {
    "group.id": "foldlog",  # asked for by the client; nothing is ever committed
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}

logger = logging.getLogger("foldlog.kafka")
# Without a handler of its own, Python would print warnings to stderr where nobody set one.
logger.addHandler(logging.NullHandler())


class _Quiet:
    """librdkafka repeats itself 50 times a second in an outage; what is wrong is told by us."""

    def log(self, level: int, message: str, *arguments: Any) -> None:
        logger.debug(message, *arguments)


class Handles:
    """Makes the clients of one log."""

    def __init__(self, address: Address, settings: Mapping[str, Any]) -> None:
        self.address = address
        self._base = {
            "client.id": "foldlog",
            **settings,
            "bootstrap.servers": address.servers,
            "logger": _Quiet(),
            "log_level": 2,
            # Without it a broker that comes back is looked for after up to 10 s.
            "reconnect.backoff.max.ms": 1_000,
        }

    def admin(self, heard: Callable[[KafkaError], None] = lambda error: None) -> AdminClient:
        """Who makes, checks and describes topics and groups; ``heard`` is told what goes wrong
        with its connections, when it is polled."""
        return AdminClient({**self._base, "error_cb": heard, "socket.timeout.ms": 10_000})

    def proposer(self) -> Producer:
        """Who writes proposals. Not idempotent: the first record of one that is takes 0.5 to 1 s,
        and a proposal that comes twice under one batch id counts once. One request at a time
        keeps the order all the same."""
        own = {
            "enable.idempotence": False,
            "max.in.flight.requests.per.connection": 1,
            "message.timeout.ms": PROPOSAL_SECONDS_MAX * 1_000,
        }
        return Producer({**self._producer(), **own})

    def appender(self) -> Producer:
        """Who writes records: what reaches the log of a turn is always its beginning.

        A gap inside a turn would be a hole for every reader. So it is idempotent, stops for good
        at an error that would leave a gap, and never lets single messages expire. And it has one
        request at a time under way: a broker that knows nothing yet of this producer takes any
        number as its first, so it would take the second request of a turn after it had refused the
        first one (too few replicas in sync, another leader), and the client would then call the
        first one delivered.
        """
        own = {
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "max.in.flight.requests.per.connection": 1,
            "message.timeout.ms": 0,
        }
        return Producer({**self._producer(), **own})

    def _producer(self) -> dict[str, Any]:
        return {
            **self._base,
            "acks": "all",
            "partitioner": "murmur2_random",
            "linger.ms": 0,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
            "queue.buffering.max.kbytes": QUEUE_KILOBYTES_MAX,
            "retry.backoff.max.ms": 500,
        }

    def asker(self) -> Consumer:
        """Who asks where partitions end. It fetches nothing: a question waits behind a fetch."""
        return Consumer({**self._base, **READING})

    def reader(self, wait_ms: int) -> Consumer:
        """Who reads partitions from places that it is told."""
        return Consumer(
            {
                **self._base,
                **READING,
                "check.crcs": True,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": wait_ms,
                "fetch.queue.backoff.ms": 5,  # the default lets an emptied queue rest for 1 s
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": FETCHED_KILOBYTES_MAX,
            }
        )

    def member(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Consumer:
        """A member of a group; ``defaults`` are for the classic protocol, and for the operator to
        change (in the newer one the brokers have them)."""
        classic = settings["group.protocol"] == "classic"
        return Consumer({**(defaults if classic else {}), **self._base, **READING, **settings})


_MISSING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
FORBIDDEN = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
"""The brokers know who asks, and do not let him."""

NOT_LET_IN = (KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION, KafkaError._SSL)
MOVING = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
"""Ask again in a moment: somebody else is, or will be, the partition's leader."""

AWAY = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
"""Whoever was asked does not answer; another may lead the partition by now."""

UNLEARNT = (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
"""Of a topic that was there: a broker that has just begun may not have learnt of it yet."""

SETTINGS = "check the client's settings: protocol, mechanism, name, password, certificates"

_BROKEN = (KafkaError._BAD_MSG, KafkaError.INVALID_MSG, KafkaError._BAD_COMPRESSION)


def error_of(raised: KafkaException | KafkaError) -> KafkaError:
    """The error inside what the client raised."""
    found = raised.args[0] if isinstance(raised, KafkaException) else raised
    assert isinstance(found, KafkaError), found
    return found


def reading_failed(
    where: str, raised: KafkaException | KafkaError, right: str = "Read"
) -> LogError:
    """What kept us from reading, as an error of the log; ``right`` is what it takes."""
    error = error_of(raised)
    code, text = error.code(), error.str()
    if code in FORBIDDEN:
        return forbidden(where, right, _kind(error), text)
    if code in _MISSING:
        return LogMissing(where, "there is no such topic or partition", "see: foldlog init --help")
    if code == KafkaError._AUTO_OFFSET_RESET:
        remedy = "restore the topic, or rebuild from a copy that reaches back so far"
        return LogTrimmed(where, f"what is asked for is not there any more ({text})", remedy)
    if code in _BROKEN:
        return LogDamaged(where, f"a message does not read ({text})", "restore the topic")
    if code in NOT_LET_IN:
        return LogForbidden(where, f"the brokers do not let this client in ({text})", SETTINGS)
    return LogUnreachable(where, text, "it goes on by itself once the brokers answer")


def forbidden(where: str, right: str, kind: str, text: str) -> LogForbidden:
    """A right that this principal lacks, of a topic or group, and what to type."""
    return LogForbidden(where, *_lacking(where, right, kind, text))


def _lacking(where: str, right: str, kind: str, text: str) -> tuple[str, str]:
    name = where.partition("/")[0]
    return (
        f"{right} of {kind} {name} is not allowed to this principal ({text})",
        f"kafka-acls.sh --add --allow-principal User:NAME --operation {right} --{kind} {name}",
    )


def _kind(error: KafkaError) -> str:
    return "group" if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED else "topic"


def writing_failed(where: str, raised: KafkaException | KafkaError) -> LogError:
    """A delivery that was reported as failed: it may be in the log all the same, unless the error
    says that nothing was written."""
    error = error_of(raised)
    what = f"the delivery failed ({error.str()})"
    if error.code() in FORBIDDEN:
        return LogReadOnly(where, *_lacking(where, "Write", "topic", error.str()))
    if error.code() in NOT_LET_IN:
        return LogReadOnly(where, what, SETTINGS)
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        remedy = f"let the topic have max.message.bytes={MESSAGE_BYTES_MAX}"
        return LogRefused(where, what, remedy)
    return LogError(where, what, "read back before writing again")
