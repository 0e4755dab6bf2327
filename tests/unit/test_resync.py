"""controller/resync: every object is looked at once in a period, whatever the period was before."""

from dataclasses import replace
from typing import cast

import anyio

from pgrole_controller.controller.identities import Identities
from pgrole_controller.controller.lane import Lane
from pgrole_controller.controller.lead import Lead
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.resync import resync
from pgrole_controller.controller.server import DeclaredServer
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key, RequestReason
from pgrole_controller.core.workqueue import Done
from pgrole_controller.kube.store import Store


class FakeObjects:
    def __init__(self) -> None:
        self.store, self.secrets_answered = Store(), anyio.Event()
        self.store.synced.set()
        self.secrets_answered.set()

    def of_server(self, _: str) -> set[Key]:
        return {Key("shop", "app")}


async def test_a_shorter_period_holds_at_once() -> None:
    server = DeclaredServer("main", None, ServerPolicy(), Address("", 5432, "", ""), resync_seconds=1e6)
    queue = Queue()
    lane = Lane(server, cast("Objects", FakeObjects()), queue, cast("Reporter", None), Identities(), Lead())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(resync, lane, lambda: 0.0)
        with anyio.fail_after(30):
            (first,) = await queue.take("main", 10)
        queue.done(first.key, Done())
        lane.declare(replace(server, resync_seconds=0.05))
        for _ in range(3):
            with anyio.fail_after(30):
                (visit,) = await queue.take("main", 10)
            assert visit.reason is RequestReason.RESYNC
            queue.done(visit.key, Done())
        tasks.cancel_scope.cancel()
