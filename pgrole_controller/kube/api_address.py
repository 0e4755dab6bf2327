"""Address and certificate authority of the API server, for clients that each have a bearer token of their own."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from pgrole_controller import __version__
from pgrole_controller.kube import credentials
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import NotConfigured
from pgrole_controller.kube.route import read_trust
from pgrole_controller.kube.transport import Reachability, Transport


class ApiAddress:
    """Clients share what verifies the server, and neither connections nor credentials."""

    def __init__(self, configuration: Any, trust: ssl.SSLContext | bool) -> None:  # noqa: ANN401 - kubernetes_asyncio's
        """Call `find` instead."""
        self._configuration = configuration
        self._trust = trust

    @classmethod
    async def find(
        cls,
        kubeconfig: str | None = None,
        *,
        context: str | None = None,
        address: str | None = None,
        ca_file: str | None = None,
    ) -> Self:
        """Arguments as in `credentials.load_address`. Raises NotConfigured."""
        configuration = await credentials.load_address(kubeconfig, context=context, address=address, ca_file=ca_file)
        try:
            return cls(configuration, read_trust(configuration))
        except OSError as error:  # includes ssl.SSLError
            message = f"the certificate authority of {configuration.host} is not usable: {error}"
            raise NotConfigured(message) from error
        finally:
            credentials.forget_files()

    @asynccontextmanager
    async def connect(
        self, token: str, refused: Callable[[], None], reachability: Reachability | None = None
    ) -> AsyncIterator[Client]:
        """A client for one bearer token. `refused` is called whenever the API server answers 401."""
        known = credentials.BearerToken(self._configuration, token, refused)
        async with Transport(self._configuration, f"pgrole-controller/{__version__}", self._trust) as transport:
            yield Client(transport, known, reachability=reachability)
