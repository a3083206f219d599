"""A turn asks its store for each key once, and the next turn asks it again."""

from __future__ import annotations

from collections import Counter

from foldlog.log.memory import MemoryLog
from foldlog.store.memory import MemoryStore
from foldlog.store.once import Once
from foldlog.turn import Partition
from tests.turn_world import encoded, fact, start


class Asked(MemoryStore):
    """A store that counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[bytes] = Counter()

    def get(self, key: bytes) -> bytes | None:
        """See Reader.get."""
        self.count[key] += 1
        return super().get(key)


def test_a_turn_asks_once() -> None:
    """Deciding and folding look up the same keys; what another turn wrote is looked up anew."""
    log, store = MemoryLog(1, lambda: 1), Asked()
    partition = Partition(log, store, 0)
    for proposal in (start(1), fact(2), fact(3)):
        log.propose(0, [encoded("run_1", proposal)])
        store.count.clear()
        assert partition.turn() == 1
        assert store.count
        assert set(store.count.values()) == {1}


def test_it_shows_what_the_reader_shows() -> None:
    """Look-ups, of what is there and what is not, and scans in both directions."""
    store = MemoryStore()
    store.write({b"a": b"1", b"b": b"2"})
    once = Once(store)
    for _ in range(2):
        assert [once.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"2", None]
    for reverse in (False, True):
        assert list(once.scan(b"", reverse)) == list(store.scan(b"", reverse))
