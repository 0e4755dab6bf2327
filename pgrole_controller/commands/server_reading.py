"""Finds the server and the cluster that a command looks at, and reads them: a database in one READ ONLY transaction,
several servers, databases or namespaces a few at a time.
"""

import argparse
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from pgrole_controller.api.reading import Invalid, read_pgserver
from pgrole_controller.controller.server_config import DEFAULT_SERVER, ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.policy import ServerPolicy, allow_ordinary_roles
from pgrole_controller.core.server_options import TEMPLATES, DatabasesConfig
from pgrole_controller.dsn import address_of
from pgrole_controller.imports import startup_imports
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import PGSERVERS
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.kube.unvalidated import parse
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.database_connection import connect_read_only
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.settings import DSN, WrongSetting, read_settings, read_strict_tls

if TYPE_CHECKING:
    from pgrole_controller.api.pgserver import PgServer
    from pgrole_controller.kube.client import Client

#: What `read_each` reads concurrently. A server that does not answer takes five seconds.
SERVERS_AT_ONCE = 8
NAMESPACES_AT_ONCE = 8
DATABASES_AT_ONCE = 4

_BEGIN = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

Place = TypeVar("Place")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """Where to find the cluster, and the PgRoles in it. `strict_tls`: as in `Client.connect`."""

    kubeconfig: str | None
    context: str | None
    namespace: str | None
    strict_tls: bool = True

    @property
    def named(self) -> bool:
        """Whether the user named a cluster, rather than the environment."""
        return self.kubeconfig is not None or self.context is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChoice:
    """Where to find the PostgreSQL server, and the cluster with its PgServer. `own_namespace`: where PgServers' Secrets
    are.
    """

    dsn: str | None
    server: str | None
    own_namespace: str
    cluster: ClusterChoice


def cluster_choice(options: argparse.Namespace) -> ClusterChoice:
    """Reads the choice from the arguments, and `strict_tls` from the environment. Raises WrongSetting."""
    return ClusterChoice(
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
        strict_tls=read_strict_tls(os.environ),
    )


def server_choice(options: argparse.Namespace) -> ServerChoice:
    """Reads the choice from the arguments, and the DSN also from the environment. Raises WrongSetting."""
    return ServerChoice(
        dsn=options.dsn or read_settings({}, os.environ, only=(DSN.name,)).dsn,
        server=options.server,
        own_namespace=options.own_namespace,
        cluster=cluster_choice(options),
    )


def open_cluster(choice: ClusterChoice) -> "AbstractAsyncContextManager[Client]":
    """Opens a client of the API server. Raises NotConfigured, also on entry."""
    with startup_imports():  # imported late: a command with a DSN needs no HTTP client
        from pgrole_controller.kube.client import Client
    return Client.connect(choice.kubeconfig, context=choice.context, strict_tls=choice.strict_tls)


async def find_server(choice: ServerChoice) -> ServerConfig:
    """The chosen server with its endpoint and policy; without a PgServer, the policy of PGROLE_DSN's server.

    Raises WrongSetting if nothing names a server, or flags name a cluster that is not read; and PgRoleError, ApiError
    or Unreachable.
    """
    if choice.server is None:
        if choice.dsn is None:
            raise WrongSetting("no server: set PGROLE_DSN, or use --server NAME for a PgServer in the cluster")
        if choice.cluster.named:
            flags = {"--kubeconfig": choice.cluster.kubeconfig, "--context": choice.cluster.context}
            given = " and ".join(flag for flag, value in flags.items() if value is not None)
            raise WrongSetting(
                f"{given} without --server has no effect: --dsn or {DSN.variable} names the server. For a PgServer in "
                f"the cluster, use --server NAME without a DSN"
            )
        return of_dsn(choice.dsn)
    async with open_cluster(choice.cluster) as client:
        found = await find_declared(client, choice.server, choice)
    if found.problem is not None:
        raise found.problem
    return found


async def find_declared(client: "Client", name: str, choice: ServerChoice) -> ServerConfig:
    """A PgServer in the cluster, with the DSN's connection if one is given. Where none is named `default`, the DSN
    stands for it.

    Raises as `read_server`.
    """
    try:
        found = await read_server(client, name, choice.own_namespace)
    except Refused as error:
        if choice.dsn is None or name != DEFAULT_SERVER or error.reason is not Reason.SERVER_NOT_READY:
            raise
        return of_dsn(choice.dsn)
    return found if choice.dsn is None else at_dsn(found, choice.dsn)


async def read_server(client: "Client", name: str, own_namespace: str) -> ServerConfig:
    """A PgServer in the cluster; `problem` says why its endpoint is unknown, e.g. an unreadable Secret.

    Raises Refused if there is none, ApiError, Unreachable.
    """
    found = await _get_pgserver(client, name)
    if found is None:
        hint = ""
        if name == DEFAULT_SERVER:
            hint = f". If the controller uses {DSN.variable}, set it here as well"
        raise Refused(Reason.SERVER_NOT_READY, f'PgServer "{name}" does not exist{hint}')
    obj, _ = found
    return await _read_declaration(client, pack(obj), own_namespace)


async def _get_pgserver(client: "Client", name: str) -> tuple[dict[str, Any], "PgServer"] | None:
    """A PgServer in the cluster, as JSON and validated; None if there is none.

    Raises Refused if it is invalid, ApiError, Unreachable.
    """
    try:
        obj = parse(await client.request("GET", PGSERVERS.path(None, name)))
        return obj, read_pgserver(obj)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    except Invalid as error:
        raise Refused(Reason.INVALID_SPEC, f'PgServer "{name}": {error}') from error


def unreachable_server(name: str, error: Exception) -> ServerConfig:
    """A server of which only the name is known, because its PgServer could not be read."""
    problem = error if isinstance(error, PgRoleError) else None
    problem = problem or Transient(Reason.SERVER_NOT_READY, f'PgServer "{name}" cannot be read: {error}')
    return ServerConfig(name, None, ServerPolicy(), Address("", 5432, "", ""), problem=problem)


def declare_from_file(obj: dict[str, Any], connected: ServerConfig) -> ServerConfig:
    """The server of a valid PgServer in a file, with the connection of another."""
    from pgrole_controller.controller.declaration import declare

    declared = declare(_pack_unapplied(obj), read_pgserver(obj), ())
    return replace(declared, endpoint=connected.endpoint, address=connected.address)


async def declare_with_credentials(client: "Client", obj: dict[str, Any], own_namespace: str) -> ServerConfig:
    """The server of a valid PgServer in a file, whose connection must be that of the PgServer in the cluster.

    Otherwise a file that no one has applied would decide which host gets the credentials in the cluster's Secret.
    `problem` says why its endpoint is unknown. Raises Refused, ApiError, Unreachable.
    """
    name = obj["metadata"]["name"]
    remedy = f"name the connection with --dsn or {DSN.variable}"
    found = await _get_pgserver(client, name)
    if found is None:
        message = f'PgServer "{name}" is not in the cluster, so the host in its spec.connection gets no credentials'
        raise Refused(Reason.SERVER_NOT_READY, f"{message}: {remedy}")
    declared, applied = (one.spec.connection.model_dump(by_alias=True) for one in (read_pgserver(obj), found[1]))
    differing = [f"spec.connection.{field}" for field in declared if declared[field] != applied[field]]
    if differing:
        which = f'{" and ".join(differing)} of PgServer "{name}" is not as in the cluster'
        raise Refused(Reason.SERVER_NOT_READY, f"{which}, so the host in the file gets no credentials: {remedy}")
    return await _read_declaration(client, _pack_unapplied(obj), own_namespace)


def _pack_unapplied(obj: dict[str, Any]) -> Stored:
    return pack({**obj, "metadata": {"resourceVersion": "", **obj["metadata"], "uid": ""}})


async def _read_declaration(client: "Client", stored: Stored, own_namespace: str) -> ServerConfig:
    from pgrole_controller.controller.declaration import ControllerConfig, read_declaration

    server = await read_declaration(client, stored, ControllerConfig(namespace=own_namespace))
    problem = server.problem
    if problem is None:
        return server
    if f" in namespace {own_namespace} does not exist" in problem.message:
        hint = "If the controller is in another namespace, name that with --own-namespace"
    elif ' has no key "password"' in problem.message:
        hint = f"If the controller has a token command, name the connection with --dsn or {DSN.variable}"
    else:
        return server
    return replace(server, problem=problem.reword(f"{problem.message}. {hint}"))


def of_dsn(dsn: str) -> ServerConfig:
    """Returns the server of a DSN, with the policy that the controller has for PGROLE_DSN in the same environment."""
    settings = read_settings({}, os.environ, only=("allow", "protected", "install"))
    return ServerConfig(
        DEFAULT_SERVER,
        Endpoint.of_dsn(dsn),
        allow_ordinary_roles(settings.allow, settings.protected, settings.forbidden_metadata),
        address_of(dsn),
        may_install=settings.install,
        databases=DatabasesConfig(("*",), TEMPLATES),
    )


def check_one_server(names: Collection[str]) -> None:
    """Raises WrongSetting if PgRoles reference several servers, for a DSN names one."""
    if len(names) > 1:
        several = ", ".join(sorted(names))
        raise WrongSetting(
            f"the DSN names one server, but the PgRoles reference several ({several}): choose one with --server"
        )


def at_dsn(server: ServerConfig, dsn: str) -> ServerConfig:
    """Returns the server as declared, with the DSN's connection."""
    return replace(server, endpoint=of_dsn(dsn).endpoint, problem=None)


@asynccontextmanager
async def reading(endpoint: Endpoint, database: str | None = None) -> AsyncIterator[Connection]:
    """Opens a connection inside one READ ONLY transaction, whose queries all see the same state. Raises PgRoleError.

    `database`: one other than the endpoint's.
    """
    async with connect_read_only(endpoint, database) as connection:
        with translate_errors("begin"):
            await connection.execute(_BEGIN)
        yield connection


async def read_each(places: Sequence[Place], read: Callable[[Place], Awaitable[Found]], most: int) -> list[Found]:
    """Returns what `read` returns for each, in this order. `most`: of them are read at once.

    Raises what the first that fails raises, and ends the others.
    """
    found: dict[int, Found] = {}
    failed: list[Exception] = []
    turns = anyio.CapacityLimiter(most)

    async def read_one(number: int, place: Place) -> None:
        try:
            async with turns:
                found[number] = await read(place)
        except Exception as error:  # noqa: BLE001 -- raised below, without a group around it
            failed.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number, place in enumerate(places):
            tasks.start_soon(read_one, number, place)
    if failed:
        raise failed[0]
    return [found[number] for number in range(len(places))]
