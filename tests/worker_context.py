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


def make_context(queue: Queue, objects: Objects, reporter: Reporter | None = None) -> WorkerContext:
    """Tests without a `reporter` must not reconcile, and none may run a password task."""
    contests = Contests()
    endings = Endings(queue, contests)
    background = Background(cast("Client", None), objects.store, endings, cast("PasswordTasks", None))
    live_servers = LiveServers(lambda: ())
    return WorkerContext(
        objects,
        queue,
        endings,
        background,
        cast("Reporter", reporter),
        live_servers,
        Leadership(),
        Grantees(),
        contests,
    )
