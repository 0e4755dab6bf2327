"""Reads, writes and deletes Secrets. A write is one request, and affects only the object that was read.

The content never appears in an error, a log message or a representation.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgrole_controller.core.connection_secret import SecretContent
from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import NAMESPACE_GOES, ApiError, BadStream, KubeError, TooManyFields, Unreachable
from pgrole_controller.kube.resource import JSON, SECRETS
from pgrole_controller.kube.server_side_apply import MANAGER
from pgrole_controller.kube.stored_object import LAST_APPLIED, OWN_PREFIX, Stored, pack_metadata
from pgrole_controller.kube.unvalidated import read_json

STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

_UNSHOWN = (
    "the API server's message is not shown, because it may quote the Secret: check the controller's permissions, and "
    "quotas and admission policies in the Secret's namespace"
)
#: StatusReason in k8s.io/apimachinery/pkg/apis/meta/v1. An admission webhook may answer with any other text.
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


#: Maximum number of fields of a Secret that is read, managedFields among them. A Secret can have 110,000 keys, which
#: take longer to parse and to hash than one callback may.
MOST_FIELDS = 20_000
_FIELD = b'":'


class NotWritable(KubeError):
    """The Secret cannot be written as desired in its present state; the message says what to do."""


@dataclass(frozen=True, slots=True)
class OwnerReference:
    kind: str
    api_version: str
    name: str
    uid: str
    controller: bool = False


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret with its content: keep it no longer than needed.

    `annotations` lack kubectl's copy of the whole object. `own_labels` and `own_annotations` are the names written by
    this controller and by no one else since.
    """

    key: Key
    uid: str
    version: str
    type: str
    immutable: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owners: tuple[OwnerReference, ...]
    data: Mapping[str, bytes] = field(repr=False)
    own_labels: frozenset[str] = frozenset()
    own_annotations: frozenset[str] = frozenset()
    deletion_timestamp: str | None = None

    @property
    def terminating(self) -> bool:
        return self.deletion_timestamp is not None


async def read_secret(client: Client, key: Key) -> Secret | None:
    """Reads a Secret; None if it does not exist. Raises ApiError, Unreachable, BadStream, among them TooManyFields."""
    try:
        answer = await client.request("GET", SECRETS.path(key.namespace, key.name))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    if answer.count(_FIELD) > MOST_FIELDS:
        message = f'Secret "{key.name}" has more than {MOST_FIELDS:,} fields: delete keys, labels or annotations'
        raise TooManyFields(message)
    return _take(answer)


async def write_secret(client: Client, key: Key, owner: Stored, content: SecretContent, seen: Secret | None) -> Secret:
    """Writes the Secret in one request, unless it already is as desired; returns the resulting Secret.

    It gets exactly `content.data` and is controlled by `owner`, which replaces an owner of the same kind and name;
    other references are kept. Others' labels and annotations are kept. Own ones that are no longer desired are removed,
    and so is anything that others wrote under pgrole.dev/.

    `seen` None: the Secret does not exist; one created meanwhile is not touched. Otherwise only that version of that
    object is changed. Raises ApiError (409 if it has changed since, 404 if it was deleted; without the API server's
    message), Unreachable, BadStream, and NotWritable if someone must act first.
    """
    reference = _refer(owner)
    if seen is None:
        whole = _whole(key, reference, content)
        answer = await _send(client, "POST", SECRETS.path(key.namespace), whole, JSON)
    else:
        _check(seen, reference)
        patch = _patch(seen, reference, content)
        path = SECRETS.path(key.namespace, key.name)
        answer = await _send(client, "PATCH", path, patch, STRATEGIC_MERGE_PATCH)
    return _take(answer)


async def delete_secret(client: Client, key: Key, uid: str, version: str) -> bool:
    """Deletes that version of that object. Returns False if it no longer exists. Raises ApiError, Unreachable."""
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
    """Returns what a metadata-only reflector keeps of it, to update the store ahead of the watch."""
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
    """Raises NotWritable if the Secret cannot become ours."""
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
    """Tells whether both refer to one name, in any version of the API group; the object may have been created again."""
    groups = [reference.api_version.rpartition("/")[0] for reference in (one, other)]
    return groups[0] == groups[1] and (one.kind, one.name) == (other.kind, other.name)


def _whole(key: Key, reference: OwnerReference, content: SecretContent) -> dict[str, Any]:
    return {
        "apiVersion": SECRETS.api_version,
        "kind": "Secret",
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "labels": dict(content.labels),
            "annotations": dict(content.annotations),
            "ownerReferences": [_dump(reference)],
        },
        "type": "Opaque",
        "data": _encode(content.data),
    }


def _patch(seen: Secret, reference: OwnerReference, content: SecretContent) -> dict[str, Any]:
    """Builds a strategic merge patch: null removes, references are merged by uid, and anything not listed is kept.

    Server-side apply cannot remove a key of `data` that someone else added.
    """
    stale = [one.uid for one in seen.owners if one.uid != reference.uid and _is_same_name(one, reference)]
    former = seen.own_annotations | {name for name in seen.annotations if name.startswith(OWN_PREFIX)}
    return {
        "metadata": {
            "uid": seen.uid,
            "resourceVersion": seen.version,
            "labels": dict.fromkeys(seen.own_labels) | dict(content.labels),
            "annotations": dict.fromkeys(former) | dict(content.annotations),
            "ownerReferences": [*({"$patch": "delete", "uid": uid} for uid in stale), _dump(reference)],
        },
        "data": dict.fromkeys(seen.data) | _encode(content.data),
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
    """Sends a request, and raises errors without their text: the API server may quote the content it refuses."""
    failed: ApiError | Unreachable
    try:
        return await client.request(method, path, query={"fieldManager": MANAGER}, body=body, content_type=content_type)
    except ApiError as error:
        reason, causes = error.reason if error.reason in _REASONS else "Refused", error.causes & {NAMESPACE_GOES}
        failed = ApiError(error.status, reason, _UNSHOWN, error.retry_after, causes)
    except Unreachable as error:
        # The cause's message contains an answer that is not HTTP.
        failed = error if error.__cause__ is None else Unreachable(f"{method} {path}: {type(error.__cause__).__name__}")
    # Outside `except`, or the original error would become its context.
    raise failed


def _take(answer: bytes) -> Secret:
    secret = _parse(answer)
    if secret is None:
        message = "the API server's answer is not a Secret"
        raise BadStream(message)
    return secret


def _parse(answer: bytes) -> Secret | None:
    """Returns None if the answer is not a Secret: a JSONDecodeError would carry the whole text."""
    try:
        whole = read_json(answer)
        metadata = whole["metadata"]
        annotations = metadata.get("annotations") or {}
        own_labels, own_annotations = (_find_own(metadata, kind) for kind in ("f:labels", "f:annotations"))
        return Secret(
            key=Key(metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            version=metadata["resourceVersion"],
            type=whole.get("type", "Opaque"),
            immutable=bool(whole.get("immutable")),
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
    """Returns the names that only this manager has written, according to managedFields."""
    own: set[str] = set()
    others: set[str] = set()
    for entry in metadata.get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get(kind) or {}
        names = {name.removeprefix("f:") for name in fields if name.startswith("f:")}
        (own if entry.get("manager") == MANAGER else others).update(names)
    return frozenset(own - others)
