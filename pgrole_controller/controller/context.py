"""What every worker shares with the others, and with the loop that declines objects without a server."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pgrole_controller.controller.background import Background
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Endings, Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.postgres.capabilities import Identity


class Holder(Protocol):
    """A worker."""

    server: ServerConfig
    trouble: PgRoleError | None

    def reconnect(self, why: str) -> None: ...


def _explain_conflict(older: ServerConfig) -> str:
    if not older.uid:
        return (
            "PGROLE_DSN declares the same server: delete this PgServer, or name it default, which replaces PGROLE_DSN"
        )
    return f'PgServer "{older.name}", which is older, declares the same server: delete one of them'


class LiveServers:
    """Which live server each worker is connected to: two PgServers that name one would contest its roles."""

    def __init__(self, stored: Callable[[], Iterable[str]]) -> None:
        """`stored` returns the names of all PgServers, also of those that have no worker yet."""
        self._stored = stored
        self._declared: dict[int, Holder] = {}
        self._held: dict[object, Holder] = {}
        self._away: set[int] = set()

    def add(self, holder: Holder) -> None:
        self._declared[id(holder)] = holder

    def remove(self, holder: Holder) -> None:
        """Notes that this holder ended: its server is no longer declared. Makes those reconnect that were refused
        because another PgServer declares the same server.
        """
        self.mark_connected(holder)
        self._declared.pop(id(holder), None)
        for other in self._declared.values():
            if other.trouble is not None and other.trouble.reason is Reason.CONFLICT:
                other.reconnect("another PgServer was removed")

    def unknown(self) -> frozenset[str]:
        """Names of declared servers without a session, each of which may name any live server."""
        declared = (one.server.name for one in self._declared.values())
        return frozenset((*declared, *self._stored())) - {one.server.name for one in self._held.values()}

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


@dataclass(frozen=True, slots=True)
class WorkerContext:
    objects: Objects
    queue: Queue
    endings: Endings
    background: Background
    reporter: Reporter
    live_servers: LiveServers
    leadership: Leadership
    grantees: Grantees
    contests: Contests

    def hand_on(self, result: Result) -> None:
        """Hands the result to the reporter or the background, which ends the reconcile. If recording its Event fails,
        nothing is written, and the reconcile is retried.
        """
        if result.password_task is None and not result.writes_finalizer:
            self.reporter.report(result)
        elif self.reporter.record(result):
            if result.password_task is not None:
                self.background.prepare_password(result)
            else:
                self.background.write_finalizer(result)
