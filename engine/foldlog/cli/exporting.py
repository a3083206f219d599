"""The command export: a run's records, losslessly, as lines that import --format foldlog takes.

Invariants:
- What is printed does not depend on a terminal, on --json or on the width: it is a file format.
"""

from __future__ import annotations

from foldlog.cli import failures, options, output
from foldlog.cli.options import Settings, command, pass_settings


@command("export", "foldlog export run_128")
@options.run_argument
@pass_settings
def export(settings: Settings, run_id: str) -> int:
    """Print a run's records, losslessly.

    One JSON object a line, to be kept in a file. Outcomes, log times and the run chain are in them,
    so that the run verifies wherever import --format foldlog takes it over.
    """
    from foldlog.importers.exported import exported_lines

    with options.opened(settings) as engine:
        records = engine.run(run_id).export()
    if records is None:
        raise failures.run_not_found(run_id)
    for line in exported_lines(records):
        output.say_json(line)
    return 0
