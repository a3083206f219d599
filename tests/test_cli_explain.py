"""The pages of `foldlog explain`: one for every code that can be printed, all of one form."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from foldlog.cli import explaining
from foldlog.errors import FoldlogError
from tests.cli_shell import GOLDEN

CONTRACT = """
    BATCH_ID_REUSED MALFORMED RUN_NOT_FOUND RUN_EXISTS RUN_FINISHED RUN_QUARANTINED
    MIGRATION_REQUIRED UNSUPPORTED_RULES NOT_AUTHORIZED FENCED LEASE_HELD SUPERSEDED
    EXPECTATION_REQUIRED FUTURE_REVISION CONFLICT PERMISSION_REVOKED BUDGET_EXHAUSTED
    DEPENDENCY_UNMET EVIDENCE_REQUIRED STALE_OBSERVATION LIMIT_EXCEEDED INVALID_TRANSITION
    NO_DEADLINE DEADLINE_PASSED LEASE_EXPIRED SILENT EFFECT_IN_DOUBT CONFLICT_OPEN QUARANTINED
    EXIT_0 EXIT_1 EXIT_2 EXIT_3 EXIT_4 EXIT_5 EXIT_6 EXIT_10 EXIT_20 EXIT_30
    LEASE_LIVE BUDGET_SPENT WORKSPACE_LOST WORKSPACE_MOVED AGENT_VERSION_CHANGED CONTROL_CHANGED
    OBSERVATION_OUTDATED FINISHED WAITING
""".split()
PRINTED = re.compile(r'\b(?:Refusal|Failure|Reason|_say_error|Broken)\(\s*"([A-Z][A-Z_]+)"')


def _error_codes(kind: type[FoldlogError]) -> set[str]:
    return {kind.code}.union(*map(_error_codes, kind.__subclasses__()))


def _codes_in_the_code() -> set[str]:
    package = resources.files("foldlog")
    folders = [package, *(package.joinpath(name) for name in ("core", "cli"))]
    files = [file for folder in folders for file in folder.iterdir() if file.name.endswith(".py")]
    return {code for file in files for code in PRINTED.findall(file.read_text("utf-8"))}


def test_every_code_has_a_page() -> None:
    """Codes of decisions, alarms, errors and exits can all be explained."""
    found = _codes_in_the_code()
    assert "CONFLICT" in found
    wanted = found | set(CONTRACT) | _error_codes(FoldlogError)
    assert sorted(wanted - set(explaining.codes())) == []


@pytest.mark.parametrize("code", explaining.codes())
def test_pages_have_one_form(code: str) -> None:
    """A page has its code, one line that says it, and four sections with something in them."""
    page = explaining.page(code)
    assert list(page) == ["code", "summary", *explaining.SECTIONS]
    assert page["code"] == code
    assert "\n" not in page["summary"]
    assert all(page.values())
    assert max(map(len, explaining.text(code).splitlines())) <= 80


@pytest.mark.parametrize("code", explaining.codes())
def test_pages_name_what_exists(code: str) -> None:
    """A page that sends its reader to another page sends them to one that is there."""
    named = set(re.findall(r"\b[A-Z]+_[A-Z_]+[A-Z]\b", explaining.text(code)))
    assert named - set(explaining.codes()) <= {
        "FOLDLOG_TRACEBACK",
        "FOLDLOG_HOME",
        "FOLDLOG_SNAPSHOT_DIR",
    }


def test_no_error_without_code_and_next_step() -> None:
    """Whatever a command printed as an error or refusal has a code, a page, and where to go on."""
    errors, refusals = [], []
    for path in GOLDEN.glob("*.txt"):
        for block in path.read_text("utf-8").split("\n\n"):
            errors += re.findall(r"^2> foldlog: (.*)$", block, re.MULTILINE)
            for code in re.findall(r"^rejected (\w+)", block, re.MULTILINE):
                refusals.append(code)
                assert f"see: foldlog explain {code}" in block
    assert len(errors) > 50
    assert len(refusals) > 10
    named = {error.split(":")[0] for error in errors} | set(refusals)
    assert named <= set(explaining.codes())
