"""The values a proposal is made of: instants, confidences, references, names, and JSON itself.

Invariants:
- Pure: no clock, no calendar module; instants are whole nanoseconds, dates are integers.
- A text is judged by its grammar as a whole, never by a prefix or after trimming.
- `canonical_json` is the one form in which JSON is stored, measured and compared.
- What `strict_json` returns passes `check_json`; both refuse the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

AUTHOR_KINDS: Final = ("agent", "user", "tool", "operator", "system")

# The largest integer that every JSON reader, those with doubles included, keeps exactly.
INTEGER_MAX: Final = 2**53 - 1
LEVELS_MAX: Final = 64
ID_CHARACTERS_MAX: Final = 2_048
TEXT_BYTES_MAX: Final = 8 * 1024

# The type of a JSON number that is no integer. The core carries such numbers, it never computes
# with them, and so it has no other name for their type.
JSON_REAL: Final = type(0.5)  # noqa: UP003

Step = str | int


@dataclass(frozen=True, slots=True)
class Author:
    """Who proposes: one of `AUTHOR_KINDS` and an id. Claimed, not proven."""

    kind: str
    id: str

    def to_dict(self) -> dict[str, str]:
        """The author as JSON."""
        return {"kind": self.kind, "id": self.id}


class Fault(ValueError):
    """A value that is not what it should be.

    `steps` are the keys and indexes that lead to it, innermost first: each container that the
    fault passes through on its way out appends its own.
    `names_field` is False where the JSON as such is at fault, not the field it stands in.
    """

    def __init__(self, reason: str, *, names_field: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.names_field = names_field
        self.steps: list[Step] = []


def dotted(steps: Sequence[Step]) -> str:
    """Keys and indexes, outermost first, as one path: `task.depends_on[1]`."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{_cut(step)}" if path else _cut(step)
    return path


def _cut(name: str) -> str:
    # A key may be as long as its batch; a path goes into records and messages, and is not.
    return name if len(name) <= 256 else name[:255] + "…"


# --- instants -----------------------------------------------------------------------------------

_INSTANT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SECOND_NS: Final = 1_000_000_000
_DAY_NS: Final = 86_400 * _SECOND_NS
_DAY_US: Final = 86_400 * 1_000_000


def _days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date in the proleptic Gregorian calendar."""
    # Years that begin in March have their leap day last.
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return (
        era * 146_097
        + year_of_era * 365
        + year_of_era // 4
        - year_of_era // 100
        + day_of_year
        - 719_468
    )


def _civil_from_days(days: int) -> tuple[int, int, int]:
    """The inverse of `_days_from_civil`."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    return year, month, day_of_year - (153 * shifted + 2) // 5 + 1


_FIRST_NS: Final = _days_from_civil(1, 1, 1) * _DAY_NS
_END_NS: Final = _days_from_civil(10_000, 1, 1) * _DAY_NS


def _is_date(year: int, month: int, day: int) -> bool:
    if not 1 <= month <= 12 or day < 1:
        return False
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= _MONTH_DAYS[month - 1] + (month == 2 and is_leap)


def parse_instant(text: str) -> int:
    """Nanoseconds since the Unix epoch, negative before it, of a time as callers write it.

    The form is `YYYY-MM-DDThh:mm:ss`, then perhaps a dot and 1 to 9 digits, then `Z` or `±hh:mm`.
    Raises ValueError for every other form, for a day that no calendar has, and for an instant
    outside the years 0001 to 9999 UTC.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueError("a time is written YYYY-MM-DDThh:mm:ss[.digits] and Z or ±hh:mm")
    fraction, sign, offset_hour, offset_minute = match.group(7, 8, 9, 10)
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    if not _is_date(year, month, day) or hour > 23 or minute > 59 or second > 59:
        raise ValueError("a time names a real day, hours to 23, minutes and seconds to 59")
    seconds = (_days_from_civil(year, month, day) * 24 + hour) * 3_600 + minute * 60 + second
    if sign is not None:
        if int(offset_hour) > 23 or int(offset_minute) > 59:
            raise ValueError("an offset has hours to 23 and minutes to 59")
        offset = int(offset_hour) * 3_600 + int(offset_minute) * 60
        seconds += offset if sign == "-" else -offset
    instant = seconds * _SECOND_NS + (int(fraction.ljust(9, "0")) if fraction else 0)
    if not _FIRST_NS <= instant < _END_NS:
        raise ValueError("a time lies within the years 0001 to 9999 UTC")
    return instant


def format_instant(us: int) -> str:
    """Microseconds since the Unix epoch as `YYYY-MM-DDThh:mm:ss.ffffffZ`."""
    days, rest = divmod(us, _DAY_US)
    year, month, day = _civil_from_days(days)
    seconds, fraction = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z"


# --- confidence ---------------------------------------------------------------------------------

_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
_CONFIDENCE_WANTED: Final = (
    "a confidence is a number from 0 to 1, or a text that is one in JSON's grammar"
)


def confidence_text(value: Any) -> str:
    """A confidence as it is shown: a text as given, a number as its shortest decimal.

    What a number becomes has no exponent. A text is judged exactly, not as a double.
    Raises ValueError for what is no number from 0 to 1.
    """
    if type(value) is str:
        if len(value) <= TEXT_BYTES_MAX and _is_share(value):
            return value
    elif type(value) in (int, JSON_REAL) and 0 <= value <= 1:
        return _shortest(value)
    raise ValueError(_CONFIDENCE_WANTED)


def _shortest(value: Any) -> str:
    if value in (0, 1):
        return "1" if value else "0"  # 1.0, 0.0 and -0.0 too
    digits, _, exponent = repr(value).partition("e-")
    if not exponent:
        return digits
    return "0." + "0" * (int(exponent) - 1) + digits.replace(".", "")


def _is_share(text: str) -> bool:
    """Whether a JSON number lies in 0..1, by its digits: 1.00000000000000000001 does not."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return False
    sign, whole, fraction, exponent_sign, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return True
    if sign:
        return False
    # The number is 0.DIGITS times ten to the power of `point`.
    point = len(digits) - len(fraction)
    exponent = exponent.lstrip("0")
    if len(exponent) > 9:  # Beyond what the digits of a bounded text can make up for.
        return exponent_sign == "-"
    point += int(exponent_sign + (exponent or "0"))
    return point <= 0 or (point == 1 and digits.rstrip("0") == "1")


# --- names and references -----------------------------------------------------------------------

_REFERENCE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s\x00-\x1f\x7f-\x9f]+")
_BATCH_ID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-[!-~]*)?")

_ENTITIES: Final = frozenset(
    {"goal", "status", "phase", "plan", "wait", "lease", "workspace", "checkpoint", "rules"}
    | {"agent_version", "budget/tokens", "budget/deadline"}
)
_PLUGIN_COLLECTION: Final = re.compile(r"[a-z][a-z0-9_]{0,63}:[a-z][a-z0-9_]{0,63}")
_PLUGIN_TYPE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}:[A-Z][A-Za-z0-9]{0,63}")
_COLLECTIONS: Final = frozenset(
    {"task", "fact", "hypothesis", "question", "observation"}
    | {"effect", "artifact", "tool", "signal", "conflict"}
)


def fits(text: str, bytes_max: int) -> bool:
    """Whether a text has at most `bytes_max` bytes in UTF-8."""
    if len(text) > bytes_max:
        return False
    return text.isascii() or len(text.encode()) <= bytes_max


def is_id(text: str) -> bool:
    """Whether a text can be an id: not empty and at most 2,048 characters."""
    return 0 < len(text) <= ID_CHARACTERS_MAX


def can_be_id(value: object) -> bool:
    """Whether a value that nobody has checked yet, whatever it is, is a text that can be an id."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return is_id(value)


def is_reference(text: str) -> bool:
    """Whether a text is a URI: no white space, no control characters, at most 2,048 characters."""
    return len(text) <= ID_CHARACTERS_MAX and _REFERENCE.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Whether a text is a UUID as 8-4-4-4-12 hex digits of either case."""
    return _BATCH_ID.fullmatch(text) is not None


def is_run_id(text: str) -> bool:
    """Whether a text can be the id of a run (which is never a path)."""
    return _RUN_ID.fullmatch(text) is not None


def is_sha256(text: str) -> bool:
    """Whether a text is 64 lower-case hex digits."""
    return _SHA256.fullmatch(text) is not None


def is_traceparent(text: str) -> bool:
    """Whether a text is a W3C traceparent; later versions may go on after a further dash."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None or len(text) > TEXT_BYTES_MAX:
        return False
    version, trace_id, parent_id, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return False
    return trace_id.strip("0") != "" and parent_id.strip("0") != ""


def is_permission(text: str) -> bool:
    """Whether a text is `tool:` or `effect:` and at least one character, 8 KiB at most."""
    prefix, colon, rest = text.partition(":")
    return prefix in ("tool", "effect") and colon + rest > ":" and fits(text, TEXT_BYTES_MAX)


def is_entity(name: str) -> bool:
    """Whether a text names an entity as `diff` does: `goal`, `task/ID`, `permission/P`, or a
    plug-in's `votes:ballot/ID`."""
    if name in _ENTITIES:
        return True
    collection, _, rest = name.partition("/")
    if collection == "permission":
        return is_permission(rest)
    own = collection in _COLLECTIONS or _PLUGIN_COLLECTION.fullmatch(collection) is not None
    return own and is_id(rest)


def is_plugin_type(name: str) -> bool:
    """Whether a text can be the type of a plug-in's event: `votes:BallotCast`."""
    return _PLUGIN_TYPE.fullmatch(name) is not None


# --- JSON ---------------------------------------------------------------------------------------

_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and nothing between the tokens, characters as they are."""
    return _encode(value)


def json_type(value: Any) -> str:
    """What a value is called in a message: `a text`, `null`, `an object`, ..."""
    return _TYPE_NAMES.get(type(value), f"a Python {type(value).__name__}")


_TYPE_NAMES: Final[dict[type, str]] = {
    str: "a text",
    int: "an integer",
    JSON_REAL: "a number that is no integer",
    bool: "a boolean",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def check_json(value: Any, levels: int = LEVELS_MAX) -> None:
    """Raises Fault unless a Python value is JSON as it may stand in a proposal.

    NaN and infinities, integers beyond 2^53-1, lone surrogates and more than `levels` levels are
    faults of the JSON as such; Python values that JSON has not are faults of their field.
    """
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value)
    elif kind is dict:
        _check_object(value, levels)
    elif kind is list:
        _check_list(value, levels)
    elif kind is int:
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise Fault("an integer beyond 2^53-1", names_field=False)
    elif kind is JSON_REAL:
        if value - value != 0:  # Not 0 for NaN and the infinities only.
            raise Fault("NaN or an infinity, which JSON has not", names_field=False)
    elif kind is not bool and value is not None:
        raise Fault(f"{json_type(value)} is no JSON value")


def _check_object(value: dict[Any, Any], levels: int) -> None:
    _check_levels(levels)
    key: Any = None
    for key in value:
        if type(key) is not str:
            raise Fault("a key that is no text")
        if not key.isascii():
            _check_text(key)
    try:
        for key, item in value.items():  # noqa: B007
            check_json(item, levels - 1)
    except Fault as fault:
        fault.steps.append(key)
        raise


def _check_list(value: list[Any], levels: int) -> None:
    _check_levels(levels)
    index = 0
    try:
        for index, item in enumerate(value):  # noqa: B007
            check_json(item, levels - 1)
    except Fault as fault:
        fault.steps.append(index)
        raise


def _check_levels(levels: int) -> None:
    if levels <= 0:
        raise Fault(f"more than {LEVELS_MAX} levels of nesting", names_field=False)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Fault("a lone surrogate", names_field=False) from None


# A string token ends at its quote or, unfinished, at the end of the data: so the scan is linear.
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def _levels(text: str) -> int:
    """The deepest nesting of JSON text, strings aside, whatever else is wrong with it."""
    deepest = level = 0
    for match in _BRACKETS.finditer(text):
        token = match.group()
        if token in "[{":
            level += 1
            deepest = max(deepest, level)
        elif token in "]}":
            level -= 1
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {_cut(twice)!r} stands twice in an object")
    return value


def _integer(text: str) -> int:
    # Longer texts are too large whatever their digits; int() takes quadratic time over them.
    if len(text) > 17 or abs(int(text)) > INTEGER_MAX:
        raise ValueError("an integer beyond 2^53-1")
    return int(text)


def _real(text: str) -> Any:
    value = JSON_REAL(text)
    if value - value != 0:
        raise ValueError("a number beyond what a double holds")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name}, which JSON has not")


_decode = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_no_constant
).decode


def strict_json(data: bytes | str) -> Any:
    """The value of JSON text (UTF-8 if bytes).

    Raises ValueError for what is no JSON, and for duplicate keys, NaN and infinities (1e999 too),
    integers beyond 2^53-1, lone surrogates, and more than 64 levels, counted before parsing.
    """
    text = data.decode() if isinstance(data, bytes) else data
    if not text.isascii():
        _check_text(text)
    if text.count("[") + text.count("{") > LEVELS_MAX and _levels(text) > LEVELS_MAX:
        raise ValueError(f"more than {LEVELS_MAX} levels of nesting")
    value = _decode(text)
    if _SURROGATE_ESCAPE.search(text):
        check_json(value)
    return value
