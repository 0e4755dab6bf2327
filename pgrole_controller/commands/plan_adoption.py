"""What existing roles hold in the databases that the objects list which would adopt them, for the same decision that
the controller makes. One READ ONLY transaction in each database.
"""

from collections.abc import Sequence

from pgrole_controller.commands.concurrent_reads import read_each
from pgrole_controller.commands.output import make_unexpected
from pgrole_controller.commands.server_reading import reading
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.adoption_findings import answer_for, is_cut
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.plan_reading import read_privileges

#: Number of databases read concurrently, and of adoptees of one read.
_AT_ONCE, _MOST_READ = 4, 100


async def compare_adoptees(endpoint: Endpoint, adoptees: Sequence[Grantee]) -> dict[Key, dict[str, PrivilegeResult]]:
    """Returns results by object and database. A database that cannot be read is an error in the results."""
    found: dict[Key, dict[str, PrivilegeResult]] = {one.key: {} for one in adoptees}
    batches: list[tuple[str, list[Grantee]]] = []
    for database in sorted(frozenset[str]().union(*(one.databases for one in adoptees))):
        some = [one for one in adoptees if database in one.declared]
        batches += [(database, some[start : start + _MOST_READ]) for start in range(0, len(some), _MOST_READ)]
    for results in await read_each(batches, lambda batch: _compare(endpoint, *batch), _AT_ONCE):
        for result in results:
            found[result.key][result.database] = result
    return found


async def _compare(endpoint: Endpoint, database: str, some: Sequence[Grantee]) -> list[PrivilegeResult]:
    try:
        async with reading(endpoint, database) as connection:
            observed, _ = await read_privileges(
                connection, [one.oid for one in some], PrivilegeReach.of(database, some)
            )
    except PgRoleError as error:
        return [PrivilegeResult(one.key, one.uid, database, one.digest_of(database), error) for one in some]
    if len(some) > 1 and is_cut(observed):
        return [result for one in some for result in await _compare(endpoint, database, [one])]
    return [answer_for(one, observed, make_unexpected) for one in some]
