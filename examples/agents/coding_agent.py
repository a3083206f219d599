"""A coding agent with a workspace: it sees a fault in the tests, mends it, and sees them pass.

    python coding_agent.py FOLDER

FOLDER is the workspace; the home is .foldlog beside it. Kill it at any moment and start it again:
what is recorded as done is not done again, and the run knows at which version its workspace is.

Where a model would think, this agent follows a recipe.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from foldlog import Engine
from foldlog.worker import Agent, Claim, GiveUp, Worker

FAULTY = "return int(net_cents * (1 + tax_percent / 100))"
MENDED = "return (net_cents * (100 + tax_percent) + 50) // 100"

agent = Agent()
workspace = Path(sys.argv[1] if len(sys.argv) > 1 else "shop").resolve()


def version() -> dict[str, str]:
    """The workspace by the hash of its files, as a commit would name it."""
    files = sorted(path for path in workspace.iterdir() if path.is_file())
    content = b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)
    commit = f"sha256:{hashlib.sha256(content).hexdigest()[:12]}"
    return {"workspace_id": workspace.name, "current_commit": commit}


def run_tests() -> dict[str, object]:
    """Run the workspace's tests; whether they pass, and what they say last."""
    command = [sys.executable, "-B", "-m", "unittest"]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    return {"passed": done.returncode == 0, "says": done.stderr.splitlines()[-1]}


def replace(path: str, old: str, new: str) -> int:
    """Replace a text in a file, whole or not at all; how often it was there."""
    file = workspace / path
    text = file.read_text()
    draft = file.with_suffix(".new")
    draft.write_text(text.replace(old, new))
    draft.rename(file)
    return text.count(old)


@agent.step
def reproduce(run: Claim) -> str:
    """see the fault in the tests"""
    run.checkpoint("as it was found", workspace=version())
    found = run.tool("run_tests", run_tests, step_id="tests-before")
    if found["passed"]:
        raise GiveUp("there is nothing to mend: all tests pass")
    fault = {"id": "fault", "statement": f"the tests say: {found['says']}"}
    run.propose({"type": "FactConfirmed", "fact": {**fault, "evidence": "tool:tests-before"}})
    return "tool:tests-before"


@agent.step
def mend(run: Claim) -> str:
    """round prices to the nearest cent"""
    run.tool("edit", replace, "invoice.py", FAULTY, MENDED)  # done again, it gives the same
    run.checkpoint("mended", workspace=version())
    return "file:invoice.py"


@agent.step
def prove(run: Claim) -> str:
    """see the tests pass"""
    found = run.tool("run_tests", run_tests)
    if not found["passed"]:
        raise GiveUp(f"the tests still fail: {found['says']}")
    mended = {"id": "mended", "statement": f"the tests say: {found['says']}"}
    fact = {**mended, "evidence": "tool:tests-after"}
    run.propose({"type": "FactConfirmed", "fact": fact, "supersedes_fact_id": "fault"})
    return "tool:tests-after"


def main() -> None:
    """Work on the run until there is nothing to do."""
    with Engine.open(workspace.parent / ".foldlog", create=True, author="user:ada") as engine:
        engine.start("mend-1", goal="Mend the rounding of prices", timeout=30)
        Worker(engine, "coder", agent, lease_seconds=5).work(until_idle=True)
        state = engine.run("mend-1").state()
        assert state is not None
        assert state.workspace is not None
        print(f"{state.run_id}: {state.status} {state.result or ''}")
        for fact in state.confirmed_facts:
            print(f"{fact.id}: {fact.statement}")
        print(f"workspace at {state.workspace.current_commit}")


if __name__ == "__main__":
    main()
