"""A database with many tables, and PgRoles that may read them: what privileges are measured on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import asyncpg

from bench.objects import Spec, make
from bench.stand import BenchStand, Connection

DATABASE = "bench_orders"
SCHEMA = "app"
#: Which only the first reader may read.
PRIVATE = "private"
OWNER = "bench_owner"
#: Who creates tables in the schemas, which are not its own.
CREATOR = "bench_creator"

#: So many roles, of which each drifts so rarely that nothing counts as a contest.
READERS = 60

#: Tables made in one transaction: each holds a lock until its end.
_AT_ONCE = 500


def reader(number: int) -> str:
    return f"bench_reader_{number % READERS}"


def table(number: int) -> str:
    return f"t_{number}"


@dataclass(frozen=True, slots=True)
class PrivilegeStand:
    """`tables` exist, all readable for every reader once `declare` has returned."""

    stand: BenchStand
    tables: int

    @asynccontextmanager
    async def connect(self, application: str = "bench") -> AsyncIterator[Connection]:
        """A superuser's connection to the measured database."""
        dsn = self.stand.server.dsn(database=DATABASE)
        connection = await asyncpg.connect(dsn, server_settings={"application_name": application})
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close(timeout=5)

    async def fill(self) -> None:
        """Creates the database with its tables, which no one may read yet."""
        async with self.stand.connect() as home:
            await home.execute(f"CREATE ROLE {OWNER}; CREATE ROLE {CREATOR}")
            await home.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        async with self.connect() as connection:
            for schema in (SCHEMA, PRIVATE):
                await connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {OWNER}")
                await connection.execute(f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {CREATOR}")
            await connection.execute(f"SET ROLE {OWNER}")
            for first in range(0, self.tables, _AT_ONCE):
                await connection.execute(_tables(first, min(first + _AT_ONCE, self.tables)))
            await connection.execute("RESET ROLE")
            await connection.execute("VACUUM ANALYZE pg_class")

    async def declare(self, first: int = 0, end: int = READERS) -> float:
        """Creates the PgRoles of readers `first` to `end - 1`, and waits until all are Ready; returns the seconds."""
        specs = {f"reader-{number}": _spec(number) for number in range(first, end)}
        return (await make(self.stand, specs)).seconds

    async def declare_another(self) -> None:
        """Creates a PgRole that may read every table, too, and waits until it is Ready."""
        await make(self.stand, {"another": {**_spec(1), "name": "bench_another"}})


def _spec(number: int) -> Spec:
    names = (SCHEMA,) if number else (SCHEMA, PRIVATE)
    schemas = [{"name": name, "access": ["Read"]} for name in names]
    privileges = [{"database": DATABASE, "onDatabase": ["CONNECT"], "schemas": schemas}]
    return {"name": reader(number), "login": True, "privileges": privileges}


def _tables(first: int, end: int) -> str:
    return f"""
        DO $$ BEGIN
            FOR i IN {first}..{end - 1} LOOP
                EXECUTE format('CREATE TABLE {SCHEMA}.t_%s (id int, name text)', i);
            END LOOP;
        END $$
    """
