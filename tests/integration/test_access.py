"""`pgrole-controller access` agrees with PostgreSQL's has_*_privilege functions, and shows the path of each
privilege.
"""

import io
import json
import random
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import asyncpg
import pytest
import pytest_asyncio
from rich.console import Console

from pgrole_controller.commands.access_json import describe_users
from pgrole_controller.commands.access_reading import ObjectReport, RoleReport, look_at_object, look_at_role
from pgrole_controller.commands.access_text import print_role, print_users
from pgrole_controller.commands.output import make_console
from pgrole_controller.commands.server_reading import ServerChoice
from pgrole_controller.core.access.access_report import NamedObjects, RoleAccess, who_can
from pgrole_controller.core.access.effective_access import AccessJudge, SubjectJudge, every_privilege
from pgrole_controller.core.access.role_graph import RoleGraph
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import COLUMN_PRIVILEGES, ObjectKind
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.access_catalog import (
    find_object,
    read_databases,
    read_object_name,
    read_objects,
    read_role_graph,
)
from pgrole_controller.postgres.catalog import MEMBERSHIP_OPTIONS_VERSION
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from tests.commands import CommandAnswer, choose, run_command

ROLES = tuple(f"access_{letter}" for letter in "abcdefgh")
PREDEFINED = ("pg_read_all_data", "pg_write_all_data")

#: By object label: its keyword in GRANT, the has_*_privilege function, the function's argument, and the kind.
OBJECTS = {
    "app.one": ("TABLE", "table", "app.one", ObjectKind.TABLE),
    "hr.two": ("TABLE", "table", "hr.two", ObjectKind.TABLE),
    "app.seen": ("TABLE", "table", "app.seen", ObjectKind.VIEW),
    "app.kept": ("TABLE", "table", "app.kept", ObjectKind.MATERIALIZED_VIEW),
    "app.far": ("TABLE", "table", "app.far", ObjectKind.FOREIGN_TABLE),
    "app.seq": ("SEQUENCE", "sequence", "app.seq", ObjectKind.SEQUENCE),
    "app.fn(integer)": ("FUNCTION", "function", "app.fn(integer)", ObjectKind.ROUTINE),
    "app.fn(text)": ("FUNCTION", "function", "app.fn(text)", ObjectKind.ROUTINE),
    "app": ("SCHEMA", "schema", "app", ObjectKind.SCHEMA),
    "hr": ("SCHEMA", "schema", "hr", ObjectKind.SCHEMA),
    "app.dom": ("DOMAIN", "type", "app.dom", ObjectKind.TYPE),
    "plpgsql": ("LANGUAGE", "language", "plpgsql", ObjectKind.LANGUAGE),
    "access_wrapper": (
        "FOREIGN DATA WRAPPER",
        "foreign_data_wrapper",
        "access_wrapper",
        ObjectKind.FOREIGN_DATA_WRAPPER,
    ),
    "access_server": ("FOREIGN SERVER", "server", "access_server", ObjectKind.FOREIGN_SERVER),
    "2147483001": ("LARGE OBJECT", "largeobject", "2147483001", ObjectKind.LARGE_OBJECT),
    "database": ("DATABASE", "database", "{database}", ObjectKind.DATABASE),
}
COLUMNS = ("id", "name")

_SETUP = """
    CREATE SCHEMA app; CREATE SCHEMA hr;
    CREATE TABLE app.one (id int, name text); CREATE TABLE hr.two (id int, name text);
    CREATE VIEW app.seen AS SELECT * FROM app.one; CREATE MATERIALIZED VIEW app.kept AS SELECT * FROM app.one;
    CREATE SEQUENCE app.seq; CREATE DOMAIN app.dom AS int;
    CREATE FUNCTION app.fn(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION app.fn(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FOREIGN DATA WRAPPER access_wrapper; CREATE SERVER access_server FOREIGN DATA WRAPPER access_wrapper;
    CREATE FOREIGN TABLE app.far (id int, name text) SERVER access_server;
    SELECT lo_create(2147483001);
"""


@dataclass(frozen=True, slots=True)
class AccessTrial:
    """A database that each test fills at random in a transaction and rolls back."""

    connection: Connection
    database: str
    version: int

    async def fill(self, choice: random.Random) -> None:
        await self.connection.execute(_SETUP)
        for role in ROLES:
            options = choice.choice(["", "LOGIN", "NOINHERIT", "LOGIN NOINHERIT"])
            await self.connection.execute(f"CREATE ROLE {role} {options}")
        if choice.random() < 0.5:
            await self.connection.execute(f"ALTER ROLE {choice.choice(ROLES)} SUPERUSER")
        for statement in (*self._memberships(choice), *self._owners(choice), *self._grants(choice)):
            async with self.connection.transaction():
                await self.connection.execute(statement)

    def _memberships(self, choice: random.Random) -> list[str]:
        made = []
        groups = [*PREDEFINED, *(["pg_maintain"] if self.version >= 170000 else [])]
        for place, member in enumerate(ROLES):
            joined = choice.sample(ROLES[place + 1 :], k=min(2, len(ROLES) - place - 1))
            made += [f"GRANT {group} TO {member}{self._options(choice)}" for group in joined]
            if choice.random() < 0.15:
                made.append(f"GRANT {choice.choice(groups)} TO {member}{self._options(choice)}")
        return made

    def _options(self, choice: random.Random) -> str:
        if self.version < MEMBERSHIP_OPTIONS_VERSION:
            return choice.choice(["", " WITH ADMIN OPTION"])
        options = [f"{name} {choice.choice(['TRUE', 'FALSE'])}" for name in ("INHERIT", "SET", "ADMIN")]
        return f" WITH {', '.join(options)}"

    def _owners(self, choice: random.Random) -> list[str]:
        return [
            f"ALTER {'ROUTINE' if word == 'FUNCTION' else _ALTERED.get(kind, word)} {self._name(name)} "
            f"OWNER TO {choice.choice(ROLES)}"
            for word, _, name, kind in OBJECTS.values()
            if choice.random() < 0.6
            and kind not in (ObjectKind.LANGUAGE, ObjectKind.FOREIGN_DATA_WRAPPER, ObjectKind.FOREIGN_SERVER)
        ]

    def _grants(self, choice: random.Random) -> list[str]:
        made = []
        for word, _, name, kind in OBJECTS.values():
            for _ in range(3):
                privilege = choice.choice(["ALL", *every_privilege(kind, self.version)])
                to = choice.choice([*ROLES, "PUBLIC"])
                columns = ""
                if word == "TABLE" and privilege in COLUMN_PRIVILEGES and choice.random() < 0.5:
                    columns = f" ({choice.choice(COLUMNS)})"
                option = " WITH GRANT OPTION" if to != "PUBLIC" and choice.random() < 0.3 else ""
                made.append(f"GRANT {privilege}{columns} ON {word} {self._name(name)} TO {to}{option}")
            if choice.random() < 0.4:
                to = choice.choice([*ROLES, "PUBLIC"])
                made.append(f"REVOKE ALL ON {word} {self._name(name)} FROM {to} CASCADE")
        return made

    def _name(self, name: str) -> str:
        return name.format(database=f'"{self.database}"')

    async def oids(self) -> dict[str, int]:
        rows = await self.connection.fetch("SELECT rolname, oid FROM pg_roles WHERE rolname = ANY ($1)", list(ROLES))
        return {row["rolname"]: row["oid"] for row in rows}

    async def facts(self, label: str) -> tuple[dict[tuple[int, str, str], bool], dict[tuple[int, str, str], bool]]:
        """PostgreSQL's answers: by role, privilege and column, whether the role has it and whether it may grant it."""
        _, function, name, kind = OBJECTS[label]
        privileges = every_privilege(kind, self.version)
        if kind is ObjectKind.LARGE_OBJECT:
            return await self._large_object_facts(int(name), privileges)
        rows = await self.connection.fetch(
            f"""
            SELECT r.oid, p.p, '' AS c, has_{function}_privilege(r.oid, $1, p.p) AS has,
                   has_{function}_privilege(r.oid, $1, p.p || ' WITH GRANT OPTION') AS gives
            FROM pg_roles AS r, unnest($2::text[]) AS p (p)
            """,
            self._raw(name),
            list(privileges),
        )
        if function == "table":
            rows += await self.connection.fetch(
                """
                SELECT r.oid, p.p, c.c, has_column_privilege(r.oid, $1, c.c, p.p) AS has,
                       has_column_privilege(r.oid, $1, c.c, p.p || ' WITH GRANT OPTION') AS gives
                FROM pg_roles AS r, unnest($2::text[]) AS p (p), unnest($3::text[]) AS c (c)
                """,
                name,
                sorted(COLUMN_PRIVILEGES),
                list(COLUMNS),
            )
        keys = [(row["oid"], row["p"], row["c"]) for row in rows]
        has = dict(zip(keys, (row["has"] for row in rows), strict=True))
        return has, dict(zip(keys, (row["gives"] for row in rows), strict=True))

    async def _large_object_facts(
        self, oid: int, privileges: Sequence[str]
    ) -> tuple[dict[tuple[int, str, str], bool], dict[tuple[int, str, str], bool]]:
        """Uses has_largeobject_privilege since PostgreSQL 18; before, the ACL and pg_has_role."""
        rows = await self.connection.fetch(
            _LARGE_OBJECT_FACTS_18 if self.version >= 180000 else _LARGE_OBJECT_FACTS, oid, list(privileges)
        )
        keys = [(row["oid"], row["p"], "") for row in rows]
        has = dict(zip(keys, (row["has"] for row in rows), strict=True))
        return has, dict(zip(keys, (row["gives"] for row in rows), strict=True))

    def _raw(self, name: str) -> str:
        return name.format(database=self.database)

    async def settable(self) -> dict[int, set[int]]:
        how = "SET" if self.version >= MEMBERSHIP_OPTIONS_VERSION else "MEMBER"
        rows = await self.connection.fetch(
            "SELECT a.oid AS subject, b.oid AS target FROM pg_roles AS a, pg_roles AS b "
            f"WHERE pg_has_role(a.oid, b.oid, '{how}')"
        )
        found: dict[int, set[int]] = {}
        for row in rows:
            found.setdefault(row["subject"], set()).add(row["target"])
        return found

    async def judge(self) -> tuple[AccessJudge, RoleGraph]:
        graph = await read_role_graph(self.connection)
        owner = next(one.acl.object.owner for one in await read_databases(self.connection) if one.current)
        here = graph.in_database(owner, by_role=self.version < MEMBERSHIP_OPTIONS_VERSION)
        return AccessJudge(here, self.version), here


_LARGE_OBJECT_FACTS_18 = """
    SELECT r.oid, p.p, has_largeobject_privilege(r.oid, $1::oid, p.p) AS has,
           has_largeobject_privilege(r.oid, $1::oid, p.p || ' WITH GRANT OPTION') AS gives
    FROM pg_roles AS r, unnest($2::text[]) AS p (p)
"""
_LARGE_OBJECT_FACTS = """
    SELECT r.oid, p.p, r.rolsuper OR coalesce(bool_or(e.has), false) AS has,
           r.rolsuper OR pg_has_role(r.oid, m.lomowner, 'USAGE')
               OR coalesce(bool_or(e.has AND e.is_grantable), false) AS gives
    FROM pg_roles AS r CROSS JOIN unnest($2::text[]) AS p (p) CROSS JOIN pg_largeobject_metadata AS m
    LEFT JOIN LATERAL (
        SELECT a.is_grantable, a.grantee = 0 OR pg_has_role(r.oid, a.grantee, 'USAGE') AS has
        FROM aclexplode(coalesce(m.lomacl, acldefault('L', m.lomowner))) AS a
        WHERE a.privilege_type = p.p AND (a.grantee = 0 OR EXISTS (SELECT FROM pg_roles AS g WHERE g.oid = a.grantee))
    ) AS e ON true
    WHERE m.oid = $1::oid
    GROUP BY r.oid, r.rolsuper, p.p, m.lomowner
"""

_ALTERED = {
    ObjectKind.VIEW: "VIEW",
    ObjectKind.MATERIALIZED_VIEW: "MATERIALIZED VIEW",
    ObjectKind.FOREIGN_TABLE: "FOREIGN TABLE",
}


@pytest_asyncio.fixture(loop_scope="session")
async def trial(database: str) -> AsyncIterator[AccessTrial]:
    async with connect(Endpoint(dsn=database), "test") as connection:
        version = await connection.fetchval("SELECT current_setting('server_version_num')::int")
        name = await connection.fetchval("SELECT current_database()")
        yield AccessTrial(connection, name, version)


@pytest.mark.parametrize("seed", range(8))
async def test_the_privileges_of_every_role_agree_with_postgresql(trial: AccessTrial, seed: int) -> None:
    transaction = trial.connection.transaction()
    await transaction.start()
    try:
        await trial.fill(random.Random(seed))
        judge, graph = await trial.judge()
        settable = await trial.settable()
        facts = {label: await trial.facts(label) for label in OBJECTS}
        compared = 0
        for subject in (await trial.oids()).values():
            groups = await _groups(trial, graph, subject)
            for label, (has, gives) in facts.items():
                kind = OBJECTS[label][3]
                found = {}
                for group in groups[label]:
                    for one in SubjectJudge(judge, subject).privileges(group.acl):
                        found[one.privilege, one.column] = one
                for (oid, privilege, column), now in has.items():
                    if oid != subject:
                        continue
                    whole, own = found.get((privilege, "")), found.get((privilege, column))
                    known = [one for one in (whole, own) if one is not None]
                    after = any(has[role, privilege, column] for role in settable[subject])
                    where = f"{label} {kind} {privilege} {column} for {graph.name(subject)}"
                    assert any(not one.after_set_role for one in known) == now, where
                    assert bool(known) == (now or after), where
                    if now and kind is not ObjectKind.DATABASE:
                        best = min(known, key=lambda one: one.after_set_role)
                        if best.column == column:
                            assert best.grantable == gives[oid, privilege, column], where
                    compared += 1
        assert compared > 500
    finally:
        await transaction.rollback()


async def _groups(trial: AccessTrial, graph: RoleGraph, subject: int) -> dict[str, list[NamedObjects]]:
    """What is read for one role, by object label; empty for objects that are not read."""
    reach = graph.inherited(graph.settable(subject))
    everything = any(graph.name(oid).startswith("pg_") or graph.roles[oid].superuser for oid in reach)
    read = await read_objects(trial.connection, reach, everything=everything)
    found: dict[str, list[NamedObjects]] = {label: [] for label in OBJECTS}
    for group in read.groups:
        for name in group.names:
            obj = group.acl.object
            label = name if obj.kind is ObjectKind.SCHEMA or not obj.schema else f"{obj.schema}.{name}"
            if label in found and OBJECTS[label][3] is obj.kind:
                found[label].append(group)
    for one in await read_databases(trial.connection):
        if one.current:
            found["database"].append(NamedObjects(one.acl, (one.acl.object.name,)))
    return found


@pytest.mark.parametrize("seed", [*range(20, 24), 46, 49])
async def test_the_users_of_an_object_agree_with_postgresql(trial: AccessTrial, seed: int) -> None:
    transaction = trial.connection.transaction()
    await transaction.start()
    try:
        await trial.fill(random.Random(seed))
        judge, graph = await trial.judge()
        settable = await trial.settable()
        (here,) = [one.acl for one in await read_databases(trial.connection) if one.current]
        for label in ("app.one", "hr.two", "app.seen", "app.seq", "app.fn(integer)", "app"):
            found = await find_object(trial.connection, read_object_name(label), here)
            users = who_can(judge, found.acl, found.around, 100)
            listed = {user.role: user for user in users.users}
            everyone = {(one.privilege, one.column) for one in users.public}
            has, _ = await trial.facts(label)
            for oid in (await trial.oids()).values():
                if oid in users.superusers:
                    continue
                privileges = listed[oid].privileges if oid in listed else ()
                now = {(one.privilege, one.column) for one in privileges if not one.after_set_role} | everyone
                ever = {(one.privilege, one.column) for one in privileges} | everyone
                for (role, privilege, column), held in has.items():
                    if role == oid:
                        where = f"{label} {privilege} {column} for {graph.name(oid)}"
                        assert bool(now & {(privilege, ""), (privilege, column)}) == held, where
                        after = any(has[other, privilege, column] for other in settable[oid])
                        assert bool(ever & {(privilege, ""), (privilege, column)}) == after, where
            within = found.around.schema
            await _compare_obstacles(trial, listed, None if within is None else within.object.name, has, settable)
    finally:
        await transaction.rollback()


async def _compare_obstacles(
    trial: AccessTrial,
    listed: Mapping[int, RoleAccess],
    schema: str | None,
    has: Mapping[tuple[int, str, str], bool],
    settable: Mapping[int, Iterable[int]],
) -> None:
    for oid, user in listed.items():
        for privilege, lacking in zip(user.privileges, user.lacks, strict=True):
            place = privilege.privilege, privilege.column
            acting = [other for other in settable[oid] if has.get((other, *place)) or has.get((other, place[0], ""))]
            uses = await trial.connection.fetchval(
                "SELECT bool_or(has_schema_privilege(r, $2, 'USAGE')) FROM unnest($1::oid[]) AS r", acting, schema
            )
            assert any(one.startswith("USAGE") for one in lacking) == (bool(schema) and not uses)
        login = await trial.connection.fetchval("SELECT rolcanlogin FROM pg_roles WHERE oid = $1", oid)
        connects = await trial.connection.fetchval(
            "SELECT has_database_privilege($1::oid, current_database(), 'CONNECT')", oid
        )
        assert any(one.startswith("CONNECT") for one in user.obstacles) == (login and not connects)


HOSTILE = "access_\"x'; DROP ROLE y; --\x1b[31m<script>"


@dataclass(frozen=True, slots=True)
class Monitored:
    """A database with tables and roles, seen by a login that has only pg_monitor."""

    choice: ServerChoice
    database: str
    server: PostgresServer
    dsn: str

    async def run(self, *arguments: str) -> CommandAnswer:
        return await run_command("access", *arguments, PGROLE_DSN=self.dsn)


@pytest_asyncio.fixture(loop_scope="session")
async def monitored(postgres_server: PostgresServer, database: str) -> AsyncIterator[Monitored]:
    suffix = secrets.token_hex(4)
    watcher, closed = f"access_watcher_{suffix}", f"access_closed_{suffix}"
    owner, reader = f"access_owner_{suffix}", f"access_reader_{suffix}"
    hostile = '"' + (HOSTILE + suffix).replace('"', '""') + '"'
    roles = (watcher, owner, reader, hostile)
    connection = await asyncpg.connect(database)
    try:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(
            f"""
            CREATE ROLE {watcher} LOGIN PASSWORD 'watching'; GRANT pg_monitor TO {watcher};
            CREATE ROLE {owner}; CREATE ROLE {reader}; CREATE ROLE {hostile} LOGIN; GRANT {reader} TO {hostile};
            CREATE SCHEMA app AUTHORIZATION {owner}; CREATE SCHEMA "My Schema"; SET ROLE {owner};
            CREATE TABLE app.orders (id int, name text);
            CREATE TABLE app.items (id int); CREATE TABLE app.lines (id int);
            CREATE FUNCTION app.fn(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
            CREATE TYPE app.pair AS (a int); CREATE TYPE app.span AS RANGE (subtype = int4);
            CREATE DOMAIN app.tags AS text[];
            CREATE FUNCTION app.fn(text[]) RETURNS int LANGUAGE sql AS 'SELECT 1';
            GRANT SELECT ON ALL TABLES IN SCHEMA app TO {reader}; GRANT UPDATE (name) ON app.orders TO {reader};
            GRANT USAGE ON SCHEMA app TO {reader}; RESET ROLE; CREATE TABLE "My Schema"."a.b" (id int);
            """
        )
        await connection.execute(f"CREATE DATABASE {closed}")
        await connection.execute(f"REVOKE CONNECT ON DATABASE {closed} FROM PUBLIC")
        host = f"{postgres_server.host}:{postgres_server.port}"
        dsn = f"postgresql://{watcher}:watching@{host}/{name}"
        yield Monitored(choose(dsn=dsn), closed, postgres_server, dsn)
        await connection.execute(f"DROP DATABASE {closed}")
        for role in roles:
            await connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    finally:
        await connection.close()


def said(report: ObjectReport | RoleReport) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    print_users(console, report) if isinstance(report, ObjectReport) else print_role(console, report)
    return stream.getvalue()


async def test_a_monitoring_login_sees_the_users_of_a_table_and_their_paths(monitored: Monitored) -> None:
    report = await look_at_object(monitored.choice, "App.Orders", None)
    text = said(report)
    assert "\x1b" not in text
    suffix = report.found.acl.object.owner_name.rpartition("_")[2]
    (line,) = [line for line in text.splitlines() if "DROP ROLE" in line]
    assert line.split()[-2:] == [f"access_reader_{suffix}", "unknown"]
    assert re.search(r"yes +SELECT, UPDATE \(name\) ", line)
    stored = json.loads(describe_users(report))
    (role,) = [one for one in stored["roles"] if one["role"] == HOSTILE + suffix]
    assert role["privileges"][0]["routes"][0]["through"] == [f"access_reader_{suffix}"]


@pytest.mark.parametrize("columns", [80, 300])
async def test_a_terminal_folds_no_cell_unless_the_rest_stays_legible(monitored: Monitored, columns: int) -> None:
    """A narrow one wraps whole rows; one of enough columns shows what a pipe shows."""
    report = await look_at_object(monitored.choice, "App.Orders", None)
    cannot_log_in = [user for user in report.users.users if not report.graph.roles[user.role].login]
    report = replace(report, users=replace(report.users, users=tuple(cannot_log_in)))
    assert "LOGIN" not in said(report)
    stream = io.StringIO()
    print_users(Console(file=stream, markup=False, highlight=False, force_terminal=True, width=columns), report)
    lines = [line.split() for line in re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()]
    rows = [line.split() for line in said(report).partition("Superusers")[0].splitlines()]
    assert lines[: len(rows)] == rows


async def test_tables_with_equal_privileges_share_one_line(monitored: Monitored) -> None:
    owner = (await look_at_object(monitored.choice, "app", None)).found.acl.object.owner_name
    here = (await look_at_object(monitored.choice, "app", None)).database
    report = await look_at_role(monitored.choice, owner.replace("owner", "reader"), here)
    lines = said(report).splitlines()
    assert any(re.match(r"2 of 3 tables in app: items, lines +SELECT +direct$", line) for line in lines), lines
    assert any(re.match(r"table app.orders +SELECT, UPDATE \(name\) +direct$", line) for line in lines), lines
    assert not any("My Schema" in line and "table" in line for line in lines)


async def test_types_of_the_role_are_listed_except_those_of_tables_arrays_and_multiranges(monitored: Monitored) -> None:
    found = await look_at_object(monitored.choice, "app", None)
    report = await look_at_role(monitored.choice, found.found.acl.object.owner_name, found.database)
    types = [line for line in said(report).splitlines() if " type" in line]
    assert len(types) == 1, types
    assert re.match(r"3 types in app: pair, span, tags +USAGE\* +owner", types[0])


async def test_what_everyone_may_in_a_renamed_schema_public_is_listed(monitored: Monitored) -> None:
    found = await look_at_object(monitored.choice, "app", None)
    owner = await asyncpg.connect(monitored.server.dsn(database=found.database))
    await owner.execute("ALTER SCHEMA public RENAME TO shop")
    await owner.close()
    report = await look_at_role(monitored.choice, found.found.acl.object.owner_name, found.database)
    granted = r"^schema shop +USAGE(, CREATE)? +PUBLIC$"  # CREATE: before PostgreSQL 15
    assert re.search(granted, said(report), re.MULTILINE), said(report)


async def test_an_inaccessible_database_is_listed_with_the_reason(monitored: Monitored) -> None:
    owner = (await look_at_object(monitored.choice, "app", None)).found.acl.object.owner_name
    text = said(await look_at_role(monitored.choice, owner, monitored.database))
    assert "its objects were not read: the login lacks CONNECT on it" in text
    assert re.search(f"database {monitored.database} +TEMPORARY", text)


async def test_a_template_is_read_only_if_it_is_named(monitored: Monitored) -> None:
    role = (await look_at_object(monitored.choice, "app", None)).found.acl.object.owner_name
    every = {one.name: one for one in (await look_at_role(monitored.choice, role, None)).databases}
    assert every["template1"].problem == "a template is read only if --database names it"
    assert "template0" not in every
    (named,) = (await look_at_role(monitored.choice, role, "template1")).databases
    assert (named.problem, any(line.kind is ObjectKind.SCHEMA for line in named.lines)) == ("", True)
    (closed,) = (await look_at_role(monitored.choice, role, "template0")).databases
    assert closed.problem == "it accepts no connections (ALLOW_CONNECTIONS false)"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("app.order", 'app.order does not exist in database "{}"; did you mean app.orders?'),
        ("ap.orders", 'schema ap does not exist in database "{}"; did you mean app'),
        ("my.x", 'did you mean "My Schema"?'),
        (
            "invoices",
            'schema invoices does not exist in database "{}"; write the schema before a name',
        ),
        ("app.fn", "app.fn is the name of several routines; there are app.fn(integer), app.fn(text[])"),
        ("app.fn(bigint)", 'app.fn(bigint) does not exist in database "{}"; there are app.fn(integer)'),
    ],
)
async def test_a_wrong_object_name_is_answered_with_similar_names(monitored: Monitored, name: str, answer: str) -> None:
    with pytest.raises(PgRoleError) as raised:
        await look_at_object(monitored.choice, name, None)
    assert answer.format(monitored.dsn.rpartition("/")[2]) in raised.value.message


@pytest.mark.parametrize("name", ["", '"Orders', "a.b.c", "app.", "app.orders; DROP"])
async def test_text_that_cannot_name_an_object_is_misuse(monitored: Monitored, name: str) -> None:
    failed = await monitored.run(f"--on={name}")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith(f"pgrole-controller: --on {name}: expected SCHEMA.NAME")


@pytest.mark.parametrize("name", ["app.fn(int)", "app.fn( TEXT[] )", '"My Schema"."a.b"', "app", "pg_catalog.pg_class"])
async def test_object_names_follow_the_rules_of_sql(monitored: Monitored, name: str) -> None:
    assert "in database" in said(await look_at_object(monitored.choice, name, None))


async def test_the_command_prints_svg_and_reports_an_error_on_one_line(monitored: Monitored) -> None:
    drawn = await monitored.run("--on", "app.orders", "-o", "svg")
    assert drawn.code == 0, drawn.err
    assert "<script" not in drawn.out
    assert ElementTree.fromstring(drawn.out).tag.endswith("svg")
    failed = await monitored.run("access_nobody_has_this_name")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.startswith('pgrole-controller: role "access_nobody_has_this_name" does not exist')
    assert failed.err.count("\n") == 1


async def test_the_graph_of_an_object_spells_its_kind_in_words(monitored: Monitored, database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("CREATE MATERIALIZED VIEW app.kept AS SELECT 1 AS one")
    finally:
        await connection.close()
    drawn = await monitored.run("--on", "app.kept", "-o", "dot")
    assert drawn.code == 0, drawn.err
    assert 'label="app.kept' in drawn.out
    assert "materialized view in " in drawn.out
