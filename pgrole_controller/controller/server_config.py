"""A server as its owner declares it, by a PgServer, or by PGROLE_DSN for the one named default."""

from dataclasses import dataclass, field

from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.server_options import AttributionConfig, DatabasesConfig, HistoryConfig, Mode
from pgrole_controller.postgres.connection import Endpoint

#: The server that PGROLE_DSN stands for, unless a PgServer has this name.
DEFAULT_SERVER = "default"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A declared server.

    `address`: where applications reach it. `endpoint` None: the controller cannot connect, because of `problem`.
    `mode`: how changes are detected; in mode Poll, every `interval` seconds. `lapsed`: the Secret or ConfigMap that
    `endpoint` was made from no longer exists (`problem`): the current session continues, but no new one begins.
    `databases` None: no connection to any database but the home database. `age`: creationTimestamp, then uid; decides
    between two declarations of one server. `generation`: of the PgServer. `connection`: spec.connection, as JSON.
    `outdated`: the declared connection cannot be read (`problem`), and `endpoint` is that of an earlier one.
    `caveat`: what may not be meant as it is declared; empty if nothing.
    """

    name: str
    endpoint: Endpoint | None
    server_policy: ServerPolicy
    address: Address
    may_install: bool = True
    mode: Mode = Mode.AUTO
    interval: float = 1.0
    resync_seconds: float = 3600.0
    databases: DatabasesConfig | None = None
    attribution: AttributionConfig = field(default_factory=AttributionConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    age: tuple[str, str] = ("", "")
    generation: int = 0
    problem: PgRoleError | None = field(default=None, compare=False)
    lapsed: bool = field(default=False, compare=False)
    connection: str = field(default="", compare=False)
    outdated: bool = field(default=False, compare=False)
    caveat: str = field(default="", compare=False)

    @property
    def uid(self) -> str:
        """Uid of the PgServer; empty for the server of PGROLE_DSN."""
        return self.age[1]

    @property
    def access(self) -> tuple[object, ...]:
        """Everything that a session depends on: if it changes, the controller reconnects."""
        return self.endpoint, self.may_install, self.mode, self.interval
