"""Limits on connections: how many exist, how long one may take to send a request, and what answers a malformed one.

aiohttp bounds the size of a request's head but not the time that a client takes to send it: a client that sends one
byte a second would hold a connection forever.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import anyio
from aiohttp import web

from pgrole_controller.console.security import HEADERS

MOST_CONNECTIONS = 400
#: Seconds without a complete request, on a new connection and between two requests.
SILENT_SECONDS = 15.0
SWEEP_SECONDS = 1.0
#: Bytes of one header, which may hold a token, and of a form.
LONGEST_HEADER = 20 * 1024
LONGEST_BODY = 32 * 1024


class ConsoleProtocol(web.RequestHandler):
    """Answers what is not HTTP without quoting it: aiohttp's own answer has its version and part of the request."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Raises ConnectionError if an answer has begun."""
        super().handle_error(request, status, exc, message)
        text = "this is not a request that the console understands\n" if status < 500 else "the console failed\n"
        answer = web.Response(status=status, text=text, headers={**HEADERS, "Server": "pgrole"})
        answer.force_close()
        return answer


class Closing(asyncio.Protocol):
    """Closes a connection as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- for the type checker
        transport.abort()


@dataclass(slots=True)
class _HeldConnection:
    """`silent_since`: None while a request is being answered. `unsent`: bytes that a slow client still takes."""

    silent_since: float | None
    unsent: int = 0


class Connections:
    def __init__(self) -> None:
        self._held: dict[asyncio.BaseProtocol, _HeldConnection] = {}

    def __len__(self) -> int:
        return len(self._held)

    def accept(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Creates the protocol for the listening socket. `make`: makes aiohttp's protocol for a new connection."""
        if len(self._held) >= MOST_CONNECTIONS:
            self._drop_closed()
        if len(self._held) >= MOST_CONNECTIONS and not self._drop_most_silent():
            return Closing()
        protocol = make()
        self._held[protocol] = _HeldConnection(anyio.current_time())
        return protocol

    def begin(self, request: web.Request) -> None:
        """The client sent what is needed to answer."""
        self._note(request, None)

    def end(self, request: web.Request) -> None:
        """The request is answered, or its form is incomplete."""
        self._note(request, anyio.current_time())

    def _note(self, request: web.Request, silent_since: float | None) -> None:
        held = self._held.get(request.protocol)
        if held is not None:
            held.silent_since = silent_since

    async def sweep(self) -> None:
        """Closes connections that are silent for too long, and take nothing either. Runs until cancelled."""
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            self._drop_closed()
            now = anyio.current_time()
            for protocol, held in list(self._held.items()):
                transport = getattr(protocol, "transport", None)
                if held.silent_since is None or transport is None:
                    continue
                unsent = transport.get_write_buffer_size()
                if unsent not in (0, held.unsent):
                    held.silent_since = now
                elif now - held.silent_since > SILENT_SECONDS:
                    transport.abort()
                held.unsent = unsent

    def _drop_most_silent(self) -> bool:
        """Closes the connection that has been silent longest. Returns False if all wait for an answer."""
        silent = {one: held.silent_since for one, held in self._held.items() if held.silent_since is not None}
        if not silent:
            return False
        protocol = min(silent, key=silent.__getitem__)
        asyncio.get_running_loop().call_soon(_abort, protocol)  # one that was accepted just now has no transport yet
        del self._held[protocol]
        return True

    def _drop_closed(self) -> None:
        now = anyio.current_time()
        for protocol, held in list(self._held.items()):
            made = held.silent_since is None or now - held.silent_since > SWEEP_SECONDS
            if made and getattr(protocol, "transport", None) is None:
                del self._held[protocol]


def _abort(protocol: asyncio.BaseProtocol) -> None:
    transport = getattr(protocol, "transport", None)
    if transport is not None:
        transport.abort()
