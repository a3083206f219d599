"""The version of foldlog: the one place that says it.

Invariants:
- The wheel's version, `foldlog --version` and the `build` of every record are this string.
- Imports nothing, so that the build can read it without running the library.
"""

__version__ = "0.1.0"
