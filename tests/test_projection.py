"""The projection's bytes: the keys and values that fixed proposals leave never change.

Invariants:
- A failure here is a new state format, or a mistake: see tests/projection_golden.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from foldlog.core.state import SINGLE_KINDS, VANISHING_KINDS
from foldlog.migrating import migrate
from foldlog.store.memory import MemoryStore
from foldlog.wire import keys, slots
from tests import projection_golden
from tests.test_format import PAGE

GOLDEN = projection_golden.load()
# Kinds that the invariants of the core do not name: what never leaves, and what is not stamped.
OTHER_KINDS = {
    "archived", "artifact", "budget", "call", "call.at", "checkpoint.used", "doubt", "doubt.at",
    "effect",
    "header", "kept", "kept.at", "key", "labels", "last_signal",
    "observation", "open", "open.at", "running", "transition", "attempt",
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(GOLDEN))
def test_the_golden_projection(case: str) -> None:
    """The proposals of a case have the same outcomes and leave exactly the same bytes."""
    golden: dict[str, Any] = GOLDEN[case]
    assert projection_golden.replayed(golden["proposals"]) == golden


@pytest.mark.parametrize("case", sorted(projection_golden.load(1)))
def test_the_golden_projection_of_format_1_is_lifted(case: str) -> None:
    """What format 1 kept of a case becomes, byte for byte, what format 2 keeps of it, but for where
    its run says it came from."""
    store = MemoryStore()
    old = projection_golden.load(1)[case]
    store.write(dict(projection_golden.bytes_of(*row) for row in old["stored"].items()))
    lifted = migrate(store, lambda run_id, head: "0.1.0")
    assert lifted.stuck == ()
    new = dict(projection_golden.bytes_of(*row) for row in GOLDEN[case]["stored"].items())
    found = dict(store.scan(b""))
    for stored in (found, new):  # the records say another state format and hash, hence the head
        meta = slots.decode_meta(stored[keys.META])._replace(tables="", head=bytes(32))
        stored[keys.META] = slots.encode_meta(meta)
    for key in list(found):
        if key.startswith(keys.head_key("")):
            head = slots.decode_head(found[key])
            if key.replace(b"h", b"e", 1) + b"\0header\0" in found:
                assert head.migrated_from == ({"schema_version": 1, "build": "0.1.0"},)
            found[key] = slots.encode_head(head._replace(migrated_from=()))
    assert found == new


def test_every_case_is_golden() -> None:
    """Each case that the tests name has its bytes in the golden file."""
    assert sorted(projection_golden.CASES) == sorted(GOLDEN)


def test_every_kind_is_golden_and_documented() -> None:
    """Every kind of slot stands in the golden file, and in FORMAT.md; there are no others."""
    found = {
        key.split("\0")[2]
        for golden in GOLDEN.values()
        for key in golden["stored"]
        if key.startswith("e\0")
    }
    # An effect leaves only where its run is forked, which no proposal does.
    gone = {"gone." + kind for kind in VANISHING_KINDS - {"effect"}}
    assert found == SINGLE_KINDS | VANISHING_KINDS | gone | OTHER_KINDS
    table = PAGE.split("| kind | id | value |")[1].split("\n\n")[0]
    named = " ".join(row.split("|")[1].replace("`", " ") for row in table.strip().split("\n"))
    assert set(named.split()) >= found | {"gone.effect"}
