"""The released schemas: the whole catalogue, frozen, compatible, and within our part of Avro."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given

import foldlog_schemas
from foldlog.core import shapes
from foldlog_schemas import compatibility, release
from tests import wire_golden
from tests.wire_examples import events

CATALOGUE = """
RunStarted RunTransitioned PlanAdopted PhaseChanged GoalChanged RunCancelled PermissionRevoked
PermissionRestored BudgetSet AgentVersionChanged RulesActivated RunReleased RunFinished
FactConfirmed FactRetracted HypothesisProposed HypothesisRevised HypothesisFalsified QuestionOpened
QuestionAnswered EnvironmentObserved ArtifactAdded TaskAdded TaskStarted TaskBlocked TaskUnblocked
TaskCompleted TaskFailed TaskCancelled ToolStarted ToolSucceeded ToolFailed WaitStarted
SignalReceived WaitTimedOut BudgetSpent EffectIntended EffectSucceeded EffectFailed EffectUnknown
EffectReconciled WorkspaceMoved CheckpointTaken LeaseAcquired LeaseRenewed LeaseReleased
ConflictResolved Recorded
""".split()
SCALAR_OF: dict[type, str] = {shapes.Whole: "long", shapes.Flag: "boolean"}


def test_the_event_schemas_are_the_catalogue() -> None:
    """Every event type of the contract has a schema, and no other event has one."""
    assert set(foldlog_schemas.names(events=True)) == set(CATALOGUE) == set(shapes.FIELDS)
    others = {"Envelope", "ImportPart", "PluginEvent", "Record", "RunArchived", "RunForked"}
    assert set(foldlog_schemas.names(events=False)) == others


def test_a_released_schema_never_changes() -> None:
    """Each file has the hash and the fingerprint of the manifest, and no file is missing in it."""
    assert release.current_entries() == foldlog_schemas.released()


def test_a_released_schema_never_vanishes() -> None:
    """The manifest says what the golden copy says; a new entry is appended to both."""
    assert foldlog_schemas.released() == wire_golden.load("released.json")


def test_fingerprints_are_unique() -> None:
    """No two schemas share a fingerprint, so ten bytes tell what follows."""
    assert len(foldlog_schemas.fingerprints()) == len(foldlog_schemas.released())


def test_every_schema_is_one_that_the_codec_takes() -> None:
    """All versions of all types read one another, none is recursive or uses more of Avro."""
    assert release.incompatibilities() == []


def test_every_schema_is_avro() -> None:
    """An ordinary Avro library parses every schema."""
    for name in foldlog_schemas.names():
        for version in foldlog_schemas.versions(name):
            parsed: Any = fastavro.parse_schema(foldlog_schemas.load(name, version))
            assert parsed["name"] == f"foldlog.v{version}.{name}"


def _check_field(kind: shapes.Kind, schema: Any, path: str) -> None:
    if isinstance(schema, dict) and schema.get("foldlog") == "nullable":
        schema = schema["fields"][0]["type"][1]
    if isinstance(kind, shapes.Record):
        _check_record(kind, schema, path)
    elif isinstance(kind, shapes.ListOf):
        assert schema["type"] == "array", path
        _check_field(kind.item, schema["items"], path)
    elif isinstance(kind, shapes.MapOf):
        assert schema["type"] == "map", path
        _check_field(kind.item, schema["values"], path)
    elif isinstance(kind, shapes.Json):
        assert schema == {"type": "string", "foldlog": "json"}, path
    else:
        assert schema == SCALAR_OF.get(type(kind), "string"), path


def _check_record(record: shapes.Record, schema: Any, path: str) -> None:
    assert [field["name"] for field in schema["fields"]] == list(record.fields), path
    for field in schema["fields"]:
        shape = record.fields[field["name"]]
        where = f"{path}.{field['name']}"
        assert isinstance(field["type"], list) != shape.required, where
        inner = field["type"] if shape.required else field["type"][1]
        nullable = isinstance(inner, dict) and inner.get("foldlog") == "nullable"
        assert nullable == (shape.keeps_null and not shape.required), where
        _check_field(shape.kind, inner, where)


@pytest.mark.parametrize("event_type", CATALOGUE)
def test_a_schema_has_the_fields_of_its_shape(event_type: str) -> None:
    """The newest version has exactly the shape's fields, optional where the shape has them so."""
    newest = foldlog_schemas.versions(event_type)[-1]
    schema = foldlog_schemas.load(event_type, newest)
    _check_record(shapes.FIELDS[event_type], schema, event_type)


def test_an_unknown_schema_is_a_key_error() -> None:
    """Neither a name nor a version that there is not is made up."""
    with pytest.raises(KeyError):
        foldlog_schemas.versions("Nonsense")
    with pytest.raises(KeyError):
        foldlog_schemas.load("FactConfirmed", 99)


def _v2(name: str = "FactConfirmed") -> dict[str, Any]:
    return foldlog_schemas.load(name, 1) | {"namespace": "foldlog.v2"}


def _problems(second: dict[str, Any], name: str = "FactConfirmed") -> list[str]:
    return compatibility.problems_of_versions(name, {1: foldlog_schemas.load(name, 1), 2: second})


def test_a_field_with_a_default_may_be_added() -> None:
    """A second version with one more optional field reads the first, and is read by it."""
    second = _v2()
    second["fields"].append({"name": "weight", "type": ["null", "long"], "default": None})
    assert _problems(second) == []


def _without_default(schema: Any) -> None:
    schema["fields"].append({"name": "weight", "type": "long"})


def _other_default(schema: Any) -> None:
    schema["fields"].append({"name": "weight", "type": "long", "default": 0})


def _required_dropped(schema: Any) -> None:
    del schema["fields"][0]["type"]["fields"][0]


def _retyped(schema: Any) -> None:
    schema["fields"][1]["type"] = ["null", "long"]


def _made_required(schema: Any) -> None:
    schema["fields"][1] = {"name": "replaces_hypothesis_id", "type": "string"}


def _made_optional(schema: Any) -> None:
    schema["fields"][0]["type"] = ["null", schema["fields"][0]["type"]]
    schema["fields"][0]["default"] = None


def _renamed_inside(schema: Any) -> None:
    schema["fields"][0]["type"]["name"] = "Other"


def _array_of_others(schema: Any) -> None:
    schema["fields"][0]["type"]["fields"][4]["type"][1]["items"] = "long"


def _as_json(schema: Any) -> None:
    schema["fields"][1]["type"][1] = {"type": "string", "foldlog": "json"}


def _recursive(schema: Any) -> None:
    schema["fields"].append({"name": "more", "type": ["null", "FactConfirmed"], "default": None})


def _enumeration(schema: Any) -> None:
    kind = {"type": "enum", "name": "Kind", "symbols": ["a"]}
    schema["fields"].append({"name": "kind", "type": ["null", kind], "default": None})


def _other_union(schema: Any) -> None:
    field = {"name": "either", "type": ["null", "string", "long"], "default": None}
    schema["fields"].append(field)


def _old_namespace(schema: Any) -> None:
    schema["namespace"] = "foldlog.v1"


@pytest.mark.parametrize(
    "spoil",
    [
        _without_default,
        _other_default,
        _required_dropped,
        _retyped,
        _made_required,
        _made_optional,
        _renamed_inside,
        _array_of_others,
        _as_json,
        _recursive,
        _enumeration,
        _other_union,
        _old_namespace,
    ],
)
def test_an_incompatible_version_is_found(spoil: Any) -> None:
    """A second version that the first cannot read, or that cannot read it, is named."""
    second = _v2()
    spoil(second)
    assert _problems(second) != []


def test_compatibility_is_checked_between_versions_that_are_not_neighbours() -> None:
    """A field dropped in the second version does not come back as another type in the third."""
    first, second, third = _v2(), _v2(), _v2()
    for version, schema in enumerate((first, second, third), start=1):
        schema["namespace"] = f"foldlog.v{version}"
    first["fields"].append({"name": "weight", "type": ["null", "long"], "default": None})
    third["fields"].append({"name": "weight", "type": ["null", "string"], "default": None})
    neighbours = {1: first, 2: second}
    assert compatibility.problems_of_versions("FactConfirmed", neighbours) == []
    assert compatibility.problems_of_versions("FactConfirmed", neighbours | {3: third}) != []


def _package_copy(folder: Path) -> Path:
    made = folder / "package"
    shutil.copytree(release.FOLDER, made, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return made


def test_a_release_adds_a_new_version_to_the_manifest(tmp_path: Path) -> None:
    """Releasing writes down the new file's hash and fingerprint and leaves the other entries."""
    package = _package_copy(tmp_path)
    second = package / "events" / "FactConfirmed.v2.avsc"
    second.write_text(json.dumps(_v2()), "utf-8")
    assert release.main(package) == 0
    manifest = json.loads((package / "released.json").read_bytes())
    assert manifest.pop("events/FactConfirmed.v2.avsc")["fingerprint"]
    assert manifest == foldlog_schemas.released()


@pytest.mark.parametrize("harm", ["changed", "removed", "incompatible"])
def test_a_release_refuses_what_would_break_a_reader(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A released file that changed or went, or a version nobody can read, leaves the manifest."""
    package = _package_copy(tmp_path)
    released = package / "events" / "FactConfirmed.v1.avsc"
    if harm == "changed":
        released.write_bytes(released.read_bytes() + b"\n")
    elif harm == "removed":
        released.unlink()
    else:
        second = copy.deepcopy(_v2())
        _retyped(second)
        (package / "events" / "FactConfirmed.v2.avsc").write_text(json.dumps(second), "utf-8")
    assert release.main(package) == 1
    assert "FactConfirmed" in capsys.readouterr().err
    assert json.loads((package / "released.json").read_bytes()) == foldlog_schemas.released()


@given(event=events)
def test_no_event_field_is_outside_its_schema(event: dict[str, Any]) -> None:
    """Whatever a shape admits has a place in the schema at the top level."""
    schema = foldlog_schemas.load(event["type"], foldlog_schemas.versions(event["type"])[-1])
    assert set(event) - {"type"} <= {field["name"] for field in schema["fields"]}
