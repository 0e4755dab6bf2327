"""Reads as much of a database as is needed: everything, or the few objects that an event may have changed.

Everything is read rarely, so PostgreSQL keeps none of these queries prepared. Those about few objects run with each
event and are kept. They take one round trip, and one more where the row omits what was applied (stored_state.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_catalog import (
    ask_facts,
    facts_of,
    read_columns,
    read_database,
    read_defaults,
    read_named_acls_and,
    read_recent_acls,
    read_schemas,
)
from pgrole_controller.postgres.privileges.acl_rows import TooManyObjects
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope
from pgrole_controller.postgres.privileges.stored_state import StoredState, ask_state, read_state
from pgrole_controller.postgres.trusted_schema import trusting


@dataclass(frozen=True, slots=True)
class PrivilegeReader:
    """Reads one database. `oid`: its own. `home`: the name of the home database. `stores`: schema pgrole exists.
    `guarded`: as in `trusting`.
    """

    oid: int
    home: str
    stores: bool
    guarded: bool

    async def read(
        self,
        connection: Connection,
        grantees: Sequence[int],
        reach: PrivilegeReach,
        to_read: PrivilegeRead,
        with_columns: Collection[int],
    ) -> tuple[ObservedDatabase, StoredState]:
        """As `DatabaseSession.read`. Raises PgRoleError."""
        if to_read.scope is not Scope.FULL:
            try:
                return await self._read_some(connection, grantees, reach, to_read, with_columns)
            except TooManyObjects:
                pass
        with forgetting():
            observed, stored = await self._read_everything(connection, grantees, reach)
        return replace(observed, complete=to_read.scope is Scope.FULL), stored

    async def _read_some(
        self,
        connection: Connection,
        grantees: Sequence[int],
        reach: PrivilegeReach,
        to_read: PrivilegeRead,
        with_columns: Collection[int],
    ) -> tuple[ObservedDatabase, StoredState]:
        """As `read`, less than everything. Raises TooManyObjects, or another PgRoleError."""
        question = ask_state(grantees, self.home, stores=self.stores)
        question = question.and_one(ask_facts(connection, reach.creators, search_paths=reach.creates_in_schemas))
        async with trusting(connection, guarded=self.guarded):
            if to_read.scope is Scope.RECENT:
                database_itself = ObjectId("pg_database", self.oid) in to_read.objects
                acls, row = await read_recent_acls(
                    question, connection, grantees, to_read.xid, reach.touches, with_columns, database=database_itself
                )
            else:
                oids = [identity.oid for identity in to_read.objects]
                acls, row = await read_named_acls_and(
                    question, connection, grantees, oids, to_read.names, to_read.xid, columns=to_read.columns
                )
        facts, roles = facts_of(row)
        tables = [
            one.object.id.oid for one in acls if one.object.id.catalog == "pg_class" and reach.has_columns(one.object)
        ]
        observed = ObservedDatabase(
            facts,
            acls,
            await read_defaults(connection, grantees) if to_read.defaults else None,
            roles,
            frozenset((await read_schemas(connection)).values()) if to_read.defaults else frozenset(),
            complete=False,
            columns=await read_columns(connection, tables) if tables else {},
        )
        return observed, StoredState.of(row, stores=self.stores)

    async def _read_everything(
        self, connection: Connection, grantees: Sequence[int], reach: PrivilegeReach
    ) -> tuple[ObservedDatabase, StoredState]:
        observed = await read_database(connection, grantees, reach.creators, reach.touches, reach.has_columns)
        async with trusting(connection, guarded=self.guarded):
            return observed, await read_state(connection, grantees, self.home, stores=self.stores)
