"""The password of a role and the Secrets that it comes from and goes to: asked for, seen, remembered, fetched."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from pgrole_controller.core.connection_secret import Address, DesiredSecret
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.scram import LEAST_ITERATIONS, MOST_ITERATIONS, Verifier

_REQUEST_LENGTH = 128


class PasswordOrigin(Enum):
    """Where a password comes from."""

    ELSEWHERE = "elsewhere"  # not managed
    NOWHERE = "nowhere"  # PASSWORD NULL
    SECRET = "secret"  # noqa: S105 -- a word
    GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class DesiredPassword:
    """What an object asks for. `rotate` is the last request of another generated password, "" where there is none."""

    origin: PasswordOrigin = PasswordOrigin.ELSEWHERE
    secret: str = ""
    key: str = ""
    length: int = 32
    rotate_every: timedelta | None = None
    rotate: str = ""


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """One Secret as its metadata tells it."""

    uid: str
    version: str

    def __str__(self) -> str:
        return f"{self.uid}/{self.version}"


@dataclass(frozen=True, slots=True)
class ObservedSecrets:
    """The Secrets that an object names; None for one that is not there. `unknown` says why none could be listed."""

    password: SecretVersion | None = None
    connection: SecretVersion | None = None
    stale: tuple[str, ...] = ()  # names of connection Secrets of this object that it does not name any more
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class PasswordRecord:
    """What the claim remembers: a restart neither reads nor hashes nor rotates what is as it was left.

    `source` is the content that the password was made from, `digest` that of the verifier which was set, `connection`
    what was last written as the connection Secret.
    """

    source: str = ""
    digest: str = ""
    rotated_at: datetime | None = None
    rotate: str = ""
    connection: str = ""


@dataclass(frozen=True, slots=True)
class PasswordTask:
    """What has to be asked of Kubernetes, written there or hashed before the password of one role can be decided.

    `secrets` are those that were seen when it was asked for. `rendered`: the connection Secret was written from the
    same template before; `delivered`: with the same password too, so that what differs was done by somebody else;
    `restore`: whether it is written anew then, or only told of. `left`: the password is left to others, and not
    replaced. `stored` is what the role logs in with (None: nothing, or it may not be read).
    """

    namespace: str
    role_name: str
    password: DesiredPassword
    connection: DesiredSecret | None
    secrets: ObservedSecrets
    record: PasswordRecord
    address: Address
    at: datetime
    iterations: int
    forbidden: tuple[str, ...] = ()
    rendered: bool = False
    delivered: bool = False
    restore: bool = True
    left: bool = False
    oid: int | None = None
    stored: Verifier | None = None


@dataclass(frozen=True, slots=True)
class PasswordResult:
    """What a password task brought: for one look.

    The password was made from `source`; it is the one that `fits` (the digest of a verifier) was made from, or
    `verifier` is to be set. Neither: `problem` says why there is none. `connection` as in Record. `spoiled`: somebody
    changed the connection Secret, and it was left so. `password_task` is the one that brought it.
    """

    source: str = ""
    fits: str = ""
    verifier: Verifier | None = None
    rotated_at: datetime | None = None
    rotate: str = ""
    connection: str = ""
    spoiled: bool = False
    problem: PgRoleError | None = field(default=None, compare=False)
    password_task: PasswordTask | None = field(default=None, compare=False, repr=False)


def is_due(desired: DesiredPassword, rotated_at: datetime | None, handled: Collection[str], at: datetime) -> bool:
    """Whether a generated password has to be replaced by another one."""
    if desired.rotate and desired.rotate not in handled:
        return True
    due = next_rotation(desired, rotated_at)
    return due is not None and due <= at


def next_rotation(desired: DesiredPassword, rotated_at: datetime | None) -> datetime | None:
    if desired.origin is not PasswordOrigin.GENERATED or desired.rotate_every is None or rotated_at is None:
        return None
    try:
        return rotated_at + desired.rotate_every
    except OverflowError:  # the time comes from a Secret, where anybody may have written it
        return None


def version_of(source: str) -> str | None:
    """The resourceVersion in the source of a password; None where it is no Secret's."""
    parts = source.split("/")
    return parts[1] if len(parts) > 1 else None


def request_of(annotation: str | None) -> str:
    """A request to rotate as it is remembered: anybody may write anything of any length there."""
    if not annotation:
        return ""
    if len(annotation) <= _REQUEST_LENGTH and annotation.isascii() and annotation.isprintable():
        return annotation
    return "sha256:" + hashlib.sha256(annotation.encode(errors="surrogatepass")).hexdigest()


def within_bounds(iterations: int) -> int:
    """What the server would take, as far as it neither weakens a password nor holds up a thread."""
    return min(max(iterations, LEAST_ITERATIONS), MOST_ITERATIONS)
