"""What the metrics ask for when somebody scrapes: the state of the lanes at that moment, in the event loop."""

from collections.abc import Iterable

import anyio

from pgrole_controller.controller.lane import Lane
from pgrole_controller.controller.lead import Lead
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.sources import NO_SERVER
from pgrole_controller.core.state import Mode
from pgrole_controller.metrics import UNDECLARED, Scrape, ServerFigures


class Scraper:
    def __init__(self, lanes: Iterable[Lane], objects: Objects, queue: Queue, lead: Lead) -> None:
        self._lanes = lanes
        self._objects = objects
        self._queue = queue
        self._lead = lead

    def scrape(self) -> Scrape:
        """Takes microseconds for each server, whatever the number of objects; only contested ones are counted."""
        declared = [self._figures(lane) for lane in self._lanes]
        depth, oldest = self._queue.figures(NO_SERVER)
        rest = ServerFigures(
            UNDECLARED,
            depth=depth,
            oldest=oldest,
            objects=len(self._objects.store) - sum(one.objects for one in declared),
        )
        return Scrape(
            servers=(*declared, rest),
            contested=self._objects.contests.count_contested(anyio.current_time()),
            leading=self._lead.leading,
        )

    def _figures(self, lane: Lane) -> ServerFigures:
        name, session = lane.server.name, lane.session
        depth, oldest = self._queue.figures(name)
        objects, ready = self._objects.count(name)
        mode = session.detection.mode if session else None
        heard = mode in (Mode.WATCH, Mode.POLL)
        return ServerFigures(
            name,
            connected=lane.connected or lane.standing_by,
            mode=mode.value if mode else "",
            fallback=bool(session and session.why),
            depth=depth,
            oldest=oldest,
            objects=objects,
            ready=ready,
            unheard=lane.echoes.overdue(anyio.current_time()) if heard else 0,
        )
