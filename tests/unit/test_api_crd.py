"""The CRD generated from the models, and its committed file."""

from collections.abc import Iterator
from typing import Any

import yaml

from pgrole_controller import resources
from pgrole_controller.api.crd import DEFINITIONS, PGSERVER, crd, files, render
from pgrole_controller.core.role import FIELD_NAMES

_HEADER = "# generated from pgrole_controller/api by `make crds`\n"


def test_committed_crds_are_what_the_models_make() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in resources.path("crds").glob("*.yaml")}
    assert committed == files(), "run `make crds`"


def test_kustomize_is_given_every_crd() -> None:
    listed = yaml.safe_load((resources.path("crds") / "Kustomization").read_text(encoding="utf-8"))["resources"]
    assert sorted(listed) == sorted(files())


def test_rendered_text_says_where_it_comes_from_and_reads_back_as_the_crd() -> None:
    for definition in DEFINITIONS:
        assert render(definition).startswith(_HEADER)
        assert yaml.safe_load(render(definition)) == crd(definition)


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
                assert {"maxLength", "enum", "format"} & schema.keys(), path
            case "array":
                assert "maxItems" in schema, path
                assert "x-kubernetes-list-type" in schema, path
            case "integer":
                assert "minimum" in schema, path
                assert "format" in schema, path


def test_schema_holds_only_what_kubernetes_knows() -> None:
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
    assert len(rules) == 54
    assert all(rule["message"] and rule["reason"] for rule in rules)


def test_fields_are_those_of_this_version_and_no_others() -> None:
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


def test_everything_that_can_drift_can_be_left_to_others_but_the_name() -> None:
    ignored = _root()["properties"]["spec"]["properties"]["drift"]["properties"]["ignore"]["items"]["enum"]
    assert sorted(ignored) == sorted({*FIELD_NAMES.values(), "privileges"} - {"name"})


def test_kubectl_get_shows_role_server_ready_reason_drifts_and_age() -> None:
    columns = [column["name"] for column in crd()["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["Role", "Server", "Ready", "Reason", "Drifts", "Age"]
    assert crd()["spec"]["names"]["shortNames"] == ["pgr"]


def test_kubectl_get_pgs_shows_whether_it_is_ready_why_not_and_how_many_roles_are() -> None:
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
