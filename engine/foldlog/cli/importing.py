"""The command import: files of transcripts into runs, one result a run.

Invariants:
- All files are opened before the first run is imported; one that cannot be opened imports nothing.
- A run that is refused or broken does not keep the others from being imported; the exit code says
  that there was one.
- Without --format each file is what its content says, and only a file that turns out to be broken
  makes the guess worth a word.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from foldlog.cli import failures, options, output
from foldlog.cli.options import Settings, command, pass_settings
from foldlog.cli.safe import safe, wrap

if TYPE_CHECKING:
    from foldlog.artifacts import ArtifactFolder
    from foldlog.client import Engine
    from foldlog.importers.runner import RunImport

FORMATS = ("chat", "swe-agent", "foldlog")


@command(
    "import",
    "foldlog import transcripts.jsonl",
    "foldlog import transcripts.jsonl --effect-tool create_order --effect-tool send_mail",
    "foldlog import --format swe-agent runs/fix-login.traj",
    "foldlog import --format foldlog run_128.jsonl",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    help="What the files hold. chat: JSON lines {id, messages}; swe-agent: a .traj file each;"
    " foldlog: what export wrote. Default: what each file looks like.",
)
@click.option(
    "--effect-tool",
    "effect_tools",
    metavar="NAME",
    multiple=True,
    help="A tool whose calls act on the outside world; may be given several times.",
)
@pass_settings
def import_(
    settings: Settings,
    files: tuple[str, ...],
    format_name: str | None,
    effect_tools: tuple[str, ...],
) -> int:
    """Import transcripts into runs.

    chat: each line becomes one run, named by its id. swe-agent: each file becomes one run, named
    like the file without .traj; signs that no run id has become -, and some digits are added then.
    A file that was imported before, with the same options, changes nothing. FILE may be - for
    standard input.

    foldlog: what export wrote is taken over with its outcomes and log times, not decided again;
    refused if the run exists, or its chain does not verify.
    """
    with contextlib.ExitStack() as stack:
        streams = [(name, stack.enter_context(_open(name))) for name in files]
        results = _import(settings, streams, format_name, effect_tools)
    return 0 if all(result.ok for result in results) else 3


def _import(
    settings: Settings,
    streams: list[tuple[str, BinaryIO]],
    format_name: str | None,
    effect_tools: tuple[str, ...],
) -> list[RunImport]:
    from foldlog.artifacts import ArtifactFolder

    results: list[RunImport] = []
    with options.opened(settings) as engine, output.Progress("imported runs") as bar:
        artifacts = ArtifactFolder(options.find_home(settings))
        for name, stream in streams:
            before = len(results)

            def say(result: RunImport, name: str = name) -> None:
                results.append(result)
                done = sum(each.ok for each in results[:-1])
                _say_result(settings, {"file": name, **result.to_dict(), "imported_before": done})
                bar()

            guessed = _import_file(engine, name, stream, format_name, effect_tools, artifacts, say)
            if guessed and any(each.outcome == "broken" for each in results[before:]):
                words = f"{name} was taken for {guessed} by its looks; --format says what it is"
                output.note(safe(words))
    return results


def _import_file(
    engine: Engine,
    name: str,
    stream: BinaryIO,
    format_name: str | None,
    effect_tools: tuple[str, ...],
    artifacts: ArtifactFolder,
    say: Callable[[RunImport], None],
) -> str | None:
    """Import one file; the format, if it had to be guessed."""
    from foldlog.importers.chat import import_chat
    from foldlog.importers.exported import import_exported
    from foldlog.importers.guess import HEAD_BYTES, guess_format
    from foldlog.importers.swe_agent import import_swe_agent

    guessed = None
    if format_name is None:
        head = stream.read(HEAD_BYTES)
        guessed = guess_format(head, name)
        stream = cast(BinaryIO, io.BufferedReader(_Rejoined(head, stream)))
    if (format_name or guessed) == "swe-agent":
        named = None if name == "-" else PurePath(name).name
        import_swe_agent(engine, stream, artifacts, named, effect_tools, say)
    elif (format_name or guessed) == "foldlog":
        import_exported(engine, stream, say)
    else:
        import_chat(engine, stream, artifacts, effect_tools, say)
    return guessed


class _Rejoined(io.RawIOBase):
    """A stream of which the beginning was read already; standard input cannot go back to it."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._head:
            data = self._rest.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        size = min(len(buffer), len(self._head))
        buffer[:size] = self._head[:size]
        self._head = self._head[size:]
        return size


@contextlib.contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    try:
        stream = cast(BinaryIO, click.open_file(name, "rb"))
    except OSError as error:
        raise failures.file_unreadable(name, error) from None
    with stream:
        yield stream


def _say_result(settings: Settings, result: dict[str, Any]) -> None:
    if settings.json:
        output.say_json(result)
        return
    good = result["outcome"] in ("imported", "unchanged")
    outcome = output.paint(result["outcome"], "green" if good else "red")
    place = f"{safe(result['file'])}:{result['line']}"
    counts = [f"{result[key]} {key}" for key in ("accepted", "duplicates") if result[key]]
    words = f" ({', '.join(counts)})" if counts else ""
    output.say(f"{outcome} {safe(result['run_id'] or '-')}{words} from {place}")
    for line in _details(result):
        output.say(f"  {line}")
    if not good:
        output.say(f"  imported before it: {output.counted(result['imported_before'], 'run')}")


def _details(result: dict[str, Any]) -> list[str]:
    lines = []
    if result["code"] or result["field"]:
        parts = [result["code"], result["field"] and f"field {result['field']}"]
        lines.append(safe(", ".join(part for part in parts if part)))
    if result["message"]:
        lines += wrap(safe(result["message"]), output.columns() - 2)
    return lines
