"""A store in memory on top of a reader shows what a store that holds both would show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foldlog.store.layered import LayeredStore
from foldlog.store.memory import MemoryStore

keys = st.binary(max_size=3)
batches = st.dictionaries(keys, st.none() | st.binary(max_size=3), max_size=8)


@given(below=batches, above=st.lists(batches, max_size=3), prefix=keys)
def test_it_agrees_with_one_store(
    below: dict[bytes, bytes | None], above: list[dict[bytes, bytes | None]], prefix: bytes
) -> None:
    """Look-ups and scans in both directions are those of one store that was written the same."""
    reader, one = MemoryStore(), MemoryStore()
    reader.write(below)
    one.write(below)
    layered = LayeredStore(reader)
    for batch in above:
        layered.write(batch)
        one.write(batch)
    for reverse in (False, True):
        assert list(layered.scan(prefix, reverse)) == list(one.scan(prefix, reverse))
    assert layered.get(prefix) == one.get(prefix)


@given(first=batches, second=batches)
def test_the_reader_may_move_on(
    first: dict[bytes, bytes | None], second: dict[bytes, bytes | None]
) -> None:
    """What both have written is the same, whichever of them wrote it first."""
    reader = MemoryStore()
    layered = LayeredStore(reader)
    layered.write(first)
    layered.write(second)
    before = list(layered.scan(b""))
    reader.write(first)
    assert list(layered.scan(b"")) == before
    reader.write(second)
    assert list(layered.scan(b"")) == before


def test_a_snapshot_stays() -> None:
    """Later writes do not show in a snapshot, and closing forgets what was written."""
    layered = LayeredStore(MemoryStore())
    layered.write({b"a": b"1"})
    snapshot = layered.snapshot()
    layered.write({b"a": None})
    assert (snapshot.get(b"a"), layered.get(b"a")) == (b"1", None)
    layered.close()
    assert list(layered.scan(b"")) == []
