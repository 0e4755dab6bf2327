"""Applies plans: one transaction, one round trip, for any number of them.

When a statement fails, each plan is tried on its own, so that one bad role does not hold up the others. asyncpg's own
ROLLBACK is cancelled with the task that runs it, so a transaction runs in a shielded scope with its own deadline.

Statements name roles, plans mean oids. PostgreSQL looks a name up when it executes a statement, after any check at the
start of the transaction, and whoever may rename roles does not take our lock. A superuser therefore locks the rows of
the roles first: until the transaction ends, no one can rename or drop them, and everything else may still be changed.
Where pg_authid may not be locked, the names are looked up again at the end. A role that was altered keeps its name
until then, since its row is ours; one that was renamed and back in between is only found where it was altered. Whoever
can do that to a role can also grant whatever the role has.

Only the role that a plan is about is held. Groups and databases are declared by name, and whichever has that name is
meant.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel

from pgrole_controller.core.ddl import literal, seen_name
from pgrole_controller.core.diff import Drop, Rename, field_names
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.claim_store import ClaimStore
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.errors import is_lacking
from pgrole_controller.postgres.fence import Fence, Unconfirmed, is_another_leading
from pgrole_controller.postgres.privileges import MissingPrivilege, explain, find_missing_privileges, read_rights

log = logging.getLogger(__name__)

#: For all that is tried one by one after a batch failed: what does not get its turn is put off.
ONE_BY_ONE_SECONDS = 3.0

_STATEMENT_TIMEOUT = "3500ms"
#: For the change lock, since the transactions of other controllers may last; then for each role, which anybody can
# lock: since
#: PostgreSQL 16 any role may begin an ALTER ROLE that is refused to it only at the end.
_CHANGE_LOCK_TIMEOUT = "2s"
_TOGETHER = "500ms"
_ALONE = "150ms"
#: A role that was locked is changed apart from the others for so long, in seconds.
APART_SECONDS = 60.0
_LOCK_NOT_FREE = "55P03"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to write a transaction for one server.

    `options`: memberships have INHERIT and SET, and several grantors can grant one (PostgreSQL 16 and later).
    `parameter_grants`: a superuser can grant SET on a parameter (15 and later). `claims`: where claims are kept.
    `fence`: this process's lead, which each transaction verifies. `enforcing`: Kubernetes cannot be reached, so each
    claim must still have the applied state that was read. `superuser`: the controller's role can lock role names.
    """

    options: bool = True
    parameter_grants: bool = True
    claims: ClaimStore = field(default_factory=DatabaseClaims, compare=False)
    fence: Fence | None = None
    enforcing: bool = False
    superuser: bool = False


class LockedRoles:
    """The roles that somebody else held lately: left out of the batch, they hold up nothing but themselves."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, role_name: str, error: PgRoleError | None) -> None:
        if getattr(getattr(error, "__cause__", None), "sqlstate", None) == _LOCK_NOT_FREE:
            self._until[role_name] = anyio.current_time() + APART_SECONDS
        elif error is None:
            self._until.pop(role_name, None)

    def holds(self, role_name: str) -> bool:
        return self._until.get(role_name, 0.0) > anyio.current_time()


def script(plans: Sequence[Plan], dialect: Dialect, *, lock_timeout: str = _TOGETHER) -> str:
    """The SQL of these plans. Sent as one message without parameters it is one transaction, without a BEGIN."""
    begin = [
        f"SET LOCAL lock_timeout = '{_CHANGE_LOCK_TIMEOUT}'",
        f"SET LOCAL statement_timeout = '{_STATEMENT_TIMEOUT}'",
        *dialect.claims.opening(),
    ]
    if dialect.fence is not None and dialect.fence.statement is not None:
        begin.append(dialect.fence.statement)
    begin.append(f"SET LOCAL lock_timeout = '{lock_timeout}'")
    hold = lock_names(plans) if dialect.superuser else []
    changes = (
        statement
        for plan in plans
        for statement in dialect.claims.statements(plan, options=dialect.options, enforcing=dialect.enforcing)
    )
    return ";\n".join((*begin, *hold, *changes, *verify_names(plans, held=dialect.superuser)))


async def apply_plans(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, locked: LockedRoles | None = None
) -> list[PgRoleError | None]:
    """Carries out the plans, all or one by one: None for each that is committed, else why it is not.

    `locked` is what is known of the server's roles from one call to the next. Raises Transient when another process
    leads: then nothing is carried out. (Of plans for locked roles alone, each says so.)
    """
    locked = locked or LockedRoles()
    apart = [place for place, plan in enumerate(plans) if len(plans) > 1 and locked.holds(plan.role_name)]
    rest = [place for place in range(len(plans)) if place not in apart]
    results: list[PgRoleError | None] = [None] * len(plans)
    for places, carry in ((rest, _apply_together), (apart, _apply_each)):
        some = [plans[place] for place in places]
        for place, error in zip(places, await carry(connection, some, dialect, locked) if some else (), strict=True):
            results[place] = error
    return results


async def _apply_together(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, locked: LockedRoles
) -> list[PgRoleError | None]:
    together = await _run(connection, plans, dialect, _TOGETHER)
    if together is not None and is_lacking(together) and dialect.superuser:  # it may have ceased to be one
        dialect = replace(dialect, superuser=False)
        together = await _run(connection, plans, dialect, _TOGETHER)
    if together is not None and is_another_leading(together):
        raise together
    if together is None or connection.is_closed() or _concerns_all(together):
        return [together] * len(plans)
    if len(plans) == 1:
        locked.note(plans[0].role_name, together)
        return [await _explain_failure(connection, plans[0], dialect, together)]
    return await _apply_each(connection, plans, dialect, locked)


def _concerns_all(error: PgRoleError) -> bool:
    return isinstance(error, Unconfirmed) or error.reason is Reason.SUSPENDED


async def _apply_each(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, locked: LockedRoles
) -> list[PgRoleError | None]:
    """A role that somebody else has locked is waited for a moment only, so that it does not hold up the others."""
    ends = anyio.current_time() + ONE_BY_ONE_SECONDS
    results: list[PgRoleError | None] = []
    for plan in plans:
        await anyio.lowlevel.checkpoint()  # the transactions themselves are not interrupted
        if anyio.current_time() < ends:
            error = await _run(connection, [plan], dialect, _ALONE)
            locked.note(plan.role_name, error)
            results.append(await _explain_failure(connection, plan, dialect, error))
        else:
            results.append(Transient(Reason.PROGRESSING, "postponed, since other objects in its batch wait for locks"))
    return results


async def _explain_failure(
    connection: Connection, plan: Plan, dialect: Dialect, error: PgRoleError | None
) -> PgRoleError | None:
    """Where a privilege is lacking: says which, and brings in what is left of the drift without it."""
    if error is None or not is_lacking(error) or connection.is_closed():
        return error
    try:
        rights = await read_rights(connection, plan, scoped=dialect.options, parameter_grants=dialect.parameter_grants)
    except PgRoleError:
        return error  # it is told without the grant that is missing
    missing = find_missing_privileges(plan.changes, rights)
    rest = _without(plan, missing)
    failure = await _run(connection, [rest], dialect, _ALONE) if rest else None
    return failure or explain(error, missing)


def _without(plan: Plan, missing: Sequence[MissingPrivilege]) -> Plan | None:
    """The changes of a role of ours that nothing stands against; None where there are none.

    What was applied stays what it was: drift is told as far as it was set back, a changed spec is not yet applied.
    """
    blocked = [one.change for one in missing]
    left = tuple(change for change in plan.changes if change not in blocked)
    ours = plan.oid is not None and plan.claim is not None and plan.claim.owner == plan.owner
    if not (ours and blocked and left) or any(isinstance(change, Rename) for change in blocked):
        return None
    owner = plan.owner if plan.drift else None
    # What is remembered of a password is true only once it is set.
    record = None if "password" in field_names(tuple(blocked)) else plan.record
    return replace(plan, changes=left, owner=owner, record=record, drift=field_names(left) if owner else ())


async def _run(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, lock_timeout: str
) -> PgRoleError | None:
    began = time.perf_counter()
    error = await _try(connection, plans, dialect, lock_timeout)
    log.debug(
        "transaction",
        extra={
            "plans": len(plans),
            "changes": sum(len(plan.changes) for plan in plans),
            "took_ms": round((time.perf_counter() - began) * 1000, 3),
            "failed": error.reason.value if error else "",
        },
    )
    return error


async def _try(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, lock_timeout: str
) -> PgRoleError | None:
    try:
        text = script(plans, dialect, lock_timeout=lock_timeout)
        if dialect.fence is not None:
            dialect.fence.check_clock(enforcing=dialect.enforcing)
        await dialect.claims.commit(connection, plans, text)
    except PgRoleError as error:
        return error
    except ValueError as error:  # what cannot be quoted
        return Transient(Reason.INVALID_SPEC, f"the controller cannot express it in SQL: {error}")
    return None


def lock_names(plans: Sequence[Plan]) -> list[str]:
    """Locks the names of these roles until the end of the transaction; for superusers. Before what expects an oid."""
    names = sorted({plan.seen_as for plan in plans if plan.changes and plan.oid is not None})
    if not names:
        return []
    some = ", ".join(seen_name(name) for name in names)
    return [f"SELECT FROM pg_catalog.pg_authid AS a WHERE a.rolname IN ({some}) ORDER BY a.rolname FOR KEY SHARE"]


def verify_names(plans: Sequence[Plan], *, held: bool) -> list[str]:
    """Fails with PGR01 when anything but the roles of these plans was altered or dropped. After their statements.

    `held`: the names were locked; then only what was dropped for good is verified again.
    """
    oids: dict[str, int] = {}
    dropped: list[str] = []
    for plan in plans:
        if not plan.changes or plan.oid is None:
            continue
        oids.pop(plan.seen_as, None)
        if any(isinstance(change, Drop) for change in plan.changes):
            dropped.append(str(plan.oid))
        else:
            oids[_name_after(plan)] = plan.oid
    names = {} if held else oids
    if not (names or dropped):
        return []
    settings = {
        "names": f"ARRAY[{', '.join(seen_name(name) for name in names)}]::text[]",
        "oids": literal([str(oid) for oid in names.values()]),
        "dropped": literal(dropped),
    }
    given = [
        f"SELECT pg_catalog.set_config('pgrole.{name}', ({value})::text, true)" for name, value in settings.items()
    ]
    return [*given, queries.inspect("named").strip()]


def _name_after(plan: Plan) -> str:
    return next((change.new for change in plan.changes if isinstance(change, Rename)), plan.seen_as)
