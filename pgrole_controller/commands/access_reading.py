"""Reads what `access` shows: from one database, or from every database of the server."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from pgrole_controller.commands.output import spell_error
from pgrole_controller.commands.server_reading import DATABASES_AT_ONCE, ServerChoice, find_server, read_each, reading
from pgrole_controller.core.access.access_origin import Changes, Declarations, LastChange
from pgrole_controller.core.access.access_report import (
    AccessLine,
    DeclaredHere,
    EnclosingObjects,
    NamedObjects,
    ObjectUsers,
    what_can,
    who_can,
)
from pgrole_controller.core.access.effective_access import (
    AccessJudge,
    AccessObject,
    EffectivePrivilege,
    Route,
    Source,
)
from pgrole_controller.core.access.role_graph import PG_MAINTAIN, PG_READ_ALL_DATA, PG_WRITE_ALL_DATA, RoleGraph
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.privileges.acl import PUBLIC
from pgrole_controller.postgres.access_catalog import (
    FoundObject,
    ReadObjects,
    SeenDatabase,
    find_object,
    find_role,
    read_databases,
    read_object_name,
    read_objects,
    read_role_graph,
    read_version,
)
from pgrole_controller.postgres.access_origins import find_origins, read_changes, read_declarations
from pgrole_controller.postgres.catalog import MEMBERSHIP_OPTIONS_VERSION
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.settings import WrongSetting

#: Maximum number of roles shown for one object.
MOST_USERS = 1000

_TEMPLATE = "a template is read only if --database names it"
_READ_EVERYTHING = frozenset({PG_READ_ALL_DATA, PG_WRITE_ALL_DATA, PG_MAINTAIN})


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """Who may use one object of one database. `notes`: what could not be seen, with the remedy."""

    database: str
    found: FoundObject
    users: ObjectUsers
    graph: RoleGraph
    declarations: Declarations
    changes: Changes
    notes: tuple[str, ...]

    def declarer(self, one: EffectivePrivilege, route: Route) -> str | None:
        """As Declarations.declarer."""
        return self.declarations.declarer(route, self.database, self.found.acl.object, one)

    def acl_change(self) -> LastChange | None:
        """The last change of the object's own grants, those on columns included; None if one is unknown."""
        known = [self.changes.acls.get(one.column) for one in self.found.versions]
        some = [one for one in known if one is not None]
        return max(some, key=lambda one: one.time) if some and len(some) == len(known) else None


@dataclass(frozen=True, slots=True)
class DatabaseAccess:
    """What a role may do in one database. `problem`: why its objects were not read. `cut`: not all of them were.

    `direct`: what a superuser was granted or owns, although it needs none of that.
    """

    name: str
    lines: list[AccessLine] = field(default_factory=list)
    direct: list[AccessLine] = field(default_factory=list)
    problem: str = ""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class RoleReport:
    """What one role may do."""

    role: int
    graph: RoleGraph
    databases: list[DatabaseAccess]
    declarations: Declarations


async def look_at_object(choice: ServerChoice, text: str, database: str | None) -> ObjectReport:
    """Reads who may use the object with this name. Raises WrongSetting if it cannot be a name, and PgRoleError."""
    try:
        name = read_object_name(text)
    except ValueError as error:
        raise WrongSetting(str(error)) from error
    endpoint = await _find_endpoint(choice)
    async with reading(endpoint, database) as connection:
        tables = await find_origins(connection)
        version = await read_version(connection)
        graph = await read_role_graph(connection)
        here = _current(await read_databases(connection))
        found = await find_object(connection, name, here)
        read = await read_changes(connection, tables.events, found.acl.object.id, found.versions, version)
        holders = {entry.grantee for entry in found.acl.entries} - {PUBLIC}
        declarations = None
        if database is None:
            declarations = await read_declarations(connection, tables.claims, graph.roles, holders, version)
    if declarations is None:
        declarations = await _read_declarations_at_home(endpoint, graph.roles, holders, version)
    judge = _judge(graph, here, version)
    users = who_can(judge, found.acl, found.around, MOST_USERS)
    notes = (*filter(None, [declarations.problem]), *read.notes)
    return ObjectReport(here.object.name, found, users, judge.graph, declarations, read.changes, notes)


async def _read_declarations_at_home(
    endpoint: Endpoint, roles: Collection[int], holders: Collection[int], version: int
) -> Declarations:
    async with reading(endpoint) as connection:
        tables = await find_origins(connection)
        return await read_declarations(connection, tables.claims, roles, holders, version)


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
    here = graph.in_database(database.object.owner, by_role=version < MEMBERSHIP_OPTIONS_VERSION)
    return AccessJudge(here, version)


async def look_at_role(choice: ServerChoice, name: str, only: str | None) -> RoleReport:
    """Reads what the role with this name may do, in all databases or one. Raises PgRoleError."""
    endpoint = await _find_endpoint(choice)
    async with reading(endpoint) as connection:
        tables = await find_origins(connection)
        version = await read_version(connection)
        graph = await read_role_graph(connection)
        databases = await read_databases(connection)
        role = find_role(graph, name)
        holders = graph.inherited(graph.settable(role))
        declarations = await read_declarations(connection, tables.claims, holders, holders, version)
    found = await read_each(
        _choose(databases, only),
        lambda one: _read_database(endpoint, _judge(graph, one.acl, version), role, declarations, one),
        DATABASES_AT_ONCE,
    )
    return RoleReport(role, graph, found, declarations)


def _choose(databases: Sequence[SeenDatabase], only: str | None) -> list[SeenDatabase]:
    """Returns the one with that name, or all. Of several, a template is not read: no database could be created from it
    meanwhile. Raises Refused if there is none.
    """
    if only is not None:
        wanted = [one for one in databases if one.acl.object.name == only]
        if not wanted:
            raise Refused(Reason.INVALID_SPEC, f'database "{only}" does not exist')
        return wanted
    return [
        replace(one, refusal=one.refusal or _TEMPLATE) if one.template and not one.current else one
        for one in databases
        if one.allowed or not one.template
    ]


async def _read_database(
    endpoint: Endpoint, judge: AccessJudge, role: int, declarations: Declarations, seen: SeenDatabase
) -> DatabaseAccess:
    """Reads what a role may do in one database. One that cannot be read does not hide the others."""
    name, problem = seen.acl.object.name, seen.refusal
    reach = {role} if role in judge.superusers else judge.graph.inherited(judge.graph.settable(role))
    everything = role not in judge.superusers and bool(reach & (_READ_EVERYTHING | judge.superusers))
    read = ReadObjects((), {}, {}, cut=False)
    if not seen.refusal:
        try:
            async with reading(endpoint, None if seen.current else name) as connection:
                read = await read_objects(connection, reach, everything=everything)
        except PgRoleError as error:
            problem = spell_error(error)
    around = EnclosingObjects(seen.acl)
    declared = None if declarations.problem else DeclaredHere(declarations, name)
    itself = NamedObjects(seen.acl, (name,))
    every = [itself, *read.groups]
    if role not in judge.superusers:
        lines = what_can(judge, role, every, read.totals, around, read.schemas, declared)
        return DatabaseAccess(name, lines, problem=problem, cut=read.cut)
    lines = what_can(judge, role, [itself], {}, around, {}, declared)
    plain = _without_superuser(judge, role)
    held = what_can(plain, role, every, read.totals, EnclosingObjects(), {}, declared)
    direct = [one for one in held if one.privileges[0].routes[0].source is not Source.PUBLIC]
    return DatabaseAccess(name, lines, direct, problem, read.cut)


def _without_superuser(judge: AccessJudge, role: int) -> AccessJudge:
    """Returns a judge for which the role has only what it was granted itself, and nothing by memberships."""
    return AccessJudge(RoleGraph([replace(judge.graph.roles[role], superuser=False)], ()), judge.version)
