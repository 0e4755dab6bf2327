"""Claims: the database rows that record which object of which cluster owns a role."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.privileges.grantee import DatabasePrivileges


@dataclass(frozen=True, slots=True)
class Owner:
    """Identifies one PgRole object, also across clusters and across objects that reuse its name.

    `namespace_uid` prevents another tenant's new namespace from inheriting roles retained by an old one of the same
    name.
    """

    cluster: str
    namespace: str
    namespace_uid: str
    object: str
    object_uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.object}"


@dataclass(frozen=True, slots=True)
class Generations:
    """Generations of the PgRole and of its PgServer (identified by uid) that a role was last reconciled with."""

    object: int = 0
    server_uid: str = ""
    server: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What the database records about a role's owner; `role_oid` means nothing without `system_identifier`.

    `privileges`: by database, what the spec declares, and what earlier ones declared and is not revoked yet. `counted`:
    the drifts that status had counted, of the role and in databases, when it proved the claim.
    """

    role_name: str
    role_oid: int
    system_identifier: int
    owner: Owner
    applied: str  # digest of the desired state last applied
    drift_count: int = 0
    last_drift_at: datetime | None = None
    last_drift_fields: tuple[str, ...] = ()
    released: bool = False
    record: PasswordRecord = field(default_factory=PasswordRecord)
    generations: Generations = field(default_factory=Generations)
    privileges: Mapping[str, tuple[DatabasePrivileges, ...]] = field(default_factory=dict)
    approve_handled: str = ""  # the approval by which drift was corrected last
    counted: int = 0

    def is_held_by(self, owner: Owner) -> bool:
        """Whether this very object has the claim, and has not released it."""
        return self.owner == owner and not self.released

    def is_of_lost_role(self, oid: int | None, system_identifier: int) -> bool:
        """Whether the retained role is gone, and another one, with this oid on this server, has its name."""
        there = self.released and oid is not None and self.system_identifier == system_identifier
        return there and oid != self.role_oid


class ClaimKey(NamedTuple):
    """Identifies the claim of an object, by its uid, on the role with a name."""

    role_name: str
    object_uid: str


@dataclass(frozen=True, slots=True)
class Proof:
    """An object's status as evidence. It proves ownership only where the role carries no claim at all."""

    role_name: str
    role_oid: int
    system_identifier: int
    applied: str
    drift_count: int = 0
    password_version: str = ""  # resourceVersion of the Secret whose password was last applied
    approve_handled: str = ""
