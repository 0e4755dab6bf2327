"""Finds out who caused the drift of roles, beside the worker: attribution never delays a repair.

Expected flow: the worker notes a drift once it is repaired or reported (`Attributor.note`, which neither waits nor
raises); `run` asks the sources of the server on a connection of its own; `on_found` gets the answer, which is kept for
the next status of that object (`Attributor.take`).

Guarantees: at most MOST_WAITING drifts wait, the oldest are dropped; an error costs the attribution alone; the
connection is opened at the first drift and closed after IDLE_SECONDS without one. Nothing is asked while another drift
of the same object waits: the later one replaces it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from pgrole_controller.core.audit_line import ChangedRole
from pgrole_controller.core.database_options import AuditSource
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privilege_result import Culprit, Evidence
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.role_attribution import RoleAttribution

log = logging.getLogger(__name__)

MOST_WAITING = 100
IDLE_SECONDS = 60.0
_DRIFT_SECONDS = 10.0


@dataclass(slots=True)
class Attributor:
    """The attribution of one server's role drifts. `on_found`: called with the key of each that has an answer."""

    endpoint: Endpoint
    source: AuditSource
    on_found: Callable[[Key], None]
    _waiting: dict[Key, ChangedRole] = field(default_factory=dict)
    _found: dict[Key, Culprit] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def note(self, key: Key, changed: ChangedRole) -> None:
        """Asks who caused this drift. Neither waits nor raises."""
        self._waiting.pop(key, None)
        self._waiting[key] = changed
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._changed.set()

    def take(self, key: Key) -> Culprit | None:
        """The answer about the last drift of this object, once."""
        return self._found.pop(key, None)

    async def run(self) -> None:
        """Answers until it is cancelled."""
        attribution = RoleAttribution(self.source)
        while True:
            await self._changed.wait()
            try:
                async with connect(self.endpoint, "attribution") as connection:
                    await self._answer_all(connection, attribution)
            except PgRoleError as error:
                log.warning("cannot find out who changed roles", extra={"error": error.message})
                self._waiting.clear()
                self._changed = anyio.Event()

    async def _answer_all(self, connection: Connection, attribution: RoleAttribution) -> None:
        """Returns after IDLE_SECONDS without a drift. Raises PgRoleError if the connection is lost."""
        while True:
            while self._waiting:
                key = next(iter(self._waiting))
                changed = self._waiting.pop(key)
                culprit = Culprit()
                with anyio.move_on_after(_DRIFT_SECONDS):
                    culprit = await attribution.find_culprit(connection, changed)
                if culprit.proof is not Evidence.NONE:
                    self._keep(key, culprit)
            self._changed = anyio.Event()
            with anyio.move_on_after(IDLE_SECONDS) as idle:
                await self._changed.wait()
            if idle.cancelled_caught:
                return

    def _keep(self, key: Key, culprit: Culprit) -> None:
        self._found[key] = culprit
        while len(self._found) > MOST_WAITING:
            del self._found[next(iter(self._found))]
        self.on_found(key)
