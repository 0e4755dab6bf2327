"""Compares adoptees, which are existing roles that objects may take over, with what these declare in one database.

Guarantee: nothing is written, not even a digest or a count: adoptees take no part in the round that applies. What
each holds is read completely after every event there, since a privilege that was revoked shows in no partial read.
"""

from collections.abc import Sequence
from functools import partial

import anyio

from pgrole_controller.controller.errors import contain
from pgrole_controller.controller.privileges import large_rounds
from pgrole_controller.controller.privileges.complete_reads import FurtherReads
from pgrole_controller.controller.privileges.interruptions import Interruptions, read_beside
from pgrole_controller.core.privileges.acl_screening import PrivilegeTerms
from pgrole_controller.core.privileges.adoption_findings import answer_for, is_cut
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import run_aside
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, PrivilegeRead, Scope

#: Maximum number of adoptees of one round. Of one ACL, a read has 10,000 entries, whoever is in it.
_AT_ONCE = 100
#: Seconds of one round after which the other adoptees wait for the next.
_LONGEST = 0.5


async def compare_adoptees(
    session: DatabaseSession,
    adoptees: Sequence[Grantee],
    to_read: PrivilegeRead,
    keys: frozenset[Key],
    reads: FurtherReads,
    interruptions: Interruptions,
) -> list[PrivilegeResult]:
    """Returns results for the adoptees of `keys`, and for all of them if `to_read` is needed and a further read
    may begin, as far as one round gets: the others are put off. Hold the session's lock. Raises PgRoleError if the
    session fails.
    """
    asked = frozenset(one.key for one in adoptees)
    began = anyio.current_time()
    due = asked if to_read.scope is Scope.FULL else asked & keys
    if to_read.is_needed:
        due |= reads.admit(asked - due, began)
    some = sorted((one for one in adoptees if one.key in due), key=lambda one: one.key not in keys)
    results = await _compare(session, some[:_AT_ONCE], began, interruptions) if some else []
    if some:
        reads.note(began, anyio.current_time())
    reads.put_off(due)
    reads.keep_only(asked - {one.key for one in results})
    return results


async def _compare(
    session: DatabaseSession, adoptees: Sequence[Grantee], began: float, interruptions: Interruptions
) -> list[PrivilegeResult]:
    """Returns results for the first of them, at least one."""
    reach = PrivilegeReach.of(session.database, adoptees)
    read = partial(session.read, [one.oid for one in adoptees], reach, EVERYTHING)
    observed, _ = await read_beside(interruptions, session, read)
    if len(adoptees) > 1 and is_cut(observed):
        return await _compare(session, adoptees[:1], began, interruptions)
    results: list[PrivilegeResult] = []
    for one in adoptees:
        await interruptions.give_way()
        comparisons = observed.size * PrivilegeTerms.of(one, session.database).weight
        results.append(
            await run_aside(
                comparisons, large_rounds.MANY_COMPARISONS, answer_for, one, observed, partial(contain, key=one.key)
            )
        )
        if anyio.current_time() - began > _LONGEST:
            break
    return results
