"""Which version a workspace folder has: git's commit, or a hash of what is in it.

Invariants:
- The folder is only read; no hook, no filter and no program of its configuration is run.
- Equal content gives equal hashes on every machine: names, bytes, links and executable bits count,
  times and owners do not.
"""

import hashlib
import os
import stat
import subprocess
from pathlib import Path

GIT_SECONDS_MAX = 60

IGNORED = frozenset({b".git", b".foldlog"})
"""Names, wherever they lie, that are no content: git's own, and homes, which change with a run."""


class WorkspaceUnreadable(Exception):
    """The folder, or something in it, cannot be read."""


def workspace_version(folder: str | os.PathLike[str]) -> str:
    """The version of a workspace, to be recorded as its ``current_commit`` and compared later.

    Of the top of a git work tree the commit of HEAD, in full; of any other folder, and where there
    is no commit yet, ``sha256:`` and the hash of its content. WorkspaceUnreadable if it is none
    that can be read.
    """
    path = Path(folder)
    try:
        if not path.is_dir():
            raise WorkspaceUnreadable("is no folder" if path.exists() else "is not there")
        commit = _commit(path / ".git") if (path / ".git").exists() else None
        return commit or f"sha256:{_content(os.fsencode(path))}"
    except OSError as error:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        raise WorkspaceUnreadable(f"{where}{error.strerror or error}") from error


def _commit(git_dir: Path) -> str | None:
    """The commit of HEAD; None where there is none yet.

    git is told where to look, so that neither a variable of the caller's nor a folder above leads
    it to another repository.
    """
    inherited = {name: each for name, each in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--git-dir", str(git_dir), "rev-parse", "--quiet", "--verify", "HEAD"],
            env={**inherited, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError as error:
        raise WorkspaceUnreadable("is a git work tree, and git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise WorkspaceUnreadable(f"git gave no answer in {GIT_SECONDS_MAX} s") from error
    said = done.stderr.decode(errors="replace").strip()
    if said or done.returncode not in (0, 1):
        raise WorkspaceUnreadable(f"git cannot read it: {said or done.returncode}")
    return done.stdout.decode("ascii").strip() or None


def _content(folder: bytes) -> str:
    """SHA-256 over every entry in the order of its path's bytes: kind, path, and what is in it."""
    whole = hashlib.sha256()
    for name in _entries(folder):
        kind, data = _told(os.path.join(folder, name))
        for part in (kind, name, data):
            whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


def _entries(root: bytes) -> list[bytes]:
    """The relative path of everything below a folder, sorted; links are not followed."""
    found, folders = list[bytes](), [b""]
    while folders:
        prefix = folders.pop()
        with os.scandir(os.path.join(root, prefix)) as entries:
            for entry in entries:
                if entry.name in IGNORED:
                    continue
                found.append(prefix + entry.name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(prefix + entry.name + b"/")
    return sorted(found)


def _told(entry: bytes) -> tuple[bytes, bytes]:
    """What an entry is, and the hash or target of what is in it."""
    mode = os.lstat(entry).st_mode
    if stat.S_ISREG(mode):
        kind = b"executable" if mode & stat.S_IXUSR else b"file"
        with open(entry, "rb") as stream:
            return kind, hashlib.file_digest(stream, "sha256").digest()
    if stat.S_ISLNK(mode):
        return b"link", os.readlink(entry)
    return (b"folder" if stat.S_ISDIR(mode) else b"other"), b""
