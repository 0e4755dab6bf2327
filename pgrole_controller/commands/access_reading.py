"""Reads what `access` shows: from one database, or from every database of the server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from pgrole_controller.commands.arguments import ServerChoice
from pgrole_controller.commands.output import spell_error
from pgrole_controller.commands.servers import find_server, reading
from pgrole_controller.core.access_report import (
    AccessLine,
    NamedObjects,
    ObjectUsers,
    Surroundings,
    what_can,
    who_can,
)
from pgrole_controller.core.effective_access import AccessJudge, AccessObject
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.role_graph import PG_MAINTAIN, PG_READ_ALL_DATA, PG_WRITE_ALL_DATA, RoleGraph
from pgrole_controller.postgres.access_catalog import (
    INHERIT_BY_GRANT_SINCE,
    FoundObject,
    SeenDatabase,
    find_object,
    find_role,
    read_databases,
    read_object_name,
    read_objects,
    read_role_graph,
    read_version,
)
from pgrole_controller.postgres.connection import Endpoint

#: Roles that are shown of those that may use an object.
MOST_USERS = 1000

#: Databases that are read at the same time.
_AT_ONCE = 4

_READ_EVERYTHING = frozenset({PG_READ_ALL_DATA, PG_WRITE_ALL_DATA, PG_MAINTAIN})


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """Who may use one object of one database."""

    database: str
    found: FoundObject
    users: ObjectUsers
    graph: RoleGraph


@dataclass(slots=True)
class DatabaseAccess:
    """What a role may do in one database. `problem`: why its objects were not read. `cut`: not all of them were."""

    name: str
    lines: list[AccessLine] = field(default_factory=list)
    problem: str = ""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class RoleReport:
    """What one role may do. A superuser's objects are not read: it may do everything."""

    role: int
    graph: RoleGraph
    databases: list[DatabaseAccess]


async def look_at_object(choice: ServerChoice, text: str, database: str | None) -> ObjectReport:
    """Who may use the object with this name. Raises PgRoleError."""
    name = read_object_name(text)
    endpoint = await _find_endpoint(choice)
    async with reading(endpoint, database) as connection:
        version = await read_version(connection)
        graph = await read_role_graph(connection)
        here = _current(await read_databases(connection))
        found = await find_object(connection, name, here)
    judge = _judge(graph, here, version)
    users = who_can(judge, found.acl, found.around, MOST_USERS)
    return ObjectReport(here.object.name, found, users, judge.graph)


async def _find_endpoint(choice: ServerChoice) -> Endpoint:
    server = await find_server(choice)
    if server.endpoint is None:
        raise Refused(Reason.SERVER_NOT_READY, f'PgServer "{server.name}" has no connection')
    return server.endpoint


def _current(databases: Sequence[SeenDatabase]) -> AccessObject:
    for one in databases:
        if one.current:
            return one.acl
    raise Refused(Reason.DATABASE_ERROR, "the database was dropped or renamed meanwhile: run the command again")


def _judge(graph: RoleGraph, database: AccessObject, version: int) -> AccessJudge:
    here = graph.in_database(database.object.owner, by_role=version < INHERIT_BY_GRANT_SINCE)
    return AccessJudge(here, version)


async def look_at_role(choice: ServerChoice, name: str, only: str | None) -> RoleReport:
    """What the role with this name may do, in all databases or one. Raises PgRoleError."""
    endpoint = await _find_endpoint(choice)
    async with reading(endpoint) as connection:
        version = await read_version(connection)
        graph = await read_role_graph(connection)
        databases = await read_databases(connection)
    role = find_role(graph, name)
    wanted = [one for one in databases if only is None or one.acl.object.name == only]
    if only is not None and not wanted:
        raise Refused(Reason.INVALID_SPEC, f'--database {only}: database "{only}" does not exist')
    found = [DatabaseAccess(one.acl.object.name) for one in wanted]
    limit = anyio.CapacityLimiter(_AT_ONCE)
    async with anyio.create_task_group() as tasks:
        for seen, access in zip(wanted, found, strict=True):
            judge = _judge(graph, seen.acl, version)
            tasks.start_soon(_look_into, endpoint, judge, role, seen, access, limit)
    return RoleReport(role, graph, found)


async def _look_into(
    endpoint: Endpoint,
    judge: AccessJudge,
    role: int,
    seen: SeenDatabase,
    access: DatabaseAccess,
    limit: anyio.CapacityLimiter,
) -> None:
    """One database that cannot be read does not hide the others."""
    around = Surroundings(seen.acl)
    groups: list[NamedObjects] = [NamedObjects(seen.acl, (seen.acl.object.name,))]
    if seen.refusal or role in judge.superusers:
        access.problem = seen.refusal
        access.lines = what_can(judge, role, groups, {}, around, {})
        return
    reach = judge.graph.inherited(judge.graph.settable(role))
    everything = bool(reach & _READ_EVERYTHING) or bool(reach & judge.superusers)
    try:
        async with limit, reading(endpoint, None if seen.current else seen.acl.object.name) as connection:
            read = await read_objects(connection, reach, everything=everything)
    except PgRoleError as error:
        access.problem = spell_error(error)
        access.lines = what_can(judge, role, groups, {}, around, {})
        return
    access.cut = read.cut
    access.lines = what_can(judge, role, [*groups, *read.groups], read.totals, around, read.schemas)
