"""Status by server-side apply: one field manager, forced, and only onto the very object that was read."""

import json
from collections.abc import Mapping
from typing import Any

from pgrole_controller.kube.client import APPLY, Client
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
