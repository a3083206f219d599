"""A log on Kafka: how long an outcome takes beside the bare client, and what a record costs.

Two measurements, each a ratio inside one run:

- p10, p50 and p99 of propose -> outcome (one worker, one projector process), beside a bare echo of
  two processes: produce, consume, produce, consume, with the same settings and sizes; and beside
  one that reads back what it wrote before it goes on, as whoever decides has to; and beside one
  whose ends compute before and after they send, for as long as foldlog's do: its time without that
  is what the very same hops take once the caches are not theirs alone. They are measured in turns,
  so that whatever else the machine does meets all of them. (On a machine that others use too, p10
  shows best what the work itself takes.) With --pause-ms there is time between the calls, as there
  is between those of an agent, which thinks.
- CPU seconds of deciding a record (user and system, of projector processes that have their
  partitions), with two workers beside one; and the rate, which can only double where there are
  cores for it.

Needs a broker: `make kafka`, or --bootstrap. acks=all; a single broker does not fsync each write.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from foldlog import Engine
from foldlog.core.proposals import parse_proposal
from foldlog.log.kafka.address import parse_url
from foldlog.log.kafka.handles import TAIL_WAIT_MS, Handles
from foldlog.reaching import create_log, open_log
from foldlog.wire.envelope import encode_proposal
from foldlog.wire.partitioner import partition_of

HOPS = "hops of computing"
MEMBER = "import json, sys; from foldlog_projector.serving import *; "
MEMBER += "from pathlib import Path; plan = json.loads(sys.argv[2]); "
MEMBER += "plan['home'] = Path(plan['home']); globals()[sys.argv[1]](plan)"
BLOCK = 25
PARTITIONS = 4
SETTLE_SECONDS = 3.0
"""After every member has its partitions: their stores are opened, the imports are over."""

VALUE_BYTES = 300

COMPUTE_US = 500
"""What an end that computes does before it sends, and the echo after it too."""


def main() -> int:
    """Measure and print a table, or JSON; as `--echo`, be the other end of the bare client."""
    options = _options()
    if options.echo is not None:
        _echo(options.echo, reads_back=options.reads_back, compute_us=options.compute_us)
        return 0
    with tempfile.TemporaryDirectory(prefix="kafka-") as folder:
        found = {
            "latency": _latency(
                options.bootstrap, Path(folder), options.calls, options.pause_ms / 1000
            ),
            "cost": _cost(options.bootstrap, Path(folder), options.records),
        }
    print(json.dumps(found, indent=2) if options.json else _table(found))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    named = os.environ.get("FOLDLOG_TEST_BOOTSTRAP", "127.0.0.1:19092")
    parser.add_argument("--bootstrap", default=named, help=f"the broker ({named})")
    parser.add_argument("--calls", type=int, default=500, metavar="N", help="round trips (500)")
    parser.add_argument("--pause-ms", type=int, default=0, metavar="N", help="between them (0)")
    parser.add_argument("--records", type=int, default=8000, metavar="N", help="decided (8000)")
    parser.add_argument("--echo", default=None, metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--reads-back", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compute-us", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _new_url(bootstrap: str, partitions: int) -> str:
    url = f"kafka://{bootstrap}/bench{uuid.uuid4().hex[:10]}"
    create_log(url, partitions)
    return url


# Latency


def _latency(bootstrap: str, folder: Path, calls: int, pause: float) -> dict[str, Any]:
    url = _new_url(bootstrap, 1)
    plan = {"url": url, "home": str(folder / "projector")}
    with (
        _bare(_new_url(bootstrap, 1)) as bare,
        _bare(_new_url(bootstrap, 1), "--reads-back") as read_back,
        _bare(_new_url(bootstrap, 1), "--compute-us", str(COMPUTE_US)) as computing,
        _process([sys.executable, "-c", MEMBER, "run_member", json.dumps(plan)]),
        Engine.connect(url, home=folder / "worker") as engine,
    ):
        run = engine.start("run_1", goal="measure", timeout=60)

        def propose() -> None:
            fact = {"id": str(uuid.uuid4()), "statement": "x" * 100}
            outcome = run.propose([{"type": "FactConfirmed", "fact": fact}])
            assert outcome.outcome == "accepted"

        def compute_and_call() -> None:
            _compute(COMPUTE_US)
            computing()

        works = {
            "bare": bare,
            "bare, read back": read_back,
            HOPS: compute_and_call,
            "foldlog": propose,
        }
        took: dict[str, list[float]] = {name: [] for name in works}
        for work in works.values():
            _timed(work, BLOCK, [], 0)  # connections, imports, first records
        for _ in range(0, calls, BLOCK):
            for name, work in works.items():
                _timed(work, BLOCK, took[name], pause)
    took[HOPS] = [seconds - 2 * COMPUTE_US / 1e6 for seconds in took[HOPS]]
    rows = {name: _quantiles(times) for name, times in took.items()}
    ratios = {
        f"ratio_{p}": round(rows["foldlog"][f"{p}_us"] / rows["bare"][f"{p}_us"], 2)
        for p in ("p10", "p50", "p99")
    }
    return {**rows, "calls": len(took["bare"]), **ratios}


def _timed(work: Callable[[], None], count: int, took: list[float], pause: float) -> None:
    for _ in range(count):
        time.sleep(pause)
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)


def _compute(microseconds: int) -> None:
    """Something that fills caches, as whoever decides does."""
    end, made = time.perf_counter() + microseconds / 1e6, dict[str, list[int]]()
    while time.perf_counter() < end:
        for number in range(20):
            made[str(number)] = [number] * 10


def _quantiles(took: list[float]) -> dict[str, int]:
    ordered = sorted(took)
    return {
        f"p{percent}_us": round(ordered[len(ordered) * percent // 100] * 1e6)
        for percent in (10, 50, 99)
    }


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def _ends(handles: Handles, half: str) -> tuple[Consumer, Producer]:
    """A consumer at the end of one topic, and a producer for the other, as foldlog makes them."""
    consumer = handles.reader(TAIL_WAIT_MS)
    topic = getattr(handles.address, half)
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.assign([TopicPartition(topic, 0, end)])
    return consumer, handles.proposer() if half == "events" else handles.appender()


def _next(consumer: Consumer) -> Any:
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            return message


@contextlib.contextmanager
def _bare(url: str, *options: str) -> Iterator[Callable[[], None]]:
    handles = Handles(parse_url(url), {})
    consumer, producer = _ends(handles, "events")

    def call() -> None:
        producer.produce(handles.address.proposals, b"v" * VALUE_BYTES, b"run_1", partition=0)
        _next(consumer)
        producer.poll(0)

    with _process([sys.executable, __file__, "--echo", url, *options]) as echo:
        assert echo.stdout is not None
        assert echo.stdout.readline() == b"ready\n"
        yield call
    consumer.close()


def _echo(url: str, *, reads_back: bool, compute_us: int) -> None:
    handles = Handles(parse_url(url), {})
    consumer, producer = _ends(handles, "proposals")
    written = _ends(handles, "events")[0] if reads_back else None
    print("ready", flush=True)
    while True:
        message = _next(consumer)
        _compute(compute_us)
        producer.produce(handles.address.events, message.value(), message.key(), partition=0)
        if written is not None:
            _next(written)
        producer.poll(0)
        _compute(compute_us)


# Cost


def _cost(bootstrap: str, folder: Path, records: int) -> dict[str, Any]:
    entries = _entries(records)
    rows = {}
    for workers in (1, 2):
        cpu, seconds = _decide(_new_url(bootstrap, PARTITIONS), folder, workers, entries)
        rows[str(workers)] = {
            "cpu_us_a_record": round(cpu / records * 1e6),
            "records_a_second": round(records / seconds),
        }
    one, two = rows["1"], rows["2"]
    return {
        **rows,
        "records": records,
        "cores": os.cpu_count(),
        "ratio_cpu": round(two["cpu_us_a_record"] / one["cpu_us_a_record"], 2),
        "ratio_rate": round(two["records_a_second"] / one["records_a_second"], 2),
    }


def _entries(records: int) -> dict[int, list[tuple[bytes, bytes]]]:
    """Proposals to 400 runs, by partition."""
    waiting: dict[int, list[tuple[bytes, bytes]]] = {n: [] for n in range(PARTITIONS)}
    for number in range(records):
        run_id = f"run_{number % 400}"
        event: dict[str, Any] = {"type": "RunStarted", "goal": {"statement": "measure"}}
        if number >= 400:
            fact = {"id": f"fact_{number}", "statement": "x" * 100}
            event = {"type": "FactConfirmed", "fact": fact}
        author = {"kind": "user", "id": "ada"}
        value = {"batch_id": str(uuid.uuid4()), "author": author, "events": [event]}
        entry = run_id.encode(), encode_proposal(parse_proposal(run_id, value))
        waiting[partition_of(run_id, PARTITIONS)].append(entry)
    return waiting


def _decide(
    url: str, folder: Path, workers: int, entries: dict[int, list[tuple[bytes, bytes]]]
) -> tuple[float, float]:
    """Members that share the partitions decide what then comes: their CPU seconds, and how long
    it took from the first proposal to the last record."""
    home = folder / f"home-{workers}"
    home.mkdir()
    plans = [json.dumps({"url": url, "home": str(home), "worker": n + 1}) for n in range(workers)]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(contextlib.closing(open_log(url)))
        members = [
            stack.enter_context(_process([sys.executable, "-c", MEMBER, "run_member", plan]))
            for plan in plans
        ]
        _await(
            lambda: len(set(_owners(log).values())) == workers and len(_owners(log)) == PARTITIONS
        )
        time.sleep(SETTLE_SECONDS)
        before, began = sum(map(_cpu, members)), time.perf_counter()
        for partition, rows in entries.items():
            for first in range(0, len(rows), 500):
                log.propose(partition, rows[first : first + 500])
        for partition, rows in entries.items():
            _await(lambda partition=partition, rows=rows: log.end(partition) > len(rows))
        return sum(map(_cpu, members)) - before, time.perf_counter() - began


def _owners(log: Any) -> dict[int, str]:
    return {n: owner for n in range(PARTITIONS) if (owner := log.owner(n)) is not None}


def _await(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.02)


def _cpu(process: subprocess.Popen[bytes]) -> float:
    """The CPU seconds of a process so far, its threads' included (Linux)."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _table(found: dict[str, Any]) -> str:
    latency, cost = found["latency"], found["cost"]
    lines = [f"{latency['calls']:>5} round trips       p10 us   p50 us   p99 us"]
    for name in ("bare", "bare, read back", HOPS, "foldlog"):
        figures = "".join(f"{latency[name][f'p{p}_us']:>9}" for p in (10, 50, 99))
        lines.append(f"  {name:<20}{figures}")
    ratios = "".join(f"{latency[f'ratio_p{p}']:>9}" for p in (10, 50, 99))
    lines.append(f"  {'foldlog / bare':<20}{ratios}")
    lines.append(f"{cost['records']} records, {cost['cores']} cores  CPU us a record   records/s")
    for workers in ("1", "2"):
        row = cost[workers]
        figures = f"{row['cpu_us_a_record']:>17}{row['records_a_second']:>12}"
        lines.append(f"  {workers} worker(s)        {figures}")
    lines.append(f"  two beside one: CPU {cost['ratio_cpu']}, rate {cost['ratio_rate']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
