"""One transaction that changes privileges: it locks the tables among its objects, verifies that every object still has
the owner and the ACL that were read, runs the statements, and reads the ACLs back before it commits: PostgreSQL only
warns when a REVOKE does nothing. Usually all of that is one message.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import anyio
import anyio.lowlevel
import asyncpg

from pgrole_controller.core.ddl import seen_name
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.privileges import grant_ddl
from pgrole_controller.core.privileges.acl import (
    AclChange,
    AclEntry,
    DatabaseObject,
    DefaultAclChange,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.grant_ddl import GrantStatement
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.claim_store import limited_transaction
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import DEPENDENT, LOCK_NOT_FREE, sqlstate_of, translate_errors
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.privileges.acl_catalog import read_defaults, read_named_acls
from pgrole_controller.postgres.privileges.acl_checks import (
    CHECK_SUSPENDED,
    CHECK_TRIGGERS,
    LOCK_TABLES,
    NOT_AS_EXPECTED,
)
from pgrole_controller.postgres.privileges.acl_locks import LOCK_SECONDS
from pgrole_controller.postgres.privileges.acl_refusal import (
    RETRIED,
    Ineffective,
    OutdatedAcl,
    Part,
    as_owner,
    postpone,
)
from pgrole_controller.postgres.privileges.acl_script import render_repairs
from pgrole_controller.postgres.privileges.acl_verification import (
    AclRepair,
    find_lost,
    find_wrong,
    grant_again,
    identity_of,
)
from pgrole_controller.postgres.privileges.own_locks import HISTORY, find_locked_table
from pgrole_controller.postgres.privileges.own_transactions import NOTE_OWN_TRANSACTION
from pgrole_controller.postgres.rows import fetch
from pgrole_controller.postgres.trusted_schema import guard_of

_STATEMENT_TIMEOUT = "3500ms"
_CHANGE_LOCK_TIMEOUT = "2s"
#: Time limit in seconds for dividing the changes of one object, well below that of a transaction.
_PARTS_SECONDS = 1.0

#: Number of entries of one object that take more than about a millisecond to compare.
_MANY_ENTRIES = 1000

#: A statement and its arguments.
Statement: TypeAlias = tuple[str, Sequence[object]]


@dataclass(frozen=True, slots=True)
class AclDialect:
    """How to change privileges in one database.

    `version`: server_version_num. `fence`: this process's leadership in this database; None: nothing is installed
    there. `enforcing`: this process leads only according to the database, since Kubernetes cannot be reached.
    `spared`: no event trigger fires in this session. `whole`: the objects were read for every role, so that what a
    transaction reads back is not read again.
    """

    version: int
    fence: Fence | None = None
    enforcing: bool = False
    spared: bool = False
    whole: bool = False

    def opening(self, guard: str) -> list[str]:
        """`guard`: verifies that schema pgrole can be trusted."""
        statements = [CHECK_SUSPENDED]
        if not self.spared:
            statements.append(CHECK_TRIGGERS)
        if self.fence is None or self.fence.statement is None:
            return statements
        verification = [guard] if self.fence.guarded else []
        return [*verification, "SELECT pgrole.lock_changes()", *statements, self.fence.statement]


class AclTransactions:
    """The transactions of one call of `apply_acls`.

    `errors`, `grantee_errors`, `default_errors`: as in AppliedAcls. `stored`: the `extra` statements ran. `history`:
    another one, which is left out if others have locked the table of the history; it is empty then.
    """

    def __init__(
        self, connection: Connection, grantees: Collection[int], dialect: AclDialect, extra: Sequence[Statement]
    ) -> None:
        self._connection = connection
        self._grantees = frozenset(grantees)
        self._dialect = dialect
        self._extra = tuple(extra)
        self.history = ""
        self.errors: dict[ObjectId, PgRoleError] = {}
        self.grantee_errors: dict[ObjectId, dict[Part, PgRoleError]] = {}
        self.default_errors: dict[DefaultAclChange, PgRoleError] = {}
        self.stored = False

    async def run(
        self,
        repairs: Sequence[AclRepair],
        defaults: Sequence[DefaultAclChange] = (),
        *,
        extra: bool = False,
        cascade: bool = False,
        seconds: float = LOCK_SECONDS,
    ) -> None:
        """One transaction. Objects that changed since they were read get their error, and the others are changed.

        `extra`: nothing follows, so that the extra statements run too if no object had an error. `seconds`: the longest
        wait for a lock. Raises PgRoleError; nothing is changed then.
        """
        if self._dialect.fence is not None:
            self._dialect.fence.check_clock(enforcing=self._dialect.enforcing)
        try:
            at_once = not (defaults or cascade)
            if not (at_once and await self._transact_at_once(repairs, extra=extra, seconds=seconds)):
                await self._transact(repairs, defaults, extra=extra, cascade=cascade, seconds=seconds)
        except PgRoleError as error:
            if not self.history or find_locked_table(error) != HISTORY:
                raise
            self.history = ""
            await self.run(repairs, defaults, extra=extra, cascade=cascade, seconds=seconds)

    async def _transact(
        self,
        repairs: Sequence[AclRepair],
        defaults: Sequence[DefaultAclChange],
        *,
        extra: bool,
        cascade: bool,
        seconds: float,
    ) -> None:
        async with self._transaction(repairs, seconds):
            stale = await self._find_stale(repairs)
            fresh = [one for one in repairs if one.observed.object.id not in stale]
            changes = [change for one in fresh for change in one.changes]
            refused = await self._run(changes, defaults, cascade=cascade)
            await self._verify(fresh, refused)
            await self._verify_defaults(defaults)
            storing = extra and not (self.errors or self.default_errors or stale)
            for statement, arguments in self._ending if storing else ():
                await self._connection.execute(statement, *arguments)
        self.errors.update(stale)
        self.stored = self.stored or storing

    async def run_parts(
        self,
        repair: AclRepair,
        parts: Sequence[Sequence[AclChange]],
        order: Iterable[Sequence[int]],
        *,
        seconds: float = LOCK_SECONDS,
    ) -> list[PgRoleError | None]:
        """One transaction that changes one object and leaves out the parts that fail. `order`: their places, those
        first that are tried first; time may not suffice for all. Returns the error of each part. Raises PgRoleError;
        nothing is changed then.
        """
        errors: list[PgRoleError | None] = [None] * len(parts)
        ends = anyio.current_time() + _PARTS_SECONDS
        async with self._transaction([repair], seconds):
            if stale := await self._find_stale([repair]):
                return [*stale.values()] * len(parts)
            pieces, dependent = list(order), list[int]()
            while pieces:
                piece = pieces.pop(0)
                if anyio.current_time() >= ends:
                    errors = [postpone() if place in piece else error for place, error in enumerate(errors)]
                elif (error := await self._try(repair, [one for place in piece for one in parts[place]])) is None:
                    continue
                elif len(piece) > 1:
                    middle = (len(piece) + 1) // 2
                    pieces[:0] = [piece[:middle], piece[middle:]]
                else:
                    errors[piece[0]] = error
                    dependent += piece if sqlstate_of(error) == DEPENDENT else ()
            for place in dependent:
                errors[place] = await self._try(repair, parts[place], cascade=True)
        return errors

    async def _try(
        self, repair: AclRepair, changes: Sequence[AclChange], *, cascade: bool = False
    ) -> PgRoleError | None:
        """Makes all of these changes to one object or none, within a transaction. Returns why not."""
        now = (await self._read([repair])).get(repair.observed.object.id)
        current = AclRepair(repair.observed if now is None else now, tuple(changes))
        await self._connection.execute("SAVEPOINT part")
        try:
            with translate_errors():
                refused = await self._run(changes, cascade=cascade)
                await self._verify([current], refused)
        except PgRoleError as error:
            if self._connection.is_closed() or sqlstate_of(error) in (LOCK_NOT_FREE, *RETRIED):
                raise
            await self._connection.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
            if isinstance(error, Ineffective) and (in_turn := as_owner(current)) != current:
                return await self._try(repair, in_turn.changes, cascade=cascade)
            return error
        await self._connection.execute("RELEASE SAVEPOINT part")
        return None

    async def _transact_at_once(self, repairs: Sequence[AclRepair], *, extra: bool, seconds: float) -> bool:
        """Runs one transaction in one round trip. Returns False if nothing was changed, because these objects need
        more than one message, or because the failed object must be found.
        """
        storing = extra and not (self.errors or self.default_errors)
        ending = self._ending if storing else ()
        if any(arguments for _, arguments in ending):
            return False
        last = [statement for statement, _ in ending]
        if repairs and self._dialect.whole:
            last.append(NOTE_OWN_TRANSACTION)
        text = render_repairs(repairs, self._dialect.version, self._opening(repairs, seconds), last)
        if not text:
            return False
        try:
            with limited_transaction():
                await self._connection.execute(text)
        except PgRoleError as error:
            if sqlstate_of(error) != NOT_AS_EXPECTED:
                raise
            return False
        self.stored = self.stored or storing
        return True

    @property
    def _ending(self) -> Sequence[Statement]:
        return (*self._extra, (self.history, ())) if self.history else self._extra

    def _opening(self, repairs: Sequence[AclRepair], seconds: float) -> list[str]:
        """Returns settings and locks of a transaction."""
        oids = ",".join(str(one.observed.object.id.oid) for one in repairs)
        opening = [
            f"SET LOCAL lock_timeout = '{_CHANGE_LOCK_TIMEOUT}'",
            f"SET LOCAL statement_timeout = '{_STATEMENT_TIMEOUT}'",
            *self._dialect.opening(guard_of(self._connection)),
            f"SET LOCAL lock_timeout = '{max(round(1000 * seconds), 1)}ms'",
        ]
        if repairs:
            opening += [
                f"SELECT pg_catalog.set_config('pgrole.objects', '{{{oids}}}', true)",
                LOCK_TABLES,
            ]
        return opening

    @asynccontextmanager
    async def _transaction(self, repairs: Sequence[AclRepair], seconds: float) -> AsyncIterator[None]:
        """Opens a transaction: BEGIN, settings and locks are one message."""
        with limited_transaction():
            try:
                await self._connection.execute(";\n".join(["BEGIN", *self._opening(repairs, seconds)]))
                yield
                await self._connection.execute("COMMIT")
            except BaseException:
                if not self._connection.is_closed() and self._connection.is_in_transaction():
                    await self._connection.execute("ROLLBACK")
                raise

    async def _find_stale(self, repairs: Sequence[AclRepair]) -> dict[ObjectId, PgRoleError]:
        now = await self._read(repairs)
        stale: dict[ObjectId, PgRoleError] = {}
        for one in repairs:
            before = one.observed
            found = now.get(before.object.id)
            if found is None or found.seen != before.seen or identity_of(found) != identity_of(before):
                text = f"{before.object.label} changed while the controller read it"
                stale[before.object.id] = OutdatedAcl(Reason.PROGRESSING, text)
        return stale

    async def _run(
        self, changes: Sequence[AclChange], defaults: Sequence[DefaultAclChange] = (), *, cascade: bool = False
    ) -> asyncpg.InsufficientPrivilegeError | None:
        """Returns an error of a statement that may have had nothing left to do: with `cascade`, an earlier one may have
        taken everything from a grantor, who then may not even revoke.
        """
        refused = None
        try:
            statements = grant_ddl.statements(changes, defaults, self._dialect.version, cascade=cascade)
        except ValueError as error:  # for one object: the others are changed without it
            raise Transient(Reason.DATABASE_ERROR, str(error)) from error
        for one in statements:
            if not one.acting_as:
                await self._connection.execute(one.text)
            elif not cascade:
                await self._run_as_grantor(one)
            else:
                await self._connection.execute("SAVEPOINT grantor")
                try:
                    await self._run_as_grantor(one)
                except asyncpg.InsufficientPrivilegeError as error:
                    refused = error
                    await self._connection.execute("ROLLBACK TO SAVEPOINT grantor")
                await self._connection.execute("RELEASE SAVEPOINT grantor")
        return refused

    async def _run_as_grantor(self, statement: GrantStatement) -> None:
        """A grantor without USAGE on a schema could not name the object or its types, so it gets that meanwhile."""
        acting = f"SELECT pg_catalog.set_config('role', {seen_name(statement.acting_as)}, true)"
        closed = await self._find_closed_schemas(statement)
        opening = [AclChange(one, 0, statement.acting_as, ("USAGE",)) for one in closed]
        texts = [
            *(one.text for one in grant_ddl.statements(opening)),
            acting,
            statement.text,
            "RESET ROLE",
            *(one.text for one in grant_ddl.statements(replace(one, revoke=True) for one in opening)),
        ]
        await self._connection.execute(";\n".join(texts))

    async def _find_closed_schemas(self, statement: GrantStatement) -> list[DatabaseObject]:
        relations, routines = (
            [one.oid for one in statement.objects if one.catalog == catalog] for catalog in ("pg_class", "pg_proc")
        )
        rows = await fetch(
            self._connection,
            "",
            queries.privileges("closed_schemas"),
            statement.acting_as.encode(errors="surrogateescape"),
            relations,
            routines,
        )
        found = [(ObjectId("pg_namespace", row.get("oid", int)), row.text("name")) for row in rows]
        return [DatabaseObject(schema, ObjectKind.SCHEMA, name, name, 0, "") for schema, name in found]

    async def _verify(self, repairs: Sequence[AclRepair], refused: asyncpg.PostgresError | None) -> None:
        """Reads the ACLs back. Grants again what a revoke took along, e.g. by CASCADE. Raises PgRoleError, or
        `refused`, if an object does not have the privileges that it should.
        """
        if not repairs:
            return
        after = await self._read(repairs)
        lost: list[tuple[AclRepair, AclEntry]] = []
        for one in repairs:
            await _share_turn(one)
            lost += [(one, entry) for entry in find_lost(one, after.get(one.observed.object.id))]
        if lost:
            names = await _read_role_names(self._connection, {entry.grantee for _, entry in lost})
            await self._run([grant_again(one, entry, names) for one, entry in lost if entry.grantee in names])
            after = await self._read(repairs)
        for one in repairs:
            await _share_turn(one)
            if text := find_wrong(one, after.get(one.observed.object.id)):
                raise refused or Ineffective(Reason.DATABASE_ERROR, text)

    async def _verify_defaults(self, changes: Sequence[DefaultAclChange]) -> None:
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

    async def _read(self, repairs: Sequence[AclRepair]) -> dict[ObjectId, ObservedAcl]:
        oids = [one.observed.object.id.oid for one in repairs]
        tables = [one.observed.object.id.oid for one in repairs if any(entry.column for entry in one.observed.entries)]
        found = await read_named_acls(self._connection, self._grantees, oids, tables)
        return {one.object.id: one for one in found}


async def _share_turn(repair: AclRepair) -> None:
    """Lets other tasks run before much is compared."""
    if len(repair.observed.entries) >= _MANY_ENTRIES:
        await anyio.lowlevel.checkpoint()


async def _read_role_names(connection: Connection, oids: Collection[int]) -> dict[int, str]:
    rows = await fetch(connection, "", queries.privileges("role_names"), list(oids))
    return {row.get("oid", int): row.text("name") for row in rows}
