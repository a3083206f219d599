"""The topics of a log: made as a log of record needs them, and refused where they are not so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from foldlog import Engine
from foldlog.errors import HomeExists, HomeMissing, LogRefused, Unavailable, Usage
from foldlog.log.kafka.address import Address, Known, parse_url
from foldlog.log.kafka.topics import WEEK_MS
from foldlog.reaching import create_log, open_log

NewUrl = Callable[[], str]


def admin(address: Address) -> AdminClient:
    """A client that may do anything."""
    return AdminClient({"bootstrap.servers": address.servers})


def alter(address: Address, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic."""
    client = admin(address)
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result()


def delete(address: Address, *topics: str) -> None:
    """Delete topics and wait until they are gone."""
    client = admin(address)
    for future in client.delete_topics(list(topics)).values():
        future.result()
    while set(topics) & set(client.list_topics(timeout=10).topics):
        time.sleep(0.05)


def refused(url: str, known: Known | None = None, *, within: float = 60.0) -> str:
    """Why a log is refused; a change of a topic takes a moment to reach the brokers."""
    end = time.monotonic() + within
    while True:
        try:
            open_log(url, known=None if known is None else known.to_dict()).close()
        except LogRefused as error:
            return error.message
        assert time.monotonic() < end, "the log was not refused"


def open_until(url: str) -> None:
    """Open a log once the brokers have heard of what was changed."""
    end = time.monotonic() + 60
    while True:
        try:
            open_log(url).close()
            return
        except LogRefused:
            assert time.monotonic() < end
            time.sleep(0.1)


def known_of(url: str) -> Known:
    """What a log is recognised by."""
    log = open_log(url)
    log.close()
    return log.known


def test_topics_are_made_as_a_log_of_record_needs_them(new_url: NewUrl) -> None:
    """Init makes both topics with the time of the log, no compaction and no loss."""
    url = new_url()
    assert create_log(url, 3) == (3, True)
    address = parse_url(url)
    client = admin(address)
    kept = {address.events: "-1", address.proposals: str(WEEK_MS)}
    for topic, retention in kept.items():
        resource = ConfigResource(ResourceType.TOPIC, topic)
        configs = client.describe_configs([resource])[resource].result()
        found = {name: entry.value for name, entry in configs.items()}
        assert found["cleanup.policy"] == "delete"
        assert found["retention.ms"] == retention
        assert found["retention.bytes"] == "-1"
        assert found["message.timestamp.type"] == "LogAppendTime"
        assert len(client.list_topics(topic, timeout=10).topics[topic].partitions) == 3


def test_topics_that_are_there_are_left_as_they_are(new_url: NewUrl) -> None:
    """Init again changes nothing; asked for another number of partitions it refuses."""
    url = new_url()
    assert create_log(url, None) == (4, True)
    before = known_of(url)
    assert create_log(url, None) == (4, False)
    assert create_log(url, 4) == (4, False)
    with pytest.raises(HomeExists, match="4 partitions"):
        create_log(url, 5)
    assert known_of(url) == before


WRONG = [
    ("events", "cleanup.policy", "compact", "delete"),
    ("events", "cleanup.policy", "delete,compact", "delete"),
    ("events", "retention.ms", str(365 * 24 * 3_600_000), "-1"),
    ("events", "retention.bytes", "1000000000", "-1"),
    ("events", "message.timestamp.type", "CreateTime", "LogAppendTime"),
    ("events", "max.message.bytes", "100000", "1048588"),
    ("proposals", "cleanup.policy", "compact", "delete"),
    ("proposals", "retention.ms", str(WEEK_MS - 1), "7 days"),
    ("proposals", "retention.bytes", "1000000000", "-1"),
    ("proposals", "message.timestamp.type", "CreateTime", "LogAppendTime"),
]


@pytest.mark.parametrize(("half", "name", "value", "wanted"), WRONG)
def test_fault_36_a_topic_that_would_lose_its_records_is_refused(
    new_url: NewUrl, tmp_path: Path, half: str, name: str, value: str, wanted: str
) -> None:
    """Compaction, finite retention or CreateTime: every start names topic, setting, value, and the
    command that mends it, which does."""
    url = new_url()
    create_log(url, 1)
    address = parse_url(url)
    topic = getattr(address, half)
    alter(address, topic, name, value)
    message = refused(url)
    for part in (topic, f"{name}={value}", wanted, "kafka-configs.sh", "--add-config"):
        assert part in message
    with pytest.raises(LogRefused):
        Engine.connect(url, home=tmp_path / "home")
    name, _, right = message.rpartition("--add-config ")[2].partition("=")
    alter(address, topic, name, right)
    open_until(url)


def test_proposals_may_be_kept_for_longer(new_url: NewUrl) -> None:
    """More than 7 days, or for ever, is fine."""
    url = new_url()
    create_log(url, 1)
    address = parse_url(url)
    for value in (str(2 * WEEK_MS), "-1"):
        alter(address, address.proposals, "retention.ms", value)
        with contextlib.closing(open_log(url)) as log:
            assert log.proposals_end(0) == 1


def test_partitions_that_were_added_are_refused(new_url: NewUrl) -> None:
    """A run would be looked for in another partition: in one topic everybody sees it, in both
    whoever has a projection."""
    url = new_url()
    create_log(url, 2)
    address, known = parse_url(url), known_of(url)
    client = admin(address)
    client.create_partitions([NewPartitions(address.proposals, 3)])[address.proposals].result()
    assert "has 3 partitions, and the log has 2" in refused(url)
    client.create_partitions([NewPartitions(address.events, 3)])[address.events].result()
    assert "has 3 partitions, and the log has 2" in refused(url, known)


def test_another_cluster_is_refused(new_url: NewUrl) -> None:
    """A home is the projection of a log in one cluster, whatever the address leads to."""
    url = new_url()
    create_log(url, 1)
    message = refused(url, replace(known_of(url), cluster="another"))
    assert "and the projection is of another" in message


@pytest.mark.parametrize("half", ["events", "proposals"])
def test_a_topic_made_anew_is_refused(new_url: NewUrl, tmp_path: Path, half: str) -> None:
    """A topic of the same name with nothing in it is another topic, for a home that knew it."""
    url = new_url()
    create_log(url, 1)
    Engine.connect(url, home=tmp_path / "home").close()
    address = parse_url(url)
    topic = getattr(address, half)
    delete(address, topic)
    client = admin(address)
    kept = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    client.create_topics([NewTopic(topic, 1, 1, config=kept)])[topic].result()
    open_until(url)
    with pytest.raises(LogRefused, match="deleted and made anew"):
        Engine.connect(url, home=tmp_path / "home")
    Engine.connect(url, home=tmp_path / "another").close()


def test_half_a_log_is_refused(new_url: NewUrl) -> None:
    """Where one topic is missing it is named, and not made anew: not by init either, since what
    was in it would be decided once more."""
    url = new_url()
    create_log(url, 1)
    address = parse_url(url)
    delete(address, address.events)
    assert f"the topic {address.events} is missing" in refused(url)
    with pytest.raises(LogRefused, match="is missing"):
        create_log(url, 1)


def test_where_there_is_no_log(new_url: NewUrl, tmp_path: Path) -> None:
    """Without topics there is no home: the message says how to make one."""
    url = new_url()
    with pytest.raises(HomeMissing, match="foldlog init --log kafka://"):
        Engine.connect(url, home=tmp_path / "home")


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    """An address where nobody answers is an outage, told within its time."""
    with pytest.raises(Unavailable):
        Engine.connect("kafka://127.0.0.1:9/nobody", home=tmp_path / "home")


def test_a_home_with_a_log_of_its_own_is_not_mixed_up(new_url: NewUrl, tmp_path: Path) -> None:
    """The projection of a log on Kafka is not put where an embedded log is."""
    url = new_url()
    create_log(url, 1)
    Engine.open(tmp_path / "home", create=True).close()
    with pytest.raises(Usage, match="another --home"):
        Engine.connect(url, home=tmp_path / "home")


@pytest.mark.parametrize(
    "url",
    ["kafka://h", "kafka:///p", "kafka://h/p/q", "kafka://h:x/p", "sqlite://h/p", "kafka://h/p q"],
)
def test_addresses_that_are_none(url: str, tmp_path: Path) -> None:
    """What is no address is told as such, and nothing is made or asked."""
    with pytest.raises(Usage, match="HOST"):
        Engine.connect(url, home=tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


def test_settings_pass_through_but_for_ours(new_url: NewUrl, tmp_path: Path) -> None:
    """A settings file reaches the client; what foldlog's promises rest on is refused."""
    url = new_url()
    create_log(url, 1)
    file = tmp_path / "client.properties"
    file.write_text("# who we are\nclient.id = auditor\n\nsecurity.protocol=PLAINTEXT\n")
    Engine.connect(url, home=tmp_path / "home", settings=file).close()
    for line in ("acks=0", "auto.offset.reset=latest", "enable.idempotence=false"):
        file.write_text(f"client.id=x\n{line}\n")
        with pytest.raises(Usage, match=line.partition("=")[0]):
            Engine.connect(url, home=tmp_path / "home", settings=file)
    file.write_text("no equals sign\n")
    with pytest.raises(Usage, match="line 1"):
        Engine.connect(url, home=tmp_path / "home", settings=file)
    wrong = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    with pytest.raises(Unavailable):
        Engine.connect(url, home=tmp_path / "home", settings=wrong)


def test_topics_made_by_others_are_taken(new_url: NewUrl) -> None:
    """A cluster's owner may make the topics; init and every start only check them."""
    url = new_url()
    address = parse_url(url)
    shared = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    topics = [NewTopic(name, 2, 1, config=shared) for name in (address.proposals, address.events)]
    client = admin(address)
    for future in client.create_topics(topics).values():
        future.result()
    assert create_log(url, None) == (2, False)
