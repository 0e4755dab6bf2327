"""`/healthz`: the event loop runs. `/readyz`: synced, and connected or waiting for a known reason. `/metrics`.

They are served from a thread with its own loop: a controller whose event loop is blocked or slow reports that instead
of not answering, and a scrape delays a repair only while figures are read in the event loop.

Liveness does not depend on databases: restarting the controller because a server is down helps no one.

Anyone who reaches the port may connect: clients that hold many connections lose the oldest, and none of the
controller's own. Frequent requests share answers, and take at most a tenth of the time.
"""

import asyncio
import errno
import json
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, NoReturn, TypeVar

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal

from pgrole_controller import metrics
from pgrole_controller.controller.containment import CannotStart, Misconfigured
from pgrole_controller.controller.health_port import HealthPage, HealthPort, NoAnswer
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.servers import ServerWorkers
from pgrole_controller.controller.sources import NO_SERVER
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.server_options import Mode
from pgrole_controller.ending import describe_os_error
from pgrole_controller.kube.store import Store
from pgrole_controller.listening import listen
from pgrole_controller.metrics import UNDECLARED, Scrape, ServerFigures

log = logging.getLogger(__name__)

#: Time between two heartbeats, in seconds.
BEAT_SECONDS = 0.5

#: A loop that has not run for this long, in seconds, counts as dead; it should never block for even a tenth of that.
STILL_SECONDS = 10.0


class Heartbeat:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    async def beat(self) -> NoReturn:
        while True:
            due = anyio.current_time() + BEAT_SECONDS
            await anyio.sleep_until(due)
            metrics.LOOP_LAG_SECONDS.observe(max(anyio.current_time() - due, 0.0))
            self._last = self._clock()

    @property
    def age(self) -> float:
        """Seconds since the last heartbeat. May be called in any thread."""
        return self._clock() - self._last

    @property
    def alive(self) -> bool:
        return self.age < STILL_SECONDS


#: How long the controller's loop may take to answer, in seconds. The shortest timeout of a probe is one second.
ANSWER_SECONDS = 0.8

#: After an answer that several requests shared, the pause before the next one, as a multiple of the time it took, and
#: at most this many seconds.
REST_TIMES = 9.0
READINESS_REST = 0.1
METRICS_REST = 1.0

#: Minimum time between two log lines with the same message about the port, in seconds.
SAID_AGAIN_SECONDS = 60.0

_PORT_REFUSED = (errno.EADDRINUSE, errno.EACCES)

_JSON = "application/json; charset=utf-8"

Answer = TypeVar("Answer")


class Shared(Generic[Answer]):
    """One answer for all requests that arrive while the previous one is computed; none is older than its request.

    A failure is logged once, and NoAnswer is raised for all requests that share it.
    """

    def __init__(self, find: Callable[[], Awaitable[Answer]], rest: float) -> None:
        self._find = find
        self._rest = rest
        self._lock = asyncio.Lock()
        self._answers: list[Answer] = []  # the last answer; empty after a failure
        self._began = self._due = 0.0

    async def get(self) -> Answer:
        asked = time.monotonic()
        async with self._lock:
            if self._began <= asked:
                await self._renew()
            if not self._answers:
                raise NoAnswer
            return self._answers[0]

    async def _renew(self) -> None:
        await asyncio.sleep(max(0.0, self._due - time.monotonic()))
        self._began, worked = time.monotonic(), time.thread_time()
        try:
            self._answers = [await self._find()]
            rest = min(REST_TIMES * (time.thread_time() - worked), self._rest)
        except Exception:
            log.exception("health response failed")
            self._answers, rest = [], self._rest
        self._due = time.monotonic() + rest


class _SparseLog:
    """Log messages of the health port's loop, each at a limited rate.

    Without a free descriptor for a connection, asyncio of Python before 3.13 logs a hundred times a second.
    """

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, now = str(context.get("message")).partition("\n")[0], time.monotonic()
        if now - self._said.get(message, -math.inf) < SAID_AGAIN_SECONDS:
            return
        self._said[message] = now
        error = context.get("exception")
        if isinstance(error, OSError):
            log.warning("health server failed; trying again", extra={"problem": message, "error": str(error)})
        else:
            loop.default_exception_handler(context)


class Health:
    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        self.stopping = False
        self._heartbeat = heartbeat or Heartbeat()
        self._watched: tuple[Store, ServerWorkers, Leadership] | None = None
        self._scrape: Callable[[], Scrape] = Scrape
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = Shared(self._ask_readiness, READINESS_REST)
        self._figures = Shared(self._render, METRICS_REST)

    def watch(self, store: Store, servers: ServerWorkers, leadership: Leadership, scrape: Callable[[], Scrape]) -> None:
        """Takes readiness from these from now on; before this call, the process is not ready."""
        self._watched, self._scrape = (store, servers, leadership), scrape

    async def serve(self, host: str, port: int) -> None:
        """Serves until cancelled. `host` is one address, or EVERY_ADDRESS. Raises as `_bind`."""
        self._loop = asyncio.get_running_loop()
        with start_blocking_portal() as portal:
            ended, _ = portal.start_task(self._serve, _bind(host, port))
            try:
                log.info("health endpoints listening", extra={"host": host, "port": port})
                await self._heartbeat.beat()
            finally:
                ended.cancel()

    async def _serve(self, listener: socket.socket, *, task_status: TaskStatus[None]) -> None:
        asyncio.get_running_loop().set_exception_handler(_SparseLog())
        pages = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        await HealthPort(pages).serve(listener, task_status=task_status)

    async def _healthz(self) -> HealthPage:
        if self._heartbeat.alive:
            return HealthPage(b"ok\n")
        return HealthPage(f"the event loop has been blocked for {self._heartbeat.age:.1f} s\n".encode(), 503)

    async def _readyz(self) -> HealthPage:
        ready, body = await self._ready.get() or (False, {"ready": False, "error": "the event loop does not answer"})
        return HealthPage(json.dumps(body).encode() + b"\n", 200 if ready else 503, _JSON)

    async def _metrics(self) -> HealthPage:
        return HealthPage(await self._figures.get(), content_type=metrics.CONTENT_TYPE)

    async def _render(self) -> bytes:
        """Renders the metrics. While the loop does not answer, leaves out what only it knows, but not the heartbeat's
        age.
        """
        scrape = await self._ask(self._scrape)
        return metrics.render(scrape, self._heartbeat.age)

    async def _ask_readiness(self) -> tuple[bool, dict[str, object]] | None:
        return await self._ask(self._readiness)

    async def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Asks the controller's loop, whose state no other thread may read. Returns None if it does not answer."""
        if self._loop is None:
            return None
        future = asyncio.run_coroutine_threadsafe(_answer(question), self._loop)
        with anyio.move_on_after(ANSWER_SECONDS):
            return await asyncio.wrap_future(future)
        return None

    def _readiness(self) -> tuple[bool, dict[str, object]]:
        if self._watched is None:
            return False, {"ready": False, "synced": False, "leading": False, "servers": {}}
        store, workers, leadership = self._watched
        known = workers.all_started.is_set() and all(_has_session(one) or one.keeper.trouble for one in workers)
        ready = store.listed and known and not self.stopping
        servers = {one.server.name: _describe(one) for one in workers}
        return ready, {"ready": ready, "synced": store.listed, "leading": leadership.leading, "servers": servers}


def _bind(host: str, port: int) -> socket.socket:
    """Binds the port. Raises CannotStart if it is taken, Misconfigured if the address is not this machine's."""
    try:
        return listen(host, port)
    except OSError as error:
        if error.errno in _PORT_REFUSED:
            raise CannotStart(
                f"--health-port {port}: {describe_os_error(error)}; choose another port, or 0 to disable it"
            ) from error
        raise Misconfigured(
            f"--health-host {host}: {describe_os_error(error)}; use an address of this machine"
        ) from error


async def _answer(question: Callable[[], Answer]) -> Answer:
    return question()


def _has_session(worker: ServerWorker) -> bool:
    return worker.keeper.state.has_session


def _describe(worker: ServerWorker) -> str:
    """Never the message, which can name roles, Secrets and namespaces: anyone who reaches the port may ask."""
    if _has_session(worker):
        return "connected"
    trouble = worker.keeper.trouble
    return trouble.reason.value if trouble else "connecting"


class Scraper:
    def __init__(self, workers: Iterable[ServerWorker], objects: Objects, queue: Queue, leadership: Leadership) -> None:
        self._workers = workers
        self._objects = objects
        self._queue = queue
        self._leadership = leadership

    def scrape(self) -> Scrape:
        """Reads the gauges. Takes microseconds per server, whatever the number of objects."""
        declared = [self._figures(worker) for worker in self._workers]
        depth, oldest = self._queue.backlog(NO_SERVER)
        rest = ServerFigures(
            UNDECLARED,
            depth=depth,
            oldest=oldest,
            objects=len(self._objects.store) - sum(one.objects for one in declared),
        )
        return Scrape(
            servers=(*declared, rest),
            contested=self._objects.count_contested(),
            leading=self._leadership.leading,
        )

    def _figures(self, worker: ServerWorker) -> ServerFigures:
        name, session = worker.server.name, worker.keeper.session
        depth, oldest = self._queue.backlog(name)
        objects, ready = self._objects.count(name)
        mode = session.detection.mode if session else None
        heard = mode in (Mode.WATCH, Mode.POLL)
        interval = worker.server.interval if mode is Mode.POLL else 0.0
        databases = worker.databases.states()
        return ServerFigures(
            name,
            connected=_has_session(worker),
            mode=mode.value if mode else "",
            fallback=bool(session and session.why),
            depth=depth,
            oldest=oldest,
            objects=objects,
            ready=ready,
            unheard=worker.own_changes.overdue(anyio.current_time(), interval) if heard else 0,
            databases=len(databases),
            databases_connected=sum(one.mode is not None for one in databases),
            largest_acl=max((one.largest_acl for one in databases), default=0),
        )
