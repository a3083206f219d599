"""Where a log on Kafka is, and the settings of its clients that are the operator's to choose.

Nothing of confluent-kafka is loaded here: a URL can be judged without it.

Invariants:
- Settings pass through to the client as they are (security, time-outs, names), except those on
  which what foldlog promises depends: naming one of these is an error.
- A password stands in the settings file, never in the URL, and in no message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

SCHEME = "kafka://"
_URL = re.compile(r"kafka://(?P<servers>[^/]+)/(?P<prefix>[A-Za-z0-9._-]{1,200})/?")
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")

OURS = frozenset(
    """
    acks auto.offset.reset bootstrap.servers check.crcs enable.auto.commit enable.auto.offset.store
    enable.gapless.guarantee enable.idempotence enable.partition.eof group.id group.instance.id
    group.protocol group.remote.assignor isolation.level max.in.flight
    max.in.flight.requests.per.connection message.timeout.ms delivery.timeout.ms
    partition.assignment.strategy partitioner request.required.acks transactional.id
    """.split()
)
"""Settings that foldlog's promises rest on."""


class BadAddress(ValueError):
    """A URL or a settings file that names no log; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Address:
    """The brokers to ask first, and what the names of the two topics begin with."""

    servers: str
    prefix: str

    @property
    def proposals(self) -> str:
        """The topic of the inbox."""
        return f"{self.prefix}.proposals"

    @property
    def events(self) -> str:
        """The topic of the truth."""
        return f"{self.prefix}.events"

    def __str__(self) -> str:
        return f"{SCHEME}{self.servers}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Known:
    """What a log on Kafka is recognised by."""

    cluster: str
    partitions: int
    proposals: str
    events: str

    @property
    def identity(self) -> str:
        """One name for all of it but the number of partitions."""
        return f"kafka:{self.cluster}:{self.events}:{self.proposals}"

    @property
    def origin(self) -> dict[str, str]:
        """The same in parts, as a snapshot's manifest names it."""
        return {"cluster": self.cluster, "proposals": self.proposals, "events": self.events}

    def to_dict(self) -> dict[str, Any]:
        """As it is kept beside a projection."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """What ``to_dict`` gave."""
        return cls(value["cluster"], value["partitions"], value["proposals"], value["events"])


def parse_url(url: str) -> Address:
    """``kafka://HOST[:PORT][,HOST[:PORT]...]/PREFIX``; the port is 9092 unless it is given."""
    found = _URL.fullmatch(url)
    if found is None:
        raise BadAddress(f"{url!r} is not kafka://HOST[:PORT][,HOST[:PORT]]/PREFIX")
    servers = []
    for server in found["servers"].split(","):
        match = _SERVER.fullmatch(server)
        if match is None:
            raise BadAddress(f"{server!r} in {url!r} is not HOST or HOST:PORT")
        servers.append(server if match[2] else f"{server}:9092")
    return Address(",".join(servers), found["prefix"])


def read_settings(path: Path) -> dict[str, str]:
    """A settings file: ``name=value`` lines with the names of librdkafka, ``#`` before a remark."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise BadAddress(f"{path}, line {number}: not NAME=VALUE")
        found[name.strip()] = value.strip()
    check_settings(found)
    return found


def check_settings(settings: Mapping[str, Any]) -> None:
    """BadAddress if a setting is not the operator's to choose."""
    taken = sorted(OURS.intersection(settings))
    if taken:
        raise BadAddress(f"foldlog sets {', '.join(taken)} itself, so the settings must not")
