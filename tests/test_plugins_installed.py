"""Plug-ins across builds: installed as entry points, missing in another process, gone and back.

Invariants:
- A build is a real process of its own, with the plug-in in its environment or without.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from foldlog import Engine, errors
from foldlog.lacking import used_in
from foldlog.wire.partitioner import partition_of
from tests.test_plugins import RULES, VOTES, ballot, begun, members
from tests.workers import FOLDLOG, daemon, environment, log_lines, until

MODULE = """
from foldlog.plugins import EventDefinition, Id, Plugin, Text, required

def cast(access, event):
    access.put(f"votes:ballot/{event['voter']}", {"choice": event["choice"]})

VOTER = ("votes:ballot/{voter}",)
FIELDS = {"voter": required(Id()), "choice": required(Text())}
CAST = EventDefinition("BallotCast", FIELDS, cast, writes=VOTER, commutes=True)
RULES = {1_000_001: [Plugin("votes", [CAST], collections=("ballot",))]}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a run under the plug-in's rules, at revision 2, another one, and a plain one."""
    with Engine.open(
        tmp_path / "home", create=True, partitions=1, plugins={RULES: [VOTES]}
    ) as engine:
        assert begun(engine).propose(ballot("ada")).accepted
        engine.start("run_2", goal="g", rules_version=RULES)
        engine.start("run_3", goal="g")
    return tmp_path / "home"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the plug-in installed in it."""
    site = tmp_path / "site"
    info = site / "votes-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "votes_plugin.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: votes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[foldlog.plugins]\nvotes = votes_plugin:RULES\n")
    return site


def foldlog(
    home: Path, *args: str, site: Path | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """A command of a build with what is installed in `site`."""
    env = environment()
    if site is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(site), env["PYTHONPATH"]])
    command = [*FOLDLOG, *args, "--home", str(home)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=env, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothere", "ModuleNotFoundError: No module named 'nothere'"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("RULES = [1]", "no mapping"),
        ("RULES = {1_000_001: 5}", "no mapping"),
        ("RULES = {1_000_001: [object()]}", "no mapping"),
        ("pass", "AttributeError"),
    ],
)
def test_a_plug_in_that_does_not_load_is_named(
    home: Path, site: Path, source: str, says: str
) -> None:
    """Every command ends with 2 and says which entry point it is, and of which package."""
    (site / "votes_plugin.py").write_text(source)
    for command in (["runs"], ["verify"], ["show", "run_3"]):
        done = foldlog(home, *command, site=site)
        assert done.returncode == 2, done.stderr
        assert "the plug-ins 'votes' of votes (votes_plugin:RULES)" in done.stderr
        assert says in done.stderr


def vote(voter: str) -> str:
    """A proposal from a shell."""
    return json.dumps({"events": [ballot(voter)]})


def shown(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command printed as JSON."""
    return json.loads(done.stdout)


def test_an_installed_plugin_is_used_by_every_command(home: Path, site: Path) -> None:
    """propose, show, verify and replay know the events of a plug-in that is installed."""
    done = foldlog(home, "propose", "run_1", "--json", site=site, stdin=vote("bob"))
    assert (done.returncode, shown(done)["revision"]) == (0, 3), done.stderr
    ballots = shown(foldlog(home, "show", "run_1", "--json", site=site))["plugins"]["votes:ballot"]
    assert [member["id"] for member in ballots] == ["ada", "bob"]
    assert foldlog(home, "verify", "--redecide", site=site).returncode == 0
    assert foldlog(home, "replay", "run_1", site=site).returncode == 0


def test_a_build_without_it_refuses_the_partition_and_says_so(home: Path, site: Path) -> None:
    """Nothing is decided around a missing plug-in: who proposes to the run is told, what was
    proposed waits, and a build that has it goes on."""
    proposal = json.dumps({"batch_id": "5bfc1d98-7697-48d2-b42d-cddfd75d6180",
                           "events": [{"type": "BudgetSpent", "tokens": 1}]})  # fmt: skip
    done = foldlog(home, "propose", "run_1", stdin=proposal)
    assert done.returncode == 6
    assert "PLUGIN_MISSING" in done.stderr
    assert "1000001" in done.stderr
    assert "run_1" in done.stderr
    assert foldlog(home, "propose", "run_1", site=site, stdin=proposal).returncode == 0
    history = foldlog(home, "history", "run_1", "--rejected", "--json", site=site)
    rows = [json.loads(line) for line in history.stdout.splitlines()]
    assert [row["outcome"] for row in rows if row["batch_id"] == rows[-1]["batch_id"]] == [
        "accepted"
    ]
    assert foldlog(home, "verify", site=site).returncode == 0


def test_what_was_decided_is_read_without_it(home: Path) -> None:
    """show and history of a build without the plug-in show what stands; verify cannot prove it."""
    ballots = shown(foldlog(home, "show", "run_1", "--json"))["plugins"]["votes:ballot"]
    assert [member["id"] for member in ballots] == ["ada"]
    assert "votes:BallotCast" in foldlog(home, "history", "run_1", "--json").stdout
    found = shown(foldlog(home, "verify", "--json"))
    assert (found["ok"], found["first_difference"]["what"]) == (False, "rules version")


def test_a_daemon_without_it_refuses_the_partition_from_the_start(
    home: Path, site: Path, tmp_path: Path
) -> None:
    """Before anything is proposed its log and health say which plug-in is missing; who waits is
    told, and once it has ended a process with the plug-in decides what waited."""
    log = tmp_path / "log"
    with daemon(home, log) as projector:
        [said] = [line for line in log_lines(log) if line.get("event") == "halted"]
        assert said["partition"] == 0
        assert "2 runs use, run_1 for one, rules 1000001 (plug-in votes)" in said["message"]
        health = foldlog(home, "project", "--health", "--json", site=site)
        assert (health.returncode, shown(health)["phase"]) == (6, "halted 0"), health.stderr
        with Engine.open(home, plugins={RULES: [VOTES]}) as engine:
            with pytest.raises(errors.ProjectorStalled, match="halted partition 0") as told:
                engine.run("run_1").propose(ballot("bob"), timeout=60)
            assert (told.value.pid, bool(told.value.batch_id)) == (projector.pid, True)
            projector.terminate()
            projector.wait(30)
            until(lambda: len(members(engine.run("run_1"))) == 2)
        assert said in log_lines(log)
        assert [line["event"] for line in log_lines(log)].count("halted") == 1


def test_the_other_partitions_go_on(tmp_path: Path) -> None:
    """Only the partition with such a run is refused, whatever run of it is proposed to."""
    home = tmp_path / "home"
    spent = {"type": "BudgetSpent", "tokens": 1}
    with Engine.open(home, create=True, partitions=2, plugins={RULES: [VOTES]}) as engine:
        run = begun(engine)
        here = partition_of(run.run_id, 2)
        names = [f"other_{number}" for number in range(20)]
        beside = next(name for name in names if partition_of(name, 2) == here)
        elsewhere = next(name for name in names if partition_of(name, 2) != here)
        for name in (beside, elsewhere):
            engine.start(name, goal="so")
    with Engine.open(home) as engine:
        assert engine.run(elsewhere).propose(spent).accepted
        for name in (run.run_id, beside):
            with pytest.raises(errors.PluginMissing, match=f"partition {here} is refused"):
                engine.run(name).propose(spent)
            assert len(engine.run(name).history()) == 1
        assert [row.partition for row in engine.status() if row.plugins_missing] == [here]
    with Engine.open(home, plugins={RULES: [VOTES]}) as engine:
        assert engine.run(beside).propose(spent).accepted
        assert not any(row.plugins_missing for row in engine.status())
        assert engine.verify(redecide=True).ok


def test_readers_and_doctor_of_a_build_without_it_say_so(home: Path, site: Path) -> None:
    """status, doctor, and whatever reads such a run name the plug-in, a run, and what to do."""
    row = shown(foldlog(home, "status", "--json"))
    wanted = {"rules": RULES, "runs": 2, "run": "run_1", "plugins": ["votes"]}
    assert row["plugins_missing"] == [wanted]
    words = "rules 1000001 (plug-in votes), which this build has not"
    assert words in foldlog(home, "status").stderr
    doctor = foldlog(home, "doctor", "--json")
    findings = [json.loads(line) for line in doctor.stdout.splitlines()]
    [found] = [each for each in findings if each["check"] == "plug-ins"]
    assert (doctor.returncode, found["ok"]) == (6, False)
    assert words in found["what"]
    assert found["remedy"].startswith("install it")
    for command in ("show", "history", "why", "resume-check", "context"):
        assert words in foldlog(home, command, "run_1").stderr, command
        assert "note:" not in foldlog(home, command, "run_1", site=site).stderr, command
        assert "note:" not in foldlog(home, command, "run_3").stderr, command
    assert foldlog(home, "doctor", site=site).returncode == 0


def test_what_cannot_be_folded_is_not_read_either(home: Path, site: Path) -> None:
    """Where the projection has to be made anew a build without the plug-in comes to its first
    record: it shows no older state, and says that no run is there of none."""
    shutil.rmtree(home / "projection")
    done = foldlog(home, "show", "run_1", "--json")
    assert (done.returncode, done.stdout) == (6, "")
    assert "PLUGIN_MISSING" in done.stderr
    assert foldlog(home, "show", "run_1", site=site).returncode == 0


def test_the_runs_of_a_plugin_are_counted_as_they_come_and_go(tmp_path: Path) -> None:
    """A run counts under the rules that it is pinned to now, finished or not, and in a fork."""
    other = {RULES: [VOTES], RULES + 1: [VOTES]}
    with Engine.open(
        tmp_path, create=True, partitions=1, plugins=other, author="user:ada"
    ) as engine:

        def counted() -> dict[int, int]:
            with engine._reading_partition(0) as view:
                return dict(used_in(view.reader))

        run = begun(engine)
        assert counted() == {RULES: 1}
        assert run.propose({"type": "RulesActivated", "rules_version": RULES + 1}).accepted
        assert counted() == {RULES + 1: 1}
        fork = run.fork("run_9", 1)
        assert fork is not None
        assert fork.accepted
        assert counted() == {RULES: 1, RULES + 1: 1}
        assert run.cancel("done").accepted
        assert run.archive().accepted
        assert counted() == {RULES: 1, RULES + 1: 1}
        assert engine.run("run_9").propose({"type": "RulesActivated", "rules_version": 1}).accepted
        assert counted() == {RULES + 1: 1}
        assert engine.verify(redecide=True).ok


def test_a_worker_without_it_is_told_before_it_hands_in(home: Path) -> None:
    """An event of a plug-in that is not here is MALFORMED in the client; nothing is recorded."""
    with Engine.open(home) as engine:
        outcome = engine.run("run_1").propose(ballot("bob"))
        assert (outcome.code, outcome.recorded) == ("MALFORMED", False)


def test_an_exported_run_needs_it_to_be_taken_over(home: Path, site: Path, tmp_path: Path) -> None:
    """A run moves to another home with its plug-in's events; without the plug-in it does not."""
    exported = tmp_path / "run.jsonl"
    exported.write_text(foldlog(home, "export", "run_1", site=site).stdout)
    for other, given, code in (("without", None, 3), ("with", site, 0)):
        assert foldlog(tmp_path / other, "init").returncode == 0
        command = ["import", str(exported), "--format", "foldlog"]
        done = foldlog(tmp_path / other, *command, site=given)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("is under rules 1000001" in done.stdout) == (given is None), done.stdout
    digests = [
        shown(foldlog(place, "replay", "run_1", "--json", site=site))["digest"]
        for place in (home, tmp_path / "with")
    ]
    assert digests[0] == digests[1]


def test_a_decider_without_it_takes_over_no_such_run(home: Path, tmp_path: Path) -> None:
    """Handed in by who has the plug-in, and decided by who has not, an import is refused by a code
    that says so, and nothing of the run is there."""
    with Engine.open(home, plugins={RULES: [VOTES]}) as engine:
        records = engine.run("run_1").export()
    assert records is not None
    with Engine.open(tmp_path / "other", create=True, partitions=1, author="user:ada") as engine:
        outcome, _ = engine.import_records("run_1", records)
        assert (outcome.outcome, outcome.code) == ("rejected", "UNSUPPORTED_RULES")
        assert "rules 1000001" in (outcome.message or "")
        assert engine.run("run_1").state() is None
        assert engine.verify().ok


def test_two_plugins_of_one_number_are_a_mistake(home: Path, site: Path) -> None:
    """Two installed packages that bring one rules version end a command with usage, named."""
    info = site / "ballots-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ballots\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[foldlog.plugins]\nballots = votes_plugin:RULES\n")
    done = foldlog(home, "show", "run_1", site=site)
    assert done.returncode == 2
    assert "1000001" in done.stderr
