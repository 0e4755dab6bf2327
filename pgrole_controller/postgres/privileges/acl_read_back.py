"""Reads ACLs within the transaction that changes them: before, whether anything changed since they were read; after,
whether the changes took effect: PostgreSQL only warns when a REVOKE does nothing.
"""

from collections.abc import Collection, Sequence

import anyio.lowlevel
import asyncpg

from pgrole_controller.core.ddl import literal
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.privileges.acl import AclEntry, DefaultAclChange, ObjectId, ObservedAcl
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, has_raw_names
from pgrole_controller.postgres.privileges.acl_catalog import read_defaults, read_named_acls
from pgrole_controller.postgres.privileges.acl_checks import CHECK_WRITTEN
from pgrole_controller.postgres.privileges.acl_refusal import Ineffective, OutdatedAcl
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_verification import (
    find_lost,
    find_wrong,
    grant_again,
    identity_of,
    written_rows,
)
from pgrole_controller.postgres.privileges.grant_execution import execute_changes
from pgrole_controller.postgres.rows import fetch

#: Number of entries of one object that take more than about a millisecond to compare.
_MANY_ENTRIES = 1000


class AclReadBack:
    """`grantees`: oids of the roles whose entries are compared. `version`: server_version_num."""

    def __init__(self, connection: Connection, grantees: Collection[int], version: int) -> None:
        self._connection = connection
        self._grantees = frozenset(grantees)
        self._version = version

    async def read(self, repairs: Sequence[AclRepair]) -> dict[ObjectId, ObservedAcl]:
        """The objects of these repairs as they are now, without those that were dropped. Raises PgRoleError."""
        oids = [one.observed.object.id.oid for one in repairs]
        tables = [one.observed.object.id.oid for one in repairs if any(entry.column for entry in one.observed.entries)]
        found = await read_named_acls(self._connection, self._grantees, oids, tables)
        return {one.object.id: one for one in found}

    async def find_stale(self, repairs: Sequence[AclRepair]) -> dict[ObjectId, PgRoleError]:
        """The objects that changed since the repairs were decided, with their errors. Raises PgRoleError."""
        now = await self.read(repairs)
        stale: dict[ObjectId, PgRoleError] = {}
        for one in repairs:
            before = one.observed
            found = now.get(before.object.id)
            if found is None or _state_of(one, found) != _state_of(one, before):
                text = f"{before.object.label} changed while the controller read it"
                stale[before.object.id] = OutdatedAcl(Reason.PROGRESSING, text)
        return stale

    async def verify(self, repairs: Sequence[AclRepair], refused: asyncpg.PostgresError | None) -> None:
        """Grants again what a revoke took along, e.g. by CASCADE. Raises PgRoleError, or `refused`, if an object does
        not have the privileges that it should; asyncpg's error with 40001 if other objects were changed instead.
        """
        if not repairs:
            return
        after = await self.read(repairs)
        lost: list[tuple[AclRepair, list[AclEntry]]] = []
        for one in repairs:
            await _share_turn(one)
            if entries := find_lost(one, after.get(one.observed.object.id)):
                lost.append((one, entries))
        if lost:
            names = await _read_role_names(self._connection, {entry.grantee for _, some in lost for entry in some})
            again = [change for one, entries in lost for change in grant_again(one, entries, names)]
            await execute_changes(self._connection, self._version, again)
            after = await self.read(repairs)
        for one in repairs:
            await _share_turn(one)
            if text := find_wrong(one, after.get(one.observed.object.id)):
                raise refused or Ineffective(Reason.DATABASE_ERROR, text)
        # The value names all changed columns: returned, it could exceed the limit on a row.
        setting = f"SELECT pg_catalog.set_config('pgrole.changed', {literal(written_rows(repairs))}, true) IS NOT NULL"
        await self._connection.execute(f"{setting}; {CHECK_WRITTEN}")

    async def verify_defaults(self, changes: Sequence[DefaultAclChange]) -> None:
        """Raises PgRoleError if default privileges are not as they should be."""
        if not changes:
            return
        held = {
            (one.creator, one.schema, one.object_type, entry.grantee, entry.privilege)
            for one in await read_defaults(
                self._connection, {change.grantee for change in changes}, {change.schema for change in changes}
            )
            for entry in one.entries
        }
        for change in changes:
            for privilege in () if change.option_only else change.privileges:
                key = (change.creator, change.schema, change.object_type, change.grantee, privilege)
                if (key in held) == change.revoke:
                    word = "revoke" if change.revoke else "grant"
                    text = f'PostgreSQL did not {word} the default {privilege} of creator "{change.creator_name}"'
                    raise Transient(Reason.DATABASE_ERROR, text)


def _state_of(repair: AclRepair, acl: ObservedAcl) -> tuple[object, ...]:
    """Returns what has to be the same when the repair is made. `seen` leaves columns out. Of the owner's entries on
    columns, no read finds all.
    """
    grantees = {change.grantee for change in repair.changes} - {acl.object.owner}
    columns = frozenset(entry for entry in acl.entries if entry.column and entry.grantee in grantees)
    return *identity_of(acl), acl.seen, columns


async def _share_turn(repair: AclRepair) -> None:
    """Lets other tasks run before much is compared."""
    if len(repair.observed.entries) >= _MANY_ENTRIES:
        await anyio.lowlevel.checkpoint()


async def _read_role_names(connection: Connection, oids: Collection[int]) -> dict[int, str]:
    rows = await fetch(connection, queries.privileges("role_names", raw=has_raw_names(connection)), list(oids))
    return {row.get("oid", int): row.text("name") for row in rows}
