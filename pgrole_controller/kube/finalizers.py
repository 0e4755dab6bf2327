"""The finalizer that lets a role be dropped before its object goes."""

from typing import Any

from pgrole_controller.kube.client import APPLY, JSON_PATCH, Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import Resource
from pgrole_controller.kube.store import Stored, pack, parse

FINALIZER = "pgrole.dev/drop"
MANAGER = "pgrole-controller-finalizer"


async def apply_finalizer(
    client: Client, resource: Resource, stored: Stored, present: bool, *, finalizer: str = FINALIZER
) -> Stored | None:
    """Sets or removes the finalizer; returns the object as it is then, None when that object (by uid) is gone.

    An apply to an object that is gone would create it anew, without a spec; the uid forbids that.
    Raises BadStream, and ApiError, among others when a terminating object should get a finalizer (Kubernetes refuses
    that).
    """
    metadata: dict[str, Any] = {"name": stored.key.name, "uid": stored.uid}
    if stored.key.namespace:
        metadata["namespace"] = stored.key.namespace
    if present:
        metadata["finalizers"] = [finalizer]
    body = {
        "apiVersion": resource.api_version,
        "kind": stored.object()["kind"],
        "metadata": metadata,
    }
    path = resource.path(stored.key.namespace, stored.key.name)
    try:
        answer = await client.request(
            "PATCH",
            path,
            query={"fieldManager": MANAGER, "force": "true"},
            body=body,
            content_type=APPLY,
        )
    except ApiError as error:
        # A uid that no object has is a conflict; that of an earlier object is an invalid change of uid.
        if error.status == 404 or (error.status in {409, 422} and await _is_gone(client, path, stored.uid)):
            return None
        raise
    applied = parse(answer)
    left = applied["metadata"].get("finalizers", [])
    if present or finalizer not in left:
        return pack(applied)
    return await _take_out(client, path, applied, [name for name in left if name != finalizer])


async def _is_gone(client: Client, path: str, uid: str) -> bool:
    try:
        found = parse(await client.request("GET", path))
    except ApiError as error:
        if error.status == 404:
            return True
        raise
    return bool(found["metadata"]["uid"] != uid)


async def _take_out(client: Client, path: str, applied: dict[str, Any], left: list[str]) -> Stored | None:
    """Another field manager wrote our finalizer too (a restored backup): giving up ours does not remove it."""
    metadata = applied["metadata"]
    try:
        answer = await client.request(
            "PATCH",
            path,
            body=[
                {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
                {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                {"op": "replace", "path": "/metadata/finalizers", "value": left},
            ],
            content_type=JSON_PATCH,
        )
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return pack(parse(answer))
