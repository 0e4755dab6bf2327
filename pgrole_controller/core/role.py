"""A PostgreSQL role as a value, including its memberships: one type for the desired and the observed state.

Since PostgreSQL 16, several grantors can grant the same membership with different options; the sum of them counts.
Before, there is one grant, whose only option is ADMIN.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from pgrole_controller.core.parameters import Parameters
from pgrole_controller.core.scram import Verifier

#: Names that CREATE ROLE rejects even in quotes.
RESERVED_NAMES = frozenset({"public", "none"})


@dataclass(frozen=True, slots=True)
class Grant:
    """One row of pg_auth_members."""

    grantor: str
    admin: bool
    inherit: bool
    set: bool
    by_creation: bool = False  # made by PostgreSQL, for the role that created the other one


@dataclass(frozen=True, slots=True)
class Membership:
    """A membership with its effective options, whoever granted them.

    `grants` and `passed_on` (the members to whom this role granted it in turn, whose grants end with this one) tell how
    it came about. They are not compared: memberships with the same options are equal.
    """

    role: str
    admin: bool = False
    inherit: bool = True
    set: bool = True
    grants: tuple[Grant, ...] = field(default=(), compare=False)
    passed_on: tuple[str, ...] = field(default=(), compare=False)

    @property
    def by_creation(self) -> bool:
        """It exists because the role created the other one; it need not be declared."""
        return bool(self.grants) and all(grant.by_creation for grant in self.grants)


def membership_of(role: str, grants: Iterable[Grant], passed_on: Iterable[str] = ()) -> Membership:
    """Adds these grants up to one membership."""
    rows = tuple(grants)
    return Membership(
        role=role,
        admin=any(row.admin for row in rows),
        inherit=any(row.inherit for row in rows),
        set=any(row.set for row in rows),
        grants=rows,
        passed_on=tuple(passed_on),
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: `validUntil` in comparable form: microseconds since 1970-01-01 UTC. PostgreSQL's range exceeds datetime's.
Microseconds = int

#: The value of `rolvaliduntil = '-infinity'`.
BEFORE_ALL_TIME: Microseconds = -(2**63)


@dataclass(frozen=True, slots=True)
class Password:
    """What a role logs in with: identified by its verifier's digest. `verifier` is present only if it is to be set."""

    digest: str
    verifier: Verifier | None = field(default=None, compare=False, repr=False)


#: The password where pg_authid may not be read. It equals nothing that can be desired.
UNSEEN = Password("unseen")


@dataclass(frozen=True, slots=True)
class Role:
    """Everything a PgRole can declare, with the defaults of CREATE ROLE.

    Roles are compared field by field; the controller neither compares nor changes anything else.
    """

    name: str
    login: bool = False
    superuser: bool = False
    createdb: bool = False
    createrole: bool = False
    inherit: bool = True
    replication: bool = False
    bypassrls: bool = False
    connection_limit: int = -1
    valid_until: Microseconds | None = None  # None: no expiry ('infinity' and NULL mean the same)
    comment: str | None = None
    password: Password | None = None
    member_of: tuple[Membership, ...] = ()  # sorted by role
    parameters: Parameters = ()
    database_parameters: tuple[tuple[str, Parameters], ...] = ()  # sorted by database; none is empty

    @property
    def parameter_names(self) -> frozenset[str]:
        """Names of all parameters that are set, in one database or in all."""
        held = (self.parameters, *(parameters for _, parameters in self.database_parameters))
        return frozenset(name for parameters in held for name, _ in parameters)


#: Attributes that give power beyond one's own data. An object may declare one only if the policy names it.
POWERS = ("superuser", "createrole", "createdb", "replication", "bypassrls")

#: Names of the fields as users know them from `spec`.
FIELD_NAMES: dict[str, str] = {
    item.name: {
        "connection_limit": "connectionLimit",
        "valid_until": "validUntil",
        "member_of": "memberOf",
        "database_parameters": "databaseParameters",
    }.get(item.name, item.name)
    for item in fields(Role)
}


@dataclass(frozen=True, slots=True)
class ObservedRole:
    """A role that exists.

    `reaches` names the privileged roles (superusers, the controller's own, and those that reach the server's files and
    programs) that it is a member of, directly or indirectly; read only for a role not known to be ours.
    `owner_elsewhere` is another object (namespace/name) whose claim is on this very role under another name. `cut`: it
    has more memberships than were read.
    """

    oid: int
    role: Role
    reaches: tuple[str, ...] = ()
    owner_elsewhere: str | None = None
    cut: bool = False


def to_microseconds(moment: datetime) -> Microseconds:
    """Converts a moment into microseconds; without a time zone, it counts as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def to_moment(microseconds: Microseconds) -> datetime:
    """The inverse of `to_microseconds`. Raises OverflowError outside the years 1 to 9999."""
    return _EPOCH + timedelta(microseconds=microseconds)


#: What enters the digest, except the name.
_DEFAULTS = tuple((item.name, item.default) for item in fields(Role) if item.name not in ("name", "password"))


_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=True).encode


def digest(role: Role) -> str:
    """The `applied` digest in a claim: equal for equal roles, in every version of the controller.

    Only differences from the defaults enter it, so a field added later does not change existing digests. The password
    is not included: the claim records its source instead.
    """
    values: dict[str, Any] = {"name": role.name}
    values |= {name: value for name, default in _DEFAULTS if (value := getattr(role, name)) != default}
    if "member_of" in values:
        values["member_of"] = [(held.role, held.admin, held.inherit, held.set) for held in role.member_of]
    return "sha256:" + hashlib.sha256(_encode(values).encode()).hexdigest()
