"""The CRD of PgServer in a real API server: defaults, rules, and what kubectl prints."""

import json
import secrets
from typing import Any

import pytest

from pgrole_controller.api.crd import PGSERVER, crd
from pgrole_controller.api.pgserver import PgServer
from pgrole_controller.api.reading import Invalid, read_pgserver
from pgrole_controller.commands.manifest_files import Manifests, parse_manifests
from pgrole_controller.local.apiserver import ApiServer, LocalApiError

_CONNECTION = {"hosts": ["db.example"], "credentialsSecretRef": {"name": "admin"}}
_PATH = "/apis/pgrole.dev/v1alpha1/pgservers"


async def create(server: ApiServer, spec: dict[str, Any]) -> dict[str, Any]:
    """Creates a PgServer in a dry run: admitted and defaulted, but not stored."""
    body = {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgServer",
        "metadata": {"name": f"s-{secrets.token_hex(4)}"},
        "spec": spec,
    }
    return await server.request("POST", _PATH, body, query={"dryRun": "All", "fieldValidation": "Strict"})


async def test_the_crd_is_established_and_served_unchanged(api_server: ApiServer) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pgservers.pgrole.dev"
    served = await api_server.request("GET", path)
    conditions = {condition["type"]: condition["status"] for condition in served["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    assert served["spec"]["versions"] == crd(PGSERVER)["spec"]["versions"]


async def test_api_server_and_models_have_the_same_defaults(api_server: ApiServer) -> None:
    made = await create(api_server, {"connection": _CONNECTION})
    assert made["status"] == {"observedGeneration": -1}
    defaulted = PgServer.model_validate(made).spec
    assert defaulted == PgServer.model_validate({**made, "spec": {"connection": _CONNECTION}}).spec
    assert defaulted.connection.ssl_mode == "verify-full"
    assert made["spec"]["allow"] == {"adopt": False, "drop": True, "namespaces": {}}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "spec.connection: Required value"),
        ({"connection": {**_CONNECTION, "hosts": []}}, "should have at least 1 items"),
        ({"connection": {**_CONNECTION, "hosts": ["/var/run/postgresql"]}}, "spec.connection.hosts"),
        (
            {"connection": {**_CONNECTION, "hosts": ["::1", "pg-1.example:5432"]}},
            'hosts[1]: Invalid value: "pg-1.example:5432": a host must not contain a port: set spec.connection.port',
        ),
        ({"connection": {**_CONNECTION, "port": 0}}, "spec.connection.port"),
        ({"connection": {**_CONNECTION, "sslMode": "prefer"}}, "spec.connection.sslMode: Unsupported value"),
        (
            {"connection": {**_CONNECTION, "sslMode": "require", "caRef": {"name": "ca"}}},
            "caRef requires sslMode verify-ca or verify-full",
        ),
        ({"connection": {**_CONNECTION, "sslMode": "verify-ca"}}, "verify-ca requires spec.connection.caRef"),
        ({"connection": {**_CONNECTION, "requireAuth": []}}, "should have at least 1 items"),
        ({"connection": {**_CONNECTION, "requireAuth": ["gss"]}}, "spec.connection.requireAuth[0]: Unsupported value"),
        ({"connection": {**_CONNECTION, "requireAuth": ["!md5"]}}, "spec.connection.requireAuth[0]: Unsupported value"),
        ({"connection": {**_CONNECTION, "requireAuth": ["md5", "md5"]}}, "Duplicate value"),
        ({"connection": {"hosts": ["db"]}}, "spec.connection.credentialsSecretRef: Required value"),
        (
            {"connection": _CONNECTION, "allow": {"namespaces": {"matchNames": ["a"], "matchLabels": {"b": "c"}}}},
            "set either matchNames, or matchLabels",
        ),
        (
            {
                "connection": _CONNECTION,
                "allow": {"namespaces": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
            },
            "In and NotIn require values",
        ),
        (
            {"connection": _CONNECTION, "allow": {"namespaces": {"matchLabels": {"d" * 254 + "/" + "a" * 63: "b"}}}},
            "spec.allow.namespaces.matchLabels: a key has at most 317 characters",
        ),
        ({"connection": _CONNECTION, "allow": {"attributes": ["login"]}}, "Unsupported value"),
        ({"connection": _CONNECTION, "drift": {"interval": "10ms"}}, "100ms to 1h"),
        ({"connection": _CONNECTION, "drift": {"interval": "1 day"}}, "spec.drift.interval"),
        ({"connection": _CONNECTION, "drift": {"mode": "watch"}}, "spec.drift.mode: Unsupported value"),
        ({"connection": _CONNECTION, "resyncInterval": "721h"}, "1s to 720h"),
        ({"connection": _CONNECTION, "databases": {}}, "spec.databases.matchNames: Required value"),
        ({"connection": _CONNECTION, "databases": {"matchNames": []}}, "should have at least 1 items"),
        ({"connection": _CONNECTION, "databases": {"matchNames": ["*"], "max": 0}}, "greater than or equal to 1"),
        ({"connection": _CONNECTION, "databases": {"matchNames": ["*"], "max": 501}}, "less than or equal to 500"),
        (
            {"connection": _CONNECTION, "databases": {"matchNames": ["*"], "detection": "Watch"}},
            'spec.databases.detection: Unsupported value: "Watch"',
        ),
        ({"connection": _CONNECTION, "allow": {"privileges": [{"kinds": []}]}}, "should have at least 1 items"),
        (
            {"connection": _CONNECTION, "allow": {"privileges": [{"privileges": ["ALL"]}]}},
            'spec.allow.privileges[0].privileges[0]: Unsupported value: "ALL"',
        ),
        ({"connection": _CONNECTION, "attribution": {"auditLog": "Csvlog"}}, "Unsupported value"),
        ({"connection": _CONNECTION, "attribution": {"expose": "Some"}}, "Unsupported value"),
        ({"connection": _CONNECTION, "history": {"retention": "0d"}}, "from 1d to 424d, such as 90d"),
        ({"connection": _CONNECTION, "history": {"retention": "425d"}}, "from 1d to 424d, such as 90d"),
        ({"connection": _CONNECTION, "history": {"retention": "1h"}}, "from 1d to 424d, such as 90d"),
        ({"connection": _CONNECTION, "history": {"retention": "10177h"}}, "from 1d to 424d, such as 90d"),
        ({"connection": _CONNECTION, "history": {"retention": "1d12h"}}, "spec.history.retention"),
        ({"connection": _CONNECTION, "history": {"maxRows": 10}}, "greater than or equal to 1000"),
    ],
)
async def test_an_invalid_spec_is_rejected_with_the_message_of_its_rule(
    api_server: ApiServer, spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(LocalApiError) as caught:
        await create(api_server, spec)
    assert caught.value.status == 422
    assert says in str(caught.value)


async def test_a_full_spec_is_admitted(api_server: ApiServer) -> None:
    spec: dict[str, Any] = {
        "connection": {
            **_CONNECTION,
            "hosts": ["pg-1.example", "10.0.0.1", "2001:db8::1", "::1", "::ffff:1", "1::5432"],
            "caRef": {"kind": "Secret", "name": "ca", "key": "tls.crt"},
            "requireAuth": ["password", "md5", "scram-sha-256", "none"],
        },
        "allow": {
            "namespaces": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]},
            "roleNames": ["{namespace}_*"],
            "attributes": ["createdb"],
            "memberOf": ["readers"],
            "parameters": ["log_statement"],
            "reassignTo": ["heirs_*"],
            "privileges": [
                {"ownedBy": ["{namespace}_*"]},
                {"databases": ["warehouse"], "schemas": ["shared"], "kinds": ["Schema", "Table"]},
                {"privileges": ["USAGE", "SELECT", "CONNECT", "EXECUTE"]},
            ],
            "adopt": True,
            "drop": False,
        },
        "databases": {"matchNames": ["*"], "except": ["template1"], "max": 500, "detection": "Events"},
        "attribution": {"auditLog": "Pgaudit", "expose": "Full"},
        "history": {"retention": "36h", "maxRows": 1000, "addresses": False},
        "protectedRoles": [],
        "drift": {"mode": "Poll", "interval": "500ms"},
        "resyncInterval": "30m",
        "install": False,
    }
    made = await create(api_server, spec)
    assert PgServer.model_validate(made).spec == PgServer.model_validate({**made, "spec": spec}).spec
    assert made["spec"]["allow"]["privileges"] == spec["allow"]["privileges"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("é" * 40, "spec.connection.database must have 1 to 63 bytes"),
        ("a\0b", "spec.connection.database must not contain NUL"),
    ],
)
async def test_a_home_database_has_a_name_that_postgresql_can_store(
    api_server: ApiServer, name: str, says: str
) -> None:
    longest = "é" * 31 + "x"
    made = await create(api_server, {"connection": {**_CONNECTION, "database": longest}})
    assert read_pgserver(made).spec.connection.database == longest
    connection = {**_CONNECTION, "database": name}
    with pytest.raises(LocalApiError, match=says):
        await create(api_server, {"connection": connection})
    with pytest.raises(Invalid, match=f"^{says}"):
        read_pgserver(made | {"spec": {"connection": connection}})


def parse(spec: dict[str, Any]) -> Manifests:
    """As `plan -f` reads the same object from a file."""
    body = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgServer", "metadata": {"name": "main"}, "spec": spec}
    return parse_manifests([("main.json", json.dumps(body))], "shop")


async def test_plan_reads_nulls_as_the_api_server_does(api_server: ApiServer) -> None:
    spec: dict[str, Any] = {
        "connection": {**_CONNECTION, "port": None, "database": None, "sslMode": None, "caRef": None},
        "allow": {"namespaces": None, "roleNames": None, "adopt": None},
        "databases": {"matchNames": ["*"], "except": None, "max": None},
        "drift": None,
        "resyncInterval": None,
        "history": None,
        "install": None,
    }
    created = await create(api_server, spec)
    manifests = parse(spec)
    assert manifests.wrong == ()
    assert read_pgserver(manifests.servers[0].obj).spec == read_pgserver(created).spec


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"connection": {**_CONNECTION, "port": "5432"}}, "spec.connection.port: must be a valid integer"),
        ({"connection": {**_CONNECTION, "hosts": None}}, "spec.connection.hosts: Field required"),
        (
            {"connection": {**_CONNECTION, "hosts": ["10.0.0.1:5432"]}},
            "spec.connection.hosts.0: a host must not contain",
        ),
        (
            {"connection": _CONNECTION, "databases": {"matchNames": ["*"], "max": True}},
            "spec.databases.max: must be a valid integer",
        ),
        ({"connection": _CONNECTION, "history": {"maxRows": "1000"}}, "spec.history.maxRows: must be a valid integer"),
    ],
)
async def test_plan_refuses_nulls_and_numbers_that_the_api_server_refuses(
    api_server: ApiServer, spec: dict[str, Any], told: str
) -> None:
    with pytest.raises(LocalApiError):
        await create(api_server, spec)
    (wrong,) = parse(spec).wrong
    assert told in wrong.error.message


@pytest.mark.parametrize("retention", ["1d", "90d", "424d", "24h", "10176h", "36h30m"])
async def test_a_retention_may_be_a_number_of_days_or_a_duration(api_server: ApiServer, retention: str) -> None:
    made = await create(api_server, {"connection": _CONNECTION, "history": {"retention": retention}})
    history = PgServer.model_validate(made).spec.history
    assert history is not None
    assert history.retention == retention


async def test_optional_sections_get_defaults_only_if_they_are_declared(api_server: ApiServer) -> None:
    assert "databases" not in (await create(api_server, {"connection": _CONNECTION}))["spec"]
    made = await create(api_server, {"connection": _CONNECTION, "databases": {"matchNames": ["orders"]}})
    assert made["spec"]["databases"] == {"matchNames": ["orders"], "max": 50, "detection": "Auto"}
    assert not {"attribution", "history"} & set(made["spec"]), "stored objects of earlier releases stay as they are"
    spec = (await create(api_server, {"connection": _CONNECTION, "attribution": {}, "history": {}}))["spec"]
    assert spec["attribution"] == {"auditLog": "Never", "expose": "Minimal"}
    assert spec["history"] == {"retention": "90d", "maxRows": 1_000_000, "addresses": True}
