"""The broker by hand: ``python -m tests.kafka [--folder F] WHAT``, where WHAT is jars, start, stop,
kill ID, restart ID, or tool CLASS and its arguments."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.kafka.broker import Cluster, get_jars, keep


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka", description=__doc__)
    parser.add_argument(
        "what", choices=["jars", "start", "stop", "kill", "restart", "tool", "keep"]
    )
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, help="an id, or a class and its arguments"
    )
    parser.add_argument("--folder", type=Path, default=Path(".kafka/cluster"))
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--port", type=int, default=19092)
    given = parser.parse_args()
    cluster = Cluster(given.folder)
    if given.what == "jars":
        get_jars()
    elif given.what == "start":
        if not (cluster.folder / "ports.json").exists():
            cluster.create(given.brokers, given.port)
        cluster.start()
        cluster.leave()
        print(cluster.bootstrap)  # noqa: T201
    elif given.what == "stop":
        cluster.stop()
    elif given.what == "keep":
        keep(given.folder, int(given.rest[0]))
    elif given.what == "tool":
        print(cluster.tool(*given.rest), end="")  # noqa: T201
    else:
        id = int(given.rest[0])
        (cluster.kill if given.what == "kill" else cluster.start)(id)
        cluster.leave()


if __name__ == "__main__":
    main()
