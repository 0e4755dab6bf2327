"""The settings of `run`: each a flag and, as `PGROLE_…`, a variable of the environment; the flag wins.

`PGROLE_DSN` alone is no flag: a command line can be read by every user of a machine.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, parse_qsl, unquote, unquote_plus, urlsplit

from pgrole_controller.api.duration import read_duration
from pgrole_controller.api.names import OBJECT_NAME
from pgrole_controller.core.allowance import Allowance
from pgrole_controller.core.connection import Address
from pgrole_controller.core.detection import Mode
from pgrole_controller.core.role import POWERS
from pgrole_controller.logs import LogFormat

_LONGEST_NAME = 253
_LONGEST_LABEL = 63
_LAST_PORT = 65535
_METHODS = ("password", "md5", "scram-sha-256", "none")
#: What libpq can do besides, and what a DSN may exclude.
_OTHER_METHODS = ("gss", "sspi", "oauth")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


class WrongSetting(Exception):
    """A value that cannot be used; the message names the setting and what it takes, never a secret value."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `read` turns its text into its value and raises ValueError with what it takes."""

    name: str
    help: str
    read: Callable[[str], Any]
    default: Any = None
    metavar: str = "VALUE"
    secret: bool = field(default=False)

    @property
    def variable(self) -> str:
        return "PGROLE_" + self.name.upper().replace("-", "_")


def _text(value: str) -> str:
    if not value:
        raise ValueError("it is empty")
    return value


def _object_name(value: str) -> str:
    if not re.fullmatch(OBJECT_NAME, value) or len(value) > _LONGEST_NAME:
        raise ValueError("it takes the name of an object of Kubernetes: lower-case letters, digits, - and .")
    return value


def _namespace(value: str) -> str:
    if "." in value or len(value) > _LONGEST_LABEL or not re.fullmatch(OBJECT_NAME, value):
        raise ValueError("it takes the name of a namespace: up to 63 lower-case letters, digits and -")
    return value


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("it takes true or false")
    return value.lower() == "true"


def _choice(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"it takes one of {', '.join(choices)}")
        return value.lower()

    return read


def _attributes(value: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in value.split(",") if name.strip())
    if unknown := names - frozenset(POWERS):
        raise ValueError(f"it takes attributes of {', '.join(POWERS)}, not {', '.join(sorted(unknown))}")
    return names


def _patterns(value: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in value.split(",") if pattern.strip())


def _words(value: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"it takes a command as a shell reads words: {error}") from None


def _mode(value: str) -> Mode:
    modes = {mode.value.lower(): mode for mode in Mode}
    if value.lower() not in modes:
        raise ValueError(f"it takes one of {', '.join(modes)}")
    return modes[value.lower()]


def _read_seconds(value: str) -> float:
    try:
        return read_duration(value).total_seconds()
    except ValueError:
        raise ValueError("it takes a duration such as 30s, 10m or 1h30m") from None


def _duration(value: str) -> float:
    seconds = _read_seconds(value)
    if seconds < 1:
        raise ValueError("it takes at least 1s")
    return seconds


def _interval(value: str) -> float:
    seconds = _read_seconds(value)
    if not 0.1 <= seconds <= 3600:
        raise ValueError("it takes 100ms to 1h")
    return seconds


def _port(value: str) -> int | None:
    if not value.isdecimal() or int(value) > _LAST_PORT:
        raise ValueError("it takes a port, 1 to 65535, or 0 for none")
    return int(value) or None


def _file(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError(f"there is no file {value}")
    return value


def _dsn(value: str) -> str:
    try:
        fits = urlsplit(value).scheme in ("postgres", "postgresql") and 0 < address_of(value).port <= _LAST_PORT
    except ValueError:  # its words can hold a part of the password
        fits = False
    if not fits:
        raise ValueError(
            "it takes postgresql://user:password@host:port/database, with %2F for a / in the password, and so on"
        )
    if address_of(value).sslmode not in _SSL_MODES:
        raise ValueError(f"its sslmode takes one of {', '.join(_SSL_MODES)}")
    split_methods(value)
    return value


LEVELS = ("debug", "info", "warning", "error")

DSN = Setting(
    "dsn",
    "the server named default where no PgServer is, as postgresql://user:password@host:port/database",
    _dsn,
    secret=True,
)

RUN = (
    DSN,
    Setting("kubeconfig", "kubeconfig file (default: KUBECONFIG, in-cluster, ~/.kube/config)", _file, None, "FILE"),
    Setting("context", "context of the kubeconfig", _text, None, "NAME"),
    Setting("strict-tls", "false accepts cluster CAs that Python 3.13 and later refuse", _flag, True, "BOOL"),
    Setting("namespace", "look at this namespace only (default: all)", _namespace, None, "NAME"),
    Setting(
        "own-namespace",
        "where the Secrets of PgServers are (default: the controller's own in a cluster, else default)",
        _namespace,
        None,
        "NAME",
    ),
    Setting(
        "token-command",
        "a program, with its arguments, that prints the password where the Secret of a PgServer has none",
        _words,
        (),
        "COMMAND",
    ),
    Setting(
        "leader-election",
        "whether one of several processes leads, by a Lease in --own-namespace (default: true in a cluster)",
        _flag,
        None,
        "BOOL",
    ),
    Setting("lease", "name of that Lease", _object_name, "pgrole-controller", "NAME"),
    Setting("identity", "how the Lease names this process (default: the name of its host)", _text, None, "TEXT"),
    Setting("cluster-id", "how claims name this cluster (default: uid of namespace kube-system)", _text, None, "ID"),
    Setting(
        "allow",
        f"attributes that roles may have beside createdb, of {', '.join(POWERS)}",
        _attributes,
        frozenset(),
        "LIST",
    ),
    Setting("protected", "patterns of role names that no object may touch, e.g. rds_*", _patterns, (), "LIST"),
    Setting(
        "forbidden-metadata",
        "prefixes of labels and annotations that no connection Secret may have, e.g. argoproj.io",
        _patterns,
        (),
        "LIST",
    ),
    Setting("install", "whether the controller may install schema pgrole itself", _flag, True, "BOOL"),
    Setting("detection", "how changes are noticed: auto, watch, poll or resync", _mode, Mode.AUTO, "MODE"),
    Setting("poll-interval", "how often poll asks, 100ms to 1h", _interval, 1.0, "DURATION"),
    Setting("resync-interval", "a look at every object at least this often", _duration, 3600.0, "DURATION"),
    Setting("health-host", "address of /healthz, /readyz and /metrics (default: all)", _text, "::", "ADDRESS"),
    Setting("health-port", "port of /healthz, /readyz and /metrics, 0 for none", _port, 8080, "PORT"),
    Setting("log-level", f"one of {', '.join(LEVELS)}", _choice(*LEVELS), "info", "LEVEL"),
    Setting("log-format", "text, json or auto (text on a terminal)", _choice(*get_args(LogFormat)), "auto", "FORMAT"),
)


def read_settings(
    settings: tuple[Setting, ...], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The value of each setting by its name. Raises WrongSetting for the first that cannot be used."""
    values: dict[str, Any] = {}
    for setting in settings:
        given = flags.get(setting.name)
        name = f"--{setting.name}"
        if given is None:
            given, name = environment.get(setting.variable), setting.variable
        if given is None:
            values[setting.name] = setting.default
            continue
        try:
            values[setting.name] = setting.read(given)
        except ValueError as error:
            shown = "" if setting.secret else f" {given!r}"
            raise WrongSetting(f"{name}{shown}: {error}") from error
    return values


def allowance_of(values: Mapping[str, Any]) -> Allowance:
    """What the server that PGROLE_DSN names allows: all namespaces, names and memberships, to adopt and to drop."""
    return Allowance(
        namespaces=("*",),
        role_names=("*",),
        member_of=("*",),
        adopt=True,
        attributes=frozenset({"createdb"}) | values["allow"],
        protected=values["protected"],
        forbidden_metadata=values["forbidden-metadata"],
    )


def address_of(dsn: str) -> Address:
    """Where applications find the server that a DSN names, for connection Secrets. What it leaves out is libpq's."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    host = parts.hostname or query.get("host", [""])[0].split(",")[0] or "localhost"
    port = parts.port or int(query.get("port", ["5432"])[0].split(",")[0])
    database = unquote(parts.path.lstrip("/")) or query.get("dbname", ["postgres"])[0]
    sslmode = query.get("sslmode", ["verify-full" if verifies_by_default(dsn) else "prefer"])[0]
    return Address(host, port, database, sslmode)


def verifies_by_default(dsn: str) -> bool:
    """Whether a DSN says nothing of TLS although it leaves this machine: asyncpg would fall back to plain text."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    if "sslmode" in query:
        return False
    hosts = [host for value in query.get("host", []) for host in value.split(",")] or [parts.hostname or ""]
    return any(not host.startswith("/") and host not in ("", "localhost", "127.0.0.1", "::1") for host in hosts)


def split_methods(dsn: str) -> tuple[str, frozenset[str] | None]:
    """The DSN without its require_auth, which asyncpg does not know, and the methods that it allows; None: the default.

    As libpq reads it: names with commas between, or each with a ! before it for all but these. Raises ValueError with
    what it takes.
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
    known = (*_METHODS, *_OTHER_METHODS) if excluded else _METHODS
    if (excluded and len(excluded) != len(names)) or not {*(excluded or names)} <= {*known}:
        raise ValueError(
            f"its require_auth takes methods of {', '.join(_METHODS)} with commas between, or all but some, each with "
            "a ! before it"
        )
    if not names:
        return None
    allowed = frozenset(_METHODS).difference(excluded) if excluded else frozenset(names)
    if not allowed:
        raise ValueError("its require_auth leaves no method")
    return allowed
