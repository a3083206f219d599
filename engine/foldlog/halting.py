"""Whether a partition is halted, by looking at it: for whoever does not hold its projection.

Invariants:
- It looks at what comes next, folds that in memory, and changes nothing.
"""

from foldlog.errors import Damaged, PluginMissing
from foldlog.fold import READ_BYTES_MAX, TURN_RECORDS_MAX, Fold, seen_in
from foldlog.turn import check_projection
from foldlog.views import View
from foldlog.working import Working


def why_halted(view: View) -> Damaged | None:
    """What halts whoever goes on from this projection; None if nothing does.

    Plug-ins that are not here are no damage, and are told apart.
    """
    try:
        check_goes_on(view)
    except PluginMissing:
        return None
    except Damaged as error:
        return error
    return None


def check_goes_on(view: View) -> None:
    """Damaged if the projection is no fold of its log, or if the next records do not fit."""
    meta = view.meta()
    check_projection(view.log, view.partition, meta)
    rows = view.log.events(view.partition, meta.offset, TURN_RECORDS_MAX, READ_BYTES_MAX)
    working = Working(view.reader, meta)
    seen = seen_in(view.log, view.partition, lambda: working.meta.offset)
    seen.heads.append(meta.head)
    fold = Fold(working, view.partition, seen, view.rules)
    for stored in rows:
        fold.fold(stored)
