"""Reads connections through `Framing` before asyncpg does, in slices.

A server that sends without end is read slowly: its share of the event loop and the work of one callback are bounded.
Unread data waits in the network, not in memory.
"""

import asyncio
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from socket import AF_UNIX
from typing import TYPE_CHECKING, Any, Final

import asyncpg.protocol

from pgrole_controller.postgres.authentication import ANYTHING, UNVERIFIED, Login, Unacceptable
from pgrole_controller.postgres.framing import VOLUME, Framing, NotificationFilter, NotPostgres

if TYPE_CHECKING:
    from asyncpg import Connection, Record

#: Messages read in one callback of the event loop.
SLICE: Final = 250
#: Time of the event loop that one connection may use: at once, in seconds, and as a share.
BURST: Final = 0.1
SHARE: Final = 0.1
#: Cost of receiving a byte that is dropped, in seconds.
_DROPPED: Final = 1e-9


@dataclass(slots=True)
class ConnectionLimits:
    """The limits of a new connection, and its progress.

    `methods`: permitted authentication methods. None: all if the server's certificate is verified or the server is on a
    Unix socket, otherwise those that do not reveal the password. `volume`: maximum bytes of the answer to a statement.
    `answered`: the server has sent a message. `transport`: the last transport created.
    """

    methods: frozenset[str] | None = None
    volume: int = VOLUME
    answered: bool = False
    transport: asyncio.Transport | None = None

    def abandon(self) -> None:
        """Closes the transport, which asyncpg leaves open when a connection attempt fails."""
        if self.transport is not None:
            self.transport.abort()


_limits: ContextVar[ConnectionLimits | None] = ContextVar("limits", default=None)


@contextmanager
def limiting(limits: ConnectionLimits) -> Iterator[None]:
    """A connection created in this context has these limits; others use asyncpg's own protocol."""
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)


class CheckedProtocol(asyncpg.protocol.Protocol):
    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 -- asyncpg's
        super().__init__(*arguments)
        self._limits = _limits.get() or ConnectionLimits()
        self._framing = Framing(Login(ANYTHING), self._limits.volume)
        self._to_server: asyncio.Transport | None = None
        self._later: asyncio.TimerHandle | None = None
        self._credit, self._credited = BURST, 0.0
        self.reason: Exception | None = None  # why the controller closed the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._to_server = self._limits.transport = transport
        methods = self._limits.methods
        if methods is None:
            methods = ANYTHING if is_verified(transport) else UNVERIFIED
        self._framing = Framing(Login(methods), self._limits.volume)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:  # type: ignore[override]  # the stubs name it otherwise
        self._framing.feed(data)
        if self._later is None:
            self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(self.reason or exc)

    def listen(self, notes: NotificationFilter) -> None:
        """From now on, delivers the notifications that this filter admits."""
        self._framing.listen(notes)

    def _read(self) -> None:
        self._later = None
        if self.reason is not None or self._to_server is None or not self._framing.has_more:
            self._resume()
            return
        began, dropped = time.thread_time(), self._framing.dropped
        try:
            self._take()
        except Exception as error:  # noqa: BLE001 -- asyncpg's, for what it cannot parse: ends this connection
            self._give_up(error)
            return
        self._schedule(time.thread_time() - began + dropped * _DROPPED)

    def _take(self) -> None:
        framing, notes = self._framing, self._framing.notes
        if notes is not None:
            notes.refill(time.monotonic())
        passed = framing.take(SLICE)
        self._limits.answered |= framing.answered
        if passed:
            super().data_received(passed)
        if notes is not None and (framing.noted or notes.left_out):
            left_out, notes.left_out = notes.left_out, False
            notes.deliver(framing.noted, left_out)

    def _schedule(self, took: float) -> None:
        """Schedules the next slice once this connection has credit again; `took`: seconds of this one."""
        now = time.monotonic()
        self._credit = min(BURST, self._credit + (now - self._credited) * SHARE) - took
        self._credited = now
        if self._to_server is None or (self._credit >= 0 and not self._framing.has_more):
            self._resume()
            return
        self._to_server.pause_reading()
        loop = asyncio.get_running_loop()
        self._later = loop.call_later(max(0.0, -self._credit / SHARE), self._read)

    def _resume(self) -> None:
        if self._to_server is not None and not self._to_server.is_closing():
            self._to_server.resume_reading()

    def _stop(self) -> None:
        self._to_server = None
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _give_up(self, error: Exception) -> None:
        if not isinstance(error, Unacceptable):
            refused = NotPostgres()
            refused.__cause__ = error
            error = refused
        self.reason = error
        if self._to_server is not None:
            self._to_server.abort()


def is_verified(transport: asyncio.BaseTransport) -> bool:
    """Whether the server's identity is certain: its certificate is verified, or it is on a Unix socket."""
    tls = transport.get_extra_info("ssl_object")
    if tls is not None:
        return bool(tls.context.verify_mode == ssl.CERT_REQUIRED)
    socket = transport.get_extra_info("socket")
    return socket is not None and socket.family == AF_UNIX


def protocol_of(connection: "Connection[Record]") -> CheckedProtocol:
    """The protocol of a connection that was created with limits. Raises TypeError for any other."""
    protocol = connection._protocol  # type: ignore[attr-defined]  # noqa: SLF001 -- asyncpg has no public access
    if not isinstance(protocol, CheckedProtocol):
        raise TypeError("the connection was created without limits")
    return protocol


def reason_of(connection: "Connection[Record]") -> Exception | None:
    """Why the controller closed the connection; None if it did not."""
    protocol = connection._protocol  # type: ignore[attr-defined]  # noqa: SLF001 -- asyncpg has no public access
    return protocol.reason if isinstance(protocol, CheckedProtocol) else None


_PLAIN = asyncpg.protocol.Protocol


def _make_protocol(*arguments: Any) -> asyncpg.protocol.Protocol:  # noqa: ANN401 -- asyncpg's
    return (_PLAIN if _limits.get() is None else CheckedProtocol)(*arguments)


def check_messages() -> None:
    """Makes asyncpg use CheckedProtocol for connections with limits. asyncpg has no public option for this."""
    asyncpg.protocol.Protocol = _make_protocol  # type: ignore[misc, assignment]
