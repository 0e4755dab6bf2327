"""Writes the status of PgServers, and keeps a PgServer that PgRoles still reference from being deleted.

Guarantees: one write at a time to a PgServer; one whose writes are not answered, because of an admission webhook for
example, delays no other.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, get_args

import anyio
from anyio.abc import TaskGroup

from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.privileges.databases import DatabaseState
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.session_keeper import SessionState
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.drift_record import HourlyDrifts, read_hourly_drifts
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.names import name_some
from pgrole_controller.core.outcome import CONNECTED, Outcome, Phase, of_error
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import Mode
from pgrole_controller.core.state import Claims
from pgrole_controller.core.status import build_conditions
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, KubeError
from pgrole_controller.kube.resource import PGSERVERS
from pgrole_controller.kube.server_side_apply import FINALIZER_MANAGER, apply_finalizer, apply_status, unchanged
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.kube.unvalidated import mapping, sequence

log = logging.getLogger(__name__)

#: Minimum interval between writes of drifts per hour, in seconds.
DRIFT_SECONDS = 60.0
#: The API server refuses a status with driftsPerHour if the CRDs are older. The field is then left out for this long,
#: in seconds.
OLDER_CRDS_SECONDS = 60.0
_NOT_DECLARED = "not declared in schema"

#: As in the CRD.
MOST_DATABASES = 500

FINALIZER = "pgrole.dev/in-use"


def name_finalizer(namespace: str | None) -> str:
    """An installation that serves one namespace has a finalizer of its own, since it does not know whether PgRoles of
    other installations reference the PgServer.
    """
    return FINALIZER if namespace is None else f"{namespace}.{FINALIZER}"


#: Minimum interval between writes of the role counts, in seconds. All other changes are written within a second.
COUNT_SECONDS = 10.0
CHECK_SECONDS = 1.0

#: Fields that describe one installation: its PgRoles, and whether it is connected. Installations that serve a namespace
#: each share a PgServer, and would overwrite each other's values at every check.
_OWN_FIELDS = ("conditions", "roles", "databases", "driftsPerHour")
#: How long an installation leaves what another one wrote, in seconds, if nothing of its own changes: the other one may
#: have been removed.
YIELD_SECONDS = 600.0

#: Maximum number of PgServers that are written at once, and timeout for each, in seconds.
WRITERS = 12
WRITE_SECONDS = 10.0

#: Pause after a refused write, in seconds: doubled from CHECK_SECONDS on.
LONGEST_REST = 60.0


@dataclass(slots=True)
class _Reporting:
    """What is known of the reports on one PgServer. Times are on the loop's clock.

    `own`: _OWN_FIELDS as this leader last wrote or found them. `overwritten_at`: since when another installation's
    values stand there. `standing`: the status as written, and the version of the answer. `drifts`: counted before this
    process did.
    """

    writing: bool = False
    rests_until: float = 0.0  # after failures
    rest: float = 0.0  # how long the last one was, in seconds
    counted_at: float = -math.inf
    drifts: HourlyDrifts | None = None
    drifts_written_at: float = -math.inf
    own: dict[str, Any] | None = None
    overwritten_at: float | None = None
    standing: tuple[str, dict[str, Any]] | None = None


class ServerReporter:
    def __init__(
        self, client: Client, store: Store, workers: Iterable[ServerWorker], objects: Objects, leadership: Leadership
    ) -> None:
        self._client = client
        self._store = store
        self._workers = workers
        self._objects = objects
        self._leadership = leadership
        self._reportings: dict[str, _Reporting] = {}  # by uid
        self._older_crds_until = 0.0
        self._places = anyio.CapacityLimiter(WRITERS)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._leadership.stand_by()
        await self._store.answered.wait()
        await self._objects.store.synced.wait()
        async with anyio.create_task_group() as reports:
            while True:
                self._start_reports(reports)
                await anyio.sleep(CHECK_SECONDS)

    def _start_reports(self, reports: TaskGroup) -> None:
        if not self._leadership.acting:
            for reporting in self._reportings.values():
                reporting.own = None
            return
        present = {stored.uid for _, stored in self._store.items()}
        self._reportings = {uid: known for uid, known in self._reportings.items() if uid in present}
        for worker in self._workers:
            stored = self._store.get(Key("", worker.server.name))
            if stored is None:
                continue
            reporting = self._reportings.setdefault(stored.uid, _Reporting())
            if not reporting.writing and reporting.rests_until <= anyio.current_time():
                reporting.writing = True
                reports.start_soon(self._report, worker, stored, reporting)

    async def _report(self, worker: ServerWorker, stored: Stored, reporting: _Reporting) -> None:
        try:
            async with self._places:
                with anyio.fail_after(WRITE_SECONDS):
                    await self._hold_and_write(worker, stored, reporting)
        except Exception as error:  # noqa: BLE001 -- one server's error
            if not isinstance(error, KubeError | TimeoutError):
                error = contain(error, stored.key)
            if not isinstance(error, ApiError) or error.status not in (404, 409):
                _rest(reporting, worker.server.name, error)
        else:
            reporting.rests_until = reporting.rest = 0.0
        finally:
            reporting.writing = False

    async def _hold_and_write(self, worker: ServerWorker, stored: Stored, reporting: _Reporting) -> None:
        if not await self._hold(stored):
            return
        current = self._store.get(stored.key)
        if current is None or current.uid != stored.uid:
            return
        # A PgServer that was created again, or that replaces PGROLE_DSN, is not yet the one that the worker serves.
        if worker.server.uid == current.uid:
            await self._write(worker, current, reporting)

    async def _hold(self, stored: Stored) -> bool:
        """Sets the finalizer. Removes it, and returns False, if no PgRole references a PgServer that is being
        deleted. An installation for one namespace keeps its finalizer only while a PgRole references the PgServer: it
        may be removed long before the PgServer.
        """
        metadata, namespace = stored.object()["metadata"], self._objects.namespace
        terminating = metadata.get("deletionTimestamp") is not None
        present = metadata.get("finalizers") or ()
        named, _ = self._objects.count(stored.key.name)
        wanted = named > 0 or (namespace is None and not terminating)
        finalizer = name_finalizer(namespace)
        if (finalizer in present) != wanted and not (wanted and terminating):
            await self._apply_finalizer(stored, finalizer, present=wanted)
            return wanted or not terminating
        if terminating and not wanted and FINALIZER in present:  # of an earlier release
            await self._apply_finalizer(stored, FINALIZER, present=False)
            return False
        return True

    async def _apply_finalizer(self, stored: Stored, finalizer: str, *, present: bool) -> None:
        namespace = self._objects.namespace
        manager = FINALIZER_MANAGER if finalizer == FINALIZER else f"{FINALIZER_MANAGER}-{namespace}"
        written = await apply_finalizer(self._client, PGSERVERS, stored, present, finalizer=finalizer, manager=manager)
        self._store.put_answer(stored, written)

    async def _write(self, worker: ServerWorker, stored: Stored, reporting: _Reporting) -> None:
        obj = stored.object()
        previous: Mapping[str, Any] = mapping(obj.get("status"))
        if self._objects.namespace is not None:
            previous = _with_own(reporting, previous)
        status = self._status(worker, reporting, _readable(previous), _outcome(worker, obj["metadata"]))
        drifts = self._count_drifts(worker, reporting, previous)
        if drifts is not None:
            status["driftsPerHour"] = drifts
        if not unchanged(previous, status) and not _stands(reporting, stored, status):
            written = await self._apply(worker, stored, previous, status)
            if written is not None:
                self._store.put(written, by=stored.key)
                reporting.standing = written.resource_version, status
        if "driftsPerHour" in status and drifts != previous.get("driftsPerHour"):
            reporting.drifts_written_at = anyio.current_time()
        reporting.own = {name: status.get(name) for name in _OWN_FIELDS}

    async def _apply(
        self, worker: ServerWorker, stored: Stored, previous: Mapping[str, Any], status: dict[str, Any]
    ) -> Stored | None:
        """Writes the status, without what older CRDs lack. Returns the answer; None if nothing else differs."""
        try:
            return await apply_status(self._client, PGSERVERS, stored, status)
        except ApiError as error:
            if "driftsPerHour" not in status or _NOT_DECLARED not in error.message:
                raise
            log.info("status.driftsPerHour omitted: the installed CRDs are older", extra={"server": worker.server.name})
            self._older_crds_until = anyio.current_time() + OLDER_CRDS_SECONDS
            del status["driftsPerHour"]
            return None if unchanged(previous, status) else await apply_status(self._client, PGSERVERS, stored, status)

    def _count_drifts(
        self, worker: ServerWorker, reporting: _Reporting, previous: Mapping[str, Any]
    ) -> list[dict[str, Any]] | None:
        """Adds up what the status held when this process first wrote it, and what was counted since. None: left out."""
        now = anyio.current_time()
        written: list[dict[str, Any]] | None = previous.get("driftsPerHour")
        if now < self._older_crds_until:
            return None
        if reporting.drifts is None:
            reporting.drifts = read_hourly_drifts(written)
        counted = reporting.drifts.plus(worker.drift_counts.counted).since(datetime.now(UTC)).to_status()
        if counted == written or (written is not None and now - reporting.drifts_written_at < DRIFT_SECONDS):
            return written
        return counted

    def _status(
        self, worker: ServerWorker, reporting: _Reporting, previous: dict[str, Any], outcome: Outcome
    ) -> dict[str, Any]:
        generation, now = worker.server.generation, datetime.now(UTC)
        conditions = previous.get("conditions", ())
        # Another installation may be connected: the one that starts reports what its first attempt finds.
        starts = self._objects.namespace is not None and outcome.reason is Reason.PROGRESSING
        if not (starts and _is_ready(conditions, generation)):
            conditions = build_conditions(conditions, outcome, generation, now, keep_message=False)
        status: dict[str, Any] = {"observedGeneration": generation, "conditions": conditions}
        for name in ("version", "systemIdentifier", "detection"):
            if name in previous:
                status[name] = previous[name]
        session = worker.keeper.session
        if session is not None:
            status["version"] = session.identity.version
            status["systemIdentifier"] = str(session.identity.system_identifier)
            status["detection"] = {
                "mode": session.detection.mode.value,
                "passwords": session.detection.passwords,
                "claims": session.detection.claims,
            }
        databases = select_databases(worker.databases.states())
        if databases:
            status["databases"] = [_database(one) for one in databases]
        status["roles"] = self._count(worker.server.name, reporting, previous.get("roles"))
        return status

    def _count(self, name: str, reporting: _Reporting, before: dict[str, int] | None) -> dict[str, int]:
        declared, ready = self._objects.count(name)
        now = anyio.current_time()
        if before is not None and now - reporting.counted_at < COUNT_SECONDS:
            return before
        reporting.counted_at = now
        return {"declared": declared, "ready": ready}


def _rest(reporting: _Reporting, name: str, error: Exception) -> None:
    reporting.rest = Backoff(CHECK_SECONDS, LONGEST_REST).longer(reporting.rest)
    reporting.rests_until = anyio.current_time() + reporting.rest
    log.warning(
        "PgServer status not written",
        extra={"server": name, "error": str(error) or "no answer in time", "delay": reporting.rest},
    )


def select_databases(states: Iterable[DatabaseState]) -> list[DatabaseState]:
    """Returns at most MOST_DATABASES, those without a session first, sorted by name."""
    some = sorted(states, key=lambda one: (one.mode is not None, one.name))[:MOST_DATABASES]
    return sorted(some, key=lambda one: one.name)


def _stands(reporting: _Reporting, stored: Stored, status: dict[str, Any]) -> bool:
    """Whether writing this status again would change nothing: what else stands there, the API server added."""
    version, written = reporting.standing or ("", None)
    return stored.resource_version == version and unchanged(written, status)


def _with_own(reporting: _Reporting, previous: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the status with the values that this installation wrote or found, for as long as it leaves what another
    one wrote instead.
    """
    own, now = reporting.own, anyio.current_time()
    if own is None or unchanged({name: previous.get(name) for name in _OWN_FIELDS}, own):
        reporting.overwritten_at = None
        return previous
    if reporting.overwritten_at is None:
        reporting.overwritten_at = now
    if now - reporting.overwritten_at >= YIELD_SECONDS:
        return previous
    return {**previous, **own}


def _is_ready(conditions: Iterable[Mapping[str, Any]], generation: int) -> bool:
    return any(
        (one["type"], one["status"], one.get("observedGeneration")) == ("Ready", "True", generation)
        for one in conditions
    )


def _readable(status: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the next status continues, without anything that the CRD's schema does not permit: an older CRD, or
    none, may have let it in, and the API server would refuse it again.
    """
    kept = {name: status[name] for name in ("version", "systemIdentifier") if isinstance(status.get(name), str)}
    detection = mapping(status.get("detection"))
    if (
        detection.keys() == {"mode", "passwords", "claims"}
        and detection["mode"] in (Mode.WATCH, Mode.POLL, Mode.RESYNC)
        and isinstance(detection["passwords"], bool)
        and detection["claims"] in get_args(Claims)
    ):
        kept["detection"] = detection
    conditions = [
        one
        for one in sequence(status.get("conditions"))
        if all(isinstance(mapping(one).get(name), str) for name in ("type", "status", "lastTransitionTime"))
    ]
    return {**kept, "conditions": conditions, "roles": status.get("roles")}


def _database(state: DatabaseState) -> dict[str, Any]:
    detection = {"detection": state.mode.value} if state.mode is not None else {}
    return {"name": state.name, **detection, "ready": state.mode is not None, "message": state.message[:512]}


def _outcome(worker: ServerWorker, metadata: Mapping[str, Any]) -> Outcome:
    found = _state(worker)
    if metadata.get("deletionTimestamp") is None:
        return found
    message = f"{found.message}; it is being deleted, and remains until no PgRole references it"
    held = [one for one in sequence(metadata.get("finalizers")) if str(one).endswith(f".{FINALIZER}")]
    if held:  # perhaps by an installation that is gone, or serves another namespace now
        message = f"{message}; installations for one namespace hold it with {name_some(sorted(map(str, held)))}"
    return replace(found, message=message)


def _state(worker: ServerWorker) -> Outcome:
    keeper = worker.keeper
    if keeper.state is SessionState.SUSPENDED:
        text = (
            "connected, but all changes are suspended: pgrole.suspend is on for the home database or the controller's "
            "role"
        )
        return Outcome(Phase.PAUSED, Reason.SUSPENDED, text)
    if keeper.state is SessionState.ACTIVE:
        return _describe_connection(worker.server)
    if keeper.trouble is not None and not keeper.untried:
        return of_error(keeper.trouble)
    return Outcome(Phase.WORKING, Reason.PROGRESSING, "connecting to the server")


def _describe_connection(server: ServerConfig) -> Outcome:
    """The state of a server with a session, whose Secret or ConfigMap may be missing or not readable."""
    if server.problem is None:
        return replace(CONNECTED, message=f"{CONNECTED.message}; {server.caveat}") if server.caveat else CONNECTED
    why = server.problem.message
    if server.outdated:
        return of_error(server.problem.reword(f"{why}: the current session uses the former spec.connection"))
    rest = "but a new one cannot start" if server.lapsed else "with what was read before"
    return replace(CONNECTED, message=f"{CONNECTED.message}; {why}: the current session continues, {rest}")
