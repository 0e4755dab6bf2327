"""Work beside the workers: what the next reconcile of an object needs and a worker must not wait for.

Three kinds: a password task (read or write Secrets, generate and hash a password), the emptying of a role that is to
be dropped (REASSIGN OWNED and DROP OWNED, on connections of its own), and the finalizer of the object, set before its
role is created, or removed because the object may be deleted.

Expected flow: a reconcile asks for one of them in its result, and does not end yet; the work is done; its result is
kept for the next reconcile, which starts as soon as this one ends here. The next reconcile finds a finalizer on the
object itself; an error with it is reported at once.

Guarantees: no password task and no emptying begins for an object that was changed or deleted since; emptying stops when
the object changes, and a password task before its next write; a result is used by one reconcile, and never by one of
another object of the same name. A finalizer is written to the object that was read, or not at all: the API server
compares the uid.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakValueDictionary

import anyio

from pgrole_controller.controller.containment import attempt_write, contain, is_unanswered
from pgrole_controller.controller.fair_queue import FairQueue
from pgrole_controller.controller.objects import declared_version
from pgrole_controller.controller.passwords import PasswordTasks
from pgrole_controller.controller.queue import Endings
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.result import Result
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.names import cut_middle
from pgrole_controller.core.next_attempt import FailedWrite, WriteError
from pgrole_controller.core.password import PasswordResult, PasswordTask
from pgrole_controller.core.plan import ReassignOwned, ReassignResult
from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.kube.server_side_apply import FINALIZER, apply_finalizer
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.reassign import reassign_owned

log = logging.getLogger(__name__)

#: Password tasks that run at once, and how long each may take, in seconds.
PASSWORD_TASKS = 12
PASSWORD_SECONDS = 10.0

#: Maximum number of concurrent writes of finalizers, and timeout of each, in seconds.
FINALIZER_WRITERS = 12
FINALIZER_SECONDS = 10.0

#: Roles of one server that are emptied at once, each on its own connections, and how many of them may be of one
#: namespace, so that a tenant's locks delay that tenant's deletions first.
EMPTYING = 4
EMPTYING_OF_NAMESPACE = 1

_FINALIZER_LOST = (
    f"something, probably an admission webhook, removes finalizer {FINALIZER} as soon as the controller sets it: let "
    "it keep the finalizer, or set spec.deletionPolicy to Retain. Until then the controller does not change the role"
)
_NOT_SET = (
    f"the API server refuses to set finalizer {FINALIZER}: {{message}}. Let the admission webhook accept it, or grant "
    "the controller patch on pgroles, or set spec.deletionPolicy to Retain. Until then the controller does not change "
    "the role"
)
_NOT_REMOVED = (
    f"the API server refuses to remove finalizer {FINALIZER}: {{message}}. Let the admission webhook accept that, or "
    "grant the controller patch on pgroles. Until then the controller does nothing else for this object"
)
_HELD = (
    "the object is being deleted, and the controller no longer manages its role: another controller's finalizer, see "
    "metadata.finalizers, still keeps the object"
)
#: Maximum number of characters of the API server's answer in these.
_LONGEST_ANSWER = 1000


@dataclass(frozen=True, slots=True)
class EmptyingLimits:
    """How many roles of one server are emptied at once, in all and of one namespace."""

    roles: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(EMPTYING))
    of_namespace: WeakValueDictionary[str, anyio.CapacityLimiter] = field(default_factory=WeakValueDictionary)

    def namespace(self, name: str) -> anyio.CapacityLimiter:
        """Returns the namespace's limit, which exists as long as someone uses it or waits for it."""
        limit = self.of_namespace.get(name)
        if limit is None:
            limit = self.of_namespace[name] = anyio.CapacityLimiter(EMPTYING_OF_NAMESPACE)
        return limit


class Background:
    def __init__(
        self, client: Client, store: Store, endings: Endings, password_tasks: PasswordTasks, reporter: Reporter
    ) -> None:
        """`store` holds the PgRoles."""
        self._client = client
        self._store = store
        self._endings = endings
        self._password_tasks = password_tasks
        self._results: dict[str, PasswordResult | ReassignResult] = {}  # by uid of the object, for its next reconcile
        self._interruptible: dict[Key, anyio.CancelScope] = {}
        self._reporter = reporter
        self._passwords = FairQueue[Result]()
        self._finalizers = FairQueue[Result]()

    async def run(self) -> None:
        """Runs password tasks and writes finalizers until `close`, then those that still wait."""
        async with anyio.create_task_group() as tasks:
            for _ in range(PASSWORD_TASKS):
                tasks.start_soon(self._passwords.serve, self._prepare_password)
            for _ in range(FINALIZER_WRITERS):
                tasks.start_soon(self._finalizers.serve, self._write_finalizer)

    def close(self) -> None:
        """Accepts no more of these; `run` returns when the waiting ones are done."""
        self._passwords.close()
        self._finalizers.close()

    def prepare_password(self, result: Result) -> None:
        """Takes over the reconcile, and ends it when the password task is done. The log's reconcile id is kept."""
        self._passwords.put(result.key.namespace, result)

    def write_finalizer(self, result: Result) -> None:
        """Takes over the reconcile, and ends it when the finalizer is set or removed. The log's reconcile id is
        kept.
        """
        self._finalizers.put(result.key.namespace, result)

    async def empty_role(
        self,
        limits: EmptyingLimits,
        endpoint: Endpoint,
        result: Result,
        fence: Fence | None,
        server: Identity | None,
    ) -> None:
        """Empties the role of the result and ends its reconcile, also when cancelled with the session. `server`: that
        of the session.
        """
        stored, task = result.target.stored, result.reassign
        try:
            if stored is None or task is None:
                return
            with self._interrupted(stored):
                async with limits.namespace(result.key.namespace), limits.roles:
                    self.keep(stored, await _reassign(result.key, endpoint, task, fence, server))
        finally:
            self._endings.end(result)

    def take(self, key: Key) -> PasswordResult | ReassignResult | None:
        """Returns what was prepared for the reconcile of this object that begins now."""
        stored = self._store.get(key)
        return None if stored is None else self._results.pop(stored.uid, None)

    def keep(self, stored: Stored, result: PasswordResult | ReassignResult) -> None:
        """Keeps what was prepared for the next reconcile of this object, if it still exists."""
        current = self._store.get(stored.key)
        if current is not None and current.uid == stored.uid:
            self._results[stored.uid] = result

    def forget(self, uid: str) -> None:
        """Forgets a deleted object."""
        self._results.pop(uid, None)

    def interrupt(self, key: Key) -> None:
        """Stops emptying the role of an object that was changed or deleted."""
        if key in self._interruptible:
            self._interruptible[key].cancel()

    async def _prepare_password(self, result: Result) -> bool:
        """Returns whether the API server answered."""
        stored, task = result.target.stored, result.password_task
        failed: FailedWrite | None = None
        if stored is not None and task is not None:
            try:
                work = partial(self._run_password_task, stored, task)
                failed = await attempt_write(self._client, result.key, PASSWORD_SECONDS, work)
            except Exception as error:  # noqa: BLE001 -- one object's error
                self.keep(stored, PasswordResult(password_task=task, problem=contain(error, result.key)))
        self._endings.end(result, failed)
        return not is_unanswered(failed)

    async def _run_password_task(self, stored: Stored, task: PasswordTask) -> None:
        if not self._is_current(stored):  # the task may have waited
            return
        password = await self._password_tasks.run(task, stored, partial(self._is_current, stored))
        if password is None:
            return
        problem = password.problem.reason.value if password.problem else ""
        log.debug("password task run", extra={"object": str(stored.key), "problem": problem})
        self.keep(stored, password)

    async def _write_finalizer(self, result: Result) -> bool:
        """Returns whether the API server answered."""
        failed: FailedWrite | None
        try:
            failed = await attempt_write(
                self._client, result.key, FINALIZER_SECONDS, partial(self._set_finalizer, result)
            )
        except Refused as error:
            self._reporter.report_error(error, result)
            failed = FailedWrite(WriteError.REFUSED)
        except Exception as error:  # noqa: BLE001 -- one object's error
            self._reporter.report_error(contain(error, result.key), result)
            self._endings.fail(result.key)
            return True
        if failed is not None and failed.message:
            words = _NOT_SET if result.target.finalizer else _NOT_REMOVED
            message = words.format(message=cut_middle(failed.message, _LONGEST_ANSWER))
            self._reporter.report_error(Refused(Reason.CONFLICT, message), result)
        self._endings.end(result, failed)
        return not is_unanswered(failed)

    async def _set_finalizer(self, result: Result) -> None:
        """Raises KubeError, and Refused if the object does not keep the finalizer."""
        stored, present = result.target.stored, result.target.finalizer
        if stored is None:
            return
        written: Stored | None = stored
        if present is None:  # the object may be deleted now
            self._reporter.forget(stored.key)
        if present is not None or _has_finalizer(stored):
            written = await apply_finalizer(self._client, PGROLES, stored, bool(present))
            self._store.put_answer(stored, written)
        if written is None:
            return
        if present and not _has_finalizer(written):
            raise Refused(Reason.CONFLICT, _FINALIZER_LOST)
        if present is None and _is_held(written):
            self._reporter.report_error(Waiting(Reason.PROGRESSING, _HELD), result)

    def _is_current(self, stored: Stored) -> bool:
        """Whether the object exists and still declares what it declared when the task began."""
        current = self._store.get(stored.key)
        return current is not None and declared_version(current) == declared_version(stored)

    @contextmanager
    def _interrupted(self, stored: Stored) -> Iterator[None]:
        """Cancels its body when the object is changed or deleted, even if that happened before."""
        with anyio.CancelScope() as scope:
            self._interruptible[stored.key] = scope
            if not self._is_current(stored):
                scope.cancel()
            try:
                yield
            finally:
                del self._interruptible[stored.key]


def _has_finalizer(stored: Stored) -> bool:
    return FINALIZER in (stored.object()["metadata"].get("finalizers") or ())


def _is_held(stored: Stored) -> bool:
    """Whether a finalizer of someone else keeps an object that is being deleted: the store drops their names."""
    metadata = stored.object()["metadata"]
    return "deletionTimestamp" in metadata and "finalizers" in metadata and not _has_finalizer(stored)


async def _reassign(
    key: Key, endpoint: Endpoint, task: ReassignOwned, fence: Fence | None, server: Identity | None
) -> ReassignResult:
    try:
        await reassign_owned(endpoint, task, fence=fence, server=server)
    except PgRoleError as error:
        return ReassignResult(task, error)
    except Exception as error:  # noqa: BLE001 -- one object's error
        return ReassignResult(task, contain(error, key))
    return ReassignResult(task)
