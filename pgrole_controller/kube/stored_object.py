"""One object of the API server as it is stored: compressed bytes and a few strings, without what no one reads."""

import json
import sys
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from pgrole_controller.core.connection_secret import HASH
from pgrole_controller.core.request import Key
from pgrole_controller.kube.unvalidated import limit_depth, mapping, metadata_of, sequence

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
OWN_PREFIX = "pgrole.dev/"

_OWN_KINDS = ("PgRole", "PgServer")

#: Maximum length kept of the hash annotation: anyone may write up to 256 KiB of annotations on a Secret.
_HASH_KEPT = 128
_OWNERS_KEPT = 8

#: Limits of cached parsed objects, in bytes of JSON: in total, and for one. Parsed, they take several times as much.
PARSED_BYTES = 2**17
PARSED_LARGEST = 2**14


class ParseCache:
    """Caches the objects parsed last, by body, because each is requested several times within moments.

    Limited by the size of the uncompressed JSON, in total and per object (`largest`), so large or highly compressed
    objects cannot fill the memory.
    """

    def __init__(self, most: int = PARSED_BYTES, largest: int = PARSED_LARGEST) -> None:
        self._most = most
        self._largest = largest
        self._size = 0
        self._kept: OrderedDict[bytes, tuple[dict[str, Any], int]] = OrderedDict()

    def get(self, body: bytes) -> dict[str, Any]:
        known = self._kept.get(body)
        if known is not None:
            self._kept.move_to_end(body)
            return known[0]
        text = zlib.decompress(body)
        parsed: dict[str, Any] = json.loads(text)
        self.put(body, parsed, len(text))
        return parsed

    def put(self, body: bytes, parsed: dict[str, Any], size: int) -> None:
        """Caches what `body` contains; `size` is its uncompressed size in bytes."""
        if size > self._largest or body in self._kept:
            return
        self._kept[body] = parsed, size
        self._size += size
        while self._size > self._most:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Stored:
    key: Key  # namespace "" when cluster-scoped
    uid: str
    resource_version: str
    body: bytes  # compressed JSON: of `pack` or of `pack_metadata`
    created: str = ""  # creationTimestamp; only from `pack`

    def object(self) -> dict[str, Any]:
        """Returns the parsed object. It is shared: do not change it, and keep it no longer than needed."""
        return _parsed.get(self.body)

    def parse(self) -> dict[str, Any]:
        """Returns a parsed object of the caller's own. Any thread may call it."""
        parsed: dict[str, Any] = json.loads(zlib.decompress(self.body))
        return parsed

    def is_same(self, other: "Stored") -> bool:
        return (self.uid, self.resource_version) == (other.uid, other.resource_version)


_parsed = ParseCache()


def pack(obj: dict[str, Any], *, api_version: str = "", kind: str = "") -> Stored:
    """Packs an object for the store, without managedFields, kubectl's copy and what `_drop_unread` drops, all of which
    is removed in place. `object()` may return the argument itself, so the caller must not use it any more.

    `api_version` and `kind` are for items of a list, which may lack them. Raises ValueError if it is not an object.
    """
    metadata = metadata_of(obj)
    metadata.pop("managedFields", None)
    mapping(metadata.get("annotations")).pop(LAST_APPLIED, None)
    if obj.get("kind", kind) in _OWN_KINDS:
        _drop_unread(metadata)
    if "kind" not in obj and kind:
        obj = {"apiVersion": api_version, "kind": kind, **obj}
    obj = limit_depth(obj)
    identity, text = _identify(metadata), _write(obj)
    body = zlib.compress(text, level=1)
    _parsed.put(body, obj, len(text))
    return Stored(*identity, body, str(metadata.get("creationTimestamp") or ""))


def _drop_unread(metadata: dict[str, Any]) -> None:
    """Drops what no one reads: a tenant may store a megabyte of it, and each change has it parsed several times."""
    for name in ("labels", "ownerReferences"):
        metadata.pop(name, None)
    if finalizers := sequence(metadata.get("finalizers")):
        metadata["finalizers"] = [name for name in finalizers if f".{OWN_PREFIX}" in f".{name}"]


def pack_metadata(obj: dict[str, Any]) -> Stored:
    """Packs only what tells whose object it is, never its content, even if the API server sent it.

    The body is `{"metadata": {…}}` with deletionTimestamp and, if annotation pgrole.dev/hash exists, that and the first
    ownerReferences. Absent parts are omitted. Raises ValueError if it is not an object.
    """
    metadata = metadata_of(obj)
    annotations = mapping(metadata.get("annotations"))
    kept: dict[str, Any] = {"deletionTimestamp": metadata.get("deletionTimestamp")}
    if HASH in annotations:
        kept["annotations"] = {HASH: str(annotations[HASH])[:_HASH_KEPT]}
        kept["ownerReferences"] = sequence(metadata.get("ownerReferences"))[:_OWNERS_KEPT]
    kept = limit_depth({name: value for name, value in kept.items() if value})
    return Stored(*_identify(metadata), _compress({"metadata": kept}) if kept else _NOTHING_KEPT)


def identify(obj: dict[str, Any]) -> tuple[Key, str, str]:
    """Returns the object's key, uid and resourceVersion. Raises ValueError if it is not an object."""
    return _identify(metadata_of(obj))


def _identify(metadata: dict[str, Any]) -> tuple[Key, str, str]:
    for part in ("name", "uid", "resourceVersion"):
        if not isinstance(metadata.get(part), str):
            raise ValueError(f"an object without metadata.{part}")
    key = Key(sys.intern(metadata.get("namespace", "")), metadata["name"])
    return key, metadata["uid"], metadata["resourceVersion"]


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _write(obj: dict[str, Any]) -> bytes:
    return _encode(obj).encode()


def _compress(obj: dict[str, Any]) -> bytes:
    return zlib.compress(_write(obj), level=1)


_NOTHING_KEPT = _compress({"metadata": {}})  # shared: most Secrets of a cluster are not ours
