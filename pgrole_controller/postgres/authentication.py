"""Permitted authentication methods, enforced before anything derived from the password is sent.

The names are those of libpq's require_auth:
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-REQUIRE-AUTH
"""

import re
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from pgrole_controller.core.scram import MOST_ITERATIONS
from pgrole_controller.dsn import METHODS

#: Methods for a server whose identity is not verified: they reveal neither the password nor an equivalent.
UNVERIFIED: Final = frozenset[str]({"scram-sha-256", "none"})
ANYTHING: Final = frozenset[str](METHODS)


class AuthRequest(IntEnum):
    """What an AuthenticationRequest says or asks for, as PostgreSQL's AUTH_REQ_ constants."""

    OK = 0
    KRB5 = 2
    PASSWORD = 3
    MD5 = 5
    SCM_CREDS = 6
    GSS = 7
    GSS_CONT = 8
    SSPI = 9
    SASL = 10
    SASL_CONT = 11
    SASL_FIN = 12


_UNSUPPORTED: Final[dict[int, str]] = {
    AuthRequest.KRB5: "Kerberos",
    AuthRequest.SCM_CREDS: "SCM credentials",
    AuthRequest.GSS: "GSSAPI (gss)",
    AuthRequest.GSS_CONT: "GSSAPI (gss)",
    AuthRequest.SSPI: "SSPI (sspi)",
}
_SHOWN = {
    "password": "the password in clear text (password)",
    "md5": "an MD5 hash of the password (md5)",
    "scram-sha-256": "SCRAM (scram-sha-256)",
    "none": "no password (none)",
}

_CODE = struct.Struct("!i")
_LONGEST_PART = 1024
_CHALLENGE = re.compile(
    rb"r=[\x21-\x2b\x2d-\x7e]{1,%d},s=[A-Za-z0-9+/=]{1,%d},i=([0-9]{1,12})" % (_LONGEST_PART, _LONGEST_PART)
)


class Unacceptable(ConnectionError):
    """The server sent something that ends the connection before asyncpg reads it."""


class MethodRefused(Unacceptable):
    def __init__(self, asked: str, allowed: Iterable[str]) -> None:
        shown = ", ".join(method for method in METHODS if method in frozenset(allowed))
        super().__init__(
            f"the server asks for {_SHOWN[asked]}, but requireAuth allows only: {shown}. Set scram-sha-256 for the "
            f"controller's role in the server's pg_hba.conf, or verify the server's certificate (sslMode verify-full), "
            f"or add {asked} to requireAuth. The controller sent nothing"
        )


class Login:
    """Checks the server's authentication messages: one method, in the right order, and nothing after the login."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        self._step: int | None = None  # the last code received

    def check(self, body: bytes) -> None:
        """Checks one message. Raises Unacceptable; ValueError for a message that PostgreSQL does not send."""
        (code,) = _CODE.unpack_from(body)
        rest = body[_CODE.size :]
        if code in _UNSUPPORTED:
            raise Unacceptable(f"the server asks for {_UNSUPPORTED[code]}, which the controller does not support")
        match code:
            case AuthRequest.PASSWORD | AuthRequest.MD5 | AuthRequest.SASL if self._step is None:
                self._ask(code, rest)
            case AuthRequest.SASL_CONT if self._step == AuthRequest.SASL:
                _check_challenge(rest)
            case AuthRequest.SASL_FIN if self._step == AuthRequest.SASL_CONT and rest.startswith(b"v="):
                pass
            case AuthRequest.OK if (
                self._step in (None, AuthRequest.PASSWORD, AuthRequest.MD5, AuthRequest.SASL_FIN) and not rest
            ):
                if self._step is None:
                    self._require("none")
            case AuthRequest.OK if self._step in (AuthRequest.SASL, AuthRequest.SASL_CONT):
                raise Unacceptable("the server did not prove that it knows the password's verifier (SCRAM)")
            case _:
                raise ValueError
        self._step = code

    def _ask(self, code: int, rest: bytes) -> None:
        if code == AuthRequest.SASL:
            mechanisms = rest.split(b"\0")
            if mechanisms[-2:] != [b"", b""]:
                raise ValueError
            if b"SCRAM-SHA-256" not in mechanisms:
                raise Unacceptable("the server asks for a SASL mechanism other than SCRAM-SHA-256")
            self._require("scram-sha-256")
        elif len(rest) != (4 if code == AuthRequest.MD5 else 0):
            raise ValueError
        else:
            self._require("md5" if code == AuthRequest.MD5 else "password")

    def _require(self, method: str) -> None:
        if method not in self._allowed:
            raise MethodRefused(method, self._allowed)


def _check_challenge(text: bytes) -> None:
    """Limits the SCRAM iterations, since asyncpg hashes on the event loop: 100,000 take 40 ms."""
    challenge = _CHALLENGE.fullmatch(text)
    if challenge is None:
        raise ValueError
    if not 1 <= int(challenge[1]) <= MOST_ITERATIONS:
        raise Unacceptable(
            f"the server asks for {int(challenge[1])} SCRAM iterations; the limit is {MOST_ITERATIONS}: "
            "set the password of the controller's role again with a lower scram_iterations"
        )
