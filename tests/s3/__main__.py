"""The server by hand: ``python -m tests.s3 jars`` has Maven fetch its jar."""

from __future__ import annotations

import argparse

from tests.s3.server import get_jars


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.s3", description=__doc__)
    parser.add_argument("what", choices=["jars"])
    parser.parse_args()
    get_jars()


if __name__ == "__main__":
    main()
