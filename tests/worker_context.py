"""The context that workers share, for tests without an API server."""

from typing import cast

from pgrole_controller.controller.background import Background
from pgrole_controller.controller.context import LiveServers, WorkerContext
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.passwords import PasswordTasks
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Endings, Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.core.contest import Contests
from pgrole_controller.kube.client import Client


def make_context(
    queue: Queue, objects: Objects, reporter: Reporter | None = None, client: Client | None = None
) -> WorkerContext:
    """Tests without a `reporter` must not reconcile. `client` writes finalizers; no test may run a password task."""
    contests = Contests()
    endings = Endings(queue, contests)
    told = cast("Reporter", reporter)
    background = Background(cast("Client", client), objects.store, endings, cast("PasswordTasks", None), told)
    live_servers = LiveServers(lambda: ())
    return WorkerContext(
        objects,
        queue,
        endings,
        background,
        told,
        live_servers,
        Leadership(),
        Grantees(),
        contests,
    )
