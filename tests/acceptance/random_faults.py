"""PostgreSQL of a random history: sessions of others, and faults of databases, of schema pgrole and of the server."""

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import asyncpg

from pgrole_controller.local.postgres import PostgresServer, Stop
from pgrole_controller.postgres.connection import Connection
from tests.acceptance.random_changes import create_schema
from tests.acceptance.random_specs import DATABASES, OWNERS, ROLES, SCHEMAS

_LOST: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
_TERMINATE: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "


@dataclass(slots=True)
class FaultyPostgres:
    """`grantee`: what databases are opened to, if it is no superuser. `log`: what was done. `transactions`: those left
    open.
    """

    server: PostgresServer
    dice: random.Random
    grantee: str | None = None
    log: list[str] = field(default_factory=list)
    transactions: list[Connection] = field(default_factory=list)

    @asynccontextmanager
    async def session(self, database: str) -> AsyncIterator[Connection]:
        connection = await self._connect(database)
        try:
            yield connection
        finally:
            await connection.close(timeout=5)

    async def _connect(self, database: str) -> Connection:
        settings = {"lock_timeout": "300ms"}
        dsn = self.server.dsn(database=database)
        connection: Connection = await asyncpg.connect(dsn, timeout=30, server_settings=settings)
        return connection

    async def run(self, database: str, *statements: str) -> None:
        """Runs statements in one session. Some fail, for a missing object or a deadlock: what counts is the result."""
        try:
            async with self.session(database) as connection:
                await self._execute(connection, database, statements)
        except _LOST as error:
            self.log.append(f"{database}: {type(error).__name__}: {error}")

    async def _execute(self, connection: Connection, database: str, statements: Iterable[str]) -> None:
        for statement in statements:
            outcome = ""
            try:
                await connection.execute(statement, timeout=20)
            except asyncpg.PostgresError as error:
                outcome = f" -- {type(error).__name__}"
            self.log.append(f"{database}: {statement}{outcome}")

    async def leave_open(self, database: str, *statements: str) -> None:
        """Runs statements in a transaction that ends later."""
        try:
            connection = await self._connect(database)
            self.transactions.append(connection)
            await self._execute(connection, f"{database} ({len(self.transactions)})", ("BEGIN", *statements))
        except _LOST as error:
            self.log.append(f"{database}: {type(error).__name__}: {error}")

    async def end_open(self) -> None:
        """Ends a transaction that was left open, if there is one."""
        if not self.transactions:
            return
        connection = self.transactions.pop(self.dice.randrange(len(self.transactions)))
        end = self.dice.choice(
            [["COMMIT"], ["COMMIT"], ["ROLLBACK"], ["PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'"]]
        )
        try:
            await self._execute(connection, "open", end)
            await connection.close(timeout=5)
        except _LOST as error:
            self.log.append(f"open: {type(error).__name__}: {error}")

    async def heal(self) -> None:
        """Ends what was left open, and restores what faults failed to restore."""
        while self.transactions:
            await self.end_open()
        await self.run("postgres", "ALTER DATABASE postgres RESET pgrole.suspend")
        for database in DATABASES:
            await self.run("postgres", f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
            await self.create_database(database)

    async def create_database(self, database: str) -> None:
        """Only opens it to the controller if it exists."""
        async with self.session("postgres") as home:
            exists = await home.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", database)
        if not exists:
            await self.run("postgres", f"CREATE DATABASE {database} OWNER {OWNERS[0]}")
            schemas = (create_schema(schema, self.dice.choice(OWNERS)) for schema in SCHEMAS)
            await self.run(database, *(statement for each in schemas for statement in each))
        if self.grantee is not None:
            await self.run("postgres", f"GRANT CONNECT, CREATE ON DATABASE {database} TO {self.grantee}")

    async def fail(self) -> None:
        """One fault, which is over at the end."""
        database, role = self.dice.choice(DATABASES), self.dice.choice(ROLES)
        faults = (
            self._end_sessions,
            partial(self._drop_schema, database),
            partial(self._remove_event_trigger, database),
            partial(self.run, database, "TRUNCATE pgrole.ddl_event"),
            partial(self._close_database, database),
            partial(self._replace_database, database),
            partial(self._copy_over, database),
            partial(self._rename_database, database),
            partial(self._replace_role, role),
            self._suspend,
            self._restart,
            partial(self.run, "postgres", f"DELETE FROM pgrole.claim WHERE role_name = '{role}'"),
            partial(self._swap_databases, database),
            self._freeze,
        )
        await self.dice.choice(faults)()

    async def _end_sessions(self) -> None:
        some = self.dice.choice(["", f" ORDER BY pid LIMIT 1 OFFSET {self.dice.randint(0, 5)}"])
        await self.run("postgres", f"{_TERMINATE} application_name LIKE 'pgrole%'{some}")

    async def _drop_schema(self, database: str) -> None:
        await self.run(self.dice.choice([database, "postgres"]), "DROP SCHEMA pgrole CASCADE")

    async def _remove_event_trigger(self, database: str) -> None:
        what = ["ALTER EVENT TRIGGER pgrole_on_ddl DISABLE", "DROP EVENT TRIGGER pgrole_on_ddl"]
        await self.run(database, self.dice.choice([*what, "DROP FUNCTION pgrole.on_ddl CASCADE"]))

    async def _close_database(self, database: str) -> None:
        await self.run("postgres", f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
        await anyio.sleep(self.dice.random())
        await self.run("postgres", f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")

    async def _replace_database(self, database: str) -> None:
        await self.run("postgres", f"DROP DATABASE {database} WITH (FORCE)")
        await anyio.sleep(self.dice.random() / 2)
        await self.create_database(database)

    async def _copy_over(self, database: str) -> None:
        other = self._other(database)
        copy = f"CREATE DATABASE {database} OWNER {OWNERS[1]} TEMPLATE {other}"
        await self.run("postgres", f"DROP DATABASE {database} WITH (FORCE)", f"{_TERMINATE} datname = '{other}'", copy)
        await self.create_database(database)  # if it could not be copied

    async def _rename_database(self, database: str) -> None:
        rename = f"ALTER DATABASE {database} RENAME TO away"
        await self.run("postgres", f"{_TERMINATE} datname = '{database}'", rename)
        await anyio.sleep(self.dice.random())
        await self.run("postgres", f"{_TERMINATE} datname = 'away'", f"ALTER DATABASE away RENAME TO {database}")
        await self.create_database(database)  # if it could not be renamed back
        await self.run("postgres", "DROP DATABASE IF EXISTS away WITH (FORCE)")

    async def _replace_role(self, role: str) -> None:
        for name in (*DATABASES, "postgres"):
            await self.run(name, f"REASSIGN OWNED BY {role} TO {OWNERS[0]}", f"DROP OWNED BY {role}")
        await self.run("postgres", f"DROP ROLE {role}")
        if self.dice.random() < 0.5:
            own = "SET createrole_self_grant = 'set, inherit'"  # SET ROLE does not set the role's parameters
            act = [] if self.grantee is None else [own, f"SET ROLE {self.grantee}"]
            await self.run("postgres", *act, f"CREATE ROLE {role}")

    async def _suspend(self) -> None:
        await self.run("postgres", "ALTER DATABASE postgres SET pgrole.suspend = on")
        await anyio.sleep(self.dice.random())
        await self.run("postgres", "ALTER DATABASE postgres RESET pgrole.suspend")

    async def _restart(self) -> None:
        mode = self.dice.choice([Stop.FAST, Stop.IMMEDIATE, None])
        self.log.append(f"PostgreSQL is restarted: {mode}")
        await (self.server.kill() if mode is None else self.server.stop(mode))
        await anyio.sleep(self.dice.random())
        await self.server.start()

    async def _swap_databases(self, database: str) -> None:
        other = self._other(database)
        await self.run(
            "postgres",
            f"{_TERMINATE} datname IN ('{database}', '{other}')",
            *("BEGIN", f"ALTER DATABASE {database} RENAME TO swapped"),
            *(f"ALTER DATABASE {other} RENAME TO {database}", f"ALTER DATABASE swapped RENAME TO {other}"),
            "COMMIT",
        )

    async def _freeze(self) -> None:
        self.log.append("PostgreSQL is frozen")
        self.server.pause()
        await anyio.sleep(self.dice.random())
        self.server.resume()

    def _other(self, database: str) -> str:
        return self.dice.choice([name for name in DATABASES if name != database])
