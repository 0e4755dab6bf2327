"""One round in one database: which roles it reconciles, and how much it reads for each.

At its end, it compares adoptees, which are existing roles that objects may take over, with what these declare.
Guarantee: nothing is written about them, not even a digest or a count: adoptees take no part in what applies. What each
holds is read completely after every event there, since a privilege that was revoked shows in no partial read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import anyio

from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.privileges import large_rounds
from pgrole_controller.controller.privileges.large_rounds import Interruptions, read_beside
from pgrole_controller.controller.privileges.privilege_reconcile import PrivilegeReconcile, RoundContext
from pgrole_controller.controller.privileges.privilege_screening import find_dependent
from pgrole_controller.controller.privileges.small_rounds import Notice, Report, SmallRounds
from pgrole_controller.core.privileges.acl_screening import PrivilegeTerms
from pgrole_controller.core.privileges.adoption_findings import answer_for, is_cut
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Turns, run_aside
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, PrivilegeRead, Scope
from pgrole_controller.postgres.privileges.failed_changes import remember_failed

#: Maximum number of adoptees of one round. Of one ACL, a read has 10,000 entries, whoever is in it.
_MOST_ADOPTEES = 100
#: Number of results that are reported in one turn.
_REPORTED_AT_ONCE = 200
#: Seconds of one round after which the other adoptees wait for the next.
_ADOPTEE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RoundReads:
    """For which roles a round reads everything (`complete`), and for which what may have changed (`changed`). `busy`:
    those of `complete` whose declaration is not applied yet.
    """

    complete: frozenset[Key]
    changed: frozenset[Key]
    busy: frozenset[Key]


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

    async def note(found: Sequence[PrivilegeResult]) -> None:
        turns = Turns()
        with anyio.CancelScope(shield=True):  # what is in them is not found again
            for first in range(0, len(found), _REPORTED_AT_ONCE):
                now = context.grantees()  # others may be published in each turn
                some = found[first : first + _REPORTED_AT_ONCE]
                some = [one if _answers(begun[one.key], now.get(one.key)) else replace(one, digest="") for one in some]
                results.extend(some)
                report(some)
                await turns.share()

    session, memory, begun = context.session, context.memory, dict(context.grantees())
    remember_failed(session.connection, memory.failed)
    adoptees = [one for one in begun.values() if one.adoptee is not None]
    grantees = [one for one in begun.values() if one.adoptee is None]
    memory.keep_only(grantees)
    everyone = frozenset(one.key for one in grantees)
    memory.further.keep_only(everyone)
    now = anyio.current_time()
    reads = _choose_reads(context, grantees, to_read, keys - {one.key for one in adoptees}, now)
    async with session.lock:
        small = SmallRounds(context, grantees, reads.busy, notice, note)
        reconcile = PrivilegeReconcile(context, everyone=len(everyone), since=since, interruptions=small)
        first = await reconcile.reconcile_roles([one for one in grantees if one.key in reads.changed], to_read)
        await note(first.results)
        complete = reads.complete | memory.further.admit(frozenset(first.unclear), now)
        complete |= {one.key for one in first.undecided}
        waiting: Sequence[Grantee] = [one for one in grantees if one.key in complete]
        memory.further.begin(complete)  # before the reads: what is announced from now on asks for another
        began = anyio.current_time()
        while waiting:
            reconciled = await reconcile.reconcile_roles(waiting, EVERYTHING | to_read)
            await note(reconciled.results)
            waiting = reconciled.undecided
        if complete and to_read.scope is not Scope.FULL:
            memory.further.note(began, anyio.current_time())
        if complete | reads.changed >= everyone:
            # None, as after a complete read, if the first one was for no role.
            memory.end_round(first.read)
        await reconcile.record()
        await note(await _compare_adoptees(context, adoptees, to_read, keys, small))
        small.finish()
    return results


def _choose_reads(
    context: RoundContext, grantees: Sequence[Grantee], to_read: PrivilegeRead, keys: frozenset[Key], now: float
) -> RoundReads:
    """`keys`: roles for which everything has to be read."""
    memory, database = context.memory, context.session.database
    everyone = frozenset(one.key for one in grantees)
    unclear = memory.needing_complete_read() if to_read.is_needed else frozenset[Key]()
    if to_read.dropped:
        unclear |= memory.waiting() | find_dependent(grantees, database, to_read.dropped)
    complete = keys | memory.further.admit(unclear, now)
    if to_read.scope is Scope.FULL:
        complete = everyone
    busy = frozenset(one.key for one in grantees if one.key in complete and not memory.is_applied(one, database))
    # Those to be read completely take part, too: the repair of another role hides who changed the object.
    changed = frozenset[Key]() if to_read.scope in (Scope.NOTHING, Scope.FULL) else everyone - busy
    return RoundReads(complete, changed, busy)


def _answers(begun: Grantee, now: Grantee | None) -> bool:
    """Whether the result of a round that began with this Grantee still answers the spec."""
    return now is None or now.drift_options == begun.drift_options


async def _compare_adoptees(
    context: RoundContext,
    adoptees: Sequence[Grantee],
    to_read: PrivilegeRead,
    keys: frozenset[Key],
    interruptions: Interruptions,
) -> list[PrivilegeResult]:
    """Returns results for the adoptees of `keys`, and for all of them if `to_read` is needed and a further read
    may begin, as far as one round gets: the others are put off. Hold the session's lock. Raises PgRoleError if the
    session fails.
    """
    session, reads = context.session, context.memory.adoptees
    asked = frozenset(one.key for one in adoptees)
    began = anyio.current_time()
    due = asked if to_read.scope is Scope.FULL else asked & keys
    if to_read.is_needed:
        due |= reads.admit(asked - due, began)
    some = sorted((one for one in adoptees if one.key in due), key=lambda one: one.key not in keys)
    results = await _compare_first(session, some[:_MOST_ADOPTEES], began, interruptions) if some else []
    if some:
        reads.note(began, anyio.current_time())
    reads.put_off(due)
    reads.keep_only(asked - {one.key for one in results})
    return results


async def _compare_first(
    session: DatabaseSession, adoptees: Sequence[Grantee], began: float, interruptions: Interruptions
) -> list[PrivilegeResult]:
    """Returns results for the first of them, at least one."""
    reach = PrivilegeReach.of(session.database, adoptees)
    read = partial(session.read, [one.oid for one in adoptees], reach, EVERYTHING)
    observed, _ = await read_beside(interruptions, session, read)
    if len(adoptees) > 1 and is_cut(observed):
        return await _compare_first(session, adoptees[:1], began, interruptions)
    results: list[PrivilegeResult] = []
    for one in adoptees:
        await interruptions.give_way()
        comparisons = observed.size * PrivilegeTerms.of(one, session.database).weight
        results.append(
            await run_aside(
                comparisons, large_rounds.MANY_COMPARISONS, answer_for, one, observed, partial(contain, key=one.key)
            )
        )
        if anyio.current_time() - began > _ADOPTEE_SECONDS:
            break
    return results
