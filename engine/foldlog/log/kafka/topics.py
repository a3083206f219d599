"""The two topics of a log: making them, and checking that they are what a log of record must be.

Invariants:
- What was decided is never thrown away: no compaction and no retention on ``events``; what was
  proposed stays for 7 days at least.
- The rules go by the time of the log, so both topics stamp with LogAppendTime.
- A topic that was deleted and made anew is another topic: its id is kept beside the projection.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from foldlog.log.base import LogError, LogExists, LogMissing, LogRefused
from foldlog.log.kafka.address import Address, Known
from foldlog.log.kafka.handles import (
    FORBIDDEN,
    MESSAGE_BYTES_MAX,
    NOT_LET_IN,
    Handles,
    error_of,
    forbidden,
    reading_failed,
)

WEEK_MS = 7 * 24 * 60 * 60 * 1000
ASK_SECONDS = 10.0
"""How long the brokers have to answer a question about topics."""

HEAR_SECONDS = 0.2
"""How often one listens meanwhile for why there is no answer."""

MADE_SECONDS = 20.0
"""How long a topic that was made has to show up at the brokers."""

RIGHTS = {
    "READ": "Read",
    "WRITE": "Write",
    "DESCRIBE": "Describe",
    "DESCRIBE_CONFIGS": "DescribeConfigs",
}
"""What somebody may have to be allowed, by the client's names."""

RECORD_ROOM_BYTES = 1_048_588
"""Kafka's default for a message; a record is at most 1,000,000 bytes."""


Copies = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it.

    ``copies``: how many each partition has, and how many of them are in sync; ``rights`` are those
    of whoever asked.
    """

    name: str
    id: str
    copies: Copies
    rights: frozenset[str]
    configs: Mapping[str, str]

    @property
    def partitions(self) -> int:
        """How many it has."""
        return len(self.copies)


@dataclass(frozen=True, slots=True)
class Found:
    """Both topics, and the cluster that they are in."""

    cluster: str
    proposals: Topic
    events: Topic

    @property
    def known(self) -> Known:
        """What it is recognised by."""
        return Known(self.cluster, self.events.partitions, self.proposals.id, self.events.id)


def create_topics(handles: Handles, partitions: int, *, create_time: bool = False) -> None:
    """Make both topics; LogExists if both are there, LogRefused if one of them is.

    As many copies as the cluster makes by default, and its own minimum of those in sync.
    """
    with contextlib.suppress(LogMissing):
        find_topics(handles)
        raise LogExists(str(handles.address), "both topics are there already", "use them")
    stamps = "CreateTime" if create_time else "LogAppendTime"
    shared = {
        "cleanup.policy": "delete",
        "retention.bytes": "-1",
        "message.timestamp.type": stamps,
        "max.message.bytes": str(MESSAGE_BYTES_MAX),
    }
    address = handles.address
    # A test's clock may stand long ago, and the brokers would throw away what is that old.
    week = "-1" if create_time else str(WEEK_MS)
    retention = {address.proposals: week, address.events: "-1"}
    topics = [
        NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=-1,
            config={**shared, "retention.ms": kept},
        )
        for name, kept in retention.items()
    ]
    asking = _Asking(handles)
    for rehearsed in (True, False):  # what may not be made is told before half of it is
        answers = asking.admin.create_topics(topics, validate_only=rehearsed)
        made = [_await_made(asking, name, future) for name, future in answers.items()]
        if not any(made):
            _await_topics(handles)
            raise LogExists(str(handles.address), "both topics are there already", "use them")
    _await_topics(handles)


def _await_made(asking: _Asking, name: str, future: Any) -> bool:
    """Wait for a topic; False for one that somebody else made meanwhile, which is as good."""
    try:
        future.result(ASK_SECONDS)
    except KafkaException as error:
        code = error_of(error).code()
        if code in (KafkaError.INVALID_PARTITIONS, KafkaError.POLICY_VIOLATION):
            what = f"the cluster refused to make it ({error_of(error).str()})"
            remedy = "ask for what its policy allows"
            raise LogRefused(str(asking.address), what, remedy) from error
        if code != KafkaError.TOPIC_ALREADY_EXISTS:
            raise asking.failed(name, "Create", error) from error
        return False
    return True


def _await_topics(handles: Handles) -> None:
    """Brokers learn of a new topic one after the other."""
    end = time.monotonic() + MADE_SECONDS
    while True:
        try:
            find_topics(handles)
            return
        except (LogMissing, LogRefused):
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)


def find_topics(handles: Handles) -> Found:
    """Both topics as they are; LogMissing if there is none, LogRefused if one is missing."""
    asking, address = _Asking(handles), handles.address
    names = [address.proposals, address.events]
    ids = asking.described(names)
    missing = [name for name in names if name not in ids]
    if len(missing) == 2:
        remedy = f"foldlog init --log {address}"
        raise LogMissing(str(address), "there are no such topics", remedy)
    if missing:
        what = f"the topic {missing[0]} is missing, and {next(iter(ids))} is there"
        remedy = "restore it; a new one would not hold what was in it"
        raise LogRefused(str(address), what, remedy)
    configs = asking.configs(names)
    proposals, events = (Topic(name, *ids[name], configs[name]) for name in names)
    return Found(asking.cluster(), proposals, events)


class _Asking:
    """Questions about topics; what was not answered is an error of the log that says why."""

    def __init__(self, handles: Handles) -> None:
        self.address = handles.address
        self._heard: list[KafkaError] = []
        self.admin = handles.admin(self._heard.append)

    def failed(self, name: str, right: str, raised: KafkaException) -> LogError:
        """Why a question about a topic was not answered."""
        where = name if error_of(raised).code() in FORBIDDEN else str(self.address)
        return reading_failed(where, raised, right)

    def _answer(self, future: Future[Any]) -> Any:
        # Of who is not let in a question just takes too long; why, the client says beside it.
        while not wait((future,), HEAR_SECONDS).done:
            self.admin.poll(0)
            for error in self._heard:
                if error.code() in NOT_LET_IN:
                    raise KafkaException(error)
        return future.result()

    def described(self, names: list[str]) -> dict[str, tuple[str, Copies, frozenset[str]]]:
        """Id, copies of the partitions, and rights, of the topics that are there."""
        found = {}
        answers = self.admin.describe_topics(
            TopicCollection(names), include_authorized_operations=True, request_timeout=ASK_SECONDS
        )
        for name, future in answers.items():
            try:
                topic = self._answer(future)
            except KafkaException as error:
                if error_of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self.failed(name, "Describe", error) from error
                continue
            allowed: Any = topic.authorized_operations
            rights = frozenset(RIGHTS[each.name] for each in allowed or () if each.name in RIGHTS)
            copies = tuple((len(each.replicas), len(each.isr)) for each in topic.partitions)
            found[name] = (str(topic.topic_id), copies, rights)
        return found

    def configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        """How topics are set up."""
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self.admin.describe_configs(asked, request_timeout=ASK_SECONDS)
        found = {}
        for resource, future in answers.items():
            try:
                entries = self._answer(future)
            except KafkaException as error:
                raise self.failed(resource.name, "DescribeConfigs", error) from error
            found[resource.name] = {name: str(entry.value) for name, entry in entries.items()}
        return found

    def cluster(self) -> str:
        """Which cluster this is."""
        try:
            metadata = self.admin.list_topics(self.address.events, timeout=ASK_SECONDS)
        except KafkaException as error:
            raise self.failed(self.address.events, "Describe", error) from error
        return str(metadata.cluster_id)


def check_rights(found: Found, needs: Sequence[str]) -> None:
    """LogForbidden unless each of these is allowed of both topics."""
    for topic in (found.proposals, found.events):
        for right in needs:
            if topic.rights and right not in topic.rights:
                raise forbidden(topic.name, right, "topic", "its ACLs do not say so")


def check_topics(
    address: Address, found: Found, known: Known | None = None, *, create_time: bool = False
) -> None:
    """LogRefused unless the topics are set up as they must be, and are those that were known."""
    if known is not None:
        _check_known(address, found, known)
    for topic in (found.proposals, found.events):
        for name, value, wanted in _wrong(topic, topic is found.events, create_time):
            what = f"topic {topic.name} has {name}={value}, and a log of record needs {wanted}"
            remedy = (
                f"kafka-configs.sh --bootstrap-server {address.servers} --alter --topic "
                f"{topic.name} --add-config {name}={wanted.split()[0]}"
            )
            raise LogRefused(str(address), what, remedy)
    if found.proposals.partitions != found.events.partitions:
        raise _other_partitions(
            address, found.events.partitions, found.proposals.partitions, found.proposals.name
        )


def _wrong(topic: Topic, is_events: bool, create_time: bool) -> Iterator[tuple[str, str, str]]:
    """Each setting that is wrong, its value, and what it has to be."""
    configs = topic.configs
    if configs["cleanup.policy"] != "delete":
        yield "cleanup.policy", configs["cleanup.policy"], "delete"
    if int(configs["retention.bytes"]) >= 0:
        yield "retention.bytes", configs["retention.bytes"], "-1"
    kept = int(configs["retention.ms"])
    if kept >= 0 and is_events:
        yield "retention.ms", str(kept), "-1"
    if 0 <= kept < WEEK_MS and not is_events:
        yield "retention.ms", str(kept), f"{WEEK_MS} (7 days) or more"
    if configs["message.timestamp.type"] != "LogAppendTime" and not create_time:
        yield "message.timestamp.type", configs["message.timestamp.type"], "LogAppendTime"
    if int(configs["max.message.bytes"]) < RECORD_ROOM_BYTES:
        yield "max.message.bytes", configs["max.message.bytes"], f"{RECORD_ROOM_BYTES} or more"


def _check_known(address: Address, found: Found, known: Known) -> None:
    if found.cluster != known.cluster:
        what = f"this is the cluster {found.cluster}, and the projection is of {known.cluster}"
        raise LogRefused(
            str(address), what, "connect to the other one, or name another --home for this one"
        )
    for topic, id in ((found.proposals, known.proposals), (found.events, known.events)):
        if topic.id != id:
            what = f"the topic {topic.name} was deleted and made anew ({id} is now {topic.id})"
            raise LogRefused(
                str(address), what, "restore the old one, or name another --home for a new log"
            )
    for topic in (found.proposals, found.events):
        if topic.partitions != known.partitions:
            raise _other_partitions(address, known.partitions, topic.partitions, topic.name)


def _other_partitions(address: Address, expected: int, here: int, name: str) -> LogError:
    what = f"topic {name} has {here} partitions, and the log has {expected}"
    remedy = "runs would be looked for in other partitions: restore the topic as it was"
    return LogRefused(str(address), what, remedy)
