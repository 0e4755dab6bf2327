"""Secrets: read, written whole in one request, and deleted, each only as the very object that was seen.

The content is never in an error, a log message or a representation.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgrole_controller.core.request import Key
from pgrole_controller.kube.apply import MANAGER
from pgrole_controller.kube.client import JSON, Client
from pgrole_controller.kube.errors import ApiError, BadStream, KubeError, Unreachable
from pgrole_controller.kube.resource import SECRETS
from pgrole_controller.kube.store import LAST_APPLIED, OWN_PREFIX, Stored, pack_metadata

STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

_UNSHOWN = (
    "the API server's message is not shown, because it may quote the Secret: check the controller's rights, and "
    "quotas and admission policies in the Secret's namespace"
)
#: k8s.io/apimachinery/pkg/apis/meta/v1: StatusReason. An admission webhook may answer with any other text.
_REASONS = frozenset(
    {
        "AlreadyExists",
        "BadRequest",
        "Conflict",
        "Expired",
        "Forbidden",
        "Gone",
        "InternalError",
        "Invalid",
        "MethodNotAllowed",
        "NotAcceptable",
        "NotFound",
        "RequestEntityTooLarge",
        "ServerTimeout",
        "ServiceUnavailable",
        "StoreReadError",
        "Timeout",
        "TooManyRequests",
        "Unauthorized",
        "UnsupportedMediaType",
    }
)


class NotWritable(KubeError):
    """A Secret that cannot become what is desired while it exists; the message says what to do."""


@dataclass(frozen=True, slots=True)
class OwnerReference:
    kind: str
    api_version: str
    name: str
    uid: str
    controller: bool = False


@dataclass(frozen=True, slots=True)
class Secret:
    """With its content: keep it no longer than needed.

    `annotations` are without kubectl's copy of the whole. `own_labels` and `own_annotations` are the names of those
    that were written here and that nobody else has written since.
    """

    key: Key
    uid: str
    version: str
    type: str
    immutable: bool
    terminating: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owners: tuple[OwnerReference, ...]
    data: Mapping[str, bytes] = field(repr=False)
    own_labels: frozenset[str] = frozenset()
    own_annotations: frozenset[str] = frozenset()
    deletion_timestamp: str | None = None


async def read_secret(client: Client, key: Key) -> Secret | None:
    """None when there is none. Raises ApiError, Unreachable, BadStream."""
    try:
        answer = await client.request("GET", SECRETS.path(key.namespace, key.name))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return _take(answer)


async def write_secret(
    client: Client,
    key: Key,
    owner: Stored,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    data: Mapping[str, bytes],
    seen: Secret | None,
) -> Secret:
    """Makes the Secret so, in one request; returns it as it is then. Nothing is written when it is so already.

    It has exactly `data` and is controlled by `owner`; another `owner` of that kind and name is replaced, other
    references are left. Labels and annotations of others are left, own ones that are no longer wanted go, and with them
    whatever anybody wrote under pgrole.dev/.

    `seen` None: there is none, and one that appeared meanwhile is not touched. Else only that object in that version.
    Raises ApiError (409 when it is not as it was seen any more, 404 when it is gone; without the API
    server's message), Unreachable, BadStream, and NotWritable when somebody else would have to act first.
    """
    reference = _refer(owner)
    if seen is None:
        whole = _whole(key, reference, labels, annotations, data)
        answer = await _send(client, "POST", SECRETS.path(key.namespace), whole, JSON)
    else:
        _check(seen, reference)
        patch = _patch(seen, reference, labels, annotations, data)
        path = SECRETS.path(key.namespace, key.name)
        answer = await _send(client, "PATCH", path, patch, STRATEGIC_MERGE_PATCH)
    return _take(answer)


async def delete_secret(client: Client, key: Key, uid: str, version: str) -> bool:
    """False when it is gone, or not that object in that version any more. Raises ApiError, Unreachable."""
    try:
        await client.request(
            "DELETE",
            SECRETS.path(key.namespace, key.name),
            body={"preconditions": {"uid": uid, "resourceVersion": version}},
        )
    except ApiError as error:
        if error.status in {404, 409}:
            return False
        raise
    return True


def stored_of(secret: Secret) -> Stored:
    """What a metadata-only reflector keeps of it: for the store, ahead of the watch."""
    metadata = {
        "namespace": secret.key.namespace,
        "name": secret.key.name,
        "uid": secret.uid,
        "resourceVersion": secret.version,
        "annotations": secret.annotations,
        "ownerReferences": [
            {"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid}
            | ({"controller": True} if one.controller else {})
            for one in secret.owners
        ],
        "deletionTimestamp": secret.deletion_timestamp,
    }
    return pack_metadata({"metadata": metadata})


def _refer(owner: Stored) -> OwnerReference:
    whole = owner.object()
    return OwnerReference(whole["kind"], whole["apiVersion"], owner.key.name, owner.uid, controller=True)


def _check(seen: Secret, reference: OwnerReference) -> None:
    """Raises NotWritable."""
    if seen.immutable:
        message = f"Secret {seen.key} is immutable: delete it, and the controller creates it again"
        raise NotWritable(message)
    if seen.type != "Opaque":
        message = (
            f"Secret {seen.key} is of type {seen.type}, which cannot become Opaque: "
            f"delete it, and the controller creates it again"
        )
        raise NotWritable(message)
    for other in seen.owners:
        if other.controller and other.uid != reference.uid and not _is_same_name(other, reference):
            message = f"Secret {seen.key} is controlled by {other.kind} {other.name}: use another name"
            raise NotWritable(message)


def _is_same_name(one: OwnerReference, other: OwnerReference) -> bool:
    """Whether both name one object, perhaps deleted and made again; a group's versions are one."""
    groups = [reference.api_version.rpartition("/")[0] for reference in (one, other)]
    return groups[0] == groups[1] and (one.kind, one.name) == (other.kind, other.name)


def _whole(
    key: Key,
    reference: OwnerReference,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    data: Mapping[str, bytes],
) -> dict[str, Any]:
    return {
        "apiVersion": SECRETS.api_version,
        "kind": "Secret",
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "labels": dict(labels),
            "annotations": dict(annotations),
            "ownerReferences": [_dump(reference)],
        },
        "type": "Opaque",
        "data": _encode(data),
    }


def _patch(
    seen: Secret,
    reference: OwnerReference,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    data: Mapping[str, bytes],
) -> dict[str, Any]:
    """A strategic merge patch: null removes, references are merged by uid, what is not named is left.

    Not server-side apply: that cannot remove a key of `data` that somebody else added.
    """
    stale = [one.uid for one in seen.owners if one.uid != reference.uid and _is_same_name(one, reference)]
    former = seen.own_annotations | {name for name in seen.annotations if name.startswith(OWN_PREFIX)}
    return {
        "metadata": {
            "uid": seen.uid,
            "resourceVersion": seen.version,
            "labels": dict.fromkeys(seen.own_labels) | dict(labels),
            "annotations": dict.fromkeys(former) | dict(annotations),
            "ownerReferences": [*({"$patch": "delete", "uid": uid} for uid in stale), _dump(reference)],
        },
        "data": dict.fromkeys(seen.data) | _encode(data),
    }


def _dump(reference: OwnerReference) -> dict[str, Any]:
    return {
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "name": reference.name,
        "uid": reference.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _encode(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: b64encode(value).decode() for name, value in data.items()}


async def _send(client: Client, method: str, path: str, body: dict[str, Any], content_type: str) -> bytes:
    """The API server quotes what it refuses, a whole patch at times: errors are raised again without its words."""
    failed: ApiError | Unreachable
    try:
        return await client.request(method, path, query={"fieldManager": MANAGER}, body=body, content_type=content_type)
    except ApiError as error:
        failed = ApiError(
            error.status, error.reason if error.reason in _REASONS else "Refused", _UNSHOWN, error.retry_after
        )
    except Unreachable as error:
        # An answer that is no HTTP is in the message of its cause.
        failed = error if error.__cause__ is None else Unreachable(f"{method} {path}: {type(error.__cause__).__name__}")
    # Outside of `except`: the error that is hidden would be its context.
    raise failed


def _take(answer: bytes) -> Secret:
    secret = _parse(answer)
    if secret is None:
        message = "the API server's answer is not a Secret"
        raise BadStream(message)
    return secret


def _parse(answer: bytes) -> Secret | None:
    """None when it is no Secret: a JSONDecodeError would carry the whole text with it."""
    try:
        whole = json.loads(answer)
        metadata = whole["metadata"]
        annotations = metadata.get("annotations") or {}
        own_labels, own_annotations = (_find_own(metadata, kind) for kind in ("f:labels", "f:annotations"))
        return Secret(
            key=Key(metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            version=metadata["resourceVersion"],
            type=whole.get("type", "Opaque"),
            immutable=bool(whole.get("immutable")),
            terminating="deletionTimestamp" in metadata,
            labels=metadata.get("labels") or {},
            annotations={name: text for name, text in annotations.items() if name != LAST_APPLIED},
            owners=tuple(_load(one) for one in metadata.get("ownerReferences") or ()),
            data={name: b64decode(value) for name, value in (whole.get("data") or {}).items()},
            own_labels=own_labels,
            own_annotations=own_annotations,
            deletion_timestamp=metadata.get("deletionTimestamp"),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _load(reference: dict[str, Any]) -> OwnerReference:
    return OwnerReference(
        kind=reference["kind"],
        api_version=reference["apiVersion"],
        name=reference["name"],
        uid=reference["uid"],
        controller=bool(reference.get("controller")),
    )


def _find_own(metadata: dict[str, Any], kind: str) -> frozenset[str]:
    """The names that managedFields say this manager, and no other, has written."""
    own: set[str] = set()
    others: set[str] = set()
    for entry in metadata.get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get(kind) or {}
        names = {name.removeprefix("f:") for name in fields if name.startswith("f:")}
        (own if entry.get("manager") == MANAGER else others).update(names)
    return frozenset(own - others)
