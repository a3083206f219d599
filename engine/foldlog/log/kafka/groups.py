"""The group of those who decide: who has which partition, and how far behind he says he is.

Invariants:
- Groups say who works where. Where to go on stands in the projection; what is committed to the
  group only reports lag.
- A member never fetches: all its partitions are paused as they come. (A pause belongs to the
  client and outlives a revocation, which is no harm where nothing is ever resumed.)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from foldlog.log.base import LogError
from foldlog.log.kafka.address import Address
from foldlog.log.kafka.handles import FORBIDDEN, Handles, reading_failed
from foldlog.log.kafka.rows import offset_of

ASK_SECONDS = 10.0

LEAVE_SECONDS, LEAVE_POLL_SECONDS = 5.0, 0.05
"""How long one waits for a membership to be over, and for each thing that there is to hear."""

SILENT_MS = 10_000
"""After so long without a heartbeat a member's partitions go to others. Static members do not
leave when they end: one that is not started again within this time is replaced."""

WHY_CHARACTERS_MAX = 500
"""Of why a partition waits; brokers keep 4 KiB beside an offset."""

Protocol = Literal["classic", "consumer"]
Told = Callable[[list[int]], None]

_OF_TOPIC = KafkaError.TOPIC_AUTHORIZATION_FAILED

_FATAL = (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED)
"""By code: after ``_FATAL`` a consumer gives nothing for ever, and its error calls itself mild."""


def group_of(address: Address) -> str:
    """The group of a log's projectors."""
    return f"{address.prefix}.projector"


@dataclass(frozen=True, slots=True)
class Report:
    """How far a partition is, and what keeps it from going on, where something does."""

    position: int
    why: str = ""


class Membership:
    """This process's place in the group. The callbacks run inside ``poll``."""

    def __init__(
        self,
        handles: Handles,
        instance: str,
        protocol: Protocol,
        on_assigned: Told,
        on_revoked: Told,
        on_lost: Told,
    ) -> None:
        self._topic = handles.address.proposals
        self._group = group_of(handles.address)
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        settings: dict[str, Any] = {
            "group.id": self._group,
            "group.protocol": protocol,
            "client.id": instance,
        }
        if protocol == "classic":
            settings |= {
                "group.instance.id": instance,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        self._handle: Consumer = handles.member(settings, {"session.timeout.ms": SILENT_MS})
        self._handle.subscribe(
            [self._topic],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    def _assigned(self, handle: Consumer, places: list[TopicPartition]) -> None:
        # At the end, or the group's commits would say where to begin.
        handle.incremental_assign(
            [TopicPartition(each.topic, each.partition, OFFSET_END) for each in places]
        )
        if places:
            handle.pause(places)
        self._on_assigned([each.partition for each in places])

    def _revoked(self, handle: Consumer, places: list[TopicPartition]) -> None:
        self._on_revoked([each.partition for each in places])
        handle.incremental_unassign(places)

    def _lost(self, handle: Consumer, places: list[TopicPartition]) -> None:
        self._on_lost([each.partition for each in places])
        handle.incremental_unassign(places)

    def poll(self) -> None:
        """Stay a member, and hear of partitions that come and go; LogError if it is over."""
        try:
            message = self._handle.poll(0)
        except KafkaException as raised:
            raise reading_failed(self._group, raised) from raised
        if message is None or (error := message.error()) is None:
            return
        if error.code() in FORBIDDEN:
            where = self._topic if error.code() == _OF_TOPIC else self._group
            raise reading_failed(where, error)
        if error.fatal() or error.code() in _FATAL:
            remedy = "start it again; no two members may have the same name"
            raise LogError(self._group, f"the membership has ended ({error.str()})", remedy)

    def report(self, reports: Mapping[int, Report]) -> None:
        """Say how far the partitions are, for whoever looks at the group's lag. Does not wait."""
        places = [
            TopicPartition(self._topic, n, offset_of(each.position), each.why[:WHY_CHARACTERS_MAX])
            for n, each in reports.items()
        ]
        if places:
            self._handle.commit(offsets=places, asynchronous=True)

    def close(self) -> None:
        """End the membership. The caller must have let its partitions go: he hears of them no more.

        It is over before the client is closed. A client that is closed while partitions come or go
        may wait for ever for a thread of its own that has ended, and keeps every other thread of
        Python waiting as it does so (librdkafka 2.16; inside ``incremental_unassign``).
        """
        self._on_assigned = self._on_revoked = self._on_lost = lambda partitions: None
        with contextlib.suppress(KafkaException):
            self._handle.unsubscribe()
            idle, end = 0, time.monotonic() + LEAVE_SECONDS
            # What came before is told first: partitions that come, then that all of them go.
            while idle < 2 and time.monotonic() < end:
                self._handle.poll(LEAVE_POLL_SECONDS)
                idle = 0 if self._handle.assignment() else idle + 1
        self._handle.close()


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of the group: its name and where it connects from, and the partitions it has."""

    name: str
    partitions: tuple[int, ...]


def owners(handles: Handles) -> dict[int, str]:
    """Who has which partition of the inbox."""
    return {number: peer.name for peer in peers(handles) for number in peer.partitions}


def peers(handles: Handles) -> list[Peer]:
    """The members of the group."""
    address = handles.address
    group = group_of(address)
    admin = handles.admin()
    try:
        answers: Any = admin.describe_consumer_groups([group], request_timeout=ASK_SECONDS)
        described = answers[group].result()
    except KafkaException as error:
        raise reading_failed(group, error, "Describe") from error
    return [
        Peer(
            f"{member.group_instance_id or member.client_id}@{member.host.strip('/')}",
            tuple(
                place.partition
                for place in (member.assignment.topic_partitions if member.assignment else ())
                if place.topic == address.proposals
            ),
        )
        for member in described.members
    ]


def reported(handles: Handles) -> dict[int, Report]:
    """What each partition's projector reported last."""
    address = handles.address
    asked = ConsumerGroupTopicPartitions(group_of(address))
    admin = handles.admin()
    try:
        answers: Any = admin.list_consumer_group_offsets([asked], request_timeout=ASK_SECONDS)
        places = answers[asked.group_id].result().topic_partitions
    except KafkaException as error:
        raise reading_failed(asked.group_id, error, "Describe") from error
    return {
        place.partition: Report(place.offset + 1, place.metadata or "")
        for place in places
        if place.topic == address.proposals and place.offset >= 0
    }
