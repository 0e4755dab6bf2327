"""A role's first privileges on 10,000 tables, and their end, beside other people's DDL on the same tables."""

import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import asyncpg
import pytest

from pgrole_controller.postgres.connection import Connection
from tests.acceptance.test_privileges_keep import PrivilegePlace, make_place
from tests.acceptance.world import Json, Kube, running
from tests.servers import Servers

pytestmark = pytest.mark.slow

TABLES = 10_000
#: Tables made in one transaction, which holds a lock on each until it ends.
AT_ONCE = 500
#: Others change tables among those that the controller changes next: so many.
AHEAD = 200
SECONDS = 240.0

#: Statements that others run meanwhile, by name. Each name has tables of its own.
OTHERS = {
    "ALTER TABLE": ("ALTER TABLE app.{table} ALTER id SET STATISTICS 10",),
    "ALTER TABLE … OWNER TO": ("ALTER TABLE app.{table} OWNER TO postgres", "ALTER TABLE app.{table} OWNER TO {owner}"),
    "CREATE TRIGGER": (
        "CREATE TRIGGER trigger_{number} BEFORE INSERT ON app.{table} FOR EACH ROW EXECUTE FUNCTION app.pass_on()",
        "DROP TRIGGER trigger_{number} ON app.{table}",
    ),
    "VACUUM": ("VACUUM app.{table}",),
    "VACUUM FULL": ("VACUUM FULL app.{table}",),
    "ANALYZE": ("ANALYZE app.{table}",),
    "CREATE INDEX CONCURRENTLY": (
        "CREATE INDEX CONCURRENTLY index_{number} ON app.{table} (id)",
        "DROP INDEX CONCURRENTLY app.index_{number}",
    ),
    "COMMENT": ("COMMENT ON TABLE app.{table} IS '{number}'",),
    "CREATE POLICY": ("CREATE POLICY policy_{number} ON app.{table}", "DROP POLICY policy_{number} ON app.{table}"),
}

#: The tables that a role may not read yet, or still may, in the order in which the controller changes them.
_LEFT = """
SELECT relname FROM pg_class c JOIN pg_roles r ON rolname = $1
WHERE relnamespace = 'app'::regnamespace AND relkind = 'r' AND has_table_privilege(r.oid, c.oid, 'SELECT') <> $2
ORDER BY c.oid LIMIT $3
"""

_READABLE = """
SELECT count(*) FROM pg_class c JOIN pg_roles r ON rolname = $1
WHERE relnamespace = 'app'::regnamespace AND relkind = 'r' AND has_table_privilege(r.oid, c.oid, 'SELECT')
"""


async def test_the_first_grant_and_its_end_make_no_statement_of_others_fail(
    lent_kube: Kube, servers: Servers, tmp_path: Path
) -> None:
    async with servers.run() as postgres, make_place(lent_kube, postgres, tmp_path) as place:
        await _fill(place)
        async with running(place.controller()):
            await place.kube.apply("owner", name=place.owner, adopt=True)
            await place.kube.wait_ready("owner")
            await _Neighbours(place, readable=True).declare_beside(place.reads())
            await _Neighbours(place, readable=False).declare_beside({"database": place.name, "onDatabase": ["CONNECT"]})


async def _fill(place: PrivilegePlace) -> None:
    await place.hand.execute(f"CREATE ROLE {place.owner}; DROP TABLE app.orders")
    await place.hand.execute(f"ALTER SCHEMA app OWNER TO {place.owner}; SET ROLE {place.owner}")
    await place.hand.execute(
        "CREATE FUNCTION app.pass_on() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
    )
    for first in range(0, TABLES, AT_ONCE):
        numbers = f"{first}..{first + AT_ONCE - 1}"
        create = "EXECUTE format('CREATE TABLE app.t_%s (id int)', i)"
        await place.hand.execute(f"DO $$ BEGIN FOR i IN {numbers} LOOP {create}; END LOOP; END $$")
    await place.hand.execute("RESET ROLE")
    await place.hand.execute("VACUUM ANALYZE pg_class")


class _Neighbours:
    """Others who change tables just before and while the controller changes their privileges."""

    def __init__(self, place: PrivilegePlace, *, readable: bool) -> None:
        self._place = place
        self._readable = readable
        self._next = [f"t_{number}" for number in range(AHEAD)]
        self._ran = Counter[str]()
        self._failed: list[str] = []

    async def declare_beside(self, privileges: Json) -> None:
        """Declares the reader, which is then Ready; meanwhile every neighbour has run, and no statement has failed."""
        kube, hand = self._place.kube, self._place.hand
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_ahead)
            for place, what in enumerate(OTHERS):
                tasks.start_soon(self._repeat, place, what)
            await kube.apply("reader", name=self._place.reader, privileges=[privileges])
            obj = await kube.wait_ready("reader", SECONDS)
            tasks.cancel_scope.cancel()
        assert self._failed == []
        assert self._ran.keys() == OTHERS.keys()
        assert await hand.fetchval(_READABLE, self._place.reader) == (TABLES if self._readable else 0)
        assert not obj["status"].get("driftCount"), obj["status"]

    async def _look_ahead(self) -> None:
        async with self._connect() as connection:
            while True:
                rows = await connection.fetch(_LEFT, self._place.reader, self._readable, AHEAD)
                self._next = [row["relname"] for row in rows] or self._next
                await anyio.sleep(0.02)

    async def _repeat(self, place: int, what: str) -> None:
        """Two neighbours never change the same table: they could fail because of each other."""
        chosen = random.Random(what)
        async with self._connect() as connection:
            while True:
                own = [table for table in self._next if int(table.removeprefix("t_")) % len(OTHERS) == place]
                table, number = chosen.choice(own or [f"t_{place}"]), secrets.token_hex(4)
                for statement in OTHERS[what]:
                    text = statement.format(table=table, number=number, owner=self._place.owner)
                    try:
                        await connection.execute(text)
                    except asyncpg.PostgresError as error:
                        self._failed.append(f"{text}: {error!r}")
                self._ran[what] += 1

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Connection]:
        connection = await asyncpg.connect(self._place.postgres.dsn(database=self._place.name))
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):  # the statement has ended before others change the same table
                await connection.close()
