"""What every store does, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldlog.store.base import Reader, Store, StoreClosed, prefix_end
from tests.contract.conftest import OpenStore

EDGES = [
    b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"a\x00\xff", b"a\xff", b"a\xff\x00", b"a\xff\xff",
    b"a\xff\xff\xff", b"b", b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\x01",
]  # fmt: skip

# Few different bytes, so that keys are often prefixes of each other.
keys = st.binary(max_size=4).map(lambda raw: bytes(b"\x00a\xfe\xff"[b % 4] for b in raw))
batches = st.lists(st.dictionaries(keys, st.none() | st.binary(max_size=20)), max_size=6)


class Interrupted(Exception):
    """Raised by a batch half-way through."""


class Interrupting(dict[bytes, bytes | None]):
    """A batch that raises after two changes, as an interrupt in the middle of a write would."""

    def items(self) -> Any:
        """Two of the changes, then no more."""
        yield from list(super().items())[:2]
        raise Interrupted


def model_scan(
    model: Mapping[bytes, bytes], prefix: bytes, reverse: bool
) -> list[tuple[bytes, bytes]]:
    """What a scan must give."""
    return sorted(((k, v) for k, v in model.items() if k.startswith(prefix)), reverse=reverse)


def check_reads(reader: Reader, model: Mapping[bytes, bytes]) -> None:
    """Assert that every look-up and scan agrees with a plain dict."""
    for prefix in {*EDGES, *model}:
        assert reader.get(prefix) == model.get(prefix)
        for reverse in (False, True):
            assert list(reader.scan(prefix, reverse)) == model_scan(model, prefix, reverse)


def clear(store: Store) -> None:
    """Delete every key."""
    store.write({key: None for key, _ in store.scan(b"")})


def test_a_new_store_is_empty(store: Store) -> None:
    """A new store has no key."""
    assert store.get(b"k") is None
    assert list(store.scan(b"")) == []
    assert list(store.scan(b"", reverse=True)) == []


def test_get_tells_an_empty_value_from_none(store: Store) -> None:
    """An empty value is a value; only a missing key is None."""
    store.write({b"k": b"", b"": b"empty key"})
    assert store.get(b"k") == b""
    assert store.get(b"") == b"empty key"
    assert store.get(b"K") is None


def test_scans_are_in_byte_order_whatever_the_prefix(store: Store) -> None:
    """A scan gives exactly the keys with the prefix, in byte order or against it, 0x00 and 0xff
    at the end of key or prefix included."""
    model = {key: b"v" + key for key in reversed(EDGES)}
    store.write(model)
    check_reads(store, model)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(changes=batches)
def test_any_batches_agree_with_a_dict(
    store: Store, changes: list[dict[bytes, bytes | None]]
) -> None:
    """After any batches of puts and deletes every look-up and scan is that of a plain dict."""
    clear(store)
    model: dict[bytes, bytes] = {}
    for batch in changes:
        store.write(batch)
        for key, value in batch.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        check_reads(store, model)


def test_a_large_batch_then_small_ones_keep_the_order(store: Store) -> None:
    """Order holds over a batch of thousands of keys, small ones after it, and deletes in both."""
    model = {b"%05d" % (n * 7919 % 5_000): b"%d" % n for n in range(5_000)}
    store.write(model)
    assert list(store.scan(b"0123")) == model_scan(model, b"0123", False)
    store.write({b"00001": None, b"012345": b"new"})
    del model[b"00001"]
    model[b"012345"] = b"new"
    assert list(store.scan(b"")) == model_scan(model, b"", False)
    gone = dict.fromkeys(list(model)[::2])
    store.write(gone)
    left = {key: value for key, value in model.items() if key not in gone}
    assert list(store.scan(b"", reverse=True)) == model_scan(left, b"", True)


def test_values_may_be_large(store: Store) -> None:
    """A value of several megabytes comes back byte for byte."""
    value = bytes(range(256)) * (4 << 12)
    store.write({b"k": value})
    assert store.get(b"k") == value
    assert next(iter(store.scan(b"k"))) == (b"k", value)


def test_a_batch_is_all_or_none(store: Store) -> None:
    """A batch interrupted half-way changes nothing, its deletes included."""
    store.write({b"old": b"1"})
    with pytest.raises(Interrupted):
        store.write(Interrupting({b"new": b"2", b"old": None, b"more": b"3"}))
    assert dict(store.scan(b"")) == {b"old": b"1"}


def test_deleting_what_is_not_there_is_fine(store: Store) -> None:
    """A delete of a missing key changes nothing."""
    store.write({b"a": b"1", b"b": None})
    store.write({b"b": None})
    assert dict(store.scan(b"")) == {b"a": b"1"}
    store.write({})
    assert dict(store.scan(b"")) == {b"a": b"1"}


def test_a_snapshot_stays_at_its_moment(store: Store) -> None:
    """Puts, overwrites and deletes after a snapshot are not seen in it."""
    before = {b"a": b"1", b"b": b"2", b"c": b"3"}
    store.write(before)
    first = store.snapshot()
    store.write({b"a": b"changed", b"b": None, b"d": b"4"})
    second = store.snapshot()
    clear(store)
    check_reads(first, before)
    check_reads(second, {b"a": b"changed", b"c": b"3", b"d": b"4"})
    check_reads(store, {})
    first.close()
    second.close()


def test_a_closed_snapshot_refuses(store: Store) -> None:
    """A snapshot that was closed raises StoreClosed; the store goes on."""
    store.write({b"a": b"1"})
    view = store.snapshot()
    view.close()
    view.close()
    with pytest.raises(StoreClosed):
        view.get(b"a")
    with pytest.raises(StoreClosed):
        view.scan(b"")
    assert store.get(b"a") == b"1"


def test_a_scan_shows_the_moment_of_its_call(store: Store) -> None:
    """Writes between the call and the end of a scan, before its first step too, do not show."""
    model = {b"%d" % n: b"old" for n in range(9)}
    store.write(model)
    late, running = store.scan(b""), store.scan(b"", reverse=True)
    assert next(running) == (b"8", b"old")
    store.write({b"0": None, b"1": b"new", b"10": b"new", b"7": None})
    assert list(late) == model_scan(model, b"", False)
    assert list(running) == model_scan(model, b"", True)[1:]
    assert store.get(b"1") == b"new"


def test_scans_may_be_abandoned_and_nested(store: Store) -> None:
    """A scan may be left half-way, and others may run inside it."""
    store.write({b"a": b"1", b"b": b"2"})
    next(iter(store.scan(b"")))
    both = [(k1, k2) for k1, _ in store.scan(b"") for k2, _ in store.scan(b"", reverse=True)]
    assert both == [(b"a", b"b"), (b"a", b"a"), (b"b", b"b"), (b"b", b"a")]


def test_an_exhausted_scan_stays_exhausted(store: Store) -> None:
    """A scan at its end gives nothing more, though keys were added meanwhile."""
    store.write({b"a": b"1"})
    scan = store.scan(b"")
    assert list(scan) == [(b"a", b"1")]
    store.write({b"b": b"2"})
    assert list(scan) == []


def test_a_closed_store_refuses_every_call(store: Store) -> None:
    """After close every call raises StoreClosed, on scans and snapshots taken before it too."""
    store.write({b"a": b"1"})
    view, scan = store.snapshot(), store.scan(b"")
    store.close()
    store.close()
    calls: list[Any] = [
        lambda: store.get(b"a"),
        lambda: store.scan(b""),
        lambda: store.write({b"a": b"2"}),
        lambda: store.snapshot(),
        lambda: view.get(b"a"),
        lambda: view.scan(b""),
        lambda: next(scan),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()


def test_what_was_written_is_there_after_reopening(open_store: OpenStore) -> None:
    """Keys written before a close, and only the last values, are there after opening again."""
    store = open_store()
    model = {key: b"v" + key for key in EDGES}
    store.write({**model, b"gone": b"x", b"a": b"old"})
    store.write({b"gone": None, b"a": model[b"a"]})
    store.close()
    check_reads(open_store(), model)


@given(prefix=st.binary(max_size=4), key=st.binary(max_size=6))
def test_prefix_end_bounds_exactly_the_prefix(prefix: bytes, key: bytes) -> None:
    """A key has the prefix exactly if it lies from the prefix on and before the prefix's end."""
    end = prefix_end(prefix)
    inside = prefix <= key and (end is None or key < end)
    assert inside == key.startswith(prefix)
