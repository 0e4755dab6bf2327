"""Encryption of a connection, and verification of the server's certificate: libpq's sslmode.

https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION
"""

import contextlib
import os
import ssl
import time
from typing import Literal

from pgrole_controller.core.errors import Reason, Refused

SslMode = Literal["disable", "require", "verify-ca", "verify-full"]

_ALPN = "postgresql"

#: Reading the system's CAs takes 50 ms of CPU, so connections within this many seconds share them.
SHARED_SECONDS = 10.0
_shared: dict[tuple[str | None, str | None], tuple[float, ssl.SSLContext]] = {}


def make_context(mode: SslMode, ca: str | None) -> ssl.SSLContext | Literal[False]:
    """asyncpg's argument `ssl`. `ca`: certificates in PEM; None: those of the system (SSL_CERT_FILE, SSL_CERT_DIR).

    As in libpq, `require` with a CA verifies like `verify-ca`, and `verify-ca` without a CA is refused. Raises Refused,
    also if `ca` is not readable.
    """
    if mode == "disable":
        return False
    if mode == "verify-ca" and ca is None:
        raise Refused(
            Reason.SERVER_NOT_READY,
            "sslMode verify-ca requires a private CA, since the system's CAs issue certificates to anyone: set caRef, "
            "or use verify-full",
        )
    if ca is not None:
        context = _trust(ca)
    elif mode == "verify-full":
        return _share()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return _harden(context, mode)


def _harden(context: ssl.SSLContext, mode: SslMode) -> ssl.SSLContext:
    context.sslobject_class = _Brief
    context.check_hostname = mode == "verify-full"
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([_ALPN])
    return context


def _share() -> ssl.SSLContext:
    """A context with the system's CAs, which are read again after SHARED_SECONDS."""
    place, now = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")), time.monotonic()
    made_at, context = _shared.get(place, (0.0, None))
    if context is None or now - made_at >= SHARED_SECONDS:
        context = _harden(ssl.create_default_context(), "verify-full")
        _shared[place] = (now, context)
    return context


class _Brief(ssl.SSLObject):
    """Sends close_notify and does not wait for an answer, like libpq.

    Otherwise asyncio waits 30 s with the socket open when asyncpg closes the connection to a server that hangs.
    """

    def unwrap(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            super().unwrap()


def _trust(ca: str) -> ssl.SSLContext:
    """A context that trusts only these certificates, as libpq does.

    Python 3.13 and later set two more flags by default. VERIFY_X509_STRICT rejects CAs without key usage or key
    identifier, which many operators and scripts create and libpq accepts. VERIFY_X509_PARTIAL_CHAIN accepts an
    intermediate certificate alone, which libpq rejects.
    """
    context = ssl.create_default_context(cadata=read_ca(ca))
    context.verify_flags &= ~(ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)
    return context


def read_ca(ca: str) -> str:
    """The certificates, verified to be readable. Comments in a bundle may be in any language; only PEM is ASCII.

    Raises Refused.
    """
    text = ca.encode("ascii", "replace").decode("ascii")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise Refused(
            Reason.SERVER_NOT_READY, "the CA is not readable: provide certificates in PEM format (BEGIN CERTIFICATE)"
        ) from error
    return text
