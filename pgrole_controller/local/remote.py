"""An API server that somebody else runs, in a container: spoken to as to one of ours, never started or stopped."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import aiohttp

from pgrole_controller.local import credentials
from pgrole_controller.local.apiserver import READY_SECONDS, ApiServer
from pgrole_controller.local.audit import AuditLog
from pgrole_controller.local.deadline import reached
from pgrole_controller.local.process import LocalError


class RemoteApiServer(ApiServer):
    """`tokens` are of its users, admin among them; kubeconfigs are written to `folder` when they are asked for."""

    def __init__(
        self, folder: Path, *, url: str, ca: Path, tokens: Mapping[str, str], audit: AuditLog | None = None
    ) -> None:
        self.folder = folder
        self.version = ""
        self.url = url
        self.ca = ca
        self.token = tokens[credentials.ADMIN]
        self._tokens = dict(tokens)
        self.kubeconfig = folder / f"{credentials.ADMIN}.kubeconfig"
        self._audit = audit
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Wait until it is ready. Raises LocalError when it is not in time."""
        if not await reached(self._answers, READY_SECONDS, every=0.2):
            raise LocalError(f"the API server at {self.url} was not ready after {READY_SECONDS:.0f} s")
        self.version = str((await self.request("GET", "/version"))["gitVersion"])

    async def stop(self) -> None:
        """End what is open to it."""
        await self._close_session()

    async def kill(self) -> None:
        self._refuse("killed")

    def pause(self) -> None:
        self._refuse("frozen")

    def resume(self) -> None:
        self._refuse("frozen")

    def _refuse(self, what: str) -> NoReturn:
        raise LocalError(f"the API server at {self.url} was not started here: it cannot be {what}")
