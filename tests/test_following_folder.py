"""The folder of a fold: what it keeps of its log, whoever makes it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from foldlog.following import NOTE_FILE, Folder
from tests.processes import child, line, tell

CODE = """
from pathlib import Path
from foldlog.following import Folder

for number, path in enumerate(iter(input, "")):
    folder = Folder(Path(path))
    folder.known()
    if number == 0:
        print("ready", flush=True)
        continue
    folder.remember({"cluster": "c"})
    print(folder.known(), flush=True)
"""


def test_processes_that_begin_a_folder_together(tmp_path: Path) -> None:
    """Each keeps what its log is recognised by, and none is in the way of another."""
    with ExitStack() as stack:
        found = [stack.enter_context(child("", CODE)) for _ in range(4)]
        for process in found:
            assert tell(process, str(tmp_path / "first")) == "ready"
        for number in range(20):
            path = tmp_path / str(number)
            for process in found:
                assert process.stdin is not None
                process.stdin.write(f"{path}\n")
            for process in found:
                assert process.stdin is not None
                process.stdin.flush()
            assert [line(process) for process in found] == ["{'cluster': 'c'}"] * 4
            assert [each.name for each in path.glob("log*")] == [NOTE_FILE]
    assert Folder(path).known() == {"cluster": "c"}
