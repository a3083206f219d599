"""What a waiting run costs, and how soon a worker goes on once its signal is there.

So many runs wait in one home. Counted are the bytes that each takes on the disk, the processor's
time that an idle worker takes beside them, and how long it is from handing in a signal until a
worker has claimed the run and calls the author's code. That is set against one bare proposal with
its outcome, in the same process and on the same disk. Every proposal ends in an fsync.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from foldlog import Engine
from foldlog.worker import Agent, Worker

IDLE_SECONDS = 5.0


def main() -> None:
    """Measure and print a table, or JSON."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="waiting-", dir=options.dir) as folder,
        Engine.open(Path(folder), create=True, author="agent:bench") as engine,
    ):
        found = _measure(engine, Path(folder), options)
    print(json.dumps(found, indent=2) if options.json else _table(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=10_000, metavar="N", help="that wait (10000)")
    parser.add_argument("--wakes", type=int, default=100, metavar="N", help="measured (100)")
    parser.add_argument("--dir", default=None, help="where to write: the disk that is measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _measure(engine: Engine, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    woken: dict[str, float] = {}
    agent = Agent()
    idle_before = _idle(engine, agent)
    before = _bytes(folder)
    with ThreadPoolExecutor(32) as threads:
        list(threads.map(lambda number: _wait(engine, number), range(options.runs)))
    each = (_bytes(folder) - before) / options.runs

    @agent.plan
    def plan(run: Any) -> list[Any]:
        woken[run.run_id] = time.perf_counter()
        return []

    bare = _median(lambda number: _propose(engine, number), options.wakes)
    first_look, idle_after, wakes = _working(engine, agent, woken, options)
    return {
        "runs": options.runs,
        "bytes_each": round(each),
        "bare_ms": round(bare * 1000, 2),
        "first_look_ms": round(first_look * 1000, 1),
        "idle_cpu_percent": {"none": idle_before, "all": idle_after},
        "wakes": options.wakes,
        "wake_ms": round(statistics.median(wakes) * 1000, 2),
        "wake_p99_ms": round(sorted(wakes)[int(len(wakes) * 0.99) - 1] * 1000, 2),
        "wake_to_bare": round(statistics.median(wakes) / bare, 1),
    }


def _wait(engine: Engine, number: int) -> None:
    events = [
        {"type": "RunStarted", "goal": {"statement": "wait until somebody answers"}},
        {"type": "RunTransitioned", "to": "planning"},
        {"type": "WaitStarted", "kind": "approval", "key": "answer", "reason": "may I?"},
    ]
    outcome = engine.run(f"run_{number}").propose(events, timeout=60)
    assert outcome.accepted, outcome


def _propose(engine: Engine, number: int) -> None:
    event = {"type": "SignalReceived", "key": "other", "signal_id": str(number)}
    assert engine.run("run_0").propose(event).accepted


def _median(work: Callable[[int], None], count: int) -> float:
    took = []
    for number in range(count):
        began = time.perf_counter()
        work(number)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _idle(engine: Engine, agent: Agent) -> float:
    """The share of a processor that this process takes while its worker has nothing to do."""
    worker = Worker(engine, "idle", agent)
    worker.claim()  # the first look is another figure
    began, cpu = time.monotonic(), time.process_time()
    worker.claim(IDLE_SECONDS)
    return round(100 * (time.process_time() - cpu) / (time.monotonic() - began), 1)


def _working(
    engine: Engine, agent: Agent, woken: dict[str, float], options: argparse.Namespace
) -> tuple[float, float, list[float]]:
    idle = _idle(engine, agent)
    worker = Worker(engine, "bench", agent)
    began = time.perf_counter()
    assert worker.claim() is None
    first_look = time.perf_counter() - began
    thread = threading.Thread(target=worker.work)
    thread.start()
    wakes = []
    for number in range(1, options.wakes + 1):
        run = engine.run(f"run_{number}")
        began = time.perf_counter()
        assert run.signal("answer").accepted
        waited = run.wait("finish", timeout=60)
        assert waited is not None
        assert waited.reached
        wakes.append(woken[run.run_id] - began)
    worker.stop()
    thread.join()
    return first_look, idle, wakes


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _table(found: dict[str, Any]) -> str:
    idle, count = found["idle_cpu_percent"], found["wakes"]
    wake = f"{found['wake_ms']} ms (p99 {found['wake_p99_ms']})"
    lines = (
        f"{found['runs']} waiting runs: {found['bytes_each']} bytes each on the disk",
        f"an idle worker: {idle['all']} % of a processor beside them, {idle['none']} % alone",
        f"its first look at them: {found['first_look_ms']} ms",
        f"a bare proposal with its outcome: {found['bare_ms']} ms (median, N = {count})",
        f"from a signal to the author's code: {wake}, N = {count}",
        f"that is {found['wake_to_bare']} bare proposals",
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
