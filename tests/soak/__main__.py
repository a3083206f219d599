"""``python -m tests.soak``: the long soak, and what it met."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.crowd import Soak


def say(line: str) -> None:
    """A line for people."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run it and say what it met; an assertion fails it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=600, help="of disturbance (600)")
    parser.add_argument("--workers", type=int, default=50, help="processes (50)")
    parser.add_argument("--runs", type=int, default=500, help="started meanwhile (500)")
    parser.add_argument("--seed", type=int, default=0, help="of who is killed when (0)")
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between two blows (1.5)")
    parser.add_argument("--lease", type=int, default=15, help="seconds of a lease (15)")
    parser.add_argument("--dir", default=None, help="where to write")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-", dir=options.dir) as folder:
        names = ("seconds", "workers", "runs", "seed", "pause", "lease")
        soak = Soak(Path(folder), **{name: getattr(options, name) for name in names})
        try:
            soak.run()
        finally:
            say(f"{options.workers} workers, {options.runs} runs, seed {options.seed}:")
            for name, count in sorted(soak.counts.items()):
                say(f"  {name:<44}{count:>7}")
            for trouble in soak.trouble[:20]:
                say(f"  TROUBLE {trouble}")
    say(f"all ended, nothing was done twice; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
