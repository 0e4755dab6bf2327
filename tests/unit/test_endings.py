"""controller/queue: when a key is due again after a reconcile, including confirmations left by earlier ones."""

import anyio

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.queue import Endings, Queue
from pgrole_controller.controller.result import Result
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.next_attempt import CONFIRM_SECONDS
from pgrole_controller.core.outcome import RECONCILED
from pgrole_controller.core.plan import Action
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.kube.stored_object import pack
from tests.timelapse import in_timelapse

KEY = Key("shop", "app")
STORED = pack({"metadata": {"namespace": "shop", "name": "app", "uid": "u1", "resourceVersion": "1"}})
CHANGED = Result(Target(KEY, STORED), RECONCILED, action=Action.CHANGED, decided=True)
UNCHANGED = Result(Target(KEY, STORED), RECONCILED, decided=True)
GONE = Result(Target(KEY, None))


class EndingWorld:
    def __init__(self) -> None:
        self.queue = Queue()
        self.endings = Endings(self.queue, Contests())

    async def reconcile(self, result: Result, request: bool = True) -> float:
        """Returns when the reconcile began."""
        if request:
            self.queue.put("main", Request(KEY, RequestReason.OBJECT, Rank.CHANGE))
        await self.queue.take("main", 1)
        began = anyio.current_time()
        self.endings.end(result)
        return began


@in_timelapse
async def test_a_change_is_confirmed_on_time_even_after_another_reconcile() -> None:
    world = EndingWorld()
    changed = await world.reconcile(CHANGED)
    await anyio.sleep(CONFIRM_SECONDS / 2)
    await world.reconcile(UNCHANGED)
    confirmed = await world.reconcile(UNCHANGED, request=False)
    assert abs(confirmed - changed - CONFIRM_SECONDS) < 0.01
    with anyio.move_on_after(1000.0) as waiting:
        await world.queue.take("main", 1)
    assert waiting.cancelled_caught


@in_timelapse
async def test_an_interrupted_reconcile_is_repeated_at_once_and_an_earlier_change_is_still_confirmed() -> None:
    world = EndingWorld()
    changed = await world.reconcile(CHANGED)
    world.queue.put("main", Request(KEY, RequestReason.OBJECT, Rank.CHANGE))
    await world.queue.take("main", 1)
    world.endings.interrupt(KEY)
    assert await world.reconcile(UNCHANGED, request=False) - changed < 0.01
    confirmed = await world.reconcile(UNCHANGED, request=False)
    assert abs(confirmed - changed - CONFIRM_SECONDS) < 0.01


@in_timelapse
async def test_the_confirmation_of_a_deleted_object_is_forgotten() -> None:
    world = EndingWorld()
    await world.reconcile(CHANGED)
    await world.reconcile(GONE)
    assert not world.endings._confirm_at
