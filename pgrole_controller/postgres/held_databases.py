"""In which databases does a role have privileges, or own something? The home database knows: pg_shdepend is shared."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import fetch


@dataclass(frozen=True, slots=True)
class HeldQuestion:
    """`role`: oid. `served`: whether databases count in which a session keeps privileges, and may grant some."""

    role: int
    databases: frozenset[str]
    served: bool = False


async def read_unheld(connection: Connection, asked: Sequence[HeldQuestion]) -> list[frozenset[str]]:
    """For each, the databases in which the role has no privileges; of those that are served only if the question says.

    A paused process may still commit a grant in its session, so the sessions are read first: what those that have ended
    committed is seen by the next statement. Raises PgRoleError.
    """
    databases = sorted(frozenset[str]().union(*(one.databases for one in asked)))
    rows = await fetch(connection, "", queries.inspect("databases_being_served"), databases)
    served = {row.get("database", str) for row in rows}
    pairs = [
        (place, one.role, name)
        for place, one in enumerate(asked)
        for name in sorted(one.databases if one.served else one.databases - served)
    ]
    rows = await fetch(
        connection,
        "",
        queries.inspect("databases_with_privileges"),
        [role for _, role, _ in pairs],
        [name for _, _, name in pairs],
    )
    held = {row.get("place", int) for row in rows}
    unheld: list[set[str]] = [set() for _ in asked]
    for number, (place, _, name) in enumerate(pairs, 1):
        if number not in held:
            unheld[place].add(name)
    return [frozenset(some) for some in unheld]


async def read_owning(connection: Connection, roles: Collection[int], databases: Collection[str]) -> frozenset[str]:
    """Those of the databases in which one of the roles (oids) owns something. Raises PgRoleError."""
    if not (roles and databases):
        return frozenset()
    query = queries.inspect("databases_with_owned_objects")
    rows = await fetch(connection, "", query, sorted(roles), sorted(databases))
    return frozenset(row.get("database", str) for row in rows)
