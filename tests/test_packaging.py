"""The wheel: what is in it, and that it works where other people's modules lie around.

Invariants:
- Under `make test` the wheel looked into is the one that is installed and tested.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

from tests.needs import cannot

PACKAGES = {
    "foldlog": "engine",
    "foldlog_projector": "projector",
    "foldlog_schemas": "schemas",
}


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel under test; without `make test` one is built from the checkout."""
    folder = Path(os.environ.get("FOLDLOG_TEST_WHEELS", ""))
    if "FOLDLOG_TEST_WHEELS" not in os.environ:
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder)]
        subprocess.run([*command, str(repository)], check=True, capture_output=True)
    (found,) = folder.glob("foldlog-*.whl")
    return found


@pytest.fixture(scope="session")
def members(wheel: Path) -> set[str]:
    """The names of the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="session")
def described(wheel: Path) -> Message:
    """The METADATA file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def test_the_wheel_holds_every_source_file_and_nothing_else(
    repository: Path, members: set[str]
) -> None:
    """Modules, schemas and py.typed of the three packages are in the wheel, file by file."""
    sources = {
        path.relative_to(repository / root).as_posix()
        for package, root in PACKAGES.items()
        for path in (repository / root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in members if ".dist-info/" not in name} == sources


def test_the_wheel_holds_the_schemas(members: set[str]) -> None:
    """The Avro schemas travel with the code that needs them."""
    assert any(re.fullmatch(r"foldlog_schemas/.*\.v\d+\.avsc", name) for name in members)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_each_package_is_typed(package: str, members: set[str]) -> None:
    """Type checkers take the packages' annotations only where py.typed stands."""
    assert f"{package}/__init__.py" in members
    assert f"{package}/py.typed" in members


def test_the_wheel_holds_the_licence(members: set[str], described: Message) -> None:
    """The licence is named and its text is enclosed."""
    assert described["License-Expression"] == "Apache-2.0"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in members)


def test_there_is_one_version(repository: Path, described: Message) -> None:
    """The wheel's version is the one in version.py, and pyproject.toml says none."""
    source = (repository / "engine/foldlog/version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert match is not None
    assert described["Version"] == match.group(1)
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project


def test_the_changelog_has_a_place_for_what_comes(repository: Path) -> None:
    """The changelog opens with the unreleased changes."""
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert first is not None
    assert first.group(1) == "Unreleased"


def _installed() -> metadata.Distribution:
    try:
        return metadata.distribution("foldlog")
    except metadata.PackageNotFoundError:
        cannot("foldlog is not installed here; `make test` installs it")


def test_the_command_says_its_version() -> None:
    """`foldlog --version` runs and names the installed version."""
    version = _installed().version
    command = Path(sys.executable).parent / "foldlog"
    done = subprocess.run(
        [command, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert version in done.stdout


def test_every_entry_point_can_be_loaded() -> None:
    """What the metadata promises exists: the console script and each added command."""
    points = [
        p for p in _installed().entry_points if p.group in ("console_scripts", "foldlog.commands")
    ]
    assert {point.group for point in points} == {"console_scripts", "foldlog.commands"}
    assert all(callable(point.load()) for point in points)


def _python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a folder whose modules come first, as in a worker's own project."""
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = os.pathsep.join([str(folder), *map(os.path.abspath, given)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["engine", "schemas", "projector", "tests", "core", "client"])
def test_a_workers_own_modules_do_not_break_the_import(name: str, tmp_path: Path) -> None:
    """The packages import nothing by a name that a worker's project may have taken."""
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('the worker\\'s own module')\n")
    done = _python("import foldlog, foldlog_projector, foldlog_schemas", tmp_path)
    assert done.returncode == 0, done.stderr


def test_importing_the_library_imports_no_daemon(tmp_path: Path) -> None:
    """A worker that imports foldlog loads neither the projector nor Kafka's client."""
    code = "import sys, foldlog; print({'foldlog_projector', 'confluent_kafka'} & set(sys.modules))"
    done = _python(code, tmp_path)
    assert done.stdout.strip() == "set()", done.stderr
