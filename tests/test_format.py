"""FORMAT.md and the code say the same: the worked examples of the page, computed again.

Invariants:
- The numbers stand in the page only; each test reads them there.
- Examples of the projection are compared with a real home: SQLite, RocksDB, the real decider.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from foldlog.client import Engine
from foldlog.core.proposals import parse_proposal
from foldlog.core.values import Author, canonical_json, parse_instant
from foldlog.doorbell import Doorbell
from foldlog.locks import FileLock, Note
from foldlog.wire import chain, envelope, events, imports, keys, records, slots
from foldlog.wire.chain import ZERO, entity_hash
from foldlog.wire.partitioner import partition_of
from foldlog.working import content_digest
from foldlog_projector.daemon import Daemon
from tests import wire_examples, wire_golden
from tests.seats import holder_of

PAGE = (Path(__file__).resolve().parent.parent / "engine" / "FORMAT.md").read_text("utf-8")
NOW_US = parse_instant("2026-08-11T08:00:00Z") // 1000
RUN = "run_128"
BATCH = "00000000-0000-4000-8000-00000000000{}"
AUTHORS = (("user", "ada"), *[("agent", "worker-1")] * 3)
# What differs from home to home, or with the rules, stands in the page as it was in one of them.
OF_THE_HOME = ("head", "identity", "tables")
RECORD = wire_examples.record(proposal=b"proposal")

Stored = dict[bytes, bytes]


def _section(heading: str) -> str:
    """The page from this heading to the next one of its level or above."""
    match = re.search(rf"^(#+) {re.escape(heading)}( .*)?$", PAGE, re.MULTILINE)
    assert match is not None, f"FORMAT.md has no heading {heading!r}"
    rest = PAGE[match.end() :]
    end = re.search(rf"^#{{1,{len(match.group(1))}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def _blocks(text: str) -> list[str]:
    """The indented blocks, their lines joined without what indents them."""
    found = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    return ["".join(line.strip() for line in block.splitlines()) for block in found]


def _listing(text: str) -> re.Pattern[str]:
    """The first listing of bytes: each line's hex digits, up to a remark.

    `202122...3f` stands for every byte between, `...` at the end of a line for any bytes.
    """
    block = re.search(r"(?:^    [0-9a-f].*\n)+", text, re.MULTILINE)
    assert block is not None
    lines = [
        re.split(r" {3,}| {2}(?=[^0-9a-f])", line.strip())[0] for line in block.group().splitlines()
    ]
    digits = "".join(re.sub(r"\.\.\.$", "*", line) for line in lines).replace(" ", "")
    digits = re.sub(r"(\w\w)(?:\w\w){2}\.\.\.(\w\w)", _between, digits)
    return re.compile(digits.replace("*", "[0-9a-f]*"))


def _between(match: re.Match[str]) -> str:
    first, last = (int(digits, 16) for digits in match.groups())
    return bytes(range(first, last + 1)).hex()


def _documented(text: str) -> Stored:
    """The keys and values that a part of the page lists."""
    pairs = re.findall(r"^    key +(.*)\n    value *(.*(?:\n {11}.*)*)", text, re.MULTILINE)
    assert pairs
    return {bytes.fromhex(key): _value(value) for key, value in pairs}


def _value(text: str) -> bytes:
    joined = "".join(line.strip() for line in text.split("\n"))
    return joined.encode() if joined.startswith("{") else bytes.fromhex(joined)


def _proposals() -> list[dict[str, Any]]:
    """The four proposals of the example, as the page has them."""
    texts = [block for block in _blocks(_section("Example")) if '"events":[{"type"' in block]
    assert len(texts) == 4
    return [
        json.loads(text) | {"batch_id": BATCH.format(number), "author": {"kind": kind, "id": id}}
        for number, (text, (kind, id)) in enumerate(zip(texts, AUTHORS, strict=True), 1)
    ]


def test_the_end_of_a_fork() -> None:
    """The page's bytes of the event that closes a fork are those of the golden file."""
    data = events.encode_event(wire_golden.GOLDEN_FORK)
    assert _listing(_section("A fork")).fullmatch(data.hex())


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Stored], list[str | None]]:
    """The store after each proposal of the example, and the state hash in each record."""
    path = tmp_path_factory.mktemp("format") / "home"
    stored, hashes = [], []
    with Engine.open(path, create=True, partitions=1, clock=lambda: NOW_US) as engine:
        for proposal in _proposals():
            outcome = engine.run(RUN).propose_json(proposal)
            stored.append(dict(holder_of(engine).held[0].partition.store.scan(b"")))
            hashes.append(outcome.state_hash)
    return stored, hashes


def _anywhere(data: bytes) -> Any:
    """A value without what differs from home to home."""
    value = json.loads(data)
    return {name: item for name, item in value.items() if name not in OF_THE_HOME}


def _check(found: Mapping[bytes, bytes], documented: Stored) -> None:
    for key, value in documented.items():
        if key == keys.META:
            assert _anywhere(found[key]) == _anywhere(value)
            assert value == canonical_json(json.loads(value)).encode()
        else:
            assert found[key] == value


def test_the_example_home_after_its_first_record(homes: Any) -> None:
    """The page lists every key that one RunStarted leaves, and the value of each."""
    documented = _documented(_section("Example").split("Then agent:worker-1")[0])
    assert documented.keys() == homes[0][0].keys()
    _check(homes[0][0], documented)


def test_the_example_home_after_all_records(homes: Any) -> None:
    """Tasks, index entries, tombstones, deadlines and refused batch ids are as listed."""
    documented = _documented(_section("Example").split("Then agent:worker-1")[1])
    assert {key[:1] for key in documented} == {b"e", b"b", b"t"}
    _check(homes[0][-1], documented)


def test_the_digest_of_a_content() -> None:
    """The text whose digest a batch id keeps is the one on the page."""
    first = parse_proposal(RUN, _proposals()[0])
    (text,) = (block for block in _blocks(_section("Example")) if block.startswith('{"author"'))
    assert first.content() == text.encode()
    assert content_digest(first) == hashlib.blake2b(text.encode(), digest_size=16).digest()


def _terms() -> Iterator[tuple[str, int]]:
    for line in re.findall(r"^    (.*?) {2,}([0-9a-f]{64})$", _section("State hash"), re.MULTILINE):
        yield line[0], int(line[1], 16)


def test_the_sum_of_the_state_hash(homes: Any) -> None:
    """Each term is the hash of a stored slot, and the sum is that of the record and run head."""
    *terms, (name, total) = _terms()
    assert name == "sum modulo 2^256"
    first, prefix = homes[0][0], keys.run_prefix(RUN)
    found = {
        key[len(prefix) :].replace(b"\0", b" 00 ").decode().strip(): entity_hash(
            key[len(prefix) :], value
        )
        for key, value in first.items()
        if key.startswith(prefix)
    }
    assert dict(terms) == found
    assert sum(found.values()) % (1 << 256) == total
    assert homes[1][0] == f"{total:064x}"
    assert slots.decode_head(first[keys.head_key(RUN)]).state_sum == total


def test_the_fields_of_the_header_are_listed() -> None:
    """The page names each field of the header, and no other."""
    table = _section("Values").split("**The header**")[1].split("**The run head**")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(slots.HEADER_FIELDS)


def test_what_a_key_costs(homes: Any) -> None:
    """The sizes under "What it costs" are those of the example home."""
    costs, found, n = _section("What it costs"), homes[0][-1], len(RUN)
    sizes = {key: len(key) + len(value) for key, value in found.items()}
    first = keys.batch_key(RUN, BATCH.format(1))
    tombstone = keys.slot_key(RUN, "gone.question", "q_1")
    for key, name in (
        (keys.record_key(RUN, 1), "record of a run | N + {}"),
        (first, "batch id | N + {},"),
        (keys.head_key(RUN), "the run head, N + {},"),
        (keys.slot_key(RUN, "header", ""), "the header, about N + {}:"),
    ):
        assert name.format(sizes[key] - n) in costs
    assert sizes[tombstone] == n + 63 + len("question" + "q_1" + "worker-1")
    assert f"author's id: {sizes[tombstone]} for" in costs


def test_the_event_of_the_page() -> None:
    """The example of "Event bytes" is what that event encodes to."""
    text = _section("Event bytes")
    match = re.search(r"`(\{.*?\})`", text)
    assert match is not None
    data = events.encode_event(json.loads(match.group(1)))
    assert _listing(text).fullmatch(data.hex())
    assert f"\n{len(data)} bytes, of which" in text


def test_the_proposal_of_the_page() -> None:
    """The example of "Proposal bytes" is what that proposal encodes to."""
    text, data = _section("Proposal bytes"), envelope.encode_proposal(wire_examples.proposal())
    assert _listing(text).fullmatch(data.hex())
    assert f"\n{len(data)} bytes; as compact JSON" in text
    assert f"most {envelope.PROPOSAL_BYTES_MAX:,} bytes" in text.replace("\n", " ")


def test_the_record_of_the_page() -> None:
    """The example of "Decided record bytes" is what that record encodes to."""
    data = records.encode_record(RECORD)
    assert _listing(_section("Decided record bytes")).fullmatch(data.hex())


def test_the_import_of_the_page() -> None:
    """The part of the page carries the record of the page, which ends as the page says."""
    id = bytes(range(0x50, 0x60))
    part = imports.ImportPart(
        RUN, id, Author("user", "ada"), 0, 1, (records.encode_record(RECORD),)
    )
    assert _listing(_section("Parts of an import")).fullmatch(imports.encode_part(part).hex())
    taken = RECORD._replace(imported={"import_id": id, "part": 0, "place": "last"})
    data = records.encode_record(taken)
    version = _section("Decided record bytes").split("**Version 2**")[1]
    assert f"fingerprint `{data[2:10].hex()}`" in version
    assert _listing(version).fullmatch(data[-23:].hex())


def test_the_hashes_of_the_page() -> None:
    """The hashes under "Hash inputs" are those of the record that the page shows."""
    run_hash = chain.run_hash(ZERO, RECORD)
    headers = [("h", b"v"), ("n", None)]
    assert re.findall(r"`([0-9a-f]{64})`", _section("Hash inputs")) == [
        run_hash.hex(),
        chain.partition_hash(ZERO, run_hash, b"record", headers).hex(),
        chain.partition_hash(ZERO, run_hash, b"record").hex(),
        f"{entity_hash(b'key', b'stored'):064x}",
    ]


def test_the_partition_of_the_page() -> None:
    """The run that the page names lies in the partition that it names."""
    match = re.search(r"`(\S+)` of (\d+) partitions: (\d+)\.", _section("The partitioner"))
    assert match is not None
    assert partition_of(match.group(1), int(match.group(2))) == int(match.group(3))


def test_the_note_of_a_holder(tmp_path: Path) -> None:
    """Its 256 bytes are as the page says, and are read without the lock."""
    (example,) = re.findall(r"^    (\[4242, .*\])$", _section("A home"), re.MULTILINE)
    lock = FileLock(tmp_path / "holder.lock")
    assert lock.try_acquire()
    lock.write(Note(*json.loads(example)))
    content = (tmp_path / "holder.lock").read_bytes()
    assert content == example.ljust(255).encode() + b"\n"
    assert FileLock(tmp_path / "holder.lock").read() == Note(*json.loads(example))
    lock.release()
    lock.path.write_text("[4242]\n")
    assert lock.read() is None


def test_what_a_home_holds(tmp_path: Path) -> None:
    """Beside SQLite's own, a home has the files of the page's list, and no others."""
    listed = set(re.findall(r"^    HOME/([\w.]+)", _section("A home"), re.MULTILINE))
    with Engine.open(tmp_path / "home", create=True) as engine:
        engine.start(RUN, goal="Fix the login")
    daemon = Daemon(tmp_path / "home")
    daemon.stop()
    daemon.run()
    found = {path.name for path in (tmp_path / "home").iterdir()}
    assert found <= listed | {"log.sqlite.lock", "log.sqlite.queue"}
    assert listed - found == {"artifacts", "log.sqlite.", "snapshots"}


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_the_name_of_the_doorbell(tmp_path: Path) -> None:
    """Who knows the page's name can ring."""
    bell = Doorbell(tmp_path)
    bell.listen()
    place = tmp_path.stat()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ringing:
        assert ringing.sendto(b"!", f"\0foldlog/{place.st_dev}/{place.st_ino}".encode()) == 1
    bell.wait(60_000_000)
    bell.close()
