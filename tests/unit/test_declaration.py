"""From a PgServer to the configuration of its worker: databases, privileges and drift."""

import json
from base64 import b64encode
from typing import Any, cast

import pytest

from pgrole_controller.controller.declaration import ControllerConfig, read_declaration
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import (
    AttributionConfig,
    AuditSource,
    DatabaseMode,
    DatabasesConfig,
    HistoryConfig,
)
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import pack


class OneSecret:
    """Stands for every Secret and ConfigMap."""

    async def request(self, _: str, path: str, **__: object) -> bytes:
        metadata = {"name": "admin", "namespace": "default", "uid": "s", "resourceVersion": "1"}
        if "/configmaps/" in path:
            return json.dumps({"metadata": metadata, "data": {"ca.crt": "x"}}).encode()
        data = {key: b64encode(b"x").decode() for key in ("username", "password", "tls.crt")}
        return json.dumps({"metadata": metadata, "type": "Opaque", "data": data}).encode()


async def declare(**spec: Any) -> ServerConfig:
    server = await read(**spec)
    assert server.problem is None
    return server


async def read(ca: dict[str, str] | None = None, **spec: Any) -> ServerConfig:
    connection: dict[str, Any] = {"hosts": ["pg"], "sslMode": "disable", "credentialsSecretRef": {"name": "admin"}}
    if ca is not None:
        connection |= {"sslMode": "verify-full", "caRef": ca}
    metadata = {"name": "main", "uid": "u", "resourceVersion": "1", "generation": 1}
    metadata["creationTimestamp"] = "2027-01-01T00:00:00Z"
    store = Store()
    store.put(
        pack(
            {
                "apiVersion": "pgrole.dev/v1alpha1",
                "kind": "PgServer",
                "metadata": metadata,
                "spec": {"connection": connection, **spec},
            }
        )
    )
    stored = store.get(Key("", "main"))
    assert stored is not None
    return await read_declaration(cast("Client", OneSecret()), stored, ControllerConfig())


def privileges(server: ServerConfig, namespace: str = "shop") -> PrivilegePolicy:
    return server.server_policy.policy(namespace, {}).privileges


async def test_without_databases_nothing_is_managed_and_the_default_rule_applies() -> None:
    server = await declare()
    assert server.databases is None
    assert privileges(server) == PrivilegePolicy(
        rules=None, databases=None, protected=server.server_policy.template.protected
    )
    assert server.attribution == AttributionConfig(AuditSource.NEVER, exposes_all=False)
    assert server.history == HistoryConfig(90 * 86400.0, 1_000_000, addresses=True)


async def test_databases_match_patterns_except_the_excluded_ones() -> None:
    server = await declare(databases={"matchNames": ["*"], "except": ["template1", "x?"]})
    assert server.databases == DatabasesConfig(("*",), ("template1", "x?"), 50, DatabaseMode.AUTO)
    assert [server.databases.admits(name) for name in ("orders", "template1", "x1", "x12")] == [
        True,
        False,
        False,
        True,
    ]
    assert (privileges(server).databases, privileges(server).but) == (("*",), ("template1", "x?"))


@pytest.mark.parametrize("mode", ["Auto", "Events", "Poll", "Resync"])
async def test_detection_and_the_maximum_of_connections_are_as_declared(mode: str) -> None:
    server = await declare(databases={"matchNames": ["orders"], "max": 7, "detection": mode})
    assert server.databases == DatabasesConfig(("orders",), (), 7, DatabaseMode(mode))


async def test_rules_contain_the_namespace_and_match_everything_they_omit() -> None:
    server = await declare(
        allow={
            "privileges": [
                {"ownedBy": ["{namespace}_*"]},
                {
                    "databases": ["{namespace}"],
                    "schemas": ["shared", "{namespace}_x"],
                    "kinds": ["Schema", "Table"],
                    "privileges": ["USAGE", "SELECT"],
                },
                {"kinds": ["View"]},
            ]
        }
    )
    tables = {ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW, ObjectKind.FOREIGN_TABLE}
    kinds = frozenset({ObjectKind.SCHEMA, *tables}), frozenset({"USAGE", "SELECT"})
    patterns = ("{namespace}",), ("shared", "{namespace}_x")
    assert privileges(server, "team-a").rules == (
        PrivilegeRule(owned_by=("team-a_*",), template=PrivilegeRule(owned_by=("{namespace}_*",))),
        PrivilegeRule(("team-a",), ("shared", "team-a_x"), *kinds, template=PrivilegeRule(*patterns, *kinds)),
        PrivilegeRule(kinds=frozenset({ObjectKind.VIEW})),
    )


async def test_an_empty_list_of_rules_allows_nothing() -> None:
    assert privileges(await declare(allow={"privileges": []})).rules == ()


@pytest.mark.parametrize(("text", "days"), [("90d", 90), ("1d", 1), ("424d", 424), ("36h", 1.5), ("10176h", 424)])
async def test_retention_is_in_days_or_a_duration(text: str, days: float) -> None:
    server = await declare(history={"retention": text, "maxRows": 5000, "addresses": False})
    assert server.history == HistoryConfig(days * 86400, 5000, addresses=False)


@pytest.mark.parametrize("text", ["0d", "425d", "1h", "10177h", "90", "1d12h", "-1d", "d", ""])
async def test_an_invalid_retention_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(AssertionError, match=r"spec\.history\.retention must be a number of days or a duration"):
        await declare(history={"retention": text})


async def test_attribution_is_as_declared() -> None:
    server = await declare(attribution={"auditLog": "Pgaudit", "expose": "Full"})
    assert server.attribution == AttributionConfig(AuditSource.PGAUDIT, exposes_all=True)


@pytest.mark.parametrize(("kind", "key"), [("ConfigMap", "ca.crt"), ("Secret", "tls.crt")])
async def test_a_ca_that_is_not_readable_is_named(kind: str, key: str) -> None:
    server = await read(ca={"kind": kind, "name": "pg-ca", "key": key})
    assert server.endpoint is None
    assert server.problem is not None
    assert server.problem.message.startswith(
        f'spec.connection.caRef: {kind} "pg-ca" in namespace default, key "{key}": the CA is not readable: provide'
    )


async def test_what_looks_like_a_placeholder_and_is_none_is_named_with_its_field() -> None:
    names = ["{namespace}_*", "{ns}_*", "{Namespace}"]
    rules = [{"schemas": ["{namespace}"]}, {"databases": ["{team}"], "ownedBy": names}]
    server = await declare(allow={"roleNames": names, "memberOf": ["{namespace}_readers"], "privileges": rules})
    assert server.caveat.startswith(
        "spec.allow.roleNames: {Namespace}, {ns}, spec.allow.privileges[].databases: {team}, "
        "spec.allow.privileges[].ownedBy: {Namespace}, {ns}: no placeholder"
    )
    assert (await declare(allow={"roleNames": ["{namespace}_*"]})).caveat == ""


async def test_changing_these_fields_does_not_end_the_session() -> None:
    other = await declare(databases={"matchNames": ["*"]}, attribution={"expose": "Full"}, history={"retention": "1d"})
    assert other.access == (await declare()).access
