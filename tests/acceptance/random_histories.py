"""Random changes of PgRoles, of roles, of objects in databases and of whole databases, with faults among them."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
import asyncpg

from pgrole_controller.postgres.connection import Connection
from tests.acceptance.expected import (
    COLUMN_PRIVILEGES,
    TABLE_PRIVILEGES,
    compare_privileges,
    find_object_problems,
    find_role_problems,
)
from tests.acceptance.world import Controller, Json, Stage

OWNERS: Final = ("o0", "o1")
GROUPS: Final = ("g0", "g1")
ROLES: Final = ("r0", "r1", "r2", "r3")
DELEGATE: Final = "delegate"
DATABASES: Final = ("d0", "d1", "d2")
SCHEMAS: Final = ("app", "app_old", "hr")
TABLES: Final = ("orders", "order_items", "people", "tmp_a")

#: Fields of a spec that leave drift as it is.
_LENIENT = ("drift", "suspend")
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "


@dataclass(slots=True)
class RandomHistory:
    """`specs` are those of the PgRoles of ROLES, by role; `log` has what was done, for the message of a failure."""

    stage: Stage
    dice: random.Random
    controllers: list[Controller] = field(default_factory=list)
    specs: dict[str, Json] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    async def begin(self) -> None:
        await self.run("postgres", *(f"CREATE ROLE {name}" for name in (DELEGATE, *OWNERS)))
        for database in DATABASES:
            await self.create_database(database)
        for name in (*OWNERS, *GROUPS):
            await self.stage.kube.apply(name, name=name, adopt=True)
        for role in ROLES:
            await self.declare(role)
        await self.start()

    async def start(self) -> None:
        self.controllers.append(self.stage.controller(PGROLE_DATABASES_DETECTION="Auto"))
        await self.controllers[-1].start()

    async def step(self) -> None:
        """One change or fault."""
        chance = self.dice.random()
        if chance < 0.12:
            await self.declare(self.dice.choice(ROLES))
        elif chance < 0.15:
            await self.delete(self.dice.choice(ROLES))
        elif chance < 0.20:
            await self.fault()
        elif chance < 0.22:
            self.log.append("the controller is killed")
            await self.controllers[-1].kill()
            await self.change()
            await self.start()
        elif chance < 0.24:
            self.log.append("the controller is frozen")
            self.controllers[-1].process.pause()
            await self.change()
            await anyio.sleep(self.dice.random())
            self.controllers[-1].process.resume()
        else:
            await self.change()
        await anyio.sleep(self.dice.choice([0.0, 0.0, 0.01, 0.05]))

    async def settle(self) -> None:
        """Has drift of most roles corrected again."""
        for role, spec in list(self.specs.items()):
            if _is_lenient(spec) and self.dice.random() < 0.7:
                await self._apply(role, {key: value for key, value in spec.items() if key not in _LENIENT})

    # -- PgRoles

    async def declare(self, role: str) -> None:
        obj = await self.stage.kube.get(role)
        if obj is None or "deletionTimestamp" not in obj["metadata"]:
            await self._apply(role, self._spec(role))

    async def delete(self, role: str) -> None:
        spec = self.specs.pop(role, None)
        if spec is None:
            return
        if "suspend" in spec:  # the role would not be dropped
            await self.stage.kube.patch(role, {"spec": {"suspend": False}})
        await self.stage.kube.delete(role)
        self.log.append(f"delete {role}")

    async def _apply(self, role: str, spec: Json) -> None:
        await self.stage.kube.apply(role, **spec)
        self.specs[role] = spec
        self.log.append(f"apply {spec}")

    def _spec(self, role: str) -> Json:
        dice = self.dice
        spec: Json = {
            "name": role,
            "deletionPolicy": "Drop",
            "reassignOwnedTo": OWNERS[0],
            "adopt": True,
            "connectionLimit": dice.choice([-1, 3, 7]),
            "createdb": dice.random() < 0.3,
            "memberOf": [{"role": name} for name in dice.sample(GROUPS, dice.randint(0, 2))],
            "privileges": [self._privileges(name) for name in dice.sample(DATABASES, dice.randint(0, 3))],
        }
        lenient: Json = dice.choice(
            [{"drift": {"policy": "Report"}}, {"drift": {"ignore": ["privileges"]}}, {"suspend": True}]
        )
        return spec | lenient if dice.random() < 0.25 else spec

    def _privileges(self, database: str) -> Json:
        dice = self.dice
        item: Json = {"database": database}
        if dice.random() < 0.5:
            item["onDatabase"] = dice.sample(["CONNECT", "TEMPORARY", "CREATE"], dice.randint(1, 2))
        if dice.random() < 0.2:
            item["unmanaged"] = [dice.choice([*SCHEMAS, "app*"])]
        if dice.random() < 0.3:
            item["createdBy"] = dice.sample(OWNERS, dice.randint(1, 2))
        item["schemas"] = [
            {"name": name, "access": dice.choice([["Read"], ["Write"], ["Read", "Execute"], ["Write", "Execute"]])}
            | ({"except": dice.sample(["tmp_*", "people", "order_items"], 1)} if dice.random() < 0.4 else {})
            for name in dice.sample([*SCHEMAS, "app*", "*"], dice.randint(0, 2))
        ]
        item["objects"] = [self._objects() for _ in range(dice.randint(0, 2))]
        return item

    def _objects(self) -> Json:
        dice = self.dice
        schema = dice.choice([*SCHEMAS, "app*"])
        if dice.random() < 0.3:
            return {
                "kind": "Table",
                "schema": dice.choice(SCHEMAS),
                "names": ["people"],
                "columns": dice.sample(["id", "name"], dice.randint(1, 2)),
                "privileges": dice.sample(COLUMN_PRIVILEGES, dice.randint(1, 2)),
            }
        if dice.random() < 0.3:
            return {"kind": "Routine", "schema": schema, "names": ["f_*"], "privileges": ["EXECUTE"]}
        names = dice.choice([["order*"], ["*"], ["tmp_?"], ["people"]])
        privileges = dice.sample(TABLE_PRIVILEGES[:5], dice.randint(1, 3))
        return {"kind": "Table", "schema": schema, "names": names, "privileges": privileges}

    # -- changes by others

    async def change(self) -> None:
        """A change by somebody else, in one of the forms in which events and catalogs show it."""
        dice, database, role = self.dice, self.dice.choice(DATABASES), self.dice.choice(ROLES)
        forms: list[Callable[[], list[str]]] = [
            lambda: [self._grant()],
            lambda: [self._revoke()],
            lambda: [self._grant(), self._revoke()],
            self._ddl,
            self._delegated_grant,
            lambda: [self._default_privilege()],
            lambda: [self._role_change(role)],
            lambda: [f"GRANT CREATE, CONNECT ON DATABASE {database} TO {role}"],
            lambda: [f"REVOKE ALL ON DATABASE {database} FROM {role}"],
            lambda: ["SET session_replication_role = replica", self._grant()],
            lambda: [f"DO $x$BEGIN {self._grant()}; {self._grant()}; EXCEPTION WHEN OTHERS THEN NULL; END$x$"],
            lambda: [f"DO $x$BEGIN EXECUTE $y${self._grant()}$y$; END$x$"],
            lambda: ["BEGIN", self._grant(), self._revoke(), self._grant(), dice.choice(["COMMIT", "ROLLBACK"])],
            lambda: ["BEGIN", "SAVEPOINT s", self._grant(), "ROLLBACK TO s", self._grant(), "COMMIT"],
        ]
        await self.run(database, *dice.choice(forms)())

    def _grant(self) -> str:
        dice = self.dice
        role = dice.choice([*ROLES, *ROLES, DELEGATE])
        option = " WITH GRANT OPTION" if dice.random() < 0.2 else ""
        schema, chance = dice.choice(SCHEMAS), dice.random()
        if chance < 0.1:
            return f"GRANT {dice.choice(['USAGE', 'CREATE', 'ALL'])} ON SCHEMA {schema} TO {role}{option}"
        if chance < 0.2:
            return f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {schema} TO {role}{option}"
        if chance < 0.3:
            column, privilege = dice.choice(["id", "name", "ctid"]), dice.choice(COLUMN_PRIVILEGES)
            return f"GRANT {privilege} ({column}) ON {schema}.people TO {role}{option}"
        kind, name, privileges = self._object(schema)
        return f"GRANT {dice.choice([*privileges, 'ALL'])} ON {kind} {name} TO {role}{option}"

    def _revoke(self) -> str:
        schema, role = self.dice.choice(SCHEMAS), self.dice.choice(ROLES)
        if self.dice.random() < 0.2:
            return f"REVOKE USAGE ON SCHEMA {schema} FROM {role} CASCADE"
        kind, name, _ = self._object(schema)
        return f"REVOKE ALL ON {kind} {name} FROM {role} CASCADE"

    def _object(self, schema: str) -> tuple[str, str, tuple[str, ...]]:
        """Returns an object's kind and name as GRANT spells them, and its privileges."""
        chance = self.dice.random()
        if chance < 0.15:
            return "SEQUENCE", f"{schema}.ids", ("USAGE",)
        if chance < 0.3:
            return "FUNCTION", f"{schema}.f_one(int)", ("EXECUTE",)
        return "TABLE", f"{schema}.{self.dice.choice([*TABLES, 'v_orders'])}", TABLE_PRIVILEGES

    def _ddl(self) -> list[str]:
        dice = self.dice
        schema, table, owner = dice.choice(SCHEMAS), dice.choice(TABLES), dice.choice(OWNERS)
        role = dice.choice(ROLES)
        statements: list[list[str]] = [
            [f"DROP TABLE {schema}.{table} CASCADE"],
            _create_table(schema, table, owner),
            _create_table(schema, table, owner),
            [f"ALTER TABLE {schema}.{table} OWNER TO {dice.choice([owner, role])}"],
            [f"ALTER TABLE {schema}.{table} RENAME TO {dice.choice(TABLES)}"],
            [f"ALTER TABLE {schema}.{table} SET SCHEMA {dice.choice(SCHEMAS)}"],
            [f"ALTER TABLE {schema}.people RENAME name TO other", f"ALTER TABLE {schema}.people ADD name text"],
            [f"ALTER TABLE {schema}.people DROP COLUMN name", f"ALTER TABLE {schema}.people ADD name text"],
            [f"DROP SCHEMA {schema} CASCADE", *_create_schema(schema, owner)],
            [f"ALTER SCHEMA {schema} RENAME TO moved", f"ALTER SCHEMA moved RENAME TO {schema}"],
            [f"ALTER FUNCTION {schema}.f_one(int) OWNER TO {owner}"],
            [f"DROP FUNCTION {schema}.f_one(int)", *_create_function(schema, owner)],
            [f"REASSIGN OWNED BY {role} TO {owner}"],
            [f"DROP OWNED BY {role}"],
        ]
        return dice.choice(statements)

    def _delegated_grant(self) -> list[str]:
        table = f"{self.dice.choice(SCHEMAS)}.{self.dice.choice(TABLES)}"
        return [
            f"GRANT USAGE ON SCHEMA {table.partition('.')[0]} TO {DELEGATE}",
            f"GRANT SELECT, UPDATE ON {table} TO {DELEGATE} WITH GRANT OPTION",
            f"SET ROLE {DELEGATE}",
            f"GRANT SELECT, UPDATE ON {table} TO {self.dice.choice(ROLES)}",
        ]

    def _default_privilege(self) -> str:
        schema = self.dice.choice(["", f"IN SCHEMA {self.dice.choice(SCHEMAS)} "])
        role, owner = self.dice.choice(ROLES), self.dice.choice(OWNERS)
        return f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} {schema}GRANT SELECT ON TABLES TO {role}"

    def _role_change(self, role: str) -> str:
        dice = self.dice
        return dice.choice(
            [
                f"ALTER ROLE {role} CONNECTION LIMIT {dice.randint(0, 9)}",
                f"ALTER ROLE {role} {dice.choice(['CREATEDB', 'NOCREATEDB', 'CREATEROLE'])}",
                f"GRANT {dice.choice(GROUPS)} TO {role}{dice.choice(['', ' WITH ADMIN OPTION'])}",
                f"REVOKE {dice.choice(GROUPS)} FROM {role} CASCADE",
            ]
        )

    # -- faults

    async def fault(self) -> None:
        """A fault of PostgreSQL, of schema pgrole, of a role or of a whole database."""
        dice, database, role = self.dice, self.dice.choice(DATABASES), self.dice.choice(ROLES)
        postgres = self.stage.postgres
        match dice.randint(0, 10):
            case 0:
                await self.run("postgres", f"{_TERMINATE} application_name LIKE 'pgrole%'")
            case 1:
                await self.run(database, "DROP SCHEMA pgrole CASCADE")
            case 2:
                await self.run(database, "ALTER EVENT TRIGGER pgrole_on_ddl DISABLE")
            case 3:
                await self.run(database, "TRUNCATE pgrole.ddl_event")
            case 4:
                await self.run("postgres", f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
                await anyio.sleep(dice.random())
                await self.run("postgres", f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
            case 5:
                await self.run("postgres", f"DROP DATABASE {database} WITH (FORCE)")
                await anyio.sleep(dice.random() / 2)
                await self.create_database(database)
            case 6:
                other = dice.choice([name for name in DATABASES if name != database])
                copy = f"CREATE DATABASE {database} OWNER {OWNERS[1]} TEMPLATE {other}"
                await self.run(
                    "postgres", f"DROP DATABASE {database} WITH (FORCE)", f"{_TERMINATE} datname = '{other}'", copy
                )
                await self.create_database(database)  # if it could not be copied
            case 7:
                rename = f"ALTER DATABASE {database} RENAME TO away"
                await self.run("postgres", f"{_TERMINATE} datname = '{database}'", rename)
                await anyio.sleep(dice.random())
                await self.run(
                    "postgres", f"{_TERMINATE} datname = 'away'", f"ALTER DATABASE away RENAME TO {database}"
                )
                await self.create_database(database)  # if it could not be renamed back
                await self.run("postgres", "DROP DATABASE IF EXISTS away WITH (FORCE)")
            case 8:
                for name in (*DATABASES, "postgres"):
                    await self.run(name, f"REASSIGN OWNED BY {role} TO {OWNERS[0]}", f"DROP OWNED BY {role}")
                await self.run("postgres", f"DROP ROLE {role}")
            case 9:
                self.log.append("PostgreSQL is restarted")
                await postgres.stop()
                await anyio.sleep(dice.random())
                await postgres.start()
            case _:
                self.log.append("PostgreSQL is frozen")
                postgres.pause()
                await anyio.sleep(dice.random())
                postgres.resume()

    async def create_database(self, database: str) -> None:
        """Does nothing if it exists."""
        async with self.session("postgres") as home:
            if await home.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", database):
                return
        await self.run("postgres", f"CREATE DATABASE {database} OWNER {OWNERS[0]}")
        schemas = (_create_schema(schema, self.dice.choice(OWNERS)) for schema in SCHEMAS)
        await self.run(database, *(statement for each in schemas for statement in each))

    @asynccontextmanager
    async def session(self, database: str) -> AsyncIterator[Connection]:
        connection: Connection = await asyncpg.connect(self.stage.postgres.dsn(database=database), timeout=30)
        try:
            yield connection
        finally:
            await connection.close(timeout=5)

    async def run(self, database: str, *statements: str) -> None:
        """Runs statements in one session. Some fail, for a missing object or a deadlock: what counts is the result."""
        try:
            async with self.session(database) as connection:
                for statement in statements:
                    outcome = ""
                    try:
                        await connection.execute(statement, timeout=20)
                    except asyncpg.PostgresError as error:
                        outcome = f" -- {type(error).__name__}"
                    self.log.append(f"{database}: {statement}{outcome}")
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            self.log.append(f"{database}: {type(error).__name__}: {error}")

    # -- what must be true

    async def find_problems(self) -> list[str]:
        """Returns what is not as declared."""
        found: list[str] = []
        strict = {role: spec for role, spec in self.specs.items() if not _is_lenient(spec)}
        async with self.session("postgres") as home:
            for role in ROLES:
                if role in strict or role not in self.specs:
                    found.extend(await find_role_problems(home, role, strict.get(role)))
        for database in DATABASES:
            async with self.session(database) as there:
                for role, spec in strict.items():
                    for item in (item for item in spec["privileges"] if item["database"] == database):
                        extra, missing = await compare_privileges(there, role, item)
                        if extra or missing:
                            found.append(f"{role} in {database}: not declared {extra}, missing {missing}")
        found.extend(find_object_problems(await self.stage.kube.objects(), strict))
        return found


def _is_lenient(spec: Json) -> bool:
    return any(name in spec for name in _LENIENT)


def _create_table(schema: str, table: str, owner: str) -> list[str]:
    return [f"CREATE TABLE {schema}.{table} (id int, name text)", f"ALTER TABLE {schema}.{table} OWNER TO {owner}"]


def _create_function(schema: str, owner: str) -> list[str]:
    name = f"{schema}.f_one(int)"
    return [
        f"CREATE FUNCTION {name} RETURNS int LANGUAGE sql AS 'SELECT 1'",
        f"ALTER FUNCTION {name} OWNER TO {owner}",
    ]


def _create_schema(schema: str, owner: str) -> list[str]:
    return [
        f"CREATE SCHEMA {schema} AUTHORIZATION {owner}",
        *(statement for table in TABLES[:3] for statement in _create_table(schema, table, owner)),
        f"CREATE VIEW {schema}.v_orders AS SELECT * FROM {schema}.orders",
        f"ALTER VIEW {schema}.v_orders OWNER TO {owner}",
        f"CREATE SEQUENCE {schema}.ids",
        f"ALTER SEQUENCE {schema}.ids OWNER TO {owner}",
        *_create_function(schema, owner),
    ]
