"""Change detection on one server: the best mode that is requested and that the controller's privileges permit."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import anyio

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.server_options import Mode
from pgrole_controller.postgres import watch
from pgrole_controller.postgres.capabilities import Capabilities, Identity, explaining, identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.errors import NAME_ONE_SERVER, is_lacking
from pgrole_controller.postgres.poll import Poller
from pgrole_controller.postgres.watch import ChangeCallbacks

#: Default time between two rounds of Poll, in seconds.
POLL_SECONDS = 1.0


#: What was observed can be observed again, so it need not be durable, nor wait for a standby of this server.
_WATCHING = {"statement_timeout": "0", "synchronous_commit": "off"}


@dataclass(frozen=True, slots=True)
class Detector:
    """A running detection mode: its tasks, and its connections.

    Other queries may use `connection` while they hold `lock`. `why`: why Watch is not possible, if Auto chose another.
    `await_better`: returns once Watch has become possible, where no privilege tells.
    """

    mode: Mode
    connections: tuple[Connection, ...]
    tasks: tuple[Callable[[], Coroutine[Any, Any, NoReturn]], ...] = ()
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    poller: Poller | None = None
    why: str = ""
    await_better: Callable[[], Coroutine[Any, Any, None]] | None = None

    @property
    def connection(self) -> Connection:
        return self.connections[0]


async def open_detector(
    stack: AsyncExitStack,
    endpoint: Endpoint,
    writer: Connection,
    found: Capabilities,
    *,
    detection: Mode,
    interval: float,
    callbacks: ChangeCallbacks,
) -> Detector:
    """Starts the best possible mode. The stack closes its connections. Raises PgRoleError if a requested mode fails."""
    why = found.missing.message if found.missing else ""
    await_better: Callable[[], Coroutine[Any, Any, None]] | None = None
    if detection in (Mode.AUTO, Mode.WATCH) and not found.missing:
        try:
            async with explaining(writer):
                return await stack.enter_async_context(_watching(endpoint, found, callbacks))
        except PgRoleError as error:
            if detection is Mode.WATCH or not (is_lacking(error) or isinstance(error, watch.NotDelivered)):
                raise
            why = error.message
            if isinstance(error, watch.NotDelivered):
                await_better = partial(_await_delivery, endpoint, found, min(error.seconds, 300 * interval))
    if detection is Mode.RESYNC:
        return await stack.enter_async_context(_resyncing(endpoint, found))
    why = why if detection is Mode.AUTO else ""
    polling = await stack.enter_async_context(_polling(endpoint, found, interval, callbacks, why))
    return replace(polling, await_better=await_better)


@asynccontextmanager
async def _watching(endpoint: Endpoint, found: Capabilities, callbacks: ChangeCallbacks) -> AsyncIterator[Detector]:
    async with connect(endpoint, "listen") as listener, connect(endpoint, "watch", **_WATCHING) as watcher:
        await _check_same(found.identity, listener, watcher)
        await watch.listen(listener, watcher, callbacks)
        await watch.observe(watcher, guarded=found.guarded)
        lock = anyio.Lock()
        tasks = (partial(watch.watch, watcher, found.guarded), partial(watch.keep_alive, listener, lock))
        yield Detector(Mode.WATCH, (listener, watcher), tasks, lock)


async def _await_delivery(endpoint: Endpoint, found: Capabilities, seconds: float) -> None:
    """Returns once Watch works, after an attempt every `seconds` on connections of its own."""
    while True:
        await anyio.sleep(seconds)
        with suppress(PgRoleError):
            async with _watching(endpoint, found, ChangeCallbacks()):
                return


@asynccontextmanager
async def _polling(
    endpoint: Endpoint, found: Capabilities, interval: float, callbacks: ChangeCallbacks, why: str
) -> AsyncIterator[Detector]:
    async with connect(endpoint, "poll") as connection:
        await _check_same(found.identity, connection)
        lock = anyio.Lock()
        poller = Poller(connection, lock, found.identity)
        await poller.compare()
        run = partial(poller.run, interval, callbacks)
        yield Detector(Mode.POLL, (connection,), (run,), lock, poller, why)


@asynccontextmanager
async def _resyncing(endpoint: Endpoint, found: Capabilities) -> AsyncIterator[Detector]:
    async with connect(endpoint, "resync") as connection:
        await _check_same(found.identity, connection)
        yield Detector(Mode.RESYNC, (connection,))


async def _check_same(identity: Identity, *others: Connection) -> None:
    for other in others:
        if not identity.is_same_server(await identify(other)):
            raise Transient(
                Reason.SERVER_NOT_READY,
                f"the connections of one address reach different servers: {NAME_ONE_SERVER}",
            )
