"""What plan and diff read in the cluster: PgRoles, their namespaces and PgServers. Nothing is watched or written."""

from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pgrole_controller.commands.arguments import ServerChoice
from pgrole_controller.commands.server_reading import open_cluster
from pgrole_controller.core.drift_record import read_moment
from pgrole_controller.core.request import Key
from pgrole_controller.kube.contexts import read_namespace
from pgrole_controller.kube.errors import ApiError, BadStream
from pgrole_controller.kube.listing import list_objects
from pgrole_controller.kube.resource import NAMESPACES, PGROLES
from pgrole_controller.kube.store import mapping, parse

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


def current_namespace(choice: ServerChoice) -> str:
    """The namespace asked for, else that of the kubeconfig's context. Raises NotConfigured."""
    return choice.namespace or read_namespace(choice.kubeconfig, choice.context) or DEFAULT_NAMESPACE


async def open_client(stack: AsyncExitStack, choice: ServerChoice) -> "Client":
    """Raises NotConfigured."""
    return await stack.enter_async_context(open_cluster(choice))


async def read_cluster(client: "Client", namespaces: Collection[str] | None, *, required: bool) -> ClusterView:
    """The PgRoles of these namespaces (None: all) with their namespaces. `required` False: a cluster without the CRDs,
    or a login that may not list PgRoles, has none, with a note.

    Raises ApiError, Unreachable, BadStream.
    """
    roles: dict[Key, dict[str, Any]] = {}
    notes: list[str] = []
    for namespace in [None] if namespaces is None else sorted(namespaces):
        try:
            for obj in await list_objects(client, PGROLES, namespace):
                metadata = mapping(obj.get("metadata"))
                roles[Key(str(metadata.get("namespace", "")), str(metadata.get("name", "")))] = obj
        except ApiError as error:
            if required or error.status not in (403, 404):
                raise
            if error.status == 403:
                where = f" in namespace {namespace}" if namespace else ""
                notes.append(f"PgRoles{where} not read, since you may not list them: claims decide whose role is whose")
    found: dict[str, ListedNamespace] = {}
    for name in sorted({key.namespace for key in roles} | set(namespaces or ())):
        found[name] = await _read_namespace(client, name)
        if found[name].labels is None:
            notes.append(f"namespace {name} not read, since it does not exist or you may not read it")
    return ClusterView(roles, found, tuple(notes))


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
