"""One round in one database: which roles it reconciles, and how much it reads for each."""

from collections.abc import Callable, Sequence

import anyio

from pgrole_controller.controller.privileges.adoptee_comparison import compare_adoptees
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.privileges.privilege_reconcile import PrivilegeReconcile
from pgrole_controller.controller.privileges.privilege_screening import find_dependent
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, Look, Scope


async def run_round(
    session: DatabaseSession,
    grantees: Sequence[Grantee],
    look: Look,
    keys: frozenset[Key],
    memory: PrivilegeMemory,
    config: ServerConfig,
    cluster: str,
    suspended: Callable[[], bool],
) -> list[PrivilegeResult]:
    """Reads what `look` asks for, for all roles, and everything for the roles of `keys`. Raises PgRoleError if the
    session fails.
    """
    adoptees, due = [one for one in grantees if one.adoptee is not None], keys
    grantees = [one for one in grantees if one.adoptee is None]
    keys -= {one.key for one in adoptees}
    memory.keep_only(grantees)
    everyone = frozenset(one.key for one in grantees)
    now = anyio.current_time()
    unclear = memory.unsettled() if look.asks else frozenset[Key]()
    if look.dropped:
        unclear |= memory.waiting() | find_dependent(grantees, session.database, look.dropped)
    complete = keys | memory.further.admit(unclear, now)
    match look.scope:
        case Scope.NOTHING:
            partial = frozenset[Key]()
        case Scope.FULL:
            complete, partial = everyone, frozenset()
        case _:
            partial = everyone - complete
    async with session.lock:
        reconcile = PrivilegeReconcile(session, memory, config, cluster, suspended, everyone=len(everyone))
        results = await reconcile.settle([one for one in grantees if one.key in partial], look)
        complete |= memory.further.admit(frozenset(reconcile.unclear), now)
        complete |= {one.key for one in reconcile.left}
        waiting = [one for one in grantees if one.key in complete]
        began = anyio.current_time()
        while waiting:
            results += await reconcile.settle(waiting, EVERYTHING | look)
            waiting = reconcile.left
        if complete and look.scope is not Scope.FULL:
            memory.further.note(began, anyio.current_time())
        memory.further.finish(complete)
        memory.settle(reconcile.unfinished, everyone=complete | partial >= everyone)
        await reconcile.record_reported()
    return results + await compare_adoptees(session, adoptees, look, due, memory.adoptees)
