"""The desired, observed and recorded password of a role and its Secrets, and the background task that fetches them."""

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
    """The declared password. `rotate` is the latest request for another generated password, or ""."""

    origin: PasswordOrigin = PasswordOrigin.ELSEWHERE
    secret: str = ""
    key: str = ""
    length: int = 32
    rotate_every: timedelta | None = None
    rotate: str = ""


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """Identifies one version of a Secret, from its metadata."""

    uid: str
    version: str

    def __str__(self) -> str:
        return f"{self.uid}/{self.version}"


@dataclass(frozen=True, slots=True)
class ObservedSecrets:
    """The Secrets that an object names; None for a missing one. `unknown` says why they could not be listed."""

    password: SecretVersion | None = None
    connection: SecretVersion | None = None
    stale: tuple[str, ...] = ()  # names of this object's connection Secrets that it no longer names
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class PasswordRecord:
    """What the claim records, so that a restart does not read, hash or rotate an unchanged password.

    `source` identifies the content that the password was made from, `digest` the verifier that was set, and
    `connection` the connection Secret last written.
    """

    source: str = ""
    digest: str = ""
    rotated_at: datetime | None = None
    rotate: str = ""
    connection: str = ""


@dataclass(frozen=True, slots=True)
class PasswordTask:
    """Work to do in Kubernetes, and hashing, before the password of one role can be decided.

    - `secrets`: the Secrets observed when the task was created.
    - `rendered`: the connection Secret was last written from the same template.
    - `delivered`: and with the same password, so someone else made any difference.
    - `restore`: whether to overwrite such a difference, or only report it.
    - `left`: the password is left to others and not replaced.
    - `stored`: the verifier the role has; None if it has none or it may not be read.
    - `last`: the verifier that was set last; None if this process does not know it.
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
    last: Verifier | None = None


@dataclass(frozen=True, slots=True)
class PasswordResult:
    """Result of a password task, for one reconcile.

    - `source`: what the password was made from.
    - `fits`: digest of the role's current verifier, if that verifies this password.
    - `verifier`: the verifier to set, if it does not.
    - `same`: the password is the one that was set last, as far as this process knows that.
    - `problem`: why there is neither.
    - `connection`: as in PasswordRecord.
    - `spoiled`: someone changed the connection Secret, and the task left it so.
    """

    source: str = ""
    fits: str = ""
    verifier: Verifier | None = None
    same: bool = False
    rotated_at: datetime | None = None
    rotate: str = ""
    connection: str = ""
    spoiled: bool = False
    problem: PgRoleError | None = field(default=None, compare=False)
    password_task: PasswordTask | None = field(default=None, compare=False, repr=False)


def is_due(desired: DesiredPassword, rotated_at: datetime | None, handled: Collection[str], at: datetime) -> bool:
    """Tells whether a generated password must be replaced. A rotation more than a period ahead is none: the server's
    clock was wrong.
    """
    if desired.rotate and desired.rotate not in handled:
        return True
    period = _period_of(desired)
    return period is not None and rotated_at is not None and not -period <= at - rotated_at < period


def next_rotation(desired: DesiredPassword, rotated_at: datetime | None) -> datetime | None:
    period = _period_of(desired)
    if period is None or rotated_at is None:
        return None
    try:
        return rotated_at + period
    except OverflowError:  # the time comes from a Secret, which anyone may have edited
        return None


def _period_of(desired: DesiredPassword) -> timedelta | None:
    return desired.rotate_every if desired.origin is PasswordOrigin.GENERATED else None


def version_of(source: str) -> str | None:
    """Returns the resourceVersion in a password's source; None if the source is not a Secret."""
    parts = source.split("/")
    return parts[1] if len(parts) > 1 else None


def request_of(annotation: str | None) -> str:
    """Normalises a rotation request for the record, since the annotation can hold any text of any length."""
    if not annotation:
        return ""
    if len(annotation) <= _REQUEST_LENGTH and annotation.isascii() and annotation.isprintable():
        return annotation
    return "sha256:" + hashlib.sha256(annotation.encode(errors="surrogatepass")).hexdigest()


def within_bounds(iterations: int) -> int:
    """Clamps the server's iterations to a range that neither weakens a password nor blocks a thread."""
    return min(max(iterations, LEAST_ITERATIONS), MOST_ITERATIONS)
