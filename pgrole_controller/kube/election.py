"""Leader election with a Lease: one of several candidate processes leads.

Expected flow: stand by until the Lease is free, take it, renew it every two seconds in a separate task, and lose it
when another process holds it or the API server denies it. If a leader cannot renew for ten seconds because the API
server does not answer, its leadership becomes unconfirmed: it writes nothing to Kubernetes, and each database decides
who leads there (postgres/fence.py). The next successful renewal confirms the leadership again.

Away means timeouts, refused or reset connections, 429 and 5xx. Any other refusal is an answer: 401, 403 and a missing
namespace are how an administrator stops a controller.

Guarantees: no dependency on other machines' clocks (`kube.lease`). A released Lease is taken at once, since it is
watched. If the Lease is deleted, its holder creates it again, and others wait as long as for a Lease that is not
renewed. Every write names uid and version of the Lease that was read, so of two candidates only one succeeds.

Caveats: a paused process acts for a moment as if it still led. The fencing token in the database prevents harm
(sql/database/20_leader.sql); the process draws it before it calls `confirm`. A process that first looks after the Lease
was deleted knows of no holder and takes it, so two can lead until the holder notices.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

import anyio

from pgrole_controller import metrics
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable, is_away
from pgrole_controller.kube.events import micro_time
from pgrole_controller.kube.lease import (
    LeaseRecord,
    LeaseTiming,
    ObservedLease,
    Term,
    observe,
    observe_missing,
    release,
    renew,
    take,
)
from pgrole_controller.kube.reflector import reflect
from pgrole_controller.kube.resource import LEASES
from pgrole_controller.kube.store import Store, StoreChange, is_older
from pgrole_controller.kube.unvalidated import parse

log = logging.getLogger(__name__)

#: Seconds for one request, so that a hanging one leaves time for another.
REQUEST_SECONDS = 3.0
#: Seconds between failed attempts.
AGAIN_SECONDS = 1.0
#: A Lease that expired while the API server was away remains reserved for its holder for this many more seconds.
RETURN_SECONDS = 5.0
#: An unconfirmed leader does nothing while the API server refuses requests, and loses leadership after this many
#: seconds: an API server that starts refuses everyone until it has read its RBAC rules.
DENIED_SECONDS = 10.0
#: Seconds to release the Lease at shutdown.
RESIGN_SECONDS = 2.0

#: What a write repeats of its metadata: what others wrote there, and the uid, without which a PUT creates a Lease that
#: was deleted meanwhile.
_KEPT = ("uid", "labels", "annotations", "ownerReferences", "finalizers")

_FAILURES = (ApiError, Unreachable, BadStream)


class Elector:
    """This process as a candidate for the Lease. `identity` must be unique among the processes."""

    def __init__(self, client: Client, lease: Key, identity: str, timing: LeaseTiming = LeaseTiming()) -> None:  # noqa: B008 -- frozen
        self.lease = lease
        self.identity = identity
        self.answered = anyio.Event()  # the Lease was read, or found missing
        self._client = client
        self._timing = timing
        self._observed: ObservedLease | None = None
        self._kept: dict[str, Any] = {}  # of its metadata
        self._changed = Signal()
        self._term = Term()
        self._heard_at = 0.0  # on the loop's clock: time of the last answer or event
        self._denied_since: float | None = None  # on the loop's clock: since when every request was refused
        self._refused = False  # the last answer was a refusal

    async def run(self, term: Term) -> None:
        """Stands by and leads. Returns when the term is lost; otherwise runs until cancelled."""
        self._term = term
        self._heard_at, self._denied_since, self._refused = anyio.current_time(), None, False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            try:
                await self._stand_by(term)
                if term.led.is_set():
                    log.info("leading", extra={"lease": str(self.lease), "identity": self.identity})
                    await self._hold(term)
                log.warning("no longer leading", extra={"lease": str(self.lease), "identity": self.identity})
            finally:
                term.lost.set()
            tasks.cancel_scope.cancel()

    async def resign(self) -> None:
        """Releases the Lease if we hold it, so that another process takes it at once. Call it after the last write."""
        with anyio.move_on_after(RESIGN_SECONDS):
            try:
                while not await self._release():
                    pass
            except _FAILURES as error:
                log.warning("lease not released", extra={"lease": str(self.lease), "error": str(error)})
            return
        log.warning("lease not released", extra={"lease": str(self.lease), "error": "no answer in time"})

    async def _release(self) -> bool:
        """Returns False if another write came first: a renewal of our own may have been under way."""
        observed = await self._read()
        if self._is_mine(observed) and observed.version is not None:
            try:
                await self._write(release(observed.record, _now()), observed.version)
            except ApiError as error:
                if not _is_conflict(error):
                    raise
                return False
            log.info("lease released", extra={"lease": str(self.lease)})
        return True

    async def _stand_by(self, term: Term) -> None:
        """Returns once we hold the Lease or, after enforcement without it, once another process renews it."""
        holder = reported = first = None
        away, waits_until = False, 0.0
        while True:
            try:
                observed = await self._read()
                self.answered.set()
                if away:  # a holder that could not renew takes precedence
                    away, waits_until = False, anyio.current_time() + RETURN_SECONDS
                if not self._is_mine(observed) and anyio.current_time() < waits_until and _is_free(observed):
                    await self._await_change(waits_until)
                    continue
                if observed is None or self._is_mine(observed) or observed.free_at <= anyio.current_time():
                    await self._take(term, observed)
                    return
                reported = None
                if term.enforced and first in (None, observed.record):
                    first = observed.record  # the holder may have renewed it for the last time before the outage
                    await self._await_change(observed.free_at)
                    continue
                self._note_contact()  # its holder renews it, so Kubernetes answers
                if term.enforced:
                    return
                if holder != observed.record.holder:
                    holder = observed.record.holder
                    log.info("standing by", extra={"lease": str(self.lease), "leader": holder})
            except _FAILURES as error:
                first, away = None, away or is_away(error)
                self._note(error)
                if term.enforced and self._refused:
                    return
                if reported != str(error) and not _is_conflict(error):
                    reported = str(error)
                    log.warning("lease not acquired, trying again", extra={"lease": str(self.lease), "error": reported})
                await anyio.sleep(AGAIN_SECONDS)
            else:
                await self._await_free()

    async def _take(self, term: Term, observed: ObservedLease | None) -> None:
        began = anyio.current_time()
        await self._write(take(observed, self.identity, self._timing, _now()), observed.version if observed else None)
        if term.enforced:  # the known state may be old: list again before anything else
            term.unconfirmed = True
        term.hold(began, began + self._timing.deadline)

    async def _await_change(self, until: float) -> None:
        self._changed.clear()
        with anyio.CancelScope(deadline=until):
            await self._changed.wait()

    async def _await_free(self) -> None:
        """Waits until the holder was not seen for its Lease's duration, or releases it."""
        while self._observed is not None and self._observed.free_at > anyio.current_time():
            await self._await_change(self._observed.free_at)

    async def _hold(self, term: Term) -> None:
        """Renews periodically. Returns when another process holds the Lease, or the API server refuses renewals for too
        long.
        """
        while True:
            with anyio.CancelScope(deadline=anyio.current_time() + self._timing.period):
                await term.renewal_requested()
            if not await self._renew(term):
                return

    async def _renew(self, term: Term) -> bool:
        """Retries until renewed. Returns False if the Lease is no longer ours."""
        while True:
            term.renewal_started()
            began, observed = anyio.current_time(), self._observed
            if not self._is_mine(observed):
                return False
            self._check_unconfirmed(term)
            try:
                with anyio.fail_after(self._remaining(term)):
                    await self._write(renew(observed.record, self._timing, _now()), observed.version)
            except TimeoutError:
                if not await self._keeps_lead(term, Unreachable("no answer in time")):
                    return False
            except _FAILURES as error:
                if _is_conflict(error) and observed.version is not None:
                    if not await self._is_ours(term):
                        return False
                elif not await self._keeps_lead(term, error):
                    return False
            else:
                metrics.note_renewal(renewed=True)
                unconfirmed = term.unconfirmed
                term.hold(began, began + self._timing.deadline)
                if unconfirmed and term.leading:
                    log.info("leadership confirmed again", extra={"lease": str(self.lease)})
                return True

    async def _is_ours(self, term: Term) -> bool:
        """Reads the Lease again: a write may have succeeded although its answer was lost."""
        while True:
            try:
                observed = await self._read()
            except _FAILURES as error:
                if not await self._keeps_lead(term, error):
                    return False
            else:
                return self._is_mine(observed)

    def _remaining(self, term: Term) -> float:
        """Seconds for one request. A hanging one is given up when the leadership becomes unconfirmed."""
        return max(term.until - anyio.current_time(), 0.0) if term.leading else REQUEST_SECONDS

    def _check_unconfirmed(self, term: Term) -> None:
        if not term.leading and not term.unconfirmed:
            term.unconfirmed = True
            log.warning("leadership not confirmed: the Lease was not renewed in time", extra={"lease": str(self.lease)})

    async def _keeps_lead(self, term: Term, error: Exception) -> bool:
        """Handles a failed renewal. Tells whether the leadership continues, confirmed or not."""
        self._note(error)
        metrics.note_renewal(renewed=False)
        log.warning("lease not renewed, trying again", extra={"lease": str(self.lease), "error": str(error)})
        rest = AGAIN_SECONDS
        if term.leading:
            rest = min(rest, max(term.until - anyio.current_time(), 0.0))
        await anyio.sleep(rest)
        return term.leading or self._denied_since is None or anyio.current_time() < self._denied_since + DENIED_SECONDS

    def _note(self, error: Exception) -> None:
        """Records whether a failure means that the API server is away or refuses."""
        if is_away(error):
            self._denied_since = None
            if self._term.away_since is None and not self._refused:
                self._term.away_since = self._heard_at
        elif not _is_conflict(error) or self._observed is None or self._observed.version is None:
            self._heard_at = anyio.current_time()
            self._term.away_since, self._refused = None, True
            if self._denied_since is None:
                self._denied_since = self._heard_at

    def _note_contact(self) -> None:
        """Records that the Lease was written, by us or another process."""
        self._heard_at = anyio.current_time()
        self._term.away_since = self._denied_since = None
        self._refused = False

    def _is_mine(self, observed: ObservedLease | None) -> TypeGuard[ObservedLease]:
        return observed is not None and observed.record.holder == self.identity

    async def _follow(self) -> None:
        await reflect(
            self._client, LEASES, Store(), self._see_change, namespace=self.lease.namespace, name=self.lease.name
        )

    def _see_change(self, change: StoreChange) -> None:
        self._heard_at = anyio.current_time()
        version = None if self._observed is None else self._observed.version
        if change.new is None:
            if change.old is None or version is None or not is_older(change.old.resource_version, than=version):
                self._note_missing()
        elif version is None or not is_older(change.new.resource_version, than=version):
            self._see(change.new.object())
        if not self._is_mine(self._observed) or self._observed.version is None:
            self._term.request_renewal()  # a leader must know at once

    def _note_missing(self) -> ObservedLease | None:
        self._observed = observe_missing(self._observed)
        self._changed.set()
        return self._observed

    def _see(self, lease: Mapping[str, Any]) -> ObservedLease:
        """Raises BadStream: a proxy may answer with any object."""
        try:
            version, record = str(lease["metadata"]["resourceVersion"]), self._record(lease)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadStream("the API server's answer is not a Lease") from error
        self._observed = observe(self._observed, record, version, anyio.current_time())
        self._kept = {name: lease["metadata"][name] for name in _KEPT if name in lease["metadata"]}
        self._changed.set()
        return self._observed

    def _record(self, lease: Mapping[str, Any]) -> LeaseRecord:
        spec = lease.get("spec") or {}
        return LeaseRecord(
            holder=str(spec.get("holderIdentity") or ""),
            duration=int(spec.get("leaseDurationSeconds") or self._timing.duration),
            acquired=str(spec.get("acquireTime") or ""),
            renewed=str(spec.get("renewTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
        )

    async def _read(self) -> ObservedLease | None:
        path = LEASES.path(self.lease.namespace, self.lease.name)
        try:
            answer = await self._client.request("GET", path, timeout=REQUEST_SECONDS)
        except ApiError as error:
            if error.status != 404:
                raise
            return self._note_missing()
        return self._see(parse(answer))

    async def _write(self, record: LeaseRecord, version: str | None) -> None:
        """Creates the Lease, or replaces that version. Raises ApiError (409: another write came first), Unreachable,
        BadStream.
        """
        namespace, name = self.lease.namespace, self.lease.name
        metadata: dict[str, Any] = {"namespace": namespace, "name": name}
        if version is not None:
            metadata |= {**self._kept, "resourceVersion": version}
        spec = {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": record.duration,
            "acquireTime": record.acquired or None,
            "renewTime": record.renewed,
            "leaseTransitions": record.transitions,
        }
        body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
        method, path = ("POST", LEASES.path(namespace)) if version is None else ("PUT", LEASES.path(namespace, name))
        self._see(parse(await self._client.request(method, path, body=body, timeout=REQUEST_SECONDS)))
        self._note_contact()


def _is_conflict(error: Exception) -> bool:
    """Tells whether the Lease was changed or deleted since it was read."""
    return isinstance(error, ApiError) and error.status in (404, 409)


def _is_free(observed: ObservedLease | None) -> bool:
    return observed is None or observed.free_at <= anyio.current_time()


def _now() -> str:
    return micro_time(datetime.now(UTC))
