"""What is wrong with a log on Kafka and with this home, and what to do about it.

Invariants:
- It looks and decides nothing; what it folds, it folds into the home, as every reader does.
- One thing that is broken stops no other from being looked at.
- Every finding that is not ok has a remedy that can be typed or done.
"""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from foldlog.connected import ConnectedSeat
from foldlog.doctor import BROKEN, UNAVAILABLE, Look, contents, folder, is_stopped
from foldlog.errors import Damaged, FoldlogError, HomeMissing, LogRefused
from foldlog.locks import FileLock
from foldlog.log.base import Clock, LogError
from foldlog.reaching import Settings, connected_seat, settings_file
from foldlog.results import Finding
from foldlog.runtime import SECOND
from foldlog.seat import STALLED_US
from foldlog.store.base import StoreError
from foldlog.version import __version__
from foldlog.wire.slots import STATE_FORMAT

if TYPE_CHECKING:
    from foldlog.log.kafka.groups import Peer, Report
    from foldlog.log.kafka.log import KafkaLog
    from foldlog.log.kafka.topics import Topic

MIN_IN_SYNC = "min.insync.replicas"


def examine_connected(
    url: str, home: Path, clock: Clock, settings: Settings = None
) -> list[Finding]:
    """Everything worth saying of a log on Kafka. HomeMissing if there is none."""
    looks = [_versions(url)]
    looks += _settings(settings)
    try:
        seat = connected_seat(url, home, settings)
    except HomeMissing:
        raise
    except FoldlogError as error:
        code = BROKEN if isinstance(error, LogRefused) else UNAVAILABLE
        looks += [Look("log", error.message, url, f"foldlog explain {error.code}", code)]
    else:
        try:
            looks += [*folder(home), *_members(home), *_inside(seat, clock)]
        finally:
            seat.close()
    return [look.finding() for look in looks]


def _versions(url: str) -> Look:
    from foldlog.log.kafka.handles import CLIENT_VERSION

    parts = [
        f"foldlog {__version__}",
        f"confluent-kafka {metadata.version('confluent-kafka')}",
        f"librdkafka {CLIENT_VERSION}",
        f"rocksdict {metadata.version('rocksdict')}",
        f"state format {STATE_FORMAT}",
    ]
    return Look("versions", ", ".join(parts), url)


def _settings(settings: Settings) -> Iterator[Look]:
    """A settings file that others may read: passwords stand in it."""
    file = settings_file(settings)
    if file is None or not file.exists():
        return
    if file.stat().st_mode & 0o077:
        what = "others may read the settings, in which passwords may stand"
        yield Look("settings", what, str(file), f"chmod 600 {file}")
    else:
        yield Look("settings", "only this user may read them", str(file))


# This machine's projectors


def _members(home: Path) -> Iterator[Look]:
    for file in sorted(home.glob("worker-*.lock")):
        lock = FileLock(file)
        note = lock.read()
        if not lock.is_taken() or note is None:
            yield Look("projector", "not running", str(file))
            continue
        who = f"process {note.pid} is {note.phase}"
        if is_stopped(note.pid):
            remedy = f"let it go on (kill -CONT {note.pid}), or end it and it is started again"
            yield Look(
                "projector", f"process {note.pid} is stopped", str(file), remedy, UNAVAILABLE
            )
        elif note.phase == "halted":
            remedy = "foldlog verify says more; then restore what is missing and start it again"
            yield Look("projector", f"{who}: {note.why}", str(file), remedy, BROKEN)
        elif note.phase == "waiting":
            remedy = "see to what it waits for; it goes on by itself then"
            yield Look("projector", f"{who}: {note.why}", str(file), remedy, UNAVAILABLE)
        else:
            yield Look("projector", who, str(file))


# The log


def _inside(seat: ConnectedSeat, clock: Clock) -> Iterator[Look]:
    log: KafkaLog = seat.place.log  # type: ignore[assignment]
    count = f"{log.partitions} partition{'s' if log.partitions > 1 else ''}"
    what = f"the topics are as they must be; {count}, cluster {log.known.cluster}"
    yield Look("log", what, str(log.address))
    yield from _topics(log)
    reports: dict[int, Report] = {}
    peers: list[Peer] | None = None
    try:
        from foldlog.log.kafka import groups

        peers, reports = groups.peers(log.handles), groups.reported(log.handles)
    except LogError as error:
        yield Look("group", f"cannot be asked: {error.what}", error.where, error.remedy)
    if peers is not None:
        yield _group(log, peers)
    for number in range(log.partitions):
        yield from _partition(seat, number)
        yield from _turning(log, number, reports, peers, clock)


def _topics(log: "KafkaLog") -> Iterator[Look]:
    try:
        found = log.found()
    except LogError as error:
        yield Look("topics", error.what, error.where, error.remedy, UNAVAILABLE)
        return
    for topic in (found.proposals, found.events):
        yield from _copies(topic)
        if topic.rights:
            what = f"this principal may {', '.join(sorted(topic.rights))}"
            yield Look("rights", what, topic.name)


def _copies(topic: "Topic") -> Iterator[Look]:
    fewest = min(copies for copies, _ in topic.copies)
    behind = [number for number, (copies, fresh) in enumerate(topic.copies) if fresh < copies]
    least = int(topic.configs.get(MIN_IN_SYNC, "1"))
    stuck = [number for number, (_, fresh) in enumerate(topic.copies) if fresh < least]
    if stuck:
        what = f"partitions {stuck} have fewer copies in sync than {MIN_IN_SYNC}={least}"
        yield Look("copies", what, topic.name, "start the brokers that are missing", UNAVAILABLE)
    elif behind:
        what = f"partitions {behind} have copies that are not in sync"
        yield Look("copies", what, topic.name, "see to the brokers; nothing is lost")
    elif fewest == 1:
        what = "one copy: what its broker loses is lost"
        yield Look("copies", what, topic.name, "have three, with min.insync.replicas=2")
    else:
        yield Look("copies", f"{fewest} copies, all in sync, {MIN_IN_SYNC}={least}", topic.name)


def _group(log: "KafkaLog", peers: "list[Peer]") -> Look:
    where = f"{log.address.prefix}.projector"
    if not peers:
        remedy = f"foldlog project --log {log.address} --workers N"
        return Look("group", "no projector is a member", where, remedy, UNAVAILABLE)
    each = (f"{peer.name} {list(peer.partitions)}" for peer in sorted(peers, key=lambda p: p.name))
    return Look("group", f"{len(peers)} projectors: {', '.join(each)}", where)


# Each partition


def _partition(seat: ConnectedSeat, number: int) -> Iterator[Look]:
    where = f"partition {number}"
    try:
        with seat.reading_partition(number) as view:
            meta = view.meta()
            what = f"folded to sequence {meta.sequence}, head {meta.head.hex()[:12]}"
            yield Look("projection", what, where)
            yield from contents(view, where)
    except Damaged as error:
        remedy = "foldlog verify; restore the topic, or what is missing of it"
        yield Look("projection", f"halted: {error.message}", where, remedy, BROKEN)
    except FoldlogError as error:
        remedy = f"foldlog explain {error.code}"
        yield Look("projection", error.message, where, remedy, UNAVAILABLE)
    except (StoreError, LogError) as error:
        yield Look("projection", error.what, error.where, error.remedy, UNAVAILABLE)


def _turning(
    log: "KafkaLog",
    number: int,
    reports: "dict[int, Report]",
    peers: "list[Peer] | None",
    clock: Clock,
) -> Iterator[Look]:
    """Whether what waits in a partition is being decided."""
    where, report = f"partition {number}", reports.get(number)
    owner = next((peer.name for peer in peers or () if number in peer.partitions), None)
    if report is not None and report.why:
        remedy = "see to what it waits for; it goes on by itself then"
        yield Look("turns", f"{owner or 'its projector'} waits: {report.why}", where, remedy,
                   UNAVAILABLE)  # fmt: skip
    try:
        first = log.proposals(number, 1 if report is None else report.position, 1, 1)
    except LogError as error:
        yield Look("turns", f"cannot be asked: {error.what}", error.where, error.remedy)
        return
    ago = clock() - first[0].appended_at if first else 0
    who = f"{owner} decides it" if owner else "nobody decides it"
    if ago >= STALLED_US:
        what = f"{who}, and a proposal waits for {ago // SECOND} s"
        remedy = f"foldlog project --log {log.address}"
        yield Look("turns", what, where, remedy, UNAVAILABLE)
    else:
        yield Look("turns", who, where)
