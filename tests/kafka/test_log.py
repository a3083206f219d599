"""What a log does on a real broker that the suite for all logs cannot show."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from foldlog.audit import digest_of, run_digest
from foldlog.core.values import format_instant
from foldlog.errors import Damaged
from foldlog.log import sqlite
from foldlog.log.base import ZERO_HEAD, Entry, Log, LogClosed, LogRefused, LogTrimmed, Stored
from foldlog.log.kafka.log import KafkaLog
from foldlog.log.kafka.owned import OwnedLog
from foldlog.log.kafka.reading import QUIET_SECONDS, SILENCE_SECONDS
from foldlog.log.memory import MemoryLog
from foldlog.reaching import create_log, open_log
from foldlog.store.memory import MemoryStore
from foldlog.turn import Partition
from foldlog.views import View
from tests.core_walk import RULES_OF_WALKS, walk
from tests.kafka.fixtures import OpenKafkaLog
from tests.kafka.test_topics import alter
from tests.turn_world import Clock, encoded, fact, records, start
from tests.workers import until

ALL = 1 << 30


@pytest.fixture
def log(new_url: Callable[[], str]) -> Iterator[KafkaLog]:
    """An empty log of one partition, as it is made for real."""
    url = new_url()
    create_log(url, 1)
    log = open_log(url)
    yield log
    log.close()


def entry(number: int) -> Entry:
    """A record whose columns are made from ``number``."""
    return Entry(b"run", b"record", number, number, bytes([number]) * 32)


def facts(*numbers: int) -> list[tuple[bytes, bytes]]:
    """Proposals of a fact each, for run_1."""
    return [encoded("run_1", fact(number)) for number in numbers]


# The same everywhere


def decided(log: Log, clock: Clock, seed: int) -> tuple[list[tuple[int, str, str]], str]:
    """A walk decided on a log: each record's sequence, run chain and outcome; and the digest."""
    partition = Partition(log, MemoryStore(), 0, "decider", RULES_OF_WALKS)
    partition.recover()
    for number, record in enumerate(walk(seed, 80).records):
        # Kafka keeps milliseconds.
        clock.now = record.log_time // 1000 * 1000
        log.propose(0, [encoded(record.run_id, record.value)])
        if number % 3 == 0:
            partition.turn()
    while partition.turn():
        pass
    found = [(r.sequence, r.chain.hex(), r.outcome) for r in records(log)]
    view = View(log, partition.store, 0)
    return found, digest_of({id: run_digest(view.run(id).state()) for id in view.run_ids()})


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_proposals_decide_the_same_on_every_log(
    tmp_path: Path, kafka_log: OpenKafkaLog, seed: int
) -> None:
    """In the same order and at the same log times: run chains, sequences and digests are identical
    in memory, on SQLite and on Kafka."""
    clock = Clock()
    sqlite.create(tmp_path / "log.sqlite", 1)
    logs: list[Log] = [
        MemoryLog(1, clock),
        sqlite.SqliteLog(tmp_path / "log.sqlite", clock),
        kafka_log("same", 1, clock),
    ]
    results = [decided(log, clock, seed) for log in logs]
    for log in logs:
        log.close()
    assert len(results[0][0]) == 80
    assert results[1] == results[0]
    assert results[2] == results[0]


# Time


def test_the_brokers_time_counts(log: KafkaLog) -> None:
    """A proposal carries the time at which the broker took it, whatever the producer says."""
    address = log.address
    producer = Producer({"bootstrap.servers": address.servers})
    producer.produce(address.proposals, b"old", b"run_1", partition=0, timestamp=1_000)
    producer.flush()
    before = time.time_ns() // 1000
    log.propose(0, [(b"run_1", b"new")])
    rows = log.proposals(0, 0, 9, ALL)
    assert [row.value for row in rows] == [b"old", b"new"]
    for row in rows:
        assert abs(row.appended_at - before) < 60_000_000, format_instant(row.appended_at)


# Gaps


def transactional(log: KafkaLog, topic: str, *, commit: bool) -> None:
    """Write two messages in a transaction, which leaves a control record behind them.

    It shows a moment after the producer was told; until then, reading ends before it.
    """
    ask = log.proposals_end if topic == log.address.proposals else log.end
    before = ask(0)
    settings = {"bootstrap.servers": log.address.servers, "transactional.id": f"{topic}-{commit}"}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in (b"one", b"two"):
        producer.produce(topic, value, b"run_1", partition=0)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.flush()
        producer.abort_transaction(30)
    while ask(0) < before + 3:
        time.sleep(0.01)


def test_fault_22_control_records_are_harmless(log: KafkaLog) -> None:
    """Offsets that no message has (commits, what was aborted) end no reading early and none late,
    wherever it begins and wherever they lie."""
    topic = log.address.proposals
    assert log.propose(0, [(b"run_1", b"zero")]) == [1]
    transactional(log, topic, commit=True)
    values = [b"zero", b"one", b"two"]
    for start_at in range(6):
        began = time.monotonic()
        rows = log.proposals(0, start_at, 100, ALL)
        assert [row.value for row in rows] == values[max(0, start_at - 1) :]
        assert time.monotonic() - began < SILENCE_SECONDS
    end = log.proposals_end(0)
    assert end == 5  # zero, one, two, and what says that they are committed
    transactional(log, topic, commit=False)
    assert [row.value for row in log.proposals(0, 0, 100, ALL)] == values
    assert log.proposals(0, end, 100, ALL) == []
    [position] = log.propose(0, [(b"run_1", b"last")])
    assert position > end
    assert [row.value for row in log.proposals(0, end, 100, ALL)] == [b"last"]
    assert log.proposals_end(0) == position + 1


def test_turns_go_on_over_gaps(log: KafkaLog) -> None:
    """Proposals between control records are decided each once, and folded from the start again."""
    store = MemoryStore()
    partition = Partition(log, store, 0, "decider")
    log.propose(0, [encoded("run_1", start())])
    assert partition.turn() == 1
    for number in range(3):
        transactional(log, log.address.proposals, commit=number % 2 == 0)
        transactional(log, log.address.events, commit=False)
        log.propose(0, [encoded("run_1", fact(10 + number))])
        while partition.turn():
            pass
    outcomes = [record.outcome for record in records(log)]
    assert outcomes.count("accepted") == 4
    assert outcomes.count("rejected") == 4  # what the transactions proposed is no proposal
    again = Partition(log, MemoryStore(), 0)
    assert again.recover() == len(outcomes)
    assert again.meta.head == partition.meta.head


# What is not there any more


def trim(log: KafkaLog, topic: str, before_offset: int) -> None:
    """Delete what lies before an offset, as retention does."""
    client = AdminClient({"bootstrap.servers": log.address.servers})
    place = TopicPartition(topic, 0, before_offset)
    client.delete_records([place])[place].result()


def test_fault_23_a_place_that_is_gone_is_no_other_place(log: KafkaLog) -> None:
    """Reading from before what the topic still has, or from behind its end, never jumps."""
    log.propose(0, [(b"run_1", bytes([n])) for n in range(5)])
    trim(log, log.address.proposals, 3)
    with pytest.raises(LogTrimmed):
        log.proposals(0, 0, 9, ALL)
    with pytest.raises(LogTrimmed):
        log.proposals(0, 3, 9, ALL)
    assert [row.value for row in log.proposals(0, 4, 9, ALL)] == [b"\x03", b"\x04"]
    with pytest.raises(LogTrimmed):
        log.proposals(0, 1, 1, ALL)


def test_proposals_trimmed_before_they_were_decided_halt(log: KafkaLog) -> None:
    """A partition whose next proposal is gone says which, and decides nothing."""
    partition = Partition(log, MemoryStore(), 0, "decider")
    log.propose(
        0, [encoded("run_1", start()), encoded("run_1", fact(2)), encoded("run_1", fact(3))]
    )
    trim(log, log.address.proposals, 1)
    with pytest.raises(Damaged, match="the proposal at 1"):
        partition.turn()
    assert records(log) == []


def test_decided_proposals_may_go(log: KafkaLog) -> None:
    """Retention of the inbox harms nobody who has decided: nor a projection that begins anew."""
    partition = Partition(log, MemoryStore(), 0, "decider")
    log.propose(0, [encoded("run_1", start()), encoded("run_1", fact(2))])
    assert partition.turn() == 2
    trim(log, log.address.proposals, 2)
    log.propose(0, [encoded("run_1", fact(3))])
    again = Partition(log, MemoryStore(), 0, "another")
    again.recover()
    assert again.turn() == 1
    assert partition.catch_up() == 1


def test_a_truncated_log_of_record_halts(log: KafkaLog) -> None:
    """Records that are gone are missed by who begins anew and by who had folded them; both name
    what is missing."""
    store = MemoryStore()
    partition = Partition(log, store, 0, "decider")
    log.propose(
        0, [encoded("run_1", start()), encoded("run_1", fact(2)), encoded("run_1", fact(3))]
    )
    assert partition.turn() == 3
    trim(log, log.address.events, 1)
    with pytest.raises(Damaged, match="records 1 to 1 are gone"):
        Partition(log, MemoryStore(), 0).recover()
    trim(log, log.address.events, 3)
    again = KafkaLog(log.address, {})  # the first one has read ahead
    with pytest.raises(Damaged, match="not reach back"):
        Partition(again, store, 0).recover()
    again.close()


def test_a_record_that_extends_what_is_gone_halts(log: KafkaLog) -> None:
    """A record whose ancestor retention took cannot be shown to be void: that is damage, not an
    outage that would be waited out for ever."""
    store = MemoryStore()
    partition = Partition(log, store, 0, "decider")
    log.propose(0, [encoded("run_1", start()), *(encoded("run_1", fact(n)) for n in range(2, 5))])
    assert partition.turn() == 4
    first, late = log.events(0, 0, 2, ALL)
    log.append(0, first.head, [Entry(late.key, late.value, late.sequence, 0, late.head)])
    trim(log, log.address.events, 3)
    again = KafkaLog(log.address, {})
    with pytest.raises(Damaged, match="hole: record 5 must extend the head"):
        Partition(again, store, 0).recover()
    again.close()


def test_an_error_of_one_partition_takes_no_row_of_another(new_url: Callable[[], str]) -> None:
    """What a tail meets in a partition is told beside the rows of the others; none is lost."""
    url = new_url()
    create_log(url, 2)
    log = open_log(url)
    for number in range(2):
        log.append(number, ZERO_HEAD, [entry(n) for n in range(1, 6)])
    trim(log, log.address.events, 3)
    for turn in range(5):
        tail = log.tail()
        found: list[tuple[int, int]] = []
        errors: list[int | None] = []
        for number in sorted(range(2), reverse=turn % 2 == 0):
            tail.follow(number, 1)
        time.sleep(0.3)  # both wait in the client, to be taken at once
        until_ = time.monotonic() + 60
        while (len(found) < 5 or not errors) and time.monotonic() < until_:
            try:
                found.extend((number, row.sequence) for number, row in tail.poll(0.1))
            except LogTrimmed as error:
                errors.append(error.partition)
        tail.close()
        assert (found, errors) == ([(1, n) for n in range(1, 6)], [0])
    log.close()


def test_a_pause_ends_with_following(log: KafkaLog) -> None:
    """Followed again after it was paused and dropped, a partition's rows come at once, from where
    they are asked for."""
    log.append(0, ZERO_HEAD, [entry(n) for n in range(1, 10)])
    tail = log.tail()
    for start_at in (1, 4, 7, 2):
        tail.follow(0, start_at)
        found: list[int] = []
        began = time.monotonic()
        while not found:
            found.extend(row.sequence for _, row in tail.poll(0.1))
        assert found[0] == start_at
        assert time.monotonic() - began < QUIET_SECONDS
        tail.pause(0)
        tail.drop(0)
    tail.close()


def test_a_header_that_does_not_read_harms_nobody(log: KafkaLog) -> None:
    """A foreign message whose header's name is no text is read as one without headers, by a tail
    and by a cursor, as often as it is read, and what stands around it is read too."""
    address = log.address
    log.append(0, ZERO_HEAD, [entry(1)])
    producer = Producer({"bootstrap.servers": address.servers})
    headers: Any = [(b"\xff\xfe", b"x")]
    producer.produce(address.events, b"foreign", b"run_1", partition=0, headers=headers)
    producer.flush()
    log.append(0, entry(1).head, [entry(3)])
    expected = [(b"record", 1), (b"foreign", 0), (b"record", 3)]
    for size in (1, 5, ALL):  # what is too much for one answer comes in the next
        rows: list[Stored] = []
        while len(rows) < 3:
            rows += log.events(0, rows[-1].offset + 1 if rows else 0, 9, size)
        assert [(row.value, row.sequence) for row in rows] == expected
    tail = log.tail()
    tail.follow(0, 1)
    came: list[tuple[bytes, int]] = []

    def all_came() -> bool:
        came.extend((row.value, row.sequence) for _, row in tail.poll(0.1))
        return len(came) == 3

    until(all_came)
    assert came == expected
    tail.close()


def test_it_is_known_whether_more_waits(log: KafkaLog) -> None:
    """Of a partition that is read ahead a projector knows what waits behind a position; of others
    nothing, and so of one that was given away."""
    owned = OwnedLog(log.address, {})
    assert not owned.waits(0, 1)
    owned.own(0, 1)
    first, last = log.propose(0, facts(1, 2))

    def came() -> bool:
        owned.wait(0.1)
        return len(owned.proposals(0, 1, 9, ALL)) == 2

    until(came)
    assert [owned.waits(0, place) for place in (first, last, last + 1)] == [True, True, False]
    assert owned.proposals(0, last + 1, 9, ALL) == []
    assert not owned.waits(0, first)
    owned.disown(0)
    assert not owned.waits(0, last)
    owned.close()


def test_what_was_written_without_a_gap_is_not_read_again(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projector has its own records back as the brokers confirmed them, byte for byte as they are
    in the topic; where another's came in between, or a control record, it reads the topic."""
    owned, asked = OwnedLog(log.address, {}), []
    read = KafkaLog.events

    def counted(self: KafkaLog, *place: int) -> list[Stored]:
        asked.append(place[1])
        return read(self, *place)

    monkeypatch.setattr(KafkaLog, "events", counted)
    owned.own(0, 1)
    owned.append(0, ZERO_HEAD, [entry(1), entry(2)])
    mine = owned.events(0, 1, 9, ALL)
    assert [row.sequence for row in mine] == [1, 2]
    assert owned.events(0, 1, 1, ALL) == mine[:1]
    assert owned.events(0, 2, 9, ALL) == mine[1:]
    assert asked == []
    assert owned.events(0, 3, 9, ALL) == []
    assert read(log, 0, 1, 9, ALL) == mine
    log.append(0, entry(2).head, [entry(3)])
    transactional(log, log.address.events, commit=False)
    owned.append(0, entry(2).head, [entry(4)])
    rows = owned.events(0, 3, 9, ALL)
    assert asked == [3, 3]
    assert [row.sequence for row in rows] == [3, 4]
    assert rows == read(log, 0, 3, 9, ALL)
    owned.close()


# Handles


def test_a_client_that_fell_silent_is_replaced(log: KafkaLog) -> None:
    """Where something is there and the client gives nothing (as after an outage it may), a tail
    goes on with a new one: from where it was, each row once."""
    tail, place = log.tail(), TopicPartition(log.address.events, 0)
    tail.follow(0, 1)
    found: list[int] = []

    def has(*sequences: int) -> bool:
        found.extend(row.sequence for _, row in tail.poll(0.1))
        return found == list(sequences)

    log.append(0, ZERO_HEAD, [entry(1)])
    until(lambda: has(1))
    tail._handle.pause([place])  # it fetches nothing any more, and says nothing
    log.append(0, entry(1).head, [entry(2), entry(3)])
    until(lambda: has(1, 2, 3))
    log.append(0, entry(3).head, [entry(4)])
    until(lambda: has(1, 2, 3, 4))
    assert tail.poll(1.0) == []
    tail.close()


def test_who_is_silent_beside_a_busy_one_is_missed(new_url: Callable[[], str]) -> None:
    """A partition of which nothing comes is noticed although each wait of the tail ends with news
    of another one."""
    url = new_url()
    create_log(url, 2)
    log = open_log(url)
    tail, heads = log.tail(), [ZERO_HEAD, ZERO_HEAD]
    found: dict[int, list[int]] = {0: [], 1: []}
    written = [0, 0]

    def write(number: int) -> None:
        written[number] += 1
        made = entry(written[number] % 200)
        log.append(number, heads[number], [made])
        heads[number] = made.head

    def busy() -> bool:
        write(0)
        for number, row in tail.poll(10):
            found[number].append(row.offset)
        return found[1] == [1]

    tail.follow(0, 1)
    tail.follow(1, 1)
    until(lambda: not tail.poll(0.1))
    tail._handle.pause([TopicPartition(log.address.events, 1)])  # it says nothing any more
    write(1)
    until(busy, 30)
    assert found[0] == list(range(1, len(found[0]) + 1))
    tail.close()
    log.close()


def test_fault_35_a_log_opened_before_a_fork_says_so(bootstrap: str, tmp_path: Path) -> None:
    """In the child every call is LogClosed, at once, and nothing waits for ever."""
    code = f"""
import os, sys, time, uuid
from foldlog.log.base import LogClosed
from foldlog.reaching import create_log, open_log
url = "kafka://{bootstrap}/f" + uuid.uuid4().hex[:8]
create_log(url, 1)
log = open_log(url)
log.propose(0, [(b"run_1", b"parent")])
sys.stdout.flush()
if (pid := os.fork()) == 0:
    for call in (lambda: log.propose(0, [(b"k", b"v")]), lambda: log.end(0),
                 lambda: log.events(0, 0, 1, 1)):
        try:
            call()
        except LogClosed as error:
            assert "fork" in str(error)
        else:
            os._exit(3)
    log.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
log.propose(0, [(b"run_1", b"still here")])
log.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_client_says_nothing_on_stderr(tmp_path: Path) -> None:
    """Where no broker answers, librdkafka's own lines stay away: one error says it."""
    code = """
import sys
from foldlog.errors import Unavailable
from foldlog.reaching import open_log
try:
    open_log("kafka://127.0.0.1:9/nobody")
except Unavailable as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    assert "nobody" in done.stdout


def test_a_closed_log_lets_everything_go(log: KafkaLog) -> None:
    """After close each call is LogClosed; what was handed over before is in the log."""
    log.propose(0, [(b"run_1", b"v")])
    log.append(0, ZERO_HEAD, [entry(1)])
    log.close()
    with pytest.raises(LogClosed):
        log.append(0, ZERO_HEAD, [entry(2)])


def test_a_message_that_the_topic_does_not_take_is_told(log: KafkaLog) -> None:
    """What the brokers refuse by its size is refused with the setting that would take it."""
    alter(log.address, log.address.proposals, "max.message.bytes", "1048588")
    refusal: list[LogRefused] = []

    def refused() -> bool:
        before = log.proposals_end(0)
        try:
            log.propose(0, [(b"run_1", bytes(1_500_000))])
        except LogRefused as error:
            assert log.proposals_end(0) == before
            refusal.append(error)
        return bool(refusal)

    until(refused)  # the brokers learn of it a moment later
    assert "max.message.bytes" in str(refusal[0])


def test_a_message_that_is_too_large_is_our_own_mistake(log: KafkaLog) -> None:
    """Values are bounded before they come here."""
    with pytest.raises(AssertionError):
        log.propose(0, [(b"run_1", bytes(3 * 1024 * 1024))])
    assert log.proposals_end(0) == 1
