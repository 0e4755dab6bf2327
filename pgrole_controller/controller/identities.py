"""Which live server each lane is connected to: two PgServers that name one would contest its roles. And how many are
connected to none.
"""

from typing import Protocol

from pgrole_controller.controller.server import DeclaredServer
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.postgres.capabilities import Identity


class Holder(Protocol):
    """A lane."""

    server: DeclaredServer

    def reconnect(self, why: str) -> None: ...


class Identities:
    def __init__(self) -> None:
        self._held: dict[object, Holder] = {}
        self._away: set[int] = set()

    def hold(self, holder: Holder, identity: Identity) -> None:
        """Raises Refused when an older PgServer names that very server; a younger one is told so by connecting anew."""
        server = (identity.system_identifier, identity.started_at)
        other = self._held.get(server)
        if other is not None and other is not holder:
            if other.server.age <= holder.server.age:
                raise Refused(
                    Reason.CONFLICT,
                    f'PgServer "{other.server.name}", which is older, declares the same server: delete one of them',
                )
            other.reconnect("an older PgServer declares the same server: delete one of them")
        self._held[server] = holder

    def miss(self, holder: Holder) -> int:
        """This one has no session: how many have none."""
        self._away.add(id(holder))
        return len(self._away)

    def find(self, holder: Holder) -> None:
        """This one has a session, or needs none any more."""
        self._away.discard(id(holder))

    def give_up(self, holder: Holder) -> None:
        self._held = {server: held for server, held in self._held.items() if held is not holder}
