"""Parses PGROLE_DSN as libpq does: address, TLS, and authentication methods."""

from typing import Final
from urllib.parse import SplitResult, parse_qs, parse_qsl, unquote, unquote_plus, urlsplit

from pgrole_controller.core.connection_secret import Address

LAST_PORT = 65535
#: Of authentication, by their names in libpq; those of spec.connection.requireAuth too.
METHODS: Final = ("password", "md5", "scram-sha-256", "none")
#: Methods that only libpq supports; a DSN may still exclude them.
_OTHER_METHODS = ("gss", "sspi", "oauth")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def read_dsn(value: str) -> str:
    """Validates and returns the DSN. Raises ValueError with the expected form, without any part of the value."""
    try:
        fits = urlsplit(value).scheme in ("postgres", "postgresql") and 0 < address_of(value).port <= LAST_PORT
    except ValueError:  # its message may contain a part of the password
        fits = False
    if not fits:
        raise ValueError(
            "must be postgresql://user:password@host:port/database, with %2F for a / in the password, and so on"
        )
    if address_of(value).sslmode not in _SSL_MODES:
        raise ValueError(f"its sslmode must be one of {', '.join(_SSL_MODES)}")
    split_methods(value)
    return value


def address_of(dsn: str) -> Address:
    """Returns where applications find the DSN's server, for connection Secrets, with libpq's defaults."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    host = next(iter(_hosts_of(parts)), "") or "localhost"
    port = parts.port or int(query.get("port", ["5432"])[0].split(",")[0])
    database = unquote(parts.path.lstrip("/")) or query.get("dbname", ["postgres"])[0]
    sslmode = query.get("sslmode", ["verify-full" if verifies_by_default(dsn) else "prefer"])[0]
    return Address(host, port, database, sslmode)


def user_of(dsn: str) -> str:
    """Returns the role that logs in; empty if the environment decides."""
    parts = urlsplit(dsn)
    return unquote(parts.username or "") or parse_qs(parts.query).get("user", [""])[0]


def verifies_by_default(dsn: str) -> bool:
    """Tells whether a DSN leaves this machine without any TLS setting: asyncpg would fall back to plain text."""
    parts = urlsplit(dsn)
    if "sslmode" in parse_qs(parts.query):
        return False
    local = ("", "localhost", "127.0.0.1", "::1")
    return any(not host.startswith("/") and host not in local for host in _hosts_of(parts))


def _hosts_of(parts: SplitResult) -> list[str]:
    """Returns the hosts before the path, where a path of a socket is percent-encoded, or else those of `host`."""
    if parts.hostname:
        return [unquote(host) for host in parts.hostname.split(",")]
    return [host for value in parse_qs(parts.query).get("host", []) for host in value.split(",")]


def split_methods(dsn: str) -> tuple[str, frozenset[str] | None]:
    """Splits off require_auth, which asyncpg does not support: returns the rest, and the allowed methods (None:
    default).

    As in libpq, names are separated by commas; a ! before each name excludes them instead. Raises ValueError with the
    expected form.
    """
    parts = urlsplit(dsn)
    pieces = parts.query.split("&")
    kept = [piece for piece in pieces if unquote_plus(piece.partition("=")[0]) != "require_auth"]
    if len(kept) == len(pieces):
        return dsn, None
    given = dict(parse_qsl(parts.query, keep_blank_values=True)).get("require_auth", "")
    return parts._replace(query="&".join(kept)).geturl(), _read_methods(given)


def _read_methods(text: str) -> frozenset[str] | None:
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    excluded = [name.removeprefix("!") for name in names if name.startswith("!")]
    known = (*METHODS, *_OTHER_METHODS) if excluded else METHODS
    if (excluded and len(excluded) != len(names)) or not {*(excluded or names)} <= {*known}:
        raise ValueError(
            f"its require_auth must list methods of {', '.join(METHODS)}, separated by commas, or only excluded ones, "
            "each with a ! before it"
        )
    if not names:
        return None
    allowed = frozenset(METHODS).difference(excluded) if excluded else frozenset(names)
    if not allowed:
        raise ValueError("its require_auth leaves no method")
    return allowed
