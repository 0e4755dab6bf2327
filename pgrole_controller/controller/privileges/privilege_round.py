"""One round in one database: which roles it reconciles, and how much it reads for each."""

from collections.abc import Sequence
from dataclasses import replace

import anyio

from pgrole_controller.controller.privileges.adoptee_comparison import compare_adoptees
from pgrole_controller.controller.privileges.privilege_reconcile import PrivilegeReconcile, RoundContext
from pgrole_controller.controller.privileges.privilege_screening import find_dependent
from pgrole_controller.controller.privileges.small_rounds import Notice, Report, SmallRounds
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, PrivilegeRead, Scope


async def run_round(
    context: RoundContext,
    to_read: PrivilegeRead,
    keys: frozenset[Key],
    since: float,
    notice: Notice,
    report: Report,
) -> list[PrivilegeResult]:
    """Reads `to_read` for all roles, and everything for the roles of `keys`. Returns all results in the
    order of time, also those of small rounds, which `notice` causes; each was reported at once. `since`: as in Notice.
    Raises PgRoleError if the session fails.
    """
    results: list[PrivilegeResult] = []

    def note(found: Sequence[PrivilegeResult], noticed: float) -> None:
        now = context.grantees()
        found = [one if _answers(begun[one.key], now.get(one.key)) else replace(one, digest="") for one in found]
        results.extend(found)
        report(found, noticed)

    session, memory, begun = context.session, context.memory, dict(context.grantees())
    adoptees, due = [one for one in begun.values() if one.adoptee is not None], keys
    grantees = [one for one in begun.values() if one.adoptee is None]
    keys -= {one.key for one in adoptees}
    memory.keep_only(grantees)
    everyone = frozenset(one.key for one in grantees)
    memory.further.keep_only(everyone)
    now = anyio.current_time()
    unclear = memory.unsettled() if to_read.is_needed else frozenset[Key]()
    if to_read.dropped:
        unclear |= memory.waiting() | find_dependent(grantees, session.database, to_read.dropped)
    complete = keys | memory.further.admit(unclear, now)
    if to_read.scope is Scope.FULL:
        complete = everyone
    busy = {one.key for one in grantees if one.key in complete and not memory.is_applied(one, session.database)}
    # Those to be read completely take part, too: the repair of another role hides who changed the object.
    partial = frozenset[Key]() if to_read.scope in (Scope.NOTHING, Scope.FULL) else everyone - busy
    async with session.lock:
        small = SmallRounds(context, grantees, busy, notice, note)
        reconcile = PrivilegeReconcile(context, everyone=len(everyone), interruptions=small)
        note(await reconcile.settle([one for one in grantees if one.key in partial], to_read), since)
        read = reconcile.read  # None, as after a complete read, if there are none
        complete |= memory.further.admit(frozenset(reconcile.unclear), now)
        complete |= {one.key for one in reconcile.left}
        waiting = [one for one in grantees if one.key in complete]
        began = anyio.current_time()
        while waiting:
            note(await reconcile.settle(waiting, EVERYTHING | to_read), since)
            waiting = reconcile.left
        if complete and to_read.scope is not Scope.FULL:
            memory.further.note(began, anyio.current_time())
        memory.further.finish(complete)
        if complete | partial >= everyone:
            memory.settle_everyone(read)
        await reconcile.record()
        note(await compare_adoptees(session, adoptees, to_read, due, memory.adoptees, small), since)
        small.finish()
    return results


def _answers(begun: Grantee, now: Grantee | None) -> bool:
    """Whether the result of a round that began with this Grantee still answers the spec."""
    return now is None or now.drift_options == begun.drift_options
