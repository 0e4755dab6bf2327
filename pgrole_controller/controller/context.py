"""What every worker shares with the others, and with the loop that declines objects without a server."""

from dataclasses import dataclass, field

from pgrole_controller.controller.background import Background
from pgrole_controller.controller.endings import Endings
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.live_servers import LiveServers
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reporter import Reporter


@dataclass(frozen=True, slots=True)
class WorkerContext:
    objects: Objects
    queue: Queue
    endings: Endings
    background: Background
    reporter: Reporter
    live_servers: LiveServers
    leadership: Leadership
    grantees: Grantees = field(default_factory=Grantees)
