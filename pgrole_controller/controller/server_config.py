"""A server as its owner declares it, by a PgServer, or by PGROLE_DSN for the one named default; and which live server
each worker is connected to: two PgServers that name one would contest its roles.
"""

from dataclasses import dataclass, field
from typing import Protocol

from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.database_options import AttributionConfig, DatabasesConfig, HistoryConfig
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.state import Mode
from pgrole_controller.postgres.capabilities import Identity
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
    between two declarations of one server. `generation`: of the PgServer.
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

    @property
    def uid(self) -> str:
        """Uid of the PgServer; empty for the server of PGROLE_DSN."""
        return self.age[1]

    @property
    def access(self) -> tuple[object, ...]:
        """Everything that a session depends on: if it changes, the controller reconnects."""
        return self.endpoint, self.may_install, self.mode, self.interval


class Holder(Protocol):
    """A worker."""

    server: ServerConfig

    def reconnect(self, why: str) -> None: ...


def _explain_conflict(older: ServerConfig) -> str:
    if not older.uid:
        return (
            "PGROLE_DSN declares the same server: delete this PgServer, or name it default, which replaces PGROLE_DSN"
        )
    return f'PgServer "{older.name}", which is older, declares the same server: delete one of them'


class LiveServers:
    def __init__(self) -> None:
        self._declared: dict[int, Holder] = {}
        self._held: dict[object, Holder] = {}
        self._away: set[int] = set()

    def add(self, holder: Holder) -> None:
        self._declared[id(holder)] = holder

    def remove(self, holder: Holder) -> None:
        """Notes that this holder ended: its server is no longer declared."""
        self.mark_connected(holder)
        self._declared.pop(id(holder), None)

    def unknown(self) -> frozenset[str]:
        """Names of declared servers without a session, each of which may name any live server."""
        return frozenset(one.server.name for one in self._declared.values()) - {
            one.server.name for one in self._held.values()
        }

    def hold(self, holder: Holder, identity: Identity) -> None:
        """Raises Refused if an older PgServer holds the same live server; makes a younger holder reconnect."""
        server = (identity.system_identifier, identity.started_at)
        other = self._held.get(server)
        if other is not None and other is not holder:
            if other.server.age <= holder.server.age:
                raise Refused(Reason.CONFLICT, _explain_conflict(other.server))
            other.reconnect("an older PgServer declares the same server: delete one of them")
        self._held[server] = holder

    def mark_disconnected(self, holder: Holder) -> int:
        """Notes that this holder has no session. Returns how many have none."""
        self._away.add(id(holder))
        return len(self._away)

    def mark_connected(self, holder: Holder) -> None:
        """Notes that this holder has a session."""
        self._away.discard(id(holder))

    def release(self, holder: Holder) -> None:
        self._held = {server: held for server, held in self._held.items() if held is not holder}
