"""The version of a workspace: git's commit, or the hash of what is in the folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foldlog import WorkspaceUnreadable, workspace_version
from tests import needs
from tests.cli_shell import make_shell
from tests.client_runs import act, event, opened, started

NOBODY = 65534
FILES = {"a.txt": "a", "src/b.txt": "b", "src/deep/c.txt": "c"}


def filled(folder: Path) -> Path:
    """A folder with some files."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder: Path, *words: str) -> str:
    """Run git in a folder; what it printed."""
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        [needs.program("git"), *who, *words], cwd=folder, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def committed(folder: Path) -> str:
    """A git work tree of that folder with one commit; the commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return git(folder, "rev-parse", "HEAD")


def test_equal_content_has_equal_versions(tmp_path: Path) -> None:
    """Two folders of the same content agree, whatever their names, times and order of making."""
    one, other = filled(tmp_path / "one"), tmp_path / "other"
    for name in reversed(FILES):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(FILES[name])
    os.utime(other / "a.txt", (1, 1))
    assert workspace_version(one) == workspace_version(str(other))
    assert workspace_version(one).startswith("sha256:")


CHANGES = {
    "a byte": lambda path: (path / "a.txt").write_text("b"),
    "a name": lambda path: (path / "a.txt").rename(path / "b.txt"),
    "a place": lambda path: (path / "a.txt").rename(path / "src" / "a.txt"),
    "an empty folder": lambda path: (path / "empty").mkdir(),
    "an empty file": lambda path: (path / "empty").touch(),
    "a bit": lambda path: (path / "a.txt").chmod(0o755),
    "a link": lambda path: (path / "link").symlink_to("a.txt"),
    "a link for a file": lambda path: ((path / "a.txt").unlink(), (path / "a.txt").symlink_to("a")),
    "one fewer": lambda path: (path / "src" / "b.txt").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_content_is_another_version(tmp_path: Path, change: str) -> None:
    """Names, bytes, links, folders and executable bits all count."""
    before = workspace_version(filled(tmp_path))
    CHANGES[change](tmp_path)
    assert workspace_version(tmp_path) != before


def test_homes_are_no_content(tmp_path: Path) -> None:
    """A home in the workspace changes with every proposal, the workspace's version does not."""
    before = workspace_version(filled(tmp_path))
    with opened("home", tmp_path / ".foldlog") as engine:
        started(engine)
        assert workspace_version(tmp_path) == before


def test_what_is_neither_file_nor_folder(tmp_path: Path) -> None:
    """A pipe is not waited for, and a link out of the folder is not followed."""
    before = workspace_version(filled(tmp_path / "one"))
    os.mkfifo(tmp_path / "one" / "pipe")
    (tmp_path / "one" / "out").symlink_to("/")
    assert workspace_version(tmp_path / "one") != before


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_folder(tmp_path: Path, name: str) -> None:
    """What is not there, or no folder, has no version."""
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceUnreadable):
        workspace_version(tmp_path / name)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody who may not read everything, which root may."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_what_may_not_be_read() -> None:
    """A folder of which a part cannot be read has no version: nothing is guessed."""
    # Not below pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory(prefix="foldlog-test-") as folder:
        path = filled(Path(folder))
        path.chmod(0o755)
        (path / "src").chmod(0)
        try:
            with unprivileged(), pytest.raises(WorkspaceUnreadable, match="src"):
                workspace_version(path)
        finally:
            (path / "src").chmod(0o755)


def test_a_git_work_tree_has_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the top of a work tree it is HEAD, in full, whatever lies about uncommitted."""
    commit = committed(filled(tmp_path / "tree"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    (tmp_path / "tree" / "a.txt").write_text("changed")
    assert workspace_version(tmp_path / "tree") == commit
    assert len(commit) == 40


def test_a_linked_work_tree_has_its_own_commit(tmp_path: Path) -> None:
    """A work tree that shares its repository with another is read where it is."""
    main = filled(tmp_path / "main")
    first = committed(main)
    git(main, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    (main / "a.txt").write_text("2")
    git(main, "commit", "--quiet", "-am", "second")
    assert workspace_version(tmp_path / "linked") == first
    assert workspace_version(main) == git(main, "rev-parse", "HEAD") != first


def test_a_folder_inside_a_work_tree_is_read_for_itself(tmp_path: Path) -> None:
    """Only the top of a work tree is git's; no folder above decides."""
    committed(filled(tmp_path))
    assert workspace_version(tmp_path / "src").startswith("sha256:")


def test_a_tree_without_a_commit_has_its_content(tmp_path: Path) -> None:
    """Where there is no commit yet, the content counts."""
    before = workspace_version(filled(tmp_path))
    git(tmp_path, "init", "--quiet")
    assert workspace_version(tmp_path) == before


def test_a_broken_repository_has_no_version(tmp_path: Path) -> None:
    """What git cannot read is not taken for a plain folder, nor for the repository around it."""
    committed(filled(tmp_path))
    (tmp_path / "src" / ".git").mkdir()
    with pytest.raises(WorkspaceUnreadable, match="git cannot read it"):
        workspace_version(tmp_path / "src")


def test_no_program_of_the_repository_is_run(tmp_path: Path) -> None:
    """Neither a hook nor a program that its configuration names is started."""
    committed(filled(tmp_path / "tree"))
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "core.sshCommand", "filter.x.clean"):
        git(tmp_path / "tree", "config", name, str(trap))
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (tmp_path / "tree" / ".git" / "hooks" / hook).write_bytes(trap.read_bytes())
        (tmp_path / "tree" / ".git" / "hooks" / hook).chmod(0o755)
    workspace_version(tmp_path / "tree")
    assert not (tmp_path / "sprung").exists()


def test_resume_check_reads_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--workspace compares HEAD, or the hash of a plain folder, with the run's current_commit."""
    shell = make_shell(tmp_path, monkeypatch)
    tree, plain = filled(tmp_path / "tree"), filled(tmp_path / "plain")
    commit = committed(tree)
    with opened("memory", tmp_path) as engine:
        shell.use(engine)
        for run_id, version in (("run_1", commit), ("run_2", workspace_version(plain))):
            workspace = {"workspace_id": "ws", "current_commit": version}
            started(engine, run_id, workspace=workspace)
        [found] = shell.json("resume-check", "run_1", "--workspace", str(tree))
        assert (found["verdict"], found["workspace"]) == ("safe", commit)
        assert shell.run("resume-check", "run_2", "--workspace", str(plain)).exit_code == 0
        assert shell.run("resume-check", "run_1", "--workspace", str(plain)).exit_code == 10
        (tree / "a.txt").write_text("2")
        git(tree, "commit", "--quiet", "-am", "second")
        (plain / "a.txt").write_text("2")
        [found] = shell.json("resume-check", "run_1", "--workspace", str(tree), "--commit", commit)
        assert [reason["code"] for reason in found["reasons"]] == ["WORKSPACE_MOVED"]
        assert git(tree, "rev-parse", "HEAD") in found["reasons"][0]["message"]
        assert shell.run("resume-check", "run_2", "--workspace", str(plain)).exit_code == 10
        act(
            engine.run("run_2"),
            event(
                "WorkspaceMoved",
                workspace={"workspace_id": "ws", "current_commit": workspace_version(plain)},
            ),
            event("CheckpointTaken", checkpoint={"id": "cp", "boundary": "workspace_version"}),
        )
        assert shell.run("resume-check", "run_2", "--workspace", str(plain)).exit_code == 0
