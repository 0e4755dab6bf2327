"""Applies changes to privileges in one database.

A transaction (`acl_transaction`) changes at most OBJECTS objects, in the order of their oids, or as many default
privileges, and makes about CHANGES changes. `acl_batches` keeps an object that is locked, or cannot be changed, from
delaying the others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import anyio
import anyio.lowlevel

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import AclChange, DefaultAclChange
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import DEPENDENT, LOCK_NOT_FREE, sqlstate_of
from pgrole_controller.postgres.privileges.acl_batches import (
    OBJECTS,
    Batches,
    Deadlines,
    GiveWay,
    go_on,
    raise_if_common,
    split_large,
)
from pgrole_controller.postgres.privileges.acl_checks import prepare_checks
from pgrole_controller.postgres.privileges.acl_locks import HISTORY, tell_locked_table, waits_of
from pgrole_controller.postgres.privileges.acl_refusal import (
    RETRIED,
    Ineffective,
    Postponed,
    explain,
    explain_default,
    explain_storing,
    tell_outdated,
)
from pgrole_controller.postgres.privileges.acl_repair import AclPart, AclRepair, as_owner, divide
from pgrole_controller.postgres.privileges.acl_transaction import AclDialect, AclTransactions, AppliedAcls
from pgrole_controller.postgres.privileges.failed_changes import failed_changes_of

#: Pauses in seconds before another attempt for an object that another transaction changed at the same time.
_PAUSES = (0.01, 0.05)


async def apply_acls(
    connection: Connection,
    repairs: Sequence[AclRepair],
    defaults: Sequence[DefaultAclChange],
    grantees: Collection[int],
    dialect: AclDialect,
    records: str = "",
    give_way: GiveWay = go_on,
    *,
    history: str = "",
) -> AppliedAcls:
    """Applies the changes; nothing is sent if there are none. `grantees`: whose entries were read.

    `records` (SQL) runs in the transaction of the last change, if there was no error: pass what records that everything
    is applied. Without changes, it gets a transaction of its own. `history` belongs to it: the statement that records
    what was corrected. Raises PgRoleError if the connection is lost, another process leads, changes are suspended, or
    an event trigger of others would run; what was committed before stays.
    """
    due = sorted(
        (one for one in repairs if one.changes), key=lambda one: (one.observed.object.id.oid, one.observed.object.id)
    )
    if not (due or defaults or records):
        return AppliedAcls()
    await prepare_checks(connection)
    transactions = AclTransactions(connection, grantees, dialect, records, history)
    waits, failed, deadlines = waits_of(connection), failed_changes_of(connection), Deadlines()
    objects = Batches(connection, _ObjectSteps(connection, transactions, dialect.version), waits, deadlines, give_way)
    parts = split_large(failed.separate(due, OBJECTS))
    for place, part in enumerate(parts):
        await objects.change(part, last=place == len(parts) - 1 and not defaults)
    await objects.change_busy(last=not defaults)
    if defaults:
        steps = _DefaultSteps(connection, transactions, dialect.version)
        # Objects that always fail must not take all the time for dividing.
        later = Deadlines(locks_end=deadlines.locks_end, locked=deadlines.locked)
        batches = Batches(connection, steps, waits, later, give_way)
        in_turn = failed.separate(defaults, OBJECTS)
        for place, some in enumerate(in_turn):
            await batches.change(some, last=place == len(in_turn) - 1)
        await batches.change_busy(last=True)
    elif not due:
        await _store(connection, transactions)
    applied = transactions.applied
    if applied.stored and transactions.leaves_history:
        applied.unrecorded = await tell_locked_table(connection, HISTORY)
    return applied


async def _store(connection: Connection, transactions: AclTransactions) -> None:
    """Runs `records` alone. Raises PgRoleError."""
    try:
        await transactions.run((), last=True)
    except PgRoleError as error:
        raise await explain_storing(connection, error) from error.__cause__


class _ObjectSteps:
    """Changes objects."""

    def __init__(self, connection: Connection, transactions: AclTransactions, version: int) -> None:
        self._connection = connection
        self._transactions = transactions
        self._version = version

    async def change_all(self, some: Sequence[AclRepair], *, last: bool, seconds: float) -> None:
        await self._transactions.run(some, last=last, seconds=seconds)

    async def change_one(self, one: AclRepair, *, last: bool, seconds: float) -> PgRoleError | None:
        read, cascade = one, False
        pauses = iter(_PAUSES)
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                await self._transactions.run([one], last=last, cascade=cascade, seconds=seconds)
            except PgRoleError as error:
                raise_if_common(self._connection, error)
                code = sqlstate_of(error)
                if code == LOCK_NOT_FREE:
                    raise
                if code == DEPENDENT and not cascade:
                    cascade = True
                elif isinstance(error, Ineffective) and (in_turn := as_owner(one)) != one:
                    one = in_turn
                elif code in RETRIED and (pause := next(pauses, None)) is not None:
                    await anyio.sleep(pause)
                elif code not in RETRIED and len(parts := divide(read)) > 1:
                    return await self._change_parts(read, parts, last=last, seconds=seconds)
                else:
                    return await explain(self._connection, error, one, self._version)
            else:
                return None

    async def _change_parts(
        self, repair: AclRepair, parts: Mapping[AclPart, list[AclChange]], *, last: bool, seconds: float
    ) -> PgRoleError | None:
        """Changes the object for the grantees for which that is possible. Returns an error of the others."""
        failures = failed_changes_of(self._connection)
        order = failures.separate_parts(repair, list(parts))
        try:
            errors = await self._transactions.run_parts(repair, list(parts.values()), order, seconds=seconds)
        except PgRoleError as error:
            raise_if_common(self._connection, error)
            if sqlstate_of(error) == LOCK_NOT_FREE:
                raise
            return await explain(self._connection, error, repair, self._version)
        failed: dict[AclPart, PgRoleError] = {}
        tried: dict[AclPart, PgRoleError] = {}
        for (key, part), error_of_part in zip(parts.items(), errors, strict=True):
            if error_of_part is not None:
                if error_of_part.__cause__ is not None or isinstance(error_of_part, Ineffective):
                    about = AclRepair(repair.observed, tuple(part))
                    error_of_part = await explain(self._connection, error_of_part, about, self._version)
                    tried[key] = error_of_part
                elif isinstance(error_of_part, Postponed):
                    error_of_part = failures.postpone_part(repair, key)
                failed[key] = error_of_part
        failures.note_parts(repair, tried, parts.keys() - failed.keys())
        if failed:
            self._transactions.applied.grantee_errors[repair.observed.object.id] = failed
        elif last:
            await _store(self._connection, self._transactions)
        return next(iter(failed.values()), None)

    def report(self, one: AclRepair, error: PgRoleError) -> None:
        self._transactions.applied.errors[one.observed.object.id] = error

    def leave_out(self, one: AclRepair, grantees: Collection[int]) -> AclRepair | None:
        left = tuple(change for change in one.changes if change.grantee not in grantees)
        if len(left) == len(one.changes):
            return one
        outdated = {change.grantee for change in one.changes} & set(grantees)
        self._transactions.applied.outdated.update((one.observed.object.id, grantee) for grantee in outdated)
        return replace(one, changes=left) if left else None


class _DefaultSteps:
    """Changes default privileges."""

    def __init__(self, connection: Connection, transactions: AclTransactions, version: int) -> None:
        self._connection = connection
        self._transactions = transactions
        self._version = version

    async def change_all(self, some: Sequence[DefaultAclChange], *, last: bool, seconds: float) -> None:
        await self._transactions.run((), some, last=last, seconds=seconds)

    async def change_one(self, one: DefaultAclChange, *, last: bool, seconds: float) -> PgRoleError | None:
        await anyio.lowlevel.checkpoint()
        try:
            await self.change_all([one], last=last, seconds=seconds)
        except PgRoleError as error:
            raise_if_common(self._connection, error)
            if sqlstate_of(error) == LOCK_NOT_FREE:
                raise
            return await explain_default(self._connection, error, one, self._version)
        return None

    def report(self, one: DefaultAclChange, error: PgRoleError) -> None:
        self._transactions.applied.default_errors[one] = error

    def leave_out(self, one: DefaultAclChange, grantees: Collection[int]) -> DefaultAclChange | None:
        if one.grantee not in grantees:
            return one
        self.report(one, tell_outdated())
        return None
