"""A claim: the row in the database that says which object of which cluster owns a role."""

from dataclasses import dataclass, field
from datetime import datetime

from pgrole_controller.core.password import PasswordRecord


@dataclass(frozen=True, slots=True)
class Owner:
    """One PgRole object, known across clusters and across objects of the same name.

    `namespace_uid` keeps a new namespace of another tenant from inheriting what the old one of that name retained.
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
    """What was declared when a role was last acted on: of its PgRole, and of its PgServer, which is known by uid."""

    object: int = 0
    server_uid: str = ""
    server: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What the database knows of the ownership of one role. `role_oid` counts only with `system_identifier`."""

    role_name: str
    role_oid: int
    system_identifier: int
    owner: Owner
    applied: str  # digest of the desired role that was last brought into the database
    drift_count: int = 0
    last_drift_at: datetime | None = None
    last_drift_fields: tuple[str, ...] = ()
    released: bool = False
    record: PasswordRecord = field(default_factory=PasswordRecord)
    generations: Generations = field(default_factory=Generations)


@dataclass(frozen=True, slots=True)
class Proof:
    """What an object's status says of its role: proves ownership where the role carries no claim at all."""

    role_name: str
    role_oid: int
    system_identifier: int
    applied: str
    drift_count: int = 0
    password_version: str = ""  # resourceVersion of the Secret whose password was last brought in
