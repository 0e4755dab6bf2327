"""The cluster's id: the uid of namespace kube-system, which tells its claims from those of other clusters."""

import logging

import anyio

from pgrole_controller.controller.errors import CannotStart
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.resource import NAMESPACES
from pgrole_controller.kube.unvalidated import parse

log = logging.getLogger(__name__)

_NAMESPACE = "kube-system"


async def read_cluster_id(client: Client) -> str:
    """Tries again while the API server does not answer. Raises CannotStart if it refuses, and ApiError."""
    while True:
        try:
            answer = await client.request("GET", NAMESPACES.path(name=_NAMESPACE), timeout=10.0)
            uid = parse(answer)["metadata"].get("uid")
            if not isinstance(uid, str) or not uid:
                raise BadStream("the API server's answer is not a namespace")
        except ApiError as error:
            if error.status in (401, 403, 404):
                raise CannotStart(
                    f"the cluster's id is not readable (the uid of namespace {_NAMESPACE}): {error}. "
                    f"Grant get on it, or set --cluster-id"
                ) from error
            if error.status not in (408, 429) and error.status < 500:
                raise
            log.warning("API server does not answer yet", extra={"error": str(error)})
        except (Unreachable, BadStream) as error:
            log.warning("API server not reached", extra={"error": str(error)})
        else:
            return uid
        await anyio.sleep(1.0)
