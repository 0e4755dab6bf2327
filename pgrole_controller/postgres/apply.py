"""Applies plans: any number of them in one transaction and one round trip.

If a statement fails, each plan is tried in its own transaction, so that one bad role does not delay the others.

Statements refer to roles by name, plans by oid. PostgreSQL resolves a name when it executes the statement, which is
after any check at the start of the transaction, and roles that can rename roles do not take the controller's lock.
Therefore a superuser first locks the rows of the roles: no one can rename or drop them until the transaction ends, and
all other changes remain possible. A role that may not lock pg_authid resolves the names again at the end. An altered
role keeps its name until then, since the transaction holds its row; a role that was renamed and renamed back in between
is detected only if it was altered. Anyone who can do that to a role can also grant everything that the role has.

Only the role of a plan is locked. Groups and databases are declared by name: whichever has that name is the right one.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel

from pgrole_controller import resources
from pgrole_controller.core.ddl import literal, seen_name
from pgrole_controller.core.diff import Drop, Rename, field_names
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.claim_store import CHANGE_TIMEOUTS, ClaimStore
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.errors import DEPENDENT, LOCK_NOT_FREE, NO_DATABASE, is_lacking, sqlstate_of
from pgrole_controller.postgres.fence import Fence, Unconfirmed, is_another_leading
from pgrole_controller.postgres.missing_privileges import (
    MissingPrivilege,
    explain,
    find_missing_privileges,
    read_rights,
)

log = logging.getLogger(__name__)

#: Time limit in seconds for applying plans one by one after a batch failed; the remaining plans are postponed.
ONE_BY_ONE_SECONDS = 3.0

#: How long to wait for each role in a batch, and for a role changed alone. Since PostgreSQL 16 any role can lock any
#: other: ALTER ROLE checks privileges last.
_TOGETHER = "500ms"
_ALONE = "150ms"
#: How long a role that was locked is changed outside the batch, in seconds.
APART_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to write a transaction for one server.

    `options`: memberships have INHERIT and SET, and several grantors can grant one (PostgreSQL 16 and later).
    `parameter_grants`: a superuser can grant SET on a parameter (15 and later). `claims`: where claims are kept.
    `fence`: this process's leadership, which each transaction verifies. `enforcing`: Kubernetes cannot be reached, so
    each claim must still have the applied state that was read. `superuser`: the controller's role can lock role names.
    `notes_rows`: which transactions wrote a drifted role is noted in the session before the repair (superusers only).
    """

    options: bool = True
    parameter_grants: bool = True
    claims: ClaimStore = field(default_factory=DatabaseClaims, compare=False)
    fence: Fence | None = None
    enforcing: bool = False
    superuser: bool = False
    notes_rows: bool = False


class PartlyApplied(Refused):
    """A privilege is missing for some of a plan's changes. `applied` has the others, which were committed."""

    def __init__(self, reason: Reason, message: str, applied: Plan) -> None:
        super().__init__(reason, message)
        self.applied = applied


class LockedRoles:
    """Roles that another session locked recently. They are changed outside the batch, so they delay only themselves."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, role_name: str, error: PgRoleError | None) -> None:
        if sqlstate_of(error) == LOCK_NOT_FREE:
            now = anyio.current_time()
            self._until = {name: until for name, until in self._until.items() if until > now}
            self._until[role_name] = now + APART_SECONDS
        elif error is None:
            self._until.pop(role_name, None)

    def holds(self, role_name: str) -> bool:
        return self._until.get(role_name, 0.0) > anyio.current_time()


def script(plans: Sequence[Plan], dialect: Dialect, *, lock_timeout: str = _TOGETHER) -> str:
    """The SQL of these plans. PostgreSQL executes it as one transaction: it is one message without parameters."""
    begin = [*CHANGE_TIMEOUTS, *dialect.claims.opening()]
    if dialect.fence is not None and dialect.fence.statement is not None:
        begin.append(dialect.fence.statement)
    begin.append(f"SET LOCAL lock_timeout = '{lock_timeout}'")
    hold = lock_names(plans) if dialect.superuser else []
    if dialect.superuser and dialect.notes_rows:
        hold += note_rows(plans)
    changes = (
        statement
        for plan in plans
        for statement in dialect.claims.statements(plan, options=dialect.options, enforcing=dialect.enforcing)
    )
    return ";\n".join((*begin, *hold, *changes, *verify_names(plans, held=dialect.superuser)))


async def apply_plans(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, locked: LockedRoles | None = None
) -> list[PgRoleError | None]:
    """Applies the plans together or one by one. The result is None for each committed plan, else its error.

    Pass the same `locked` in every call for a server. Raises Transient if another process leads; nothing is changed
    then. (If all plans are for locked roles, each gets that error instead.)
    """
    locked = locked or LockedRoles()
    apart = [place for place, plan in enumerate(plans) if len(plans) > 1 and locked.holds(plan.role_name)]
    rest = [place for place in range(len(plans)) if place not in apart]
    results: list[PgRoleError | None] = [None] * len(plans)
    for places, apply in ((rest, _apply_together), (apart, _apply_each)):
        some = [plans[place] for place in places]
        for place, error in zip(places, await apply(connection, some, dialect, locked) if some else (), strict=True):
            results[place] = error
    return results


async def _apply_together(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, locked: LockedRoles
) -> list[PgRoleError | None]:
    together = await _run(connection, plans, dialect, _TOGETHER)
    if together is not None and is_lacking(together) and dialect.superuser:  # it may have lost SUPERUSER
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
    """Waits only briefly for a locked role, so that it does not delay the others."""
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
    """If a privilege is missing, names it in the error and applies the changes that do not need it: PartlyApplied."""
    sooner = _find_change(plan, error)
    if sooner is not None:
        return Transient(Reason.PROGRESSING, sooner)
    if error is None or not is_lacking(error) or connection.is_closed():
        return error
    try:
        rights = await read_rights(connection, plan, scoped=dialect.options, parameter_grants=dialect.parameter_grants)
    except PgRoleError:
        return error  # without naming the missing grant
    missing = find_missing_privileges(plan.changes, rights)
    rest = _without(plan, missing)
    failure = await _run(connection, [rest], dialect, _ALONE) if rest else None
    if failure is not None:
        return failure
    explained = explain(error, missing)
    return explained if rest is None else PartlyApplied(explained.reason, explained.message, rest)


def _find_change(plan: Plan, error: PgRoleError | None) -> str | None:
    """Returns what changed since the role was read, if that has the SQLSTATE of another error."""
    code = sqlstate_of(error)
    if code == DEPENDENT and not any(isinstance(change, Drop) for change in plan.changes):
        return "a membership was passed on while the controller revoked it"  # REVOKE had no CASCADE
    if code == NO_DATABASE:
        return "a database of spec.databaseParameters was dropped while the controller applied the spec"
    return None


def _without(plan: Plan, missing: Sequence[MissingPrivilege]) -> Plan | None:
    """The plan with only the changes that are permitted; None if there are none or another object owns the role.

    `applied` is unchanged: drift is reported as far as it was corrected, and a changed spec is not yet applied.
    """
    blocked = [one.change for one in missing]
    left = tuple(change for change in plan.changes if change not in blocked)
    if plan.approval is not None:
        return None  # a person approved all of it
    ours = plan.oid is not None and plan.claim is not None and plan.claim.owner == plan.owner
    if not (ours and blocked and left) or any(isinstance(change, Rename) for change in blocked):
        return None
    owner = plan.owner if plan.drift else None
    # the password record is true only once the password is set
    record = None if "password" in field_names(tuple(blocked)) else plan.record
    acted_on = plan.acted_on if owner else None
    drift = field_names(left) if owner else ()
    return replace(plan, changes=left, owner=owner, record=record, drift=drift, acted_on=acted_on)


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
    except ValueError as error:  # a value that cannot be quoted
        return Transient(Reason.INVALID_SPEC, f"the controller cannot express it in SQL: {error}")
    return None


def lock_names(plans: Sequence[Plan]) -> list[str]:
    """Locks the names of these roles until the transaction ends; for superusers. Precedes the checks of oids."""
    names = sorted({plan.seen_as for plan in plans if plan.changes and plan.oid is not None})
    if not names:
        return []
    some = ", ".join(seen_name(name) for name in names)
    return [f"SELECT FROM pg_catalog.pg_authid AS a WHERE a.rolname IN ({some}) ORDER BY a.rolname FOR KEY SHARE"]


def note_rows(plans: Sequence[Plan]) -> list[str]:
    """Notes which transactions wrote the roles that drifted; `Session.read_noted_rows` reads it."""
    oids = [str(plan.oid) for plan in plans if plan.drift and plan.changes and plan.oid is not None]
    if not oids:
        return []
    text = resources.text("sql", "attribution", "note_rows.sql").strip()
    return [text.replace("drifted_roles", f"{literal('{' + ','.join(oids) + '}')}::oid[]")]


def verify_names(plans: Sequence[Plan], *, held: bool) -> list[str]:
    """Fails with PGR01 if a statement altered or dropped another role than its plan's. Follows all statements.

    `held`: the names were locked, so only dropped roles are verified.
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
