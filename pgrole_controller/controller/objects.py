"""An index of the PgRoles as last seen: by server, role, group and Secret; and what each of them declares."""

import heapq
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from pgrole_controller.api.reading import Invalid, read_pgrole
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.namespaces import Namespaces, NamespaceUnknown
from pgrole_controller.controller.server_config import DEFAULT_SERVER
from pgrole_controller.core.claim import Owner
from pgrole_controller.core.connection_secret import HASH
from pgrole_controller.core.deletion import add_way_out
from pgrole_controller.core.desired import desired_of, desired_role_of, proof_of
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.password import ObservedSecrets, PasswordResult, SecretVersion
from pgrole_controller.core.plan import ReassignResult
from pgrole_controller.core.policy import Policy, ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.core.state import Desired
from pgrole_controller.core.status import is_contested, is_ready
from pgrole_controller.kube.server_side_apply import FINALIZER
from pgrole_controller.kube.store import Store, StoreChange
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.kube.unvalidated import mapping, sequence

if TYPE_CHECKING:  # imported with the first object: `api.reading`
    from pgrole_controller.api.pgrole import PgRole

#: How many objects that name the same role are read with one of them: the oldest, and all whose status proves that they
#: had it. Anyone may create thousands; among the rest, the first to claim the role has it.
RIVALS = 8

#: How many Secrets that an object no longer names are read and deleted at once. Whoever may write Secrets can give it
#: any number.
STALE = 4


def server_of(obj: dict[str, Any]) -> str:
    """The name of the object's PgServer. Accepts an object of any shape: it is validated later, by `read`."""
    reference = mapping(_spec_of(obj).get("serverRef"))
    return str(reference.get("name") or DEFAULT_SERVER)


def role_of(obj: dict[str, Any]) -> str:
    return str(_spec_of(obj).get("name") or obj["metadata"]["name"])


def _spec_of(obj: dict[str, Any]) -> dict[str, Any]:
    return mapping(obj.get("spec"))


_CONTESTED = "contested"


def index_pgrole(obj: dict[str, Any]) -> Iterator[str]:
    """Indexes an object by server, role, former role, roles to join, and Secrets, and if it is Ready or contested."""
    server = server_of(obj)
    yield _server_entry(server)
    if is_ready(obj.get("status")):
        yield _ready_entry(server)
    if is_contested(obj.get("status")):
        yield _CONTESTED
    yield _role_entry(server, role_of(obj))
    if mapping(obj.get("status")).get("role"):
        yield _had_entry(server, role_of(obj))
    for membership in sequence(_spec_of(obj).get("memberOf")):
        yield _group_entry(server, str(mapping(membership).get("role")))
    for name in set(_secrets_of(obj)) - {None}:
        yield _secret_entry(Key(obj["metadata"].get("namespace", ""), str(name)))


def index_by_owner(obj: dict[str, Any]) -> Iterator[str]:
    """Indexes a Secret that the controller wrote by the uids of its owners."""
    metadata = obj["metadata"]
    if HASH in mapping(metadata.get("annotations")):
        yield from {str(mapping(one).get("uid")) for one in sequence(metadata.get("ownerReferences"))}


def _secrets_of(obj: dict[str, Any]) -> tuple[str | None, str | None]:
    """The names of the Secret that holds the password, and of the connection Secret."""
    spec = _spec_of(obj)
    source = mapping(mapping(spec.get("password")).get("secretRef")).get("name")
    connection = mapping(spec.get("connectionSecret")).get("name")
    return (str(source) if source else None), (str(connection) if connection else None)


def names_secret(obj: dict[str, Any]) -> bool:
    return any(_secrets_of(obj))


def _secret_entry(key: Key) -> str:
    return f"secret/{key.namespace}/{key.name}"


def _server_entry(server: str) -> str:
    return f"server/{server}"


def _ready_entry(server: str) -> str:
    return f"ready/{server}"


def _role_entry(server: str, role_name: str) -> str:
    # A server's name holds no slash, a role's may hold anything.
    return f"role/{server}/{role_name}"


def _had_entry(server: str, role_name: str) -> str:
    return f"had/{server}/{role_name}"


def _group_entry(server: str, role_name: str) -> str:
    return f"group/{server}/{role_name}"


def declared_version(stored: Stored) -> tuple[Any, ...]:
    """Differs whenever anything except status does."""
    metadata = stored.object()["metadata"]
    return tuple(metadata.get(name) for name in ("uid", "generation", "deletionTimestamp", "annotations", "finalizers"))


def is_own_write(change: StoreChange) -> bool:
    """Whether only what this process wrote for the object differs: its status, its finalizer. Another change may have
    come between the last read and the answer to the write. A lost finalizer is such a change unless the object is being
    deleted: then this process removed its own.
    """
    if change.by != change.key or change.old is None or change.new is None:
        return False
    *before, had = declared_version(change.old)
    *after, has = declared_version(change.new)
    _, _, deleted_at, _ = after
    return before == after and (deleted_at is not None or set(sequence(had)) <= set(sequence(has)))


def generation_of(stored: Stored) -> int:
    return int(stored.object()["metadata"].get("generation") or 0)


NOTHING_ALLOWED = Policy(admitted=False)


@dataclass(frozen=True, slots=True)
class Target:
    """One object as it was read for one reconcile, and what its namespace is allowed.

    `stored`: None if the object does not exist; then `desired` is None too. `finalizer`: must be set (True) or removed
    (False) before anything else is done. `quiet`: the error will probably pass within moments, and is not reported.
    """

    key: Key
    stored: Stored | None
    desired: Desired | None = None
    policy: Policy = NOTHING_ALLOWED
    finalizer: bool | None = None
    error: PgRoleError | None = None
    quiet: bool = False

    @property
    def role_name(self) -> str:
        return self.desired.role.name if self.desired else ""


class Objects:
    def __init__(
        self, store: Store, secrets: Store, namespaces: Namespaces, cluster: str, namespace: str | None = None
    ) -> None:
        """`store` is indexed by `index_pgrole`; `secrets`, of metadata alone, by `index_by_owner`."""
        self.store = store
        self._secrets = secrets
        self.cluster = cluster
        self.namespaces = namespaces
        self.namespace = namespace

    def read(
        self,
        key: Key,
        server_name: str | None,
        server_policy: ServerPolicy,
        prepared: PasswordResult | ReassignResult | None = None,
    ) -> Target:
        """What the object declares for this server (None: any server); empty if it names another server.

        `prepared`: what the background did for this reconcile. Never raises: an error is in the target.
        """
        stored = self.store.get(key)
        if stored is None:
            return Target(key, None)
        obj = stored.object()
        if server_name not in (None, server_of(obj)):
            return Target(key, None)
        try:
            return self._read(key, stored, obj, server_policy, prepared)
        except PgRoleError as error:
            quiet = isinstance(error, NamespaceUnknown) and error.quiet
            return _unread(key, stored, obj, error, quiet=quiet)
        except Exception as error:  # noqa: BLE001 -- one object's error, whatever the object holds
            return _unread(key, stored, obj, contain(error, key))

    def find_unchanged(self, target: Target, version: tuple[Any, ...], server_policy: ServerPolicy) -> Stored | None:
        """The stored object of the target, if everything that it was read from is unchanged except status.

        `version`: its `declared_version` then. None also if other objects name its role, or if it owns Secrets.
        """
        desired, stored = target.desired, self.store.get(target.key)
        if desired is None or stored is None or declared_version(stored) != version:
            return None
        try:
            namespace = self.namespaces.get(stored.key, stored.uid)
        except NamespaceUnknown:
            return None
        same = namespace.uid == desired.owner.namespace_uid
        if not same or server_policy.policy(namespace.name, namespace.labels) != target.policy:
            return None
        others = self.sharing(server_of(stored.object()), desired.role.name) - {stored.key}
        return None if others or self._secrets.by_index(stored.uid) else stored

    def _read(
        self,
        key: Key,
        stored: Stored,
        obj: dict[str, Any],
        server_policy: ServerPolicy,
        prepared: PasswordResult | ReassignResult | None,
    ) -> Target:
        """Raises PgRoleError."""
        pgrole = _parse(obj)
        namespace = self.namespaces.get(key, stored.uid)
        policy = server_policy.policy(namespace.name, namespace.labels)
        owner = Owner(self.cluster, key.namespace, namespace.uid, key.name, stored.uid)
        proof = proof_of(obj.get("status") or {}, server_of(obj))
        rivals = list(self._rivals(stored, obj, server_policy))
        secrets = self._see_secrets(stored, obj)
        desired = desired_of(pgrole, owner, rivals, proof, secrets=secrets, background_result=prepared)
        held = FINALIZER in (obj["metadata"].get("finalizers") or ())
        return Target(key, stored, desired, policy, _finalizer(desired, held))

    @property
    def secrets_answered(self) -> anyio.Event:
        """Set once Secrets are listed, or the API server refused to list them."""
        return self._secrets.answered

    def covers(self, key: Key) -> bool:
        """Whether the store watches the namespace of such an object."""
        return self.namespace is None or key.namespace == self.namespace

    def sharing(self, server: str, role_name: str) -> set[Key]:
        """The objects that name this role on this server."""
        return self.store.by_index(_role_entry(server, role_name))

    def having(self, server: str, role_name: str) -> set[Key]:
        """Those of them whose status says that they had the role."""
        return self.store.by_index(_had_entry(server, role_name))

    def depending(self, old: Stored) -> set[Key]:
        """The other objects whose right to their role depends on an object that was like this before it changed."""
        obj = old.object()
        entry = _role_entry(server_of(obj), role_of(obj))
        oldest = self.store.oldest(entry, RIVALS + 1)
        counts = len(oldest) <= RIVALS or age_of(old) <= age_of(oldest[-1]) or mapping(obj.get("status")).get("role")
        return self.store.by_index(entry) - {old.key} if counts else set()

    def joining(self, server: str, role_name: str) -> set[Key]:
        """The objects whose roles are to be members of this role on this server."""
        return self.store.by_index(_group_entry(server, role_name))

    def naming(self, secret: Key) -> set[Key]:
        """The objects that read their password from this Secret, or write it as their connection Secret."""
        return self.store.by_index(_secret_entry(secret))

    def namespaces_in_use(self) -> set[str]:
        return {key.namespace for key, _ in self.store.items()}

    def in_namespace(self, namespace: str) -> list[Key]:
        return [key for key, _ in self.store.items() if key.namespace == namespace]

    def is_of_server(self, server: str, key: Key) -> bool:
        return self.store.has_index(_server_entry(server), key)

    def of_server(self, server: str) -> set[Key]:
        """The objects that name this server."""
        return self.store.by_index(_server_entry(server))

    def count(self, server: str) -> tuple[int, int]:
        """How many objects name this server, and how many of them are Ready."""
        return self.store.count_index(_server_entry(server)), self.store.count_index(_ready_entry(server))

    def count_contested(self) -> int:
        """How many objects have the reason Contested, whether because of a field or of privileges. Unlike `Contests`,
        status is rewritten when an object is suspended, and gone with the object.
        """
        return self.store.count_index(_CONTESTED)

    def server_name(self, key: Key) -> str | None:
        """The server of an object; None for an object that no longer exists."""
        stored = self.store.get(key)
        return None if stored is None else server_of(stored.object())

    def uid(self, key: Key) -> str | None:
        """The uid of an object; None for an object that no longer exists."""
        stored = self.store.get(key)
        return None if stored is None else stored.uid

    def _see_secrets(self, stored: Stored, obj: dict[str, Any]) -> ObservedSecrets:
        source, connection = _secrets_of(obj)
        namespace = stored.key.namespace
        stale = {one.name for one in self._secrets.by_index(stored.uid) if one.namespace == namespace}
        stale -= {source, connection}  # a password that was generated may be kept by its Secret
        unknown = self._secrets.refused
        if unknown is None and not self._secrets.synced.is_set():
            unknown = "they are not listed yet"
        return ObservedSecrets(
            password=self._see_secret(namespace, source),
            connection=self._see_secret(namespace, connection),
            stale=tuple(heapq.nsmallest(STALE, stale)),
            unknown=unknown,
        )

    def _see_secret(self, namespace: str, name: str | None) -> SecretVersion | None:
        stored = None if name is None else self._secrets.get(Key(namespace, name))
        return None if stored is None else SecretVersion(stored.uid, stored.resource_version)

    def _rivals(
        self, stored: Stored, obj: dict[str, Any], server_policy: ServerPolicy
    ) -> Iterator[tuple["PgRole", Policy]]:
        for other in self._find_rivals(stored, server_of(obj), role_of(obj)):
            rival = _parse_rival(other)
            namespace = self.namespaces.of_rival(other.key, stored.key) if rival else None
            if rival and namespace:
                yield rival, server_policy.policy(namespace.name, namespace.labels)

    def _find_rivals(self, stored: Stored, server: str, role_name: str) -> list[Stored]:
        """Among the objects that name the same role: the oldest ones older than this, and those that had the role."""
        oldest = self.store.oldest(_role_entry(server, role_name), RIVALS + 1)
        older = [one for one in oldest if one.key != stored.key and age_of(one) < age_of(stored)]
        had = [self.store.get(key) for key in self.having(server, role_name) - {stored.key}]
        found = [*older[:RIVALS], *(one for one in had if one is not None)]
        return list({one.key: one for one in found}.values())


def age_of(stored: Stored) -> tuple[str, str]:
    """By which the oldest object sorts first."""
    return stored.created, stored.uid


def _unread(key: Key, stored: Stored, obj: dict[str, Any], error: PgRoleError, *, quiet: bool = False) -> Target:
    """The target of an object that cannot be read, or not yet. During deletion, the error explains how to release the
    object.
    """
    if not _is_held(obj):
        return Target(key, stored, error=error, quiet=quiet)
    if _spec_of(obj).get("deletionPolicy") != "Drop" and not quiet:
        return Target(key, stored, finalizer=False, error=error)  # the author released it
    return Target(key, stored, error=add_way_out(error), quiet=quiet)


def _is_held(obj: dict[str, Any]) -> bool:
    """Whether the object is being deleted and kept by our finalizer. Accepts an object of any shape."""
    metadata = obj["metadata"]
    return metadata.get("deletionTimestamp") is not None and FINALIZER in sequence(metadata.get("finalizers"))


def _finalizer(desired: Desired, held: bool) -> bool | None:
    if desired.drop and not held and not desired.terminating:
        return True
    if held and not desired.drop and not desired.terminating:
        return False
    return None


def _parse_rival(stored: Stored) -> "PgRole | None":
    """Parses a rival. Returns None if it is invalid: then it can claim no role, and its own reconcile reports that."""
    try:
        rival = _parse(stored.object())
        with suppress(PgRoleError):
            desired_role_of(rival)
    except Exception:  # noqa: BLE001 -- contained where that object is read
        return None
    return rival


def _parse(obj: dict[str, Any]) -> "PgRole":
    try:
        return read_pgrole(obj)
    except Invalid as error:
        raise Refused(Reason.INVALID_SPEC, str(error)) from error
