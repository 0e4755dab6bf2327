"""For tests of attribution: a database with the event trigger, and people who change privileges there."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import asyncpg

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from tests.servers import create_database

PEOPLE = ("alice", "bob", "carol")


@dataclass(slots=True)
class EventDatabase:
    """A database with a superuser's tables `a` to `h`, the role `reader`, and three superusers who change things."""

    server: PostgresServer
    name: str
    reading: Connection
    people: dict[str, Connection] = field(default_factory=dict)

    async def xmin(self, catalog: str, condition: str) -> int:
        return int(await self.reading.fetchval(f"SELECT xmin::text::bigint FROM {catalog} WHERE {condition}"))

    async def xmin_of_table(self, table: str) -> int:
        return await self.xmin("pg_class", f"relname = '{table}'")

    async def person(self, name: str) -> Connection:
        """Returns a session of this login, whose application_name contains the login."""
        if name not in self.people:
            dsn = self.server.dsn(name, self.name, password="pw")
            self.people[name] = await asyncpg.connect(dsn, server_settings={"application_name": f"app of {name}"})
        return self.people[name]


@asynccontextmanager
async def event_database(server: PostgresServer, *, options: str = "") -> AsyncIterator[EventDatabase]:
    name = f"events_{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        admin = await asyncpg.connect(server.dsn())
        stack.push_async_callback(admin.close)
        for person in (*PEOPLE, "reader"):
            if not await admin.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", person):
                await admin.execute(f"CREATE ROLE {person} LOGIN SUPERUSER PASSWORD 'pw'")
        await admin.execute("ALTER ROLE reader NOSUPERUSER")
        await create_database(admin, name, options)
        stack.push_async_callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
        reading = await stack.enter_async_context(connect(Endpoint(server.dsn(database=name)), "work"))
        await reading.execute("".join(f"CREATE TABLE public.{table} (id int, note text);" for table in "abcdefgh"))
        await reading.execute(queries.install_database())
        await reading.execute(queries.install_event_triggers())
        made = EventDatabase(server, name, reading)
        try:
            yield made
        finally:
            for connection in made.people.values():
                await connection.close()
