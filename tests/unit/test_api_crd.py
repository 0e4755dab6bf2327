"""The CRD generated from the models, and its committed file."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from pgrole_controller import resources
from pgrole_controller.api.crd import DEFINITIONS, PGSERVER, crd, files, render
from pgrole_controller.api.meta import UNIQUE
from pgrole_controller.api.pgrole import PgRoleSpec
from pgrole_controller.api.pgserver import PgServerSpec
from pgrole_controller.core.role import FIELD_NAMES
from tests.documents import read_document

_HEADER = "# generated from pgrole_controller/api by `make crds`\n"


def test_committed_crds_match_the_models() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in resources.path("crds").glob("*.yaml")}
    assert committed == files(), "run `make crds`"


def test_the_kustomization_lists_every_crd() -> None:
    listed = yaml.safe_load((resources.path("crds") / "Kustomization").read_text(encoding="utf-8"))["resources"]
    assert sorted(listed) == sorted(files())


def test_rendered_yaml_names_its_source_and_parses_back_to_the_crd() -> None:
    for definition in DEFINITIONS:
        assert render(definition).startswith(_HEADER)
        assert read_document(render(definition)) == crd(definition)


def test_every_field_has_a_description() -> None:
    for path, schema in _fields():
        if path not in ("metadata", "spec") and not path.endswith("[]"):
            assert schema.get("description"), path


def test_every_string_and_list_is_bounded() -> None:
    for path, schema in _fields():
        if path in ("apiVersion", "kind"):
            continue
        match schema["type"]:
            case "string":
                bounds = {"maxLength", "enum"} if path.startswith("spec") else {"maxLength", "enum", "format"}
                assert bounds & schema.keys(), path
            case "array":
                assert "maxItems" in schema, path
                assert "x-kubernetes-list-type" in schema, path
            case "integer":
                assert "minimum" in schema, path
                assert "format" in schema, path


def test_the_schema_uses_only_keywords_that_kubernetes_knows() -> None:
    known = {
        "type",
        "description",
        "format",
        "pattern",
        "default",
        "enum",
        "required",
        "properties",
        "items",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "maxItems",
        "minItems",
        "maxProperties",
        "additionalProperties",
    }
    for path, schema in _fields():
        for keyword in schema:
            assert keyword in known or keyword.startswith("x-kubernetes-"), f"{path}: {keyword}"


def test_every_rule_has_a_message_and_a_reason() -> None:
    rules = [rule for _, schema in _fields() for rule in schema.get("x-kubernetes-validations", ())]
    rules += _root()["x-kubernetes-validations"]
    assert len(rules) == 62
    assert all(rule["message"] and rule["reason"] for rule in rules)


@pytest.mark.parametrize("model", [PgRoleSpec, PgServerSpec])
def test_the_models_reject_duplicates_in_every_set(model: type[BaseModel]) -> None:
    for one in nested_models(model):
        for name, field in one.model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("x-kubernetes-list-type") == "set":
                assert repr(UNIQUE) in f"{field.annotation!r} {field.metadata!r}", f"{one.__name__}.{name}"


def nested_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        yield from chain.from_iterable(map(nested_models, models_in(field.annotation)))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def test_spec_and_status_have_exactly_the_fields_of_this_version() -> None:
    spec = _root()["properties"]["spec"]["properties"]
    status = _root()["properties"]["status"]["properties"]
    assert set(spec) == {
        "serverRef",
        "name",
        "login",
        "superuser",
        "createdb",
        "createrole",
        "inherit",
        "replication",
        "bypassrls",
        "connectionLimit",
        "validUntil",
        "comment",
        "password",
        "memberOf",
        "parameters",
        "databaseParameters",
        "privileges",
        "connectionSecret",
        "drift",
        "adopt",
        "deletionPolicy",
        "reassignOwnedTo",
        "terminateSessions",
        "suspend",
    }
    assert set(status) == {
        "observedGeneration",
        "conditions",
        "role",
        "server",
        "lastDrift",
        "driftCount",
        "driftHistory",
        "privileges",
        "approval",
        "passwordSecretVersion",
        "nextRotation",
    }


def test_every_field_that_can_drift_except_the_name_can_be_ignored() -> None:
    ignored = _root()["properties"]["spec"]["properties"]["drift"]["properties"]["ignore"]["items"]["enum"]
    assert sorted(ignored) == sorted({*FIELD_NAMES.values(), "privileges"} - {"name"})


def test_kubectl_get_shows_role_server_ready_reason_drifts_and_age() -> None:
    columns = [column["name"] for column in crd()["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["Role", "Server", "Ready", "Reason", "Drifts", "Age"]
    assert crd()["spec"]["names"]["shortNames"] == ["pgr"]


def test_kubectl_get_pgs_shows_ready_reason_version_mode_role_counts_and_age() -> None:
    columns = [column["name"] for column in crd(PGSERVER)["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["Ready", "Reason", "Version", "Mode", "Roles", "Roles Ready", "Age"]
    assert crd(PGSERVER)["spec"]["names"]["shortNames"] == ["pgs"]
    assert crd(PGSERVER)["spec"]["scope"] == "Cluster"


def _root() -> dict[str, Any]:
    root: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root


def _fields() -> Iterator[tuple[str, dict[str, Any]]]:
    for definition in DEFINITIONS:
        root = crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for name, schema in root["properties"].items():
            yield from _walk(name, schema)


def _walk(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _walk(f"{path}.{name}", field)
    if "items" in schema:
        yield from _walk(f"{path}[]", schema["items"])
