"""Which characters of a text can do harm where it is shown, and JSON in which none of them stands.

Invariants:
- `safe_json` changes how a JSON text is written, never the value that it is.
"""

import json
import re

# Cc, the marks that turn or hide text (Cf, less the two joiners that emoji and scripts need),
# line and paragraph separators, lone surrogates. Without the last, one odd argument of the shell
# would end a command in an encoding error.
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def safe_json(text: str) -> str:
    """The same JSON, unsafe characters escaped; they can only stand inside strings."""
    return UNSAFE.sub(lambda match: _escaped(match.group()), text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    pairs = (units[i : i + 2].hex() for i in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs)


def quoted_json(text: str) -> str:
    """A text as a JSON string on one line."""
    return safe_json(json.dumps(text, ensure_ascii=False))
