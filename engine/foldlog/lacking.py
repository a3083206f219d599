"""Which plug-ins the runs of a partition use, and which of them this build has not.

A run uses the plug-ins of the rules that it is pinned to, for as long as it is: a finished one too,
since what is proposed to it is still decided. The fold counts such runs by their rules, so nobody
has to look at every run to know.

Invariants:
- The count is a part of the fold, and the same for whoever folds: no plug-in is asked.
- A run that is being imported counts: what comes of it has to be folded.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from foldlog.core.catalogue import Catalogue
from foldlog.core.plugins import RULES_OF_PLUGINS_MIN
from foldlog.core.state import Draft, Slot
from foldlog.errors import PluginMissing
from foldlog.store.base import Reader
from foldlog.wire import keys
from foldlog.working import Run, Working, open_run

COUNT_BYTES = 8


def pinned_to(run: Run) -> int | None:
    """The rules of plug-ins that a run is pinned to; None if its rules are foldlog's own."""
    return _of_plugins(run.slots.get("rules", ""))


def _of_plugins(slot: Slot | None) -> int | None:
    return None if slot is None or slot.value < RULES_OF_PLUGINS_MIN else int(slot.value)


def count_pinned(working: Working, run: Run, draft: Draft) -> None:
    """Count the run under the rules that a draft pins it to; before it takes the draft over."""
    at = ("rules", "")
    if at in draft.changes:
        for rules, change in ((pinned_to(run), -1), (_of_plugins(draft.changes[at]), 1)):
            if rules is not None:
                key = keys.used_key(rules)
                data = working.changes[key] if key in working.changes else working.reader.get(key)
                count = int.from_bytes(data or b"", "big") + change
                working.changes[key] = count.to_bytes(COUNT_BYTES, "big") if count else None


def used_in(reader: Reader) -> Iterator[tuple[int, int]]:
    """The rules of plug-ins that runs of a partition use, and how many of them."""
    for key, data in reader.scan(keys.USED_PREFIX):
        yield keys.rules_of(key), int.from_bytes(data, "big")


def lacking(reader: Reader, rules: Mapping[int, Catalogue]) -> list[dict[str, Any]]:
    """What is used and not among these rules, as ``status --json`` has it: ``rules``, how many
    ``runs`` use them, one ``run`` of them, and what ``plugins`` that one has values of.

    As dear as finding that run.
    """
    return [
        {"rules": version, "runs": count, **_one_of(reader, version)}
        for version, count in used_in(reader)
        if version not in rules
    ]


def not_here(found: Mapping[str, Any]) -> str:
    """The same in words."""
    return PluginMissing.words(found["run"], found["rules"], found["plugins"], found["runs"])


def _one_of(reader: Reader, version: int) -> dict[str, Any]:
    for prefix in keys.head_keys(""):
        for key, _ in reader.scan(prefix):
            run = open_run(reader, key[len(prefix) :].decode())
            if pinned_to(run) == version:
                return {"run": run.run_id, "plugins": plugins_of(run)}
    return {"run": None, "plugins": []}


def plugins_of(run: Run) -> list[str]:
    """The plug-ins that a run has values of, by their names."""
    return sorted({kind.partition(":")[0] for kind, _ in run.slots.scan("kinds")})


def check_plugins(
    partition: int, reader: Reader, sequence: int, rules: Mapping[int, Catalogue]
) -> None:
    """PluginMissing if a run of this partition uses a plug-in that is not among these rules."""
    for found in lacking(reader, rules):
        run_id, plugins = found["run"], found["plugins"]
        raise PluginMissing(partition, run_id, sequence, found["rules"], plugins, found["runs"])
