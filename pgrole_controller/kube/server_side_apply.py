"""Server-side apply of status and finalizers, forced, each with a field manager of its own.

A write applies only to the object that was read, identified by uid. The finalizer lets the controller drop a role
before its object disappears.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import APPLY, JSON_PATCH, Resource
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.kube.unvalidated import parse

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

MANAGER = "pgrole-controller"


async def apply_status(client: "Client", resource: Resource, stored: Stored, status: dict[str, Any]) -> Stored:
    """Makes `status` the object's whole status; returns the resulting object.

    What another field manager wrote too (a restored backup, an editor) stays when it is no longer applied, and may make
    the result invalid. Then a second request replaces the status. One that still says more afterwards has defaults, or
    is changed by an admission policy.

    Raises BadStream, and ApiError: 409 if the object is no longer the one that was read (by uid and version), 404 if it
    no longer exists.
    """
    read = stored.object()
    metadata = {
        "name": stored.key.name,
        "uid": stored.uid,
        "resourceVersion": stored.resource_version,
    }
    if stored.key.namespace:
        metadata["namespace"] = stored.key.namespace
    path = resource.path(stored.key.namespace, stored.key.name, "status")
    try:
        answer = await client.request(
            "PATCH",
            path,
            query={"fieldManager": MANAGER, "force": "true"},
            body={
                "apiVersion": resource.api_version,
                "kind": read["kind"],
                "metadata": metadata,
                "status": status,
            },
            content_type=APPLY,
        )
    except ApiError as error:
        if error.status != 422 or not _says_more(read.get("status"), status):
            raise
        return await _replace(client, path, stored.resource_version, "/status", status)
    applied = parse(answer)
    if not _says_more(applied.get("status"), status):
        return pack(applied)
    return await _replace(client, path, applied["metadata"]["resourceVersion"], "/status", status)


def _says_more(stored: object, sent: object) -> bool:
    """Whether `stored` has something that `sent` lacks. What the API server pruned or normalised does not count: an
    older CRD lacks it.
    """
    if isinstance(stored, Mapping) and isinstance(sent, Mapping):
        return any(
            value is not None and (sent.get(name) is None or _says_more(value, sent[name]))
            for name, value in stored.items()
        )
    if isinstance(stored, list) and isinstance(sent, list | tuple):
        return len(stored) > len(sent) or any(map(_says_more, stored, sent))
    return False


async def _replace(client: "Client", path: str, version: str, pointer: str, value: object) -> Stored:
    """Replaces one part of an object, whoever owns it; returns the resulting object. Raises BadStream, and ApiError:
    409 if the object has another version by now, 404 if it no longer exists.
    """
    answer = await client.request(
        "PATCH",
        path,
        query={"fieldManager": MANAGER},
        body=[
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": pointer, "value": value},
        ],
        content_type=JSON_PATCH,
    )
    return pack(parse(answer))


def unchanged(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    """Tells whether `new` says the same as `old`, so that no write is needed.

    Absent and null are equal. Conditions are compared by type in any order, and without lastTransitionTime, which only
    tells when `status` changed.
    """
    if old is None or _present(old) != _present(new):
        return False
    return _encode(old) == _encode(new) or _meaning(old) == _meaning(new)


def _present(value: Mapping[str, Any]) -> set[str]:
    return {name for name, item in value.items() if item is not None}


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
    # In Python True == 1, but a flag that became a number is a change.
    return ("bool", value) if isinstance(value, bool) else value


def _conditions(conditions: list[Any]) -> object:
    meanings = []
    for condition in conditions:
        if not isinstance(condition, Mapping):
            return _meaning(conditions)
        meanings.append({key: _meaning(item) for key, item in condition.items() if key != "lastTransitionTime"})
    return sorted(meanings, key=lambda meaning: str(meaning.get("type")))


FINALIZER = "pgrole.dev/drop"
FINALIZER_MANAGER = "pgrole-controller-finalizer"


async def apply_finalizer(
    client: "Client",
    resource: Resource,
    stored: Stored,
    present: bool,
    *,
    finalizer: str = FINALIZER,
    manager: str = FINALIZER_MANAGER,
) -> Stored | None:
    """Sets or removes the finalizer; returns the resulting object, or None if that object (by uid) no longer exists.
    Each finalizer of an object needs a field manager of its own.

    Applying to a deleted object would create it again without a spec; sending the uid prevents this. Raises BadStream,
    and ApiError, among others if a terminating object is to get a finalizer, which Kubernetes rejects.
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
            query={"fieldManager": manager, "force": "true"},
            body=body,
            content_type=APPLY,
        )
    except ApiError as error:
        # A uid that no object has is a conflict; the uid of an earlier object is an invalid change.
        if error.status == 404 or (error.status in {409, 422} and await _is_gone(client, path, stored.uid)):
            return None
        raise
    applied = parse(answer)
    left = applied["metadata"].get("finalizers", [])
    if present or finalizer not in left:
        return pack(applied)
    # Another field manager wrote it too (a restored backup): giving up our ownership does not remove it.
    kept = [name for name in left if name != finalizer]
    try:
        return await _replace(client, path, applied["metadata"]["resourceVersion"], "/metadata/finalizers", kept)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def _is_gone(client: "Client", path: str, uid: str) -> bool:
    try:
        found = parse(await client.request("GET", path))
    except ApiError as error:
        if error.status == 404:
            return True
        raise
    return bool(found["metadata"]["uid"] != uid)
