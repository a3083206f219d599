"""Text made harmless for a terminal, and its width there."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldlog.cli.output import json_text, shown_time, shown_value
from foldlog.cli.safe import cut, pad, safe, width, wrap
from foldlog.core.printable import safe_json

ANY = st.text(st.characters())  # lone surrogates too
JOINERS = "\u200c\u200d"


def _harmful(text: str) -> list[str]:
    return [
        character
        for character in text
        if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs")
        or (unicodedata.bidirectional(character) in BIDIRECTIONAL)
        or character in "\u200e\u200f\u061c\u200b\ufeff"
    ]


BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(ANY)
def test_safe_text_holds_nothing_harmful(text: str) -> None:
    """No control character, line break, turning mark or surrogate is left of any text."""
    assert _harmful(safe(text)) == []


@given(ANY)
def test_safe_json_is_the_same_value(text: str) -> None:
    """JSON is made harmless without changing what it says."""
    shown = json_text({text: [text]})
    assert _harmful(shown) == []
    assert json.loads(shown) == {text: [text]}
    assert json.loads(json_text(text, ascii_only=True)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\r\n\tb\x7f", "a\\r\\n\\tb\\x7f"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\U000e0041", "\\U000e0041"),
        ("\udc80", "\\udc80"),
        ("é 👩‍💻 漢字 العربية", "é 👩‍💻 漢字 العربية"),
    ],
)
def test_what_is_unsafe_is_shown_as_its_number(text: str, shown: str) -> None:
    """Escape sequences and turning marks can be read; letters and emoji stay."""
    assert safe(text) == shown


def test_json_is_escaped_beyond_what_json_asks() -> None:
    """C1 controls, DEL and turning marks are escaped in JSON too, which json.dumps leaves."""
    assert safe_json('"\x9b\x7f\u202e\U000e0041"') == '"\\u009b\\u007f\\u202e\\udb40\\udc41"'


@pytest.mark.parametrize(
    ("text", "cells"), [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("🙂", 2), ("", 0)]
)
def test_width_counts_cells(text: str, cells: int) -> None:
    """Wide characters take two cells, combining ones none."""
    assert width(text) == cells


@given(ANY.map(safe), st.integers(2, 30))
def test_cut_and_wrap_keep_within_the_cells(text: str, cells: int) -> None:
    """No line is wider than it may be, and wrapping loses nothing but white space."""
    assert width(cut(text, cells)) <= cells
    lines = wrap(text, cells)
    assert all(width(line) <= cells for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert len(wrap(text, cells, 2)) <= 2


def test_padding_counts_cells() -> None:
    """Columns stand straight below wide characters too."""
    assert width(pad("漢", 6)) == 6


def test_our_times_are_shown_to_the_second() -> None:
    """A time that foldlog computed is shortened, one that a caller wrote stays as written."""
    assert shown_time("2026-08-11T08:22:10.123456Z") == "2026-08-11 08:22:10Z"
    assert shown_time("2026-08-11T16:22:10+08:00") == "2026-08-11T16:22:10+08:00"
    assert shown_time(None) == "-"


def test_values_are_shown_on_one_line() -> None:
    """Texts stand as they are, all else as JSON."""
    assert shown_value("a\nb") == "a\\nb"
    assert shown_value({"a": ["\x9b", None]}) == '{"a": ["\\u009b", null]}'
    assert shown_value(None) == "-"
