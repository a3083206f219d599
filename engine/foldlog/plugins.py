"""Users' own events and reducers: how to write them, and which are installed here.

    from foldlog.plugins import EventDefinition, Id, Plugin, required

    def cast(access, event):
        access.put(f"votes:ballot/{event['voter']}", {"choice": event["choice"]})

    votes = Plugin(
        "votes",
        collections=("ballot",),
        events=[
            EventDefinition(
                "BallotCast",
                {"voter": required(Id()), "choice": required(Id())},
                cast,
                writes=("votes:ballot/{voter}",),
                commutes=True,
            )
        ],
    )

    with Engine.open("./.foldlog", plugins={1_000_001: [votes]}) as engine:
        run = engine.start("run_1", goal="decide", rules_version=1_000_001)
        run.propose(votes.event("BallotCast", voter="ada", choice="b"))
        run.state().plugins["votes:ballot"]

The command line, the daemon, and engines that are told nothing use the plug-ins that are installed:
entry points of the group ``foldlog.plugins``, each a mapping such as the one above.

Invariants:
- A number once used for a set of plug-ins means that set for ever: a changed one has another.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from foldlog.core.catalogue import Catalogue
from foldlog.core.context import words_of
from foldlog.core.plugins import (
    RULES_OF_PLUGINS_MIN,
    Access,
    EventDefinition,
    Plugin,
    PluginError,
    rules_with,
)
from foldlog.core.shapes import (
    Confidence,
    Field,
    Flag,
    Id,
    Json,
    ListOf,
    MapOf,
    OneOf,
    Record,
    Reference,
    Sha256,
    Text,
    Time,
    Whole,
)
from foldlog.core.shapes import Kind as Shape
from foldlog.errors import Usage

__all__ = [
    "RULES_OF_PLUGINS_MIN", "Access", "Confidence", "EventDefinition", "Field", "Flag", "Id",
    "Json", "ListOf", "MapOf", "OneOf", "Plugin", "PluginError", "Plugins", "Record", "Reference",
    "Sha256", "Shape", "Text", "Time", "Whole", "installed", "optional", "required", "rules_of",
]  # fmt: skip

GROUP = "foldlog.plugins"

Plugins = Mapping[int, Sequence[Plugin]]
"""Sets of plug-ins by the rules version under which runs use them."""


def required(shape: Shape) -> Field:
    """A field that must be there."""
    return Field(shape)


def optional(shape: Shape) -> Field:
    """A field that may be absent; null means absent."""
    return Field(shape, required=False)


def rules_of(plugins: Plugins | None) -> Mapping[int, Catalogue]:
    """The rules of a build with these plug-ins; with those installed where it is told none.

    Usage if they contradict themselves.
    """
    if plugins is None:
        return installed()
    try:
        return rules_with(plugins)
    except ValueError as error:
        raise Usage(f"plug-ins: {error}") from None


def _loaded(entry: EntryPoint) -> Mapping[int, Sequence[Plugin]]:
    """What an entry point names; Usage, with its name, if that is no mapping of plug-ins."""
    of = f" of {entry.dist.name}" if entry.dist is not None else ""
    where = f"the plug-ins {entry.name!r}{of} ({entry.value})"
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:
        raise Usage(f"{where} do not load: {words_of(error)}") from error
    if not isinstance(found, Mapping) or not all(
        isinstance(plugins, Sequence) and all(isinstance(each, Plugin) for each in plugins)
        for plugins in found.values()
    ):
        raise Usage(f"{where} are no mapping of rules versions to lists of plug-ins")
    return found


@cache
def installed() -> Mapping[int, Catalogue]:
    """The rules of this build with the plug-ins that are installed (entry points)."""
    found: dict[int, Sequence[Plugin]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        for version, plugins in _loaded(entry).items():
            if version in found:
                raise Usage(f"plug-ins: rules {version} are given twice, by {entry.name} too")
            found[version] = plugins
    return rules_of(found)
