"""`/healthz`: the loop answers, so it is alive. `/readyz`: synced, and connected or knowingly waiting.

Liveness is not the database's: a controller that is restarted because a server is down helps nobody.
"""

import json
import logging

import anyio
from aiohttp import web

from pgrole_controller.controller.errors import CannotStart
from pgrole_controller.controller.lane import Lane
from pgrole_controller.controller.lead import Lead
from pgrole_controller.controller.servers import Servers
from pgrole_controller.kube.store import Store

log = logging.getLogger(__name__)


class Health:
    def __init__(self) -> None:
        self.stopping = False
        self._store: Store | None = None
        self._servers: Servers | None = None
        self._lead = Lead()

    def watch(self, store: Store, servers: Servers, lead: Lead) -> None:
        """Readiness is theirs from now on; before, nothing is ready."""
        self._store, self._servers, self._lead = store, servers, lead

    async def serve(self, host: str, port: int) -> None:
        """Until cancelled. Raises CannotStart when the port is taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        try:
            await runner.setup()
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise CannotStart(f"--health-port {port}: {error.strerror}; give another, or 0 for none") from error
            log.info("health served", extra={"host": host, "port": port})
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(2, shield=True):
                await runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        lanes = list(self._servers or ())
        servers = {lane.server.name: _describe(lane) for lane in lanes}
        settled = self._servers is not None and self._servers.settled.is_set()
        known = settled and all(_has_session(lane) or lane.trouble for lane in lanes)
        synced = self._store is not None and self._store.synced.is_set()
        ready = synced and known and not self.stopping
        body = {"ready": ready, "synced": synced, "leading": self._lead.leading, "servers": servers}
        return web.Response(text=json.dumps(body) + "\n", status=200 if ready else 503, content_type="application/json")


def _has_session(lane: Lane) -> bool:
    return lane.connected or lane.standing_by


def _describe(lane: Lane) -> str:
    if _has_session(lane):
        return "connected"
    return lane.trouble.message if lane.trouble else "connecting"
