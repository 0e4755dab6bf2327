"""One connected server: two or three connections, whatever the number of roles.

One connection reads and writes; the others detect changes: with Watch, one LISTENs and one runs the procedure `watch`;
with Poll, one reads digests. If any connection fails, the whole session ends; its caller starts a new one and reads
again everything that it could have missed. A session also ends when the controller's privileges change, since the next
one may be able to use another detection mode.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from typing import NamedTuple, NoReturn, TypeAlias

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import resources
from pgrole_controller.core.contest import Suspect
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.plan import NewOwner, Plan
from pgrole_controller.core.policy import References
from pgrole_controller.core.request import Key
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.server_options import Mode
from pgrole_controller.core.state import Dependents, Detection, Observed
from pgrole_controller.postgres import catalog, queries
from pgrole_controller.postgres.apply import Dialect, LockedRoles, apply_plans
from pgrole_controller.postgres.capabilities import (
    ACCESS_CHECK_SECONDS,
    Capabilities,
    Identity,
    await_access_change,
    explaining,
    prepare_schema,
    read_access,
    read_capabilities,
)
from pgrole_controller.postgres.catalog import ReferencedNames, read_suspects
from pgrole_controller.postgres.claim_store import ClaimStore, HeldClaims, HomeConnection
from pgrole_controller.postgres.connection import Connection, Endpoint, await_end, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.detection import POLL_SECONDS, Detector, open_detector
from pgrole_controller.postgres.errors import convert_unexpected, translate_errors, unwrap_group
from pgrole_controller.postgres.fence import Candidate, Fence, stand_by, take_lead
from pgrole_controller.postgres.missing_privileges import PARAMETER_GRANTS_VERSION
from pgrole_controller.postgres.poll import Poller
from pgrole_controller.postgres.role_attribution import parse_noted_rows
from pgrole_controller.postgres.rows import fetch_row, query_each
from pgrole_controller.postgres.schema import SchemaState, is_current
from pgrole_controller.postgres.server_catalog import HeldQuestion, read_owning, read_unheld
from pgrole_controller.postgres.status_claims import StatusClaims
from pgrole_controller.postgres.trusted_schema import GUARDED_SECONDS
from pgrole_controller.postgres.watch import ChangeCallbacks

log = logging.getLogger(__name__)

#: Planning the read of a role takes several times as long as the read, so it is planned once. The tables may still be
#: empty then, so these settings choose the plan for few roles among many: by index.
_PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

#: Seconds between two heartbeats of the leader; it then also checks whether changes are suspended.
BEAT_PERIOD = 5.0
_SUSPENDED_SECONDS = 3.0


#: A role to be dropped: its oid, and the name of the new owner of its objects (empty: none).
DropTarget: TypeAlias = tuple[int, str]


class DropState(NamedTuple):
    """What blocks dropping a role, and the new owner of its objects."""

    dependents: tuple[Dependents, ...] = ()
    sessions: int = 0
    new_owner: NewOwner | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """What a worker can read and change on its server while it is connected. Every method raises PgRoleError.

    `claims` is where the claims are kept. `why` says why Watch is not possible, if Auto chose another mode.
    """

    identity: Identity
    schema_state: SchemaState
    cluster: str
    claims: ClaimStore
    _connection: Connection
    detection: Detection = field(default_factory=Detection)
    why: str = ""
    _poller: Poller | None = None
    fence: Fence | None = None  # None: no other process can lead
    _locked: LockedRoles = field(default_factory=LockedRoles)

    @property
    def enforcing(self) -> bool:
        """Whether Kubernetes cannot be reached, and this process only restores the state last applied."""
        return self.fence is not None and self.fence.enforcing

    @property
    def has_current_schema(self) -> bool:
        """As of the `ClaimStore`."""
        return self.claims.has_current_schema

    @property
    def _home(self) -> HomeConnection:
        return HomeConnection(self._connection, self.identity, self.cluster)

    async def read_database_name(self) -> str:
        """The name of the home database."""
        query = "SELECT pg_catalog.textsend(pg_catalog.current_database()::text) AS database"
        return (await fetch_row(self._connection, query)).text("database")

    async def is_suspended(self) -> bool:
        """Whether a superuser has suspended all changes."""
        return await _is_suspended(self._connection)

    async def read_roles(self, asked: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
        """Role and claim for each (key, role name), in order; what cannot be read for one is an error of that one."""
        return await query_each(self._connection, partial(self.claims.read_roles, self._home), asked)

    async def are_unchanged(self, asked: Sequence[tuple[Key, str]], before: Sequence[tuple[object, ...]]) -> list[bool]:
        """Whether role and claim of each (key, role name) still equal `before`, the `row` of an earlier `Observed`.

        False also wherever this cannot be determined: `read_roles` then reports why.
        """
        if not asked:
            return []
        return await self.claims.are_unchanged(self._home, asked, before)

    async def read_references(self, referenced: Sequence[ReferencedNames]) -> list[References | PgRoleError]:
        """One result for each, in order."""
        return await query_each(self._connection, self._read_references, referenced)

    async def _read_references(self, referenced: Sequence[ReferencedNames]) -> list[References]:
        every = reduce(or_, referenced)
        references = await catalog.read_references(self._connection, every, self.identity.version_number)
        return [references] * len(referenced)

    async def read_unheld(self, asked: Sequence[HeldQuestion]) -> list[frozenset[str] | PgRoleError]:
        """For each, in order, the databases in which the role has no privileges, nor can be about to get some."""
        return await query_each(self._connection, partial(read_unheld, self._connection), asked)

    async def read_owning_databases(self, roles: Collection[int], databases: Collection[str]) -> frozenset[str]:
        """Those of the databases in which one of the roles (oids) owns something."""
        return await read_owning(self._connection, roles, databases)

    async def read_drop_states(self, targets: Sequence[DropTarget]) -> list[DropState | PgRoleError]:
        """What a decision to drop each of these roles depends on, in order."""
        return await query_each(self._connection, self._read_drop_states, targets)

    async def _read_drop_states(self, targets: Sequence[DropTarget]) -> list[DropState]:
        oids = [oid for oid, _ in targets]
        dependents = await catalog.read_dependents(self._connection, oids)
        sessions = await catalog.count_sessions(self._connection, oids)
        names = {name for _, name in targets} - {""}
        owners = await self.claims.read_new_owners(self._home, names) if names else {}
        return [DropState(dependents.get(oid, ()), sessions.get(oid, 0), owners.get(name)) for oid, name in targets]

    async def read_verifiers(self, oids: Sequence[int]) -> list[Verifier | PgRoleError | None]:
        """The password verifier of each of these roles, in order; None if it has none or it may not be read."""
        return await query_each(self._connection, self._read_verifiers, oids)

    async def _read_verifiers(self, oids: Sequence[int]) -> list[Verifier | None]:
        found = await self.claims.read_verifiers(self._home, oids)
        return [found.get(oid) for oid in oids]

    async def read_claims(self, after: str = "") -> HeldClaims:
        """One page of the claims of this cluster that are not released, as `ClaimStore.read_held`."""
        return await self.claims.read_held(self._home, after)

    async def read_namespace_roles(
        self, namespaces: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], frozenset[int]]:
        """Oids of the roles that each namespace (name, uid) claims on this server."""
        return await self.claims.read_namespace_roles(self._home, namespaces) if namespaces else {}

    async def read_suspects(self, role_names: Sequence[str]) -> dict[str, tuple[Suspect, ...]]:
        """By role name: sessions that may have changed the role."""
        return await read_suspects(self._connection, role_names)

    async def read_noted_rows(self) -> dict[int, tuple[int, ...]]:
        """Returns, by oid of the roles that were repaired with `notes_rows` since the last call, which transactions
        wrote them before, latest first.
        """
        query = resources.text("sql", "attribution", "noted_rows.sql")
        return parse_noted_rows((await fetch_row(self._connection, query)).text("drifted"))

    async def apply_plans(
        self, plans: Sequence[Plan], *, enforcing: bool = False, notes_rows: bool = False
    ) -> list[PgRoleError | None]:
        """None for each plan that was committed, else its error.

        `enforcing`: the plans were decided while Kubernetes could not be reached. `notes_rows`: for `read_noted_rows`.
        """
        version = self.identity.version_number
        dialect = Dialect(
            options=version >= catalog.MEMBERSHIP_OPTIONS_VERSION,
            parameter_grants=version >= PARAMETER_GRANTS_VERSION,
            claims=self.claims,
            fence=self.fence,
            enforcing=enforcing,
            superuser=self.identity.superuser,
            notes_rows=notes_rows,
        )
        try:
            return await apply_plans(self._connection, plans, dialect, self._locked)
        finally:
            self.doubt(name for plan in plans if plan.changes for name in (plan.role_name, plan.seen_as))

    def doubt(self, names: Iterable[str]) -> None:
        """With Poll: the next poll announces these roles, since they may change and change back before it."""
        if self._poller is not None:
            self._poller.doubt(names)


async def run_session(
    endpoint: Endpoint,
    cluster: str,
    *,
    detection: Mode = Mode.AUTO,
    interval: float = POLL_SECONDS,
    may_install: bool,
    callbacks: ChangeCallbacks,
    work: Callable[[Session], Awaitable[None]],
    suspended: Callable[[bool], None] = lambda _: None,
    status_claims: StatusClaims | None = None,
    candidate: Candidate | None = None,
) -> None:
    """Connects, installs schema pgrole, and runs `work` until it returns or a connection fails.

    With a `candidate`, the session changes nothing until this process leads. It waits with its connections open until
    this process holds the Lease or, while Kubernetes cannot be reached, until no process leads this database.

    Detection, with `callbacks`, starts before `work`, so `work` misses no change that is committed after it starts.
    `suspended` is called every BEAT_PERIOD with whether a superuser has suspended all changes. `interval` is the time
    between two rounds of Poll in seconds. `status_claims` holds the claims if schema pgrole does not exist; pass the
    same instance to every session with the server.

    Returns when `work` returns, or when the controller's privileges or schema pgrole have changed; the caller then
    starts another session. Raises PgRoleError if the session cannot be started or fails.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(convert_unexpected())
        writer = await stack.enter_async_context(connect(endpoint, "work", **_PLANNING))
        open_chosen = partial(
            open_detector, stack, endpoint, writer, detection=detection, interval=interval, callbacks=callbacks
        )
        found, detector, fence = await _await_lead(candidate, writer, open_chosen)
        if found is None or fence is None:
            async with explaining(writer):
                found = await prepare_schema(writer, detection, may_install, found)
                fence = await _take_lead(writer, found, candidate)
        detector = detector or await open_chosen(found)
        claims = _open_claims(status_claims or StatusClaims(), found)
        session = _make_session(cluster, claims, writer, found, detector, fence)
        with unwrap_group():
            async with anyio.create_task_group() as tasks:
                _start_watching(tasks, writer, detector, found, interval, may_install=may_install)
                tasks.start_soon(_beat, detector, fence, suspended)
                await work(session)
                tasks.cancel_scope.cancel()


def _make_session(
    cluster: str, claims: ClaimStore, writer: Connection, found: Capabilities, detector: Detector, fence: Fence | None
) -> Session:
    detection = Detection(detector.mode, found.identity.sees_passwords, found.claims)
    return Session(
        found.identity, found.schema_state, cluster, claims, writer, detection, detector.why, detector.poller, fence
    )


def _start_watching(
    tasks: TaskGroup, writer: Connection, detector: Detector, found: Capabilities, interval: float, *, may_install: bool
) -> None:
    """Starts the detection, and what ends the session: with an error when a connection fails, or without one when the
    next session can do more, or must install the schema again.
    """
    for task in detector.tasks:
        tasks.start_soon(task)
    tasks.start_soon(await_end, (writer, *detector.connections))
    period = min(ACCESS_CHECK_SECONDS, 60 * interval)
    tasks.start_soon(_watch_access, detector, found, period, tasks.cancel_scope)
    if detector.await_better is not None:
        tasks.start_soon(_watch_mode, detector.await_better, tasks.cancel_scope)
    if found.schema_state.is_older:
        tasks.start_soon(_await_upgrade, detector, found.schema_state, period, tasks.cancel_scope)
    elif found.missing is None and may_install and found.access["owns"]:
        tasks.start_soon(_watch_schema, detector, period, tasks.cancel_scope)


async def _await_lead(
    candidate: Candidate | None, writer: Connection, open_chosen: Callable[[Capabilities], Awaitable[Detector]]
) -> tuple[Capabilities | None, Detector | None, Fence | None]:
    """Stands by until this process leads. Returns what it found and opened meanwhile, which the session uses, and the
    fence if this process leads the database without the Lease. Raises PgRoleError.
    """
    found = detector = fence = None
    while candidate is not None and not candidate.is_leading() and fence is None:
        if detector is None:
            async with explaining(writer):
                found = await read_capabilities(writer)
            detector = await open_chosen(found) if found else None
        fence = await stand_by(candidate, writer, found, detector)
    return found, detector, fence


def _open_claims(status_claims: StatusClaims, found: Capabilities) -> ClaimStore:
    if found.missing:
        return status_claims.open(found.identity.system_identifier)
    status_claims.clear()
    return DatabaseClaims(found.guarded, not found.schema_state.is_older)


async def _beat(detector: Detector, fence: Fence | None, suspended: Callable[[bool], None]) -> NoReturn:
    """Sends the leader's heartbeats, and reports whether changes are suspended. Raises PgRoleError."""
    while True:
        async with detector.lock:
            if fence is not None and fence.acting:
                await fence.beat(detector.connection)
            suspended(await _is_suspended(detector.connection))
        await anyio.sleep(BEAT_PERIOD)


async def _is_suspended(connection: Connection) -> bool:
    with translate_errors("suspended"):
        return bool(await connection.fetchval(queries.inspect("suspended"), timeout=_SUSPENDED_SECONDS))


async def _take_lead(writer: Connection, found: Capabilities, candidate: Candidate | None) -> Fence | None:
    """Returns None if no other process can lead. Raises PgRoleError."""
    if candidate is None:
        return None
    if found.schema_state is SchemaState.OLDER:
        log.warning("schema pgrole has the previous version: no fencing token until an administrator updates it")
    fencing = found.missing is None and not found.schema_state.is_older
    fence = await take_lead(writer, candidate, guarded=found.guarded, fencing=fencing)
    await fence.beat(writer)
    return fence


async def _watch_access(detector: Detector, found: Capabilities, seconds: float, session: anyio.CancelScope) -> None:
    """Ends the session when privileges in the home database have changed in a way that affects it."""
    only = "sees_passwords" if detector.mode is Mode.WATCH else None
    changed = await await_access_change(detector.connection, detector.lock, found, seconds, only)
    log.info("privileges in the home database changed", extra={"changed": ", ".join(changed)})
    session.cancel()


async def _watch_mode(await_better: Callable[[], Awaitable[None]], session: anyio.CancelScope) -> None:
    """Ends the session when the next one can use a better detection mode."""
    await await_better()
    log.info("notifications arrive now")
    session.cancel()


async def _watch_schema(detector: Detector, seconds: float, session: anyio.CancelScope) -> None:
    """Ends the session when a part of schema pgrole is missing or was added: the next session installs it again."""
    while True:
        await anyio.sleep(seconds)
        async with detector.lock:
            with translate_errors(), anyio.fail_after(GUARDED_SECONDS, shield=True):
                if not await is_current(detector.connection):
                    break
    log.warning("parts of schema pgrole are missing, or were added")
    session.cancel()


async def _await_upgrade(detector: Detector, state: SchemaState, seconds: float, session: anyio.CancelScope) -> None:
    """Ends the session when an administrator has updated schema pgrole and granted the privileges on its new parts, or
    when the next session can try again to update it.
    """
    while True:
        await anyio.sleep(seconds)
        if state is SchemaState.IN_USE:
            session.cancel()
            return
        async with detector.lock:
            with translate_errors(), anyio.fail_after(GUARDED_SECONDS, shield=True):
                access = await read_access(detector.connection)
                if (access["owns"] or access["uses"]) and await is_current(detector.connection):
                    break
    log.info("schema pgrole was updated")
    session.cancel()
