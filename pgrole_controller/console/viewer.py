"""One viewer: the watches with their credentials, and what these delivered.

The watches run while the viewer looks: they begin with the first request and stop some minutes after the last one, when
everything that was read is forgotten. What the viewer may see is asked again regularly, and a watch is renewed every
minute. Rights are asked for every RIGHTS_SECONDS, MOST_RIGHTS of them at a time: what the viewer may no longer list
is forgotten at once.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import UTC, datetime

import anyio

from pgrole_controller.console.live import CONNECTION, PROGRESS, Live
from pgrole_controller.console.scope import Right, ViewScope, ask_name, find_scope, may_still_list
from pgrole_controller.console.snapshot import FetchedObject, Snapshot
from pgrole_controller.console.viewed_objects import SharedObjects, ViewedObjects, ViewedStore, ViewerRoom
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import AnswerTooLong, ApiError, KubeError, NotConfigured
from pgrole_controller.kube.reflector import WatchTiming, reflect
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.kube.store import StoreChange
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.kube.transport import Reachability

log = logging.getLogger(__name__)

IDLE_SECONDS = 600.0
#: Interval of checks of the token, and while the API server does not answer, in seconds.
CHECK_SECONDS = 10.0
AWAY_SECONDS = 1.0
#: Interval of checks of the viewer's rights, in seconds, and maximum number of rights in one check.
RIGHTS_SECONDS = 5.0
MOST_RIGHTS = 10
#: Interval at which the scope is read again, and pause after a refusal, in seconds.
SCOPE_SECONDS = 300.0
REFUSED_SECONDS = 2.0
#: How long a page waits for the beginning of the first list, and for its end, in seconds.
FIRST_SECONDS = 8.0
REST_SECONDS = 0.05

#: Bytes of one answer: a page of a list, which is halved if it is longer, or one object. etcd stores 1.5 MiB of each.
LONGEST_ANSWER = 8 * 2**20
FETCH_SECONDS = 10.0

TIMING = WatchTiming(
    page=250,
    watch_least=45.0,
    watch_most=60.0,
    backoff_first=0.2,
    backoff_most=5.0,
    list_timeout=30.0,
    denied=0.0,  # who may no longer see objects sees them no longer
    line_limit=LONGEST_ANSWER,
    page_limit=LONGEST_ANSWER,
)

#: Maximum number of pages of one viewer that are being loaded: each holds a connection.
MOST_PAGES = 24

Connect = Callable[[Reachability], AbstractAsyncContextManager[Client]]


class TooManyPages(Exception):
    pass


class ViewedConnection(Reachability):
    """Whether the API server answers this viewer and accepts their credentials, as of the last request."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self.connected = self.accepted = True
        self.read_at = datetime.now(UTC)
        self._changed = changed
        self._returned = Signal()

    def note_answer(self, status: int) -> None:
        super().note_answer(status)
        if status >= 500:
            return
        accepted = status != 401
        if accepted:
            self.read_at = datetime.now(UTC)
        if not self.connected or accepted != self.accepted:
            self.connected, self.accepted = True, accepted
            self._returned.pulse()
            self._changed()

    def note_refusal(self) -> None:
        """Records that there are no credentials to send."""
        if self.accepted:
            self.accepted = False
            self._changed()

    def note_failure(self) -> None:
        super().note_failure()
        if self.connected:
            self.connected = False
            self._changed()

    async def wait_until_back(self) -> None:
        await self._returned.wait()


class Viewer:
    """`run` follows the API server while the viewer looks; `snapshot` is what it knows."""

    def __init__(self, name: str, connect: Connect, wanted: tuple[str, ...], shared: SharedObjects) -> None:
        """`wanted`: namespaces to try if the viewer may not list PgRoles in all."""
        self.name = name
        self.live = Live()
        self.turn = anyio.Lock()  # held by whoever renders a page for this viewer
        self._connect = connect
        self._wanted = wanted
        self._shared = shared
        self._room = ViewerRoom()
        self._client: Client | None = None  # while the watches run
        self._connection = ViewedConnection(lambda: self.live.note(CONNECTION))
        self._scope: ViewScope | None = None
        self._stores: dict[Right, ViewedStore] = {}
        self._lost: ViewScope | None = None  # of which a review denied a part, until lists tell as well
        self._reviewed = True
        self._refused = False  # whether the API server refused a list or a watch
        self._loading = 0
        self._known = Signal()
        self._rescope = Signal()
        self._used = Signal()
        self.used_at = anyio.current_time()

    @property
    def watching(self) -> bool:
        """Whether the watches run."""
        return self._used.is_set()

    def use(self) -> None:
        """Notes a request: the watches start, or continue."""
        self.used_at = anyio.current_time()
        self._used.set()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Counts a page that is being loaded. Raises TooManyPages."""
        if self._loading >= MOST_PAGES:
            raise TooManyPages
        self._loading += 1
        try:
            yield
        finally:
            self._loading -= 1

    async def wait_until_known(self) -> None:
        """Returns once everything was listed or refused. Does not wait for the end of a long list."""
        with anyio.move_on_after(FIRST_SECONDS):
            await self._known.wait()
            for store in self._stores.values():
                await store.begun.wait()
        with anyio.move_on_after(REST_SECONDS):
            for store in self._stores.values():
                await store.answered.wait()

    def snapshot(self) -> Snapshot:
        roles: dict[Key, Stored] = {}
        servers: dict[str, Stored] = {}
        for (resource, _), store in self._stores.items():
            if resource is PGROLES:
                roles.update(store.seen())
            else:
                servers.update((key.name, one) for key, one in store.seen().items())
        scope = self._scope
        return Snapshot(
            roles=ViewedObjects(roles),
            servers=ViewedObjects(servers),
            servers_hidden=scope is not None and not scope.servers,
            namespaces=None if scope is None else scope.namespaces,
            connected=self._connection.connected,
            accepted=self._connection.accepted,
            read_at=self._connection.read_at,
            viewer=self.name,
            reading=scope is None
            or not self._connection.accepted
            or any(store.reading for store in self._stores.values()),
            cut=scope is not None and scope.cut,
            version=self.live.version,
        )

    async def fetch(self, path: str) -> FetchedObject:
        """Reads one object whole, with the viewer's own token. `path`: of the API."""
        if self._client is None:
            return FetchedObject(None, "The console is connecting to the API server. Load the page again.")
        try:
            return FetchedObject(await self._client.request("GET", path, timeout=FETCH_SECONDS, most=LONGEST_ANSWER))
        except ApiError as error:
            if error.status == 403:
                return FetchedObject(None, "You may not get this object. Ask for permission to get it.")
            if error.status == 404:
                return FetchedObject(None, "The object does not exist. It may have been deleted.")
            return FetchedObject(None, f"The API server answers with an error: {error.status} {error.reason}.")
        except AnswerTooLong:
            return FetchedObject(None, f"The object is longer than {LONGEST_ANSWER // 2**20} MiB.")
        except KubeError:
            return FetchedObject(None, "The API server does not answer. The page is loaded again when it does.")

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._used.wait()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow)
                    await self._wait_until_idle()
                    self._used.clear()  # before the watches end: a request meanwhile starts them again
                    tasks.cancel_scope.cancel()
            finally:
                self._client = None
                self._forget()
            log.info("watches stopped: viewer is idle", extra={"viewer": self.name})

    async def _wait_until_idle(self) -> None:
        while (rest := self.used_at + IDLE_SECONDS - anyio.current_time()) > 0:
            await anyio.sleep(rest)
            if len(self.live):
                self.used_at = anyio.current_time()

    async def _follow(self) -> None:
        while True:
            try:
                await self._connect_and_follow()
            except NotConfigured as error:  # raised by the connecting alone, which may run a program
                log.warning("credentials not read", extra={"viewer": self.name, "error": str(error)})
                self._connection.note_refusal()
                self._known.set()
                await anyio.sleep(CHECK_SECONDS)

    async def _connect_and_follow(self) -> None:
        async with self._connect(self._connection) as client, anyio.create_task_group() as tasks:
            self._client = client
            tasks.start_soon(self._check, client)
            while True:
                self._rescope.clear()
                scope = await self._ask_scope(client)
                if scope != self._scope:
                    self._forget()
                if scope == self._lost:  # reviews deny what lists grant: an authorizer that cannot tell
                    self._reviewed = False
                self._lost = None
                await self._watch(client, scope)

    async def _check(self, client: Client) -> None:
        """Notices a token that expired and a server that is away although no watch does."""
        while True:
            await anyio.sleep(CHECK_SECONDS if self._connection.connected else AWAY_SECONDS)
            try:
                await ask_name(client)
            except ApiError as error:
                if error.status != 401:
                    log.warning("viewer not checked", extra={"viewer": self.name, "error": str(error)})
            except KubeError as error:
                log.debug("API server does not answer", extra={"viewer": self.name, "error": str(error)})

    async def _ask_scope(self, client: Client) -> ViewScope:
        while True:
            try:
                return await find_scope(client, self._wanted, refused=self._refused)
            except KubeError as error:
                log.warning("permissions of the viewer not read", extra={"viewer": self.name, "error": str(error)})
                pause = AWAY_SECONDS
                if not self._connection.accepted:
                    pause = CHECK_SECONDS  # each attempt reads the credentials again, which may run a program
                    self._forget()
                    self._known.set()
                elif isinstance(error, ApiError):
                    self._connection.note_failure()
                    self._known.set()
                with anyio.move_on_after(pause):
                    await self._connection.wait_until_back()

    async def _watch(self, client: Client, scope: ViewScope) -> None:
        """Watches until a right was lost or gained."""
        async with anyio.create_task_group() as watches:
            if scope != self._scope:
                self._scope = scope
                self._stores = {right: self._store() for right in scope.rights}
            for right, store in self._stores.items():
                watches.start_soon(self._reflect, client, right, store)
            self._known.set()
            if self._reviewed:
                watches.start_soon(self._check_rights, client, scope, watches.cancel_scope)
            await self._wait_for_new_scope(client, scope)
            watches.cancel_scope.cancel()

    async def _check_rights(self, client: Client, scope: ViewScope, watching: anyio.CancelScope) -> None:
        """Notices a right that was lost before a watch does, which the API server ends only after its time."""
        rights = scope.rights
        while rights:
            await anyio.sleep(RIGHTS_SECONDS)
            asked = rights[:MOST_RIGHTS]
            rights = rights[MOST_RIGHTS:] + asked
            for resource, place in asked:
                try:
                    held = await may_still_list(client, resource, place)
                except KubeError as error:
                    log.debug("permissions not checked", extra={"viewer": self.name, "error": str(error)})
                    break
                if not held:
                    log.info("permission revoked", extra={"viewer": self.name, "resource": resource.plural})
                    self._lost = scope
                    self._forget()
                    watching.cancel()
                    return

    async def _wait_for_new_scope(self, client: Client, scope: ViewScope) -> None:
        while True:
            with anyio.move_on_after(SCOPE_SECONDS if scope.namespaces != () else CHECK_SECONDS):
                await self._rescope.wait()
                await anyio.sleep(REFUSED_SECONDS)
                return
            if await self._ask_scope(client) != self._scope:  # None if the credentials were refused meanwhile
                return

    def _store(self) -> ViewedStore:
        return ViewedStore(self._shared, self._room, self._note_refusal, lambda: self.live.note(PROGRESS))

    async def _reflect(self, client: Client, right: Right, store: ViewedStore) -> None:
        resource, namespace = right
        note = self._note_role if resource is PGROLES else self._note_server
        await reflect(client, resource, store, note, namespace=namespace, timing=TIMING)

    def _note_refusal(self) -> None:
        self._refused = True
        self._rescope.set()

    def _note_role(self, change: StoreChange) -> None:
        self.live.note(f"role/{change.key}")

    def _note_server(self, change: StoreChange) -> None:
        self.live.note(f"server/{change.key.name}")

    def _forget(self) -> None:
        for store in self._stores.values():
            store.replace([])
        self._stores, self._scope = {}, None
        self._room = ViewerRoom()  # a watch that is about to end may still fill its store
        self._known.clear()
