"""What is there: the server, and the roles and claims of any number of objects in one query."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.hint import Key
from pgrole_controller.core.plan import Needs, Sight
from pgrole_controller.core.role import Found, Role
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, speaking

OLDEST_VERSION = 14


@dataclass(frozen=True, slots=True)
class Identity:
    """What server a connection is on; `system_identifier` and `started_at` together tell one live server."""

    version: str
    system_identifier: int
    started_at: datetime
    own_roles: frozenset[str]
    superuser: bool
    sees_passwords: bool

    def is_same_server(self, other: "Identity") -> bool:
        return (self.system_identifier, self.started_at) == (other.system_identifier, other.started_at)


async def identify(connection: Connection) -> Identity:
    """Raises Transient for a server that cannot be written to or is too old."""
    with speaking():
        row = await connection.fetchrow(queries.inspect("server"))
    if row is None:
        raise Transient(Reason.SERVER_NOT_READY, "the server says nothing of itself")
    if row["in_recovery"]:
        raise Transient(Reason.SERVER_NOT_READY, "the server is a standby (pg_is_in_recovery): it cannot be written to")
    if row["version_number"] < OLDEST_VERSION * 10_000:
        raise Transient(
            Reason.SERVER_NOT_READY, f"PostgreSQL {row['version']} is too old: {OLDEST_VERSION} or later is needed"
        )
    return Identity(
        version=row["version"],
        system_identifier=row["system_identifier"],
        started_at=row["started_at"],
        own_roles=frozenset({row["acting_role"], row["session_role"]}),
        superuser=row["superuser"],
        sees_passwords=row["sees_passwords"],
    )


async def look(connection: Connection, cluster: str, asked: Sequence[tuple[Key, str]]) -> list[Sight]:
    """What is there for each (key, role name), in their order; the role name is empty where the object is gone."""
    with speaking():
        rows = await connection.fetch(
            queries.inspect("roles"),
            [name for _, name in asked],
            [key.namespace for key, _ in asked],
            [key.name for key, _ in asked],
            cluster,
        )
    return [_sight(row) for row in rows]


async def look_for_needs(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[Needs, ...]]:
    """What still needs each of these roles; a role that nothing needs is not in the result."""
    with speaking():
        rows = await connection.fetch(queries.inspect("needs"), list(oids))
    needs: dict[int, tuple[Needs, ...]] = {}
    for row in rows:
        needs[row["role"]] = (*needs.get(row["role"], ()), Needs(row["database"], row["count"]))
    return needs


async def look_for_claims(connection: Connection, cluster: str) -> list[tuple[Key, str, str]]:
    """The claims of this cluster that are not released: key of the object, name of the role, uid of the object."""
    with speaking():
        rows = await connection.fetch(queries.inspect("claims"), cluster)
    return [(Key(row["namespace"], row["object"]), row["role_name"], row["object_uid"]) for row in rows]


def _sight(row: asyncpg.Record) -> Sight:
    return Sight(
        named=_found(row, "named", tuple(row["named_reaches"] or ())),
        claimed=_found(row, "claimed", ()),
        claim=_claim(row),
        former=tuple((name, uid) for name, uid in row["former"]),
    )


def _found(row: asyncpg.Record, prefix: str, reaches: tuple[str, ...]) -> Found | None:
    if row[f"{prefix}_oid"] is None:
        return None
    role = Role(
        name=row[f"{prefix}_name"],
        login=row[f"{prefix}_login"],
        superuser=row[f"{prefix}_superuser"],
        createdb=row[f"{prefix}_createdb"],
        createrole=row[f"{prefix}_createrole"],
        inherit=row[f"{prefix}_inherit"],
        replication=row[f"{prefix}_replication"],
        bypassrls=row[f"{prefix}_bypassrls"],
        connection_limit=row[f"{prefix}_connection_limit"],
        valid_until=row[f"{prefix}_valid_until"],
        comment=row[f"{prefix}_comment"],
    )
    return Found(row[f"{prefix}_oid"], role, reaches)


def _claim(row: asyncpg.Record) -> Claim | None:
    if row["claim_role_name"] is None:
        return None
    owner = Owner(
        cluster=row["claim_cluster"],
        namespace=row["claim_namespace"],
        namespace_uid=row["claim_namespace_uid"],
        object=row["claim_object"],
        object_uid=row["claim_object_uid"],
    )
    return Claim(
        role_name=row["claim_role_name"],
        role_oid=row["claim_role_oid"],
        system_identifier=row["claim_system_identifier"],
        owner=owner,
        applied=row["claim_applied"],
        drift_count=row["claim_drift_count"],
        last_drift_at=row["claim_last_drift_at"],
        last_drift_fields=tuple(row["claim_last_drift_fields"] or ()),
        released=row["claim_released"],
    )
