"""Real transcripts: a folder of 100 runs of an airline's agent, where there is one.

FOLDLOG_TRACES names the folder; without it, `shared/traces` beside the checkout is used. The count
of what should be there is made here, over the raw JSON, and shares nothing with the importer.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from click.testing import CliRunner

from foldlog import Engine, testing
from foldlog.artifacts import ArtifactFolder
from foldlog.cli.main import cli
from foldlog.importers.base import Translation
from foldlog.importers.chat import import_chat, translate
from foldlog.importers.exported import exported_lines, import_exported
from foldlog.importers.swe_agent import import_swe_agent
from tests.client_runs import document as whole_document
from tests.core_fold import core_document
from tests.import_model import Model, ModelEngine

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = REPOSITORY / "examples" / "transcripts.jsonl"
TRACES = Path(os.environ.get("FOLDLOG_TRACES") or REPOSITORY.parent / "shared" / "traces")
AIRLINE = TRACES / "airline" / "runs.jsonl"
TRAJECTORIES = sorted(TRACES.rglob("*.traj"))
EFFECTS = (
    "book_reservation",
    "cancel_reservation",
    "update_reservation_flights",
    "update_reservation_baggages",
    "update_reservation_passengers",
    "send_certificate",
)
EXAMPLE_EFFECTS = (
    "issue_refund",
    "send_email",
    "create_pull_request",
    "update_address",
    "book_inn",
    "start_job",
)

# A FOLDLOG_TRACES that names nothing is a mistake of the caller, and fails; no folder is not.
needs_traces = pytest.mark.skipif(
    not AIRLINE.exists() and "FOLDLOG_TRACES" not in os.environ,
    reason=f"no traces: {AIRLINE} is missing (FOLDLOG_TRACES names the folder)",
)
FILES = [
    pytest.param(EXAMPLES, EXAMPLE_EFFECTS, id="examples"),
    pytest.param(AIRLINE, EFFECTS, id="airline", marks=needs_traces),
]


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, parsed."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def expected(transcript: dict[str, Any], effects: tuple[str, ...]) -> dict[str, Any]:
    """What a run should have, counted over its raw messages."""
    messages = transcript["messages"]
    called = [c for m in messages for c in m.get("tool_calls") or []]
    results = [m["content"] for m in messages if m["role"] == "tool"]
    changes = [c for c in called if c["function"]["name"] in effects]
    errors = [text for text in results if text.startswith("Error")]
    reward = transcript.get("reward")
    users = [m["content"] for m in messages if m["role"] == "user"]
    return {
        "goal": users[0],
        "calls": len(called),
        "tools": Counter(c["function"]["name"] for c in called),
        "errors": len(errors),
        "successes": len(results) - len(errors),
        "effects": Counter(c["function"]["name"] for c in changes),
        "answers": users[1:],
        "result": None if reward is None else "completed" if reward == 1.0 else "failed",
    }


def counted(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The same, counted over the events of a run."""
    by_type = Counter(event["type"] for event in events)
    started = [event["tool"] for event in events if event["type"] == "ToolStarted"]
    effects = [e["effect"]["kind"] for e in events if e["type"] == "EffectIntended"]
    ends = [event["result"] for event in events if event["type"] == "RunFinished"]
    assert by_type["WaitStarted"] == by_type["SignalReceived"]
    outcomes = ("EffectSucceeded", "EffectFailed", "EffectUnknown")
    assert sum(by_type[outcome] for outcome in outcomes) == len(effects)
    return {
        "goal": events[0]["goal"]["statement"],
        "calls": by_type["ToolStarted"],
        "tools": Counter(started),
        "errors": by_type["ToolFailed"],
        "successes": by_type["ToolSucceeded"],
        "effects": Counter(effects),
        "answers": [event["payload"] for event in events if event["type"] == "SignalReceived"],
        "result": ends[0] if ends else None,
    }


def events_of(translation: Translation) -> list[dict[str, Any]]:
    """All events of a translation, in order."""
    return [event for proposal in translation.proposals for event in proposal["events"]]


@needs_traces
def test_all_hundred_are_there():
    """The folder is the one that the counts below are meant for."""
    assert len({transcript["id"] for transcript in read(AIRLINE)}) == 100


@pytest.mark.parametrize(("path", "effects"), FILES)
def test_every_transcript_translates_to_what_it_holds(path: Path, effects: tuple[str, ...]):
    """Calls, errors, effects, answers and the result are those of an independent count."""
    for transcript in read(path):
        translation = translate(transcript, effects)
        assert counted(events_of(translation)) == expected(transcript, effects), transcript["id"]


@pytest.mark.parametrize(("path", "effects"), FILES)
def test_every_proposal_is_accepted(path: Path, effects: tuple[str, ...]):
    """Each proposal is valid where the one before it left the run, for the model and the rules."""
    for transcript in read(path):
        model, translation = Model(), translate(transcript, effects)
        for proposal in translation.proposals:
            model.apply(proposal)
        assert (model.status == "finish") == ("reward" in transcript)
        shown = core_document(translation.run_id, translation.proposals)
        assert (shown["status"], shown["result"]) == (model.status, model.result)


@pytest.mark.parametrize(("path", "effects"), FILES)
def test_importing_in_any_order_and_twice(path: Path, effects: tuple[str, ...], tmp_path: Path):
    """In any order of the lines, the runs are the same; again, nothing changes."""
    lines = path.read_bytes().splitlines()
    runs = []
    for seed in range(3):
        random.Random(seed).shuffle(lines)
        engine, data = ModelEngine(), b"\n".join(lines)
        for outcome in ("imported", "unchanged"):
            folder = ArtifactFolder(tmp_path)
            results = import_chat(engine, io.BytesIO(data), folder, effects)
            assert {(each.outcome, each.rejected) for each in results} == {(outcome, 0)}
        runs.append({name: run.model for name, run in engine.runs.items()})
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(("path", "effects"), FILES)
def test_the_engine_takes_it_all(path: Path, effects: tuple[str, ...], tmp_path: Path):
    """In the engine too: in any order every proposal is accepted, again every one a duplicate."""
    lines = path.read_bytes().splitlines()
    documents = []
    for seed in range(2):
        random.Random(seed).shuffle(lines)
        data, folder = b"\n".join(lines), ArtifactFolder(tmp_path)
        with testing.Engine() as engine:
            for outcome in ("imported", "unchanged"):
                results = import_chat(engine, io.BytesIO(data), folder, effects)
                assert {(each.outcome, each.rejected) for each in results} == {(outcome, 0)}
            assert engine.verify().ok
            documents.append({each["id"]: document(engine.run(each["id"])) for each in read(path)})
    assert documents[0] == documents[1]
    for transcript in read(path):
        want, have = expected(transcript, effects), documents[0][transcript["id"]]
        assert have["result"] == want["result"]
        assert Counter(effect["kind"] for effect in have["effects"]) == want["effects"]
        assert len(have["pending_tool_calls"]) == want["calls"] - want["errors"] - want["successes"]


def document(run: Any) -> dict[str, Any]:
    """A run's document less what tells when and where in the log it came to be."""
    shown = run.state().to_dict()
    del shown["chain"], shown["last_transition"]["at"]
    return dict(shown)


# A real home, and proofs that share nothing with the code they are about

DOCUMENT_KEYS = set(
    "schema_version run_id revision control_revision condition goal phase status result plan "
    "active_task_id next_task_ids confirmed_facts hypotheses ruled_out open_questions tasks "
    "environment_observations effects effect_ledger_ref artifacts pending_tool_calls waiting "
    "signals last_signal retry_count retry_limit lease conflicts budgets permissions_revoked "
    "last_transition last_action workspace agent_version labels checkpoint forked_from "
    "migrated_from rules_version chain".split()
)
MORE_KEYS = {"attempts"}
"""What the document has beside the contract's keys; no digest holds it."""


def digest(shown: dict[str, Any]) -> bytes:
    """BLAKE2b-256 over what `show --json` prints in RFC 8785 form, less what builds decide."""
    assert set(shown) == DOCUMENT_KEYS | MORE_KEYS
    form = {key: shown[key] for key in DOCUMENT_KEYS - {"schema_version", "condition"}}
    del form["migrated_from"]
    if form["checkpoint"] is not None:
        form["checkpoint"] = {k: v for k, v in shown["checkpoint"].items() if k != "schema_version"}
    return hashlib.blake2b(rfc8785.dumps(form), digest_size=32).digest()


def printed(home: Path, run_id: str) -> dict[str, Any]:
    """What the command line prints for a run."""
    result = CliRunner().invoke(cli, ["--home", str(home), "show", run_id, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("path", "effects"), FILES)
def test_a_home_takes_it_all(path: Path, effects: tuple[str, ...], tmp_path: Path):
    """In a home, shuffled, twice: accepted or duplicate only, counts as expected, all proven."""
    lines, home, transcripts = path.read_bytes().splitlines(), tmp_path / "home", read(path)
    random.Random(7).shuffle(lines)
    data, folder = b"\n".join(lines), ArtifactFolder(home / "artifacts")
    with Engine.open(home, create=True) as engine:
        imports = [import_chat(engine, io.BytesIO(data), folder, effects) for _ in range(2)]
        proposals = sum(each.proposals for each in imports[0])
        assert sum(each.accepted for each in imports[0]) == proposals
        assert sum(each.duplicates for each in imports[1]) == proposals
        assert {each.rejected for results in imports for each in results} == {0}
        outcomes: Counter[tuple[str, str | None]] = Counter()
        for transcript in transcripts:
            run = engine.run(transcript["id"])
            outcomes.update((row.outcome, row.code) for row in run.history(rejected=True))
            rows = [row.to_dict() for row in run.history()]
            events = [event for row in rows for event in row["events"]]
            assert counted(events) == expected(transcript, effects), transcript["id"]
        assert outcomes == {("accepted", None): proposals, ("duplicate", None): proposals}
        report = engine.verify(redecide=True)
        assert (report.ok, report.first_difference) == (True, None)
        assert report.records == 2 * proposals
        replay, live = engine.replay(), engine.digest()
        assert replay is not None
        assert (replay.digest, replay.runs) == (live, len(transcripts))
    # Each command opens the home anew; a few stand for all, whose documents are compared with them.
    some = {each["id"]: printed(home, each["id"]) for each in transcripts[::12]}
    with Engine.open(home) as engine:
        shown = {each["id"]: whole_document(engine.run(each["id"])) for each in transcripts}
        assert some.items() <= shown.items()
        runs = {run_id: digest(each) for run_id, each in shown.items()}
        for run_id, mine in runs.items():
            replayed = engine.replay(run_id)
            assert replayed is not None
            assert replayed.digest == mine.hex()
            assert engine.verify(run_id).ok
        whole = hashlib.blake2b(b"".join(runs[run_id] for run_id in sorted(runs)), digest_size=32)
        assert engine.digest() == live == whole.hexdigest()


def assert_moves(home: Engine, tmp_path: Path) -> None:
    """Every run of a home is the same in another one with other partitions, and proven there."""
    run_ids = sorted(row.run_id for row in home.runs())
    exports = {run_id: home.run(run_id).export() or [] for run_id in run_ids}
    lines = [json.dumps(x) for data in exports.values() for x in exported_lines(data)]
    with Engine.open(tmp_path / "other", create=True, partitions=3) as other:
        results = import_exported(other, io.BytesIO("\n".join(lines).encode()))
        assert [(each.run_id, each.outcome) for each in results] == [
            (run_id, "imported") for run_id in run_ids
        ]
        assert other.digest() == home.digest()
        for run_id in run_ids:
            here, there = home.run(run_id), other.run(run_id)
            chains = [[row.chain for row in run.history(rejected=True)] for run in (here, there)]
            assert chains[0] == chains[1]
            assert whole_document(there) == whole_document(here)
        assert other.verify(redecide=True).ok


@pytest.mark.parametrize(("path", "effects"), FILES)
def test_transcripts_move_to_another_home(path: Path, effects: tuple[str, ...], tmp_path: Path):
    """Imported twice, exported and imported elsewhere: same digests and chains, proven there."""
    with Engine.open(tmp_path / "home", create=True, partitions=2) as home:
        for _ in range(2):
            import_chat(home, io.BytesIO(path.read_bytes()), ArtifactFolder(tmp_path), effects)
        assert_moves(home, tmp_path)


@needs_traces
@pytest.mark.skipif(not TRAJECTORIES, reason="the folder has no .traj files")
def test_trajectories_move_to_another_home(tmp_path: Path):
    """The same of every SWE-agent trajectory."""
    with Engine.open(tmp_path / "home", create=True, partitions=2) as home:
        for number, path in enumerate(TRAJECTORIES):
            source = io.BytesIO(path.read_bytes())
            import_swe_agent(home, source, ArtifactFolder(tmp_path), f"t{number}-{path.name}")
        assert home.runs()
        assert_moves(home, tmp_path)
