"""Decides which privileges of a role are granted and revoked in one database, and which of that is drift."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgrole_controller.core.acl import (
    AclChange,
    DatabaseObject,
    DefaultAcl,
    DefaultAclChange,
    ObjectId,
    ObservedAcl,
)
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.grantee import Grantee
from pgrole_controller.core.privilege_policy import DatabaseFacts


@dataclass(frozen=True, slots=True)
class ObservedDatabase:
    """What was read of one database for some grantees.

    - `acls`: objects with the entries of these grantees; the database itself and schemas included.
    - `defaults`: default privileges for these grantees; None: not read.
    - `roles`: oids of the existing roles among the declared creators, by name.
    - `schemas`: every schema that exists.
    - `complete`: `acls` has every object. Otherwise nothing is reported as missing, and only these are decided.
    - `columns`: existing columns of objects that have declared columns; an object left out is one whose columns are
      not known.
    """

    facts: DatabaseFacts
    acls: tuple[ObservedAcl, ...] = ()
    defaults: tuple[DefaultAcl, ...] | None = None
    roles: Mapping[str, int] = field(default_factory=dict)
    schemas: frozenset[str] = frozenset()
    complete: bool = True
    columns: Mapping[ObjectId, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrivilegeDifference:
    """One privilege that is held though undeclared (`held`), or declared and not held.

    `object` None: a default privilege; `place` then says which one, for people. `option`: only the grant option
    differs. `grantor_name`: of a held one, who granted it.
    """

    privilege: str
    object: DatabaseObject | None = None
    column: str = ""
    held: bool = True
    grantor_name: str = ""
    option: bool = False
    place: str = ""

    @property
    def words(self) -> str:
        """For people: `DELETE on table app.orders was granted`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PrivilegeDecision:
    """What to do about one grantee in one database.

    - `changes`, `default_changes`: revokes come first.
    - `drift`: which of the differences arose after the declaration was applied.
    - `extended`: missing privileges on objects that are new.
    - `pending`: at most one Waiting, and Refused; everything else is applied nevertheless.
    - `reported`: differences that are left as they are.
    - `confirmed`: nothing is left that only a former declaration granted; False after a partial read.
    """

    changes: tuple[AclChange, ...] = ()
    default_changes: tuple[DefaultAclChange, ...] = ()
    drift: tuple[PrivilegeDifference, ...] = ()
    extended: tuple[PrivilegeDifference, ...] = ()
    pending: tuple[PgRoleError, ...] = ()
    reported: tuple[PrivilegeDifference, ...] = ()
    confirmed: bool = False


def decide_privileges(
    grantee: Grantee,
    observed: ObservedDatabase,
    applied: str,
    *,
    new_objects: frozenset[ObjectId] | None = None,
    granted_before: frozenset[tuple[ObjectId, str]] = frozenset(),
) -> PrivilegeDecision:
    """Compares what is declared with what is held.

    - `applied`: the digest last applied in this database; empty if none was.
    - `new_objects`: objects that appeared since then: privileges missing on them are no drift. None: unknown; then a
      missing privilege is drift only if `granted_before` has it, as (object, privilege).
    """
    raise NotImplementedError


def phrases(differences: tuple[PrivilegeDifference, ...], most: int = 10) -> tuple[str, ...]:
    """Returns the words of at most `most` of them; the last phrase counts the others."""
    raise NotImplementedError
