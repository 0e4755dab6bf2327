"""Server-side apply: status and finalizer, each by one field manager, forced, and only onto the object that was read.

The finalizer lets a role be dropped before its object goes.
"""

import json
from collections.abc import Mapping
from typing import Any

from pgrole_controller.kube.client import APPLY, JSON_PATCH, Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import Resource
from pgrole_controller.kube.store import Stored, pack, parse

MANAGER = "pgrole-controller"


async def apply_status(
    client: Client,
    resource: Resource,
    stored: Stored,
    status: dict[str, Any],
    *,
    manager: str = MANAGER,
) -> Stored:
    """Makes `status` the whole of what this manager says; returns the object as it is then.

    Raises BadStream, and ApiError: 409 when the object is not as it was read (by uid and version) any more, 404 when it
    is gone.
    """
    read = stored.object()
    metadata = {
        "name": stored.key.name,
        "uid": stored.uid,
        "resourceVersion": stored.resource_version,
    }
    if stored.key.namespace:
        metadata["namespace"] = stored.key.namespace
    answer = await client.request(
        "PATCH",
        resource.path(stored.key.namespace, stored.key.name, "status"),
        query={"fieldManager": manager, "force": "true"},
        body={
            "apiVersion": resource.api_version,
            "kind": read["kind"],
            "metadata": metadata,
            "status": status,
        },
        content_type=APPLY,
    )
    return pack(parse(answer))


def unchanged(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    """Whether `new` says what `old` said, so that nothing need be written.

    Absent and null are one; conditions compare by type, whatever their order, and a lastTransitionTime alone is no
    change, since it only tells when `status` changed.
    """
    return old is not None and (_encode(old) == _encode(new) or _meaning(old) == _meaning(new))


#: Equal texts mean the same, at a tenth of the cost.
_encode = json.JSONEncoder(sort_keys=True).encode


def _meaning(value: object) -> object:
    if isinstance(value, Mapping):
        return {
            key: _conditions(item) if key == "conditions" and isinstance(item, list) else _meaning(item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list | tuple):
        return [_meaning(item) for item in value]
    # In Python True == 1: a flag that became a number is a change.
    return ("bool", value) if isinstance(value, bool) else value


def _conditions(conditions: list[Any]) -> object:
    said = []
    for condition in conditions:
        if not isinstance(condition, Mapping):
            return _meaning(conditions)
        said.append({key: _meaning(item) for key, item in condition.items() if key != "lastTransitionTime"})
    return sorted(said, key=lambda meaning: str(meaning.get("type")))


FINALIZER = "pgrole.dev/drop"
FINALIZER_MANAGER = "pgrole-controller-finalizer"


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
            query={"fieldManager": FINALIZER_MANAGER, "force": "true"},
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
