"""Changes a text in a log, as anybody could who may write the file: tamper.py LOG OLD NEW.

Only the first record that has it; both texts are of one length.
"""

from __future__ import annotations

import sqlite3
import sys


def main() -> None:
    """Find the record and rewrite it."""
    path, old, new = sys.argv[1], sys.argv[2].encode(), sys.argv[3].encode()
    assert len(old) == len(new), "a record of another length would not even decode"
    log = sqlite3.connect(path)
    names = log.execute("SELECT name FROM sqlite_master WHERE name LIKE 'events_%' ORDER BY name")
    for (table,) in names.fetchall():
        rows = log.execute(f'SELECT "offset", value FROM {table} ORDER BY "offset"').fetchall()
        for offset, value in rows:
            if old in value:
                changed = value.replace(old, new, 1)
                log.execute(f'UPDATE {table} SET value = ? WHERE "offset" = ?', (changed, offset))
                log.commit()
                return
    sys.exit(f"no record holds {sys.argv[2]}")


if __name__ == "__main__":
    main()
