"""Applies changes to privileges in one database.

A transaction (`acl_transaction`) changes at most OBJECTS objects, in the order of their oids. If it fails, each of its
objects is tried in a transaction of its own, so that one object does not delay the others.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from pgrole_controller.core.acl import DefaultAclChange, ObjectId
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.acl_checks import prepare_checks
from pgrole_controller.postgres.acl_refusal import (
    LOCK_NOT_FREE,
    RETRIED,
    Ineffective,
    as_owner,
    explain,
    explain_default,
    postpone,
    sqlstate,
    tell_locked,
)
from pgrole_controller.postgres.acl_transaction import AclDialect, AclTransactions, Statement
from pgrole_controller.postgres.acl_verification import AclRepair
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import FOREIGN_EVENT_TRIGGER
from pgrole_controller.postgres.fence import Unconfirmed, is_another_leading
from pgrole_controller.postgres.rows import fetch

log = logging.getLogger(__name__)

#: Maximum number of objects of one transaction, which then takes about 12 ms.
OBJECTS = 100
#: Time limit in seconds for trying objects one by one; the remaining ones are postponed.
ONE_BY_ONE_SECONDS = 3.0

#: Pauses in seconds before another attempt for an object that another transaction changed at the same time.
_PAUSES = (0.01, 0.05)
_DEPENDENT = "2BP01"


@dataclass(frozen=True, slots=True)
class AppliedAcls:
    """`errors`: of the objects that were not changed. `default_errors`: likewise for default privileges. `stored`: the
    transaction of the last change ran the `extra` statements, which it does only without errors.
    """

    errors: Mapping[ObjectId, PgRoleError] = field(default_factory=dict)
    default_errors: Mapping[DefaultAclChange, PgRoleError] = field(default_factory=dict)
    stored: bool = False


async def apply_acls(
    connection: Connection,
    repairs: Sequence[AclRepair],
    defaults: Sequence[DefaultAclChange],
    grantees: Collection[int],
    dialect: AclDialect,
    extra: Sequence[Statement] = (),
) -> AppliedAcls:
    """Applies the changes; nothing is sent if there are none. `grantees`: whose entries were read.

    `extra` runs in the transaction of the last change, if there was no error: pass what records that everything is
    applied. Without changes, it gets a transaction of its own. Raises PgRoleError if the connection is lost, another
    process leads, changes are suspended, or an event trigger of others would run; what was committed before stays.
    """
    due = sorted(
        (one for one in repairs if one.changes), key=lambda one: (one.observed.object.id.oid, one.observed.object.id)
    )
    if not (due or defaults or extra):
        return AppliedAcls()
    if dialect.foreign_triggers:
        return _refused(due, defaults)
    await prepare_checks(connection)
    transactions = AclTransactions(connection, grantees, dialect, extra)
    pass_ = _Pass(connection, transactions, dialect.version)
    steps: list[Sequence[AclRepair]] = [due[start : start + OBJECTS] for start in range(0, len(due), OBJECTS)]
    for place, some in enumerate(steps):
        await pass_.change(some, last=place == len(steps) - 1 and not defaults)
    await pass_.change_busy(last=not defaults)
    if defaults:
        await pass_.change_defaults(defaults)
    elif not steps:
        await transactions.run((), extra=True)
    return AppliedAcls(transactions.errors, transactions.default_errors, transactions.stored)


def _refused(repairs: Iterable[AclRepair], defaults: Iterable[DefaultAclChange]) -> AppliedAcls:
    error = Transient(
        Reason.DATABASE_ERROR,
        "an event trigger of another role would run with the controller's privileges, so the controller changes "
        "nothing in this database: drop the event trigger, or make a superuser its owner and that of its function",
    )
    return AppliedAcls({one.observed.object.id: error for one in repairs}, dict.fromkeys(defaults, error))


class _Pass:
    """One call of `apply_acls`."""

    def __init__(self, connection: Connection, transactions: AclTransactions, version: int) -> None:
        self._connection = connection
        self._transactions = transactions
        self._version = version
        self._ends = 0.0
        self._busy: list[AclRepair] = []
        self._meets_locks = False

    async def change(self, repairs: Sequence[AclRepair], *, last: bool) -> None:
        """`last`: nothing follows, except for tables that others have locked, which are left to `change_busy`."""
        if self._meets_locks:
            repairs = await self._set_busy_aside(repairs)
        while repairs:
            await anyio.lowlevel.checkpoint()
            try:
                await self._transactions.run(repairs, extra=last and not self._busy)
            except PgRoleError as error:
                self._raise_if_common(error)
                if sqlstate(error) == LOCK_NOT_FREE:
                    self._meets_locks = True
                    free = await self._set_busy_aside(repairs)
                    if len(free) < len(repairs):
                        repairs = free
                        continue
                log.debug("changing objects one by one", extra={"objects": len(repairs), "error": error.message})
                await self._change_each(repairs, last=last and not self._busy)
            return

    async def change_busy(self, *, last: bool) -> None:
        """Changes the tables that others had locked, after everything else."""
        await self._change_each(self._busy, last=last, busy=True)

    async def _set_busy_aside(self, repairs: Sequence[AclRepair]) -> Sequence[AclRepair]:
        """Returns the objects that no one has locked."""
        oids = [one.observed.object.id.oid for one in repairs]
        rows = await fetch(self._connection, "", queries.privileges("busy"), oids)
        busy = {row.get("oid", int) for row in rows}
        self._busy += [one for one in repairs if one.observed.object.id.oid in busy]
        return [one for one in repairs if one.observed.object.id.oid not in busy]

    async def _change_each(self, repairs: Sequence[AclRepair], *, last: bool, busy: bool = False) -> None:
        self._ends = self._ends or anyio.current_time() + ONE_BY_ONE_SECONDS
        for place, one in enumerate(repairs):
            if anyio.current_time() >= self._ends:
                error_of_one: PgRoleError | None = tell_locked(one) if busy else postpone()
            else:
                error_of_one = await self._change_one(one, last=last and place == len(repairs) - 1)
            if error_of_one is not None:
                self._transactions.errors[one.observed.object.id] = error_of_one

    async def _change_one(self, repair: AclRepair, *, last: bool) -> PgRoleError | None:
        cascade = False
        pauses = iter(_PAUSES)
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                await self._transactions.run([repair], extra=last, cascade=cascade)
            except PgRoleError as error:
                self._raise_if_common(error)
                code = sqlstate(error)
                if code == _DEPENDENT and not cascade:
                    cascade = True
                elif isinstance(error, Ineffective) and (in_turn := as_owner(repair)) != repair:
                    repair = in_turn
                elif code in RETRIED and (pause := next(pauses, None)) is not None:
                    await anyio.sleep(pause)
                else:
                    return await explain(self._connection, error, repair, self._version)
            else:
                return None

    async def change_defaults(self, changes: Sequence[DefaultAclChange]) -> None:
        await anyio.lowlevel.checkpoint()
        try:
            await self._transactions.run((), changes, extra=True)
        except PgRoleError as error:
            self._raise_if_common(error)
        else:
            return
        for place, one in enumerate(changes):
            try:
                await self._transactions.run((), [one], extra=place == len(changes) - 1)
            except PgRoleError as error:
                self._raise_if_common(error)
                self._transactions.default_errors[one] = await explain_default(
                    self._connection, error, one, self._version
                )

    def _raise_if_common(self, error: PgRoleError) -> None:
        """Raises an error that concerns every object."""
        common = isinstance(error, Unconfirmed) or error.reason is Reason.SUSPENDED or is_another_leading(error)
        common = common or sqlstate(error) == FOREIGN_EVENT_TRIGGER
        if common or self._connection.is_closed():
            raise error
