"""The benches in a short form: what `make bench` runs. Arguments choose some of them by name.

Each is a program of its own; `--help` tells its options for longer and other measurements.
`follow.py` and `kafka.py` (which needs a broker) are run by themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

BENCHES = {
    "durable_append": ["--calls", "300"],
    "propose": ["--calls", "160"],
    "wire": [],
    "throughput": ["--groups", "20"],
    "growth": ["--steps", "150"],
    "snapshots": ["--runs", "200", "1000"],
    "waiting": ["--runs", "1000", "--wakes", "40"],
}


def main(names: list[str]) -> int:
    """Run the benches named, or all; returns 1 if one of them says that its limits are broken."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or BENCHES:
        started = time.monotonic()
        print(f"== {name} {' '.join(BENCHES[name])}", flush=True)
        script = Path(__file__).with_name(f"{name}.py")
        done = subprocess.run([sys.executable, script, *BENCHES[name]], env=os.environ, check=False)
        failed += [name] if done.returncode else []
        print(
            f"-- {name}: {time.monotonic() - started:.0f} s, exit {done.returncode}\n", flush=True
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
