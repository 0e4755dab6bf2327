"""Password tasks: reads and writes Secrets, generates and hashes passwords.

A task runs between two reconciles of its object (`controller.background`), and its result is for the second one. A
password in clear text is held only while the task runs.

Guarantees: a Secret that does not belong to the object is never changed; the Secret is written before the database is,
so a crash at any point loses no password, and no second one is generated; a task writes and deletes no more once its
object has changed.
"""

import logging
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import anyio
import anyio.to_thread

from pgrole_controller.core.connection_secret import (
    DesiredSecret,
    RotationStamp,
    SecretContent,
    check_connection,
    inputs_digest,
    is_current,
    is_ours,
    read_stamp,
    recover_password,
    render,
    salt_of,
)
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.names import name_some
from pgrole_controller.core.password import (
    PasswordOrigin,
    PasswordResult,
    PasswordTask,
    SecretVersion,
    is_due,
    request_of,
)
from pgrole_controller.core.password_rules import LEFT_AS_IS, name_copied, name_delivery, name_source
from pgrole_controller.core.request import Key
from pgrole_controller.core.scram import SALT_BYTES, Verifier, make_verifier, read_password, verifies
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import NAMESPACE_GOES, ApiError, TooManyFields
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.kube.secrets import NotWritable, Secret, delete_secret, read_secret, stored_of, write_secret
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import OWN_PREFIX, Stored

log = logging.getLogger(__name__)

#: How many passwords are hashed at once. Each takes 1.5 ms at 4,096 iterations, up to 40 at 100,000.
HASHERS = 2

#: Types of Secrets that grant access to Kubernetes: never used as a password, and never copied.
TOKEN_TYPES = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The desired connection Secret. `content` None: it needs no write, or is left as others changed it (`spoiled`)."""

    clear: str | None = field(repr=False)
    stamp: RotationStamp
    content: SecretContent | None = None
    rotated: bool = False
    spoiled: bool = False


class _Outdated(Exception):
    """The object was changed or deleted while its task ran."""


@dataclass(frozen=True, slots=True)
class _TaskRun:
    """A task that runs for its object. `is_current`: whether the object still is as in `owner`."""

    task: PasswordTask
    owner: Stored
    is_current: Callable[[], bool]

    def check(self) -> None:
        """Raises _Outdated."""
        if not self.is_current():
            raise _Outdated


class PasswordTasks:
    def __init__(
        self, client: Client, store: Store, recorder: Recorder, holds_credentials: Callable[[Key], bool]
    ) -> None:
        """`store` holds the metadata of Secrets, and gets what is written here. `holds_credentials`: whether a Secret
        holds those of a PgServer.
        """
        self._client = client
        self._holds_credentials = holds_credentials
        self._store = store
        self._recorder = recorder
        self._hashers = anyio.CapacityLimiter(HASHERS)

    async def run(
        self, password_task: PasswordTask, owner: Stored, is_current: Callable[[], bool]
    ) -> PasswordResult | None:
        """Returns None if the object was changed or deleted before everything was done. `is_current` tells whether it
        still is as in `owner`. Raises KubeError for errors that may pass; a PgRoleError is in the result.
        """
        try:
            return await self._run(_TaskRun(password_task, owner, is_current))
        except _Outdated:
            return None

    async def _run(self, run: _TaskRun) -> PasswordResult:
        password_task = run.task
        found = PasswordResult(password_task=password_task)
        password: str | Verifier | None = None
        try:
            if password_task.password.origin is PasswordOrigin.SECRET and not (
                password_task.left and password_task.connection is None
            ):
                source, password = await self._fetch(password_task)
                found = replace(found, source=source)
            if password_task.connection is not None:
                found, password = await self._deliver(run, password_task.connection, found, password)
            if found.problem is None:
                await self._delete_stale(run)
        except PgRoleError as error:
            found = replace(found, problem=error)
        if password is None or not found.source:
            return found
        return await anyio.to_thread.run_sync(_hash, found, password_task, password, limiter=self._hashers)

    async def _fetch(self, password_task: PasswordTask) -> tuple[str, str | Verifier]:
        """Reads the named Secret: the source, and the password in it."""
        asked = password_task.password
        which = f'spec.password.secretRef: key "{asked.key}" of Secret "{asked.secret}"'
        self._check_secret("spec.password.secretRef", Key(password_task.namespace, asked.secret))
        secret = await self._read(password_task.namespace, asked.secret)
        if secret is not None and secret.type in TOKEN_TYPES:
            what = f"{which} is a Kubernetes token ({secret.type}), not a password"
            raise Refused(Reason.NOT_ALLOWED, f"{what}: name another Secret")
        if secret is None or asked.key not in secret.data:
            raise Waiting(Reason.SECRET_MISSING, f"{which} does not exist: create it; until then, {LEFT_AS_IS}")
        try:
            password = await anyio.to_thread.run_sync(read_password, secret.data[asked.key], limiter=self._hashers)
        except PgRoleError as error:
            raise error.reword(f"{which} {error.message}; {LEFT_AS_IS}") from error
        return name_source(_version(secret), asked.key), password

    async def _deliver(
        self, run: _TaskRun, desired: DesiredSecret, found: PasswordResult, password: str | Verifier | None
    ) -> tuple[PasswordResult, str | Verifier | None]:
        """Writes the connection Secret if it differs. Raises PgRoleError and _Outdated; then nothing was written."""
        password_task = run.task
        generated = password_task.password.origin is PasswordOrigin.GENERATED
        clear = password if isinstance(password, str) else None
        known = generated or clear is not None
        self._check_secret("spec.connectionSecret", Key(password_task.namespace, desired.name))
        check_connection(desired, password_known=known, generated=generated, forbidden=password_task.forbidden)
        secret = await self._read(password_task.namespace, desired.name)
        _check_owner(desired, secret, run.owner)
        former = await self._read_former(password_task) if generated and secret is None else None
        delivery = await anyio.to_thread.run_sync(
            _prepare, password_task, desired, secret, former, clear, limiter=self._hashers
        )
        if delivery.content is not None:
            run.check()
            secret = await self._write(run.owner, Key(password_task.namespace, desired.name), delivery.content, secret)
            if problem := _find_altered(delivery.content, secret):
                # its version without inputs: known, so that no reconcile follows at once, but not as desired
                known_version = name_delivery(_version(secret), "", "")
                return replace(found, connection=known_version, problem=problem), None if generated else password
            if password_task.delivered and not delivery.rotated:
                note = _RESTORED.format(name=desired.name)
                self._recorder.record(run.owner, "SecretRestored", note, action="Restore", urgent=True)
        found = replace(found, spoiled=delivery.spoiled)
        if secret is None or delivery.spoiled:
            return found, None if generated else password
        if generated:
            stamp = delivery.stamp
            source = name_source(_version(secret))
            # A request that the claim knows as handled stays so, whatever backup the Secret came from.
            rotate = password_task.password.rotate or request_of(stamp.rotate)
            found = replace(found, source=source, rotated_at=stamp.rotated_at, rotate=rotate)
            password = delivery.clear
        inputs = inputs_digest(desired, password_task.role_name, password_task.address)
        copied = name_copied(password_task.password.origin, found.source)
        return replace(found, connection=name_delivery(_version(secret), inputs, copied)), password

    def _check_secret(self, field: str, key: Key) -> None:
        if self._holds_credentials(key):
            raise Refused(
                Reason.NOT_ALLOWED,
                f'{field}: Secret "{key.name}" holds the credentials of a PgServer, which PgRoles cannot use: '
                "name another",
            )

    async def _read(self, namespace: str, name: str) -> Secret | None:
        try:
            secret = await read_secret(self._client, Key(namespace, name))
        except ApiError as error:
            raise _explain(f'the controller cannot read Secret "{name}"', error) from error
        except TooManyFields as error:
            raise Waiting(Reason.SECRET_MISSING, f"the controller cannot read a Secret: {error}") from error
        if secret is not None and secret.terminating:
            raise Waiting(
                Reason.SECRET_MISSING, f'Secret "{name}" is being deleted; the controller waits until it is gone'
            )
        return secret

    async def _read_former(self, password_task: PasswordTask) -> Secret | None:
        """The connection Secret under its former name, so that renaming it keeps the password."""
        for name in password_task.secrets.stale:
            secret = await self._read(password_task.namespace, name)
            if secret is not None and is_ours(secret.data, secret.annotations):
                return secret
        return None

    async def _write(self, owner: Stored, key: Key, content: SecretContent, seen: Secret | None) -> Secret:
        try:
            written = await write_secret(self._client, key, owner, content, seen)
        except NotWritable as error:
            raise Refused(Reason.CONFLICT, f"spec.connectionSecret: {error}") from error
        except ApiError as error:
            raise _explain(f'spec.connectionSecret: the controller cannot write Secret "{key.name}"', error) from error
        self._store.put(stored_of(written), by=owner.key)
        log.info("connection Secret written", extra={"object": str(owner.key), "secret": key.name})
        return written

    async def _delete_stale(self, run: _TaskRun) -> None:
        """Deletes connection Secrets that the object no longer names. Raises _Outdated: by now it may name them."""
        owner = run.owner
        for name in run.task.secrets.stale:
            stored = self._store.get(Key(run.task.namespace, name))
            if stored is None or stored.key not in self._store.by_index(owner.uid):  # by now another one
                continue
            run.check()
            try:
                deleted = await delete_secret(self._client, stored.key, stored.uid, stored.resource_version)
            except ApiError as error:
                raise _explain(
                    f'the controller cannot delete Secret "{name}", which spec no longer names', error
                ) from error
            if deleted:
                self._store.remove(stored.key, stored.uid, by=owner.key)
                log.info("connection Secret deleted", extra={"object": str(owner.key), "secret": name})


def _find_altered(content: SecretContent, written: Secret) -> Refused | None:
    """Returns the error if the API server stored another value than was sent. Keys that were added do no harm."""
    altered = [f'key "{name}"' for name, value in content.data.items() if written.data.get(name) != value]
    altered += [
        f'annotation "{name}"'
        for name, value in content.annotations.items()
        if name.startswith(OWN_PREFIX) and written.annotations.get(name) != value
    ]
    if not altered:
        return None
    what = f'an admission policy or webhook changes Secret "{written.key.name}" while the controller writes it'
    return Refused(
        Reason.NOT_ALLOWED, f"spec.connectionSecret: {what} ({name_some(altered)}): exempt the Secret from it"
    )


_LEFT = (
    'spec.drift.ignore leaves the password to others, and Secret "{name}" does not contain it, so the controller '
    "generates no new one: remove password from spec.drift.ignore, or remove spec.password and spec.connectionSecret"
)
_RESTORED = 'Secret "{name}" was deleted or changed; the controller restored it'


def _version(secret: Secret) -> SecretVersion:
    return SecretVersion(secret.uid, secret.version)


def _check_owner(desired: DesiredSecret, secret: Secret | None, owner: Stored) -> None:
    """Raises Refused for a Secret that belongs to another object, except to an earlier one of the same name."""
    if secret is None:
        return
    if any(one.uid == owner.uid for one in secret.owners):
        return
    kind, group = owner.object()["kind"], PGROLES.group
    earlier = any(
        one.kind == kind and one.api_version.partition("/")[0] == group and one.name == owner.key.name
        for one in secret.owners
    )
    if earlier and is_ours(secret.data, secret.annotations):
        return
    raise Refused(
        Reason.CONFLICT,
        f'spec.connectionSecret: Secret "{desired.name}" exists and does not belong to this object: '
        f"choose another name, or delete the Secret",
    )


def _explain(what: str, error: ApiError) -> PgRoleError | ApiError:
    """The error to report if the API server refused; the error itself if it may pass (conflict, limit, fault)."""
    if error.status in (404, 409, 429) or error.status > 500:
        return error
    if NAMESPACE_GOES in error.causes:
        return Waiting(
            Reason.SECRET_MISSING, f"{what}: its namespace is being deleted, and Kubernetes creates nothing more in it"
        )
    if error.status in (401, 403, 500):
        return Waiting(Reason.SECRET_MISSING, f"{what}: {error}")
    # What a Secret is made of was checked before: it is an admission policy, which may change.
    return Refused(Reason.NOT_ALLOWED, f"{what}: {error}")


def _prepare(
    password_task: PasswordTask,
    desired: DesiredSecret,
    secret: Secret | None,
    former: Secret | None,
    clear: str | None,
) -> _Delivery:
    """The desired content of the Secret. Runs in a thread: it hashes. Raises Refused if the template cannot hold it."""
    stamp, rotated = RotationStamp(), False
    if password_task.password.origin is PasswordOrigin.GENERATED:
        clear, stamp = _recover(password_task, secret or former)
        rotated = clear is None and (stamp != RotationStamp() or _replaces_reported(password_task))
        if clear is None:
            if password_task.left:
                raise Refused(Reason.INVALID_SPEC, _LEFT.format(name=desired.name))
            if not password_task.restore and not rotated:
                return _Delivery(None, stamp, spoiled=True)
            clear, stamp = (
                _generate(password_task.password.length),
                RotationStamp(password_task.at, password_task.password.rotate),
            )
    username, address = password_task.role_name, password_task.address
    same = secret is not None and is_current(
        desired,
        secret.labels,
        secret.annotations,
        secret.data,
        username=username,
        password=clear,
        address=address,
        stamp=stamp,
    )
    if same and password_task.rendered:
        return _Delivery(clear, stamp)
    if not password_task.restore and not rotated:
        return _Delivery(clear, stamp, spoiled=True)
    # Labels of an older template cannot be told from labels that others added, so the Secret is written again. With
    # the same salt, the API server keeps its version if nothing differs: the claim may not record this write for long.
    known = salt_of(secret.annotations) if secret is not None and same else None
    salt = known or secrets.token_bytes(SALT_BYTES)
    content = render(desired, username=username, password=clear, address=address, stamp=stamp, salt=salt)
    return _Delivery(clear, stamp, content, rotated)


def _recover(password_task: PasswordTask, secret: Secret | None) -> tuple[str | None, RotationStamp]:
    """The generated password in the Secret; None if it holds none, or a rotation is due."""
    clear = None if secret is None else recover_password(secret.data, secret.annotations)
    if secret is None or clear is None:
        return None, RotationStamp()
    stamp = read_stamp(secret.annotations)
    if not password_task.left and is_due(
        password_task.password, stamp.rotated_at, {stamp.rotate, password_task.record.rotate}, password_task.at
    ):
        return None, stamp
    return clear, stamp


def _replaces_reported(password_task: PasswordTask) -> bool:
    """Whether a rotation is due, by the claim, of a Secret whose drift is only reported."""
    record = password_task.record
    due = is_due(password_task.password, record.rotated_at, {record.rotate}, password_task.at)
    return due and not password_task.restore


def _generate(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _hash(found: PasswordResult, password_task: PasswordTask, password: str | Verifier) -> PasswordResult:
    """Whether the stored verifier fits the password, and a new verifier if not. Runs in a thread."""
    stored, last = password_task.stored, password_task.last
    if isinstance(password, Verifier):
        if stored == password:
            return replace(found, fits=password.digest)
        return replace(found, verifier=password, same=password == last)
    # A role can set itself a verifier of any count, which takes that long to compare with.
    as_expected = (
        stored is not None and stored.scram is not None and stored.scram.iterations == password_task.iterations
    )
    if stored is not None and as_expected and verifies(password, stored):
        return replace(found, fits=stored.digest)
    same = last is not None and last != stored and verifies(password, last)
    verifier = make_verifier(password, secrets.token_bytes(SALT_BYTES), password_task.iterations)
    return replace(found, verifier=verifier, same=same)
