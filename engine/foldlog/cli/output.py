"""Where the command line writes: data to stdout, all else to stderr; JSON, tables, colours.

Invariants:
- Only this module writes to the two streams, and every text of a run passes `safe` on its way.
- JSON is one object a line, exact; text is cut to the terminal's width (80 where there is none),
  but never a run id, a batch id or a code, since those are copied.
- Colours and progress appear on a terminal only; NO_COLOR and TERM=dumb are heeded.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from foldlog.cli.safe import cut, pad, safe, width
from foldlog.core.printable import safe_json
from foldlog.core.values import parse_instant

WIDTH_DEFAULT = 80
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def columns() -> int:
    """How many cells a line may take: COLUMNS, else the terminal's, else 80; never below 40."""
    return max(40, shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns)


def say(text: str = "") -> None:
    """One line (or several) of data. Ends a progress bar first."""
    Progress.clear()
    _write(sys.stdout, text + "\n")


def note(text: str = "") -> None:
    """One line of what is not data: hints, warnings, errors. Stands behind the data before it."""
    Progress.clear()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    _write(sys.stderr, text + "\n")


def flush() -> None:
    """Let whoever reads stdout have what was said so far: for output that goes on."""
    if sys.stdout is not None:
        sys.stdout.flush()


def say_json(value: Any) -> None:
    """One JSON object on one line, keys as they come."""
    say(json_text(value, ascii_only=not _is_unicode(sys.stdout)))


def json_text(value: Any, ascii_only: bool = False) -> str:
    """JSON in which no character can do harm to a terminal."""
    return safe_json(json.dumps(value, ensure_ascii=ascii_only))


def _is_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed by the shell: `2>&-`
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


# Colours


def _has_colour(stream: TextIO | None) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream is not None and stream.isatty()


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """The text in these styles, if the stream (stdout) is a terminal that shows them."""
    if not text or not styles or not _has_colour(stream or sys.stdout):
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


# Tables


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    prose: int | None = None,
    *,
    with_head: bool = True,
) -> None:
    """A table under its heads; the column `prose` takes what is left of the line and is cut."""
    cells = [[safe(cell) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(head, *cells, strict=True)]
    if prose is not None:
        others = sum(widths) - widths[prose] + 2 * (len(head) - 1)
        widths[prose] = min(widths[prose], max(columns() - others, width(head[prose]), 12))
    if with_head:
        say(paint(_row(head, widths, prose), "bold"))
    for row in cells:
        say(_row(row, widths, prose))


def _row(row: Sequence[str], widths: Sequence[int], prose: int | None) -> str:
    shown = [
        pad(cut(cell, widths[place]) if place == prose else cell, widths[place])
        for place, cell in enumerate(row)
    ]
    return "  ".join(shown).rstrip()


# How values are shown


def shown_time(text: str | None) -> str:
    """A time that foldlog computed, to the second; what a caller wrote stays as written."""
    if text is None:
        return "-"
    # 2026-08-11T08:22:10.123456Z: only our own times have six digits and Z.
    if len(text) == 27 and text[10] == "T" and text[19] == "." and text[26] == "Z":
        return f"{text[:10]} {text[11:19]}Z"
    return safe(text)


def shown_span(since: str, now: str) -> str:
    """A time, and how long before (or after) `now` that is: `2026-08-11 08:22:10Z (3 h ago)`."""
    seconds = (parse_instant(now) - parse_instant(since)) // 1_000_000_000
    words = f"{_span(seconds)} ago" if seconds >= 0 else f"in {_span(-seconds)}"
    return f"{shown_time(since)} ({words})"


def _span(seconds: int) -> str:
    """A length of time in the largest unit of which there are two or more."""
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def shown_alarm(alarm: dict[str, Any], now: str) -> str:
    """An alarm in words: code, message, and since when."""
    since = "" if alarm["since"] is None else f", since {shown_span(alarm['since'], now)}"
    return f"{alarm['code']}: {safe(alarm['message'])}{since}"


def shown_until(why: dict[str, Any]) -> str:
    """The deadline of a wait, or that it has none."""
    if why["status"] != "waiting":
        return ""
    return f", until {shown_time(why['deadline'])}" if why["deadline"] else ", without a deadline"


def shown_author(author: dict[str, Any] | None) -> str:
    """`kind:id`."""
    return "-" if author is None else safe(f"{author['kind']}:{author['id']}")


def shown_value(value: Any) -> str:
    """A text as it is, anything else as JSON; on one line."""
    if isinstance(value, str):
        return safe(value)
    return "-" if value is None else safe_json(json.dumps(value, ensure_ascii=False))


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 record`, `2 records`, `1,000 entries`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


# Progress


class Progress:
    """A line on stderr that counts while a long command runs; silent unless stderr is a terminal.

    Called with how many more are done. Written at most ten times a second.
    """

    _shown = False

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = 0
        self._next = 0.0
        self._on = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, more: int = 1) -> None:
        """So many more are done."""
        self._done += more
        now = time.monotonic()
        if self._on and now >= self._next:
            self._next = now + 0.1
            Progress.show(f"{self._what}: {self._done:,}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        Progress.clear()

    @staticmethod
    def show(text: str) -> None:
        """Put some text on the line, if stderr is a terminal."""
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"\r{safe(text)}\x1b[K")
            sys.stderr.flush()
            Progress._shown = True

    @staticmethod
    def clear() -> None:
        """Remove the line, so that what follows does not stand behind it."""
        if Progress._shown:
            Progress._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
