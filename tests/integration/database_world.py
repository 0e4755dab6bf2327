"""One database with a schema, a role and the worker of that database, for tests of what the worker does there."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio
import asyncpg
import pytest

from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.privileges.database_worker import DatabaseContext, DatabaseWorker
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    PrivilegePolicy,
    PrivilegeRule,
    SchemaAccess,
)
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeNews, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges.database_schema import install_database
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from tests.servers import create_database

DEADLINE = 45.0
SERVER = "default"
KEY, OTHER = Key("shop", "reader"), Key("shop", "other")
#: Allows privileges on everything to be declared.
POLICY = PrivilegePolicy(rules=(PrivilegeRule(),), databases=("*",))
READ = SchemaAccess("app", frozenset({Access.READ}))
WRITE = SchemaAccess("app", frozenset({Access.WRITE}))


class DatabaseWorkerWorld:
    """One database with schema app, a role, and the worker of that database."""

    def __init__(self, server: PostgresServer, database: str, home: Connection, hand: Connection, role: str) -> None:
        self.server, self.database, self.home, self.hand, self.role = server, database, home, hand, role
        self.grantees = Grantees()
        self.announced: list[PrivilegeNews] = []
        self.config = ServerConfig(
            SERVER,
            Endpoint(server.dsn()),
            ServerPolicy(),
            Address("pg", 5432, "postgres", "require"),
            databases=DatabasesConfig(("*",)),
        )
        self.suspended = False
        self.leadership = Leadership()
        self.oid = 0
        self.other, self.other_oid = role.replace("reader", "second"), 0

    def declare(self, *schemas: SchemaAccess, report_only: bool = False) -> Grantee:
        declared = DatabasePrivileges(self.database, schemas=schemas)
        grantee = Grantee(
            KEY, "uid-1", 1, self.role, self.oid, {self.database: declared}, policy=POLICY, report_only=report_only
        )
        self.grantees.publish(SERVER, grantee)
        return grantee

    def declare_other(self, *schemas: SchemaAccess) -> str:
        """A second role with privileges; returns its name."""
        declared = DatabasePrivileges(self.database, schemas=schemas)
        self.grantees.publish(
            SERVER, Grantee(OTHER, "uid-2", 1, self.other, self.other_oid, {self.database: declared}, policy=POLICY)
        )
        return self.other

    @asynccontextmanager
    async def working(self) -> AsyncIterator[DatabaseWorker]:
        async with connect(Endpoint(self.server.dsn()), "test") as connection:
            identity = await identify(connection)
        context = DatabaseContext(
            lambda: self.config,
            self.grantees,
            self.leadership,
            "c1",
            identity,
            "postgres",
            lambda: self.suspended,
        )
        worker = DatabaseWorker(self.database, context)
        self.grantees.connect(
            lambda _server, key, _databases: worker.note_grantee(key),
            lambda _server, _key: None,
            self._announce,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            yield worker
            tasks.cancel_scope.cancel()

    def _announce(self, _server: str, result: PrivilegeResult) -> bool:
        self.announced.extend(result.news if result.key == KEY else ())
        return True

    @property
    def alice(self) -> str:
        """A superuser who logs in with password a."""
        return self.role.replace("reader", "alice")

    @property
    def result(self) -> PrivilegeResult | None:
        return self.grantees.results(SERVER, KEY).get(self.database)

    async def wait(self, true: Callable[[PrivilegeResult], bool]) -> PrivilegeResult:
        async def is_so() -> bool:
            return self.result is not None and true(self.result)

        assert await reached(is_so, DEADLINE), f"last result: {self.result}"
        assert self.result is not None
        return self.result

    async def uninstall(self) -> None:
        """Removes what the template installed, for controllers that may not install anything."""
        await self.hand.execute(queries.remove())

    async def poll_without_schema(self) -> None:
        """The controller may not install anything, so it polls."""
        self.config = replace(
            self.config,
            may_install=False,
            interval=0.2,
            databases=DatabasesConfig(("*",), detection=DatabaseMode.AUTO),
        )
        await self.uninstall()

    async def wait_more_drifts(self, count: int) -> None:
        await self.wait(lambda result: result.drift_count > count)

    async def wait_settled(self) -> PrivilegeResult:
        grantee = self.grantees.get(SERVER, KEY)
        assert grantee is not None
        digest = grantee.digest_of(self.database)
        return await self.wait(lambda result: result.digest == digest and result.error is None)

    async def wait_other_settled(self) -> None:
        async def is_so() -> bool:
            result = self.grantees.results(SERVER, OTHER).get(self.database)
            return result is not None and result.error is None

        assert await reached(is_so, DEADLINE), f"{self.other} is not settled"

    async def may(self, privilege: str, table: str, role: str = "") -> bool:
        query = "SELECT has_table_privilege($1, $2, $3)"
        return bool(await self.hand.fetchval(query, role or self.role, table, privilege))

    async def wait_may(self, privilege: str, table: str, *, expected: bool = True, role: str = "") -> None:
        async def is_so() -> bool:
            return await self.may(privilege, table, role) is expected

        assert await reached(is_so, DEADLINE), f"{privilege} on {table} did not become {expected}; {self.result}"

    async def count_drifts(self, role: str = "") -> int:
        """Returns how many drifts of the role the history of the database has."""
        query = "SELECT coalesce(sum(count), 0) FROM pgrole.history WHERE role = $1"
        return int(await self.hand.fetchval(query, role or self.role))

    def news(self) -> list[tuple[News, str]]:
        announced, self.announced = self.announced, []
        return [(one.reason, one.note) for one in (*announced, *self.grantees.take_news(SERVER, KEY))]


async def make_template(server: PostgresServer, home: Connection) -> str:
    """A database with schema pgrole: copying it costs a fifth of installing the schema."""
    name = "with_pgrole"
    if not await home.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name):
        await create_database(home, name)
        async with connect(Endpoint(server.dsn(database=name)), "test") as connection:
            await install_database(connection, allowed=True)
    return name


@asynccontextmanager
async def make_world(server: PostgresServer) -> AsyncIterator[DatabaseWorkerWorld]:
    name = f"n{secrets.token_hex(4)}"
    home = await asyncpg.connect(server.dsn())
    await create_database(home, name, f"TEMPLATE {await make_template(server, home)}")
    await home.execute(
        f"CREATE ROLE {name}_reader; CREATE ROLE {name}_second; CREATE ROLE {name}_alice LOGIN SUPERUSER PASSWORD 'a'"
    )
    hand = await asyncpg.connect(server.dsn(database=name))
    await hand.execute(
        "CREATE SCHEMA app; CREATE TABLE app.orders (id int, total int); CREATE TABLE app.items (id int)"
    )
    made = DatabaseWorkerWorld(server, name, home, hand, f"{name}_reader")
    query = "SELECT oid FROM pg_roles WHERE rolname = $1"
    made.oid, made.other_oid = await home.fetchval(query, made.role), await home.fetchval(query, made.other)
    yield made
    await made.hand.close()
    await made.home.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await made.home.execute(f"DROP ROLE {name}_reader, {name}_second; DROP ROLE {name}_alice")
    await made.home.close()


@asynccontextmanager
async def full_queue(server: PostgresServer, usage: float = 0.5) -> AsyncIterator[None]:
    """The server's notification queue is this full; 1.0: it accepts no more. Its setting max_notify_queue_pages must be
    small.
    """
    lazy, hand = await asyncpg.connect(server.dsn()), await asyncpg.connect(server.dsn())
    await lazy.execute("LISTEN others")
    await lazy.execute("BEGIN; SELECT 1")  # from now on, it reads no notification
    with suppress(asyncpg.ProgramLimitExceededError):
        while usage == 1.0 or await hand.fetchval("SELECT pg_notification_queue_usage()") < usage:
            await hand.execute("SELECT pg_notify('others', repeat('x', 7000))")
    try:
        yield
    finally:
        await lazy.close()
        await hand.close()


def note_sessions(monkeypatch: pytest.MonkeyPatch) -> list[DatabaseSession]:
    """Returns a list to which each session of a worker is added."""
    sessions: list[DatabaseSession] = []
    serve = DatabaseWorker._serve

    async def note(worker: DatabaseWorker, session: DatabaseSession) -> None:
        sessions.append(session)
        await serve(worker, session)

    monkeypatch.setattr(DatabaseWorker, "_serve", note)
    return sessions
