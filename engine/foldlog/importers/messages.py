"""What messages of a model's conversation are made of, for every format that has them.

Invariants:
- Pure. The checks raise nothing but `Broken`, with the path that they were given.
- What the checks let pass, the readers take without looking again.
"""

from __future__ import annotations

from typing import Any

from foldlog.core.values import canonical_json, strict_json
from foldlog.importers.base import Broken, cut_text

NAME_CHARACTERS_MAX = 250  # as a reference 8 characters each at worst, of 2,048

Message = dict[str, Any]


def text_of(content: Any) -> str:
    """The text of a content: itself, or the text parts of a list, one a line."""
    if isinstance(content, str):
        return content
    parts = content or ()
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def arguments_of(function: dict[str, Any]) -> Any:
    """An object, None where there are none, or `{"unparsed": TEXT}`: models write broken JSON."""
    given = function.get("arguments")
    if not isinstance(given, str):
        return given
    if not given.strip():
        return None
    try:
        value = strict_json(given)
    except ValueError:
        return {"unparsed": given}
    return value if isinstance(value, dict) else {"unparsed": given}


def check_content(path: str, content: Any) -> None:
    """A text, a list of objects, or null."""
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Broken(path, f"a text, a list of parts or null is needed, not {shown(content)}")
    for place, part in enumerate(content):
        if not isinstance(part, dict):
            raise Broken(f"{path}[{place}]", f"a part is an object, not {shown(part)}")


def check_calls(path: str, message: Message) -> None:
    """`tool_calls` and the older `function_call`, where there are such."""
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise Broken(f"{path}.tool_calls", f"a list is needed, not {shown(calls)}")
    for place, call in enumerate(calls or ()):
        here = f"{path}.tool_calls[{place}]"
        if not isinstance(call, dict):
            raise Broken(here, f"a tool call is an object, not {shown(call)}")
        check_text(f"{here}.id", call.get("id"))
        _check_function(f"{here}.function", call.get("function"))
    if message.get("function_call"):
        _check_function(f"{path}.function_call", message["function_call"])


def _check_function(path: str, function: Any) -> None:
    if not isinstance(function, dict):
        raise Broken(path, f"an object {{name, arguments}} is needed, not {shown(function)}")
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        needed = f"a name of 1 to {NAME_CHARACTERS_MAX} characters is needed"
        raise Broken(f"{path}.name", f"{needed}, not {shown(name)}")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise Broken(f"{path}.arguments", f"a text of JSON is needed, not {shown(arguments)}")


def check_text(path: str, value: Any) -> None:
    """A text, the empty one too."""
    if not isinstance(value, str):
        raise Broken(path, f"a text is needed, not {shown(value)}")


def shown(value: Any) -> str:
    """A wrong value for a message, cut."""
    return cut_text(canonical_json(value), 80)
