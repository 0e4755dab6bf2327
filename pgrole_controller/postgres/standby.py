"""A session of a process that does not lead: it keeps its connections open until it does."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import anyio

from pgrole_controller.postgres.capabilities import Capabilities
from pgrole_controller.postgres.connection import Connection, await_end
from pgrole_controller.postgres.detection import Detector
from pgrole_controller.postgres.errors import translate_errors, unwrap_group
from pgrole_controller.postgres.fence import Candidate, Fence, lead_while_away
from pgrole_controller.postgres.schema import is_current

log = logging.getLogger(__name__)

#: Seconds between two keepalive queries on each connection, and the deadline of each.
KEEPALIVE_SECONDS = 5.0
_KEEPALIVE_DEADLINE = 3.0

#: Seconds between two checks whether the leader is alive, by a process that cannot reach Kubernetes.
AWAY_SECONDS = 1.0


async def stand_by(
    candidate: Candidate, writer: Connection, found: Capabilities | None, detector: Detector | None
) -> Fence | None:
    """Waits until this process leads or, without a `detector`, until the leader has installed schema pgrole.

    Returns the fence if this process leads the database without the Lease. None: it holds the Lease, or the schema was
    installed. Raises PgRoleError if a connection fails.
    """
    waiting = _Standby(candidate, (writer, *(detector.connections if detector else ())), found if detector else None)
    with unwrap_group():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(await_end, waiting.connections)
            tasks.start_soon(waiting.keep_alive, tasks.cancel_scope)
            await candidate.stand_by()
            tasks.cancel_scope.cancel()
    return waiting.fence


@dataclass(slots=True)
class _Standby:
    """Waits to lead with all connections open. `found` None: schema pgrole does not exist yet."""

    candidate: Candidate
    connections: Sequence[Connection]
    found: Capabilities | None
    fence: Fence | None = None

    async def keep_alive(self, everything: anyio.CancelScope) -> NoReturn:
        """Queries every connection regularly, so that a lost one is noticed and none is closed as idle.

        Cancels `everything` when this process leads or schema pgrole exists. Queries are not interrupted: the session
        continues to use the first connection.
        """
        last = anyio.current_time()
        while True:
            if self.found is not None and self.candidate.away() > 0.0:
                with translate_errors(), anyio.fail_after(KEEPALIVE_SECONDS, shield=True):
                    self.fence = await lead_while_away(self.connections[0], self.candidate, guarded=self.found.guarded)
            elif anyio.current_time() - last >= KEEPALIVE_SECONDS:
                last = anyio.current_time()
                await self._query(everything)
            if self.fence is not None:
                log.warning("enforcing the state last applied: Kubernetes is or was unreachable")
                everything.cancel()
            await anyio.sleep(AWAY_SECONDS)

    async def _query(self, everything: anyio.CancelScope) -> None:
        with translate_errors(), anyio.fail_after(KEEPALIVE_SECONDS, shield=True):
            for connection in self.connections:
                await connection.fetchval("SELECT 1", timeout=_KEEPALIVE_DEADLINE)
            if self.found is None and await is_current(self.connections[0]):
                everything.cancel()
