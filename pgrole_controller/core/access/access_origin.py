"""Where a privilege comes from: which PgRole declares it, and since when a role has had it.

PostgreSQL stores no time of a grant. But a catalog row has granted the same since it was last written. So a role has
had a privilege at least since the last change of the rows on its path: the object's ACL and the memberships.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from pgrole_controller.core.access.effective_access import EffectivePrivilege, Route, Source
from pgrole_controller.core.privileges.acl import DatabaseObject
from pgrole_controller.core.privileges.grantee import DatabasePrivileges
from pgrole_controller.core.privileges.object_patterns import compile_privileges


class ChangeSource(StrEnum):
    """How the time of a change is known. COMMIT: track_commit_timestamp. EVENT: the recorded DDL of its transaction."""

    COMMIT = "CommitTimestamp"
    EVENT = "DdlEvent"


@dataclass(frozen=True, slots=True)
class LastChange:
    """The last change of the rows that give a privilege. `login`: whose transaction granted or revoked; empty if
    unknown.
    """

    time: datetime
    source: ChangeSource
    login: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """The last changes of an object's ACL by column (`""`: the object's own row), and of memberships by member and
    group. Anything missing is unknown.
    """

    acls: Mapping[str, LastChange] = field(default_factory=dict)
    memberships: Mapping[tuple[int, int], datetime] = field(default_factory=dict)

    def since(self, route: Route, column: str = "") -> LastChange | None:
        """Returns the time since which the route has led to the privilege at the latest; None if unknown."""
        latest = self.acls.get(column)
        if latest is None or route.source is Source.SUPERUSER:
            return None
        roles = route.chain.roles
        for edge in pairwise(roles):
            at = self.memberships.get(edge)
            if at is None:
                return None
            if at > latest.time:
                latest = LastChange(at, ChangeSource.COMMIT)
        return latest


@dataclass(frozen=True, slots=True)
class RoleClaim:
    """The PgRole of a role (namespace/name) and what it declares by database. `privileges` None: unreadable."""

    owner: str
    privileges: Mapping[str, tuple[DatabasePrivileges, ...]] | None


@dataclass(frozen=True, slots=True)
class Declarations:
    """What PgRoles declare, by the role's oid. `problem`: why it is unknown, with the remedy. `version`:
    server_version_num.
    """

    version: int
    claims: Mapping[int, RoleClaim] = field(default_factory=dict)
    problem: str = ""

    def owner_of(self, role: int) -> str | None:
        """The PgRole that manages a role: empty if none does, None if that is unknown."""
        if self.problem:
            return None
        return self.claims[role].owner if role in self.claims else ""

    def declarer(self, route: Route, database: str, of: DatabaseObject, one: EffectivePrivilege) -> str | None:
        """The PgRole that declares the privilege for the role at the end of the route: empty if none does, None if that
        is unknown.
        """
        if self.problem:
            return None
        if route.source not in (Source.GRANT, Source.OWNER):
            return ""
        holder = route.chain.roles[-1]
        wants = self.wants(holder, one.privilege, one.column, database, of)
        if wants is None:
            return None
        return self.claims[holder].owner if wants else ""

    def wants(self, role: int, privilege: str, column: str, database: str, of: DatabaseObject) -> bool | None:
        """Whether the role's PgRole declares a privilege on an object; None if that is unknown."""
        claim = self.claims.get(role)
        if claim is None:
            return False
        if claim.privileges is None:
            return None
        declared = claim.privileges.get(database, ())
        return any(compile_privileges(some, self.version).wanted(of).has(privilege, column) for some in declared)
