"""What some tests need of the machine: where it is missing they are skipped aloud, never in CI.

Invariants:
- Where the variable CI is set, what cannot be tested for want of something fails.
"""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def cannot(message: str) -> NoReturn:
    """Skip the test, or fail it in CI; the message says what was not tested, and the remedy."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def program(name: str) -> str:
    """The path of a program that the test runs."""
    found = shutil.which(name)
    if found is None:
        cannot(f"{name} is missing, so this was not tested: apt-get install {name}")
    return found
