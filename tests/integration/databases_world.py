"""Several databases of one server, served as in the controller: some on a connection of their own, others in turn."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import cast

import anyio
import asyncpg
import pytest

from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.privileges import database_worker
from pgrole_controller.controller.privileges.databases import Databases, DatabaseState
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee
from pgrole_controller.core.privileges.privilege_result import PrivilegeNews, PrivilegeResult
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges.database_opening import open_database
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.session import Session
from tests.integration.database_world import DEADLINE, KEY, POLICY, READ, SERVER, WRITE, make_template
from tests.servers import create_database


class DatabasesWorld:
    """Databases with schema app and a table, and a role that may have privileges in them."""

    def __init__(self, server: PostgresServer, home: Connection, role: str, oid: int) -> None:
        self.server, self.home, self.role, self.oid = server, home, role, oid
        self.hands: dict[str, Connection] = {}
        self.grantees = Grantees()
        self.leadership = Leadership()
        self.announced: list[PrivilegeNews] = []
        self.session: Session
        self.config = ServerConfig(
            SERVER,
            Endpoint(server.dsn()),
            ServerPolicy(),
            Address("pg", 5432, "postgres", "require"),
            interval=0.05,
            databases=DatabasesConfig(("*",), max=1),
        )

    @property
    def names(self) -> list[str]:
        return list(self.hands)

    def declare(
        self, *names: str, writes: Sequence[str] = (), former: Sequence[str] = (), report_only: bool = False
    ) -> None:
        """`writes`: those of these databases where it may write, too. `former`: where it was declared earlier."""
        declared = {name: DatabasePrivileges(name, schemas=(WRITE if name in writes else READ,)) for name in names}
        given_up = {name: (DatabasePrivileges(name, schemas=(READ,)),) for name in former}
        self.grantees.publish(
            SERVER,
            Grantee(KEY, "uid-1", 1, self.role, self.oid, declared, given_up, policy=POLICY, report_only=report_only),
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Databases]:
        async with connect(Endpoint(self.server.dsn()), "test") as connection:
            identity = await identify(connection)
        context = SimpleNamespace(
            grantees=self.grantees, leadership=self.leadership, objects=SimpleNamespace(cluster="c1")
        )
        databases = Databases(lambda: self.config, cast("WorkerContext", context), lambda: False)
        self.grantees.connect(
            lambda _server, key, names: databases.note_change(key, names), lambda _server, _key: None, self._announce
        )
        self.session = cast("Session", SimpleNamespace(identity=identity))
        async with self.run(databases):
            yield databases

    @asynccontextmanager
    async def run(self, databases: Databases) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(databases.run, self.session, "postgres")
            yield
            tasks.cancel_scope.cancel()

    def _announce(self, _server: str, result: PrivilegeResult) -> bool:
        self.announced.extend(result.news)
        return True

    def result(self, name: str) -> PrivilegeResult | None:
        return self.grantees.results(SERVER, KEY).get(name)

    async def wait(self, true: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = DEADLINE) -> None:
        async def is_so() -> bool:
            held = true()
            return held if isinstance(held, bool) else await held

        assert await reached(is_so, seconds), f"{what}: {self.grantees.results(SERVER, KEY)}"

    async def wait_settled(self, *names: str) -> None:
        def is_so(name: str) -> bool:
            grantee, result = self.grantees.get(SERVER, KEY), self.result(name)
            if grantee is None or result is None:
                return False
            return (result.digest, result.error) == (grantee.digest_of(name), None)

        for name in names:
            await self.wait(lambda: is_so(name), f"{name} did not become as declared")  # noqa: B023 -- awaited here

    async def may(self, name: str, privilege: str, table: str = "app.orders") -> bool:
        query = "SELECT has_table_privilege($1, $2, $3)"
        return bool(await self.hands[name].fetchval(query, self.role, table, privilege))

    async def wait_may(self, name: str, privilege: str, table: str = "app.orders", *, expected: bool = True) -> None:
        async def is_so() -> bool:
            return await self.may(name, privilege, table) is expected

        await self.wait(is_so, f"{privilege} on {table} in {name} did not become {expected}")


def state_of(databases: Databases, name: str) -> DatabaseState:
    return next(one for one in databases.states() if one.name == name)


def in_turn(databases: Databases) -> list[str]:
    """The databases that are served in turn, and have had theirs."""
    return [one.name for one in databases.states() if one.mode is DatabaseMode.POLL and "polled in turn" in one.message]


class SessionRecord:
    """The sessions with databases at any time. `most`: at once; `most_in`: in one database. Each takes `ending` seconds
    to end.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ending: float = 0.0) -> None:
        self.begun: list[str] = []
        self.most = self.most_in = 0
        self._now: list[str] = []

        @asynccontextmanager
        async def record(
            endpoint: Endpoint, database: str, *more: object, **options: object
        ) -> AsyncIterator[DatabaseSession]:
            self.begun.append(database)
            self._now.append(database)
            self.most = max(self.most, len(self._now))
            self.most_in = max(self.most_in, self._now.count(database))
            try:
                async with open_database(endpoint, database, *more, **options) as session:  # type: ignore[arg-type]
                    yield session
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(ending)
                self._now.remove(database)

        monkeypatch.setattr(database_worker, "open_database", record)


@asynccontextmanager
async def make_databases(server: PostgresServer, number: int) -> AsyncIterator[DatabasesWorld]:
    prefix = f"n{secrets.token_hex(4)}"
    home = await asyncpg.connect(server.dsn())
    template = await make_template(server, home)
    await home.execute(f"CREATE ROLE {prefix}_reader")
    oid = await home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", f"{prefix}_reader")
    made = DatabasesWorld(server, home, f"{prefix}_reader", oid)
    async with AsyncExitStack() as stack:
        for name in (f"{prefix}_{letter}" for letter in "abcdefgh"[:number]):
            await create_database(home, name, f"TEMPLATE {template}")
            made.hands[name] = await asyncpg.connect(server.dsn(database=name))
            stack.push_async_callback(made.hands[name].close)
            await made.hands[name].execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int)")
        yield made
    for name in made.names:
        await home.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await home.execute(f"DROP ROLE {made.role}")
    await home.close()
