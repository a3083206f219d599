"""Evidence is looked for before a proposal is handed in, and in what stands; never in deciding."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from foldlog import aio, client, testing
from foldlog.artifacts import ArtifactFolder
from foldlog.plugins import (
    RULES_OF_PLUGINS_MIN,
    Access,
    EventDefinition,
    Id,
    Plugin,
    Text,
    required,
)
from foldlog.worker import Agent, Worker
from tests.cli_shell import Shell, make_shell
from tests.client_runs import (
    BATCH,
    Json,
    accepted,
    act,
    at_home,
    document,
    effect,
    event,
    fact,
    refused,
    rewrite_header,
    running,
    started,
    store_of,
    task,
)

ABC = hashlib.sha256(b"abc").hexdigest()


class Shelf:
    """A check that finds what stands on it, and remembers what it was asked for."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.asked: list[str] = []

    def __call__(self, reference: str) -> bool:
        self.asked.append(reference)
        return reference in self.there


@pytest.fixture
def shelf() -> Shelf:
    """A shelf with the evidence that the tests' events name."""
    return Shelf("test://1", "test://2")


@pytest.fixture
def engine(shelf: Shelf) -> Iterator[testing.Engine]:
    """An engine in memory that asks the shelf."""
    with testing.Engine(evidence_check=shelf) as engine:
        yield engine


# Before it is handed in


def test_missing_evidence_is_refused_and_not_recorded(engine: testing.Engine) -> None:
    """EVIDENCE_REQUIRED names event and field; nothing reaches the log, and the id stays free."""
    run = started(engine)
    before = run.history(rejected=True)
    batch = [fact("f1"), fact("f2", evidence="test://gone")]
    outcome = refused(run.propose(batch, batch_id=BATCH), "EVIDENCE_REQUIRED")
    assert (outcome.recorded, outcome.sequence, outcome.revision) == (False, None, 1)
    assert (outcome.event_index, outcome.field) == (1, "fact.evidence")
    assert "test://gone" in str(outcome.message)
    assert run.history(rejected=True) == before
    assert run.outcome(BATCH) is None
    accepted(run.propose(fact("f1"), batch_id=BATCH, author="agent:w"))


def test_every_evidence_is_asked_for_once(engine: testing.Engine, shelf: Shelf) -> None:
    """Facts, hypotheses, answers, observations, tasks and reconciled effects name evidence."""
    run = running(engine)
    hypothesis = {"id": "h", "statement": "x", "confidence": "0.5", "falsifier": "y"}
    act(
        run,
        task("t"),
        event("TaskStarted", task_id="t"),
        event("HypothesisProposed", hypothesis=hypothesis),
        event("QuestionOpened", question={"id": "q", "text": "?"}),
        effect("e"),
    )
    assert shelf.asked == []
    last = {"subject": "file://x", "observed_state": "s", "observed_at": "2026-01-01T00:00:00Z"}
    named: list[Json] = [
        fact("f", evidence="a:1"),
        event("HypothesisFalsified", hypothesis_id="h", evidence="a:2"),
        event("QuestionAnswered", question_id="q", answer="x", evidence="a:3"),
        event("EnvironmentObserved", **last, evidence="a:4"),
        event("TaskCompleted", task_id="t", evidence="a:5"),
        event("EffectReconciled", effect_id="e", outcome="failed", evidence="a:6"),
        fact("f2", evidence="a:1"),
    ]
    shelf.there |= {f"a:{number}" for number in range(1, 7)}
    act(run, *named)
    assert shelf.asked == [f"a:{number}" for number in range(1, 7)]


def test_what_is_no_evidence_is_not_asked_for(engine: testing.Engine, shelf: Shelf) -> None:
    """JSON that happens to hold the word, absent evidence, and other references are left alone."""
    run = started(engine)
    act(
        run,
        event("Recorded", name="n", payload={"evidence": "a:1", "fact": {"evidence": "a:2"}}),
        event("ArtifactAdded", artifact={"id": "a", "uri": "a:3"}),
        author="user:ada",
    )
    act(run, fact("f", evidence=None), author="user:ada")
    assert shelf.asked == []


def test_the_run_s_own_history_is_not_asked_for(engine: testing.Engine, shelf: Shelf) -> None:
    """What the worker names by itself, of answers and of tasks, no check needs to know; another
    run's history, or what only looks like a revision, it does."""
    agent, granted = Agent(), []

    @agent.step
    def work(claim: Any) -> None:
        granted.append(claim.wait_for_approval("publish", "may I?").granted)

    run, worker = started(engine), Worker(engine, "worker-1", agent)
    worker.work(until_idle=True)
    run.signal("publish", True)
    worker.work(until_idle=True)
    assert (document(run)["result"], granted, shelf.asked) == ("completed", [True], [])
    assert engine.verify(evidence=True).ok
    other = started(engine, "run_2")
    for name in ("run_1@rev2", "run_2@rev", "run_2@rev2#x", "run_2"):
        refused(other.propose(fact("f", evidence=f"history://{name}")), "EVIDENCE_REQUIRED")


def test_a_fork_s_copy_of_its_parent_s_history_is_not_asked_for(engine: testing.Engine) -> None:
    """What a run's facts name of its own history still names the same in a fork."""
    run = started(engine)
    act(run, fact("f", evidence="history://run_1@rev1"))
    accepted(run.fork("run_2", 2))
    assert engine.verify(evidence=True).ok


def test_a_plug_in_s_fields_are_its_own(shelf: Shelf) -> None:
    """A field of a plug-in's event that is called fact or evidence is no evidence of foldlog's."""
    fields = {"id": required(Id()), "fact": required(Text()), "evidence": required(Text())}

    def note(access: Access, event: Mapping[str, Any]) -> None:
        access.put(f"lab:note/{event['id']}", {"fact": event["fact"]})

    noted = EventDefinition("Noted", fields, note, writes=("lab:note/{id}",), commutes=True)
    lab = Plugin("lab", collections=("note",), events=[noted])
    version = RULES_OF_PLUGINS_MIN
    with testing.Engine(plugins={version: [lab]}, evidence_check=shelf) as engine:
        run = engine.start("run_1", goal="look", rules_version=version)
        accepted(run.propose(lab.event("Noted", id="n", fact="no evidence yet", evidence="none")))
    assert shelf.asked == []


def test_what_is_malformed_is_told_first(engine: testing.Engine, shelf: Shelf) -> None:
    """A proposal of the wrong shape is MALFORMED, and nothing is looked for."""
    refused(started(engine).propose([fact("f", evidence="no reference")]), "MALFORMED")
    assert shelf.asked == []


def test_fault_16_a_retry_gets_its_first_answer(engine: testing.Engine, shelf: Shelf) -> None:
    """What was decided once is answered so again, although its evidence is gone by now."""
    run = started(engine)
    first = accepted(run.propose(fact("f"), batch_id=BATCH, author="agent:w"))
    shelf.there.clear()
    again = run.propose(fact("f"), batch_id=BATCH, author="agent:w")
    assert (again.outcome, again.duplicate, again.revision) == ("accepted", True, first.revision)


def test_what_the_check_raises_is_the_caller_s(engine: testing.Engine) -> None:
    """A check that cannot tell raises; nothing is handed in, and the batch can be tried again."""

    def cannot_tell(reference: str) -> bool:
        raise ConnectionError(reference)

    run = started(engine)
    engine.evidence_check = cannot_tell
    with pytest.raises(ConnectionError, match="test://1"):
        run.propose(fact("f"), batch_id=BATCH)
    assert run.outcome(BATCH) is None


def test_the_decider_never_looks(tmp_path: Path) -> None:
    """Neither deciding, folding, replaying nor deciding again asks, and others need no check."""
    shelf = Shelf("test://1")
    with at_home(tmp_path / "home", evidence_check=shelf) as engine:
        act(started(engine), fact("f"))
        assert shelf.asked == ["test://1"]
        shelf.there.clear()
        assert engine.verify(redecide=True).ok
        assert engine.replay("run_1") is not None
        assert shelf.asked == ["test://1"]
    with at_home(tmp_path / "home") as engine:
        act(engine.run("run_1"), fact("g", evidence="test://gone"))


def test_the_async_twin_looks_too(tmp_path: Path) -> None:
    """The check is given to the twin as to the client."""

    async def work() -> None:
        options = {"create": True, "evidence_check": Shelf()}
        async with await aio.Engine.open(tmp_path / "home", **options) as engine:
            run = await engine.start("run_1", goal="x")
            outcome = await run.propose(fact("f"))
            assert (outcome.code, outcome.recorded) == ("EVIDENCE_REQUIRED", False)

    asyncio.run(work())


# What stands


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in the folder in which the home lies."""
    return make_shell(tmp_path, monkeypatch)


def verified(shell: Shell, *options: str) -> Json:
    """What `verify --evidence --json` prints; 0 or 5 as it says."""
    result = shell.run("verify", "--evidence", "--json", *options)
    found: Json = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 5)
    return found


def at(shell: Shell) -> client.Engine:
    """The engine of the shell's home."""
    return at_home(shell.folder / ".foldlog")


def test_files_are_looked_for(shell: Shell) -> None:
    """A file that is gone is the difference, with run, sequence and entity; then all are there."""
    path = shell.folder / "out put#1.txt"
    path.write_text("x")
    with at(shell) as engine:
        run = started(engine)
        uri = path.as_uri()
        act(run, fact("f1", evidence=uri), fact("f2", evidence="file://out%20put%231.txt#L3"))
        act(run, fact("f3", evidence=uri.replace("file://", "file://localhost")))
    assert verified(shell)["evidence"] == {"checked": 3, "untold": 0, "missing": []}
    path.unlink()
    found = verified(shell, "run_1")
    assert found["first_difference"] == {
        "run_id": "run_1",
        "sequence": 2,
        "what": "evidence of fact/f1",
        "expected": uri,
        "found": f"{path} is not there",
    }
    assert [row["entity"] for row in found["evidence"]["missing"]] == [
        "fact/f1",
        "fact/f2",
        "fact/f3",
    ]
    assert shell.run("verify").exit_code == 0


def test_artifacts_of_the_home_are_looked_for(shell: Shell) -> None:
    """An artifact is found under its hash, and its bytes have to have that hash still."""
    folder = ArtifactFolder(shell.folder / ".foldlog")
    with at(shell) as engine:
        uri = folder.store(b"abc")
        (shell.folder / ".foldlog" / "artifacts" / "logs").mkdir()
        (shell.folder / ".foldlog" / "artifacts" / "logs" / "1").touch()
        act(started(engine), fact("f", evidence=uri), fact("g", evidence="artifact://logs/1"))
    assert verified(shell)["evidence"]["checked"] == 2
    folder.path(ABC).write_bytes(b"abd")
    assert "has SHA-256" in verified(shell)["first_difference"]["found"]
    folder.path(ABC).unlink()
    assert "is not there" in verified(shell)["first_difference"]["found"]


OUTSIDE = ["..", "../log.sqlite", "a/../../log.sqlite", "%2e%2e/log.sqlite", "/etc/passwd", "."]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_artifact_is_never_a_path_out_of_its_folder(shell: Shell, name: str) -> None:
    """What would lead elsewhere names no artifact of this home."""
    with at(shell) as engine:
        act(started(engine), fact("f", evidence=f"artifact://{name}"))
    assert verified(shell)["first_difference"]["found"] == "names no artifact of this home"


def test_an_artifact_s_hash_is_compared(shell: Shell) -> None:
    """A file that an artifact names has to have the SHA-256 that was recorded with it."""
    path = shell.folder / "patch"
    path.write_bytes(b"abc")
    artifact = {"id": "a", "uri": path.as_uri(), "sha256": ABC}
    with at(shell) as engine:
        act(started(engine), event("ArtifactAdded", artifact=artifact))
    assert verified(shell)["ok"]
    path.write_bytes(b"abd")
    found = verified(shell)["first_difference"]
    assert found["what"] == "evidence of artifact/a"
    assert ABC in found["found"]


def test_only_what_stands_is_looked_for(shell: Shell) -> None:
    """What was retracted is not missed; what can only be read elsewhere is counted as untold."""
    with at(shell) as engine:
        run = started(engine)
        act(run, fact("f", evidence="file:///nowhere"), fact("g", evidence="https://example.org/1"))
        act(run, event("FactRetracted", fact_id="f", reason="x"))
    assert verified(shell)["evidence"] == {"checked": 0, "untold": 1, "missing": []}


def test_what_cannot_be_a_path_is_missing(shell: Shell) -> None:
    """A reference that no file can have is no error of the command."""
    with at(shell) as engine:
        act(started(engine), fact("f", evidence="file:///a%00b"))
    assert verified(shell)["first_difference"]["found"] == "/a\x00b is not there"


def test_the_engine_s_check_tells_of_other_references(tmp_path: Path) -> None:
    """Where the engine has a check, it is asked for what verify cannot look up itself."""
    shelf = Shelf("test://1", "test://2")
    with at_home(tmp_path / "home", evidence_check=shelf) as engine:
        act(started(engine), fact("f"), fact("g", evidence="test://2"))
        assert engine.verify(evidence=True).ok
        shelf.there.remove("test://2")
        report = engine.verify("run_1", evidence=True)
        assert not report.ok
        assert report.first_difference is not None
        assert report.first_difference.what == "evidence of fact/g"
        assert engine.verify().evidence is None


def test_a_log_that_does_not_verify_is_told_first(tmp_path: Path) -> None:
    """Where log and projection differ, evidence is not looked for: what stands is not known."""
    with testing.Engine() as engine:
        run = started(engine)
        act(run, fact("f", evidence="file:///nowhere"))
        rewrite_header(store_of(engine), "run_1", retry_limit=7)
        report = engine.verify(evidence=True)
        assert report.evidence is None
        assert report.first_difference is not None
        assert "header" in report.first_difference.what
        assert document(run)["retry_limit"] == 7
