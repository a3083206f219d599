"""What a row is in a message of Kafka: FORMAT.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from foldlog.log.base import Entry
from foldlog.log.kafka.rows import HEADER, headers_of, offset_of

PAGE = (Path(__file__).resolve().parent.parent.parent / "engine" / "FORMAT.md").read_text("utf-8")


def test_the_header_is_the_one_of_the_page() -> None:
    """The example of "Log (Kafka)" is what the code makes of its columns."""
    section = PAGE.partition("\n## Log (Kafka)\n")[2].partition("\n## ")[0]
    example = re.search(r"^Example: .*?```\n(.*?)\n```", section, re.MULTILINE | re.DOTALL)
    assert example is not None
    entry = Entry(b"k", b"v", 7, 1_767_225_600_000_000, b"\xab" * 32)
    [(name, value)] = headers_of(entry)
    assert name == HEADER == "foldlog"
    assert isinstance(value, bytes)
    assert value.hex() == example[1].replace(" ", "")


def test_a_position_is_an_offset_plus_one() -> None:
    """The first row stands at 1; whoever asks for less begins there."""
    assert [offset_of(position) for position in (-3, 0, 1, 2, 500)] == [0, 0, 0, 1, 499]
