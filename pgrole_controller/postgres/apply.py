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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel

from pgrole_controller.core.ddl import literal, seen_name, statements
from pgrole_controller.core.diff import Drop, Rename, field_names
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import is_lacking, translate_errors
from pgrole_controller.postgres.fence import Fence, Unconfirmed, is_another_leading
from pgrole_controller.postgres.privileges import MissingPrivilege, explain, find_missing_privileges, read_rights
from pgrole_controller.postgres.rows import fetch
from pgrole_controller.postgres.status_claims import StatusClaims

log = logging.getLogger(__name__)

#: For one transaction, whatever its statements wait for. It is not interrupted, so stopping may take that long.
TRANSACTION_SECONDS = 4.0

#: For all that is tried one by one after a batch failed: what does not get its turn is put off.
ONE_BY_ONE_SECONDS = 3.0

_BEGIN = ("SET LOCAL lock_timeout = '{change_lock_timeout}'", "SET LOCAL statement_timeout = '3500ms'")
#: Of a process that is paused in the middle of it: whoever leads then finds the roles locked for no longer.
_ABANDONED = f"SET LOCAL idle_in_transaction_session_timeout = '{TRANSACTION_SECONDS:.0f}s'"
_OIDS = "SELECT r.rolname::text AS name, r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = ANY ($1::name[])"
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
    """What a script has to mind about its server.

    `options`: memberships have INHERIT and SET, and grants by several grantors (PostgreSQL 16 and later). `guarded`:
    others may create schemas in the home database, so each transaction makes sure of schema pgrole first.
    `parameter_grants`: parameters of superusers can be granted to others (15 and later). `status_claims`: there is no
    schema pgrole, claims are kept in this one, for the server with this `system_identifier`. `fence`: this process's
    lead, which each transaction makes sure of. `enforcing`: Kubernetes cannot be reached, and each claim must still say
    what was seen. `current_schema`: schema pgrole is of this version, and not of the one before. `superuser`: the
    controller's role is one, and may lock the names of roles.
    """

    options: bool = True
    guarded: bool = False
    parameter_grants: bool = True
    status_claims: StatusClaims | None = field(default=None, compare=False)
    system_identifier: int = 0
    fence: Fence | None = None
    enforcing: bool = False
    current_schema: bool = True
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
    begin = [statement.format(change_lock_timeout=_CHANGE_LOCK_TIMEOUT) for statement in _BEGIN]
    wait = f"SET LOCAL lock_timeout = '{lock_timeout}'"
    hold = lock_names(plans) if dialect.superuser else []
    verify = verify_names(plans, held=dialect.superuser)
    if dialect.status_claims is not None:
        begin.append(_ABANDONED)
        begin.append(queries.without_schema("lock_changes"))
        begin.append(queries.without_schema("check_not_suspended"))
        rest = (statement for plan in plans for statement in _statements_without_schema(plan, dialect.options))
        return ";\n".join((*begin, wait, *hold, *rest, *verify))
    if dialect.guarded:
        begin.append(queries.inspect("guard").strip())
    begin.append("SELECT pgrole.lock_changes()" if dialect.current_schema else "SELECT pgrole.take_turn()")
    if dialect.current_schema:
        begin.append("SELECT pgrole.check_not_suspended()")
    else:
        begin.append(queries.without_schema("check_not_suspended"))
    if dialect.fence is not None and dialect.fence.statement is not None:
        begin.append(dialect.fence.statement)
    rest = (statement for plan in plans for statement in _statements(plan, dialect))
    return ";\n".join((*begin, wait, *hold, *rest, *verify))


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
        if dialect.status_claims is not None:
            return await _run_without_schema(connection, plans, dialect, dialect.status_claims, text)
        with translate_errors("transaction"), anyio.fail_after(TRANSACTION_SECONDS, shield=True):
            await connection.execute(text)
    except PgRoleError as error:
        return error
    except ValueError as error:  # what cannot be quoted
        return Transient(Reason.INVALID_SPEC, f"the controller cannot express it in SQL: {error}")
    return None


async def _run_without_schema(
    connection: Connection, plans: Sequence[Plan], dialect: Dialect, status_claims: StatusClaims, text: str
) -> PgRoleError | None:
    """The claims in status change with the transaction: when it is committed, and by nothing in between."""
    stale = next((error for plan in plans if (error := status_claims.check(plan)) is not None), None)
    if stale is not None:
        return stale
    made: dict[str, int] = {}
    if any(_touches(plan) for plan in plans):
        new = [plan.role_name for plan in plans if plan.owner and plan.oid is None]
        try:
            with translate_errors("transaction"), anyio.fail_after(TRANSACTION_SECONDS, shield=True):
                async with connection.transaction():
                    await connection.execute(text)
                    rows = await fetch(connection, "", _OIDS, new) if new else []
                    made = {row.get("name", str): row.get("oid", int) for row in rows}
        except PgRoleError as error:
            if connection.is_closed() or isinstance(error.__cause__, TimeoutError):
                status_claims.attempted(plans, dialect.system_identifier)
            raise
    status_claims.note(plans, made, dialect.system_identifier)
    return None


def _touches(plan: Plan) -> bool:
    """Whether the plan is about a role, and not only about what is remembered of it."""
    return bool(plan.changes or plan.owner or plan.record or plan.forget)


def _statements_without_schema(plan: Plan, options: bool) -> Iterator[str]:
    if not _touches(plan):
        return
    oid = "" if plan.oid is None else str(plan.oid)
    for name, value in (("seen_as", seen_name(plan.seen_as)), ("seen_oid", literal(oid))):
        yield f"SELECT pg_catalog.set_config('pgrole.{name}', {value}, true)"
    yield queries.without_schema("expect")
    yield from statements(plan.changes, options=options)


def _statements(plan: Plan, dialect: Dialect) -> Iterator[str]:
    # First, since the role may be the one that this object had under another name.
    for role_name, uid in plan.releases:
        yield _call("release_claim", role_name, uid)
    if _touches(plan):
        holder = plan.claim.owner.object_uid if plan.claim else None
        seen = f"{literal(plan.role_name)}, {seen_name(plan.seen_as)}, {literal(plan.oid)}"
        yield f"SELECT pgrole.expect({seen}, {literal(holder)})"
    if dialect.enforcing and plan.claim:
        known = plan.claim.generations
        yield _call(
            "expect_applied",
            plan.role_name,
            plan.claim.owner.object_uid,
            plan.claim.applied,
            known.object,
            known.server_uid,
            known.server,
        )
    yield from statements(plan.changes, options=dialect.options)
    if plan.owner:
        owner = plan.owner
        yield _call(
            "take_claim",
            plan.role_name,
            plan.oid or 0,
            owner.cluster,
            owner.namespace,
            owner.namespace_uid,
            owner.object,
            owner.object_uid,
            plan.applied,
            plan.drift,
        )
    keeper = plan.owner.object_uid if plan.owner else plan.claim.owner.object_uid if plan.claim else None
    if plan.record and keeper:
        record = plan.record
        rotated_at = record.rotated_at.isoformat() if record.rotated_at else None
        yield _call(
            "keep_credential",
            plan.role_name,
            keeper,
            record.source,
            record.digest,
            rotated_at,
            record.rotate,
            record.connection,
        )
    if plan.acted_on and keeper:
        yield _call(
            "act_on",
            plan.role_name,
            keeper,
            plan.acted_on.object,
            plan.acted_on.server_uid,
            plan.acted_on.server,
        )
    if plan.forget and plan.claim:
        yield _call("forget_claim", plan.role_name, plan.claim.owner.object_uid)


def _call(function: str, *arguments: str | int | tuple[str, ...] | None) -> str:
    return f"SELECT pgrole.{function}({', '.join(literal(argument) for argument in arguments)})"


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
