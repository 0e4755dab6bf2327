"""Empties a role before it is dropped: ends its sessions, reassigns its objects, revokes its privileges.

It works in every database that depends on the role, on its own connections, so that the worker does not wait: one to
the home database, and one at a time to the others. Every step can be repeated. No object is dropped: objects that a
session creates as the role in the meantime are reassigned as well, or the role stays.

Expected flow: NOLOGIN was committed before. Sessions end; REASSIGN OWNED runs in each database; if no database has a
blocker, the memberships that the role granted are revoked, and its privileges in each database: as each grantor who
does not own the object, then with DROP OWNED. Its members stay until DROP ROLE. Blockers of all databases are reported
together.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from pgrole_controller.core.ddl import spell_identifier
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.names import count_things
from pgrole_controller.core.plan import Blocker, ReassignOwned, blocked, check_new_owner
from pgrole_controller.core.state import Dependents
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.catalog import count_sessions, read_dependents
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.errors import NAME_ONE_SERVER, translate_errors
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.reassign_in_database import (
    CheckLead,
    ConnectionPlace,
    DependentDatabase,
    RoleEmptying,
    ask,
    empty_database,
    execute,
    find_place,
    reassign_sql,
    refusing,
    run_in,
    why_unreachable,
)
from pgrole_controller.postgres.rows import first

log = logging.getLogger(__name__)

#: Time limit in seconds for one role in all databases, since other roles wait. Completed steps remain, and the next
#: attempt continues.
REASSIGN_SECONDS = 20.0
#: How long to wait for terminated sessions to end, in seconds.
SESSIONS_SECONDS = 5.0
_SESSIONS_EVERY = 0.05
_TO_TERMINATE = "GRANT it, or pg_signal_backend, to the controller's role"
_TIMEOUTS = {"statement_timeout": "10s", "lock_timeout": "2s", "client_min_messages": "error"}
#: Tables, views and sequences reassigned in one transaction: each takes several locks.
PIECE = 300


async def reassign_owned(
    endpoint: Endpoint,
    task: ReassignOwned,
    deadline: float = REASSIGN_SECONDS,
    fence: Fence | None = None,
    server: Identity | None = None,
) -> None:
    """Returns when the role has no sessions and, with a new owner, owns nothing and has no privileges.

    `endpoint`: the home database. `deadline`: total seconds. Before each step it verifies with `fence` that this
    process still leads; transactions in other databases cannot verify it themselves, without schema pgrole. `server`:
    where the role was read; None: not verified. Raises Waiting (DropBlocked) with the blockers by database; Transient
    if the server is not ready or is another one, the role has changed, or the deadline has passed.
    """
    check_new_owner(task)
    blockers: list[Blocker] = []
    with anyio.move_on_after(deadline):
        async with connect(endpoint, "reassign", **_TIMEOUTS, **{"pgrole.role": str(task.oid)}) as home:
            place = await find_place(home)
            if server is not None and not place.is_on(server):
                raise Transient(
                    Reason.SERVER_NOT_READY,
                    f"the address of the server now leads to another one: {NAME_ONE_SERVER}",
                )
            check_lead = partial(_check_lead, home, fence)
            new_owner = await _find_new_owner(home, task)
            await _end_sessions(home, task, check_lead)
            if task.new_owner is not None:
                await _empty(home, _prepare(endpoint, task, new_owner, place, check_lead, blockers))
        log.info(
            "owned objects reassigned and privileges revoked", extra={"role": task.role, "new_owner": task.new_owner}
        )
        return
    if blockers:
        raise blocked(task.role, blockers)
    raise Transient(
        Reason.PROGRESSING,
        f'role "{task.role}" still owns objects after {deadline:.0f} s; the controller continues in the next attempt',
    )


async def _check_lead(home: Connection, fence: Fence | None) -> None:
    if fence is not None:
        await fence.check(home)
    with translate_errors("reassign"):
        await home.execute(queries.without_schema("check_not_suspended"))


def _prepare(
    endpoint: Endpoint,
    task: ReassignOwned,
    new_owner: int | None,
    place: ConnectionPlace,
    check_lead: CheckLead,
    blockers: list[Blocker],
) -> RoleEmptying:
    oids = {"pgrole.role": str(task.oid), "pgrole.new_owner": str(new_owner), "pgrole.piece": str(PIECE)}
    return RoleEmptying(endpoint, task, {**_TIMEOUTS, **oids}, place, check_lead, PIECE, blockers)


async def _find_new_owner(home: Connection, task: ReassignOwned) -> int | None:
    row = first(await ask(home, "names", task.oid, task.role, task.new_owner or ""))
    new_owner = row.find("new_owner", int)
    if not row.get("is_named", bool):
        raise Transient(Reason.PROGRESSING, f'role "{task.role}" changed since the controller read it')
    if task.new_owner is not None and new_owner is None:
        raise blocked(task.role, [Blocker("", f'spec.reassignOwnedTo: role "{task.new_owner}" does not exist')])
    if task.new_owner_oid not in (None, new_owner):
        raise Transient(Reason.PROGRESSING, f'role "{task.new_owner}" changed since the controller read it')
    return new_owner


async def _end_sessions(home: Connection, task: ReassignOwned, check_lead: CheckLead) -> None:
    """Raises Waiting while the role has sessions or prepared transactions."""
    count = await _count_sessions(home, task)
    ends = anyio.current_time() + SESSIONS_SECONDS
    while count and task.terminate and anyio.current_time() < ends:
        await check_lead()
        async with refusing(task, lacking=_TO_TERMINATE):
            await home.execute(reassign_sql("terminate"), task.oid)
        await anyio.sleep(_SESSIONS_EVERY)
        count = await _count_sessions(home, task)
    blockers: list[Blocker] = []
    if count:
        remedy = (
            "terminated, but not yet ended" if task.terminate else "to terminate them, set spec.terminateSessions: true"
        )
        blockers.append(Blocker("", f"open sessions of the role: {count} ({remedy})"))
    blockers.extend(
        Blocker(
            row.text("database"), f'its prepared transaction "{row.text("gid")}" is open: commit it or roll it back'
        )
        for row in await ask(home, "prepared", task.oid)
    )
    if blockers:
        raise blocked(task.role, blockers)


async def _count_sessions(home: Connection, task: ReassignOwned) -> int:
    return (await count_sessions(home, [task.oid])).get(task.oid, 0)


async def _empty(home: Connection, emptying: RoleEmptying) -> None:
    await _run_in_each(home, emptying, partial(empty_database, emptying, drop=False))
    async with refusing(emptying.task):
        await execute(emptying, home, "revoke_given")
    await _run_in_each(home, emptying, partial(empty_database, emptying, drop=True))
    await _check_left(home, emptying.task)


async def _run_in_each(home: Connection, emptying: RoleEmptying, work: Callable[[Connection], Awaitable[None]]) -> None:
    """Runs `work` in each database that depends on the role. Raises Waiting with all blockers."""
    databases = [
        DependentDatabase(row.get("oid", int), row.text("name"), row.get("connectable", bool), row.get("invalid", bool))
        for row in await ask(home, "dependent_databases", emptying.task.oid)
    ]
    emptying.blockers.clear()
    for database in databases:
        words = why_unreachable(database) or await run_in(home, emptying, database, work)
        if words:
            emptying.blockers.append(Blocker(database.name, words))
    if emptying.blockers:
        raise blocked(emptying.task.role, emptying.blockers)


def _describe_left(task: ReassignOwned, left: Dependents) -> str:
    """DROP OWNED alone would drop what a session has created as the role since."""
    role, where, more = spell_identifier(task.role), "there" if left.database else "in any database", ""
    if left.others:
        where, more = "in each of them", f" in {count_things(left.others, 'more database')}"
    keep = f"REASSIGN OWNED BY {role} TO {spell_identifier(task.new_owner)} and then " if task.new_owner else ""
    return (
        "privileges from owners of other objects, or objects that appeared in the meantime "
        f"({left.count - left.members}{more}): GRANT these owners to the controller's role, or, as a superuser, run "
        f"{keep}DROP OWNED BY {role} {where}"
    )


async def _check_left(home: Connection, task: ReassignOwned) -> None:
    """Raises Waiting for what still depends on the role, or is about to: DROP OWNED leaves without an error what the
    controller may not remove, and sessions may have added something.
    """
    dependents = (await read_dependents(home, [task.oid])).get(task.oid, ())
    blockers = [Blocker(one.database, _describe_left(task, one)) for one in dependents if one.count > one.members]
    for row in await ask(home, "makers", task.oid):
        pid = row.get("pid", int)
        who = f"the open transaction of process {pid}" if pid else "a prepared transaction"
        blockers.append(Blocker(row.find_text("database") or "", f"{who} is about to depend on the role"))
    if blockers:
        raise blocked(task.role, blockers)
