"""What `doctor` read from one PostgreSQL server, before `server_findings`, `schema_findings` and others judge it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`behind`: seconds that the server's clock is behind this machine's, negative if ahead; `uncertain`: its error.

    `reserved`: connections that max_connections includes and others cannot use. `expires`: end of the server's
    certificate; None if there is none, or if it was not verified. `fixed`: settings that the server's command line
    sets, so that ALTER SYSTEM does not.
    """

    version: str
    version_number: int
    encoding: str
    database: str
    login: str
    behind: float
    uncertain: float
    max_connections: int
    reserved: int
    database_limit: int
    by_socket: bool
    encrypted: bool
    protocol: str
    verified: bool = False
    expires: datetime | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """What the controller's role may do in the home database; the columns of sql/diagnosis/role.sql.

    `language`: whether it may use language plpgsql; None: that does not exist.
    """

    name: str
    superuser: bool = False
    createrole: bool = False
    login: bool = True
    connection_limit: int = -1
    expires_soon: bool = False
    monitors: bool = False
    creates: bool = False
    owns: bool = False
    uses: bool = False
    sees_versions: bool = False
    sees_passwords: bool = False
    sees_system: bool = True
    reads_logs: bool = False
    administers: bool = False
    language: bool | None = True

    @property
    def only_looks(self) -> bool:
        """A login for reading, which is not the controller's: what it lacks says nothing about the controller."""
        return self.monitors and not (self.superuser or self.createrole)


@dataclass(frozen=True, slots=True)
class SchemaFacts:
    """Schema pgrole in the home database. `owner` None: it does not exist. `version` None: this login may not read it.

    `installed_parts`: their number when it was installed, None if this login may not read it; `parts`: now.
    `armed`: its triggers fire in every session. `elsewhere`: another database that is recorded as the home; `recorded`:
    this one is. `publications`: FOR ALL TABLES, quoted.
    """

    owner: str | None
    version: int | None = None
    installed_parts: int | None = None
    parts: int = 0
    armed: bool = True
    keeps_history: bool = False
    home: bool = False
    foreign_parts: str = ""
    recorded: bool = False
    elsewhere: tuple[str, ...] = ()
    publications: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Sessions of the server, of the home database, and of the controller's role."""

    server: int
    database: int
    role: int


@dataclass(frozen=True, slots=True)
class EventTriggerFacts:
    """Event triggers of one database. `installed`: of the two that record changes; `others`: enabled, not trusted, and
    not turned off in the controller's own sessions. `publications`: quoted, those FOR ALL TABLES of a database without
    schema pgrole. `plainly_owned`: the controller's role owns that schema, and is no superuser. `home`: it has the
    claims. `connects`, `uses`: the controller's role may connect, and use the schema if that is a superuser's.
    `language`: as in RoleFacts.
    """

    database: str
    installed: int
    disabled: tuple[str, ...] = ()
    switched_off: bool = False
    others: tuple[str, ...] = ()
    publications: tuple[str, ...] = ()
    plainly_owned: bool = False
    home: bool = False
    connects: bool = True
    uses: bool = True
    language: bool | None = True


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    bytes: int
    rows: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class ClaimCount:
    """Claims of one cluster; `released` are among them."""

    cluster: str
    claims: int
    released: int
