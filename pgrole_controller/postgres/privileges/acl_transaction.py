"""One transaction that changes privileges: it locks the tables among its objects, verifies that every object still has
the owner and the ACL that were read, runs the statements, and reads the ACLs back before it commits. Usually all of
that is one message.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import AclChange, DefaultAclChange, ObjectId
from pgrole_controller.postgres.claim_store import CHANGE_TIMEOUTS, limited_transaction
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import DEPENDENT, LOCK_NOT_FREE, sqlstate_of, translate_errors
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.privileges.acl_checks import (
    CHECK_SUSPENDED,
    CHECK_TRIGGERS,
    LOCK_TABLES,
    NOT_AS_EXPECTED,
)
from pgrole_controller.postgres.privileges.acl_locks import HISTORY, LOCK_SECONDS, find_locked_table
from pgrole_controller.postgres.privileges.acl_read_back import AclReadBack
from pgrole_controller.postgres.privileges.acl_refusal import RETRIED, Ineffective, tell_outdated, tell_postponed
from pgrole_controller.postgres.privileges.acl_repair import AclPart, AclRepair, as_owner
from pgrole_controller.postgres.privileges.acl_script import render_repairs
from pgrole_controller.postgres.privileges.grant_execution import execute_changes
from pgrole_controller.postgres.privileges.searches import NOTE_OWN_TRANSACTION
from pgrole_controller.postgres.trusted_schema import guard_of

#: Time limit in seconds for dividing the changes of one object, well below that of a transaction.
_PARTS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AclDialect:
    """How to change privileges in one database.

    `version`: server_version_num. `fence`: this process's leadership in this database; None: no other process
    can lead. `enforcing`: this process leads only according to the database, since Kubernetes cannot be reached.
    `spared`: as in DatabaseInstallation. `whole`: the objects were read for every role, so that what a transaction
    reads back is not read again.
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


@dataclass(slots=True)
class AppliedAcls:
    """What came of one call of `apply_acls`.

    `errors`: of the objects that were not changed. `grantee_errors`: some of these objects were changed, except for
    these parts. `default_errors`: of the default privileges that were not changed. `stored`: the transaction of the
    last change ran the `records`, which it does only without errors. `unrecorded`: why without `history`, whose table
    others have locked. `outdated`: objects that were not changed for a grantee (oid), since that is declared otherwise
    by now.
    """

    errors: dict[ObjectId, PgRoleError] = field(default_factory=dict)
    grantee_errors: dict[ObjectId, Mapping[AclPart, PgRoleError]] = field(default_factory=dict)
    default_errors: dict[DefaultAclChange, PgRoleError] = field(default_factory=dict)
    stored: bool = False
    unrecorded: PgRoleError | None = None
    outdated: set[tuple[ObjectId, int]] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return bool(self.errors or self.default_errors or self.outdated)

    def find_error(self, identity: ObjectId, grantee: int, parts: Sequence[bool] = (False, True)) -> PgRoleError | None:
        """Returns why the object was not changed for this grantee; None if it was. `parts`: as in AclPart.delegated."""
        if (identity, grantee) in self.outdated:
            return tell_outdated()
        divided = self.grantee_errors.get(identity)
        if divided is None:
            return self.errors.get(identity)
        return next((divided[part] for one in parts if (part := AclPart(grantee, one)) in divided), None)


class AclTransactions:
    """The transactions of one call of `apply_acls`.

    `records`, `history`: as in `apply_acls`. `leaves_history`: others have locked its table.
    """

    def __init__(
        self, connection: Connection, grantees: Collection[int], dialect: AclDialect, records: str, history: str
    ) -> None:
        self._connection = connection
        self._read_back = AclReadBack(connection, grantees, dialect.version)
        self._dialect = dialect
        self._records = records
        self._history = history
        self.applied = AppliedAcls()
        self.leaves_history = False

    async def run(
        self,
        repairs: Sequence[AclRepair],
        defaults: Sequence[DefaultAclChange] = (),
        *,
        last: bool = False,
        cascade: bool = False,
        seconds: float = LOCK_SECONDS,
    ) -> None:
        """One transaction. Objects that changed since they were read get their error, and the others are changed.

        `last`: nothing follows, so that the records are written too if no object had an error. `seconds`: the longest
        wait for a lock. Raises PgRoleError; nothing is changed then.
        """
        if self._dialect.fence is not None:
            self._dialect.fence.check_clock(enforcing=self._dialect.enforcing)
        try:
            at_once = not (defaults or cascade)
            if not (at_once and await self._transact_at_once(repairs, last=last, seconds=seconds)):
                await self._transact(repairs, defaults, last=last, cascade=cascade, seconds=seconds)
        except PgRoleError as error:
            if self.leaves_history or not self._history or find_locked_table(error) != HISTORY:
                raise
            self.leaves_history = True
            await self.run(repairs, defaults, last=last, cascade=cascade, seconds=seconds)

    async def _transact(
        self,
        repairs: Sequence[AclRepair],
        defaults: Sequence[DefaultAclChange],
        *,
        last: bool,
        cascade: bool,
        seconds: float,
    ) -> None:
        async with self._transaction(repairs, seconds):
            stale = await self._read_back.find_stale(repairs)
            fresh = [one for one in repairs if one.observed.object.id not in stale]
            changes = [change for one in fresh for change in one.changes]
            refused = await execute_changes(self._connection, self._dialect.version, changes, defaults, cascade=cascade)
            await self._read_back.verify(fresh, refused)
            await self._read_back.verify_defaults(defaults)
            storing = last and not (self.applied.failed or stale)
            for statement in self._ending if storing else ():
                await self._connection.execute(statement)
        self.applied.errors.update(stale)
        self.applied.stored = self.applied.stored or storing

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
            if stale := await self._read_back.find_stale([repair]):
                return [*stale.values()] * len(parts)
            pieces, dependent = list(order), list[int]()
            while pieces:
                piece = pieces.pop(0)
                if anyio.current_time() >= ends:
                    errors = [tell_postponed() if place in piece else error for place, error in enumerate(errors)]
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
        now = (await self._read_back.read([repair])).get(repair.observed.object.id)
        current = AclRepair(repair.observed if now is None else now, tuple(changes))
        await self._connection.execute("SAVEPOINT part")
        try:
            with translate_errors():
                refused = await execute_changes(self._connection, self._dialect.version, changes, cascade=cascade)
                await self._read_back.verify([current], refused)
        except PgRoleError as error:
            if self._connection.is_closed() or sqlstate_of(error) in (LOCK_NOT_FREE, *RETRIED):
                raise
            await self._connection.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
            if isinstance(error, Ineffective) and (in_turn := as_owner(current)) != current:
                return await self._try(repair, in_turn.changes, cascade=cascade)
            return error
        await self._connection.execute("RELEASE SAVEPOINT part")
        return None

    async def _transact_at_once(self, repairs: Sequence[AclRepair], *, last: bool, seconds: float) -> bool:
        """Runs one transaction in one round trip. Returns False if nothing was changed, because these objects need
        more than one message, or because the failed object must be found.
        """
        storing = last and not self.applied.failed
        ending = self._ending if storing else []
        if repairs and self._dialect.whole:
            ending.append(NOTE_OWN_TRANSACTION)
        text = render_repairs(repairs, self._dialect.version, self._opening(repairs, seconds), ending)
        if not text:
            return False
        try:
            async with limited_transaction(self._connection):
                await self._connection.execute(text)
        except PgRoleError as error:
            if sqlstate_of(error) != NOT_AS_EXPECTED:
                raise
            return False
        self.applied.stored = self.applied.stored or storing
        return True

    @property
    def _ending(self) -> list[str]:
        return [one for one in (self._records, "" if self.leaves_history else self._history) if one]

    def _opening(self, repairs: Sequence[AclRepair], seconds: float) -> list[str]:
        """Returns settings and locks of a transaction."""
        oids = ",".join(str(one.observed.object.id.oid) for one in repairs)
        opening = [
            *CHANGE_TIMEOUTS,
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
        async with limited_transaction(self._connection):
            try:
                await self._connection.execute(";\n".join(["BEGIN", *self._opening(repairs, seconds)]))
                yield
                await self._connection.execute("COMMIT")
            except BaseException:
                if not self._connection.is_closed() and self._connection.is_in_transaction():
                    await self._connection.execute("ROLLBACK")
                raise
