"""One round in one database: read, decide for each role, apply, read back, and what to report.

Guarantees: an error of one role or object delays no other; the digest of what was applied, the count of drifts and their
history are written by the transaction of the last repair; a role is reported without an error only after everything was
read back.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import anyio

from pgrole_controller import metrics
from pgrole_controller.controller.errors import contain
from pgrole_controller.controller.privilege_memory import AppliedState, PrivilegeMemory, RoleMemory, hold, note_repair
from pgrole_controller.controller.server import ServerConfig
from pgrole_controller.core.acl import AclChange, DefaultAclChange, ObjectId
from pgrole_controller.core.acl_decision import ObservedDatabase, PrivilegeDecision, decide_privileges
from pgrole_controller.core.attribution import DEFAULTS, GRANTED, REVOKED, ChangedRow
from pgrole_controller.core.contest import Moment, describe_field
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.grantee import Grantee
from pgrole_controller.core.privilege_difference import PrivilegeDifference, phrases
from pgrole_controller.core.privilege_news import announce_drift, announce_extension, describe_drift
from pgrole_controller.core.privilege_reach import PrivilegeReach
from pgrole_controller.core.privilege_result import (
    Culprit,
    News,
    PrivilegeDrift,
    PrivilegeNews,
    PrivilegeResult,
)
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.acl_apply import AclDialect, AclRepair, AppliedAcls, Statement, apply_acls
from pgrole_controller.postgres.database_session import DatabaseSession
from pgrole_controller.postgres.ddl_events import EVERYTHING, Look, Scope

log = logging.getLogger(__name__)

#: After so many passes, what is still not as declared is left to a retry.
PASSES = 3

_MOST_NEWS = 10


@dataclass(slots=True)
class _Progress:
    """One role during a round."""

    grantee: Grantee
    role: RoleMemory
    decision: PrivilegeDecision = field(default_factory=PrivilegeDecision)
    changes: tuple[AclChange, ...] = ()
    default_changes: tuple[DefaultAclChange, ...] = ()
    error: PgRoleError | None = None
    held: bool = False
    wrote: bool = False
    drifts: list[tuple[PrivilegeDrift, tuple[PrivilegeDifference, ...]]] = field(default_factory=list)
    news: list[PrivilegeNews] = field(default_factory=list)
    applied: AppliedState = field(default_factory=AppliedState)

    @property
    def digest(self) -> str:
        return self.role.digest


async def run_round(
    session: DatabaseSession,
    grantees: Sequence[Grantee],
    look: Look,
    keys: frozenset[Key],
    memory: PrivilegeMemory,
    config: ServerConfig,
    suspended: Callable[[], bool],
) -> list[PrivilegeResult]:
    """Reads what `look` says for all roles, and everything for those of `keys`. Raises PgRoleError if the session fails."""
    memory.keep_only({one.key for one in grantees}, {one.oid for one in grantees})
    complete = {one.key for one in grantees} if look.scope is Scope.FULL else keys | memory.unsettled()
    if look.scope is Scope.NOTHING:
        complete = set(keys)
    partial = [one for one in grantees if one.key not in complete] if look.scope is not Scope.NOTHING else []
    async with session.lock:
        one_round = _Round(session, memory, config, suspended)
        results = await one_round.settle(partial, look)
        results += await one_round.settle([one for one in grantees if one.key in complete], EVERYTHING | look)
    return results


class _Round:
    def __init__(
        self, session: DatabaseSession, memory: PrivilegeMemory, config: ServerConfig, suspended: Callable[[], bool]
    ) -> None:
        self._session = session
        self._memory = memory
        self._config = config
        self._suspended = suspended
        self._began = anyio.current_time()

    async def settle(self, grantees: Sequence[Grantee], look: Look) -> list[PrivilegeResult]:
        if not grantees:
            return []
        every = {one.key: self._begin(one) for one in grantees}
        some, observed = every, ObservedDatabase
        for number in range(PASSES):
            observed = await self._session.read(
                [one.grantee for one in some.values()], PrivilegeReach.of(self._session.database, grantees), look
            )
            await self._read_applied(some.values())
            await self._decide(some.values(), observed)
            changed = {one.key: one for one in some.values() if one.changes or one.default_changes}
            storing = {key: one for key, one in some.items() if self._stores(one)}
            if number == PASSES - 1 or not (changed or storing):
                break
            if (error := await self._blocked()) is not None:
                for one in changed.values():
                    one.error = error
                break
            await self._apply({**changed, **storing}, observed)
            if not changed:
                break
            some = changed
            if look.scope is not Scope.FULL:
                look = _changed_only(changed.values())
        return [self._result(one, look) for one in every.values()]
