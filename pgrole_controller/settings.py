"""The settings of `run`, as fields of `Settings`.

Each field is a flag and an environment variable `PGROLE_…`; the flag takes precedence. The fields' metadata generates
`--help` and the table in docs/running.md. Only `PGROLE_DSN` has no flag, because every user of a machine can read its
command lines.
"""

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, get_args

from pgrole_controller.api.validation import is_label_key_prefix, is_namespace_name, is_object_name, read_duration
from pgrole_controller.core.role import POWERS
from pgrole_controller.core.server_options import DatabaseMode, Mode
from pgrole_controller.dsn import LAST_PORT, read_dsn
from pgrole_controller.logs import LogFormat


class WrongSetting(Exception):
    """An unusable value; the message names the setting and the expected form, and never contains a secret."""


class Group(StrEnum):
    """Groups settings under a heading of `--help`."""

    KUBERNETES = "Kubernetes"
    SERVERS = "every PostgreSQL server"
    DEFAULT_SERVER = "the server of PGROLE_DSN only"
    PROCESS = "this process"


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of `Settings`.

    `read` converts text into the field's value and raises ValueError with the expected form. `default` is the default
    as text; if it is None, `otherwise` describes what applies. `help` is Markdown without links. `unit` is the value's
    unit, unless the text contains one. A secret has no flag, and no message repeats its value.
    """

    name: str
    read: Callable[[str], Any]
    default: str | None
    otherwise: str
    help: str
    metavar: str
    group: Group
    unit: str
    secret: bool

    @property
    def flag(self) -> str | None:
        return None if self.secret else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "PGROLE_" + self.name.upper()


T = TypeVar("T")


def _setting(read: Callable[[str], T], default: str, meaning: str, metavar: str, group: Group, *, unit: str = "") -> T:
    known = {"read": read, "default": default, "otherwise": "", "help": meaning, "metavar": metavar, "group": group}
    return field(default=read(default), metadata={**known, "unit": unit, "secret": False})


def _optional(
    read: Callable[[str], T], otherwise: str, meaning: str, metavar: str, group: Group, *, secret: bool = False
) -> T | None:
    known = {"read": read, "default": None, "otherwise": otherwise, "help": meaning, "metavar": metavar, "group": group}
    return field(default=None, repr=not secret, metadata={**known, "unit": "", "secret": secret})


def _text(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("must be text in UTF-8 without control characters, and not empty")
    return value


def _object_name(value: str) -> str:
    if not is_object_name(value):
        raise ValueError("must be the name of a Kubernetes object: lower-case letters, digits, - and .")
    return value


def _namespace(value: str) -> str:
    if not is_namespace_name(value):
        raise ValueError("must be the name of a namespace: up to 63 lower-case letters, digits and -")
    return value


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def _choice(*choices: T) -> Callable[[str], T]:
    by_name = {str(choice).lower(): choice for choice in choices}

    def read(value: str) -> T:
        if value.lower() not in by_name:
            raise ValueError(f"must be one of {', '.join(by_name)}")
        return by_name[value.lower()]

    return read


def _attributes(value: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in value.split(",") if name.strip())
    if unknown := names - frozenset(POWERS):
        raise ValueError(f"must be attributes of {', '.join(POWERS)}, not {', '.join(sorted(unknown))}")
    return names


def _patterns(value: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in value.split(",") if pattern.strip())


def _key_prefixes(value: str) -> tuple[str, ...]:
    prefixes = _patterns(value)
    if wrong := [prefix for prefix in prefixes if not is_label_key_prefix(prefix)]:
        raise ValueError(
            "must be domains of keys, such as example.com, or beginnings of keys, such as example.com/private-, without"
            f" wildcards, not {', '.join(wrong)} (a domain without a dot has a slash at the end: example/)"
        )
    return prefixes


def _words(value: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"must be a command, quoted as for a shell: {error}") from None


def _read_seconds(value: str) -> float:
    try:
        return read_duration(value).total_seconds()
    except ValueError:
        raise ValueError("must be a duration such as 30s, 10m or 1h30m") from None


def _duration(value: str) -> float:
    seconds = _read_seconds(value)
    if seconds < 1:
        raise ValueError("must be at least 1s")
    return seconds


def _interval(value: str) -> float:
    seconds = _read_seconds(value)
    if not 0.1 <= seconds <= 3600:
        raise ValueError("must be from 100ms to 1h")
    return seconds


def _port(value: str) -> int | None:
    if not value.isdecimal() or int(value) > LAST_PORT:
        raise ValueError("must be a port from 1 to 65535, or 0 to disable")
    return int(value) or None


def _file(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError("must be an existing file")
    return value


LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of `run`. None means a default that depends on where it runs."""

    dsn: str | None = _optional(
        read_dsn,
        "",
        "the server `default` if no PgServer has that name: `postgresql://user:password@host:port/database`",
        "DSN",
        Group.DEFAULT_SERVER,
        secret=True,
    )
    kubeconfig: str | None = _optional(
        _file, "`KUBECONFIG`, else in-cluster, else `~/.kube/config`", "kubeconfig file", "FILE", Group.KUBERNETES
    )
    context: str | None = _optional(
        _text, "the current one", "context of the kubeconfig; in-cluster is then not used", "NAME", Group.KUBERNETES
    )
    strict_tls: bool = _setting(
        _flag, "true", "`false` accepts cluster CAs that Python 3.13 rejects", "BOOL", Group.KUBERNETES
    )
    namespace: str | None = _optional(_namespace, "all", "serve this namespace only", "NAME", Group.KUBERNETES)
    own_namespace: str | None = _optional(
        _namespace,
        "its own in a cluster, else `default`",
        "namespace of PgServers' Secrets and ConfigMaps",
        "NAME",
        Group.KUBERNETES,
    )
    leader_election: bool | None = _optional(
        _flag, "`true` in a cluster, else `false`", "whether one of several processes leads", "BOOL", Group.KUBERNETES
    )
    lease: str = _setting(
        _object_name,
        "pgrole-controller",
        "the Lease, in `--own-namespace`; it identifies the installation",
        "NAME",
        Group.KUBERNETES,
    )
    identity: str | None = _optional(
        _text,
        "the host's name",
        "name of this process in the Lease; a random suffix is added",
        "TEXT",
        Group.KUBERNETES,
    )
    cluster_id: str | None = _optional(
        _text, "uid of namespace `kube-system`", "name of this cluster in claims", "ID", Group.KUBERNETES
    )
    token_command: tuple[str, ...] = _setting(
        _words, "", "program that prints the password that a PgServer's Secret lacks", "COMMAND", Group.SERVERS
    )
    forbidden_metadata: tuple[str, ...] = _setting(
        _key_prefixes,
        "",
        "prefixes of labels and annotations that connection Secrets must not have",
        "LIST",
        Group.SERVERS,
    )
    allow: frozenset[str] = _setting(
        _attributes,
        "",
        "role attributes to allow in addition to `createdb`: "
        f"{', '.join(f'`{power}`' for power in POWERS if power != 'createdb')}",
        "LIST",
        Group.DEFAULT_SERVER,
    )
    protected: tuple[str, ...] = _setting(
        _patterns,
        "",
        "patterns of role names that no object may touch, e.g. `rds*,cloudsql*`",
        "LIST",
        Group.DEFAULT_SERVER,
    )
    install: bool = _setting(
        _flag, "true", "whether the controller may install schema `pgrole`", "BOOL", Group.DEFAULT_SERVER
    )
    detection: Mode = _setting(  # noqa: RUF009 - a field
        _choice(*Mode), "auto", "detection mode: `auto`, `watch`, `poll` or `resync`", "MODE", Group.DEFAULT_SERVER
    )
    databases_detection: DatabaseMode = _setting(  # noqa: RUF009 - a field
        _choice(*DatabaseMode),
        "poll",
        "how changes of privileges are detected in each database: `auto`, `events`, `poll` or `resync`",
        "MODE",
        Group.DEFAULT_SERVER,
    )
    poll_interval: float = _setting(
        _interval, "1s", "interval of `poll`, `100ms` to `1h`", "DURATION", Group.DEFAULT_SERVER, unit="seconds"
    )
    resync_interval: float = _setting(
        _duration,
        "1h",
        "every object is reconciled at least this often; from `1s`",
        "DURATION",
        Group.DEFAULT_SERVER,
        unit="seconds",
    )
    health_host: str = _setting(
        _text, "::", "address of the health endpoints; `::` is all, IPv4 and IPv6", "ADDRESS", Group.PROCESS
    )
    health_port: int | None = _setting(
        _port, "8080", "port of the health endpoints; `0` for none", "PORT", Group.PROCESS
    )
    log_level: str = _setting(_choice(*LEVELS), "info", "`debug`, `info`, `warning` or `error`", "LEVEL", Group.PROCESS)
    log_format: LogFormat = _setting(  # noqa: RUF009 - a field
        _choice(*get_args(LogFormat)),
        "auto",
        "`text`, `json`, or `auto`: text on a terminal, else JSON",
        "FORMAT",
        Group.PROCESS,
    )


SETTINGS = tuple(Setting(name=one.name, **one.metadata) for one in fields(Settings))
DSN = next(one for one in SETTINGS if one.name == "dsn")


def read_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str], only: Collection[str] | None = None
) -> Settings:
    """Reads the settings. `flags` are by field name, None for a flag not given. Fields not in `only` keep their
    defaults.

    Raises WrongSetting for the first unusable value.
    """
    chosen = SETTINGS if only is None else [one for one in SETTINGS if one.name in only]
    given = [(one, *_find(one, flags, environment)) for one in chosen]
    return Settings(**{one.name: _read(one, place, text) for one, place, text in given if text is not None})


def read_strict_tls(environment: Mapping[str, str]) -> bool:
    """Reads `strict_tls` alone, for a program that has no flag for it. Raises WrongSetting."""
    return read_settings({}, environment, only=("strict_tls",)).strict_tls


def _find(setting: Setting, flags: Mapping[str, str | None], environment: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns where the setting is given, and its text; None if it is not."""
    if setting.flag is not None and (text := flags.get(setting.name)) is not None:
        return setting.flag, text
    return setting.variable, environment.get(setting.variable)


def _read(setting: Setting, place: str, text: str) -> Any:  # noqa: ANN401 - each setting has its own type
    try:
        return setting.read(text)
    except ValueError as error:
        shown = "" if setting.secret else f" {text!r}"
        raise WrongSetting(f"{place}{shown}: {error}") from error
