"""Namespaces: the uid of an object's namespace, the labels that a server's policy may select, and the cluster's id.

Expected flow: the watch delivers namespaces. When an object is deleted, its namespace may already be another one of the
same name, before the watch delivers that: objects that were read before continue, since an object cannot change its
namespace; new ones wait for one request, made beside the workers.

Where namespaces may not be listed (`--namespace`), each is read by name, and again once a minute for its labels. The
only one is requested until it is known, so that a standby can take over without the API server.

Guarantees: `get` does no I/O; a namespace is read once at a time, with back-off while the API server does not answer.
"""

import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from pgrole_controller.controller.containment import CannotStart
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import Reason, Waiting
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.errors import ApiError, BadStream, KubeError, Unreachable
from pgrole_controller.kube.resource import NAMESPACES
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.unvalidated import parse

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

log = logging.getLogger(__name__)

#: Timeout of one request, period of reads of labels that are not watched, and pause between attempts, in seconds.
ASK_SECONDS = 10.0
REFRESH_SECONDS = 60.0
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
_BACKOFF = Backoff(FIRST_DELAY, LONGEST_DELAY)

_OF_CLUSTER = "kube-system"

#: Maximum number of concurrent reads, and of namespaces that are retried at once.
ASKING = 4

#: An object reports that it waits for its namespace only after this long, in seconds: mostly the answer takes
#: milliseconds.
QUIET_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Namespace:
    name: str
    uid: str
    labels: Mapping[str, str]


class NamespaceUnknown(Waiting):
    """The namespace is not known yet. `quiet`: it was requested a moment ago, so the object does not report it yet."""

    quiet = False


@dataclass(slots=True)
class _Question:
    """A namespace to read. `waiting`: the objects that need it. `failure`: of the last attempt."""

    since: float
    waiting: set[Key] = field(default_factory=set)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class _NamespaceAnswer:
    """A namespace that was read by name. Valid while the watch has delivered none, or still the one of `instead_of`."""

    namespace: Namespace
    instead_of: str = ""


class Namespaces:
    def __init__(self, client: "Client", store: Store, only: str | None = None) -> None:
        """A reflector fills `store`, unless objects are in `only` one namespace, which is then read by name."""
        self.store = store
        self._client = client
        self._only = only
        self._answers: dict[str, _NamespaceAnswer] = {}
        self._doubted: dict[str, str] = {}  # its uid when an object in it was deleted
        self._forgotten: dict[str, int] = {}  # number of times, for those that are being read
        self._seen_in: dict[str, str] = {}  # by uid of an object, the uid of its namespace
        self._questions: dict[str, _Question] = {}
        self._asked = Signal()
        self._reading = anyio.CapacityLimiter(ASKING)
        self._retrying = anyio.CapacityLimiter(ASKING)
        self._failures = 0  # of any namespaces in a row

    def get(self, key: Key, object_uid: str) -> Namespace:
        """Returns the object's namespace. Raises NamespaceUnknown, and then adds the key to `waiting`."""
        found = self._find(key.namespace)
        if found is not None and found.uid in (self._seen_in.get(object_uid), self._certain(found)):
            self._seen_in[object_uid] = found.uid
            return found
        raise self._wait(key.namespace, key)

    def of_rival(self, rival: Key, key: Key) -> Namespace | None:
        """The namespace of another object, for its labels, even if it may be out of date. None if it cannot be read.

        Raises NamespaceUnknown while it is being read: a slow API server gives no younger object the role.
        """
        found = self._find(rival.namespace)
        question = self._questions.get(rival.namespace)
        if found is None and (question is None or not question.failure):
            raise self._wait(rival.namespace, key)
        return found

    def forget(self, name: str, object_uid: str) -> None:
        """Notes that an object was deleted: the next one may be in another namespace of the same name."""
        self._seen_in.pop(object_uid, None)
        if name in self._forgotten:
            self._forgotten[name] += 1
        found = self._find(name)
        if found is not None:
            self._doubted[name] = found.uid
            self._questions.setdefault(name, _Question(anyio.current_time()))
            self._asked.set()

    def waiting(self, name: str) -> set[Key]:
        """Returns the objects that waited for this namespace, which is now known."""
        if self._find(name) is None or name in self._doubted:
            return set()
        question = self._questions.pop(name, None)
        return question.waiting if question else set()

    async def run(
        self,
        known: Callable[[Collection[Key]], None],
        relabelled: Callable[[str], None],
        in_use: Callable[[], Collection[str]],
    ) -> NoReturn:
        """Reads the requested namespaces. Calls `known` with the objects that waited for a namespace, and `relabelled`
        with the name of one that has other labels than it had. `in_use`: names of those that have objects.
        """
        async with anyio.create_task_group() as tasks:
            if self._only is None:
                await self.store.answered.wait()
            else:
                self._questions.setdefault(self._only, _Question(anyio.current_time()))
            tasks.start_soon(self._refresh, relabelled, in_use)
            while True:
                self._asked.clear()
                for name in self._questions.keys() - self._forgotten.keys():
                    self._forgotten[name] = 0
                    tasks.start_soon(self._ask, name, known, in_use)
                await self._asked.wait()
        raise AssertionError("it never ends by itself")

    def _find(self, name: str) -> Namespace | None:
        stored, answer = self.store.get(Key("", name)), self._answers.get(name)
        if stored is None:
            return answer.namespace if answer else None
        if answer is not None:
            if answer.instead_of == stored.uid:
                return answer.namespace
            del self._answers[name]
        if self._doubted.get(name, stored.uid) != stored.uid:
            del self._doubted[name]  # the watch names another one by now
        return _read(stored.object())

    def _certain(self, found: Namespace) -> str | None:
        """Returns the uid, unless it is in doubt."""
        return None if self._doubted.get(found.name) == found.uid else found.uid

    def _wait(self, name: str, key: Key) -> NamespaceUnknown:
        now = anyio.current_time()
        question = self._questions.get(name)
        if question is None:
            question = self._questions[name] = _Question(now)
            self._asked.set()
        question.waiting.add(key)
        why = f": {question.failure}" if question.failure else ""
        message = f"waiting for the API server's answer about namespace {name}{why}"
        error = NamespaceUnknown(Reason.PROGRESSING, message)
        error.quiet = now - question.since < QUIET_SECONDS
        return error

    async def _ask(
        self, name: str, known: Callable[[Collection[Key]], None], in_use: Callable[[], Collection[str]]
    ) -> None:
        """Asks until the namespace is known, or has no objects and is not the only one. Those that fail take turns."""
        failures = 0
        while name in self._questions:
            if failures == 0:
                answered = await self._read(name, known, in_use)
            else:
                async with self._retrying:
                    await self._pause(failures)
                    answered = await self._read(name, known, in_use)
            failures = 0 if answered else failures + 1
        del self._forgotten[name]
        self._asked.set()

    async def _pause(self, failures: int) -> None:
        """Before a retry, unless others were answered since the last failure."""
        delay = _BACKOFF.delay(failures, random.random()) if self._failures else 0.0  # noqa: S311 -- jitter
        with anyio.move_on_after(delay):
            await self._client.reachability.wait_until_back()

    async def _read(
        self, name: str, known: Callable[[Collection[Key]], None], in_use: Callable[[], Collection[str]]
    ) -> bool:
        """Whether the API server answered."""
        async with self._reading:
            forgotten = self._forgotten[name]
            try:
                found = await _request(self._client, name)
            except KubeError as error:
                log.warning("namespace not read, trying again", extra={"namespace": name, "error": str(error)})
                if name != self._only and name not in in_use():
                    self._questions.pop(name, None)
                elif name in self._questions:
                    self._questions[name].failure = str(error)
                self._failures += 1
                return False
        self._failures = 0
        if forgotten == self._forgotten[name]:  # otherwise it may be the previous namespace
            self._take(found)
            known(self.waiting(name))
        return True

    def _take(self, found: Namespace) -> None:
        self._doubted.pop(found.name, None)
        stored = self.store.get(Key("", found.name))
        if stored is None or stored.uid != found.uid:
            self._answers[found.name] = _NamespaceAnswer(found, stored.uid if stored else "")

    async def _refresh(self, relabelled: Callable[[str], None], in_use: Callable[[], Collection[str]]) -> NoReturn:
        """Reads the labels of namespaces that are not watched periodically."""
        while True:
            await anyio.sleep(REFRESH_SECONDS)
            used = in_use() if self._answers else ()
            for name in list(self._answers):
                if name not in used and name != self._only:
                    self._answers.pop(name, None)
                elif self.store.get(Key("", name)) is None:
                    await self._reread(name, relabelled)

    async def _reread(self, name: str, relabelled: Callable[[str], None]) -> None:
        before = self._answers.get(name)
        try:
            found = await _request(self._client, name)
        except KubeError as error:
            log.warning("labels of a namespace not read", extra={"namespace": name, "error": str(error)})
            return
        # If an object in it was deleted meanwhile, `_ask` reads it.
        if before is None or self._answers.get(name) is not before or name in self._doubted:
            return
        self._answers[name] = _NamespaceAnswer(found, before.instead_of)
        if (found.uid, found.labels) != (before.namespace.uid, before.namespace.labels):
            relabelled(name)


async def _request(client: "Client", name: str) -> Namespace:
    """Raises KubeError."""
    answer = parse(await client.request("GET", NAMESPACES.path(name=name), timeout=ASK_SECONDS))
    try:
        return _read(answer)
    except KeyError as error:
        raise BadStream(f"the API server's answer is not a namespace: {error} is missing") from error


def _read(obj: dict[str, Any]) -> Namespace:
    metadata = obj["metadata"]
    return Namespace(metadata["name"], metadata["uid"], metadata.get("labels") or {})


async def read_cluster_id(client: "Client") -> str:
    """Returns what tells the cluster's claims from those of other clusters: the uid of namespace kube-system.

    Tries again while the API server does not answer. Raises CannotStart if it refuses, and ApiError.
    """
    while True:
        try:
            return (await _request(client, _OF_CLUSTER)).uid
        except ApiError as error:
            if error.status in (401, 403, 404):
                raise CannotStart(
                    f"the cluster's id is not readable (the uid of namespace {_OF_CLUSTER}): {error}. "
                    f"Grant get on it, or set --cluster-id"
                ) from error
            if error.status not in (408, 429) and error.status < 500:
                raise
            log.warning("API server not ready, trying again", extra={"error": str(error)})
        except (Unreachable, BadStream) as error:
            log.warning("API server not reached", extra={"error": str(error)})
        await anyio.sleep(1.0)
