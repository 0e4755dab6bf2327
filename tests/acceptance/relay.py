"""A proxy in front of the API server that can delay watch events, and act just before a request."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ssl import create_default_context
from typing import NamedTuple, TypeVar

import aiohttp
from aiohttp import web

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.workspace import free_port
from tests.acceptance.world import Json

#: Tells whether to delay an event of this resource about this object.
Holds = Callable[[str, Json], bool]

_PASSED_ON = ("Authorization", "Accept", "Content-Type")
_LINE_BYTES = 1 << 22


class HeldEvent(NamedTuple):
    stream: web.StreamResponse
    resource: str
    line: bytes


class Relay:
    """Created by `relay`. The controller under test uses its `url`."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session
        self._holds: list[Holds] = []
        self._before: dict[tuple[str, str], Callable[[], Awaitable[object]]] = {}
        self._held: list[HeldEvent] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def holding(self, holds: Holds) -> AsyncIterator[None]:
        """Delays the events for which `holds` is true. At the end sends those that no other `holding` delays to clients
        still connected.
        """
        self._holds.append(holds)
        try:
            yield
        finally:
            self._holds.remove(holds)
            held, self._held = self._held, []
            for event in held:
                if self._keeps_back(event.resource, event.line):
                    self._held.append(event)
                    continue
                with suppress(ConnectionResetError):
                    await event.stream.write(event.line)

    def forestall(self, method: str, path: str, act: Callable[[], Awaitable[object]]) -> None:
        """Runs `act` before the next such request is forwarded."""
        self._before[method, path] = act

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if (act := self._before.pop((request.method, request.path), None)) is not None:
            await act()
        async with self._session.request(
            request.method,
            self._server.url + request.path_qs,
            headers={name: request.headers[name] for name in _PASSED_ON if name in request.headers},
            data=await request.read(),
        ) as answer:
            headers = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            if request.query.get("watch") != "true" or answer.status != 200:
                return web.Response(status=answer.status, headers=headers, body=await answer.read())
            stream = web.StreamResponse(headers=headers)
            await stream.prepare(request)
            resource = request.path.rpartition("/")[2]
            async for line in answer.content:
                if self._keeps_back(resource, line):
                    self._held.append(HeldEvent(stream, resource, line))
                else:
                    await stream.write(line)
            return stream

    def _keeps_back(self, resource: str, line: bytes) -> bool:
        if not self._holds:
            return False
        event = json.loads(line)
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            return False
        return any(holds(resource, event["object"]) for holds in self._holds)


AnyRelay = TypeVar("AnyRelay", bound=Relay)


@asynccontextmanager
async def relay(server: ApiServer) -> AsyncIterator[Relay]:
    async with relay_of(Relay, server) as made:
        yield made


@asynccontextmanager
async def relay_of(kind: type[AnyRelay], server: ApiServer) -> AsyncIterator[AnyRelay]:
    trust = aiohttp.TCPConnector(ssl=create_default_context(cafile=str(server.ca)))
    unlimited = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=trust, timeout=unlimited, read_bufsize=_LINE_BYTES) as session:
        made = kind(server, session)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", made.answer)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", made.port).start()
            yield made
        finally:
            await runner.cleanup()
