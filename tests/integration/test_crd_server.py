"""The CRD of PgServer, as a real API server takes it: defaults, rules, and what kubectl prints."""

import secrets
from typing import Any

import pytest

from pgrole_controller.api.crd import PGSERVER, crd
from pgrole_controller.api.pgserver import PgServer
from pgrole_controller.local.apiserver import ApiServer, LocalApiError

_CONNECTION = {"hosts": ["db.example"], "credentialsSecretRef": {"name": "admin"}}
_PATH = "/apis/pgrole.dev/v1alpha1/pgservers"


async def create(server: ApiServer, spec: dict[str, Any]) -> dict[str, Any]:
    """Made by a dry run: admitted and defaulted, and not there afterwards."""
    body = {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgServer",
        "metadata": {"name": f"s-{secrets.token_hex(4)}"},
        "spec": spec,
    }
    return await server.request("POST", _PATH, body, query={"dryRun": "All", "fieldValidation": "Strict"})


async def test_the_crd_is_established_and_nothing_in_it_was_dropped(api_server: ApiServer) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pgservers.pgrole.dev"
    served = await api_server.request("GET", path)
    conditions = {condition["type"]: condition["status"] for condition in served["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    assert served["spec"]["versions"] == crd(PGSERVER)["spec"]["versions"]


async def test_defaults_of_the_api_server_are_those_of_the_models(api_server: ApiServer) -> None:
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
        ({"connection": _CONNECTION, "allow": {"attributes": ["login"]}}, "Unsupported value"),
        ({"connection": _CONNECTION, "drift": {"interval": "10ms"}}, "100ms to 1h"),
        ({"connection": _CONNECTION, "drift": {"interval": "1 day"}}, "spec.drift.interval"),
        ({"connection": _CONNECTION, "drift": {"mode": "watch"}}, "spec.drift.mode: Unsupported value"),
        ({"connection": _CONNECTION, "resyncInterval": "721h"}, "1s to 720h"),
    ],
)
async def test_what_the_rules_refuse_is_refused_in_their_words(
    api_server: ApiServer, spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(LocalApiError) as caught:
        await create(api_server, spec)
    assert caught.value.status == 422
    assert says in str(caught.value)


async def test_all_of_it_is_taken(api_server: ApiServer) -> None:
    spec = {
        "connection": {
            **_CONNECTION,
            "hosts": ["pg-1.example", "10.0.0.1", "2001:db8::1"],
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
            "adopt": True,
            "drop": False,
        },
        "protectedRoles": [],
        "drift": {"mode": "Poll", "interval": "500ms"},
        "resyncInterval": "30m",
        "install": False,
    }
    made = await create(api_server, spec)
    assert PgServer.model_validate(made).spec == PgServer.model_validate({**made, "spec": spec}).spec
