"""Adds new schema files to the manifest: `python -m foldlog_schemas.release`.

Invariants:
- An entry that stands in the manifest is never changed or removed.
- A file is only added if its type's versions stay compatible (see compatibility.py).
- Needs fastavro, and a source tree that can be written; nothing else in the package does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from fastavro.schema import fingerprint, to_parsing_canonical_form

from foldlog_schemas import name_and_version
from foldlog_schemas.compatibility import problems_of_versions

FOLDER = Path(__file__).parent


def entry_of(data: bytes) -> dict[str, str]:
    """The manifest's entry for one file's bytes."""
    canonical = to_parsing_canonical_form(json.loads(data))
    # fastavro's hex has the bytes in the order in which they travel (little-endian) already.
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "fingerprint": fingerprint(canonical, "CRC-64-AVRO"),
    }


def current_entries(folder: Path = FOLDER) -> dict[str, dict[str, str]]:
    """What the manifest would say of the files as they are, by path."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.avsc"))
    return {path: entry_of((folder / path).read_bytes()) for path in paths}


def differences(
    manifest: dict[str, dict[str, str]], current: dict[str, dict[str, str]]
) -> list[str]:
    """How released files differ from the manifest; empty if none was changed or removed."""
    found = []
    for path, entry in manifest.items():
        if path not in current:
            found.append(f"{path} was released and is gone")
        elif current[path] != entry:
            found.append(f"{path} was released and has changed; write the next version instead")
    return found


def incompatibilities(folder: Path = FOLDER) -> list[str]:
    """Each way in which some type's versions cannot read one another."""
    by_name: dict[str, dict[int, dict[str, object]]] = {}
    for path in folder.rglob("*.avsc"):
        name, version = name_and_version(path.relative_to(folder).as_posix())
        by_name.setdefault(name, {})[version] = json.loads(path.read_bytes())
    return [
        problem for name in sorted(by_name) for problem in problems_of_versions(name, by_name[name])
    ]


def main(folder: Path = FOLDER) -> int:
    """Checks everything, then writes the manifest with the new files added; 1 if refused."""
    manifest_file = folder / "released.json"
    manifest = json.loads(manifest_file.read_bytes()) if manifest_file.exists() else {}
    current = current_entries(folder)
    refusals = differences(manifest, current) + incompatibilities(folder)
    for refusal in refusals:
        print(refusal, file=sys.stderr)
    if refusals:
        return 1
    manifest_file.write_text(json.dumps(current, indent=1, sort_keys=True) + "\n", "utf-8")
    for path in sorted(set(current) - set(manifest)):
        print(f"released {path} {current[path]['fingerprint']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
