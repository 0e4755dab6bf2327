"""Compares candidates, which are existing roles that objects may take over, with what these declare in one database.

Guarantee: nothing is written, not even a digest or a count: candidates take no part in the round that applies. What
each holds is read completely after every event there, since a privilege that was revoked shows in no partial read.
"""

from collections.abc import Sequence
from dataclasses import replace

import anyio

from pgrole_controller.controller import large_rounds
from pgrole_controller.controller.errors import contain
from pgrole_controller.controller.privilege_memory import FurtherReads
from pgrole_controller.core.adoption_findings import find_for_adoption, is_cut
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.grantee import Grantee
from pgrole_controller.core.observed_database import ObservedDatabase
from pgrole_controller.core.privilege_reach import PrivilegeReach
from pgrole_controller.core.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.database_session import DatabaseSession
from pgrole_controller.postgres.ddl_events import EVERYTHING, Look, Scope

#: Number of candidates of one read. Of one ACL, a read has 10,000 entries at most, whoever else is in it.
_AT_ONCE = 100


async def compare_candidates(
    session: DatabaseSession, candidates: Sequence[Grantee], look: Look, keys: frozenset[Key], reads: FurtherReads
) -> list[PrivilegeResult]:
    """Returns results for the candidates of `keys`, and for all of them if `look` asks for anything and a further read
    may begin. Raises PgRoleError if the session fails.
    """
    asked = frozenset(one.key for one in candidates)
    now = anyio.current_time()
    due = asked if look.scope is Scope.FULL else asked & keys
    if look.asks:
        due |= reads.admit(asked - due, now)
    some = [one for one in candidates if one.key in due]
    results: list[PrivilegeResult] = []
    for start in range(0, len(some), _AT_ONCE):
        results += await _compare(session, some[start : start + _AT_ONCE])
    if some:
        reads.note(now, anyio.current_time())
    reads.keep_only(asked - due)
    return results


async def _compare(session: DatabaseSession, candidates: Sequence[Grantee]) -> list[PrivilegeResult]:
    reach = PrivilegeReach.of(session.database, candidates)
    async with session.lock:
        observed, _ = await session.read([one.oid for one in candidates], reach, EVERYTHING)
    if len(candidates) > 1 and is_cut(observed):
        return [result for one in candidates for result in await _compare(session, [one])]
    return [await large_rounds.run_aside(observed.size, _find, one, observed) for one in candidates]


def _find(candidate: Grantee, observed: ObservedDatabase) -> PrivilegeResult:
    database = observed.facts.database
    result = PrivilegeResult(candidate.key, candidate.uid, database, candidate.digest_of(database))
    try:
        return replace(result, adoption=find_for_adoption(candidate, observed))
    except PgRoleError as error:
        return replace(result, error=error)
    except Exception as error:  # noqa: BLE001 -- this role's error
        return replace(result, error=contain(error, candidate.key))
