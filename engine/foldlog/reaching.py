"""How a log that is elsewhere is reached: its URL, its settings file, and what may be wrong.

Invariants:
- confluent-kafka is loaded when a log on Kafka is reached, not before.
- Who folds into a folder is held to the log that it is the projection of.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from foldlog.apart import Apart
from foldlog.connected import ConnectedSeat
from foldlog.core.catalogue import RULES, Catalogue
from foldlog.errors import HomeExists, HomeMissing, LogRefused, Unavailable, Usage
from foldlog.evidence import EvidenceCheck
from foldlog.following import FOLLOWED, PROJECTION, Folder
from foldlog.home import LOG_FILE
from foldlog.log import base
from foldlog.log.base import MAX_PARTITIONS, Clock, LogError, LogExists, LogMissing
from foldlog.log.kafka.address import (
    Address,
    BadAddress,
    Known,
    check_settings,
    parse_url,
    read_settings,
)
from foldlog.plugins import Plugins, rules_of
from foldlog.projector_home import ProjectorHome
from foldlog.runtime import wall_clock
from foldlog.snapshots.keeper import Keeper, versions_here
from foldlog.snapshots.settings import SnapshotSettings, from_environment

if TYPE_CHECKING:
    from foldlog.log.kafka.log import KafkaLog
    from foldlog.log.kafka.owned import OwnedLog

PARTITIONS_DEFAULT = 4
SETTINGS_VARIABLE = "FOLDLOG_KAFKA_SETTINGS"

Settings = Mapping[str, Any] | str | os.PathLike[str] | None


def settings_file(settings: Settings) -> Path | None:
    """The file that the settings stand in; None if they stand in none."""
    given = settings if settings is not None else os.environ.get(SETTINGS_VARIABLE)
    return None if not given or isinstance(given, Mapping) else Path(given)


def address_and_settings(url: str, settings: Settings) -> tuple[Address, Mapping[str, Any]]:
    """Where a log is and the settings of its clients; Usage if they make no sense."""
    given = settings if settings is not None else os.environ.get(SETTINGS_VARIABLE) or {}
    try:
        if isinstance(given, Mapping):
            check_settings(given)
        else:
            given = read_settings(Path(given))
        return parse_url(url), given
    except BadAddress as error:
        raise Usage(str(error)) from None
    except OSError as error:
        raise Usage(f"{given} cannot be opened: {error.strerror}") from None


def create_log(url: str, partitions: int | None, settings: Settings = None) -> tuple[int, bool]:
    """Make the topics of a log where they are missing, and check them.

    Its number of partitions (4 unless told otherwise), and whether it was made now. HomeExists if
    it is there with another number than the one asked for; errors as of ``open_log``.
    """
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise Usage(f"a log has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    address, given = address_and_settings(url, settings)
    from foldlog.log.kafka.log import create

    made = True
    try:
        create(address, given, partitions or PARTITIONS_DEFAULT)
    except LogExists:
        made = False
    except LogError as error:
        raise _told(error) from error
    log = open_log(url, settings)
    try:
        found = log.partitions
    finally:
        log.close()
    if partitions not in (None, found):
        raise HomeExists(f"{address} is a log of {found} partitions, which cannot be changed")
    return found, made


def open_log(
    url: str,
    settings: Settings = None,
    known: Mapping[str, Any] | None = None,
) -> "KafkaLog":
    """A log that is elsewhere; HomeMissing, LogRefused, Unavailable or Usage."""
    address, given = address_and_settings(url, settings)
    from foldlog.log.kafka.log import KafkaLog

    try:
        return KafkaLog(address, given, known=_recognised(known))
    except LogError as error:
        raise _told(error) from error


def open_owned_log(
    url: str, settings: Settings = None, known: Mapping[str, Any] | None = None
) -> "OwnedLog":
    """A log that is elsewhere, for a projector; errors as of ``open_log``."""
    address, given = address_and_settings(url, settings)
    from foldlog.log.kafka.owned import OwnedLog

    try:
        return OwnedLog(address, given, known=_recognised(known))
    except LogError as error:
        raise _told(error) from error


def _recognised(known: Mapping[str, Any] | None) -> Known | None:
    return None if known is None else Known.from_dict(known)


def _told(error: LogError) -> HomeMissing | LogRefused | Unavailable:
    """An error of the log as users meet it."""
    if isinstance(error, LogMissing):
        return HomeMissing(str(error))
    if isinstance(error, base.LogRefused):
        return LogRefused(str(error))
    return Unavailable(str(error))


def folder_of(home: Path, stores: str = FOLLOWED) -> Folder:
    """The folder for stores of this kind; Usage where a home with a log of its own is."""
    if (home / LOG_FILE).exists():
        raise Usage(
            f"{home} is a home with a log of its own: name another --home for the projection"
        )
    return Folder(home, stores)


def connected_seat(
    url: str,
    home: Path,
    settings: Settings = None,
    rules: Mapping[int, Catalogue] = RULES,
    snapshots: SnapshotSettings | None = None,
) -> ConnectedSeat:
    """A seat at a log that is elsewhere, ``home`` for what is folded; errors as ``open_log``."""
    kept = snapshots or from_environment()
    address_and_settings(url, settings)  # before a folder is made
    folder = folder_of(home)
    log = open_log(url, settings, folder.known())
    try:
        folder.remember(log.known.to_dict())
        keeper = Keeper(home, log, wall_clock, kept, versions_here(rules), folder.disk, FOLLOWED)
        return ConnectedSeat(log, folder, rules, snapshots=keeper)
    except BaseException:
        log.close()
        raise


def stores_of(
    url: str,
    home: Path,
    settings: Settings = None,
    snapshots: SnapshotSettings | None = None,
    rules: Mapping[int, Catalogue] = RULES,
) -> ProjectorHome:
    """The stores that a home has of a log that is elsewhere, for who looks after them: a
    projector's, where one worked there, else those of followers. Errors as ``open_log``."""
    kept = snapshots or from_environment()
    address_and_settings(url, settings)  # before a folder is made
    folder = folder_of(home, PROJECTION if (home / PROJECTION).is_dir() else FOLLOWED)
    log = open_log(url, settings, folder.known())
    folder.remember(log.known.to_dict())
    return ProjectorHome(folder, log, wall_clock, kept, rules)


class Reaching:
    """How an engine connects."""

    if TYPE_CHECKING:
        _apart: Apart
        _folder: Path | None
        evidence_check: EvidenceCheck | None

        def __init__(
            self, seat: ConnectedSeat, clock: Clock, *, author: str | None = None
        ) -> None: ...
        def _start(self) -> None: ...
        def close(self) -> None: ...

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        home: str | os.PathLike[str],
        settings: Settings = None,
        author: str | None = None,
        clock: Clock = wall_clock,
        plugins: Plugins | None = None,
        evidence_check: EvidenceCheck | None = None,
        snapshots: SnapshotSettings | None = None,
    ) -> Self:
        """Connect to a log on Kafka, ``kafka://HOST[:PORT][,HOST]/PREFIX``.

        Projectors decide; this engine proposes, and folds what it reads into the folder ``home``,
        which is made where it is missing. ``settings`` are the client's own (security), or the
        file that has them (default: the one that FOLDLOG_KAFKA_SETTINGS names). The others are as
        of ``open``; the projectors need the same plug-ins. ``snapshots`` are those of what this
        home has folded; only those that are asked for are taken.

        HomeMissing if there is no such log, LogRefused (it must not be used as it is),
        Unavailable, Usage.
        """
        path, apart, made = Path(home), Apart(), list[Self]()
        rules = rules_of(plugins)

        def work() -> None:
            made.append(
                cls(connected_seat(url, path, settings, rules, snapshots), clock, author=author)
            )
            made[0]._start()

        apart.call(work, undo=lambda _: made.pop().close())
        [engine] = made
        engine._apart, engine._folder, engine.evidence_check = apart, path, evidence_check
        return engine
