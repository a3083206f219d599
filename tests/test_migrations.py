"""Documents of older schemas: lifted when a newer build opens the home, or left and named.

Invariants:
- The homes of format 1 were written by the last build of state format 1; this one only reads them.
- What a lifted home shows has the digest that the old build printed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foldlog import Engine
from foldlog.client import wall_clock
from foldlog.core.document import document
from foldlog.core.lifting import Chain, Unsafe
from foldlog.core.migrations import MIGRATIONS, Document
from foldlog.core.state import SCHEMA_VERSION, Header, Slot, ordinal
from foldlog.core.upcasters import UPCASTERS, upcast
from foldlog.doctor import examine
from foldlog.errors import Damaged
from foldlog.fold import Fold
from foldlog.following import Folder
from foldlog.onlooker import Onlooker
from foldlog.store.rocks import RocksStore
from foldlog.wire import keys, slots
from foldlog.working import Working, folded_to, open_run
from tests.core_model import Slots
from tests.golden_homes import GOLDEN, unpacked
from tests.snapshot_homes import keeper_of, opened

FORMAT_1 = GOLDEN / "format-1"
STUCK = "both_in_retry"
"""A timer and another wait both ended in retry: schema 1 does not say which of them counted."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The golden home with runs of every kind."""
    return unpacked(FORMAT_1, "runs", tmp_path)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The golden home in which the count of one run was changed by hand."""
    return unpacked(FORMAT_1, "damaged", tmp_path)


def expected(name: str) -> dict[str, Any]:
    """What the build of format 1 showed of a home."""
    found: dict[str, Any] = json.loads((FORMAT_1 / f"{name}.json").read_text())
    return found


def check_lifted(engine: Engine) -> None:
    """Every run but the one that cannot be is lifted: it shows what it showed, and its attempts."""
    told = expected("runs")
    assert engine.digest() == told["digest"]
    for run_id, before in told["documents"].items():
        state = engine.run(run_id).state()
        assert state is not None
        now = state.to_dict()
        if run_id == STUCK:
            assert (now["schema_version"], now["condition"]) == (1, "migration_required")
            continue
        assert (now["schema_version"], now["condition"]) == (2, "ok")
        assert now["migrated_from"] == [{"schema_version": 1, "build": "0.1.0"}]
        assert len(now["attempts"]) == now["retry_count"] == before["retry_count"]
        entries = {
            (row.at, row.reason, row.revision)
            for row in engine.run(run_id).transitions()
            if row.to == "retry"
        }
        assert {(row["at"], row["reason"], row["revision"]) for row in now["attempts"]} <= entries


def test_a_home_of_format_1_is_lifted_when_it_is_opened(home: Path) -> None:
    """Opened by this build, every document is lifted, says where it came from, and has the digest
    it had; the attempts are those of its transitions."""
    with opened(home) as engine:
        check_lifted(engine)
        assert [a.reason for a in engine.run("failed_and_back").state().attempts] == [  # type: ignore[union-attr]
            "no network", "WaitTimedOut", "SignalReceived",
        ]  # fmt: skip
        began_anew = engine.run("began_anew").state()
        assert began_anew is not None
        assert [attempt.reason for attempt in began_anew.attempts] == ["no disk"]
    with opened(home) as engine:
        check_lifted(engine)


def test_fault_8_a_log_of_format_1_replays(home: Path) -> None:
    """The log alone, folded by this build, gives the digest that the old build printed, decides the
    same again, and nothing is left to lift."""
    shutil.rmtree(home / "projection")
    shutil.rmtree(home / "snapshots")
    told = expected("runs")
    with opened(home) as engine:
        assert engine.digest() == told["digest"]
        report = engine.verify(redecide=True)
        assert report.ok, report.first_difference
        for run_id, before in told["documents"].items():
            state = engine.run(run_id).state()
            assert state is not None
            assert (state.schema_version, state.migrated_from) == (2, [])
            assert len(state.attempts) == before["retry_count"]


def test_fault_18_a_snapshot_of_format_1_is_lifted_and_its_tail_folded(home: Path) -> None:
    """Without a projection the old snapshot is restored, lifted and caught up; it is then byte for
    byte what a full replay makes, the run that cannot be lifted aside."""
    shutil.rmtree(home / "projection")
    with opened(home) as engine:
        seat: Any = engine._seat
        assert 0 < seat._folded < 20
        check_lifted(engine)
        replay = engine.replay(start="snapshot")
        assert replay is not None
        assert replay.digest == expected("runs")["digest"]
        found = engine.verify().first_difference
        assert found is not None
        assert found.run_id == STUCK
        assert "needs a migration" in found.what


def test_a_lifted_home_verifies_byte_for_byte(damaged: Path) -> None:
    """Of the damaged home everything but the damaged run is what a full replay makes: state hash,
    header, attempts; `migrated_from` is no part of that."""
    with opened(damaged) as engine:
        assert engine.verify("good").ok
        assert not engine.verify("bad").ok


def test_a_lifted_run_that_began_anew_goes_on_as_a_replay_has_it(home: Path) -> None:
    """Its attempts from before are kept too, so that the hash of what is decided next is the one
    that folding the log from its start gives."""
    with opened(home) as engine:
        for run_id in ("began_anew", "failed_and_back"):
            assert engine.run(run_id).propose({"type": "BudgetSpent", "tokens": 1}).code is None
            report = engine.verify(run_id)
            assert report.ok, report.first_difference
    shutil.rmtree(home / "projection")
    shutil.rmtree(home / "snapshots")
    with opened(home) as engine:
        report = engine.verify(redecide=True)
        assert report.ok, report.first_difference


def test_a_document_that_contradicts_itself_is_left_readable_and_not_resumable(
    damaged: Path,
) -> None:
    """Its list and count disagree: it is listed and shown as it was, nothing is proposed to it,
    resuming it is refused, and doctor says what is wrong and what a person can do."""
    with opened(damaged) as engine:
        bad = engine.run("bad")
        state = bad.state()
        assert state is not None
        assert (state.schema_version, state.condition, state.retry_count) == (
            1,
            "migration_required",
            5,
        )
        [row] = [row for row in engine.runs() if row.run_id == "bad"]
        assert row.condition == "migration_required"
        assert [alarm.code for alarm in row.alarms][-1] == "MIGRATION_REQUIRED"
        outcome = bad.propose({"type": "BudgetSpent", "tokens": 1})
        assert (outcome.outcome, outcome.code) == ("rejected", "MIGRATION_REQUIRED")
        assert "MIGRATION_REQUIRED" in [reason.code for reason in bad.resume_check().reasons]  # type: ignore[union-attr]
        good = engine.run("good").propose({"type": "BudgetSpent", "tokens": 1})
        assert good.outcome == "accepted"
    [look] = [each for each in examine(damaged, wall_clock) if each.check == "migration"]
    assert not look.ok
    assert "disagree" in look.what
    assert "rebuild --from start" in (look.remedy or "")


def test_what_a_person_can_do_about_it_works(damaged: Path) -> None:
    """Rebuilt from the start of the log, which needs no migration, the run goes on; and what was
    refused meanwhile is no difference when every decision is made again."""
    with opened(damaged) as engine:
        refused = engine.run("bad").propose({"type": "BudgetSpent", "tokens": 1})
        assert refused.code == "MIGRATION_REQUIRED"
        place: Any = engine._seat.place
        place.rebuild(0, "start")
        state = engine.run("bad").state()
        assert state is not None
        assert (state.condition, state.retry_count) == ("ok", 1)
        assert engine.run("bad").propose({"type": "BudgetSpent", "tokens": 1}).outcome == "accepted"
        for name in keeper_of(engine).names(0):
            keeper_of(engine).shelves[0].remove(name)
        report = engine.verify(redecide=True)
        assert report.ok, report.first_difference
    assert not [each for each in examine(damaged, wall_clock) if each.check == "migration"]


def test_a_document_left_alone_takes_what_others_accepted(damaged: Path) -> None:
    """Restored from a snapshot in which it could not be lifted, a run is folded on by records that
    were accepted after it was folded anew: it stays as it is, and nothing else is halted by it."""
    with opened(damaged) as engine:
        place: Any = engine._seat.place
        place.rebuild(0, "start")
        run = engine.run("bad")
        assert run.propose({"type": "BudgetSpent", "tokens": 1}).outcome == "accepted"
        revision = run.state().revision  # type: ignore[union-attr]
    shutil.rmtree(damaged / "projection")
    with opened(damaged) as engine:
        state = engine.run("bad").state()
        assert state is not None
        assert (state.condition, state.revision) == ("migration_required", revision)
        assert engine.run("good").propose({"type": "BudgetSpent", "tokens": 1}).code is None


def test_a_home_of_format_1_is_read_before_anybody_lifts_it(home: Path) -> None:
    """Who only looks at it sees the lifted documents, and changes no byte."""
    before = {path: path.read_bytes() for path in (home / "projection").rglob("*.sst")}
    told = expected("runs")["documents"]
    with Onlooker(home, wall_clock) as onlooker:
        for number in range(2):
            view = onlooker.view(number)
            assert view.meta().format == 1
            for run_id in view.run_ids():
                header = view.run(run_id).state().header
                assert header.retry_count == told[run_id]["retry_count"]
                assert header.schema_version == (1 if run_id == STUCK else 2)
    assert {path: path.read_bytes() for path in (home / "projection").rglob("*.sst")} == before


def test_a_projection_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A store that says a greater format than this build's is neither read nor rebuilt."""
    with opened(tmp_path, create=True, partitions=1) as engine:
        engine.start("run_1", goal="x")
        store: Any = engine._seat._holder.held[0].partition.store  # type: ignore[union-attr]
        meta = json.loads(store.get(keys.META))
        meta["format"] = slots.STATE_FORMAT + 1
        store.write({keys.META: json.dumps(meta).encode()})
    with pytest.raises(Damaged, match=f"state format {slots.STATE_FORMAT + 1}"):
        opened(tmp_path)


# The steps


Listing = list[tuple[str | None, str, str]]


def listed(transitions: Listing) -> Slots:
    """A document's slots made of a list of transitions."""
    found = {}
    for number, (before, to, reason) in enumerate(transitions, 1):
        found[ordinal(number)] = Slot(
            {"from": before, "to": to, "reason": reason, "at": f"t{number}", "revision": number}
        )
    return Slots({"transition": found})


START: Listing = [
    (None, "start", "RunStarted"),
    ("start", "planning", "x"),
    ("planning", "running", "x"),
]
FAILED: Listing = [("running", "retry", "no network")]
TRIED: Listing = [("retry", "running", "x")]
ANEW: Listing = [("retry", "start", "x"), ("start", "planning", "x"), ("planning", "running", "x")]
TIMED_OUT: Listing = [("running", "waiting", "r"), ("waiting", "retry", "WaitTimedOut")]
ENDED_THERE: Listing = [("retry", "waiting", "r"), ("waiting", "retry", "WaitTimedOut")]
SIGNALLED: Listing = [("retry", "waiting", "r"), ("waiting", "retry", "SignalReceived")]


@pytest.mark.parametrize(
    ("transitions", "count", "attempts"),
    [
        (START, 0, []),
        (START + FAILED, 1, [4]),
        (START + FAILED, 0, None),
        (START + FAILED, 2, None),
        (START + FAILED + TRIED + FAILED, 2, [4, 6]),
        (START + FAILED + ANEW, 0, [4]),
        (START + FAILED + ANEW + FAILED, 1, [4, 8]),
        (START + FAILED + ENDED_THERE + ANEW, 0, None),
        (START + FAILED + SIGNALLED + ANEW, 0, [4]),
        (START + FAILED + ANEW + FAILED, 2, None),
        (START + TIMED_OUT, 1, [5]),
        (START + FAILED + SIGNALLED, 1, [4]),
        (START + FAILED + SIGNALLED, 2, None),
        (START + FAILED + ENDED_THERE, 1, [4]),
        (START + FAILED + ENDED_THERE, 2, [4, 6]),
        (START + FAILED + ENDED_THERE * 2, 1, [4]),
        (START + FAILED + ENDED_THERE * 2, 3, [4, 6, 8]),
        (START + FAILED + ENDED_THERE * 2, 2, None),
        (START, 3, None),
    ],
)
def test_the_attempts_that_the_transitions_tell(
    transitions: Listing, count: int, attempts: list[int] | None
) -> None:
    """Which entries into retry counted follows from list and count, or nothing is lifted."""
    header = Header("run_1", schema_version=1, retries_kept=count)
    lifted = MIGRATIONS.lifted(Document(header, listed(transitions)), 1)
    if attempts is None:
        assert isinstance(lifted, Unsafe)
        assert "count" in lifted.reason
        return
    assert isinstance(lifted, Document)
    assert lifted.header.schema_version == SCHEMA_VERSION
    assert lifted.header.retry_count == count
    assert [slot.value["revision"] for _, slot in lifted.scan("attempt")] == attempts
    assert lifted.header.attempts_count == len(attempts)


def test_a_chain_refuses_what_it_does_not_know() -> None:
    """A newer version, and one with no step from it, are refused by name; steps run in order."""
    chain: Chain[str] = Chain("thing", 3, {1: lambda text: text + "2", 2: lambda text: text + "3"})
    assert chain.lifted("1", 1) == "123"
    assert chain.lifted("2", 2) == "23"
    assert chain.lifted("3", 3) == "3"
    for version, words in ((4, "up to version 3"), (0, "unknown")):
        refused = chain.lifted("x", version)
        assert isinstance(refused, Unsafe)
        assert words in refused.reason
    stopping: Chain[str] = Chain("thing", 3, {1: lambda _: Unsafe("no"), 2: lambda text: text})
    assert stopping.lifted("1", 1) == Unsafe("no")
    with pytest.raises(AssertionError):
        Chain("thing", 3, {1: lambda text: text})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["fail", "again", "anew", "signal", "wait", "timer"]), max_size=12))
def test_lifted_is_what_a_replay_makes(steps: list[str]) -> None:
    """Whatever a run went through, its schema 1 document, if it can be lifted, becomes the one that
    folding it under schema 2 makes."""
    transitions, counted, before = list(START), list[int](), 0
    status = "running"
    for step in steps:
        number = len(transitions) + 1
        if step == "fail" and status == "running":
            transitions.append(("running", "retry", "e"))
            counted, status = [*counted, number], "retry"
        elif step == "again" and status == "retry":
            transitions.append(("retry", "running", "x"))
            status = "running"
        elif step == "anew" and status == "retry":
            transitions += ANEW
            before, status = len(counted), "running"
        elif step in ("signal", "wait", "timer"):
            reason = "SignalReceived" if step == "signal" else "WaitTimedOut"
            to = "retry" if step == "wait" else status
            transitions += [(status, "waiting", "r"), ("waiting", to, reason)]
            if step == "wait":
                counted = [*counted, number + 1]
            status = to
    header = Header("run_1", schema_version=1, retries_kept=len(counted) - before)
    lifted = MIGRATIONS.lifted(Document(header, listed(transitions)), 1)
    if isinstance(lifted, Document):
        assert [slot.value["revision"] for _, slot in lifted.scan("attempt")] == counted
        found = (lifted.header.attempts_count, lifted.header.attempts_before)
        assert found == (len(counted), before)


# Events


def upcasters() -> Iterator[Chain[Any]]:
    """Every chain of upcasters of this build."""
    yield from UPCASTERS.values()


def test_event_upcasters_are_chains_of_the_same_form() -> None:
    """An old event goes through its type's steps; one without steps reads as it was written; a
    newer version is refused."""
    renamed: Chain[Any] = Chain("event", 2, {1: lambda fields: {"words": fields["text"]}})
    planted = {"Noted": renamed}
    assert upcast("Noted", 1, {"text": "x"}, planted) == {"words": "x"}
    assert upcast("Noted", 2, {"words": "x"}, planted) == {"words": "x"}
    assert upcast("Other", 1, {"text": "x"}, planted) == {"text": "x"}
    assert isinstance(upcast("Noted", 3, {}, planted), Unsafe)
    assert all(chain.newest > 1 for chain in upcasters())


def test_a_run_that_is_shown_lifted_is_kept_so_from_its_first_change_on(damaged: Path) -> None:
    """A record folded onto a store of format 1 as it is lifts its run whole: header, attempts and
    state hash are those of a replay from the start."""
    with opened(damaged) as engine:
        engine.run("good").propose({"type": "BudgetSpent", "tokens": 1})
        log: Any = engine._seat.place.log
        rows = log.events(0, 1, 100, 1 << 20)
        old = unpacked(FORMAT_1, "damaged", damaged / "old")
        shutil.copytree(old / "projection" / "0", damaged / "copy")
        store = RocksStore(damaged / "copy")
        try:
            working = Working(store, folded_to(store, log.identity, 0))
            fold = Fold(working, 0)
            for stored in rows[working.meta.offset - 1 :]:
                assert fold.fold(stored) is not None
            store.write(working.written())
            run = open_run(store, "good")
            assert run.lifted_from is None
            with engine._reading_partition(0) as view:
                now = view.run("good")
                assert run.header == now.header
                assert run.head.state_sum == now.head.state_sum
                assert document(run.state())["attempts"] == document(now.state())["attempts"] != []
        finally:
            store.close()


def test_a_followed_store_of_format_1_is_folded_anew(damaged: Path, tmp_path: Path) -> None:
    """A store that follows a log elsewhere is thrown away where another build folded it."""
    folder = Folder(tmp_path / "elsewhere")
    shutil.copytree(damaged / "projection" / "0", folder.place(0))
    store = folder.store(0)
    assert list(store.scan(b"")) == []
    store.write({keys.META: slots.encode_meta(slots.Meta("log", 0))})
    store.close()
    again = folder.store(0)
    assert again.get(keys.META) is not None
    again.close()
