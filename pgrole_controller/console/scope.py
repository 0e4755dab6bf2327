"""What a viewer may see: who the API server says they are, and which PgRoles and PgServers they may list.

RBAC has no question "which namespaces may I list": all namespaces are tried first, then those that the viewer named,
that the console was started with, and that the viewer may list.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pgrole_controller.api.validation import is_namespace_name
from pgrole_controller.console.console_arguments import split_names
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import NAMESPACES, PGROLES, PGSERVERS, SELF_ACCESS_REVIEWS, SELF_REVIEWS, Resource
from pgrole_controller.kube.unvalidated import mapping, parse_mapping, sequence

#: Maximum numbers of namespaces that are tried for one viewer, and that are watched.
MOST_TRIED = 200
MOST_WATCHED = 50
TIMEOUT = 5.0  # seconds, for one request
LONGEST_NAME = 256  # characters of a user's name

_DENIED = (403, 404)

#: Objects of a resource in a namespace; None means all namespaces, or a resource without any.
Right = tuple[Resource, str | None]


@dataclass(frozen=True, slots=True)
class ViewScope:
    """`namespaces`: None means all. `servers`: whether PgServers may be listed. `cut`: there may be more namespaces."""

    namespaces: tuple[str, ...] | None
    servers: bool
    cut: bool = False

    @property
    def rights(self) -> tuple[Right, ...]:
        """What the viewer may list."""
        places = (None,) if self.namespaces is None else self.namespaces
        roles = tuple((PGROLES, place) for place in places)
        return (*roles, (PGSERVERS, None)) if self.servers else roles


async def may_still_list(client: Client, resource: Resource, namespace: str | None) -> bool:
    """Asks without reading anything. Also True if the API server does not tell. Raises ApiError, KubeError."""
    return await _review(client, "list", resource, namespace)


async def _review(client: Client, verb: str, resource: Resource, namespace: str | None) -> bool:
    asked = {"group": resource.group, "resource": resource.plural, "verb": verb}
    body = {
        "apiVersion": SELF_ACCESS_REVIEWS.api_version,
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, **({} if namespace is None else {"namespace": namespace})}},
    }
    try:
        answer = await client.request("POST", SELF_ACCESS_REVIEWS.path(), body=body, timeout=TIMEOUT)
    except ApiError as error:
        if error.status not in _DENIED:
            raise
        return True
    return mapping(parse_mapping(answer).get("status")).get("allowed") is not False


def read_namespaces(text: str) -> tuple[str, ...]:
    """Reads names separated by commas or white space. Whatever cannot be a namespace's name is left out."""
    names = dict.fromkeys(name for name in split_names(text) if is_namespace_name(name))
    return tuple(names)[:MOST_TRIED]


async def ask_name(client: Client) -> str:
    """Returns the viewer's name; empty if the API server does not tell. Raises ApiError (401 above all), KubeError."""
    body = {"apiVersion": SELF_REVIEWS.api_version, "kind": "SelfSubjectReview"}
    try:
        answer = await client.request("POST", SELF_REVIEWS.path(), body=body, timeout=TIMEOUT)
    except ApiError as error:
        if error.status not in _DENIED:
            raise
        return ""
    name = mapping(mapping(parse_mapping(answer).get("status")).get("userInfo")).get("username")
    return name[:LONGEST_NAME] if isinstance(name, str) else ""


async def find_scope(client: Client, wanted: Iterable[str], *, refused: bool = False) -> ViewScope:
    """`refused`: a watch was, so what may be listed but not watched is left out. Raises KubeError, and ApiError for
    anything but a denial.
    """

    async def may_follow(resource: Resource, namespace: str | None) -> bool:
        if not await _try_list(client, resource, namespace):
            return False
        return not refused or await _review(client, "watch", resource, namespace)

    servers = await may_follow(PGSERVERS, None)
    if await may_follow(PGROLES, None):
        return ViewScope(None, servers)
    listed, more = await _list_namespaces(client)
    known = list(dict.fromkeys([*wanted, *listed]))
    allowed: list[str] = []
    for namespace in known[:MOST_TRIED]:
        if len(allowed) < MOST_WATCHED and await may_follow(PGROLES, namespace):
            allowed.append(namespace)
    cut = more or len(known) > MOST_TRIED or len(allowed) >= MOST_WATCHED
    return ViewScope(tuple(sorted(allowed)), servers, cut)


async def _try_list(client: Client, resource: Resource, namespace: str | None) -> bool:
    try:
        await client.request("GET", resource.path(namespace), query={"limit": "1"}, timeout=TIMEOUT)
    except ApiError as error:
        if error.status in _DENIED:
            return False
        raise
    return True


async def _list_namespaces(client: Client) -> tuple[list[str], bool]:
    """Returns the first ones, and whether there are more."""
    try:
        answer = await client.request("GET", NAMESPACES.path(), query={"limit": str(MOST_TRIED)}, timeout=TIMEOUT)
    except ApiError as error:
        if error.status in _DENIED:
            return [], False
        raise
    found = parse_mapping(answer)
    names = (mapping(mapping(item).get("metadata")).get("name") for item in sequence(found.get("items")))
    return [name for name in names if isinstance(name, str)], bool(mapping(found.get("metadata")).get("continue"))
