"""For tests of attribution: a database with the event trigger, and people who change privileges there."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import asyncpg

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection, Endpoint, connect

#: As in sql/database, reduced to what attribution reads.
INSTALL = """
CREATE SCHEMA pgrole;
CREATE UNLOGGED TABLE pgrole.ddl_event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid xid8 NOT NULL, pid integer NOT NULL, login oid, session name NOT NULL, acting text NOT NULL, system text,
    app text NOT NULL, addr inet, port integer,
    tag text NOT NULL, command text NOT NULL, kind text, class oid, object oid, identity text, said text
);
CREATE INDEX ON pgrole.ddl_event (xid);
CREATE FUNCTION pgrole.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    BEGIN
        INSERT INTO pgrole.ddl_event
            (xid, pid, login, session, acting, app, addr, port, tag, command, kind, class, object, identity, said)
        SELECT pg_current_xact_id(), pg_backend_pid(),
               (SELECT a.usesysid FROM pg_stat_get_activity(pg_backend_pid()) AS a),
               session_user, current_setting('role'), current_setting('application_name'), inet_client_addr(),
               inet_client_port(), tg_tag, c.command_tag, c.object_type, c.classid, c.objid, c.object_identity,
               CASE WHEN current_query() ~* '^\\s*(grant|revoke|alter\\s+default)\\M[^;]*;?\\s*$'
                    THEN left(current_query(), 1000) END
        FROM pg_event_trigger_ddl_commands() AS c
        WHERE c.schema_name IS DISTINCT FROM 'pg_temp'
        LIMIT 100;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END
$$;
CREATE EVENT TRIGGER pgrole_on_ddl ON ddl_command_end EXECUTE FUNCTION pgrole.on_ddl();
ALTER EVENT TRIGGER pgrole_on_ddl ENABLE ALWAYS;
"""

PEOPLE = ("alice", "bob", "carol")


@dataclass(slots=True)
class EventDatabase:
    """A database with tables `a` to `h` of a superuser, the role `reader`, and three superusers who change things."""

    server: PostgresServer
    name: str
    reading: Connection
    people: dict[str, Connection] = field(default_factory=dict)

    async def xmin(self, catalog: str, condition: str) -> int:
        return int(await self.reading.fetchval(f"SELECT xmin::text::bigint FROM {catalog} WHERE {condition}"))

    async def xmin_of_table(self, table: str) -> int:
        return await self.xmin("pg_class", f"relname = '{table}'")

    async def person(self, name: str) -> Connection:
        """A session of this login, whose application is named after it."""
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
        await admin.execute(f"CREATE DATABASE {name} {options}")
        stack.push_async_callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
        reading = await stack.enter_async_context(connect(Endpoint(server.dsn(database=name)), "work"))
        await reading.execute("".join(f"CREATE TABLE public.{table} (id int, note text);" for table in "abcdefgh"))
        await reading.execute(INSTALL)
        made = EventDatabase(server, name, reading)
        try:
            yield made
        finally:
            for connection in made.people.values():
                await connection.close()
