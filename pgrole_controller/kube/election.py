"""Leader election with a Lease: of several processes that could, one leads.

Expected flow: stand by until the Lease is free, take it, renew it every two seconds in a task of its own, and lose it
when it is another's, or the API server denies it. A lead that could not be renewed for ten seconds, because the API
server does not answer, is unconfirmed: nothing is written to Kubernetes any more, and what each database says decides
there (postgres/fence.py). The next renewal that is answered confirms it again.

Away means: timeouts, connections refused or reset, 429 and 5xx. Every other refusal is an answer: 401, 403 and a
missing namespace are how an administrator stops a controller.

Guarantees: nothing depends on other machines' clocks (`kube.lease`); a Lease that is given up is taken at once, since
it is watched; one that is deleted is made again by its holder, and others wait as long as for one that is not renewed;
every write names the version that was read, so that of two who take it one succeeds.

Caveats: a process that is paused goes on for a moment as if it led. That is what the fencing number in the database is
for (sql/install/08_leader.sql), which is drawn before `confirm` is asked. Who sees the Lease for the first time after
it was deleted knows of no holder and takes it: there can be two for as long as a holder needs to notice.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

import anyio

from pgrole_controller import metrics
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.events import micro_time
from pgrole_controller.kube.lease import (
    LeaseRecord,
    LeaseTiming,
    ObservedLease,
    observe,
    observe_missing,
    release,
    renew,
    take,
)
from pgrole_controller.kube.reflector import reflect
from pgrole_controller.kube.resource import LEASES
from pgrole_controller.kube.store import Change, Store, is_older, parse
from pgrole_controller.signals import Signal

log = logging.getLogger(__name__)

#: For one request, in seconds: one that hangs must leave time for another.
REQUEST_SECONDS = 3.0
#: Between attempts that failed, in seconds.
AGAIN_SECONDS = 1.0
#: A Lease that ran out while the API server was away is its holder's for so much longer, in seconds.
RETURN_SECONDS = 5.0
#: A lead that is not confirmed does nothing while the API server refuses, and is lost when it does so for so long, in
#: seconds: one that starts refuses everybody until it has read its rules.
DENIED_SECONDS = 10.0
#: For the Lease to be given up at the end, in seconds.
RESIGN_SECONDS = 2.0

_FAILURES = (ApiError, Unreachable, BadStream)


class Term:
    """One try at leading: stands by, leads, and is lost. It is not used again after that."""

    def __init__(self) -> None:
        self.led = anyio.Event()
        self.lost = anyio.Event()
        self.away_since: float | None = None  # on the loop's clock: the API server does not answer since
        self.unconfirmed = False  # it led, and could not renew the Lease in time
        self.confirmed_again = Signal()  # pulsed each time
        self.confirmations = 0  # how often
        self.stale = False  # what is known of Kubernetes may be old: it did not answer
        self.enforced = False  # a database was led without the Lease
        self._until = 0.0  # on the loop's clock: unless it is renewed before
        self._renewed_from = 0.0
        self._renewed = Signal()
        self._wanted = Signal()

    @property
    def leading(self) -> bool:
        return self.led.is_set() and not self.lost.is_set() and anyio.current_time() < self._until

    @property
    def away(self) -> float:
        """For how many seconds no API server has answered, where that keeps this process from leading; else 0.0."""
        if self.leading or self.lost.is_set() or self.away_since is None:
            return 0.0
        return anyio.current_time() - self.away_since

    async def stand_by(self) -> None:
        """Until it leads by the Lease."""
        while not self.leading:
            await self._renewed.wait()

    async def confirm(self) -> None:
        """Returns when the Lease was renewed by a request that began after this was called.

        Raises Transient when the lead is lost meanwhile.
        """
        asked = anyio.current_time()
        while self._renewed_from < asked:
            if not self.leading:
                raise Transient(Reason.PROGRESSING, "this process does not hold the Lease")
            self.want()
            with anyio.CancelScope(deadline=self._until):
                await self._renewed.wait()

    def hold(self, since: float, until: float) -> None:
        """The Lease is ours by a request that began at `since`."""
        self._renewed_from, self._until = since, until
        if anyio.current_time() < until:  # an answer may come late, to a process that was paused
            self.led.set()
        self._renewed.pulse()
        if self.unconfirmed and self.leading:
            self.unconfirmed = False
            self.confirmations += 1
            self.confirmed_again.pulse()

    @property
    def until(self) -> float:
        return self._until

    def want(self) -> None:
        """Asks for a renewal at once."""
        self._wanted.set()

    async def wanted(self) -> None:
        """Until somebody asks for a renewal."""
        await self._wanted.wait()

    def begin(self) -> None:
        """A renewal begins: who asks from now on waits for the next."""
        self._wanted.clear()


class Elector:
    """This process in the election that a Lease is about. `identity` must be no other process's."""

    def __init__(self, client: Client, lease: Key, identity: str, timing: LeaseTiming = LeaseTiming()) -> None:  # noqa: B008 -- frozen
        self.lease = lease
        self.identity = identity
        self.answered = anyio.Event()  # the Lease was read, or found not to be there
        self._client = client
        self._timing = timing
        self._observed: ObservedLease | None = None
        self._changed = Signal()
        self._term = Term()
        self._heard_at = 0.0  # on the loop's clock: the last answer, or event
        self._denied_since: float | None = None  # on the loop's clock: each request was refused since
        self._refused = False  # what was answered last is a refusal

    async def run(self, term: Term) -> None:
        """Returns when the term is lost; until it is cancelled otherwise."""
        self._term = term
        self._heard_at, self._denied_since, self._refused = anyio.current_time(), None, False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            try:
                await self._stand(term)
                if term.led.is_set():
                    log.info("leading", extra={"lease": str(self.lease), "identity": self.identity})
                    await self._hold(term)
                log.warning("no longer leading", extra={"lease": str(self.lease), "identity": self.identity})
            finally:
                term.lost.set()
            tasks.cancel_scope.cancel()

    async def resign(self) -> None:
        """Gives up the Lease if it is ours: call it when nothing is written any more. Another takes it at once."""
        with anyio.move_on_after(RESIGN_SECONDS):
            try:
                while not await self._release():
                    pass
            except _FAILURES as error:
                log.warning("lease not released", extra={"lease": str(self.lease), "error": str(error)})
            return
        log.warning("lease not released", extra={"lease": str(self.lease), "error": "no answer in time"})

    async def _release(self) -> bool:
        """False when something came first: a renewal of our own may have been on its way."""
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

    async def _stand(self, term: Term) -> None:
        """Until the Lease is ours; in a term that enforced also until another is seen to renew it, which ends that."""
        holder = said = first = None
        away, waits_until = False, 0.0
        while True:
            try:
                observed = await self._read()
                self.answered.set()
                if away:  # whoever led and could not renew it comes first
                    away, waits_until = False, anyio.current_time() + RETURN_SECONDS
                if not self._is_mine(observed) and anyio.current_time() < waits_until and _is_free(observed):
                    await self._await_change(waits_until)
                    continue
                if observed is None or self._is_mine(observed) or observed.free_at <= anyio.current_time():
                    await self._take(term, observed)
                    return
                said = None
                if term.enforced and first in (None, observed.record):
                    first = observed.record  # it may have been renewed for the last time while nothing answered
                    await self._await_change(observed.free_at)
                    continue
                self._hear()  # whoever holds it renews it: Kubernetes answers
                if term.enforced:
                    return
                if holder != observed.record.holder:
                    holder = observed.record.holder
                    log.info("standing by", extra={"lease": str(self.lease), "leader": holder})
            except _FAILURES as error:
                first, away = None, away or _is_away(error)
                self._note(error)
                if term.enforced and self._refused:
                    return
                if said != str(error) and not _is_conflict(error):
                    said = str(error)
                    log.warning("lease not read or taken", extra={"lease": str(self.lease), "error": said})
                await anyio.sleep(AGAIN_SECONDS)
            else:
                await self._await_free()

    async def _take(self, term: Term, observed: ObservedLease | None) -> None:
        began = anyio.current_time()
        await self._write(take(observed, self.identity, self._timing, _now()), observed.version if observed else None)
        if term.enforced:  # what is known may be old: it is listed again before anything else is done
            term.unconfirmed = term.stale = True
        term.hold(began, began + self._timing.deadline)

    async def _await_change(self, until: float) -> None:
        self._changed.clear()
        with anyio.CancelScope(deadline=until):
            await self._changed.wait()

    async def _await_free(self) -> None:
        """Until nothing was seen of the holder for as long as its Lease lasts; at once when it is given up."""
        while self._observed is not None and self._observed.free_at > anyio.current_time():
            self._changed.clear()
            with anyio.CancelScope(deadline=self._observed.free_at):
                await self._changed.wait()

    async def _hold(self, term: Term) -> None:
        """Returns when it is another's, or could not be renewed in time because the API server refuses it."""
        while True:
            with anyio.CancelScope(deadline=anyio.current_time() + self._timing.period):
                await term.wanted()
            if not await self._renew(term):
                return

    async def _renew(self, term: Term) -> bool:
        """Tries until it is renewed; False when it is not ours any more."""
        while True:
            term.begin()
            began, observed = anyio.current_time(), self._observed
            if not self._is_mine(observed):
                return False
            self._say_unconfirmed(term)
            try:
                with anyio.fail_after(self._remaining(term)):
                    await self._write(renew(observed.record, self._timing, _now()), observed.version)
            except TimeoutError:
                if not await self._goes_on(term, Unreachable("no answer in time")):
                    return False
            except _FAILURES as error:
                if _is_conflict(error) and observed.version is not None:
                    if not await self._is_ours(term):
                        return False
                elif not await self._goes_on(term, error):
                    return False
            else:
                metrics.note_renewal(renewed=True)
                unconfirmed = term.unconfirmed
                term.hold(began, began + self._timing.deadline)
                if unconfirmed and term.leading:
                    log.info("leadership confirmed again", extra={"lease": str(self.lease)})
                return True

    async def _is_ours(self, term: Term) -> bool:
        """Read anew: what we wrote may have arrived, though we heard of no answer."""
        while True:
            try:
                observed = await self._read()
            except _FAILURES as error:
                if not await self._goes_on(term, error):
                    return False
            else:
                return self._is_mine(observed)

    def _remaining(self, term: Term) -> float:
        """For one request, in seconds. One that hangs is given up when the lead becomes unconfirmed."""
        return max(term.until - anyio.current_time(), 0.0) if term.leading else REQUEST_SECONDS

    def _say_unconfirmed(self, term: Term) -> None:
        if not term.leading and not term.unconfirmed:
            term.unconfirmed = True
            term.stale = True
            log.warning("leadership not confirmed: the Lease was not renewed in time", extra={"lease": str(self.lease)})

    async def _goes_on(self, term: Term, error: Exception) -> bool:
        """After a failure: whether the lead lasts, by the Lease or unconfirmed."""
        self._note(error)
        metrics.note_renewal(renewed=False)
        log.warning("lease not renewed, trying again", extra={"lease": str(self.lease), "error": str(error)})
        rest = AGAIN_SECONDS
        if term.leading:
            rest = min(rest, max(term.until - anyio.current_time(), 0.0))
        await anyio.sleep(rest)
        return term.leading or self._denied_since is None or anyio.current_time() < self._denied_since + DENIED_SECONDS

    def _note(self, error: Exception) -> None:
        """What a failure says of the API server: that it is away, or that it refuses."""
        if _is_away(error):
            self._denied_since = None
            if self._term.away_since is None and not self._refused:
                self._term.away_since = self._heard_at
        elif not _is_conflict(error) or self._observed is None or self._observed.version is None:
            self._heard_at = anyio.current_time()
            self._term.away_since, self._refused = None, True
            if self._denied_since is None:
                self._denied_since = self._heard_at

    def _hear(self) -> None:
        """The Lease was written, or somebody else renews it."""
        self._heard_at = anyio.current_time()
        self._term.away_since = self._denied_since = None
        self._refused = False

    def _is_mine(self, observed: ObservedLease | None) -> TypeGuard[ObservedLease]:
        return observed is not None and observed.record.holder == self.identity

    async def _follow(self) -> None:
        await reflect(
            self._client, LEASES, Store(), self._see_change, namespace=self.lease.namespace, name=self.lease.name
        )

    def _see_change(self, change: Change) -> None:
        self._heard_at = anyio.current_time()
        version = None if self._observed is None else self._observed.version
        if change.new is None:
            if change.old is None or version is None or not is_older(change.old.resource_version, than=version):
                self._miss()
        elif version is None or not is_older(change.new.resource_version, than=version):
            self._see(change.new.object())
        if not self._is_mine(self._observed) or self._observed.version is None:
            self._term.want()  # whoever leads has to know at once

    def _miss(self) -> ObservedLease | None:
        self._observed = observe_missing(self._observed)
        self._changed.set()
        return self._observed

    def _see(self, lease: Mapping[str, Any]) -> ObservedLease:
        version = str(lease["metadata"]["resourceVersion"])
        self._observed = observe(self._observed, self._record(lease), version, anyio.current_time())
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
            return self._miss()
        return self._see(parse(answer))

    async def _write(self, record: LeaseRecord, version: str | None) -> None:
        """Creates it, or replaces that version. Raises ApiError (409: another came first), Unreachable, BadStream."""
        namespace, name = self.lease.namespace, self.lease.name
        metadata = {"namespace": namespace, "name": name}
        if version is not None:
            metadata["resourceVersion"] = version
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
        self._hear()


def _is_conflict(error: Exception) -> bool:
    """Whether it is not as it was read any more, or not there."""
    return isinstance(error, ApiError) and error.status in (404, 409)


def _is_free(observed: ObservedLease | None) -> bool:
    return observed is None or observed.free_at <= anyio.current_time()


def _is_away(error: Exception) -> bool:
    """Whether no API server answered, or one that is overloaded."""
    return not isinstance(error, ApiError) or error.status in (408, 429) or error.status >= 500


def _now() -> str:
    return micro_time(datetime.now(UTC))
