"""Shared by the tests of `export`: sets up servers from files, computes what the controller would do, and does it."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import asyncpg
import yaml
from rich.progress import Progress

from pgrole_controller.api.reading import read_pgrole
from pgrole_controller.commands.export import Export, ExportOptions, export_roles
from pgrole_controller.commands.export_objects import ExportedObject
from pgrole_controller.commands.export_yaml import to_yaml
from pgrole_controller.commands.server_reading import of_dsn
from pgrole_controller.core import ddl
from pgrole_controller.core.claim import Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.desired import desired_of, privileges_of
from pgrole_controller.core.diff import diff
from pgrole_controller.core.errors import Waiting
from pgrole_controller.core.plan import Action
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.privileges import grant_ddl
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.grantee import Grantee, PrivilegePolicy
from pgrole_controller.core.privileges.object_patterns import CompiledPrivileges
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import POWERS, ObservedRole
from pgrole_controller.core.state import Observed, Server
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.catalog import ReferencedNames, read_references
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges.acl_catalog import read_database
from pgrole_controller.postgres.server_catalog import read_role_names, read_roles
from tests.commands import choose

OBSERVER = "export_observer"
_LEFT_OUT = ("GRANT", "REVOKE", "ALTER DEFAULT", "ALTER ROLE", "COMMENT ON ROLE")


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a script, and the database it is for."""

    database: str
    statement: str


def read_script(text: str, *, bare: bool = False) -> list[Step]:
    r"""One statement in each line, and `\connect` as in psql. `bare`: roles and objects without anything granted."""
    steps: list[Step] = []
    database = "postgres"
    for line in text.splitlines():
        if line.startswith("\\connect "):
            database = line.split()[1]
        elif line and not line.startswith("--") and not (bare and line.startswith(_LEFT_OUT)):
            role = bare and line.startswith("CREATE ROLE")
            steps.append(Step(database, " ".join(line.rstrip(";").split()[:3]) if role else line))
    return steps


async def run_script(server: PostgresServer, steps: Iterable[Step]) -> None:
    connections: dict[str, asyncpg.Connection[Any]] = {}
    try:
        for step in steps:
            if step.database not in connections:
                connections[step.database] = await asyncpg.connect(server.dsn(database=step.database))
            await connections[step.database].execute(step.statement)
    finally:
        for connection in connections.values():
            await connection.close()


async def add_observer(server: PostgresServer) -> str:
    """Creates a login with pg_monitor that may connect to every database; returns its DSN."""
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute(f"CREATE ROLE {OBSERVER} LOGIN PASSWORD 'o'; GRANT pg_monitor TO {OBSERVER}")
        for (name,) in await connection.fetch("SELECT datname FROM pg_database WHERE datallowconn"):
            await connection.execute(f'GRANT CONNECT ON DATABASE "{name}" TO {OBSERVER}')
    finally:
        await connection.close()
    return f"postgresql://{OBSERVER}:o@{server.host}:{server.port}/postgres"


async def export_from(dsn: str, *roles: str, databases: tuple[str, ...] | None = None, exact: bool = False) -> Export:
    options = ExportOptions(choose(dsn=dsn), roles, databases, exact=exact)
    return await export_roles(of_dsn(dsn), options, Progress(disable=True))


@dataclass(frozen=True, slots=True)
class LiveRole:
    """An exported object, parsed from its YAML, and the role as observed."""

    document: dict[str, Any]
    found: ObservedRole


async def live_roles(connection: Connection, objects: Sequence[ExportedObject]) -> list[LiveRole]:
    documents = [yaml.safe_load(to_yaml(one.document, one.notes)) for one in objects]
    names = [read_pgrole(one).role_name for one in documents]
    found = {name: role async for name, role in read_roles(connection, names)}
    roles: list[LiveRole] = []
    for name, document in zip(names, documents, strict=True):
        role = found[name]
        assert isinstance(role, ObservedRole)
        roles.append(LiveRole(document, role))
    return roles


async def check_unchanged(server: PostgresServer, objects: Sequence[ExportedObject]) -> None:
    """Asserts that the controller would adopt every role and change neither it nor its privileges."""
    async with connect(Endpoint(dsn=server.dsn()), "test") as connection:
        roles = await live_roles(connection, objects)
        every = await read_role_names(connection)
        names = [one.name for one in every]
        referenced = ReferencedNames(
            groups=frozenset(names),
            parameters=frozenset(name for one in roles for name in one.found.role.parameter_names),
            databases=frozenset(name for one in roles for name, _ in one.found.role.database_parameters),
        )
        version = connection.get_server_version().major * 10_000
        references = await read_references(connection, referenced, version)
    policy = Policy(attributes=frozenset(POWERS), member_of=("*", *names), parameters=frozenset(referenced.parameters))
    here = Server(1, frozenset({OBSERVER}), Address("", 5432, "postgres", "disable"))
    for one, exported in zip(roles, objects, strict=True):
        desired = desired_of(read_pgrole(one.document), Owner("test", "shop", "", "", ""), (), None)
        if one.found.reaches:  # the controller adopts no role that reaches a superuser
            assert "adoption is denied" in exported.notes[0]
            changes = diff(desired.role, replace(one.found.role, password=None))
            ignored = one.document["spec"].get("drift", {}).get("ignore", ())
            assert [change for change in changes if change.field not in ignored] == []
            continue
        listed = frozenset(desired.privileges or ())  # privileges: below
        plan = decide(desired, Observed(named=one.found, references=references, unheld=listed), here, policy)
        assert (plan.changes, plan.pending, plan.action) == ((), (), Action.ADOPTED), one.document
    notes = {one.name: one.notes for one in objects}
    for database, decision, document in await decide_everywhere(server, roles, [one.oid for one in every]):
        assert (decision.changes, decision.default_changes) == ((), ()), document
        noted = any(note.startswith(f"{database}: reported as drift") for note in notes[document["metadata"]["name"]])
        assert noted == bool(decision.reported), document
        assert not [error for error in decision.pending if isinstance(error, Waiting)], document


async def decide_everywhere(
    server: PostgresServer, roles: Sequence[LiveRole], owned: Iterable[int]
) -> list[tuple[str, PrivilegeDecision, dict[str, Any]]]:
    """What each database's worker would do, if the namespace owned every role."""
    decisions: list[tuple[str, PrivilegeDecision, dict[str, Any]]] = []
    grantees = {one.found.oid: (_grantee(one, frozenset(owned)), one.document) for one in roles}
    for database in sorted({name for grantee, _ in grantees.values() for name in grantee.databases}):
        some = [one for one, _ in grantees.values() if database in one.databases]
        reach = PrivilegeReach.of(database, some)
        async with connect(Endpoint(dsn=server.dsn(database=database)), "test") as connection:
            oids = [one.oid for one in some]
            observed = await read_database(connection, oids, reach.creators, reach.touches, reach.has_columns)
        decisions += [(database, decide_privileges(one, observed, ""), grantees[one.oid][1]) for one in some]
    return decisions


def _grantee(one: LiveRole, owned: frozenset[int]) -> Grantee:
    role = one.found
    return Grantee(
        key=Key("shop", role.role.name),
        uid=role.role.name,
        generation=1,
        role_name=role.role.name,
        oid=role.oid,
        declared=privileges_of(read_pgrole(one.document)) or {},
        policy=PrivilegePolicy(databases=("*",)),
        owned=owned,
    )


async def apply_to(server: PostgresServer, objects: Sequence[ExportedObject]) -> None:
    """Applies the objects to a server's roles with the controller's own SQL."""
    async with connect(Endpoint(dsn=server.dsn()), "test") as connection:
        version = connection.get_server_version().major
        every = [one.oid for one in await read_role_names(connection)]
        roles = await live_roles(connection, objects)
        for one in roles:
            desired = desired_of(read_pgrole(one.document), Owner("test", "shop", "", "", ""), (), None).role
            ignored = frozenset(one.document["spec"].get("drift", {}).get("ignore", ()))
            changes = [change for change in diff(desired, one.found.role) if change.field not in {*ignored, "password"}]
            for statement in ddl.statements(changes, options=version >= 16):
                await connection.execute(statement)
    for database, decision, _ in await decide_everywhere(server, roles, every):
        async with connect(Endpoint(dsn=server.dsn(database=database)), "test") as connection:
            for made in grant_ddl.statements(decision.changes, decision.default_changes, version * 10_000):
                await connection.execute(made.text)


@asynccontextmanager
async def superuser(server: PostgresServer, database: str = "postgres") -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(server.dsn(database=database))
    try:
        yield connection
    finally:
        await connection.close()


def is_exact(one: ExportedObject) -> bool:
    """Whether it declares everything that the role is and holds."""
    spec = one.document["spec"]
    return "drift" not in spec and not any("unmanaged" in item for item in spec.get("privileges", ()))


def take_columns(one: ExportedObject) -> tuple[dict[str, Any], set[tuple[str, ...]]]:
    """Returns the document without privileges on columns, and these as database, schema, table, column and privilege:
    those that the role holds on the whole table, too, are left out, since the controller does not grant them again.
    """
    document = deepcopy(one.document)
    declared = privileges_of(read_pgrole(document)) or {}
    columns: set[tuple[str, ...]] = set()
    for item in document["spec"].get("privileges", ()):
        compiled = CompiledPrivileges(declared[item["database"]], 180_000)
        for part in [part for part in item.get("objects", ()) if "columns" in part]:
            item["objects"].remove(part)
            for name in part["names"]:
                table = DatabaseObject(ObjectId("pg_class", 20_000), ObjectKind.TABLE, part["schema"], name, 0, "")
                granted = set(part["privileges"]) - compiled.wanted(table).privileges
                places = product((item["database"],), (part["schema"],), (name,), part["columns"], granted)
                columns.update(places)
        if not item.get("objects"):
            item.pop("objects", None)
    return document, columns
