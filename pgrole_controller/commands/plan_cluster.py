"""What plan and diff read in the cluster: PgRoles, their namespaces and PgServers. Nothing is watched or written."""

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pgrole_controller.commands.server_reading import (
    NAMESPACES_AT_ONCE,
    ClusterChoice,
    ServerChoice,
    open_cluster,
    read_each,
)
from pgrole_controller.core.drift_record import read_moment
from pgrole_controller.core.request import Key
from pgrole_controller.kube.contexts import read_namespace
from pgrole_controller.kube.errors import ApiError, BadStream, NotConfigured, WrongKubeconfig
from pgrole_controller.kube.listing import list_objects
from pgrole_controller.kube.resource import NAMESPACES, PGROLES
from pgrole_controller.kube.unvalidated import mapping, parse
from pgrole_controller.settings import DSN

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class ListedNamespace:
    """`labels` None: they may not be read."""

    uid: str = ""
    labels: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """`roles`: PgRoles as the API server stores them. `notes`: what could not be read."""

    roles: dict[Key, dict[str, Any]] = field(default_factory=dict)
    namespaces: dict[str, ListedNamespace] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def current_namespace(choice: ClusterChoice) -> str:
    """The namespace asked for, else that of the pod or the kubeconfig's context. Raises NotConfigured."""
    return choice.namespace or read_namespace(choice.kubeconfig, choice.context) or DEFAULT_NAMESPACE


async def open_client(stack: AsyncExitStack, choice: ServerChoice) -> "Client":
    """Raises NotConfigured."""
    try:
        return await stack.enter_async_context(open_cluster(choice.cluster))
    except NotConfigured as error:
        if choice.dsn is not None or isinstance(error, WrongKubeconfig):
            raise
        text = f"no server: set {DSN.variable}, or name the cluster of its PgServer ({error})"
        raise NotConfigured(text) from error


async def read_cluster(client: "Client", namespaces: Collection[str] | None, *, required: bool) -> ClusterView:
    """The PgRoles of these namespaces (None: all) with their namespaces. `required` False: a cluster without the CRDs,
    or a login that may not list PgRoles, has none, with a note.

    Raises ApiError, Unreachable, BadStream.
    """
    places: Sequence[str | None] = (None,) if namespaces is None else sorted(namespaces)
    roles: dict[Key, dict[str, Any]] = {}
    notes: list[str] = []
    listed = await read_each(places, lambda place: _list_roles(client, place, required=required), NAMESPACES_AT_ONCE)
    for place, some in zip(places, listed, strict=True):
        if some is None:
            where = f" in namespace {place}" if place else ""
            notes.append(f"PgRoles{where} not read, since you may not list them: claims decide whose role is whose")
        for obj in some or ():
            metadata = mapping(obj.get("metadata"))
            roles[Key(str(metadata.get("namespace", "")), str(metadata.get("name", "")))] = obj
    names = sorted({key.namespace for key in roles} | set(namespaces or ()))
    found = await read_each(names, lambda name: _read_namespace(client, name), NAMESPACES_AT_ONCE)
    notes += [
        f"namespace {name} not read, since it does not exist or you may not read it"
        for name, namespace in zip(names, found, strict=True)
        if namespace.labels is None
    ]
    return ClusterView(roles, dict(zip(names, found, strict=True)), tuple(notes))


async def _list_roles(client: "Client", namespace: str | None, *, required: bool) -> list[dict[str, Any]] | None:
    """Returns None if the login may not list them, and none of a cluster without the CRDs, unless `required`."""
    try:
        return await list_objects(client, PGROLES, namespace)
    except ApiError as error:
        if required or error.status not in (403, 404):
            raise
        return None if error.status == 403 else []


async def _read_namespace(client: "Client", name: str) -> ListedNamespace:
    try:
        metadata = mapping(parse(await client.request("GET", NAMESPACES.path(name=name))).get("metadata"))
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return ListedNamespace()
    uid = metadata.get("uid")
    if not isinstance(uid, str):
        raise BadStream("the API server's answer is not a namespace: metadata.uid is missing")
    return ListedNamespace(uid, {str(key): str(value) for key, value in mapping(metadata.get("labels")).items()})


def created_at(obj: dict[str, Any]) -> datetime | None:
    """metadata.creationTimestamp; None if it is not a time."""
    return read_moment(mapping(obj.get("metadata")).get("creationTimestamp"))
