"""A word for who reads a run whose plug-ins this build has not.

Invariants:
- It goes to stderr: what is read is the same with and without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foldlog.cli import output
from foldlog.cli.safe import safe

if TYPE_CHECKING:
    from foldlog.client import Run


def note_lacking(run: Run) -> None:
    """Say so if nothing can be decided of a run here, since its plug-ins are missing."""
    from foldlog.core.plugins import RULES_OF_PLUGINS_MIN
    from foldlog.lacking import not_here
    from foldlog.plugins import installed

    state = run.state()
    if state is None or (rules := state.rules_version) < RULES_OF_PLUGINS_MIN:
        return
    if rules not in installed():
        plugins = sorted({kind.partition(":")[0] for kind in state.plugins.to_dict()})
        found = {"rules": rules, "runs": 1, "run": run.run_id, "plugins": plugins}
        output.note(safe(f"note: {not_here(found)}: it shows what was decided elsewhere, and "
                         "decides nothing of it (foldlog explain PLUGIN_MISSING)"))  # fmt: skip
