"""A PostgreSQL role as a value, its memberships included: one type for the desired and the observed state.

Since PostgreSQL 16 a membership can be granted several times, by different grantors and with different
options; what counts is all of them together. Before, there is one grant, and only its ADMIN option.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from pgrole_controller.core.parameters import Parameters
from pgrole_controller.core.scram import Verifier


@dataclass(frozen=True, slots=True)
class Grant:
    """One row of pg_auth_members."""

    grantor: str
    admin: bool
    inherit: bool
    set: bool
    by_creation: bool = False  # PostgreSQL made it, for the role that created the other


@dataclass(frozen=True, slots=True)
class Membership:
    """A membership with the options that hold, whoever granted them.

    `grants` and `passed_on` (the members to whom it was granted further by this role, whose grants end with it) say how
    it came about and are not compared: two memberships with the same options are the same.
    """

    role: str
    admin: bool = False
    inherit: bool = True
    set: bool = True
    grants: tuple[Grant, ...] = field(default=(), compare=False)
    passed_on: tuple[str, ...] = field(default=(), compare=False)

    @property
    def by_creation(self) -> bool:
        """It is there because the role created the other: no object need declare it."""
        return bool(self.grants) and all(grant.by_creation for grant in self.grants)


def membership_of(role: str, grants: Iterable[Grant], passed_on: Iterable[str] = ()) -> Membership:
    """The membership that these grants add up to."""
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

#: `validUntil` as it is compared: microseconds since 1970-01-01 UTC. PostgreSQL holds more years than datetime does.
Microseconds = int

#: The value of `rolvaliduntil = '-infinity'`.
BEFORE_ALL_TIME: Microseconds = -(2**63)


@dataclass(frozen=True, slots=True)
class Password:
    """What a role logs in with: known by the digest of its verifier; `verifier` only where it is to be set."""

    digest: str
    verifier: Verifier | None = field(default=None, compare=False, repr=False)


#: Where pg_authid may not be read: it equals nothing that can be desired.
UNSEEN = Password("unseen")


@dataclass(frozen=True, slots=True)
class Role:
    """Everything that a PgRole can declare, with the defaults of CREATE ROLE.

    Two of these are compared field by field; what is not in here is not compared and not changed.
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
    valid_until: Microseconds | None = None  # None: for ever ('infinity' and NULL are one thing)
    comment: str | None = None
    password: Password | None = None
    member_of: tuple[Membership, ...] = ()  # sorted by role
    parameters: Parameters = ()
    database_parameters: tuple[tuple[str, Parameters], ...] = ()  # sorted by database; none is empty

    @property
    def parameter_names(self) -> frozenset[str]:
        """Every parameter that is set, in one database or in all."""
        held = (self.parameters, *(parameters for _, parameters in self.database_parameters))
        return frozenset(name for parameters in held for name, _ in parameters)


#: The attributes that give power over more than one's own data: only what the policy names may be asked for.
POWERS = ("superuser", "createrole", "createdb", "replication", "bypassrls")

#: The name of each field for users, as in `spec`.
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
    """A role that is there.

    `reaches` names the roles of the hard rules (superusers, the controller's own, those that reach the server's files
    and programs) that it is a member of, directly or through others; read only for a role that is not known as ours.
    `held_by` is another object (namespace/name) whose claim is on this very role, under another name.
    """

    oid: int
    role: Role
    reaches: tuple[str, ...] = ()
    held_by: str | None = None


def to_microseconds(moment: datetime) -> Microseconds:
    """The microseconds of a moment; one without a zone is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def to_moment(microseconds: Microseconds) -> datetime:
    """The inverse of `to_microseconds`. Raises OverflowError outside the years 1 to 9999."""
    return _EPOCH + timedelta(microseconds=microseconds)


#: Of what goes into a digest, but for the name.
_DEFAULTS = tuple((item.name, item.default) for item in fields(Role) if item.name not in ("name", "password"))


_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=True).encode


def digest(role: Role) -> str:
    """What `applied` in a claim holds: equal for equal roles, in every version of this program.

    Only what differs from the defaults goes in, so that a field added later changes no digest of an older role. The
    password is not part of it: of that, the claim remembers what it was made from.
    """
    values: dict[str, Any] = {"name": role.name}
    values |= {name: value for name, default in _DEFAULTS if (value := getattr(role, name)) != default}
    if "member_of" in values:
        values["member_of"] = [(held.role, held.admin, held.inherit, held.set) for held in role.member_of]
    return "sha256:" + hashlib.sha256(_encode(values).encode()).hexdigest()
