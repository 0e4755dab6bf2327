"""From a PgServer to the configuration of a worker. Credentials and CA come from the controller's own namespace.

A PgServer names no other namespace: otherwise anyone who may write one could send any Secret to any host.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from pgrole_controller.api.reading import Invalid, read_pgserver
from pgrole_controller.api.validation import read_duration, read_retention
from pgrole_controller.controller.objects import age_of, generation_of
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.names import NAMESPACE, find_unknown_placeholders, name_some
from pgrole_controller.core.policy import NOTHING_ALLOWED, Requirement, ServerPolicy
from pgrole_controller.core.privileges.acl import TABLE_KINDS, ObjectKind
from pgrole_controller.core.privileges.grantee import PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import (
    AttributionConfig,
    AuditSource,
    DatabaseMode,
    DatabasesConfig,
    HistoryConfig,
    Mode,
)
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.resource import CONFIGMAPS
from pgrole_controller.kube.secrets import read_secret
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.kube.unvalidated import mapping, parse
from pgrole_controller.postgres.connection import Endpoint, PasswordFactory
from pgrole_controller.postgres.tls import read_ca

if TYPE_CHECKING:  # imported with the first object: `api.reading`
    from pgrole_controller.api.pgserver import CaRef, PgServer, PgServerSpec, ServerConnection
    from pgrole_controller.api.server_databases import AllowedPrivileges, AttributionSpec, HistorySpec
    from pgrole_controller.api.server_policy import Allow, NamespaceSelector


#: Timeout of reading what a PgServer's connection is made from, in seconds.
READ_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What holds for every PgServer of this controller.

    `namespace` is where their Secrets are; `forbidden_metadata` prefixes of labels and annotations that no connection
    Secret may have; `token_command` supplies the password where a credentials Secret has none.
    """

    namespace: str = "default"
    forbidden_metadata: tuple[str, ...] = ()
    token_command: PasswordFactory | None = None


async def read_declaration(client: Client, stored: Stored, controller_config: ControllerConfig) -> ServerConfig:
    """Never raises: an error is in the result."""
    try:
        server = read_pgserver(stored.object())
    except Invalid as error:
        return unusable(stored, Refused(Reason.INVALID_SPEC, str(error)))
    declared = declare(stored, server, controller_config.forbidden_metadata)
    try:
        with anyio.fail_after(READ_SECONDS):
            endpoint = await _read_endpoint(client, server.spec.connection, controller_config)
    except PgRoleError as error:
        return replace(declared, problem=error)
    except (ApiError, Unreachable, BadStream, TimeoutError) as error:
        message = f"the objects of spec.connection cannot be read: {str(error) or 'no answer in time'}"
        return replace(declared, problem=Transient(Reason.SERVER_NOT_READY, message))
    return replace(declared, endpoint=endpoint)


def find_references(obj: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The names of the Secrets and of the ConfigMaps that a PgServer's connection is made from."""
    connection = mapping(mapping(obj.get("spec")).get("connection"))
    credentials, ca = mapping(connection.get("credentialsSecretRef")), mapping(connection.get("caRef"))
    secrets = {str(credentials.get("name"))}
    config_maps: set[str] = set()
    if ca:
        (secrets if ca.get("kind") == "Secret" else config_maps).add(str(ca.get("name")))
    return secrets, config_maps


def index_pgserver(obj: dict[str, Any]) -> list[str]:
    """The index values of a PgServer: what its connection is made from, by kind and name."""
    secrets, config_maps = find_references(obj)
    return [*(index_secret(name) for name in secrets), *(index_config_map(name) for name in config_maps)]


def index_secret(name: str) -> str:
    return f"Secret/{name}"


def index_config_map(name: str) -> str:
    return f"ConfigMap/{name}"


def unusable(stored: Stored, problem: PgRoleError) -> ServerConfig:
    """A PgServer that cannot be read."""
    return ServerConfig(
        stored.key.name,
        None,
        ServerPolicy(),
        Address("", 5432, "", ""),
        age=age_of(stored),
        generation=generation_of(stored),
        problem=problem,
    )


def declare(stored: Stored, server: "PgServer", forbidden_metadata: tuple[str, ...]) -> ServerConfig:
    """Everything that a PgServer declares, except how to connect: `endpoint` is None."""
    spec = server.spec
    connection, allow = spec.connection, spec.allow
    databases = _databases(spec)
    return ServerConfig(
        name=stored.key.name,
        endpoint=None,
        server_policy=ServerPolicy(
            replace(
                NOTHING_ALLOWED,
                role_names=tuple(allow.role_names),
                attributes=frozenset(allow.attributes),
                member_of=tuple(allow.member_of),
                parameters=frozenset(name.lower() for name in allow.parameters),
                protected=tuple(spec.protected_roles),
                reassign_to=tuple(allow.reassign_to),
                forbidden_metadata=forbidden_metadata,
                adopt=allow.adopt,
                drop=allow.drop,
                privileges=PrivilegePolicy(
                    rules=None if allow.privileges is None else tuple(map(_rule, allow.privileges)),
                    databases=None if databases is None else databases.match,
                    but=() if databases is None else databases.but,
                ),
            ),
            namespaces=tuple(allow.namespaces.match_names),
            labels=_requirements(allow.namespaces),
        ),
        address=Address(connection.hosts[0], connection.port, connection.database, connection.ssl_mode),
        may_install=spec.install,
        mode=Mode(spec.drift.mode),
        interval=read_duration(spec.drift.interval).total_seconds(),
        resync_seconds=read_duration(spec.resync_interval).total_seconds(),
        databases=databases,
        attribution=_attribution(spec.attribution),
        history=_history(spec.history),
        age=age_of(stored),
        generation=generation_of(stored),
        connection=connection.model_dump_json(),
        caveat=_explain_placeholders(allow),
    )


def _explain_placeholders(allow: "Allow") -> str:
    """Names what looks like a placeholder and is none. PostgreSQL permits such names, so it is no error."""
    rules = allow.privileges or ()
    fields = {
        "roleNames": allow.role_names,
        "memberOf": allow.member_of,
        "reassignTo": allow.reassign_to,
        "privileges[].databases": [pattern for rule in rules for pattern in rule.databases or ()],
        "privileges[].schemas": [pattern for rule in rules for pattern in rule.schemas or ()],
        "privileges[].ownedBy": [pattern for rule in rules for pattern in rule.owned_by or ()],
    }
    unknown = {field: find_unknown_placeholders(patterns) for field, patterns in fields.items()}
    found = [f"spec.allow.{field}: {name_some(some)}" for field, some in unknown.items() if some]
    if not found:
        return ""
    return f"{', '.join(found)}: no placeholder, so it matches only itself; the only one is {NAMESPACE}"


def _databases(spec: "PgServerSpec") -> DatabasesConfig | None:
    some = spec.databases
    if some is None:
        return None
    return DatabasesConfig(tuple(some.match_names), tuple(some.except_), some.max_, DatabaseMode(some.detection))


def _rule(allowed: "AllowedPrivileges") -> PrivilegeRule:
    return PrivilegeRule(
        databases=tuple(allowed.databases or ("*",)),
        schemas=tuple(allowed.schemas or ("*",)),
        kinds=None if allowed.kinds is None else _kinds(allowed.kinds),
        privileges=None if allowed.privileges is None else frozenset(allowed.privileges),
        owned_by=None if allowed.owned_by is None else tuple(allowed.owned_by),
    )


def _kinds(names: Iterable[str]) -> frozenset[ObjectKind]:
    """Table includes views and foreign tables, as in PgRoles."""
    kinds = frozenset(map(ObjectKind, names))
    return kinds | TABLE_KINDS if ObjectKind.TABLE in kinds else kinds


def _attribution(declared: "AttributionSpec | None") -> AttributionConfig:
    if declared is None:
        return AttributionConfig()
    return AttributionConfig(AuditSource(declared.audit_log), declared.expose == "Full")


def _history(declared: "HistorySpec | None") -> HistoryConfig:
    if declared is None:
        return HistoryConfig()
    kept = read_retention(declared.retention).total_seconds()
    return HistoryConfig(kept, declared.max_rows, declared.addresses)


def _requirements(namespaces: "NamespaceSelector") -> tuple[Requirement, ...]:
    labels = sorted(namespaces.match_labels.items())
    return (
        *(Requirement(label, "In", frozenset({value})) for label, value in labels),
        *(Requirement(one.key, one.operator, frozenset(one.values)) for one in namespaces.match_expressions),
    )


async def _read_endpoint(
    client: Client, connection: "ServerConnection", controller_config: ControllerConfig
) -> Endpoint:
    """Raises Waiting for a Secret or ConfigMap that does not exist or lacks a key."""
    name = connection.credentials_secret_ref.name
    which = f'spec.connection.credentialsSecretRef: Secret "{name}" in namespace {controller_config.namespace}'
    secret = await read_secret(client, Key(controller_config.namespace, name))
    if secret is None:
        keys = "username" if controller_config.token_command else "username, and password unless a token command is set"
        raise Waiting(Reason.SERVER_NOT_READY, f"{which} does not exist: create it, with {keys}")
    user = _decode(which, secret.data, "username")
    token_command = controller_config.token_command if "password" not in secret.data else None
    password = token_command or _decode(which, secret.data, "password")
    return Endpoint.of(
        hosts=tuple(connection.hosts),
        port=connection.port,
        database=connection.database,
        user=user,
        password=password,
        sslmode=connection.ssl_mode,
        ca=await _read_ca(client, connection.ca_ref, controller_config.namespace) if connection.ca_ref else None,
        methods=frozenset(connection.require_auth) if connection.require_auth else None,
    )


async def _read_ca(client: Client, reference: "CaRef", own_namespace: str) -> str:
    which = f'spec.connection.caRef: {reference.kind} "{reference.name}" in namespace {own_namespace}'
    missing = f'{which} does not exist: create it, with the CA under key "{reference.key}"'
    if reference.kind == "Secret":
        secret = await read_secret(client, Key(own_namespace, reference.name))
        if secret is None:
            raise Waiting(Reason.SERVER_NOT_READY, missing)
        return await _check_ca(which, reference.key, _decode(which, secret.data, reference.key))
    try:
        answer = await client.request("GET", CONFIGMAPS.path(own_namespace, reference.name))
    except ApiError as error:
        if error.status == 404:
            raise Waiting(Reason.SERVER_NOT_READY, missing) from error
        raise
    text = (parse(answer).get("data") or {}).get(reference.key)
    if not isinstance(text, str) or not text.strip():
        raise Waiting(Reason.SERVER_NOT_READY, f'{which} has no key "{reference.key}", or it is empty: set it')
    return await _check_ca(which, reference.key, text)


async def _check_ca(which: str, key: str, text: str) -> str:
    try:
        await anyio.to_thread.run_sync(read_ca, text)
    except Refused as error:
        raise error.reword(f'{which}, key "{key}": {error.message}') from None
    return text


def _decode(which: str, data: Mapping[str, bytes], key: str) -> str:
    value = data.get(key)
    if not value:
        raise Waiting(Reason.SERVER_NOT_READY, f'{which} has no key "{key}", or it is empty: set it')
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Waiting(Reason.SERVER_NOT_READY, f'{which}: key "{key}" is not UTF-8 text: correct it') from None
