"""A projection rebuilt beside the one that is there, and swapped in whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from foldlog.disk import REAL_DISK
from foldlog.errors import HomeBusy
from foldlog.locks import FileLock
from foldlog.rebuilding import BUILDING, BUILT, REPLACED, beside, waits
from foldlog.wire import keys, slots
from tests import needs
from tests.golden_homes import GOLDEN, unpacked
from tests.processes import child, line
from tests.snapshot_homes import beside as looked_at
from tests.snapshot_homes import grow, opened, small_home
from tests.test_snapshot_kills import CALLS, numbers
from tests.workers import environment


def inode(home: Path) -> int:
    """Which store stands in the place of the projection."""
    return (home / "projection" / "0").stat().st_ino


@pytest.mark.parametrize("source", ["snapshot", "start"])
def test_a_rebuild_takes_the_place_of_the_old_one(tmp_path: Path, source: str) -> None:
    """Nobody holds the home: the new store is built, every run compared, and swapped in."""
    digest = small_home(tmp_path)
    before = inode(tmp_path)
    with looked_at(tmp_path) as home:
        rebuilt, is_swapped = home.rebuild(0, source)
        newest = home.snapshots.names(0)[0]
    assert is_swapped
    assert rebuilt.begun_with == ("start" if source == "start" else f"snapshot {newest}")
    assert rebuilt.records == (18 if source == "start" else 2)
    assert (rebuilt.runs, rebuilt.compared, rebuilt.differing) == (8, 8, ())
    assert inode(tmp_path) != before
    assert sorted(path.name for path in (tmp_path / "projection").iterdir()) == [
        "0",
        "rebuild.lock",
    ]
    with opened(tmp_path) as engine:
        assert engine.digest() == digest
        assert engine.verify().ok


def test_without_a_snapshot_a_rebuild_begins_at_the_start(tmp_path: Path) -> None:
    """And so it does where the newest ones are damaged."""
    small_home(tmp_path, snapshots=0)
    with looked_at(tmp_path) as home:
        assert home.rebuild(0, "snapshot")[0].begun_with == "start"


def test_the_holder_goes_on_and_swaps_the_new_one_in(tmp_path: Path) -> None:
    """While a holder of another process proposes and reads, the rebuild catches up, and the holder
    takes it over by itself; nothing is lost."""
    small_home(tmp_path)
    code = """
        import sys
        from pathlib import Path
        from tests.snapshot_homes import opened, grow
        with opened(Path(sys.argv[1])) as engine:
            print("open", flush=True)
            count = 0
            while not Path(sys.argv[1], "stop").exists():
                grow(engine, range(4))
                count += 1
            print(count, flush=True)
        """
    before = inode(tmp_path)
    with child("import sys; sys.path.insert(0, '.')", code, tmp_path) as holder:
        assert line(holder) == "open"
        with looked_at(tmp_path) as home:
            rebuilt, is_swapped = home.rebuild(0, "start")
        assert is_swapped
        assert rebuilt.differing == ()
        (tmp_path / "stop").touch()
        count = int(line(holder))
        holder.wait(30)
    assert count > 0
    assert inode(tmp_path) != before
    with opened(tmp_path) as engine:
        report = engine.verify()
        assert report.ok, report.first_difference
        state = engine.run("run_2").state()
        assert state is not None
        assert state.revision == 2 + count


def test_reads_go_on_while_a_rebuild_runs(tmp_path: Path) -> None:
    """The old store is only read by a rebuild: this process holds it and reads at every moment."""
    digest = small_home(tmp_path)
    with opened(tmp_path) as engine:
        done: list[Any] = []
        place: Any = engine._seat.place
        thread = threading.Thread(target=lambda: done.append(place.rebuild(0, "start")))
        thread.start()
        reads = 0
        while thread.is_alive():
            assert engine.digest() == digest
            reads += 1
        thread.join()
        assert reads > 0
        assert done[0][1]
        assert engine.digest() == digest


def test_a_run_that_is_not_the_fold_of_the_log_is_named(tmp_path: Path) -> None:
    """Where the old store shows another state than the log makes, the start of the log decides; the
    run is named, and the new store has it right."""
    digest = small_home(tmp_path)
    with opened(tmp_path) as engine:
        store: Any = engine._seat._holder.held[0].partition.store  # type: ignore[union-attr]
        [(key, value)] = list(store.scan(b"e\0run_3\0goal"))
        store.write({key: value.replace(b"goal of 3", b"goal of 4")})
        assert engine.digest() != digest
    with looked_at(tmp_path) as home:
        rebuilt, _ = home.rebuild(0, "snapshot")
    assert (rebuilt.begun_with, rebuilt.differing) == ("start", ("run_3",))
    with opened(tmp_path) as engine:
        assert engine.digest() == digest


def test_a_store_folded_under_other_rules_is_rebuilt_by_itself(tmp_path: Path) -> None:
    """A store that names another table of the rules is rebuilt from the log when it is opened, and
    names this build's table afterwards."""
    digest = small_home(tmp_path)
    with opened(tmp_path) as engine:
        store: Any = engine._seat._holder.held[0].partition.store  # type: ignore[union-attr]
        data = store.get(keys.META).replace(slots.TABLES.encode(), b"0" * 32)
        store.write({keys.META: data})
    before = inode(tmp_path)
    with opened(tmp_path) as engine:
        assert engine.digest() == digest
        report = engine.verify()
        assert report.ok, report.first_difference
    assert inode(tmp_path) != before
    with opened(tmp_path):
        assert inode(tmp_path) != before


def test_one_rebuild_at_a_time(tmp_path: Path) -> None:
    """A second one says that another process is at it."""
    small_home(tmp_path)
    lock = FileLock(tmp_path / "projection" / "rebuild.lock")
    assert lock.try_acquire()
    with looked_at(tmp_path) as home, pytest.raises(HomeBusy, match="rebuilds"):
        home.rebuild(0, "start")
    lock.release()


@pytest.mark.parametrize("left", [(BUILDING,), (BUILT,), (BUILT, REPLACED), (REPLACED,)])
def test_whatever_an_interrupted_swap_left_the_next_start_is_whole(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    """A half-built store is thrown away, a built one put in its place, also where the old one had
    already been moved out of it."""
    digest = small_home(tmp_path)
    path = tmp_path / "projection" / "0"
    if BUILT in left:
        subprocess.run(["cp", "-a", path, beside(path, BUILT)], check=True)
        if REPLACED in left:
            os.rename(path, beside(path, REPLACED))
    elif REPLACED in left:
        subprocess.run(["cp", "-a", path, beside(path, REPLACED)], check=True)
    else:
        beside(path, BUILDING).mkdir()
        (beside(path, BUILDING) / "CURRENT").write_text("MANIFEST-000001\n")
    assert waits(REAL_DISK, path) is (BUILT in left)
    with opened(tmp_path) as engine:
        assert engine.digest() == digest
        assert engine.verify().ok
    with looked_at(tmp_path) as home:
        home.rebuild(0, "start")
    assert {each.name for each in path.parent.iterdir()} == {"0", "rebuild.lock"}


WORKS = {
    "rebuild": """
with beside(home) as found:
    found.rebuild(0, "start")
""",
    "migrate": """
with opened(home) as engine:
    pass
""",
}
BEGIN = """
import sys
sys.path.insert(0, ".")
from pathlib import Path
from tests.snapshot_homes import beside, opened
home = Path(sys.argv[1])
"""


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("work", WORKS)
def test_fault_8_a_kill_at_any_call_never_leaves_half_a_swap(
    tmp_path: Path, work: str, kind: str
) -> None:
    """Killed at its n-th sync or rename while it rebuilds or lifts a home, a process leaves the old
    store or the new one, and the next start is right by itself."""
    strace = needs.program("strace")
    prepared = tmp_path / "prepared"
    if work == "migrate":
        unpacked(GOLDEN / "format-1", "damaged", tmp_path)
        os.rename(tmp_path / "damaged", prepared)
        digest = None
    else:
        digest = small_home(prepared)
    count = 0
    for number in numbers(f"{work}/{kind}"):
        home = tmp_path / str(number)
        subprocess.run(["cp", "-a", prepared, home], check=True)
        inject = f"inject={CALLS[kind]}:signal=SIGKILL:when={number}"
        options = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={CALLS[kind]}", "-e", inject]
        done = subprocess.run(
            [strace, *options, sys.executable, "-c", BEGIN + WORKS[work], str(home)],
            env=environment(), check=False, timeout=120, capture_output=True,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        with opened(home) as engine:
            grow(engine, range(1))
            if digest is None:
                state = engine.run("good").state()
                assert state is not None
                assert (state.schema_version, len(state.migrated_from)) == (2, 1)
                assert engine.verify("good").ok
            else:
                assert engine.verify().ok
        if done.returncode == 0:
            break
        count += 1
    assert count >= 2
