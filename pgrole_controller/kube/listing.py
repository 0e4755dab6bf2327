"""Lists a resource once, in pages. The controller watches instead: see reflector."""

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from pgrole_controller.kube.errors import AnswerTooLong, ApiError
from pgrole_controller.kube.resource import Resource
from pgrole_controller.kube.unvalidated import mapping, parse, sequence

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

#: Objects of one answer. Larger pages are hardly faster, and their JSON is held at once.
PAGE = 200


async def list_pages(
    client: "Client", resource: Resource, namespace: str | None, query: Mapping[str, str] | None = None
) -> AsyncIterator[list[dict[str, Any]]]:
    """The objects of a namespace (None: all), a page at a time. If reading them takes longer than the API server keeps
    one state (minutes), the rest is of a later one. Raises ApiError, Unreachable, BadStream.
    """
    token, limit = "", PAGE
    while True:
        asked = {"limit": str(limit), **(query or {})} | ({"continue": token} if token else {})
        try:
            answer = parse(await client.request("GET", resource.path(namespace), query=asked))
        except AnswerTooLong:
            if limit == 1 or "limit" in (query or {}):
                raise
            limit //= 2
            continue
        except ApiError as error:
            if error.status != 410 or not token or error.resume in ("", token):
                raise
            token = error.resume
            continue
        yield [mapping(one) for one in sequence(answer.get("items"))]
        token = str(mapping(answer.get("metadata")).get("continue") or "")
        if not token:
            return


async def list_objects(
    client: "Client", resource: Resource, namespace: str | None, query: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Raises ApiError, Unreachable, BadStream."""
    return [one async for page in list_pages(client, resource, namespace, query) for one in page]
