"""The command snapshot: taken, listed, verified, restored, pruned.

Invariants:
- Nothing here stops whoever turns the log; only `restore` needs the projection to be free.
- A snapshot that does not verify is data (stdout) and exit 5, not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from foldlog.cli import options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.output import Progress, counted, paint
from foldlog.cli.safe import safe

if TYPE_CHECKING:
    from foldlog.cli.options import AnyHome
    from foldlog.snapshots.pruning import Pruned

Json = dict[str, Any]

ACTIONS = ("create", "list", "verify", "restore", "prune")


@command(
    "snapshot",
    "foldlog snapshot create",
    "foldlog snapshot list --json",
    "foldlog snapshot verify",
    "foldlog snapshot restore --partition 2",
    "foldlog snapshot prune --keep 3",
)
@click.argument("action", metavar="|".join(ACTIONS), type=click.Choice(ACTIONS))
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--partition", type=click.IntRange(min=0), metavar="N",
              help="Of this partition only. [all of them]")  # fmt: skip
@click.option("--keep", type=click.IntRange(min=2), metavar="N",
              help="prune: how many are kept of each partition. "
              "[FOLDLOG_SNAPSHOT_KEEP, else 2]")  # fmt: skip
@options.snapshots_option
@pass_settings
def snapshot(
    settings: Settings, action: str, name: str | None, partition: int | None, keep: int | None
) -> int:
    """Take, list, verify, restore or prune snapshots.

    A snapshot is a verified copy of one partition's projection, from which it is recovered instead
    of from the start of the log. Snapshots lie in the folder `snapshots` of the home, or where
    FOLDLOG_SNAPSHOT_DIR says. They are also taken by themselves, see FOLDLOG_SNAPSHOT_RECORDS,
    _BYTES, _SECONDS and _KEEP. With --snapshots each is also uploaded to a place elsewhere, from
    which another machine takes over; every action is then about both.

    create takes one of each partition while the log is turned, at the cost of what changed since
    the last. list shows them, quarantined ones too. verify checks every file by its hash, opens
    each copy and counts its keys; it ends with 5 if one is not what it was. restore puts the newest
    good one (or NAME) in the place of the projection, which nobody may hold; what came after it
    is folded from the log when the home is opened next. prune removes what is older than the
    newest two that verify.
    """
    if name is not None and action not in ("verify", "restore"):
        raise click.UsageError(f"NAME is for verify and restore, not for {action}")
    if keep is not None and action != "prune":
        raise click.UsageError(f"--keep is for prune, not for {action}")
    if action == "create":
        return _create(settings, partition)
    with options.stores_of(settings) as home:
        numbers = options.partition_numbers(partition, home.log.partitions)
        if action == "list":
            return _list(settings, home, numbers)
        if action == "verify":
            return _verify(settings, home, numbers, name)
        if action == "restore":
            return _restore(settings, home, numbers, name)
        return _prune(settings, home, numbers, keep)


def _create(settings: Settings, partition: int | None) -> int:
    with Progress("copied bytes") as bar:
        rows = _taken(settings, partition, bar)
    for row in rows:
        if settings.json:
            output.say_json(row)
            continue
        size, copied = counted(row["bytes"], "byte"), counted(row["bytes_copied"], "byte")
        state = f"{size}, {copied} copied" if row["is_new"] else "nothing changed since then"
        output.say(
            f"partition {row['partition']}: snapshot {row['name']},"
            f" {counted(row['keys'], 'key')}, {state}"
        )
    if not rows:
        output.note("nothing is folded yet, so there is nothing to take a snapshot of")
    return 0


def _taken(settings: Settings, partition: int | None, bar: Progress) -> list[Json]:
    if not options.is_of_projector(settings):
        with options.opened(settings) as engine:
            numbers = options.partition_numbers(partition, engine.partitions)
            return [row.to_dict() for row in engine.take_snapshots(numbers, progress=bar)]
    with options.stores_of(settings) as home:
        numbers = options.partition_numbers(partition, home.log.partitions)
        rows = [home.snapshots.take(number, bar) for number in numbers]
    return [row for row in rows if row is not None]


def _list(settings: Settings, home: AnyHome, numbers: list[int]) -> int:
    rows = [row for number in numbers for row in home.snapshots.rows(number)]
    if settings.json:
        for row in rows:
            output.say_json(row)
        return 0
    if not rows:
        output.note("no snapshots: foldlog snapshot create")
        return 0
    shown = [
        (row["partition"], row["name"], _or_dash(row["keys"]), _or_dash(row["bytes"]),
         output.shown_time(row["taken_at"]), row["state"], " ".join(row["where"]))
        for row in rows
    ]  # fmt: skip
    columns = ("PART", "NAME", "KEYS", "BYTES", "TAKEN", "STATE", "WHERE")
    shows_where = slice(None if home.snapshots.remotes else -1)
    output.table(columns[shows_where], [row[shows_where] for row in shown])
    for row in rows:
        if row["reason"] is not None:
            output.note(f"{row['name']}: {safe(row['reason'])}")
    return 0


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _verify(settings: Settings, home: AnyHome, numbers: list[int], name: str | None) -> int:
    from foldlog.errors import SnapshotDamaged

    keeper = home.snapshots
    numbers = _of(home, numbers, name)
    wanted = [
        (number, each, where)
        for number in numbers
        for each, places in keeper.lie(number).items()
        for where in places
        if name in (None, each)
    ]
    bad = 0
    with Progress("checked bytes") as bar:
        for number, each, where in wanted:
            row: Json = {"partition": number, "name": each, "where": where}
            row |= {"ok": True, "reason": None}
            try:
                if where == "here":
                    keeper.verify(number, each, bar)
                else:
                    keeper.remotes[number].verify(each, passed=bar)
            except SnapshotDamaged as error:
                row.update(ok=False, reason=error.message)
                bad += 1
            _say_verified(settings, row)
    if not wanted:
        output.note("no snapshots: foldlog snapshot create")
    return 5 if bad else 0


def _say_verified(settings: Settings, row: Json) -> None:
    if settings.json:
        output.say_json(row)
        return
    mark = paint("ok", "bold", "green") if row["ok"] else paint("DAMAGED", "bold", "red")
    why = "" if row["ok"] else f": {safe(row['reason'])}"
    where = "" if row["where"] == "here" else " at the place"
    output.say(f"{mark}: partition {row['partition']}, snapshot {row['name']}{where}{why}")


def _of(home: AnyHome, numbers: list[int], name: str | None) -> list[int]:
    """The partition of the snapshot that is named, which must be one of those; else all of them."""
    if name is None:
        return numbers
    number = home.snapshots.find(name)
    if number not in numbers:
        raise click.UsageError(f"snapshot {name} is of partition {number}")
    return [number]


def _restore(settings: Settings, home: AnyHome, numbers: list[int], name: str | None) -> int:
    numbers = _of(home, numbers, name)
    rows = home.restore(numbers, name)
    for row in rows:
        if settings.json:
            output.say_json(row)
        elif row["name"] is None:
            output.say(f"partition {row['partition']}: no usable snapshot, left as it is")
        else:
            output.say(f"partition {row['partition']}: restored from snapshot {row['name']},"
                       f" sequence {row['sequence']}")  # fmt: skip
    return 0


def _prune(settings: Settings, home: AnyHome, numbers: list[int], keep: int | None) -> int:
    keeper = home.snapshots
    for number in numbers:
        _say_pruned(settings, number, "here", keeper.prune(number, keep))
        if keeper.remotes:
            kept = keep or keeper.settings.keep
            _say_pruned(settings, number, "place", keeper.remotes[number].prune(kept, whole=True))
    return 0


def _say_pruned(settings: Settings, number: int, where: str, pruned: Pruned) -> None:
    if settings.json:
        row: Json = {"partition": number, "where": where, "kept": list(pruned.kept)}
        row |= {"removed": list(pruned.removed), "quarantined": list(pruned.quarantined)}
        output.say_json(row)
        return
    found = f", {len(pruned.quarantined)} found bad" if pruned.quarantined else ""
    there = "" if where == "here" else " at the place"
    kept, removed = len(pruned.kept), len(pruned.removed)
    output.say(f"partition {number}{there}: {kept} kept, {removed} removed{found}")
