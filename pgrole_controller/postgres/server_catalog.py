"""Reads what a whole server has: all roles and databases, and in which databases a role has privileges or
owns something.

A login needs no more than pg_monitor: password verifiers and claims are not read, and everything else is in catalogs
that every role may read. The home database knows of the others: pg_shdepend is shared.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

from pgrole_controller.core.errors import NOT_UTF8, PgRoleError
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.state import Observed
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.catalog import parse_roles
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, fetch, query_each

#: Roles of one query.
ROLES_PER_QUERY = 200


@dataclass(frozen=True, slots=True)
class NamedRole:
    """A role that exists."""

    oid: int
    name: str


@dataclass(frozen=True, slots=True)
class ListedDatabase:
    """A database. `connectable`: this session's role may connect to it. `allows_connections`: someone may. `template`:
    CREATE DATABASE may copy it.
    """

    name: str
    connectable: bool
    allows_connections: bool
    template: bool


async def read_role_names(connection: Connection) -> list[NamedRole]:
    """All roles, by name. Bytes of names that are not UTF-8 are surrogates. Raises PgRoleError."""
    rows = await fetch(connection, queries.inspect("every_role"))
    return [NamedRole(row.get("oid", int), row.text("name")) for row in rows]


async def read_databases(connection: Connection) -> list[ListedDatabase]:
    """All databases, by name. Raises PgRoleError."""
    rows = await fetch(connection, queries.inspect("every_database"))
    return [
        ListedDatabase(
            row.text("name"),
            row.get("connectable", bool),
            row.get("allows_connections", bool),
            row.get("template", bool),
        )
        for row in rows
    ]


async def read_roles(
    connection: Connection, names: Sequence[str]
) -> AsyncIterator[tuple[str, ObservedRole | PgRoleError]]:
    """Yields these roles, which exist and whose names are UTF-8, each with everything but its password.

    A role that cannot be read gets an error of its own. A role that was dropped meanwhile is left out.
    """
    for start in range(0, len(names), ROLES_PER_QUERY):
        some = names[start : start + ROLES_PER_QUERY]

        async def query(asked: Sequence[str]) -> Sequence[Observed | PgRoleError]:
            rows = await _fetch(connection, asked)
            return parse_roles(rows, [(Key("", name), name) for name in asked], with_claims=False)

        for name, answer in zip(some, await query_each(connection, query, some), strict=True):
            if isinstance(answer, PgRoleError):
                yield name, answer
            elif answer.named is not None:
                yield name, answer.named


async def _fetch(connection: Connection, names: Sequence[str]) -> list[Row]:
    if any(NOT_UTF8.search(name) for name in names):
        raise ValueError("a role's name that is not UTF-8 cannot be asked for")
    query = queries.inspect_from("roles", claims="claims_in_status", verifiers="no_verifiers")
    nothing: list[object] = [""] * len(names)
    return await fetch(connection, query, list(names), nothing, nothing, "", 0, [], [], [])


@dataclass(frozen=True, slots=True)
class HeldQuestion:
    """`role`: oid. `served`: also ask about databases that a session serves now, although it may be about to grant
    something there.
    """

    role: int
    databases: frozenset[str]
    served: bool = False


async def read_unheld(connection: Connection, asked: Sequence[HeldQuestion]) -> list[frozenset[str]]:
    """For each, the databases in which the role has no privileges; of those that are served only if the question says.

    A paused process may still commit a grant in its session, so the sessions are read first: what those that have ended
    committed is seen by the next statement. Raises PgRoleError.
    """
    databases = sorted(frozenset[str]().union(*(one.databases for one in asked)))
    rows = await fetch(connection, queries.inspect("databases_being_served"), databases)
    served = {row.get("database", str) for row in rows}
    pairs = [
        (place, one.role, name)
        for place, one in enumerate(asked)
        for name in sorted(one.databases if one.served else one.databases - served)
    ]
    rows = await fetch(
        connection,
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
    rows = await fetch(connection, query, sorted(roles), sorted(databases))
    return frozenset(row.get("database", str) for row in rows)
